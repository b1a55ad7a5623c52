package segno

/*
#include <segno.h>

extern void segnoGoLog(void *user, int32_t level, char *message);

static void segno_go_forward_log(void *user, int32_t level, const char *message)
{
	segnoGoLog(user, level, (char *)message);
}

static void segno_go_set_log(segno_ctx_opts *opts, uintptr_t user)
{
	opts->log = segno_go_forward_log;
	opts->log_user = (void *)user;
}
*/
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// Precision says in which numbers a context computes.
type Precision int32

// Precisions.
const (
	PrecisionDefault Precision = C.SEGNO_PRECISION_DEFAULT
	PrecisionPrecise Precision = C.SEGNO_PRECISION_PRECISE // f32 everywhere: slow, for comparison
)

// ContextOptions are the options of a context; the zero value is the default.
type ContextOptions struct {
	Device      DeviceKind
	DeviceIndex int
	Threads     int // threads that compute, the calling one included; 0: the physical cores that the process may use
	Precision   Precision
	NoAVX512    bool
	HostArgmax  bool // a GPU chooses no tokens: they are taken from the logits on the host, for exact comparison
	Timing      bool // steps on a GPU run as single launches, each measured; the log hears a table when a session is closed
	// FastBatches lets prompts, and batches of more than 4 sequences, on a GPU of compute capability 9.0 multiply 16-bit floats: they are faster,
	// but a sequence's tokens may depend on its company.
	FastBatches bool
	// Overcommit takes memory although there is not as much; otherwise loading a model and creating a session fail before they take any.
	Overcommit bool
	// Background lets the threads that compute give way to all others of the machine: workers, and those of sessions to which steps are submitted.
	Background bool
	// CUDAContext is a CUcontext of the host's own, in which all work on the GPU is then done; it must outlive the context and all made from it.
	CUDAContext unsafe.Pointer
	// StreamPriority is that of the work on a GPU: 0 to the lowest number that the device takes, which runs first.
	StreamPriority int
	// Log receives diagnostics, from any goroutine, one call at a time. Calls from it into the context or what was made from it fail with Busy.
	Log func(level LogLevel, line string)
}

// Context is one device with its worker threads.
type Context struct {
	state *contextState
	clean runtime.Cleanup
}

// contextState is what a context must give back. Calls hold the lock for reading, Close for writing.
type contextState struct {
	mu     sync.RWMutex
	handle *C.segno_ctx
	sink   *logSink
}

// NewContext opens a device. opts may be nil.
func NewContext(opts *ContextOptions) (*Context, error) {
	if opts == nil {
		opts = &ContextOptions{}
	}
	var c C.segno_ctx_opts
	C.segno_ctx_opts_init(&c, C.sizeof_segno_ctx_opts)
	c.device = C.int32_t(opts.Device)
	c.device_index = C.int32_t(opts.DeviceIndex)
	c.n_threads = C.uint32_t(opts.Threads)
	c.precision = C.int32_t(opts.Precision)
	if opts.NoAVX512 {
		c.flags |= C.SEGNO_CTX_NO_AVX512
	}
	if opts.HostArgmax {
		c.flags |= C.SEGNO_CTX_HOST_ARGMAX
	}
	if opts.Timing {
		c.flags |= C.SEGNO_CTX_TIMING
	}
	if opts.FastBatches {
		c.flags |= C.SEGNO_CTX_FAST_BATCHES
	}
	if opts.Overcommit {
		c.flags |= C.SEGNO_CTX_OVERCOMMIT
	}
	if opts.Background {
		c.flags |= C.SEGNO_CTX_BACKGROUND
	}
	c.cuda_context = opts.CUDAContext
	c.stream_priority = C.int32_t(opts.StreamPriority)
	sink := newLogSink(opts.Log)
	if sink != nil {
		C.segno_go_set_log(&c, C.uintptr_t(sink.handle))
	}
	state := &contextState{sink: sink}
	var detail *C.segno_error
	err := take(C.segno_ctx_create(C.SEGNO_ABI_VERSION, &c, &state.handle, &detail), detail)
	if panicked := sink.caught(); panicked != nil {
		err = panicked
	}
	if err != nil {
		state.free()
		return nil, err
	}
	ctx := &Context{state: state}
	ctx.clean = runtime.AddCleanup(ctx, (*contextState).free, state)
	return ctx, nil
}

// Close gives up the context. Models and sessions made from it keep working.
func (c *Context) Close() error {
	c.clean.Stop()
	c.state.free()
	runtime.KeepAlive(c)
	return nil
}

func (s *contextState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sink != nil || s.handle != nil {
		C.segno_ctx_free(s.handle)
		s.sink.release()
	}
	s.handle, s.sink = nil, nil
}

// enter holds the context open for one call; leave must follow.
func (c *Context) enter() (*C.segno_ctx, error) {
	c.state.mu.RLock()
	if c.state.handle == nil {
		c.state.mu.RUnlock()
		return nil, ErrClosed
	}
	return c.state.handle, nil
}

func (c *Context) leave() {
	c.state.mu.RUnlock()
	runtime.KeepAlive(c)
}
