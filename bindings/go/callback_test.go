package segno

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestTheLogReachesItsFunction(t *testing.T) {
	lines := 0
	load(t, &ContextOptions{Log: func(level LogLevel, line string) {
		if level < LogError || level > LogDebug || line == "" {
			t.Error(level, line)
		}
		lines++
	}})
	if lines == 0 {
		t.Fatal("nothing was logged")
	}
}

func TestFastBatchesAreAskedFor(t *testing.T) {
	for _, fast := range []bool{false, true} {
		told := false
		load(t, &ContextOptions{FastBatches: fast, Log: func(_ LogLevel, line string) {
			told = told || strings.HasPrefix(line, "fast batches are")
		}})
		if told != fast {
			t.Fatal("fast batches asked for:", fast, "told of:", told)
		}
	}
}

func TestAPanicInTheLogIsReturned(t *testing.T) {
	_, err := NewContext(&ContextOptions{Log: func(LogLevel, string) { panic("woe") }})
	var caught *PanicError
	if !errors.As(err, &caught) || caught.Value != "woe" || len(caught.Stack) == 0 {
		t.Fatal(err)
	}

	armed := false
	ctx := must(NewContext(&ContextOptions{Log: func(LogLevel, string) {
		if armed {
			panic("later")
		}
	}}))(t)
	defer ctx.Close()
	armed = true
	if _, err := ctx.LoadModel(context.Background(), modelPath, nil); !errors.As(err, &caught) || caught.Value != "later" {
		t.Fatal(err)
	}
	armed = false
	m := must(ctx.LoadModel(context.Background(), modelPath, nil))(t)
	m.Close()
}

func TestAPanicInProgressIsReturned(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	defer ctx.Close()
	opts := &ModelOptions{Progress: func(float32) bool { panic(errors.New("alas")) }}
	_, err := ctx.LoadModel(context.Background(), modelPath, opts)
	var caught *PanicError
	if !errors.As(err, &caught) || caught.Value.(error).Error() != "alas" {
		t.Fatal(err)
	}
}

func TestTheLogLivesAsLongAsAnythingThatLogs(t *testing.T) {
	ctx := must(NewContext(&ContextOptions{Log: func(LogLevel, string) {}}))(t)
	sink := ctx.state.sink
	m := must(ctx.LoadModel(context.Background(), modelPath, nil))(t)
	text := must(m.NewText(nil))(t)
	session := must(m.NewSession(nil))(t)
	for i, close := range []func() error{ctx.Close, ctx.Close, session.Close, m.Close, m.Close, session.Close, text.Close, text.Close} {
		if users := sink.users.Load(); users == 0 {
			t.Fatal("released before call", i)
		}
		if close() != nil {
			t.Fatal(i)
		}
		if i == 6 {
			break
		}
	}
	if users := sink.users.Load(); users != 0 {
		t.Fatal("still used by", users)
	}
}
