package segno

// #include <stdint.h>
import "C"

import (
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
