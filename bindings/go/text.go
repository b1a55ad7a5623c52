package segno

// #include <segno.h>
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// TokenizeOptions say what Tokenize makes of special tokens.
type TokenizeOptions struct {
	AddSpecial   bool // add the begin and end tokens that the model asks for
	ParseSpecial bool // names of special tokens in the text become those tokens
}

// Tokenize turns text into tokens.
func (m *Model) Tokenize(text string, opts TokenizeOptions) ([]int32, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	var flags C.uint32_t
	if opts.AddSpecial {
		flags |= C.SEGNO_TOKENIZE_ADD_SPECIAL
	}
	if opts.ParseSpecial {
		flags |= C.SEGNO_TOKENIZE_PARSE_SPECIAL
	}
	return fetch(func(buf *int32, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_tokenize(handle, chars(text), C.size_t(len(text)), flags, (*C.int32_t)(buf), capacity, size, err)
	})
}

// Detokenize turns tokens into text. Special tokens are written by their names when special is set, otherwise left out.
func (m *Model) Detokenize(tokens []int32, special bool) (string, error) {
	handle, err := m.enter()
	if err != nil {
		return "", err
	}
	defer m.leave()
	var flags C.uint32_t
	if special {
		flags = C.SEGNO_DETOKENIZE_SPECIAL
	}
	text, err := fetch(func(buf *byte, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_detokenize(handle, ids(tokens), C.size_t(len(tokens)), flags, (*C.char)(unsafe.Pointer(buf)), capacity, size, err)
	})
	return string(text), err
}

// chars is the bytes of a string as C sees them, valid while the string lives.
func chars(s string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(s))) }

// ids is a list of tokens as C sees it.
func ids(tokens []int32) *C.int32_t { return (*C.int32_t)(unsafe.SliceData(tokens)) }

// TextOptions are the options of a text stream; the zero value is the default.
type TextOptions struct {
	Special bool     // show special tokens by their names
	Stop    []string // texts that end the stream; they are never given out
}

// Text is a streaming detokenizer: tokens in, whole UTF-8 characters out, stop strings held back.
type Text struct {
	state *textState
	clean runtime.Cleanup
}

type textState struct {
	mu     sync.Mutex
	handle *C.segno_text
	sink   *logSink
	buf    []byte
}

// NewText makes a text stream for the tokens of the model. opts may be nil.
func (m *Model) NewText(opts *TextOptions) (*Text, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	var c C.segno_text_opts
	C.segno_text_opts_init(&c, C.sizeof_segno_text_opts)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if opts != nil {
		if opts.Special {
			c.flags = C.SEGNO_TEXT_SPECIAL
		}
		c.stops, c.stop_count = cStrings(opts.Stop, &pinner)
	}
	state := &textState{buf: make([]byte, 256)}
	var detail *C.segno_error
	if err := take(C.segno_text_create(handle, &c, &state.handle, &detail), detail); err != nil {
		return nil, err
	}
	state.sink = m.state.sink.share()
	t := &Text{state: state}
	t.clean = runtime.AddCleanup(t, (*textState).free, state)
	return t, nil
}

// cStrings is a list of strings as C sees it, valid until the pinner lets go.
func cStrings(list []string, pinner *runtime.Pinner) (*C.segno_string, C.size_t) {
	if len(list) == 0 {
		return nil, 0
	}
	out := make([]C.segno_string, len(list))
	for i, s := range list {
		if s != "" {
			pinner.Pin(unsafe.StringData(s))
		}
		out[i] = C.segno_string{data: chars(s), len: C.size_t(len(s))}
	}
	pinner.Pin(&out[0])
	return &out[0], C.size_t(len(out))
}

// Push puts one token in and returns the characters that it releases, often none. done tells that a stop string is complete.
func (t *Text) Push(token int32) (text string, done bool, err error) {
	return t.give(func(handle *C.segno_text, buf *C.char, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_text_push(handle, C.int32_t(token), buf, capacity, size, err)
	})
}

// Flush ends the stream: it returns what was held back, and readies the object for the next.
func (t *Text) Flush() (text string, done bool, err error) {
	return t.give(func(handle *C.segno_text, buf *C.char, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_text_flush(handle, buf, capacity, size, err)
	})
}

func (t *Text) give(call func(*C.segno_text, *C.char, C.size_t, *C.size_t, **C.segno_error) C.segno_status) (string, bool, error) {
	s := t.state
	s.mu.Lock()
	defer s.mu.Unlock()
	defer runtime.KeepAlive(t)
	if s.handle == nil {
		return "", false, ErrClosed
	}
	for {
		var size C.size_t
		var detail *C.segno_error
		status := call(s.handle, (*C.char)(unsafe.Pointer(&s.buf[0])), C.size_t(len(s.buf)), &size, &detail)
		err := take(status, detail)
		if Status(status) == BufferTooSmall {
			s.buf = make([]byte, size)
			continue
		}
		if err != nil {
			return "", false, err
		}
		return string(s.buf[:size]), Status(status) == Done, nil
	}
}

// Close frees the stream.
func (t *Text) Close() error {
	t.clean.Stop()
	t.state.free()
	runtime.KeepAlive(t)
	return nil
}

func (s *textState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		C.segno_text_free(s.handle)
		s.sink.release()
	}
	s.handle, s.sink = nil, nil
}
