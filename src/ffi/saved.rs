//! Saved sequences: given to a host's function or a file, and read from one.

use super::argument::{self, Out};
use super::error::segno_error;
use super::seq::{sampler, segno_sampler_opts};
use super::session::{segno_session, with_session};
use super::status::{SEGNO_OK, segno_status};
use crate::engine::Session;
use crate::error::{Error, Result};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// Takes `len` bytes at `data`, which are gone when it returns; a non-zero result ends the call with IO. Called on the thread of the call, with a
/// page of the cache or a megabyte at a time. Must not unwind. Calls from inside it on the context or what was made from it answer BUSY.
#[allow(non_camel_case_types)]
pub type segno_write_fn = Option<unsafe extern "C" fn(user: *mut c_void, data: *const c_void, len: usize) -> i32>;

/// Fills up to `len` bytes at `data` and returns how many; 0 is the end, or a failure of the host's. Else as `segno_write_fn`.
#[allow(non_camel_case_types)]
pub type segno_read_fn = Option<unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, len: usize) -> usize>;

/// Gives out a sequence: its tokens, its keys and values, and how it draws with its seed. The sequence stays as it is. What was given out goes on
/// by `segno_seq_restore` in any session of the same model and `kv_type`, in another process, on another machine or device, and gives the same
/// tokens as if it had never stopped, on the same kind of device. The form has a version, a hash of the model's tensors and a checksum of
/// everything; per token it takes what the KV cache does. Of a grammar that the sequence follows, what it was compiled of is saved, and how far the
/// sequence has come in it. Marks go along, each with its state. Of adapters what each is recognized by is saved, a hash of its file's tensors and
/// its alpha, and its scale, not its numbers.
///
/// `write` gets the bytes, `user` is its first argument. Codes: NULL_POINTER, NOT_FOUND, IO (`write` refused), GRAMMAR (the sequence's cannot go on),
/// UNSUPPORTED (a text of its grammar, the chat template for example, of more than 1 MiB), OUT_OF_MEMORY, DEVICE, BUSY, POISONED, and the outcome
/// `SEGNO_CANCELLED`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_save(
    session: *mut segno_session,
    seq: i32,
    write: segno_write_fn,
    user: *mut c_void,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let write = write.ok_or(Error::NullPointer("write"))?;
        let context = Arc::clone(session.model().context());
        session.save(seq, cancel, &mut |bytes| context.calling(|| put(write, user, bytes)))?;
        Ok(SEGNO_OK)
    })
}

type Write = unsafe extern "C" fn(user: *mut c_void, data: *const c_void, len: usize) -> i32;
type Read = unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, len: usize) -> usize;

fn put(write: Write, user: *mut c_void, bytes: &[u8]) -> Result<()> {
    // SAFETY: the host's function takes its own argument and bytes to read, as the header says.
    match unsafe { write(user, bytes.as_ptr().cast(), bytes.len()) } {
        0 => Ok(()),
        number => Err(Error::Host(format!("`write` returned {number} for {} bytes", bytes.len()))),
    }
}

fn get(read: Read, user: *mut c_void, bytes: &mut [u8]) -> Result<usize> {
    // SAFETY: the host's function takes its own argument and room for so many bytes, as the header says.
    let count = unsafe { read(user, bytes.as_mut_ptr().cast(), bytes.len()) };
    if count > bytes.len() {
        return Err(Error::Host(format!("`read` tells of {count} bytes where {} were wanted", bytes.len())));
    }
    Ok(count)
}

/// Opens a sequence as `segno_seq_save` has given it out. What belongs to another model or type of cache, or is damaged in a single bit, is refused,
/// and then there is no sequence. Reads no byte behind its end.
///
/// `read` gives the bytes, `user` is its first argument. `opts`: how it draws from now on; NULL goes on as it was, with its seed. `seq` receives
/// the id. Layers that see a window keep what this session has room for; where the saved sequence has less than they need (`max_prompt` was
/// smaller there), the tokens are evaluated anew. Marks take the room that `max_marks` has left, the newest first. A grammar is compiled again,
/// within the limits of `segno_grammar_create`. The sequence has the adapters again that it had, found among those that are loaded for the model (not
/// freed, or still had by a sequence); room for their ranks is made as `segno_seq_adapters_set` makes it.
///
/// Codes: NULL_POINTER, INVALID_ARGUMENT (another model or type of cache, an option out of range), NOT_FOUND (an adapter that is not loaded: the
/// message has its name and hash, and nothing behind them was read), FORMAT (damaged, ends early, or has a grammar that cannot be compiled),
/// UNSUPPORTED (of another form), IO (`read` tells more than it was asked for), SEQ_FULL, KV_FULL, OUT_OF_MEMORY, DEVICE_MEMORY, DEVICE, BUSY,
/// POISONED, and the outcome `SEGNO_CANCELLED`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_restore(
    session: *mut segno_session,
    read: segno_read_fn,
    user: *mut c_void,
    opts: *const segno_sampler_opts,
    seq: *mut i32,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let read = read.ok_or(Error::NullPointer("read"))?;
        let (out, sampler) = (Out::new(seq, "seq")?, chosen(opts)?);
        let context = Arc::clone(session.model().context());
        let id = session.restore(sampler, cancel, &mut |bytes| context.calling(|| get(read, user, bytes)))?;
        out.set(id);
        Ok(SEGNO_OK)
    })
}

/// As `segno_seq_save`, to a file.
///
/// `path`: of the file, NUL-terminated UTF-8, in a folder that exists. It appears, or takes the place of another, when all is on the disk; what
/// fails or is cancelled leaves nothing behind. Codes: those of `segno_seq_save`, and INVALID_ARGUMENT where `path` is a folder. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_save_file(
    session: *mut segno_session,
    seq: i32,
    path: *const c_char,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        session.save_file(seq, argument::path(path, "path")?, cancel)?;
        Ok(SEGNO_OK)
    })
}

/// As `segno_seq_restore`, from a file, which holds nothing else.
///
/// `path`: of the file, NUL-terminated UTF-8. Codes: those of `segno_seq_restore`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_restore_file(
    session: *mut segno_session,
    path: *const c_char,
    opts: *const segno_sampler_opts,
    seq: *mut i32,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session: &mut Session, cancel| {
        let (out, sampler) = (Out::new(seq, "seq")?, chosen(opts)?);
        out.set(session.restore_file(argument::path(path, "path")?, sampler, cancel)?);
        Ok(SEGNO_OK)
    })
}

/// The options of a host that has some.
fn chosen(opts: *const segno_sampler_opts) -> Result<Option<crate::sample::Options>> {
    if opts.is_null() { Ok(None) } else { sampler(opts).map(Some) }
}
