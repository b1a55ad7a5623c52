//! Status codes: what every call answers with. Numbers are never used again for something else.

use super::guard::guard_value;
use crate::error::Error;
use std::ffi::c_char;

/// Outcome of a call: `SEGNO_OK`, a positive outcome, or a negative error. Test errors with `SEGNO_FAILED(status)`.
#[allow(non_camel_case_types)]
pub type segno_status = i32;

/// Success.
pub const SEGNO_OK: i32 = 0;
/// The sampled token ended generation, or a stop string is complete.
pub const SEGNO_DONE: i32 = 1;
/// The host cancelled the call; every sequence is at its length before it.
pub const SEGNO_CANCELLED: i32 = 2;
/// The sequence's prompt is not fully evaluated yet; call again.
pub const SEGNO_PENDING: i32 = 3;
/// The text of the sequence's grammar has ended and no token that ends generation may follow: no token was sampled, and the token is -1.
pub const SEGNO_GRAMMAR_END: i32 = 4;
/// A parameter has a value that the call does not accept.
pub const SEGNO_E_INVALID_ARGUMENT: i32 = -1;
/// A pointer that must not be NULL is NULL.
pub const SEGNO_E_NULL_POINTER: i32 = -2;
/// An output buffer is too small; the size needed has been written.
pub const SEGNO_E_BUFFER_TOO_SMALL: i32 = -3;
/// Another call on the same object is running, or a callback of its context on this thread.
pub const SEGNO_E_BUSY: i32 = -4;
/// An earlier call on this object answered `SEGNO_E_PANIC`; only freeing it is allowed.
pub const SEGNO_E_POISONED: i32 = -5;
/// A bug of the library was caught at its boundary; the process is unharmed.
pub const SEGNO_E_PANIC: i32 = -6;
/// This build, machine, or kind of file cannot do what was asked, or the process is a fork of one that uses the library.
pub const SEGNO_E_UNSUPPORTED: i32 = -7;
/// Host memory could not be allocated.
pub const SEGNO_E_OUT_OF_MEMORY: i32 = -8;
/// The device's memory does not suffice.
pub const SEGNO_E_DEVICE_MEMORY: i32 = -9;
/// The device failed.
pub const SEGNO_E_DEVICE: i32 = -10;
/// The operating system refused a file operation.
pub const SEGNO_E_IO: i32 = -11;
/// The model file breaks its format.
pub const SEGNO_E_FORMAT: i32 = -12;
/// The sequence has reached the model's context length.
pub const SEGNO_E_CONTEXT_FULL: i32 = -13;
/// The session's KV pool has no page left; close or truncate another sequence.
pub const SEGNO_E_KV_FULL: i32 = -14;
/// `max_seqs` sequences are open.
pub const SEGNO_E_SEQ_FULL: i32 = -15;
/// There is nothing of that name, id or index.
pub const SEGNO_E_NOT_FOUND: i32 = -16;
/// A chat template could not be compiled or rendered.
pub const SEGNO_E_TEMPLATE: i32 = -17;
/// The host was compiled against a header of another ABI number.
pub const SEGNO_E_ABI: i32 = -18;
/// A grammar could not be compiled, or takes more than its limits at some text.
pub const SEGNO_E_GRAMMAR: i32 = -19;

/// How many error codes there are: they are -1, -2 and so on.
pub(super) const ERROR_CODES: usize = -SEGNO_E_GRAMMAR as usize;

/// The code that stands for `error`.
pub(super) fn status_of(error: &Error) -> segno_status {
    match error {
        Error::InvalidArgument(_) => SEGNO_E_INVALID_ARGUMENT,
        Error::NullPointer(_) => SEGNO_E_NULL_POINTER,
        Error::BufferTooSmall { .. } => SEGNO_E_BUFFER_TOO_SMALL,
        Error::Busy(_) | Error::Lent(_) | Error::InCallback => SEGNO_E_BUSY,
        Error::Poisoned(_) => SEGNO_E_POISONED,
        Error::Panic(_) => SEGNO_E_PANIC,
        Error::Unsupported(_) | Error::Forked { .. } => SEGNO_E_UNSUPPORTED,
        Error::OutOfMemory { .. } | Error::HostMemory { .. } => SEGNO_E_OUT_OF_MEMORY,
        Error::DeviceMemory { .. } => SEGNO_E_DEVICE_MEMORY,
        Error::Device(_) => SEGNO_E_DEVICE,
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory => SEGNO_E_OUT_OF_MEMORY,
        Error::Io { .. } | Error::Write { .. } | Error::Host(_) => SEGNO_E_IO,
        Error::Format(_) | Error::Saved(_) | Error::Metadata { .. } | Error::Tensor { .. } => SEGNO_E_FORMAT,
        Error::ContextFull { .. } | Error::ConversationFull { .. } => SEGNO_E_CONTEXT_FULL,
        Error::KvFull { .. } => SEGNO_E_KV_FULL,
        Error::SeqFull { .. } => SEGNO_E_SEQ_FULL,
        Error::NotFound(_) => SEGNO_E_NOT_FOUND,
        Error::Template(_) => SEGNO_E_TEMPLATE,
        Error::Abi { .. } => SEGNO_E_ABI,
        Error::Grammar(_) => SEGNO_E_GRAMMAR,
        Error::Cancelled => SEGNO_CANCELLED,
    }
}

/// The name of a status code, for example "SEGNO_E_KV_FULL".
///
/// Returns a static string, "unknown status" for a number that this library does not use; never NULL. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_status_str(code: segno_status) -> *const c_char {
    guard_value(c"unknown status".as_ptr(), || name_of(code).as_ptr())
}

fn name_of(code: segno_status) -> &'static std::ffi::CStr {
    match code {
        SEGNO_OK => c"SEGNO_OK",
        SEGNO_DONE => c"SEGNO_DONE",
        SEGNO_CANCELLED => c"SEGNO_CANCELLED",
        SEGNO_PENDING => c"SEGNO_PENDING",
        SEGNO_GRAMMAR_END => c"SEGNO_GRAMMAR_END",
        SEGNO_E_INVALID_ARGUMENT => c"SEGNO_E_INVALID_ARGUMENT",
        SEGNO_E_NULL_POINTER => c"SEGNO_E_NULL_POINTER",
        SEGNO_E_BUFFER_TOO_SMALL => c"SEGNO_E_BUFFER_TOO_SMALL",
        SEGNO_E_BUSY => c"SEGNO_E_BUSY",
        SEGNO_E_POISONED => c"SEGNO_E_POISONED",
        SEGNO_E_PANIC => c"SEGNO_E_PANIC",
        SEGNO_E_UNSUPPORTED => c"SEGNO_E_UNSUPPORTED",
        SEGNO_E_OUT_OF_MEMORY => c"SEGNO_E_OUT_OF_MEMORY",
        SEGNO_E_DEVICE_MEMORY => c"SEGNO_E_DEVICE_MEMORY",
        SEGNO_E_DEVICE => c"SEGNO_E_DEVICE",
        SEGNO_E_IO => c"SEGNO_E_IO",
        SEGNO_E_FORMAT => c"SEGNO_E_FORMAT",
        SEGNO_E_CONTEXT_FULL => c"SEGNO_E_CONTEXT_FULL",
        SEGNO_E_KV_FULL => c"SEGNO_E_KV_FULL",
        SEGNO_E_SEQ_FULL => c"SEGNO_E_SEQ_FULL",
        SEGNO_E_NOT_FOUND => c"SEGNO_E_NOT_FOUND",
        SEGNO_E_TEMPLATE => c"SEGNO_E_TEMPLATE",
        SEGNO_E_ABI => c"SEGNO_E_ABI",
        SEGNO_E_GRAMMAR => c"SEGNO_E_GRAMMAR",
        _ => c"unknown status",
    }
}
