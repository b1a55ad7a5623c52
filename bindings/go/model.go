package segno

/*
#include <stdlib.h>
#include <segno.h>

extern int32_t segnoGoProgress(void *user, float done);

static void segno_go_set_progress(segno_model_opts *opts, uintptr_t user)
{
	opts->progress = segnoGoProgress;
	opts->progress_user = (void *)user;
}

static void segno_go_set_save_progress(segno_save_opts *opts, uintptr_t user)
{
	opts->progress = segnoGoProgress;
	opts->progress_user = (void *)user;
}
*/
import "C"

import (
	"context"
	"runtime"
	"runtime/cgo"
	"sync"
	"unsafe"
)

// ModelOptions are the options of a model; the zero value is the default.
type ModelOptions struct {
	NoMmap bool // read the file instead of mapping it: for files that somebody may truncate while they are in use
	// Progress hears from 0 to 1 how far the load has come, on the loading goroutine, and returns whether to go on.
	Progress func(done float32) bool
	// Quantize is what matrices of floats become while they are loaded. Those that are quantized already stay as they are.
	Quantize WeightType
	// DeviceMemory is how many bytes of a GPU's memory the model may take, with a session of default options beside it; 0 for what is free. The
	// host computes what does not fit there: experts first, then layers.
	DeviceMemory uint64
}

// WeightType is how weights are stored.
type WeightType int32

// Types that weights can be brought to; WeightKeep leaves them as they are.
const (
	WeightKeep WeightType = C.SEGNO_TYPE_KEEP
	WeightF16  WeightType = C.SEGNO_TYPE_F16
	WeightBF16 WeightType = C.SEGNO_TYPE_BF16
	WeightQ8_0 WeightType = C.SEGNO_TYPE_Q8_0
	WeightQ4_0 WeightType = C.SEGNO_TYPE_Q4_0
	WeightQ4_1 WeightType = C.SEGNO_TYPE_Q4_1
	WeightQ5_0 WeightType = C.SEGNO_TYPE_Q5_0
	WeightQ5_1 WeightType = C.SEGNO_TYPE_Q5_1
	WeightQ4_K WeightType = C.SEGNO_TYPE_Q4_K
	WeightQ5_K WeightType = C.SEGNO_TYPE_Q5_K
	WeightQ6_K WeightType = C.SEGNO_TYPE_Q6_K
)

// ModelInfo holds sizes and names of a model. BOS and EOS are -1 when there are none.
type ModelInfo struct {
	Vocab, Context, Layers, Hidden, Heads, KVHeads, HeadDim int
	BOS, EOS                                                int32
	Parameters, WeightBytes                                 uint64
	Arch, Name                                              string
}

// Model is weights, tokenizer and metadata: immutable, for any number of goroutines at once.
type Model struct {
	state *modelState
	clean runtime.Cleanup
}

type modelState struct {
	mu     sync.RWMutex
	handle *C.segno_model
	sink   *logSink
}

// LoadModel loads a GGUF file or a Hugging Face folder. A cancelled ctx ends the load. opts may be nil.
func (c *Context) LoadModel(ctx context.Context, path string, opts *ModelOptions) (*Model, error) {
	cPath := C.CString(path)
	defer C.free(unsafe.Pointer(cPath))
	return c.load(ctx, opts, func(handle *C.segno_ctx, o *C.segno_model_opts, out **C.segno_model, err **C.segno_error) C.segno_status {
		return C.segno_model_load(handle, cPath, o, out, err)
	})
}

// LoadModelBytes loads the bytes of a GGUF file, which may be changed afterwards. opts may be nil.
func (c *Context) LoadModelBytes(ctx context.Context, data []byte, opts *ModelOptions) (*Model, error) {
	return c.load(ctx, opts, func(handle *C.segno_ctx, o *C.segno_model_opts, out **C.segno_model, err **C.segno_error) C.segno_status {
		return C.segno_model_load_buffer(handle, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), o, out, err)
	})
}

func (c *Context) load(ctx context.Context, opts *ModelOptions,
	call func(*C.segno_ctx, *C.segno_model_opts, **C.segno_model, **C.segno_error) C.segno_status) (*Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	handle, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	p := &progress{function: func(done float32) bool {
		return ctx.Err() == nil && (opts == nil || opts.Progress == nil || opts.Progress(done))
	}}
	user := cgo.NewHandle(p)
	defer user.Delete()
	o := opts.c()
	C.segno_go_set_progress(&o, C.uintptr_t(user))

	state := &modelState{}
	var detail *C.segno_error
	status := call(handle, &o, &state.handle, &detail)
	if err = take(status, detail); err == nil && status == C.SEGNO_CANCELLED {
		if err = ctx.Err(); err == nil {
			err = Cancelled
		}
	}
	for _, panicked := range []error{c.state.sink.caught(), p.caught()} {
		if panicked != nil {
			err = panicked
		}
	}
	if err != nil {
		C.segno_model_free(state.handle)
		return nil, err
	}
	state.sink = c.state.sink.share()
	m := &Model{state: state}
	m.clean = runtime.AddCleanup(m, (*modelState).free, state)
	return m, nil
}

func (o *ModelOptions) c() C.segno_model_opts {
	var c C.segno_model_opts
	C.segno_model_opts_init(&c, C.sizeof_segno_model_opts)
	if o == nil {
		return c
	}
	if o.NoMmap {
		c.flags |= C.SEGNO_MODEL_NO_MMAP
	}
	c.quantize = C.int32_t(o.Quantize)
	c.device_memory = C.uint64_t(o.DeviceMemory)
	return c
}

// Close gives up the model. Sessions and text streams made from it keep working.
func (m *Model) Close() error {
	m.clean.Stop()
	m.state.free()
	runtime.KeepAlive(m)
	return nil
}

func (s *modelState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		C.segno_model_free(s.handle)
		s.sink.release()
	}
	s.handle, s.sink = nil, nil
}

func (m *Model) enter() (*C.segno_model, error) {
	m.state.mu.RLock()
	if m.state.handle == nil {
		m.state.mu.RUnlock()
		return nil, ErrClosed
	}
	return m.state.handle, nil
}

func (m *Model) leave() {
	m.state.mu.RUnlock()
	runtime.KeepAlive(m)
}

// Info returns sizes and names.
func (m *Model) Info() (ModelInfo, error) {
	handle, err := m.enter()
	if err != nil {
		return ModelInfo{}, err
	}
	defer m.leave()
	var c C.segno_model_info
	var detail *C.segno_error
	if err := take(C.segno_model_info_get(handle, &c, C.sizeof_segno_model_info, &detail), detail); err != nil {
		return ModelInfo{}, err
	}
	return ModelInfo{
		Vocab: int(c.vocab), Context: int(c.context), Layers: int(c.layers), Hidden: int(c.hidden),
		Heads: int(c.heads), KVHeads: int(c.kv_heads), HeadDim: int(c.head_dim), BOS: int32(c.bos), EOS: int32(c.eos),
		Parameters: uint64(c.parameters), WeightBytes: uint64(c.weight_bytes),
		Arch: C.GoString(&c.arch[0]), Name: C.GoString(&c.name[0]),
	}, nil
}

// SaveOptions are the options of saving; the zero value is the default.
type SaveOptions struct {
	// Progress hears from 0 to 1 how far it has come, on the saving goroutine, and returns whether to go on.
	Progress func(done float32) bool
}

// Save writes the model to one GGUF file, which takes the place of another once it is whole. A cancelled ctx ends it, and leaves nothing behind. opts
// may be nil.
func (m *Model) Save(ctx context.Context, path string, opts *SaveOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	handle, err := m.enter()
	if err != nil {
		return err
	}
	defer m.leave()
	cPath := C.CString(path)
	defer C.free(unsafe.Pointer(cPath))
	p := &progress{function: func(done float32) bool {
		return ctx.Err() == nil && (opts == nil || opts.Progress == nil || opts.Progress(done))
	}}
	user := cgo.NewHandle(p)
	defer user.Delete()
	var o C.segno_save_opts
	C.segno_save_opts_init(&o, C.sizeof_segno_save_opts)
	C.segno_go_set_save_progress(&o, C.uintptr_t(user))
	var detail *C.segno_error
	status := C.segno_model_save(handle, cPath, &o, &detail)
	if err = take(status, detail); err == nil && status == C.SEGNO_CANCELLED {
		if err = ctx.Err(); err == nil {
			err = Cancelled
		}
	}
	for _, panicked := range []error{m.state.sink.caught(), p.caught()} {
		if panicked != nil {
			err = panicked
		}
	}
	return err
}

// Meta returns one entry of the metadata as text; an absent key is NotFound.
func (m *Model) Meta(key string) (string, error) {
	handle, err := m.enter()
	if err != nil {
		return "", err
	}
	defer m.leave()
	cKey := C.CString(key)
	defer C.free(unsafe.Pointer(cKey))
	text, err := fetch(func(buf *byte, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status {
		return C.segno_model_meta(handle, cKey, (*C.char)(unsafe.Pointer(buf)), capacity, size, err)
	})
	return string(text), err
}

// Plan is the memory that a model and one session would take, in bytes, and whether there is as much.
type Plan struct {
	Fits                                             bool
	HostWeights, HostKV, HostArena, HostFree         uint64
	DeviceWeights, DeviceKV, DeviceArena, DeviceFree uint64
	DeviceGraphs                                     uint64 // an estimate
	HostLayers                                       int    // layers that the host computes for a GPU
	HostExpertLayers                                 int    // further layers whose experts the host computes
}

// Plan tells what LoadModel and NewSession would take, from the file's header alone. Both options may be nil.
func (c *Context) Plan(path string, model *ModelOptions, session *SessionOptions) (Plan, error) {
	handle, err := c.enter()
	if err != nil {
		return Plan{}, err
	}
	defer c.leave()
	cPath := C.CString(path)
	defer C.free(unsafe.Pointer(cPath))
	s, done, err := session.c()
	if err != nil {
		return Plan{}, err
	}
	defer done()
	m := model.c()
	var p C.segno_plan
	var detail *C.segno_error
	if err := take(C.segno_plan_get(handle, cPath, &m, &s, &p, C.sizeof_segno_plan, &detail), detail); err != nil {
		return Plan{}, err
	}
	return Plan{p.fits == 1, uint64(p.host_weights), uint64(p.host_kv), uint64(p.host_arena), uint64(p.host_free),
		uint64(p.device_weights), uint64(p.device_kv), uint64(p.device_arena), uint64(p.device_free), uint64(p.device_graphs),
		int(p.host_layers), int(p.host_expert_layers)}, nil
}
