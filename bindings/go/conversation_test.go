package segno

import (
	"context"
	"errors"
	"strings"
	"testing"
)

const plainChat = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"

// content makes the steps of a reply and joins its content.
func content(t *testing.T, c *Chat) string {
	t.Helper()
	var text strings.Builder
	err := c.Reply(context.Background(), func(e Event) {
		if e.Kind == EventContent {
			text.WriteString(e.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func say(t *testing.T, c *Chat, text string) {
	t.Helper()
	if err := c.Say("user", text); err != nil {
		t.Fatal(err)
	}
}

func TestChat(t *testing.T) {
	session := open(t, load(t, nil), nil)
	opts := DefaultChat()
	opts.Template, opts.System, opts.MaxTokens, opts.Forget = plainChat, "The duke speaks.", 8, true
	opts.Sampler = DefaultSampler()
	opts.Sampler.Seed = 9
	c := must(session.NewChat(opts))(t)
	say(t, c, "Who art thou?")
	fork := must(c.Fork(nil))(t)
	words := content(t, c)
	if other := content(t, fork); words == "" || other != words {
		t.Fatalf("%q, the fork says %q", words, other)
	}
	stats := must(c.Stats())(t)
	if stats.Messages != 3 || stats.Turns != 1 || stats.LastTurn != 1 || stats.ReplyTokens > 8 || stats.End == ChatEndNone {
		t.Fatal(stats)
	}
	if err := c.Truncate(2); err != nil {
		t.Fatal(err)
	}
	if again := content(t, c); again != words || must(c.Stats())(t).EvaluatedTokens != 1 {
		t.Fatal(again)
	}
	if err := c.SetTools(ToolsNamed, true, "none"); err == nil {
		t.Fatal("there is no such tool")
	}
	for _, choice := range []ToolChoice{ToolsAuto, ToolsFree} {
		if err := c.SetTools(choice, true, ""); err != nil {
			t.Fatal(err)
		}
	}
	opts.System = ""
	loaded := must(session.NewChat(opts))(t)
	if err := loaded.Add(must(c.Messages())(t)); err != nil {
		t.Fatal(err)
	}
	if a, b := must(c.Messages())(t), must(loaded.Messages())(t); string(a) != string(b) {
		t.Fatal(string(a), string(b))
	}
	chats, steps := []*Chat{c, loaded}, make([]ChatStep, 2)
	for _, chat := range chats {
		say(t, chat, "Speak.")
	}
	var said [2]strings.Builder
	for steps[0].Status != Done {
		if err := session.NextBatch(context.Background(), chats, steps); err != nil {
			t.Fatal(err)
		}
		for i, step := range steps {
			for _, e := range step.Events {
				if e.Kind == EventContent {
					said[i].WriteString(e.Text)
				}
			}
		}
	}
	if said[0].String() != said[1].String() {
		t.Fatal(said[0].String(), said[1].String())
	}
	if must(c.SeqID())(t) == must(loaded.SeqID())(t) {
		t.Fatal("the same sequence")
	}
	if err := session.NextBatch(context.Background(), chats, steps); err != nil || !errors.Is(steps[1].Err, InvalidArgument) {
		t.Fatal(err, steps)
	}
	if err := session.NextBatch(context.Background(), []*Chat{c, c}, steps); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestChatsAreCancelledAndClosed(t *testing.T) {
	session := open(t, load(t, nil), nil)
	opts := DefaultChat()
	opts.Template, opts.MaxTokens = plainChat, 4
	c := must(session.NewChat(opts))(t)
	say(t, c, "Who?")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Reply(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if content(t, c) == "" {
		t.Fatal("nothing is said")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if stats := must(session.Stats())(t); stats.Seqs != 0 {
		t.Fatal(stats)
	}
	if _, err := c.Next(context.Background()); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := c.Fork(nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := c.Say("user", ""); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	opts.Format = "iambic"
	if _, err := session.NewChat(opts); !errors.Is(err, NotFound) {
		t.Fatal(err)
	}
	other := must(session.NewChat(&ChatCreateOptions{Template: plainChat, GrammarStart: -1, ReasoningTokens: -1}))(t)
	session.Close()
	say(t, other, "heard by nobody")
	if err := other.Reply(context.Background(), nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	other.Close()
}
