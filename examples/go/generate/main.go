// Generate streams a continuation of a prompt, and tells how fast prompt and continuation went.
//
//	generate MODEL.gguf [-p PROMPT] [-n TOKENS] [-s SEED] [-t TEMPERATURE] [-j THREADS]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"segno"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: generate MODEL.gguf [-p PROMPT] [-n TOKENS] [-s SEED] [-t TEMPERATURE] [-j THREADS]")
	}
	flags := flag.NewFlagSet("generate", flag.ExitOnError)
	prompt := flags.String("p", "", "the `text` to continue")
	tokens := flags.Int("n", 200, "most `tokens` to write")
	seed := flags.Uint64("s", segno.SeedRandom, "`seed` of the draw")
	temperature := flags.Float64("t", 0.8, "0 takes the most probable token")
	threads := flags.Int("j", 0, "`threads` that compute, 0 for all cores")
	flags.Parse(os.Args[2:])
	sampler := segno.DefaultSampler()
	sampler.Seed, sampler.Temperature = *seed, float32(*temperature)

	// The first interrupt ends the text, not the program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := generate(ctx, os.Args[1], *prompt, *tokens, *threads, sampler); err != nil {
		log.Fatal(err)
	}
}

func generate(ctx context.Context, path, prompt string, limit, threads int, sampler *segno.SamplerOptions) error {
	device, err := segno.NewContext(&segno.ContextOptions{Threads: threads})
	if err != nil {
		return err
	}
	defer device.Close()
	model, err := device.LoadModel(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		return err
	}
	defer session.Close()
	seq, err := session.Open(sampler)
	if err != nil {
		return err
	}
	defer seq.Close()

	ids, err := model.Tokenize(prompt, segno.TokenizeOptions{AddSpecial: true})
	if err != nil {
		return err
	}
	start := time.Now()
	if err := seq.Prefill(ctx, ids); err != nil {
		return err
	}
	prefill := time.Since(start)
	fmt.Print(prompt)
	count := 0
	for piece, err := range seq.Generate(ctx, segno.GenerateOptions{MaxTokens: limit}) {
		if errors.Is(err, segno.ContextFull) || errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			return err
		}
		fmt.Print(piece.Text)
		if piece.Token >= 0 {
			count++
		}
	}
	decode := time.Since(start) - prefill
	fmt.Printf("\n\nprompt: %d tokens, %.1f tokens/s; decode: %d tokens, %.1f tokens/s\n",
		len(ids), float64(len(ids))/prefill.Seconds(), count, float64(count)/decode.Seconds())
	return nil
}
