package segno

// #include <stddef.h>
// #include <stdint.h>
import "C"

import (
	"io"
	"runtime/cgo"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// LogLevel says how much a line of diagnostics matters.
type LogLevel int32

// Levels of diagnostics.
const (
	LogError LogLevel = iota
	LogWarn
	LogInfo
	LogDebug
)

// logSink is a host's log function, shared by a context and all made from it; its handle lives as long as any of them.
type logSink struct {
	function func(LogLevel, string)
	handle   cgo.Handle
	users    atomic.Int64
	panicked atomic.Pointer[PanicError]
}

func newLogSink(function func(LogLevel, string)) *logSink {
	if function == nil {
		return nil
	}
	sink := &logSink{function: function}
	sink.handle = cgo.NewHandle(sink)
	sink.users.Store(1)
	return sink
}

// share counts one more object that may log.
func (s *logSink) share() *logSink {
	if s != nil {
		s.users.Add(1)
	}
	return s
}

func (s *logSink) release() {
	if s != nil && s.users.Add(-1) == 0 {
		s.handle.Delete()
	}
}

// caught returns a panic of the log function that nobody has heard of yet.
func (s *logSink) caught() error {
	if s == nil {
		return nil
	}
	if p := s.panicked.Swap(nil); p != nil {
		return p
	}
	return nil
}

// progress is a host's progress function beside the load that calls it.
type progress struct {
	function func(done float32) bool
	panicked *PanicError
}

func (p *progress) caught() error {
	if p.panicked != nil {
		return p.panicked
	}
	return nil
}

// transfer is a host's stream beside the call that uses it, and what it has refused for.
type transfer struct {
	writer io.Writer
	reader io.Reader
	err    error
}

// cause tells why the call failed: what the stream has said goes before what the library says of it.
func (t *transfer) cause(err error) error {
	if err != nil && t.err != nil {
		return t.err
	}
	return err
}

func (t *transfer) recovered() {
	if value := recover(); value != nil {
		t.err = &PanicError{value, debug.Stack()}
	}
}

//export segnoGoLog
func segnoGoLog(user unsafe.Pointer, level C.int32_t, message *C.char) {
	sink := cgo.Handle(uintptr(user)).Value().(*logSink)
	defer func() {
		if value := recover(); value != nil {
			sink.panicked.CompareAndSwap(nil, &PanicError{value, debug.Stack()})
		}
	}()
	sink.function(LogLevel(level), C.GoString(message))
}

//export segnoGoProgress
func segnoGoProgress(user unsafe.Pointer, done C.float) (stop C.int32_t) {
	p := cgo.Handle(uintptr(user)).Value().(*progress)
	defer func() {
		if value := recover(); value != nil {
			p.panicked = &PanicError{value, debug.Stack()}
			stop = 1
		}
	}()
	if p.function(float32(done)) {
		return 0
	}
	return 1
}

//export segnoGoWrite
func segnoGoWrite(user, data unsafe.Pointer, length C.size_t) (stop C.int32_t) {
	t := cgo.Handle(uintptr(user)).Value().(*transfer)
	stop = 1
	defer t.recovered()
	if _, t.err = t.writer.Write(unsafe.Slice((*byte)(data), int(length))); t.err == nil {
		stop = 0
	}
	return stop
}

//export segnoGoRead
func segnoGoRead(user, data unsafe.Pointer, length C.size_t) (count C.size_t) {
	t := cgo.Handle(uintptr(user)).Value().(*transfer)
	defer t.recovered()
	n, err := io.ReadFull(t.reader, unsafe.Slice((*byte)(data), int(length)))
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		t.err = err
		return 0
	}
	return C.size_t(n)
}
