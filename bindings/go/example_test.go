package segno_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"segno"
)

const path = "../../examples/models/shakespeare.gguf"

// A prompt, and the words that follow it.
func Example() {
	device, err := segno.NewContext(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	model, err := device.LoadModel(context.Background(), path, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	sampler := segno.DefaultSampler()
	sampler.Temperature = 0
	seq, err := session.Open(sampler)
	if err != nil {
		log.Fatal(err)
	}
	defer seq.Close()
	prompt, err := model.Tokenize("ROMEO:", segno.TokenizeOptions{AddSpecial: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := seq.Append(prompt); err != nil {
		log.Fatal(err)
	}
	for piece, err := range seq.Generate(context.Background(), segno.GenerateOptions{MaxTokens: 8}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(piece.Text)
	}
	// Output: I'll be a bawd
}

// Several sequences advance in one pass over the model.
func ExampleSession_DecodeBatch() {
	device, _ := segno.NewContext(nil)
	defer device.Close()
	model, err := device.LoadModel(context.Background(), path, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	session, _ := model.NewSession(nil)
	defer session.Close()
	var seqs []*segno.Sequence
	for _, name := range []string{"ROMEO:", "JULIET:"} {
		sampler := segno.DefaultSampler()
		sampler.Seed = 1
		seq, _ := session.Open(sampler)
		prompt, _ := model.Tokenize(name, segno.TokenizeOptions{AddSpecial: true})
		seq.Append(prompt)
		seqs = append(seqs, seq)
	}
	steps := make([]segno.Step, len(seqs))
	for range 10 {
		if err := session.DecodeBatch(context.Background(), seqs, steps); err != nil {
			log.Fatal(err)
		}
	}
	length, _ := seqs[0].Len()
	fmt.Println(steps[0].Status, steps[1].Status, length)
	// Output: SEGNO_OK SEGNO_OK 13
}

// A loop that draws frames keeps one step going and asks once a frame.
func ExampleSession_Submit() {
	device, _ := segno.NewContext(&segno.ContextOptions{Threads: 1, Background: true})
	defer device.Close()
	model, err := device.LoadModel(context.Background(), path, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	session, _ := model.NewSession(nil)
	defer session.Close()
	sampler := segno.DefaultSampler()
	sampler.Temperature = 0
	seq, _ := session.Open(sampler)
	prompt, _ := model.Tokenize("ROMEO:", segno.TokenizeOptions{AddSpecial: true})
	seq.Append(prompt)

	seqs, steps, tokens := []*segno.Sequence{seq}, make([]segno.Step, 1), []int32(nil)
	for running := false; len(tokens) < 8; {
		if !running {
			if err := session.Submit(seqs, 8*time.Millisecond); err != nil {
				log.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond) // the frame is drawn
		done, err := session.Poll(context.Background(), 0, steps)
		if err != nil {
			log.Fatal(err)
		}
		if running = !done; done && steps[0].Status == segno.OK {
			tokens = append(tokens, steps[0].Token)
		}
	}
	text, _ := model.Detokenize(tokens, false)
	fmt.Println(text)
	// Output: I'll be a bawd
}

// Errors are matched by their status.
func ExampleError() {
	device, _ := segno.NewContext(nil)
	defer device.Close()
	_, err := device.LoadModel(context.Background(), "no/such/model.gguf", nil)
	fmt.Println(err)
	// Output: segno: cannot read no/such/model.gguf: No such file or directory (os error 2) (SEGNO_E_IO)
}
