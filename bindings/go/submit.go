package segno

// #include <segno.h>
import "C"

import (
	"context"
	"math"
	"runtime"
	"time"
)

// Submit starts a step of every sequence, that of DecodeBatch, and returns at once; Poll tells what became of it. It is for loops that draw frames or
// serve events and have no goroutine to wait with. budget, unless 0, bounds the slices of long prompts: they get as many tokens as are expected to
// end within it, by what passes have taken in this session. Until a Poll has told that the step is over, other calls on the session are refused with
// Busy, but for those that tell figures.
func (s *Session) Submit(seqs []*Sequence, budget time.Duration) error {
	if err := s.check(seqs); err != nil {
		return err
	}
	core := s.core
	_, err := s.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		core.list(seqs)
		opts := submitOptions(budget)
		status := C.segno_session_submit(handle, first(core.seqs), C.size_t(len(seqs)), &opts, err)
		if status == C.SEGNO_OK {
			// They are the step's until it is over, whoever forgets them meanwhile.
			core.submitted, core.inFlight = append(core.submitted[:0], seqs...), true
		}
		return status
	})
	return err
}

func submitOptions(budget time.Duration) (opts C.segno_submit_opts) {
	C.segno_submit_opts_init(&opts, C.sizeof_segno_submit_opts)
	opts.budget_us = C.uint64_t(max(0, (budget + time.Microsecond - 1).Microseconds()))
	return opts
}

// Poll asks what became of the step that was submitted, and waits at most timeout for its end: 0 asks and never waits, a negative one waits as long as
// it takes. When the step is over, done is true, steps, as long as the list that was submitted, is written as by DecodeBatch, and the session can be
// used again. A cancelled ctx cancels the step and waits for its end, a fraction of a pass.
func (s *Session) Poll(ctx context.Context, timeout time.Duration, steps []Step) (done bool, err error) {
	defer runtime.KeepAlive(s)
	core := s.core
	// Not ctx: whoever cancels still has to hear what became of the step.
	if err := core.take(context.Background()); err != nil {
		return false, err
	}
	defer core.leave()
	if !core.inFlight || len(core.chats) > 0 {
		return false, &Error{InvalidArgument, "no sequences were submitted to this session", -1}
	}
	if len(steps) != len(core.submitted) {
		return false, &Error{InvalidArgument, "as many steps as were submitted are needed", -1}
	}
	status, err := core.await(ctx, timeout, core.poll)
	// A poll that fails by itself has written nothing, and the step goes on.
	if status == Pending || err != nil && (len(steps) == 0 || core.statuses[0] == untouched) {
		return false, err
	}
	clear(core.submitted)
	core.submitted, core.inFlight = core.submitted[:0], false
	if panicked := core.sink.caught(); panicked != nil {
		return true, panicked
	}
	if status == Cancelled {
		err = whyCancelled(ctx)
	}
	core.read(steps)
	return true, blame(err, steps)
}

// whyCancelled is the reason for an outcome: nobody but Close raises the flag without a context.
func whyCancelled(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// await polls for the end of a step; a cancelled ctx cancels the step, whose end is waited for then.
func (core *sessionCore) await(ctx context.Context, timeout time.Duration, poll func(C.uint64_t) (Status, error)) (Status, error) {
	calm := core.watch(ctx)
	status, err := poll(microseconds(timeout))
	calm()
	if status == Pending && ctx.Err() != nil {
		C.segno_session_cancel(core.handle, 1)
		status, err = poll(math.MaxUint64)
		if !core.closing.Load() {
			C.segno_session_cancel(core.handle, 0)
		}
	}
	return status, err
}

// microseconds is a timeout as the library has it: as long as it takes if it is negative.
func microseconds(timeout time.Duration) C.uint64_t {
	if timeout < 0 {
		return math.MaxUint64
	}
	return C.uint64_t((timeout + time.Microsecond - 1).Microseconds())
}

// poll asks the library once.
func (core *sessionCore) poll(us C.uint64_t) (Status, error) {
	var detail *C.segno_error
	status := C.segno_session_poll(core.handle, us, first(core.tokens), first(core.statuses), &detail)
	return Status(status), take(status, detail)
}

// SubmitChats starts a step of every conversation, that of NextBatch, and returns at once; PollChats tells what became of it. budget is as for Submit.
// Until PollChats has told that the step is over, other calls on the session and on these conversations are refused with Busy; a conversation may
// be closed.
func (s *Session) SubmitChats(chats []*Chat, budget time.Duration) error {
	defer runtime.KeepAlive(chats)
	core, refused := s.core, error(nil)
	_, err := s.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		var handles []*C.segno_chat
		var leave func()
		if handles, leave, refused = enterAll(chats); refused != nil {
			return C.SEGNO_OK
		}
		defer leave()
		opts := submitOptions(budget)
		status := C.segno_chat_submit(handle, first(handles), C.size_t(len(chats)), &opts, err)
		if status == C.SEGNO_OK {
			core.chats, core.inFlight = append(core.chats[:0], chats...), true
		}
		return status
	})
	if refused != nil {
		return refused
	}
	return err
}

// PollChats asks what became of the step of conversations that was submitted, and waits as Poll does. When the step is over, done is true, and steps,
// as long as the list that was submitted, is written as by NextBatch; one that was closed meanwhile has the status Cancelled. Calls on these
// conversations wait while it waits.
func (s *Session) PollChats(ctx context.Context, timeout time.Duration, steps []ChatStep) (done bool, err error) {
	defer runtime.KeepAlive(s)
	core := s.core
	if err := core.take(context.Background()); err != nil {
		return false, err
	}
	defer core.leave()
	if !core.inFlight || len(core.chats) != len(steps) {
		return false, &Error{InvalidArgument, "as many steps as conversations were submitted are needed", -1}
	}
	for _, c := range core.chats {
		// Texts of events are copied before anybody else calls.
		c.state.mu.Lock()
		defer c.state.mu.Unlock()
	}
	results := newChatResults(len(steps))
	status, err := core.await(ctx, timeout, func(us C.uint64_t) (Status, error) {
		var detail *C.segno_error
		events, counts, statuses := first(results.events), first(results.counts), first(results.statuses)
		status := C.segno_chat_poll(core.handle, us, events, batchEvents, counts, statuses, &detail)
		return Status(status), take(status, detail)
	})
	if status == Pending || err != nil && results.untouched() {
		return false, err
	}
	clear(core.chats)
	core.chats, core.inFlight = core.chats[:0], false
	if panicked := core.sink.caught(); panicked != nil {
		return true, panicked
	}
	if status == Cancelled {
		err = whyCancelled(ctx)
	}
	results.read(steps)
	return true, blameChats(err, results, steps)
}

// first is where a list begins, nil for an empty one.
func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
