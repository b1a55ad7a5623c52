package segno

// #include <segno.h>
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// Pooling says which vector stands for a text.
type Pooling int32

// Kinds of pooling.
const (
	ModelPooling Pooling = C.SEGNO_POOLING_MODEL // what the model was made for; the mean where its file says nothing
	NoPooling    Pooling = C.SEGNO_POOLING_NONE  // every token has a vector of its own
	MeanPooling  Pooling = C.SEGNO_POOLING_MEAN  // the mean of all tokens
	FirstPooling Pooling = C.SEGNO_POOLING_FIRST // the first token, which encoders call CLS
	LastPooling  Pooling = C.SEGNO_POOLING_LAST  // the last token
	RankPooling  Pooling = C.SEGNO_POOLING_RANK  // no vector, but the scores of a reranker
)

// EmbedOptions say how texts become vectors; the zero value is the default.
type EmbedOptions struct {
	Pooling Pooling
	Dims    int  // leading elements that are kept, for models that were trained for that; 0: all
	Raw     bool // vectors are as the model gives them, not divided by their length
	// Adapters with which the texts are evaluated.
	Adapters []ScaledAdapter
}

// Embed makes vectors of texts, which are given as tokens: one a text, or without pooling one a token, one text's after the other's. Texts are evaluated
// together where they fit into a pass; a vector does not depend on the texts beside its own. opts may be nil.
func (s *Session) Embed(ctx context.Context, texts [][]int32, opts *EmbedOptions) ([][]float32, error) {
	if opts == nil {
		opts = &EmbedOptions{}
	}
	c := new(C.segno_embed_opts)
	C.segno_embed_opts_init(c, C.sizeof_segno_embed_opts)
	c.pooling, c.dims = C.int32_t(opts.Pooling), C.uint64_t(opts.Dims)
	if opts.Raw {
		c.flags = C.SEGNO_EMBED_RAW
	}
	adapters, err := hold(opts.Adapters)
	defer adapters.letGo()
	if err != nil {
		return nil, err
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if len(adapters.handles) > 0 {
		pinner.Pin(&adapters.handles[0])
		pinner.Pin(&adapters.scales[0])
		c.adapters, c.scales = &adapters.handles[0], &adapters.scales[0]
		c.adapter_count = C.size_t(len(adapters.handles))
	}
	var tokens []int32
	lengths := make([]C.size_t, 0, len(texts))
	for _, text := range texts {
		tokens, lengths = append(tokens, text...), append(lengths, C.size_t(len(text)))
	}
	count := len(texts)
	if opts.Pooling == NoPooling {
		count = len(tokens)
	}
	var room []float32
	var dims C.size_t
	_, err = s.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		ask := func() C.segno_status {
			out := (*C.float)(unsafe.SliceData(room))
			return C.segno_embed(handle, ids(tokens), unsafe.SliceData(lengths), C.size_t(len(texts)), c, out, C.size_t(len(room)), &dims, err)
		}
		if status := ask(); status != C.SEGNO_OK || count == 0 {
			return status
		}
		room = make([]float32, count*int(dims))
		return ask()
	})
	if err != nil {
		return nil, err
	}
	vectors := make([][]float32, count)
	for i := range vectors {
		vectors[i] = room[i*int(dims) : (i+1)*int(dims) : (i+1)*int(dims)]
	}
	return vectors, nil
}
