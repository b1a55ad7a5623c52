package main

import (
	"context"
	"errors"
	"sync/atomic"

	"segno"
)

// request is what a client asks for, and where its pieces go.
type request struct {
	ctx     context.Context // ends when the client goes away
	prompt  []int32
	limit   int
	stop    []string
	sampler *segno.SamplerOptions
	// Has room for everything that can come, so a slow client holds nobody up.
	pieces chan piece
}

func newRequest(ctx context.Context, prompt []int32, limit int) *request {
	return &request{ctx: ctx, prompt: prompt, limit: limit, sampler: segno.DefaultSampler(), pieces: make(chan piece, limit+2)}
}

// cost is the number of KV tokens that the request may come to hold.
func (r *request) cost() int { return len(r.prompt) + r.limit }

// piece is one token and its text, or, when end is set, why there are no more.
type piece struct {
	Token int32  `json:"token"`
	Text  string `json:"text"`
	end   string
}

var (
	errBusy     = errors.New("the queue is full")
	errTooLarge = errors.New("prompt and max_tokens exceed what the service can ever hold")
)

// scheduler lets many requests share one session: one goroutine owns the session, and every step advances all running streams in one pass. A
// request begins when there is a free sequence and the pool has room for all that it may need, so a running stream never meets a full pool.
type scheduler struct {
	model    *segno.Model
	session  *segno.Session
	slots    int
	capacity int
	context  int
	queue    chan *request

	running, reserved, finished, cancelled atomic.Int64
}

type stream struct {
	*request
	seq   *segno.Sequence
	text  *segno.Text
	count int
}

func newScheduler(model *segno.Model, slots, capacity, queue int) (*scheduler, error) {
	info, err := model.Info()
	if err != nil {
		return nil, err
	}
	session, err := model.NewSession(&segno.SessionOptions{MaxSeqs: slots, KVTokens: uint64(capacity), MaxPrefill: 64})
	if err != nil {
		return nil, err
	}
	return &scheduler{model: model, session: session, slots: slots, capacity: capacity, context: info.Context,
		queue: make(chan *request, queue)}, nil
}

// submit queues a request, or says at once why it cannot be.
func (s *scheduler) submit(r *request) error {
	if r.cost() > min(s.capacity, s.context) {
		return errTooLarge
	}
	select {
	case s.queue <- r:
		return nil
	default:
		return errBusy
	}
}

// run serves requests until ctx ends.
func (s *scheduler) run(ctx context.Context) error {
	defer s.session.Close()
	var streams []*stream
	var next *request // taken from the queue, waits for room
	for {
		var err error
		if streams, next, err = s.admit(ctx, streams, next); err != nil {
			return err
		}
		if streams, err = s.step(ctx, streams); err != nil {
			for _, st := range streams {
				s.leave(st, "error: "+err.Error())
			}
			return err
		}
	}
}

// admit begins waiting requests while there is room; with nothing to do it waits for one.
func (s *scheduler) admit(ctx context.Context, streams []*stream, next *request) ([]*stream, *request, error) {
	for len(streams) < s.slots {
		if next == nil && len(streams) == 0 {
			select {
			case next = <-s.queue:
			case <-ctx.Done():
				return streams, nil, ctx.Err()
			}
		}
		if next == nil {
			select {
			case next = <-s.queue:
			default:
				return streams, nil, nil
			}
		}
		if next.ctx.Err() != nil {
			s.cancelled.Add(1)
			next = nil
			continue
		}
		if s.reserved.Load()+int64(next.cost()) > int64(s.capacity) {
			return streams, next, nil
		}
		if st, err := s.begin(next); err == nil {
			streams = append(streams, st)
		} else {
			next.pieces <- piece{end: "error: " + err.Error()}
		}
		next = nil
	}
	return streams, next, nil
}

func (s *scheduler) begin(r *request) (*stream, error) {
	text, err := s.model.NewText(&segno.TextOptions{Stop: r.stop})
	if err != nil {
		return nil, err
	}
	seq, err := s.session.Open(r.sampler)
	if err == nil {
		err = seq.Append(r.prompt)
	}
	if err != nil {
		text.Close()
		if seq != nil {
			seq.Close()
		}
		return nil, err
	}
	s.running.Add(1)
	s.reserved.Add(int64(r.cost()))
	return &stream{request: r, seq: seq, text: text}, nil
}

// step drops the streams whose clients have gone, and advances the others by one token.
func (s *scheduler) step(ctx context.Context, streams []*stream) ([]*stream, error) {
	streams = s.keep(streams, func(_ int, st *stream) string {
		if st.ctx.Err() != nil {
			return "cancelled"
		}
		return ""
	})
	seqs := make([]*segno.Sequence, len(streams))
	for i, st := range streams {
		seqs[i] = st.seq
	}
	steps := make([]segno.Step, len(seqs))
	if err := s.session.DecodeBatch(ctx, seqs, steps); err != nil {
		return streams, err
	}
	return s.keep(streams, func(i int, st *stream) string { return st.give(steps[i]) }), nil
}

// keep returns the streams for which why gives no reason to end.
func (s *scheduler) keep(streams []*stream, why func(int, *stream) string) []*stream {
	kept := streams[:0]
	for i, st := range streams {
		if reason := why(i, st); reason != "" {
			s.leave(st, reason)
		} else {
			kept = append(kept, st)
		}
	}
	return kept
}

// give passes one step on to the client; the result is why the stream ends, if it does.
func (st *stream) give(step segno.Step) string {
	if step.Err != nil {
		return "error: " + step.Err.Error()
	}
	if step.Status == segno.Pending {
		return ""
	}
	text, stopped, err := st.text.Push(step.Token)
	if err != nil {
		return "error: " + err.Error()
	}
	st.count++
	st.pieces <- piece{Token: step.Token, Text: text}
	switch {
	case stopped || step.Status == segno.Done:
		return "stop"
	case st.count == st.limit:
		return "length"
	}
	return ""
}

// leave ends a stream: its pages are free before its client hears of it.
func (s *scheduler) leave(st *stream, reason string) {
	if rest, _, err := st.text.Flush(); err == nil && rest != "" {
		st.pieces <- piece{Token: -1, Text: rest}
	}
	st.text.Close()
	st.seq.Close()
	s.running.Add(-1)
	s.reserved.Add(int64(-st.cost()))
	if reason == "cancelled" {
		s.cancelled.Add(1)
	} else {
		s.finished.Add(1)
	}
	st.pieces <- piece{end: reason}
}
