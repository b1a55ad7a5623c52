package segno

// #include <segno.h>
import "C"

import (
	"context"
	"errors"
	"iter"
	"runtime"
)

// Step is the outcome of one step of one sequence. Token is -1 unless Status is OK or Done.
type Step struct {
	Token  int32
	Status Status
	Err    error // why the item failed; nil otherwise
}

// Decode evaluates what the sequence lacks, then samples a token and appends it.
func (q *Sequence) Decode(ctx context.Context) (Step, error) {
	token := C.int32_t(-1)
	status, err := q.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_decode_step(handle, q.id, &token, err)
	})
	if err != nil {
		return Step{-1, status, err}, err
	}
	return Step{int32(token), status, nil}, nil
}

// DecodeMany does the same and, where the session drafts, gives all tokens that the pass has settled, one at least, as many as tokens has room for. It
// returns how many it has written, and the status of the last; what is left over comes with later calls.
func (q *Sequence) DecodeMany(ctx context.Context, tokens []int32) (int, Status, error) {
	if len(tokens) == 0 {
		return 0, InvalidArgument, &Error{InvalidArgument, "room for a token is needed", -1}
	}
	var count C.size_t
	status, err := q.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		return C.segno_decode_many(handle, q.id, ids(tokens), C.size_t(len(tokens)), &count, err)
	})
	return int(count), status, err
}

// DecodeBatch advances every sequence by one step, in one pass, and writes what became of each to steps, which must be as long. The error
// is that of the call as a whole: a refused or cancelled one has advanced no sequence.
func (s *Session) DecodeBatch(ctx context.Context, seqs []*Sequence, steps []Step) error {
	if len(seqs) != len(steps) {
		return &Error{InvalidArgument, "as many steps as sequences are needed", -1}
	}
	if err := s.check(seqs); err != nil {
		return err
	}
	defer runtime.KeepAlive(seqs)
	_, err := s.call(ctx, func(handle *C.segno_session, err **C.segno_error) C.segno_status {
		core := s.core
		core.list(seqs)
		if len(seqs) == 0 {
			return C.SEGNO_OK
		}
		status := C.segno_decode_batch(handle, &core.seqs[0], C.size_t(len(seqs)), &core.tokens[0], &core.statuses[0], err)
		core.read(steps)
		return status
	})
	return blame(err, steps)
}

// check refuses sequences that are no open ones of the session.
func (s *Session) check(seqs []*Sequence) error {
	for _, q := range seqs {
		if q.session != s {
			return &Error{InvalidArgument, "a sequence of another session", -1}
		}
		if q.closed.Load() {
			return ErrClosed
		}
	}
	return nil
}

// The status of an item that a call has not come to.
const untouched = -1 << 31

// list makes the lists of a step of these sequences.
func (core *sessionCore) list(seqs []*Sequence) {
	core.seqs, core.tokens, core.statuses = core.seqs[:0], core.tokens[:0], core.statuses[:0]
	for _, q := range seqs {
		core.seqs, core.tokens, core.statuses = append(core.seqs, q.id), append(core.tokens, -1), append(core.statuses, untouched)
	}
}

// read tells what became of each item of the step.
func (core *sessionCore) read(steps []Step) {
	for i := range steps {
		steps[i] = Step{int32(core.tokens[i]), Status(core.statuses[i]), nil}
		if core.statuses[i] < 0 {
			steps[i].Err = steps[i].Status
		}
	}
}

// blame gives the error of a step to the item that it is about; what is left is the error of the call as a whole.
func blame(err error, steps []Step) error {
	var failed *Error
	if errors.As(err, &failed) && len(steps) > 0 && steps[0].Status != untouched {
		// The message is that of the first item that failed.
		if failed.Item >= 0 && failed.Item < len(steps) {
			steps[failed.Item].Err = failed
		}
		return nil
	}
	return err
}

// GenerateOptions say what Generate shows and when it ends; the zero value goes on until the model ends.
type GenerateOptions struct {
	MaxTokens int      // 0: no limit
	Stop      []string // texts that end generation; they are never given out
	Special   bool     // show special tokens by their names
}

// Piece is one token and the whole characters that it released. Text that was held back comes last, with the token -1.
type Piece struct {
	Token int32
	Text  string
}

// Generate returns an iterator over the tokens that follow, with their text. It ends with the token that ends generation, a complete stop
// string, or the limit; an error, that of a cancelled ctx included, comes as its last value. The model must still be open.
func (q *Sequence) Generate(ctx context.Context, opts GenerateOptions) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		text, err := q.session.model.NewText(&TextOptions{opts.Special, opts.Stop})
		if err != nil {
			yield(Piece{Token: -1}, err)
			return
		}
		defer text.Close()
		going, failed := q.generate(ctx, opts.MaxTokens, text, yield)
		if !going {
			return
		}
		rest, _, err := text.Flush()
		if rest != "" && !yield(Piece{-1, rest}, nil) {
			return
		}
		if failed == nil {
			failed = err
		}
		if failed != nil {
			yield(Piece{Token: -1}, failed)
		}
	}
}

// generate yields pieces until generation ends; going is false when the loop was left.
func (q *Sequence) generate(ctx context.Context, limit int, text *Text, yield func(Piece, error) bool) (going bool, err error) {
	for count := 0; limit == 0 || count < limit; {
		step, err := q.Decode(ctx)
		if err != nil {
			return true, err
		}
		if step.Status == Pending {
			continue
		}
		if step.Status == GrammarEnd {
			break
		}
		count++
		words, stopped, err := text.Push(step.Token)
		if err != nil {
			return true, err
		}
		if !yield(Piece{step.Token, words}, nil) {
			return false, nil
		}
		if stopped || step.Status == Done {
			break
		}
	}
	return true, nil
}
