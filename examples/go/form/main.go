// Form has a model fill a form: whatever it has learnt, what comes out is JSON of the schema, so a program can read it.
//
//	form MODEL.gguf [-p PROMPT] [-s SEED]
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"segno"
)

const schema = `{"type": "object", "properties": {
	"name": {"type": "string", "minLength": 2, "maxLength": 24},
	"age": {"type": "integer", "minimum": 1, "maximum": 99},
	"mood": {"enum": ["merry", "sad", "angry"]},
	"words": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,10}$"}, "minItems": 2, "maxItems": 4}},
	"required": ["name", "age", "mood", "words"], "additionalProperties": false}`

type person struct {
	Name  string
	Age   int
	Mood  string
	Words []string
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: form MODEL.gguf [-p PROMPT] [-s SEED]")
	}
	flags := flag.NewFlagSet("form", flag.ExitOnError)
	prompt := flags.String("p", "A form about ROMEO, as JSON:\n", "the `text` before the form")
	seed := flags.Uint64("s", 1, "`seed` of the draw")
	flags.Parse(os.Args[2:])
	filled, err := fill(os.Args[1], *prompt, *seed)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %d, is %s and says %s\n", filled.Name, filled.Age, filled.Mood, strings.Join(filled.Words, ", "))
}

func fill(path, prompt string, seed uint64) (*person, error) {
	ctx := context.Background()
	device, err := segno.NewContext(nil)
	if err != nil {
		return nil, err
	}
	defer device.Close()
	model, err := device.LoadModel(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	grammar, err := model.NewGrammar(&segno.GrammarOptions{Text: schema, Compact: true})
	if err != nil {
		return nil, err
	}
	defer grammar.Close()
	sampler := segno.DefaultSampler()
	sampler.Seed = seed
	seq, err := session.Open(sampler)
	if err != nil {
		return nil, err
	}
	defer seq.Close()
	ids, err := model.Tokenize(prompt, segno.TokenizeOptions{AddSpecial: true})
	if err != nil {
		return nil, err
	}
	if err := seq.Append(ids); err != nil {
		return nil, err
	}
	if err := seq.SetGrammar(grammar); err != nil {
		return nil, err
	}
	var text strings.Builder
	for piece, err := range seq.Generate(ctx, segno.GenerateOptions{}) {
		if err != nil {
			return nil, err
		}
		text.WriteString(piece.Text)
	}
	var filled person
	return &filled, json.Unmarshal([]byte(text.String()), &filled)
}
