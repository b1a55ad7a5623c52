// Adapt lets a model go on with a prompt by itself, with each of several adapters, and with all of them together: sequences of one session, which
// advance in the same passes. An adapter is a LoRA in a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it.
//
//	adapt MODEL.gguf PROMPT ADAPTER.gguf[=SCALE]...
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"segno"
)

const tokensEach = 48

type text struct {
	name   string
	set    []segno.ScaledAdapter
	tokens []int32
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: adapt MODEL.gguf PROMPT ADAPTER.gguf[=SCALE]...")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := adapt(ctx, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}

// load gives the adapter that an argument names, with the scale behind its last `=`, and the argument's name.
func load(model *segno.Model, argument string) (segno.ScaledAdapter, string, error) {
	path, scale := argument, 1.0
	if at := strings.LastIndex(argument, "="); at >= 0 {
		number, err := strconv.ParseFloat(argument[at+1:], 32)
		if err != nil {
			return segno.ScaledAdapter{}, "", err
		}
		path, scale = argument[:at], number
	}
	adapter, err := model.LoadAdapter(path)
	return segno.ScaledAdapter{Adapter: adapter, Scale: float32(scale)}, path, err
}

func adapt(ctx context.Context, path, prompt string, arguments []string) error {
	device, err := segno.NewContext(nil)
	if err != nil {
		return err
	}
	defer device.Close()
	model, err := device.LoadModel(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	texts := []*text{{name: "no adapter"}}
	var all []segno.ScaledAdapter
	for _, argument := range arguments {
		adapter, name, err := load(model, argument)
		if err != nil {
			return err
		}
		defer adapter.Adapter.Close()
		texts = append(texts, &text{name: name, set: []segno.ScaledAdapter{adapter}})
		all = append(all, adapter)
	}
	if len(all) > 1 {
		texts = append(texts, &text{name: "all of them", set: all})
	}
	session, err := model.NewSession(&segno.SessionOptions{MaxSeqs: len(texts)})
	if err != nil {
		return err
	}
	defer session.Close()
	start, err := model.Tokenize(prompt, segno.TokenizeOptions{AddSpecial: true})
	if err != nil {
		return err
	}
	sampler := segno.DefaultSampler()
	sampler.Temperature, sampler.IgnoreEOG = 0, true
	seqs := make([]*segno.Sequence, len(texts))
	for i, t := range texts {
		if seqs[i], err = session.Open(sampler); err != nil {
			return err
		}
		// Before the prompt: what a sequence has evaluated it evaluates again with other adapters.
		if err := seqs[i].SetAdapters(t.set...); err != nil {
			return err
		}
		if err := seqs[i].Append(start); err != nil {
			return err
		}
	}
	steps := make([]segno.Step, len(texts))
	for done := 0; done < len(texts); {
		if err := session.DecodeBatch(ctx, seqs, steps); err != nil {
			return err
		}
		done = 0
		for i, t := range texts {
			if steps[i].Status != segno.Pending && len(t.tokens) < tokensEach {
				t.tokens = append(t.tokens, steps[i].Token)
			}
			if len(t.tokens) == tokensEach {
				done++
			}
		}
	}
	for _, t := range texts {
		words, err := model.Detokenize(t.tokens, false)
		if err != nil {
			return err
		}
		fmt.Printf("--- %s\n%s\n", t.name, words)
	}
	return nil
}
