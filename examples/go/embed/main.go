// Embed finds the texts that are nearest to a query: each becomes a vector, and the cosine of two says how much they mean the same. Models that were
// made for that know it best; some want a word before a query, which comes as a part of it.
//
//	embed MODEL.gguf QUERY TEXT...
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"

	"segno"
)

type found struct {
	text   string
	cosine float32
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: embed MODEL.gguf QUERY TEXT...")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := embed(ctx, os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func embed(ctx context.Context, path string, texts []string) error {
	device, err := segno.NewContext(&segno.ContextOptions{Device: segno.DeviceCPU})
	if err != nil {
		return err
	}
	defer device.Close()
	model, err := device.LoadModel(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	// As many texts in a pass at most.
	session, err := model.NewSession(&segno.SessionOptions{MaxSeqs: 32})
	if err != nil {
		return err
	}
	defer session.Close()

	tokens := make([][]int32, len(texts))
	for i, text := range texts {
		if tokens[i], err = model.Tokenize(text, segno.TokenizeOptions{AddSpecial: true}); err != nil {
			return err
		}
	}
	vectors, err := session.Embed(ctx, tokens, nil)
	if err != nil {
		return err
	}
	all := make([]found, 0, len(texts)-1)
	for i, text := range texts[1:] {
		var cosine float32
		for d, value := range vectors[0] {
			cosine += value * vectors[i+1][d]
		}
		all = append(all, found{text, cosine})
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(b.cosine, a.cosine) })
	for _, f := range all {
		fmt.Printf("%6.3f  %s\n", f.cosine, f.text)
	}
	return nil
}
