package segno

// #include <segno.h>
// #include <stdlib.h>
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// ReplyOptions are the options of a reader of replies; the zero value is the default.
type ReplyOptions struct {
	Format   string   // name of the format; empty: the template tells
	Prompt   string   // what replies follow, or its end; empty: what the template makes of a short message
	Template string   // in place of the model's own; empty: the model's
	Tools    string   // a JSON array of tools; empty: none
	Stop     []string // texts that end the content of a reply; they are never given out
}

// EventKind says what an Event tells.
type EventKind int32

// What events tell.
const (
	EventReasoning     EventKind = C.SEGNO_EVENT_REASONING      // a stretch of reasoning
	EventContent       EventKind = C.SEGNO_EVENT_CONTENT        // a stretch of content
	EventToolBegin     EventKind = C.SEGNO_EVENT_TOOL_BEGIN     // a call begins; the text is the name of the function
	EventToolArguments EventKind = C.SEGNO_EVENT_TOOL_ARGUMENTS // a stretch of the arguments, which together are a JSON object
	EventToolEnd       EventKind = C.SEGNO_EVENT_TOOL_END       // the call is whole
	EventEnd           EventKind = C.SEGNO_EVENT_END            // the reply is over
)

// Event is something that happened in a reply.
type Event struct {
	Kind  EventKind
	Index int    // number of the call in its reply, from 0
	Text  string // reasoning, content, the name of a function, or a part of its arguments
	ID    string // of a call, final with EventToolEnd
}

// Reply reads replies: tokens in; reasoning, content and calls of tools out.
type Reply struct {
	state *replyState
	clean runtime.Cleanup
}

type replyState struct {
	mu     sync.Mutex
	handle *C.segno_reply
	sink   *logSink
	events []C.segno_event
}

// NewReply makes a reader of the replies of the model. opts may be nil.
func (m *Model) NewReply(opts *ReplyOptions) (*Reply, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	var c C.segno_reply_opts
	C.segno_reply_opts_init(&c, C.sizeof_segno_reply_opts)
	c.flags = 0
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if opts != nil {
		if opts.Format != "" {
			c.format = C.CString(opts.Format)
			defer C.free(unsafe.Pointer(c.format))
		}
		c.prompt, c.prompt_len = pinned(opts.Prompt, &pinner)
		c.template_text, c.template_len = pinned(opts.Template, &pinner)
		c.tools_json, c.tools_len = pinned(opts.Tools, &pinner)
		c.stops, c.stop_count = cStrings(opts.Stop, &pinner)
	}
	state := &replyState{events: make([]C.segno_event, 8)}
	var detail *C.segno_error
	if err := take(C.segno_reply_create(handle, &c, &state.handle, &detail), detail); err != nil {
		return nil, err
	}
	state.sink = m.state.sink.share()
	r := &Reply{state: state}
	r.clean = runtime.AddCleanup(r, (*replyState).free, state)
	return r, nil
}

// Push puts one token in and returns the events that it brings, often one or none. done tells that the reply is over.
func (r *Reply) Push(token int32) (events []Event, done bool, err error) {
	return r.give(func(handle *C.segno_reply, events *C.segno_event, capacity C.size_t, count *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_reply_push(handle, C.int32_t(token), events, capacity, count, err)
	})
}

// Flush ends the reply: it returns what was held back, and readies the object for the next.
func (r *Reply) Flush() (events []Event, done bool, err error) {
	return r.give(func(handle *C.segno_reply, events *C.segno_event, capacity C.size_t, count *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_reply_flush(handle, events, capacity, count, err)
	})
}

func (r *Reply) give(call func(*C.segno_reply, *C.segno_event, C.size_t, *C.size_t, **C.segno_error) C.segno_status) ([]Event, bool, error) {
	s := r.state
	s.mu.Lock()
	defer s.mu.Unlock()
	defer runtime.KeepAlive(r)
	if s.handle == nil {
		return nil, false, ErrClosed
	}
	for {
		var count C.size_t
		var detail *C.segno_error
		status := call(s.handle, &s.events[0], C.size_t(len(s.events)), &count, &detail)
		err := take(status, detail)
		if Status(status) == BufferTooSmall {
			s.events = make([]C.segno_event, count)
			continue
		}
		if err != nil {
			return nil, false, err
		}
		events := goEvents(s.events[:count])
		// What C wrote are addresses of the library's memory, which must not stay in Go's.
		clear(s.events)
		return events, Status(status) == Done, nil
	}
}

// goEvents are events with texts of their own.
func goEvents(list []C.segno_event) []Event {
	events := make([]Event, len(list))
	for i, e := range list {
		events[i] = Event{
			Kind:  EventKind(e.kind),
			Index: int(e.index),
			Text:  C.GoStringN(e.text, C.int(e.len)),
			ID:    C.GoStringN(e.id, C.int(e.id_len)),
		}
	}
	return events
}

// Format is the name of the format that replies are read in.
func (r *Reply) Format() (string, error) {
	s := r.state
	s.mu.Lock()
	defer s.mu.Unlock()
	defer runtime.KeepAlive(r)
	if s.handle == nil {
		return "", ErrClosed
	}
	name, err := fetch(func(buf *byte, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_reply_format(s.handle, (*C.char)(unsafe.Pointer(buf)), capacity, size, err)
	})
	return string(name), err
}

// pinned is a string as C sees it, NULL for an empty one, valid until the pinner lets go.
func pinned(s string, pinner *runtime.Pinner) (*C.char, C.size_t) {
	if s == "" {
		return nil, 0
	}
	pinner.Pin(unsafe.StringData(s))
	return chars(s), C.size_t(len(s))
}

// Close frees the reader.
func (r *Reply) Close() error {
	r.clean.Stop()
	r.state.free()
	runtime.KeepAlive(r)
	return nil
}

func (s *replyState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		C.segno_reply_free(s.handle)
		s.sink.release()
	}
	s.handle, s.sink = nil, nil
}
