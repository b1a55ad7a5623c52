//! The one error type of the library and its stable status codes.
//!
//! Every layer returns `Result<T>`; the C boundary turns an [`Error`] into a status code and a message. Messages are
//! one lower-case line that a user can act on, with the numbers. Nothing here depends on any other module.

/// Result of every fallible operation inside the library.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, with the data that a user needs to act on it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter has a value that no call accepts.
    #[error("{0}")]
    InvalidArgument(String),
    /// A pointer parameter that must not be NULL is NULL.
    #[error("`{0}` must not be NULL")]
    NullPointer(&'static str),
    /// An output buffer is smaller than the result; the size needed is reported through the size parameter too.
    #[error("buffer holds {given}, {needed} needed")]
    BufferTooSmall {
        /// Elements (bytes, tokens or floats) that the result has.
        needed: usize,
        /// Elements that the caller's buffer holds.
        given: usize,
    },
    /// Another thread is inside a call on the same object.
    #[error("another call on this {0} is running")]
    Busy(&'static str),
    /// An earlier call on this object panicked; only freeing it is allowed.
    #[error("an earlier call on this {0} failed inside the library; free it")]
    Poisoned(&'static str),
    /// A bug of the library: a panic was caught at the boundary.
    #[error("internal failure: {0}")]
    Panic(String),
    /// A valid request that this build, machine, model or file type cannot serve.
    #[error("{0}")]
    Unsupported(String),
    /// Host memory could not be allocated.
    #[error("out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Size of the allocation that failed, in bytes.
        bytes: u64,
    },
    /// The operating system refused a file operation.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file concerned.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A model file breaks its format.
    #[error("bad model file: {0}")]
    Format(String),
    /// A metadata entry is absent, of the wrong type, or out of range.
    #[error("bad model file: metadata `{key}` {problem}")]
    Metadata {
        /// The key in the file.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor has another shape than the model needs.
    #[error("bad model file: tensor `{name}` has shape {found:?}, expected {expected:?}")]
    Tensor {
        /// Name in the file.
        name: String,
        /// Shape that the architecture needs, columns first.
        expected: Vec<u64>,
        /// Shape in the file, columns first.
        found: Vec<u64>,
    },
    /// The sequence has reached the model's own context length.
    #[error("sequence of {length} tokens cannot grow by {more}: the model's context holds {limit}")]
    ContextFull {
        /// Tokens of the sequence now.
        length: usize,
        /// Tokens that the call would add.
        more: usize,
        /// The model's context length.
        limit: usize,
    },
    /// The KV pool has too few free pages.
    #[error(
        "kv pool is full: {needed} more pages needed, {free} of {total} free; close or truncate a sequence, or raise kv_tokens"
    )]
    KvFull {
        /// Pages that the call needs.
        needed: usize,
        /// Pages free now.
        free: usize,
        /// Pages of the pool.
        total: usize,
    },
    /// The session has no free sequence slot.
    #[error("all {limit} sequences of this session are open; close one, or raise max_seqs")]
    SeqFull {
        /// The session's `max_seqs`.
        limit: usize,
    },
    /// A name or id that does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A chat template could not be compiled or rendered.
    #[error("{0}")]
    Template(String),
    /// The host was compiled against another ABI.
    #[error("header has abi version {header}, library has {library}; rebuild against this library's header")]
    Abi {
        /// Number that the host passed.
        header: u32,
        /// Number of this library.
        library: u32,
    },
    /// The device failed.
    #[error("device failure: {0}")]
    Device(String),
    /// The host raised the cancel flag, or its progress callback asked to stop. An outcome, not a failure.
    #[error("cancelled")]
    Cancelled,
}

/// Success.
pub const OK: i32 = 0;
/// The sampled token ended generation, or a stop string is complete.
pub const DONE: i32 = 1;
/// The call was cancelled by the host.
pub const CANCELLED: i32 = 2;
/// The sequence's prompt is not fully evaluated yet.
pub const PENDING: i32 = 3;
/// See [`Error::InvalidArgument`].
pub const INVALID_ARGUMENT: i32 = -1;
/// See [`Error::NullPointer`].
pub const NULL_POINTER: i32 = -2;
/// See [`Error::BufferTooSmall`].
pub const BUFFER_TOO_SMALL: i32 = -3;
/// See [`Error::Busy`].
pub const BUSY: i32 = -4;
/// See [`Error::Poisoned`].
pub const POISONED: i32 = -5;
/// See [`Error::Panic`].
pub const PANIC: i32 = -6;
/// See [`Error::Unsupported`].
pub const UNSUPPORTED: i32 = -7;
/// See [`Error::OutOfMemory`].
pub const OUT_OF_MEMORY: i32 = -8;
/// The device's memory does not suffice.
pub const DEVICE_MEMORY: i32 = -9;
/// See [`Error::Device`].
pub const DEVICE: i32 = -10;
/// See [`Error::Io`].
pub const IO: i32 = -11;
/// See [`Error::Format`].
pub const FORMAT: i32 = -12;
/// See [`Error::ContextFull`].
pub const CONTEXT_FULL: i32 = -13;
/// See [`Error::KvFull`].
pub const KV_FULL: i32 = -14;
/// See [`Error::SeqFull`].
pub const SEQ_FULL: i32 = -15;
/// See [`Error::NotFound`].
pub const NOT_FOUND: i32 = -16;
/// See [`Error::Template`].
pub const TEMPLATE: i32 = -17;
/// See [`Error::Abi`].
pub const ABI: i32 = -18;

impl Error {
    /// The status code that stands for this error in the C API.
    pub fn status(&self) -> i32 {
        match self {
            Error::InvalidArgument(_) => INVALID_ARGUMENT,
            Error::NullPointer(_) => NULL_POINTER,
            Error::BufferTooSmall { .. } => BUFFER_TOO_SMALL,
            Error::Busy(_) => BUSY,
            Error::Poisoned(_) => POISONED,
            Error::Panic(_) => PANIC,
            Error::Unsupported(_) => UNSUPPORTED,
            Error::OutOfMemory { .. } => OUT_OF_MEMORY,
            Error::Io { .. } => IO,
            Error::Format(_) | Error::Metadata { .. } | Error::Tensor { .. } => FORMAT,
            Error::ContextFull { .. } => CONTEXT_FULL,
            Error::KvFull { .. } => KV_FULL,
            Error::SeqFull { .. } => SEQ_FULL,
            Error::NotFound(_) => NOT_FOUND,
            Error::Template(_) => TEMPLATE,
            Error::Abi { .. } => ABI,
            Error::Device(_) => DEVICE,
            Error::Cancelled => CANCELLED,
        }
    }

    /// A failed reservation of `bytes` for `what`.
    pub fn out_of_memory(what: &'static str, bytes: usize) -> Self {
        Error::OutOfMemory { what, bytes: bytes as u64 }
    }
}

/// An empty vector with room for `len` elements, or the error that names what the memory was for.
pub fn reserve<T>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| Error::out_of_memory(what, len.saturating_mul(size_of::<T>())))?;
    Ok(values)
}

/// A vector of `len` copies of `value`, or the error that names what the memory was for.
pub fn filled<T: Clone>(len: usize, value: T, what: &'static str) -> Result<Vec<T>> {
    let mut values = reserve(len, what)?;
    values.resize(len, value);
    Ok(values)
}
