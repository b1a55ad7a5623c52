package segno

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

func TestTokensDependOnTheSeedAlone(t *testing.T) {
	m := load(t, nil)
	s := open(t, m, nil)
	a, text := run(t, start(t, s, "ROMEO:", 1), 40)
	b, _ := run(t, start(t, s, "ROMEO:", 1), 40)
	c, _ := run(t, start(t, s, "ROMEO:", 2), 40)
	if len(a) != 40 || !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
		t.Fatal(a, b, c)
	}
	if whole := must(m.Detokenize(a, false))(t); whole != text {
		t.Fatalf("%q, %q", whole, text)
	}
}

func TestBatchesGiveTheTokensOfEachAlone(t *testing.T) {
	s := open(t, load(t, nil), &SessionOptions{MaxSeqs: 6})
	var seqs []*Sequence
	var want [][]int32
	for seed := range uint64(3) {
		tokens, _ := run(t, start(t, s, "JULIET:", seed), 20)
		want = append(want, tokens)
		seqs = append(seqs, start(t, s, "JULIET:", seed))
	}
	steps := make([]Step, 3)
	got := make([][]int32, 3)
	for range 20 {
		if err := s.DecodeBatch(context.Background(), seqs, steps); err != nil {
			t.Fatal(err)
		}
		for i, step := range steps {
			got[i] = append(got[i], step.Token)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatal(got, want)
	}
}

func TestAFailedItemLeavesTheOthersAlone(t *testing.T) {
	s := open(t, load(t, nil), nil)
	good, empty := start(t, s, "ROMEO:", 1), must(s.Open(nil))(t)
	steps := make([]Step, 3)
	if err := s.DecodeBatch(context.Background(), []*Sequence{good, empty, empty}, steps); err != nil {
		t.Fatal(err)
	}
	if steps[0].Err != nil || steps[0].Token < 0 || !errors.Is(steps[1].Err, InvalidArgument) || steps[2].Err == nil || steps[1].Token != -1 {
		t.Fatal(steps)
	}
	var detailed *Error
	if !errors.As(steps[1].Err, &detailed) || detailed.Item != 1 {
		t.Fatal(steps[1].Err)
	}
	if err := s.DecodeBatch(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.DecodeBatch(context.Background(), []*Sequence{good}, nil); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if err := open(t, s.model, nil).DecodeBatch(context.Background(), []*Sequence{good}, steps[:1]); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestSequencesForkAndGoBack(t *testing.T) {
	s := open(t, load(t, nil), nil)
	seq := start(t, s, "ROMEO:", 3)
	length := must(seq.Len())(t)
	fork := must(seq.Fork(nil))(t)
	a, _ := run(t, seq, 10)
	b, _ := run(t, fork, 10)
	if !reflect.DeepEqual(a, b) || must(seq.Len())(t) != length+10 {
		t.Fatal(a, b)
	}
	if err := seq.Mark(); err != nil || must(seq.MarkNearest(length))(t) != length {
		t.Fatal(err)
	}
	if _, err := seq.MarkNearest(length + 11); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if err := fork.Remove(1, 4); err != nil || must(fork.Len())(t) != length+6 {
		t.Fatal(err)
	}
	if err := fork.Remove(length+6, 1); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if err := seq.Truncate(length); err != nil {
		t.Fatal(err)
	}
	sampler := DefaultSampler()
	sampler.Temperature = 0
	sampler.Bias = []LogitBias{{Token: 7, Bias: 1000}, {Token: 8}, {Token: 9}, {Token: 10}} // too large to share an object with the stop tokens
	sampler.StopTokens = []int32{7}
	if err := seq.SetSampler(sampler); err != nil {
		t.Fatal(err)
	}
	if step := must(seq.Decode(context.Background()))(t); step.Token != 7 || step.Status != Done {
		t.Fatal(step)
	}
	if logits := must(seq.Logits(context.Background()))(t); len(logits) != 1024 {
		t.Fatal(len(logits))
	}
	sampler.TopP = 7
	if err := seq.SetSampler(sampler); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if err := seq.Append([]int32{1, 2, -9}); !errors.Is(err, InvalidArgument) || err.(*Error).Item != 2 {
		t.Fatal(err)
	}
}

func TestGenerationEndsForAReason(t *testing.T) {
	s := open(t, load(t, nil), nil)
	seq := start(t, s, "ROMEO:", 1)
	tokens := 0
	var last error
	for piece, err := range seq.Generate(context.Background(), GenerateOptions{}) {
		if last = err; piece.Token >= 0 {
			tokens++
		}
	}
	if !errors.Is(last, ContextFull) || must(seq.Len())(t) != 512 || tokens < 400 {
		t.Fatal(last, tokens)
	}
	seq = start(t, s, "ROMEO:", 1)
	for range seq.Generate(context.Background(), GenerateOptions{}) {
		break
	}
	text := ""
	for piece, err := range seq.Generate(context.Background(), GenerateOptions{Stop: []string{"\n\n"}}) {
		if err != nil {
			t.Fatal(err)
		}
		text += piece.Text
	}
	if text == "" || len(text) > 1000 {
		t.Fatalf("%q", text)
	}
}

func TestAContextCancelsARunningPrompt(t *testing.T) {
	s := open(t, load(t, &ContextOptions{Threads: 1, Precision: PrecisionPrecise}), nil)
	seq := start(t, s, "ROMEO:", 1)
	long := make([]int32, 500)
	request, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := seq.Prefill(request, long); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if length := must(seq.Len())(t); length > 10 {
		t.Fatal("a cancelled prompt left", length)
	}
	if _, err := seq.Decode(request); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if tokens, _ := run(t, seq, 3); len(tokens) != 3 {
		t.Fatal("the session does not go on after a cancel")
	}
}

func TestWaitingForATurnEndsWithTheContext(t *testing.T) {
	s := open(t, load(t, nil), nil)
	seq := start(t, s, "ROMEO:", 1)
	s.core.turn <- struct{}{} // as a long call would
	request, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := seq.Decode(request); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	<-s.core.turn
}

func TestGoroutinesShareASession(t *testing.T) {
	s := open(t, load(t, nil), &SessionOptions{MaxSeqs: 9})
	want, _ := run(t, start(t, s, "ROMEO:", 1), 15)
	var wait sync.WaitGroup
	for i := range 8 {
		seq := start(t, s, "ROMEO:", 1)
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer seq.Close()
			request, cancel := context.WithCancel(context.Background())
			defer cancel()
			if i%2 == 1 {
				for range seq.Generate(request, GenerateOptions{MaxTokens: 400}) {
					cancel()
				}
				return
			}
			if got, _ := run(t, seq, 15); !reflect.DeepEqual(got, want) {
				t.Error(got)
			}
		}()
	}
	wait.Wait()
}

func TestASessionOutlivesItsModel(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	m := must(ctx.LoadModel(context.Background(), modelPath, nil))(t)
	s := open(t, m, nil)
	seq := start(t, s, "ROMEO:", 1)
	m.Close()
	ctx.Close()
	if step := must(seq.Decode(context.Background()))(t); step.Token < 0 {
		t.Fatal(step)
	}
	if logits := must(seq.Logits(context.Background()))(t); len(logits) != 1024 {
		t.Fatal(len(logits))
	}
	if _, err := must(s.Open(nil))(t).Logits(context.Background()); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestUseAfterCloseIsAnError(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	m := must(ctx.LoadModel(context.Background(), modelPath, nil))(t)
	s := must(m.NewSession(nil))(t)
	seq, other := start(t, s, "ROMEO:", 1), start(t, s, "ROMEO:", 1)
	text := must(m.NewText(nil))(t)
	for _, close := range []func() error{seq.Close, seq.Close, s.Close, s.Close, other.Close, m.Close, m.Close, ctx.Close, ctx.Close, text.Close, text.Close} {
		if err := close(); err != nil {
			t.Fatal(err)
		}
	}
	_, metaErr := m.Meta("x")
	_, loadErr := ctx.LoadModel(context.Background(), modelPath, nil)
	_, stepErr := other.Decode(context.Background())
	_, openErr := s.Open(nil)
	_, sessionErr := m.NewSession(nil)
	_, _, textErr := text.Push(1)
	_, forkErr := seq.Fork(nil)
	batchErr := s.DecodeBatch(context.Background(), []*Sequence{seq}, make([]Step, 1))
	for i, err := range []error{metaErr, loadErr, stepErr, openErr, sessionErr, textErr, forkErr, batchErr, seq.Append(nil)} {
		if !errors.Is(err, ErrClosed) {
			t.Fatal(i, err)
		}
	}
}

func TestCloseEndsARunningCall(t *testing.T) {
	m := load(t, nil)
	for range 20 {
		s := must(m.NewSession(nil))(t)
		seq := start(t, s, "ROMEO:", 1)
		request, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() {
			for {
				if _, err := seq.Decode(request); err != nil {
					ended <- err
					return
				}
				seq.Truncate(4)
			}
		}()
		time.Sleep(time.Millisecond)
		go cancel()
		s.Close()
		if err := <-ended; !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

func TestForgottenObjectsAreFreed(t *testing.T) {
	m := load(t, nil)
	s := open(t, m, &SessionOptions{MaxSeqs: 2})
	for range 20 {
		seq, err := s.Open(nil)
		for errors.Is(err, SeqFull) {
			runtime.GC()
			time.Sleep(time.Millisecond)
			seq, err = s.Open(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		run(t, startOn(t, seq), 2)
	}
	core := must(m.NewSession(nil))(t).core
	for !core.closing.Load() {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

func startOn(t *testing.T, seq *Sequence) *Sequence {
	if err := seq.Append([]int32{0, 10, 20}); err != nil {
		t.Fatal(err)
	}
	return seq
}

func TestTextsBecomeVectors(t *testing.T) {
	m := load(t, nil)
	s := open(t, m, &SessionOptions{MaxSeqs: 2})
	a := must(m.Tokenize("Speak, my lord.", TokenizeOptions{}))(t)
	b := must(m.Tokenize("What says the king?", TokenizeOptions{}))(t)
	all := must(s.Embed(t.Context(), [][]int32{a, b, a}, nil))(t)
	one := must(s.Embed(t.Context(), [][]int32{b}, nil))(t)
	if len(all) != 3 || len(one) != 1 || !slices.Equal(all[0], all[2]) || slices.Equal(all[0], all[1]) || !slices.Equal(all[1], one[0]) {
		t.Fatal(all, one)
	}
	var square float32
	for _, value := range one[0] {
		square += value * value
	}
	if square < 0.999 || square > 1.001 {
		t.Fatal(square)
	}
	raw := must(s.Embed(t.Context(), [][]int32{a, b}, &EmbedOptions{Pooling: NoPooling, Dims: 3, Raw: true}))(t)
	if len(raw) != len(a)+len(b) || len(raw[0]) != 3 {
		t.Fatal(raw)
	}
	if none := must(s.Embed(t.Context(), nil, nil))(t); len(none) != 0 {
		t.Fatal(none)
	}
	var failed *Error
	if _, err := s.Embed(t.Context(), [][]int32{a, {}}, nil); !errors.As(err, &failed) || failed.Item != 1 {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Embed(ctx, [][]int32{a}, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestSpeculationChangesNoToken(t *testing.T) {
	m, draft := load(t, nil), load(t, nil)
	plain := start(t, open(t, m, nil), "ROMEO:", 5)
	var expected []int32
	for range 60 {
		expected = append(expected, must(plain.Decode(t.Context()))(t).Token)
	}
	drafting := &SessionOptions{Speculation: DraftSpeculation | AlwaysSpeculate, MaxDrafts: 4, Draft: draft}
	s := open(t, m, drafting)
	seq, room := start(t, s, "ROMEO:", 5), make([]int32, 8)
	var tokens []int32
	for len(tokens) < 60 {
		count, status, err := seq.DecodeMany(t.Context(), room)
		if err != nil || status != OK && status != Pending {
			t.Fatal(status, err)
		}
		tokens = append(tokens, room[:count]...)
	}
	if !slices.Equal(tokens[:60], expected) {
		t.Fatal(tokens, expected)
	}
	stats := must(s.Stats())(t)
	if told := must(seq.Stats())(t); told.Accepted < 30 || told.Drafted != stats.Drafted || told.Accepted != stats.Accepted {
		t.Fatalf("%+v %+v", told, stats)
	}
	if _, _, err := seq.DecodeMany(t.Context(), nil); err == nil {
		t.Fatal("no room is no error")
	}
	draft.Close()
	if _, err := m.NewSession(drafting); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestFiguresAreToldBesideARunningCall(t *testing.T) {
	s := open(t, load(t, nil), &SessionOptions{MaxSeqs: 3, MaxPrefill: 16})
	seq := start(t, s, "ROMEO:", 5)
	before := must(seq.Stats())(t)
	if before.Seed != 5 || before.DecodedTokens != 0 || before.Tokens == 0 {
		t.Fatalf("%+v", before)
	}
	// The turn is taken, as it is while a call runs.
	s.core.turn <- struct{}{}
	length := must(seq.Len())(t)
	stats := must(s.Stats())(t)
	<-s.core.turn
	if length != int(before.Tokens) || stats.Seqs != 1 || stats.MaxSeqs != 3 || stats.Tokens != before.Tokens || stats.PagesFree == 0 {
		t.Fatalf("%d, %+v", length, stats)
	}
	run(t, seq, 10)
	after, told := must(seq.Stats())(t), must(s.Stats())(t)
	if after.DecodedTokens != 10 || after.Tokens != before.Tokens+10 || after.PromptTokens == 0 || after.Evaluated == 0 || after.Pages == 0 {
		t.Fatalf("%+v", after)
	}
	if told.DecodedTokens != 10 || told.Passes < 10 || told.DecodeTime <= 0 || told.PromptTime <= 0 || told.PageTokens == 0 || told.PagesUsed == 0 {
		t.Fatalf("%+v", told)
	}
	seq.Close()
	if _, err := seq.Stats(); err != ErrClosed {
		t.Fatal(err)
	}
	s.Close()
	if _, err := s.Stats(); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestForksOfARandomSeedGoTheirOwnWays(t *testing.T) {
	s := open(t, load(t, nil), nil)
	for _, seed := range []uint64{SeedRandom, 7} {
		opts := DefaultSampler()
		opts.Seed = seed
		parent := must(s.Open(opts))(t)
		a, b := must(parent.Fork(nil))(t), must(parent.Fork(nil))(t)
		same := must(a.Stats())(t).Seed == must(b.Stats())(t).Seed
		if same != (seed != SeedRandom) {
			t.Fatal(seed, same)
		}
		for _, q := range []*Sequence{parent, a, b} {
			q.Close()
		}
	}
}

func TestSavedSequencesGoOn(t *testing.T) {
	ctx, m := context.Background(), load(t, nil)
	s, other := open(t, m, nil), open(t, m, &SessionOptions{MaxPrefill: 7})
	q := start(t, s, "JULIET:", 5)
	run(t, q, 9)
	var saved bytes.Buffer
	path := filepath.Join(t.TempDir(), "one.seq")
	if err := errors.Join(q.Save(ctx, &saved), q.SaveFile(ctx, path)); err != nil {
		t.Fatal(err)
	}
	whole := saved.Bytes()
	saved.WriteString("more")
	again := must(other.Restore(ctx, iotest.OneByteReader(&saved), nil))(t)
	if saved.String() != "more" {
		t.Fatalf("%d bytes are left", saved.Len())
	}
	ofFile := must(other.RestoreFile(ctx, path, nil))(t)
	want, _ := run(t, q, 12)
	for _, q := range []*Sequence{again, ofFile} {
		if got, _ := run(t, q, 12); !reflect.DeepEqual(got, want) {
			t.Fatal(got, want)
		}
	}
	if _, err := other.Restore(ctx, bytes.NewReader(whole[:len(whole)-1]), nil); !errors.Is(err, Format) {
		t.Fatal(err)
	}
	if _, err := other.Restore(ctx, iotest.ErrReader(io.ErrClosedPipe), nil); err != io.ErrClosedPipe {
		t.Fatal(err)
	}
	_, closed := io.Pipe()
	closed.Close()
	if err := q.Save(ctx, closed); err != io.ErrClosedPipe {
		t.Fatal(err)
	}
	var panicked *PanicError
	if err := q.Save(ctx, panics{}); !errors.As(err, &panicked) || panicked.Value != "in a write" {
		t.Fatal(err)
	}
}

type panics struct{}

func (panics) Write([]byte) (int, error) { panic("in a write") }
