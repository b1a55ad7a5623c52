package segno

// #include <segno.h>
import "C"

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
)

// Sequence is one stream of tokens inside a session: its history, its place in the KV cache, its sampler.
type Sequence struct {
	session *Session
	id      C.int32_t
	closed  atomic.Bool
	clean   runtime.Cleanup
}

// lostSequence is what the cleanup of a sequence needs.
type lostSequence struct {
	core *sessionCore
	id   C.int32_t
}

// Open opens an empty sequence. opts may be nil.
func (s *Session) Open(opts *SamplerOptions) (*Sequence, error) {
	return s.add(context.Background(), opts, func(handle *C.segno_session, c *C.segno_sampler_opts, id *C.int32_t, err **C.segno_error) C.segno_status {
		return C.segno_seq_open(handle, c, id, err)
	})
}

// Fork opens a sequence with the history of this one; evaluated tokens are shared, not copied. Nil opts keep the sampler, and its
// seed if one was given; instead of a random seed the fork gets another.
func (q *Sequence) Fork(opts *SamplerOptions) (*Sequence, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	defer runtime.KeepAlive(q)
	return q.session.add(context.Background(), opts, func(handle *C.segno_session, c *C.segno_sampler_opts, id *C.int32_t, err **C.segno_error) C.segno_status {
		return C.segno_seq_fork(handle, q.id, c, id, err)
	})
}

func (s *Session) add(ctx context.Context, opts *SamplerOptions,
	call func(*C.segno_session, *C.segno_sampler_opts, *C.int32_t, **C.segno_error) C.segno_status) (*Sequence, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	c := opts.c(&pinner)
	q := &Sequence{session: s}
	_, err := s.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return call(handle, c, &q.id, err)
	})
	if err != nil {
		return nil, err
	}
	q.clean = runtime.AddCleanup(q, func(lost lostSequence) { lost.core.abandon(lost.id) }, lostSequence{s.core, q.id})
	return q, nil
}

// Close closes the sequence and gives its pages back to the pool. Amid a step that was submitted it is refused with Busy, and the next call closes it.
func (q *Sequence) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	q.clean.Stop()
	defer runtime.KeepAlive(q)
	_, err := q.session.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_close(handle, q.id, err)
	})
	if err == ErrClosed {
		return nil // the session took its sequences along
	}
	if errors.Is(err, Busy) {
		q.session.core.abandon(q.id)
	}
	return err
}

func (q *Sequence) call(ctx context.Context, function func(*C.segno_session, **C.segno_error) C.segno_status) (Status, error) {
	if q.closed.Load() {
		return Cancelled, ErrClosed
	}
	defer runtime.KeepAlive(q)
	return q.session.call(ctx, function)
}

// Append queues prompt tokens without evaluating them; the steps that follow do.
func (q *Sequence) Append(tokens []int32) error {
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_append(handle, q.id, ids(tokens), C.size_t(len(tokens)), err)
	})
	return err
}

// Prefill queues prompt tokens and evaluates the whole queue. A failed or cancelled call leaves the sequence as it was.
func (q *Sequence) Prefill(ctx context.Context, tokens []int32) error {
	_, err := q.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_prefill(handle, q.id, ids(tokens), C.size_t(len(tokens)), err)
	})
	return err
}

// SequenceStats are the figures of a sequence, all of one moment. Beside a running call they are what its last finished pass has left.
type SequenceStats struct {
	Tokens        uint64 // evaluated, queued and sampled
	Evaluated     uint64 // those whose keys and values are in the KV cache
	Pages         uint64 // pages of the KV cache that it holds, shared ones included
	PromptTokens  uint64 // evaluated for it as prompts
	DecodedTokens uint64 // sampled
	Seed          uint64 // of the draw; of a random one what it came to
	Drafted       uint64 // drafts that were evaluated for it
	Accepted      uint64 // those of them that were right
}

// Stats tells the figures of the sequence. It waits for no running call.
func (q *Sequence) Stats() (SequenceStats, error) {
	var c C.segno_seq_stats
	err := q.beside(func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_stats_get(handle, q.id, &c, C.sizeof_segno_seq_stats, err)
	})
	return SequenceStats{uint64(c.tokens), uint64(c.evaluated), uint64(c.pages), uint64(c.prompt_tokens), uint64(c.decoded_tokens),
		uint64(c.seed), uint64(c.drafted), uint64(c.accepted)}, err
}

// Len returns the number of tokens: evaluated, queued and sampled. It waits for no running call.
func (q *Sequence) Len() (int, error) {
	var tokens C.size_t
	err := q.beside(func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_length(handle, q.id, &tokens, err)
	})
	return int(tokens), err
}

func (q *Sequence) beside(function func(*C.segno_session, **C.segno_error) C.segno_status) error {
	if q.closed.Load() {
		return ErrClosed
	}
	defer runtime.KeepAlive(q)
	return q.session.beside(function)
}

// Logits returns the raw logits after the last token, evaluating the queue first.
func (q *Sequence) Logits(ctx context.Context) ([]float32, error) {
	var logits []float32
	_, err := q.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		var count C.size_t
		if status := C.segno_seq_logits(handle, q.id, nil, 0, &count, err); status != C.SEGNO_OK {
			return status
		}
		logits = make([]float32, count)
		return C.segno_seq_logits(handle, q.id, (*C.float)(&logits[0]), count, &count, err)
	})
	if err != nil {
		return nil, err
	}
	return logits, nil
}

// SetSampler gives the sequence another sampler, from its next token on. opts may be nil.
func (q *Sequence) SetSampler(opts *SamplerOptions) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	c := opts.c(&pinner)
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_sampler_set(handle, q.id, c, err)
	})
	return err
}

// Mark sets a mark at the present length, to which Truncate can go back in models whose layers have a state.
func (q *Sequence) Mark() error {
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_mark(handle, q.id, err)
	})
	return err
}

// MarkNearest tells how many tokens would stay evaluated if the sequence were cut to its first tokens.
func (q *Sequence) MarkNearest(tokens int) (int, error) {
	var found C.size_t
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_mark_nearest(handle, q.id, C.size_t(tokens), &found, err)
	})
	return int(found), err
}

// Remove takes count tokens out of the sequence, from the index first on. Those behind them are evaluated again by the calls that need them.
func (q *Sequence) Remove(first, count int) error {
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_remove(handle, q.id, C.size_t(first), C.size_t(count), err)
	})
	return err
}

// Truncate keeps the first tokens of the sequence; 0 empties it.
func (q *Sequence) Truncate(tokens int) error {
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_truncate(handle, q.id, C.size_t(tokens), err)
	})
	return err
}
