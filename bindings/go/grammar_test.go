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

func TestToolGrammar(t *testing.T) {
	model := load(t, nil)
	const tools = `[{"name": "add", "parameters": {"properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["a"]}}]`
	options := &ToolOptions{Tools: tools, Choice: ToolsNamed, Name: "add", OneCall: true, Format: "hermes", Prompt: "assistant\n"}
	grammar := must(model.NewToolGrammar(options))(t)
	defer grammar.Close()
	if grammar.StartToken() != -1 {
		t.Fatal(grammar.StartToken())
	}
	reply := must(model.NewReply(&ReplyOptions{Format: "hermes", Prompt: "assistant\n", Tools: tools}))(t)
	defer reply.Close()
	session := must(model.NewSession(nil))(t)
	defer session.Close()
	seq := must(session.Open(nil))(t)
	if err := seq.Append(must(model.Tokenize("ROMEO:", TokenizeOptions{}))(t)); err != nil {
		t.Fatal(err)
	}
	if err := seq.SetGrammar(grammar); err != nil {
		t.Fatal(err)
	}
	var name, arguments string
	for piece, err := range seq.Generate(context.Background(), GenerateOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if piece.Token < 0 {
			continue
		}
		events, _, err := reply.Push(piece.Token)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			switch event.Kind {
			case EventToolBegin:
				name = event.Text
			case EventToolArguments:
				arguments += event.Text
			}
		}
	}
	var given struct{ A int }
	if err := json.Unmarshal([]byte(arguments), &given); err != nil || name != "add" || given.A < 10 || given.A > 99 {
		t.Fatal(name, arguments, err)
	}
	options.Name = "subtract"
	if _, err := model.NewToolGrammar(options); !errors.Is(err, NotFound) {
		t.Fatal(err)
	}
}
