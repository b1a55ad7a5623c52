package segno

// #include <segno.h>
import "C"

import (
	"encoding/json"
	"runtime"
	"time"
	"unsafe"
)

// Message is one turn of a conversation, as every chat service takes it. RenderChatJSON takes messages with parts and tool calls.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatOptions say how a conversation is rendered; the zero value is the default.
type ChatOptions struct {
	AddGenerationPrompt bool           // end with the beginning of the assistant's turn
	Template            string         // in place of the model's own
	Tools               []any          // descriptions of tools, as JSON marshals them
	Vars                map[string]any // further variables of the template
	Now                 time.Time      // the time that the template sees; the zero time is the clock
}

// RenderChat renders a conversation with the model's chat template. Tokenize the result with ParseSpecial alone. opts may be nil.
func (m *Model) RenderChat(messages []Message, opts *ChatOptions) (string, error) {
	encoded, err := encodeMessages(messages)
	if err != nil {
		return "", err
	}
	return m.RenderChatJSON(encoded, opts)
}

func encodeMessages(messages []Message) ([]byte, error) {
	if messages == nil {
		messages = []Message{} // an empty list, not a JSON null
	}
	return json.Marshal(messages)
}

// TokenizeChat renders a conversation and returns its tokens. No text of a message becomes a special token: a user who types the name of
// one has typed text. opts may be nil.
func (m *Model) TokenizeChat(messages []Message, opts *ChatOptions) ([]int32, error) {
	encoded, err := encodeMessages(messages)
	if err != nil {
		return nil, err
	}
	return m.TokenizeChatJSON(encoded, opts)
}

// TokenizeChatJSON does the same with messages that are a JSON array already.
func (m *Model) TokenizeChatJSON(messages []byte, opts *ChatOptions) ([]int32, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	c, err := opts.c(&pinner)
	if err != nil {
		return nil, err
	}
	return fetch(func(buf *int32, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_chat_tokenize(handle, (*C.char)(unsafe.Pointer(unsafe.SliceData(messages))), C.size_t(len(messages)), &c,
			(*C.int32_t)(buf), capacity, size, err)
	})
}

// RenderChatJSON does the same with messages that are a JSON array already.
func (m *Model) RenderChatJSON(messages []byte, opts *ChatOptions) (string, error) {
	handle, err := m.enter()
	if err != nil {
		return "", err
	}
	defer m.leave()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	c, err := opts.c(&pinner)
	if err != nil {
		return "", err
	}
	text, err := fetch(func(buf *byte, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_chat_render(handle, (*C.char)(unsafe.Pointer(unsafe.SliceData(messages))), C.size_t(len(messages)), &c,
			(*C.char)(unsafe.Pointer(buf)), capacity, size, err)
	})
	return string(text), err
}

func (o *ChatOptions) c(pinner *runtime.Pinner) (C.segno_chat_opts, error) {
	var c C.segno_chat_opts
	C.segno_chat_opts_init(&c, C.sizeof_segno_chat_opts)
	if o == nil {
		return c, nil
	}
	if o.AddGenerationPrompt {
		c.flags = C.SEGNO_CHAT_ADD_GENERATION_PROMPT
	}
	if !o.Now.IsZero() {
		c.now = C.int64_t(o.Now.Unix())
	}
	pinned := func(text []byte) (*C.char, C.size_t) {
		pinner.Pin(&text[0])
		return (*C.char)(unsafe.Pointer(&text[0])), C.size_t(len(text))
	}
	if o.Template != "" {
		c.template_text, c.template_len = pinned([]byte(o.Template))
	}
	if o.Tools != nil {
		text, err := json.Marshal(o.Tools)
		if err != nil {
			return c, err
		}
		c.tools_json, c.tools_len = pinned(text)
	}
	if o.Vars != nil {
		text, err := json.Marshal(o.Vars)
		if err != nil {
			return c, err
		}
		c.vars_json, c.vars_len = pinned(text)
	}
	return c, nil
}
