package segno

// #include <segno.h>
// #include <stdlib.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// ToolChoice says which tools a reply may call, and must.
type ToolChoice int32

// Choices of tools.
const (
	ToolsFree     ToolChoice = C.SEGNO_TOOLS_FREE     // what the model likes: calls are not watched; for Chat.SetTools
	ToolsAuto     ToolChoice = C.SEGNO_TOOLS_AUTO     // any or none
	ToolsRequired ToolChoice = C.SEGNO_TOOLS_REQUIRED // at least one
	ToolsNone     ToolChoice = C.SEGNO_TOOLS_NONE     // none
	ToolsNamed    ToolChoice = C.SEGNO_TOOLS_NAMED    // the one that Name names
)

// ToolOptions say what a grammar of calls of tools is made of.
type ToolOptions struct {
	Tools    string // a JSON array of tools; empty: none
	Choice   ToolChoice
	Name     string // the tool of ToolsNamed
	OneCall  bool   // a reply has one call at most
	Format   string // name of the format; empty: the template tells
	Prompt   string // what the reply follows, or its end; empty: what the template makes of a short message
	Template string // in place of the model's own; empty: the model's
}

// NewToolGrammar compiles a grammar of replies that call tools, with arguments that meet their schemas. A sequence that is given it
// begins it where calls begin. opts may be nil.
func (m *Model) NewToolGrammar(opts *ToolOptions) (*Grammar, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	var c C.segno_tools_opts
	C.segno_tools_opts_init(&c, C.sizeof_segno_tools_opts)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if opts != nil {
		c.choice = C.int32_t(opts.Choice)
		if opts.OneCall {
			c.flags = C.SEGNO_TOOLS_ONE_CALL
		}
		if opts.Name != "" {
			c.name = C.CString(opts.Name)
			defer C.free(unsafe.Pointer(c.name))
		}
		if opts.Format != "" {
			c.format = C.CString(opts.Format)
			defer C.free(unsafe.Pointer(c.format))
		}
		c.tools_json, c.tools_len = pinned(opts.Tools, &pinner)
		c.prompt, c.prompt_len = pinned(opts.Prompt, &pinner)
		c.template_text, c.template_len = pinned(opts.Template, &pinner)
	}
	state := &grammarState{}
	var start C.int32_t
	var detail *C.segno_error
	if err := take(C.segno_tools_grammar_create(handle, &c, &state.handle, &start, &detail), detail); err != nil {
		return nil, err
	}
	return state.grammar(int32(start)), nil
}
