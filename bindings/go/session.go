package segno

// #include <segno.h>
import "C"

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// KVType says in which numbers keys and values are kept.
type KVType int32

// Types of keys and values.
const (
	KVF16 KVType = C.SEGNO_KV_F16
	KVF32 KVType = C.SEGNO_KV_F32
	KVQ8  KVType = C.SEGNO_KV_Q8 // 8 bits: 53 % of the memory of KVF16
)

// Speculation says where drafts come from: guesses at the tokens to come, which are evaluated together with the last one. Tokens are the same with and
// without.
type Speculation int32

// Kinds of speculation.
const (
	NoSpeculation    Speculation = C.SEGNO_SPECULATION_OFF
	AutoSpeculation  Speculation = C.SEGNO_SPECULATION_AUTO   // from all that is there
	NgramSpeculation Speculation = C.SEGNO_SPECULATION_NGRAM  // from repetitions in a sequence's own text
	DraftSpeculation Speculation = C.SEGNO_SPECULATION_DRAFT  // from the draft model
	MTPSpeculation   Speculation = C.SEGNO_SPECULATION_MTP    // from the model's own predictor
	AlwaysSpeculate  Speculation = C.SEGNO_SPECULATION_ALWAYS // added to another one: drafts are evaluated whether they are expected to pay or not
	ShareRepetitions Speculation = C.SEGNO_SPECULATION_SHARED // added to AutoSpeculation or NgramSpeculation: repetitions of what any sequence of the session has said
)

// SessionOptions are the options of a session; the zero value is the default.
type SessionOptions struct {
	MaxSeqs    int    // most sequences open at once, 1 to 256; 0: 8
	KVTokens   uint64 // tokens that the KV cache holds for all sequences together; 0: the model's context, at most 8192
	MaxPrefill int    // most prompt tokens of a pass in which streams run; 0: 512
	KVType     KVType
	MaxPrompt  int // prompt tokens of a pass in which no stream runs; 0: four times MaxPrefill where that suits the device
	MaxMarks   int // snapshots that all sequences keep of models whose layers have a state; 0: one for each sequence, and four
	// Speculation is off by default.
	Speculation Speculation
	MaxDrafts   int    // most drafts of a sequence in a pass, 1 to 15; 0: 7
	Draft       *Model // the model that drafts, of the same vocabulary, or an assistant or a head of the model; nil: none
	// AdapterRanks reserves buffers for adapters from the start: the sum of the ranks of those of a sequence, the most of any. 0: when they are set.
	AdapterRanks int
}

// Memory is what a session takes, in bytes, the weights that it shares with others included.
type Memory struct {
	HostWeights, HostKV, HostArena       uint64
	DeviceWeights, DeviceKV, DeviceArena uint64
	DeviceGraphs                         uint64 // an estimate
}

// Session is everything that changes while a model runs. Calls on it and on its sequences wait for each other, but for those that tell figures.
type Session struct {
	core  *sessionCore
	model *Model
	clean runtime.Cleanup
}

// sessionCore is what a session must give back. Whoever has put a value into turn may use the handle.
type sessionCore struct {
	turn   chan struct{}
	handle *C.segno_session
	sink   *logSink
	// Set before Close waits for its turn, so that calls queued behind it give up.
	closing atomic.Bool
	// Guards the handle against Close while a call is under way outside a turn.
	closeMu sync.Mutex

	mu        sync.Mutex
	abandoned []C.int32_t // sequences that were never closed

	seqs, tokens []C.int32_t // of the batch that runs
	statuses     []C.segno_status
	submitted    []*Sequence // of the step that has not been polled to its end
	chats        []*Chat     // the same, of conversations
	inFlight     bool        // whether there is one
}

// NewSession makes a session and takes all its memory. opts may be nil.
func (m *Model) NewSession(opts *SessionOptions) (*Session, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	c, done, err := opts.c()
	if err != nil {
		return nil, err
	}
	defer done()
	core := &sessionCore{turn: make(chan struct{}, 1)}
	var detail *C.segno_error
	err = take(C.segno_session_create(handle, &c, &core.handle, &detail), detail)
	if panicked := m.state.sink.caught(); panicked != nil {
		err = panicked
	}
	if err != nil {
		C.segno_session_free(core.handle)
		return nil, err
	}
	core.sink = m.state.sink.share()
	s := &Session{core: core, model: m}
	s.clean = runtime.AddCleanup(s, (*sessionCore).free, core)
	return s, nil
}

// c gives the options as the library takes them, until done is called.
func (o *SessionOptions) c() (c C.segno_session_opts, done func(), err error) {
	C.segno_session_opts_init(&c, C.sizeof_segno_session_opts)
	done = func() {}
	if o == nil {
		return c, done, nil
	}
	if o.MaxSeqs != 0 {
		c.max_seqs = C.uint32_t(o.MaxSeqs)
	}
	if o.MaxPrefill != 0 {
		c.max_prefill = C.uint32_t(o.MaxPrefill)
	}
	c.max_marks, c.max_prompt = C.uint32_t(o.MaxMarks), C.uint32_t(o.MaxPrompt)
	c.kv_tokens = C.uint64_t(o.KVTokens)
	c.kv_type = C.int32_t(o.KVType)
	c.speculation, c.max_drafts = C.int32_t(o.Speculation), C.uint32_t(o.MaxDrafts)
	c.adapter_ranks = C.uint32_t(o.AdapterRanks)
	if o.Draft != nil {
		if c.draft, err = o.Draft.enter(); err != nil {
			return c, done, err
		}
		done = o.Draft.leave
	}
	return c, done, nil
}

// Close cancels a running call, waits for it, and frees the session with its sequences.
func (s *Session) Close() error {
	s.clean.Stop()
	s.core.free()
	runtime.KeepAlive(s)
	return nil
}

func (core *sessionCore) free() {
	core.closeMu.Lock()
	defer core.closeMu.Unlock()
	if core.handle == nil {
		return
	}
	core.closing.Store(true)
	C.segno_session_cancel(core.handle, 1)
	core.turn <- struct{}{}
	defer func() { <-core.turn }()
	C.segno_session_free(core.handle)
	core.sink.release()
	core.handle, core.sink = nil, nil
}

// Memory tells what the session takes.
func (s *Session) Memory() (Memory, error) {
	var c C.segno_memory
	_, err := s.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_session_memory(handle, &c, C.sizeof_segno_memory, err)
	})
	return Memory{uint64(c.host_weights), uint64(c.host_kv), uint64(c.host_arena),
		uint64(c.device_weights), uint64(c.device_kv), uint64(c.device_arena), uint64(c.device_graphs)}, err
}

// SessionStats are the figures of a session, all of one moment. Beside a running call they are what its last finished pass has left.
type SessionStats struct {
	PageTokens    int           // tokens of a page of the KV cache
	MaxSeqs, Seqs int           // most sequences open at once, and those that are
	Tokens        uint64        // of all open sequences: evaluated, queued and sampled
	PagesUsed     uint64        // pages that sequences hold; one that several share counts once
	PagesFree     uint64        // pages that nobody holds
	Passes        uint64        // passes over the model
	PromptTokens  uint64        // evaluated as prompts
	DecodedTokens uint64        // sampled
	PromptTime    time.Duration // of passes for prompts; one that served both is divided by the tokens that it evaluated
	DecodeTime    time.Duration // of passes for sampled tokens, of sampling and of drafting
	Drafted       uint64        // drafts that were evaluated
	Accepted      uint64        // those of them that were right
}

// Stats tells how full the session is and what it has done. It waits for no running call.
func (s *Session) Stats() (SessionStats, error) {
	var c C.segno_session_stats
	err := s.beside(func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_session_stats_get(handle, &c, C.sizeof_segno_session_stats, err)
	})
	return SessionStats{
		PageTokens: int(c.page_tokens), MaxSeqs: int(c.max_seqs), Seqs: int(c.seqs), Tokens: uint64(c.tokens),
		PagesUsed: uint64(c.pages_used), PagesFree: uint64(c.pages_free), Passes: uint64(c.passes),
		PromptTokens: uint64(c.prompt_tokens), DecodedTokens: uint64(c.decoded_tokens),
		PromptTime: time.Duration(c.prompt_us) * time.Microsecond, DecodeTime: time.Duration(c.decode_us) * time.Microsecond,
		Drafted: uint64(c.drafted), Accepted: uint64(c.accepted),
	}, err
}

// beside makes a call that the library allows beside others. Only Close holds it up.
func (s *Session) beside(function func(*C.segno_session, **C.segno_error) C.segno_status) error {
	defer runtime.KeepAlive(s)
	s.core.closeMu.Lock()
	defer s.core.closeMu.Unlock()
	if s.core.handle == nil {
		return ErrClosed
	}
	var detail *C.segno_error
	return take(function(s.core.handle, &detail), detail)
}

// call makes one call on the session when its turn has come. A cancelled ctx ends the waiting and the call, and is the error.
func (s *Session) call(ctx context.Context, function func(*C.segno_session, **C.segno_error) C.segno_status) (Status, error) {
	defer runtime.KeepAlive(s)
	core := s.core
	if err := core.enter(ctx); err != nil {
		return Cancelled, err
	}
	defer core.leave()
	calm := core.watch(ctx)
	var detail *C.segno_error
	status := function(core.handle, &detail)
	calm()
	err := take(status, detail)
	if panicked := core.sink.caught(); panicked != nil {
		return Status(status), panicked
	}
	if Status(status) == Cancelled {
		if err = ctx.Err(); err == nil {
			err = ErrClosed // nobody but Close raises the flag without a context
		}
	}
	return Status(status), err
}

// enter waits for the turn of a call, which a step that was submitted leaves to Poll alone.
func (core *sessionCore) enter(ctx context.Context) error {
	if err := core.take(ctx); err != nil {
		return err
	}
	if core.inFlight {
		core.leave()
		return &Error{Busy, "what was submitted to this session has not been polled to its end: call Poll", -1}
	}
	core.mu.Lock()
	defer core.mu.Unlock()
	for _, id := range core.abandoned {
		C.segno_seq_close(core.handle, id, nil)
	}
	core.abandoned = core.abandoned[:0]
	return nil
}

// take waits for the turn.
func (core *sessionCore) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case core.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if core.closing.Load() {
		<-core.turn
		return ErrClosed
	}
	return nil
}

func (core *sessionCore) leave() { <-core.turn }

// abandon lets the next call close a sequence that its owner has lost.
func (core *sessionCore) abandon(id C.int32_t) {
	core.mu.Lock()
	core.abandoned = append(core.abandoned, id)
	core.mu.Unlock()
}

// watch raises the cancel flag when ctx is cancelled. The function that it returns ends that: after it, no canceller runs, and the flag
// is down, unless Close has raised it.
func (core *sessionCore) watch(ctx context.Context) (calm func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	raised := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		C.segno_session_cancel(core.handle, 1)
		close(raised)
	})
	return func() {
		if stop() {
			return
		}
		<-raised
		if !core.closing.Load() {
			C.segno_session_cancel(core.handle, 0)
		}
	}
}
