package segno

// #include <segno.h>
import "C"

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
)

// GrammarKind is the language in which a grammar is written.
type GrammarKind int32

// Kinds of grammars.
const (
	GrammarJSONSchema GrammarKind = C.SEGNO_GRAMMAR_JSON_SCHEMA // drafts 4 to 2020-12
	GrammarRegex      GrammarKind = C.SEGNO_GRAMMAR_REGEX       // a regular expression that the whole text matches
	GrammarLark       GrammarKind = C.SEGNO_GRAMMAR_LARK        // Lark, as llguidance has it
	GrammarGBNF       GrammarKind = C.SEGNO_GRAMMAR_GBNF        // the notation of llama.cpp
)

// GrammarOptions say what a grammar is compiled from; the zero value is any JSON value.
type GrammarOptions struct {
	Kind    GrammarKind
	Text    string // the grammar; empty, and of a schema, for any JSON value
	Compact bool   // JSON of a schema has no white space outside of strings
}

// Grammar says which tokens of a model may follow which. It is immutable: any number of sequences and goroutines share it.
type Grammar struct {
	state *grammarState
	start int32
	clean runtime.Cleanup
}

type grammarState struct {
	mu     sync.RWMutex
	handle *C.segno_grammar
}

// NewGrammar compiles a grammar for the tokens of the model. opts may be nil.
func (m *Model) NewGrammar(opts *GrammarOptions) (*Grammar, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	var c C.segno_grammar_opts
	C.segno_grammar_opts_init(&c, C.sizeof_segno_grammar_opts)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if opts != nil {
		c.kind = C.int32_t(opts.Kind)
		if opts.Compact {
			c.flags = C.SEGNO_GRAMMAR_COMPACT
		}
		if opts.Text != "" {
			pinner.Pin(unsafe.StringData(opts.Text))
			c.text, c.text_len = chars(opts.Text), C.size_t(len(opts.Text))
		}
	}
	state := &grammarState{}
	var detail *C.segno_error
	if err := take(C.segno_grammar_create(handle, &c, &state.handle, &detail), detail); err != nil {
		return nil, err
	}
	return state.grammar(-1), nil
}

// grammar is the object of a compiled grammar, which begins behind the token start unless that is -1.
func (s *grammarState) grammar(start int32) *Grammar {
	g := &Grammar{state: s, start: start}
	g.clean = runtime.AddCleanup(g, (*grammarState).free, s)
	return g
}

// Close frees the grammar. Sequences that have it keep what they need of it.
func (g *Grammar) Close() error {
	g.clean.Stop()
	g.state.free()
	runtime.KeepAlive(g)
	return nil
}

func (s *grammarState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		C.segno_grammar_free(s.handle)
	}
	s.handle = nil
}

// StartToken is the token behind which the grammar begins, -1 for one that begins at once.
func (g *Grammar) StartToken() int32 { return g.start }

// SetGrammar lets the tokens that are sampled follow a grammar, from the next one on, or behind the next one that is its start
// token. A nil grammar sets the sequence free.
func (q *Sequence) SetGrammar(g *Grammar) error {
	if g == nil {
		return q.SetGrammarBehind(nil, -1)
	}
	return q.SetGrammarBehind(g, g.start)
}

// SetGrammarBehind does so behind the next sampled token that is startToken; until then every token may come.
func (q *Sequence) SetGrammarBehind(g *Grammar, startToken int32) error {
	var rules *C.segno_grammar
	if g != nil {
		g.state.mu.RLock()
		defer g.state.mu.RUnlock()
		defer runtime.KeepAlive(g)
		if rules = g.state.handle; rules == nil {
			return ErrClosed
		}
	}
	_, err := q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_grammar_set(handle, q.id, rules, C.int32_t(startToken), err)
	})
	return err
}
