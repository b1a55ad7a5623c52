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
		var opts C.segno_submit_opts
		C.segno_submit_opts_init(&opts, C.sizeof_segno_submit_opts)
		opts.budget_us = C.uint64_t(max(0, (budget + time.Microsecond - 1).Microseconds()))
		status := C.segno_session_submit(handle, first(core.seqs), C.size_t(len(seqs)), &opts, err)
		if status == C.SEGNO_OK {
			// They are the step's until it is over, whoever forgets them meanwhile.
			core.submitted, core.inFlight = append(core.submitted[:0], seqs...), true
		}
		return status
	})
	return err
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
	if !core.inFlight {
		return false, &Error{InvalidArgument, "nothing was submitted to this session", -1}
	}
	if len(steps) != len(core.submitted) {
		return false, &Error{InvalidArgument, "as many steps as were submitted are needed", -1}
	}
	calm := core.watch(ctx)
	status, err := core.poll(timeout)
	calm()
	if status == Pending && ctx.Err() != nil {
		C.segno_session_cancel(core.handle, 1)
		status, err = core.poll(-1)
		if !core.closing.Load() {
			C.segno_session_cancel(core.handle, 0)
		}
	}
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
		if err = ctx.Err(); err == nil {
			err = ErrClosed // nobody but Close raises the flag without a context
		}
	}
	core.read(steps)
	return true, blame(err, steps)
}

// poll asks the library once.
func (core *sessionCore) poll(timeout time.Duration) (Status, error) {
	us := C.uint64_t(math.MaxUint64)
	if timeout >= 0 {
		us = C.uint64_t((timeout + time.Microsecond - 1).Microseconds())
	}
	var detail *C.segno_error
	status := C.segno_session_poll(core.handle, us, first(core.tokens), first(core.statuses), &detail)
	return Status(status), take(status, detail)
}

// first is where a list begins, nil for an empty one.
func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
