package segno

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

var modelPath = filepath.Join("..", "..", "examples", "models", "shakespeare.gguf")

// load returns the bundled model on a context of its own.
func load(t testing.TB, opts *ContextOptions) *Model {
	t.Helper()
	ctx := must(NewContext(opts))(t)
	t.Cleanup(func() { ctx.Close() })
	model := must(ctx.LoadModel(context.Background(), modelPath, nil))(t)
	t.Cleanup(func() { model.Close() })
	return model
}

func open(t testing.TB, m *Model, opts *SessionOptions) *Session {
	t.Helper()
	session := must(m.NewSession(opts))(t)
	t.Cleanup(func() { session.Close() })
	return session
}

// start opens a sequence with a prompt and a seed.
func start(t testing.TB, s *Session, prompt string, seed uint64) *Sequence {
	t.Helper()
	sampler := DefaultSampler()
	sampler.Seed = seed
	seq := must(s.Open(sampler))(t)
	tokens := must(s.model.Tokenize(prompt, TokenizeOptions{AddSpecial: true}))(t)
	if err := seq.Append(tokens); err != nil {
		t.Fatal(err)
	}
	return seq
}

// run returns the next tokens of a sequence, and their text.
func run(t testing.TB, seq *Sequence, tokens int) ([]int32, string) {
	t.Helper()
	var ids []int32
	var text string
	for piece, err := range seq.Generate(context.Background(), GenerateOptions{MaxTokens: tokens}) {
		if err != nil {
			t.Fatal(err)
		}
		if piece.Token >= 0 {
			ids = append(ids, piece.Token)
		}
		text += piece.Text
	}
	return ids, text
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestMain(m *testing.M) {
	if _, err := os.Stat(modelPath); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
