package segno

// #include <segno.h>
import "C"

import (
	"errors"
	"fmt"
)

// Status is the outcome of a call as the library numbers it. Negative ones are errors, so that errors.Is(err, segno.KVFull) works.
type Status int32

// Outcomes and errors of the library.
const (
	OK              Status = C.SEGNO_OK
	Done            Status = C.SEGNO_DONE        // the token ended generation, or a stop string is complete
	Cancelled       Status = C.SEGNO_CANCELLED   // nothing has changed
	Pending         Status = C.SEGNO_PENDING     // the prompt needs another step
	GrammarEnd      Status = C.SEGNO_GRAMMAR_END // the grammar lets no token follow
	InvalidArgument Status = C.SEGNO_E_INVALID_ARGUMENT
	NullPointer     Status = C.SEGNO_E_NULL_POINTER
	BufferTooSmall  Status = C.SEGNO_E_BUFFER_TOO_SMALL
	Busy            Status = C.SEGNO_E_BUSY
	Poisoned        Status = C.SEGNO_E_POISONED
	Panic           Status = C.SEGNO_E_PANIC
	Unsupported     Status = C.SEGNO_E_UNSUPPORTED
	OutOfMemory     Status = C.SEGNO_E_OUT_OF_MEMORY
	DeviceMemory    Status = C.SEGNO_E_DEVICE_MEMORY
	DeviceFailed    Status = C.SEGNO_E_DEVICE
	IO              Status = C.SEGNO_E_IO
	Format          Status = C.SEGNO_E_FORMAT
	ContextFull     Status = C.SEGNO_E_CONTEXT_FULL
	KVFull          Status = C.SEGNO_E_KV_FULL
	SeqFull         Status = C.SEGNO_E_SEQ_FULL
	NotFound        Status = C.SEGNO_E_NOT_FOUND
	Template        Status = C.SEGNO_E_TEMPLATE
	ABI             Status = C.SEGNO_E_ABI
	BadGrammar      Status = C.SEGNO_E_GRAMMAR
)

// String returns the status as the C header spells it, for example "SEGNO_E_KV_FULL".
func (s Status) String() string { return C.GoString(C.segno_status_str(C.segno_status(s))) }

// Error makes a status usable as a target of errors.Is.
func (s Status) Error() string { return s.String() }

// ErrClosed is returned by every call on an object that has been closed.
var ErrClosed = errors.New("segno: object is closed")

// Error is a failed call: its status, a line that a user can act on, and the index of the item at fault, -1 when there is none.
type Error struct {
	Status  Status
	Message string
	Item    int
}

// Error returns the message and the status.
func (e *Error) Error() string { return fmt.Sprintf("segno: %s (%s)", e.Message, e.Status) }

// Unwrap returns the status, for errors.Is.
func (e *Error) Unwrap() error { return e.Status }

// PanicError is a panic in a callback, caught before it could cross the library.
type PanicError struct {
	Value any
	Stack []byte
}

// Error tells what the callback panicked with.
func (e *PanicError) Error() string { return fmt.Sprintf("segno: panic in a callback: %v", e.Value) }

// take turns the answer of a C call into an error, and frees the error object.
func take(status C.segno_status, detail *C.segno_error) error {
	if status >= 0 {
		return nil
	}
	err := &Error{Status(status), C.GoString(C.segno_error_message(detail)), int(C.segno_error_item(detail))}
	C.segno_error_free(detail)
	return err
}

// fetch makes a call that fills a buffer: asks for the size, then fetches.
func fetch[T any](call func(buf *T, capacity C.size_t, size *C.size_t, err **C.segno_error) C.segno_status) ([]T, error) {
	var size C.size_t
	var detail *C.segno_error
	if err := take(call(nil, 0, &size, &detail), detail); err != nil || size == 0 {
		return nil, err
	}
	buf := make([]T, size)
	if err := take(call(&buf[0], size, &size, &detail), detail); err != nil {
		return nil, err
	}
	return buf[:size], nil
}
