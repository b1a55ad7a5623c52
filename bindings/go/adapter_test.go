package segno

import (
	"context"
	"errors"
	"slices"
	"testing"
)

const adapterPath = "../../examples/models/shakespeare-lora.gguf"

func TestAdapters(t *testing.T) {
	model := load(t, nil)
	adapter := must(model.LoadAdapter(adapterPath))(t)
	session := open(t, model, &SessionOptions{AdapterRanks: 8})
	sampler := DefaultSampler()
	sampler.Temperature = 0
	prompt := must(model.Tokenize("ROMEO:", TokenizeOptions{}))(t)
	tokens := func(adapters ...ScaledAdapter) [12]int32 {
		seq := must(session.Open(sampler))(t)
		defer seq.Close()
		if err := seq.SetAdapters(adapters...); err != nil {
			t.Fatal(err)
		}
		if err := seq.Prefill(context.Background(), prompt); err != nil {
			t.Fatal(err)
		}
		var found [12]int32
		for i := range found {
			found[i] = must(seq.Decode(context.Background()))(t).Token
		}
		return found
	}
	plain, changed := tokens(), tokens(ScaledAdapter{adapter, 1})
	if plain == changed {
		t.Fatal("an adapter changes nothing")
	}
	if tokens(ScaledAdapter{adapter, 0}) != plain || tokens(ScaledAdapter{adapter, 0.5}, ScaledAdapter{adapter, 0.5}) != changed {
		t.Fatal("scales are factors")
	}
	vector := func(adapters ...ScaledAdapter) []float32 {
		return must(session.Embed(t.Context(), [][]int32{prompt}, &EmbedOptions{Adapters: adapters}))(t)[0]
	}
	if slices.Equal(vector(), vector(ScaledAdapter{adapter, 1})) || !slices.Equal(vector(), vector(ScaledAdapter{adapter, 0})) {
		t.Fatal("vectors have the adapters of their call")
	}
	seq := must(session.Open(nil))(t)
	if err := seq.SetAdapters(ScaledAdapter{adapter, 1}); err != nil {
		t.Fatal(err)
	}
	if err := adapter.Close(); err != nil {
		t.Fatal(err)
	}
	if err := seq.Prefill(context.Background(), prompt); err != nil {
		t.Fatal(err)
	}
	if err := seq.SetAdapters(ScaledAdapter{adapter, 1}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := seq.SetAdapters(ScaledAdapter{}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	closed := &EmbedOptions{Adapters: []ScaledAdapter{{adapter, 1}}}
	if _, err := session.Embed(t.Context(), [][]int32{prompt}, closed); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := model.LoadAdapter(modelPath); !errors.Is(err, Unsupported) {
		t.Fatal(err)
	}
}
