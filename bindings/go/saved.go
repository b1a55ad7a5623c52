package segno

/*
#include <stdlib.h>
#include <segno.h>

extern int32_t segnoGoWrite(void *user, void *data, size_t len);
extern size_t segnoGoRead(void *user, void *data, size_t len);

static int32_t segno_go_write(void *user, const void *data, size_t len)
{
	return segnoGoWrite(user, (void *)data, len);
}

static segno_status segno_go_save(segno_session *session, int32_t seq, uintptr_t user, segno_error **err)
{
	return segno_seq_save(session, seq, segno_go_write, (void *)user, err);
}

static segno_status segno_go_restore(segno_session *session, uintptr_t user, const segno_sampler_opts *opts, int32_t *seq,
	segno_error **err)
{
	return segno_seq_restore(session, segnoGoRead, (void *)user, opts, seq, err);
}
*/
import "C"

import (
	"context"
	"io"
	"runtime/cgo"
	"unsafe"
)

// Save writes all that [Session.Restore] needs to w: the tokens, their keys and values, and how the sequence draws. The sequence stays as it is, and
// must not follow a grammar. An error of w comes back as it is; w must not call the session.
func (q *Sequence) Save(ctx context.Context, w io.Writer) error {
	t := &transfer{writer: w}
	user := cgo.NewHandle(t)
	defer user.Delete()
	_, err := q.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_go_save(handle, q.id, C.uintptr_t(user), err)
	})
	return t.cause(err)
}

// SaveFile writes the same to a file, which appears, or takes the place of another, when it is whole.
func (q *Sequence) SaveFile(ctx context.Context, path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	_, err := q.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_seq_save_file(handle, q.id, name, err)
	})
	return err
}

// Restore opens a sequence as [Sequence.Save] has written it, of a session of the same model and KV type, and reads no byte behind its end. Nil opts go
// on as it was, with its seed. What is damaged, or belongs to another model, is refused. An error of r comes back as it is.
func (s *Session) Restore(ctx context.Context, r io.Reader, opts *SamplerOptions) (*Sequence, error) {
	t := &transfer{reader: r}
	user := cgo.NewHandle(t)
	defer user.Delete()
	q, err := s.add(ctx, opts, func(handle *C.segno_session, c *C.segno_sampler_opts, id *C.int32_t, err **C.segno_error) C.segno_status {
		return C.segno_go_restore(handle, C.uintptr_t(user), c, id, err)
	})
	return q, t.cause(err)
}

// RestoreFile opens a sequence that [Sequence.SaveFile] has written.
func (s *Session) RestoreFile(ctx context.Context, path string, opts *SamplerOptions) (*Sequence, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	return s.add(ctx, opts, func(handle *C.segno_session, c *C.segno_sampler_opts, id *C.int32_t, err **C.segno_error) C.segno_status {
		return C.segno_seq_restore_file(handle, name, c, id, err)
	})
}
