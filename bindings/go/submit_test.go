package segno

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestSubmittedStepsGiveTheTokensOfBatches(t *testing.T) {
	s := open(t, load(t, nil), &SessionOptions{MaxSeqs: 4})
	want, _ := run(t, start(t, s, "JULIET:", 1), 20)
	seqs := []*Sequence{start(t, s, "JULIET:", 1), start(t, s, "JULIET:", 2)}
	steps, got := make([]Step, 2), []int32(nil)
	for len(got) < 20 {
		if err := s.Submit(seqs, 2*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if err := s.Submit(seqs, 0); !errors.Is(err, Busy) {
			t.Fatal(err)
		}
		if _, err := seqs[0].Decode(context.Background()); !errors.Is(err, Busy) {
			t.Fatal(err)
		}
		if _, err := s.Stats(); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			var err error
			if done, err = s.Poll(context.Background(), time.Millisecond, steps); err != nil {
				t.Fatal(err)
			}
		}
		if steps[0].Status == OK {
			got = append(got, steps[0].Token)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatal(got, want)
	}
	if _, err := s.Poll(context.Background(), 0, steps); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestFailedItemsOfASubmittedStepAreTold(t *testing.T) {
	s := open(t, load(t, nil), nil)
	good, empty := start(t, s, "ROMEO:", 1), must(s.Open(nil))(t)
	if err := s.Submit([]*Sequence{good, empty}, 0); err != nil {
		t.Fatal(err)
	}
	steps := make([]Step, 2)
	if _, err := s.Poll(context.Background(), -1, steps[:1]); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if done, err := s.Poll(context.Background(), -1, steps); err != nil || !done {
		t.Fatal(done, err)
	}
	var detailed *Error
	if steps[0].Err != nil || !errors.As(steps[1].Err, &detailed) || detailed.Item != 1 {
		t.Fatal(steps)
	}
	if err := s.Submit(nil, 0); err != nil {
		t.Fatal(err)
	}
	if done, err := s.Poll(context.Background(), -1, nil); err != nil || !done {
		t.Fatal(done, err)
	}
}

func TestACancelledPollEndsTheStepAndTheSessionGoesOn(t *testing.T) {
	s := open(t, load(t, nil), nil)
	seq := start(t, s, "ROMEO:", 1)
	steps := make([]Step, 1)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		before := must(seq.Len())(t)
		if err := s.Submit([]*Sequence{seq}, 0); err != nil {
			t.Fatal(err)
		}
		done, err := s.Poll(gone, 0, steps)
		if after := must(seq.Len())(t); !done || (err == nil) != (after == before+1) || (err != nil && !errors.Is(err, context.Canceled)) {
			t.Fatal(done, err, before, after)
		}
	}
	if _, err := seq.Decode(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestSequencesAndSessionsAreClosedAmidAStep(t *testing.T) {
	s := open(t, load(t, nil), nil)
	kept, closed := start(t, s, "ROMEO:", 1), start(t, s, "JULIET:", 2)
	if err := s.Submit([]*Sequence{kept, closed}, 0); err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); !errors.Is(err, Busy) {
		t.Fatal(err)
	}
	if done, err := s.Poll(context.Background(), -1, make([]Step, 2)); err != nil || !done {
		t.Fatal(done, err)
	}
	if _, err := kept.Decode(context.Background()); err != nil {
		t.Fatal(err)
	}
	if stats := must(s.Stats())(t); stats.Seqs != 1 {
		t.Fatal(stats)
	}
	if err := s.Submit([]*Sequence{kept}, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Poll(context.Background(), 0, make([]Step, 1)); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestSubmittedConversationsSayWhatTheySayInBlockingSteps(t *testing.T) {
	s := open(t, load(t, nil), nil)
	begin := func(text string) *Chat {
		opts := DefaultChat()
		opts.Template, opts.MaxTokens, opts.Sampler = plainChat, 12, DefaultSampler()
		opts.Sampler.Seed = 9
		c := must(s.NewChat(opts))(t)
		if text != "" {
			say(t, c, text)
		}
		return c
	}
	want := ""
	if err := begin("ROMEO:").Reply(t.Context(), func(e Event) { want += e.Text }); err != nil {
		t.Fatal(err)
	}
	c, got := begin("ROMEO:"), ""
	for steps := make([]ChatStep, 1); steps[0].Status != Done; {
		if err := s.SubmitChats([]*Chat{c}, 2*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if err := s.SubmitChats([]*Chat{c}, 0); !errors.Is(err, Busy) {
			t.Fatal(err)
		}
		if err := c.Say("user", "x"); !errors.Is(err, Busy) {
			t.Fatal(err)
		}
		if _, err := s.Poll(t.Context(), 0, nil); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		for done := false; !done; {
			var err error
			if done, err = s.PollChats(t.Context(), time.Millisecond, steps); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range steps[0].Events {
			got += e.Text
		}
	}
	if got != want || got == "" {
		t.Fatal(got, want)
	}
	if err := s.SubmitChats([]*Chat{c, c}, 0); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	// One that has nothing to answer, one that is closed meanwhile, and one that goes on.
	chats, steps := []*Chat{begin(""), begin("JULIET:"), begin("ROMEO:")}, make([]ChatStep, 3)
	if err := s.SubmitChats(chats, 0); err != nil {
		t.Fatal(err)
	}
	if err := chats[1].Close(); err != nil {
		t.Fatal(err)
	}
	if done, err := s.PollChats(t.Context(), -1, steps); !done || err != nil {
		t.Fatal(done, err)
	}
	if !errors.Is(steps[0].Err, InvalidArgument) || steps[1].Status != Cancelled || steps[2].Status != OK {
		t.Fatal(steps)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.SubmitChats(chats[2:], 0); err != nil {
		t.Fatal(err)
	}
	if done, err := s.PollChats(ctx, -1, steps[2:]); !done || err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(done, err)
	}
}
