package segno

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

const person = `{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
	"required": ["name", "age"], "additionalProperties": false}`

func TestGrammar(t *testing.T) {
	model := load(t, nil)
	grammar := must(model.NewGrammar(&GrammarOptions{Text: person, Compact: true}))(t)
	session := must(model.NewSession(nil))(t)
	defer session.Close()
	seq := must(session.Open(nil))(t)
	prompt := must(model.Tokenize("ROMEO:", TokenizeOptions{}))(t)
	if err := seq.Append(prompt); err != nil {
		t.Fatal(err)
	}
	if err := seq.SetGrammar(grammar); err != nil {
		t.Fatal(err)
	}
	if err := grammar.Close(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for piece, err := range seq.Generate(context.Background(), GenerateOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(piece.Text)
	}
	var form struct {
		Name string
		Age  int
	}
	if err := json.Unmarshal([]byte(text.String()), &form); err != nil || form.Age < 1 || form.Age > 99 {
		t.Fatal(text.String(), err)
	}
	if err := seq.SetGrammar(grammar); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := seq.SetGrammar(nil); err != nil {
		t.Fatal(err)
	}
	if step := must(seq.Decode(context.Background()))(t); step.Status != OK {
		t.Fatal(step)
	}
	if _, err := model.NewGrammar(&GrammarOptions{Kind: GrammarRegex, Text: "a("}); !errors.Is(err, BadGrammar) {
		t.Fatal(err)
	}
}
