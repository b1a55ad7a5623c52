package segno

// #include <segno.h>
// #include <stdlib.h>
import "C"

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// ChatCreateOptions are the options of a conversation. nil is the default; begin with DefaultChat to set some.
type ChatCreateOptions struct {
	Forget          bool      // when the context is full, the oldest turns are forgotten, never the system's messages nor the newest turn
	System          string    // what the system says, the first message
	Template        string    // in place of the model's own; empty: the model's
	Tools           string    // a JSON array of tools; empty: none
	Vars            string    // a JSON object of further variables of the template; empty: none
	Now             time.Time // the time that the template sees; the zero time is the clock at the beginning
	Format          string    // name of the format of replies; empty: the template tells
	Stop            []string  // texts that end the content of a reply; they are never given out
	Sampler         *SamplerOptions
	Grammar         *Grammar // what the content of each reply follows
	GrammarStart    int32    // the sampled token behind which the grammar begins instead; -1: none
	MaxTokens       uint32   // most tokens of a reply; 0: as many as fit
	ReasoningTokens int64    // most tokens of a reply's reasoning; -1: no limit
	ContextTokens   uint64   // most tokens of the conversation in the cache; 0: as many as there are
}

// DefaultChat returns the library's defaults.
func DefaultChat() *ChatCreateOptions {
	return &ChatCreateOptions{GrammarStart: -1, ReasoningTokens: -1}
}

// ChatEnd says why a reply ended.
type ChatEnd int32

// Why replies end.
const (
	ChatEndNone        ChatEnd = C.SEGNO_CHAT_END_NONE        // none has, or one is being written
	ChatEndToken       ChatEnd = C.SEGNO_CHAT_END_TOKEN       // the model ended it
	ChatEndStop        ChatEnd = C.SEGNO_CHAT_END_STOP        // a stop string was complete
	ChatEndLength      ChatEnd = C.SEGNO_CHAT_END_LENGTH      // it had as many tokens as a reply may have
	ChatEndGrammar     ChatEnd = C.SEGNO_CHAT_END_GRAMMAR     // the grammar let nothing follow
	ChatEndInterrupted ChatEnd = C.SEGNO_CHAT_END_INTERRUPTED // a message was added before it was over
)

// Chat is a conversation: its messages, and a sequence of a session that answers them. Calls on it wait for each other.
type Chat struct {
	session *Session
	state   *chatState
	clean   runtime.Cleanup
}

type chatState struct {
	mu     sync.Mutex
	handle *C.segno_chat
	sink   *logSink
	events []C.segno_event
}

// ChatStep is what one step of a conversation brought.
type ChatStep struct {
	Status Status // OK, Pending, or Done once the reply is over
	Events []Event
	Err    error // why the item of a batch failed; nil otherwise
}

// NewChat begins a conversation. opts may be nil.
func (s *Session) NewChat(opts *ChatCreateOptions) (*Chat, error) {
	var c C.segno_chat_create_opts
	C.segno_chat_create_opts_init(&c, C.sizeof_segno_chat_create_opts)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if opts != nil {
		if opts.Forget {
			c.flags = C.SEGNO_CHAT_FORGET
		}
		c.system_text, c.system_len = pinned(opts.System, &pinner)
		c.template_text, c.template_len = pinned(opts.Template, &pinner)
		c.tools_json, c.tools_len = pinned(opts.Tools, &pinner)
		c.vars_json, c.vars_len = pinned(opts.Vars, &pinner)
		if !opts.Now.IsZero() {
			c.now = C.int64_t(opts.Now.Unix())
		}
		if opts.Format != "" {
			c.format = C.CString(opts.Format)
			defer C.free(unsafe.Pointer(c.format))
		}
		c.stops, c.stop_count = cStrings(opts.Stop, &pinner)
		if c.sampler = opts.Sampler.c(&pinner); c.sampler != nil {
			pinner.Pin(c.sampler)
		}
		if opts.Grammar != nil {
			opts.Grammar.state.mu.RLock()
			defer opts.Grammar.state.mu.RUnlock()
			defer runtime.KeepAlive(opts.Grammar)
			if c.grammar = opts.Grammar.state.handle; c.grammar == nil {
				return nil, ErrClosed
			}
		}
		c.grammar_start, c.max_tokens = C.int32_t(opts.GrammarStart), C.uint32_t(opts.MaxTokens)
		c.reasoning_tokens, c.context_tokens = C.int64_t(opts.ReasoningTokens), C.uint64_t(opts.ContextTokens)
	}
	return s.chat(func(handle *C.segno_session, out **C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_create(handle, &c, out, err)
	})
}

// chat makes a conversation by a call that does.
func (s *Session) chat(create func(*C.segno_session, **C.segno_chat, **C.segno_error) C.segno_status) (*Chat, error) {
	state := &chatState{events: make([]C.segno_event, 8)}
	_, err := s.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		// In a place of its own: what C writes to must hold no pointers of Go.
		var made *C.segno_chat
		status := create(handle, &made, err)
		state.handle = made
		if status >= 0 {
			state.sink = s.core.sink.share()
		}
		return status
	})
	if err != nil {
		state.free()
		return nil, err
	}
	c := &Chat{session: s, state: state}
	c.clean = runtime.AddCleanup(c, (*chatState).free, state)
	return c, nil
}

// Say adds a message. A reply that is being written ends there, and what there is of it becomes a message before this one.
func (c *Chat) Say(role, text string) error {
	name := C.CString(role)
	defer C.free(unsafe.Pointer(name))
	return c.plain(func(handle *C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_say(handle, name, chars(text), C.size_t(len(text)), err)
	})
}

// Add adds a message, or an array of messages, as JSON: what a tool answers, or what Messages has given.
func (c *Chat) Add(json []byte) error {
	return c.plain(func(handle *C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_add(handle, (*C.char)(unsafe.Pointer(unsafe.SliceData(json))), C.size_t(len(json)), err)
	})
}

// SetTools lets the replies that begin from now on call the conversation's tools as a grammar has it, one at most if oneCall; name is the tool
// of ToolsNamed.
func (c *Chat) SetTools(choice ToolChoice, oneCall bool, name string) error {
	var flags C.uint32_t
	if oneCall {
		flags = C.SEGNO_TOOLS_ONE_CALL
	}
	tool := C.CString(name)
	defer C.free(unsafe.Pointer(tool))
	return c.plain(func(handle *C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_tools_set(handle, C.int32_t(choice), flags, tool, err)
	})
}

// Truncate keeps the first messages messages, without the reply that is being written.
func (c *Chat) Truncate(messages int) error {
	return c.plain(func(handle *C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_truncate(handle, C.size_t(messages), err)
	})
}

// Messages returns all messages as a JSON array, which Add takes.
func (c *Chat) Messages() ([]byte, error) {
	s := c.state
	s.mu.Lock()
	defer s.mu.Unlock()
	defer runtime.KeepAlive(c)
	if s.handle == nil {
		return nil, ErrClosed
	}
	return fetch(func(buf *byte, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_chat_messages(s.handle, (*C.char)(unsafe.Pointer(buf)), capacity, size, err)
	})
}

// ChatStats are the figures of a conversation, and of its last turn.
type ChatStats struct {
	End             ChatEnd // why the last reply ended
	Messages        int     // forgotten ones included
	Forgotten       int     // messages that the model no longer sees
	Turns           int
	LastTurn        int    // index of the first message of the newest turn
	PromptTokens    uint64 // of the conversation as the last reply found it
	KeptTokens      uint64 // those of them that were in the cache already
	EvaluatedTokens uint64 // evaluated before the first token of the reply
	ReplyTokens     uint64
	ReasoningTokens uint64
}

// Stats tells the figures of the conversation.
func (c *Chat) Stats() (ChatStats, error) {
	var stats C.segno_chat_stats
	err := c.plain(func(handle *C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_stats_get(handle, &stats, C.sizeof_segno_chat_stats, err)
	})
	return ChatStats{ChatEnd(stats.end), int(stats.messages), int(stats.forgotten), int(stats.turns), int(stats.last_turn),
		uint64(stats.prompt_tokens), uint64(stats.kept_tokens), uint64(stats.evaluated_tokens), uint64(stats.reply_tokens),
		uint64(stats.reasoning_tokens)}, err
}

// SeqID is the id of its sequence in the session.
func (c *Chat) SeqID() (int32, error) {
	var id C.int32_t
	err := c.plain(func(handle *C.segno_chat, err **C.segno_error) C.segno_status {
		return C.segno_chat_seq(handle, &id, err)
	})
	return int32(id), err
}

// plain makes a call that does without the session.
func (c *Chat) plain(function func(*C.segno_chat, **C.segno_error) C.segno_status) error {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	defer runtime.KeepAlive(c)
	if c.state.handle == nil {
		return ErrClosed
	}
	var detail *C.segno_error
	return take(function(c.state.handle, &detail), detail)
}

// Fork begins a conversation with the same messages, the reply that is being written included. opts may be nil: it keeps the sampler's.
func (c *Chat) Fork(opts *SamplerOptions) (*Chat, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	sampler := opts.c(&pinner)
	defer runtime.KeepAlive(c)
	closed := false
	fork, err := c.session.chat(func(_ *C.segno_session, out **C.segno_chat, err **C.segno_error) C.segno_status {
		c.state.mu.Lock()
		defer c.state.mu.Unlock()
		if closed = c.state.handle == nil; closed {
			return C.SEGNO_E_NULL_POINTER
		}
		return C.segno_chat_fork(c.state.handle, sampler, out, err)
	})
	if closed {
		return nil, ErrClosed
	}
	return fork, err
}

// Next advances the conversation by one step. Reply makes all of them. A cancelled ctx ends the call, and leaves the reply to be gone on with.
func (c *Chat) Next(ctx context.Context) (ChatStep, error) {
	s := c.state
	defer runtime.KeepAlive(c)
	var events []Event
	closed := false
	status, err := c.session.call(ctx, func(_ *C.segno_session, err **C.segno_error) C.segno_status {
		s.mu.Lock()
		defer s.mu.Unlock()
		if closed = s.handle == nil; closed {
			return C.SEGNO_OK
		}
		for {
			var count C.size_t
			status := C.segno_chat_next(s.handle, &s.events[0], C.size_t(len(s.events)), &count, err)
			if status == C.SEGNO_E_BUFFER_TOO_SMALL {
				C.segno_error_free(*err)
				*err = nil
				s.events = make([]C.segno_event, count)
				continue
			}
			if status >= 0 && status != C.SEGNO_CANCELLED {
				events = goEvents(s.events[:count])
			}
			// What C wrote are addresses of the library's memory, which must not stay in Go's.
			clear(s.events)
			return status
		}
	})
	if closed {
		return ChatStep{}, ErrClosed
	}
	if err != nil {
		return ChatStep{Status: status}, err
	}
	return ChatStep{status, events, nil}, nil
}

// Reply makes steps until the reply is over, and calls onEvent, which may be nil, with each event.
func (c *Chat) Reply(ctx context.Context, onEvent func(Event)) error {
	for {
		step, err := c.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range step.Events {
			if onEvent != nil {
				onEvent(event)
			}
		}
		if step.Status == Done {
			return nil
		}
	}
}

// Room for the events of each conversation of a batch.
const batchEvents = 8

// NextBatch advances conversations of the session by one step each, in one pass, and writes what became of each to steps, which must be as
// long. One with more events than there is room for has the status BufferTooSmall, and Next gives them. The error is that of the call as a
// whole: a refused or cancelled one has advanced none.
func (s *Session) NextBatch(ctx context.Context, chats []*Chat, steps []ChatStep) error {
	if len(chats) != len(steps) {
		return &Error{InvalidArgument, "as many steps as conversations are needed", -1}
	}
	if len(chats) == 0 {
		return ctx.Err()
	}
	defer runtime.KeepAlive(chats)
	results := newChatResults(len(chats))
	refused := error(nil)
	_, err := s.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		var handles []*C.segno_chat
		var leave func()
		if handles, leave, refused = enterAll(chats); refused != nil {
			return C.SEGNO_OK
		}
		defer leave()
		events, counts, statuses := first(results.events), first(results.counts), first(results.statuses)
		status := C.segno_chat_next_batch(handle, first(handles), C.size_t(len(chats)), events, batchEvents, counts, statuses, err)
		results.read(steps)
		return status
	})
	if refused != nil {
		return refused
	}
	return blameChats(err, results, steps)
}

// enterAll locks conversations, each listed once, until leave is called. Whoever holds more than one lock has the session's turn, so nobody waits
// for ever.
func enterAll(chats []*Chat) (handles []*C.segno_chat, leave func(), err error) {
	entered := make(map[*Chat]bool, len(chats))
	leave = func() {
		for c := range entered {
			c.state.mu.Unlock()
		}
	}
	for i, c := range chats {
		if entered[c] {
			leave()
			return nil, nil, &Error{InvalidArgument, "a conversation is listed twice", i}
		}
		c.state.mu.Lock()
		entered[c] = true
		if c.state.handle == nil {
			leave()
			return nil, nil, ErrClosed
		}
		handles = append(handles, c.state.handle)
	}
	return handles, leave, nil
}

// chatResults is room for what becomes of the conversations of a step.
type chatResults struct {
	events   []C.segno_event
	counts   []C.size_t
	statuses []C.segno_status
}

// noStatus is one that no call gives.
const noStatus = -1 << 31

func newChatResults(count int) *chatResults {
	r := &chatResults{make([]C.segno_event, count*batchEvents), make([]C.size_t, count), make([]C.segno_status, count)}
	for i := range r.statuses {
		r.statuses[i] = noStatus
	}
	return r
}

// untouched tells whether nothing has been written.
func (r *chatResults) untouched() bool { return len(r.statuses) == 0 || r.statuses[0] == noStatus }

// read copies what was written, and forgets the addresses of the library's memory, which must not stay in Go's.
func (r *chatResults) read(steps []ChatStep) {
	for i := range steps {
		steps[i] = ChatStep{Status: Status(r.statuses[i])}
		if r.statuses[i] < 0 {
			steps[i].Err = steps[i].Status
		} else {
			steps[i].Events = goEvents(r.events[i*batchEvents:][:r.counts[i]])
		}
	}
	clear(r.events)
}

// blameChats gives the error of a call to the item that it is of: it stays the call's where there is none. The message is that of the first that failed.
func blameChats(err error, results *chatResults, steps []ChatStep) error {
	var failed *Error
	if !errors.As(err, &failed) || results.untouched() {
		return err
	}
	if failed.Item >= 0 && failed.Item < len(steps) {
		steps[failed.Item].Err = failed
	}
	return nil
}

// Close frees the conversation and its sequence.
func (c *Chat) Close() error {
	c.clean.Stop()
	c.state.free()
	runtime.KeepAlive(c)
	return nil
}

func (s *chatState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		C.segno_chat_free(s.handle)
		s.sink.release()
	}
	s.handle, s.sink = nil, nil
}
