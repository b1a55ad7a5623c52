package segno

// #include <stdlib.h>
// #include <segno.h>
import "C"

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
)

// Adapter is a low-rank change of a model (LoRA), kept beside its weights. It is immutable: any number of sequences and goroutines share it.
type Adapter struct {
	state *adapterState
	clean runtime.Cleanup
}

type adapterState struct {
	mu     sync.RWMutex
	handle *C.segno_adapter
}

// ScaledAdapter is an adapter, and the factor on what it adds.
type ScaledAdapter struct {
	Adapter *Adapter
	Scale   float32
}

// LoadAdapter loads an adapter for the model from a GGUF file.
func (m *Model) LoadAdapter(path string) (*Adapter, error) {
	handle, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer m.leave()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var c C.segno_adapter_opts
	C.segno_adapter_opts_init(&c, C.sizeof_segno_adapter_opts)
	c.flags = 0 // there are none yet
	state := &adapterState{}
	var detail *C.segno_error
	err = take(C.segno_adapter_load(handle, name, &c, &state.handle, &detail), detail)
	if panicked := m.state.sink.caught(); panicked != nil {
		err = panicked
	}
	if err != nil {
		state.free()
		return nil, err
	}
	a := &Adapter{state: state}
	a.clean = runtime.AddCleanup(a, (*adapterState).free, state)
	return a, nil
}

// Close frees the adapter. Sequences that have it keep what they need of it.
func (a *Adapter) Close() error {
	a.clean.Stop()
	a.state.free()
	runtime.KeepAlive(a)
	return nil
}

func (s *adapterState) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		C.segno_adapter_free(s.handle)
	}
	s.handle = nil
}

// adapterList is a list of adapters as calls take it, none of which is closed until it is let go.
type adapterList struct {
	handles []*C.segno_adapter
	scales  []C.float
	held    map[*Adapter]bool // an adapter may be listed twice, and is locked once
}

// hold keeps adapters from being closed; what it gives is let go, after an error too.
func hold(adapters []ScaledAdapter) (*adapterList, error) {
	list := &adapterList{held: make(map[*Adapter]bool, len(adapters))}
	for _, a := range adapters {
		if a.Adapter == nil {
			return list, ErrClosed
		}
		if !list.held[a.Adapter] {
			list.held[a.Adapter] = true
			a.Adapter.state.mu.RLock()
		}
		if a.Adapter.state.handle == nil {
			return list, ErrClosed
		}
		list.handles, list.scales = append(list.handles, a.Adapter.state.handle), append(list.scales, C.float(a.Scale))
	}
	return list, nil
}

func (l *adapterList) letGo() {
	for a := range l.held {
		a.state.mu.RUnlock()
		runtime.KeepAlive(a)
	}
}

// SetAdapters gives the sequence adapters in place of those that it has; none takes all away. What it has evaluated it evaluates again, so they
// are set before the prompt.
func (q *Sequence) SetAdapters(adapters ...ScaledAdapter) error {
	list, err := hold(adapters)
	defer list.letGo()
	if err != nil {
		return err
	}
	_, err = q.call(context.Background(), func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		handles, scales := unsafe.SliceData(list.handles), unsafe.SliceData(list.scales)
		return C.segno_seq_adapters_set(handle, q.id, handles, scales, C.size_t(len(list.handles)), err)
	})
	return err
}
