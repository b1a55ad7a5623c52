//! The one error type of the library.
//!
//! Every layer returns `Result<T>`; the C boundary turns an [`Error`] into a stable status code and a message. Messages are
//! one lower-case line that a user can act on, with the numbers. The functions below ask for memory in the way that can fail, and are
//! where a call that was refused memory elsewhere finds out (`memory`).

use crate::memory::{self, Backing};

/// Result of every fallible operation inside the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
    /// A step that was submitted to this object has not been polled to its end.
    #[error(
        "what was submitted to this {0} has not been polled to its end: call segno_session_poll or segno_chat_poll"
    )]
    Lent(&'static str),
    /// A callback of the host's called the context that it belongs to.
    #[error("a callback of this context is running on this thread: return from it first")]
    InCallback,
    /// The calling process is a fork of the one that the library's objects belong to.
    #[error(
        "this process is a fork of process {owner}, which uses the library: only that one can; call exec here, or fork before the first context is made"
    )]
    Forked {
        /// Id of the process that made the first context.
        owner: u32,
    },
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
    #[error("out of memory: {} for {what}", Bytes(*bytes))]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Size of the allocation that failed, in bytes.
        bytes: u64,
    },
    /// The system, or a limit of the process, does not have as much memory.
    #[error(
        "out of memory: {needed} bytes needed for {what}, {free} can be taken; ask for less, free other memory, or insist with SEGNO_CTX_OVERCOMMIT"
    )]
    HostMemory {
        /// What the memory is for.
        what: &'static str,
        /// Bytes that the call needs.
        needed: u64,
        /// Bytes that can be taken now.
        free: u64,
    },
    /// The operating system refused a file operation.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file concerned.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The operating system refused to write a file.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file concerned.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A function of the host's refused to take or to give bytes.
    #[error("{0}")]
    Host(String),
    /// A model file breaks its format.
    #[error("bad model file: {0}")]
    Format(String),
    /// A saved sequence is damaged, or is none.
    #[error("bad saved sequence: {0}")]
    Saved(String),
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
    #[error("sequence of {} cannot grow by {more}: the model's context holds {limit}", Count(*length, "token"))]
    ContextFull {
        /// Tokens of the sequence now.
        length: usize,
        /// Tokens that the call would add.
        more: usize,
        /// The model's context length.
        limit: usize,
    },
    /// A conversation has as many tokens as are there for it.
    #[error(
        "the conversation takes {needed} tokens, and {limit} are there for it: cut it back, or create it with SEGNO_CHAT_FORGET"
    )]
    ConversationFull {
        /// Tokens that it would have.
        needed: usize,
        /// Tokens that it can have.
        limit: usize,
    },
    /// The KV pool has too few free pages.
    #[error(
        "kv pool is full: {} needed, {free} of {total} free; close or truncate a sequence, or raise kv_tokens",
        Count(*needed, "more page")
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
    #[error("this session has its {} open; close one, or raise max_seqs", Count(*limit, "sequence"))]
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
    /// A grammar could not be compiled, or takes too much at some text.
    #[error("{0}")]
    Grammar(String),
    /// The host was compiled against another ABI.
    #[error("header has abi version {header}, library has {library}; rebuild against this library's header")]
    Abi {
        /// Number that the host passed.
        header: u32,
        /// Number of this library.
        library: u32,
    },
    /// The device's memory does not suffice.
    #[error("out of device memory: {} needed, {free} free", Bytes(*needed))]
    DeviceMemory {
        /// Bytes that the call needs.
        needed: u64,
        /// Bytes free on the device.
        free: u64,
    },
    /// The device failed.
    #[error("device failure: {0}")]
    Device(String),
    /// The host raised the cancel flag, or its progress callback asked to stop. An outcome, not a failure.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// A failed reservation of `bytes` for `what`.
    pub fn out_of_memory(what: &'static str, bytes: usize) -> Self {
        Error::OutOfMemory { what, bytes: bytes as u64 }
    }
}

/// An error if this call was refused memory that had no way to fail, and came from the reserve: the call must end now.
pub fn checked(what: &'static str) -> Result<()> {
    memory::refused().map_or(Ok(()), |bytes| Err(Error::out_of_memory(what, bytes)))
}

/// Memory for `bytes` that code takes which has no way to fail, set aside until it is dropped.
pub fn backed(bytes: usize, what: &'static str) -> Result<Backing> {
    checked(what)?;
    Backing::new(bytes).ok_or_else(|| Error::out_of_memory(what, bytes))
}

/// Lets a container of any kind grow to `bytes`, by `ask`, which can fail.
pub fn room<E>(bytes: usize, what: &'static str, ask: impl FnOnce() -> Result<(), E>) -> Result<()> {
    checked(what)?;
    memory::fallible(ask).map_err(|_| Error::out_of_memory(what, bytes))
}

/// An empty vector with room for `len` elements, or the error that names what the memory was for.
pub fn reserve<T>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let mut values = Vec::new();
    room(len.saturating_mul(size_of::<T>()), what, || values.try_reserve_exact(len))?;
    Ok(values)
}

/// A vector of `len` copies of `value`, or the error that names what the memory was for.
pub fn filled<T: Clone>(len: usize, value: T, what: &'static str) -> Result<Vec<T>> {
    let mut values = reserve(len, what)?;
    values.resize(len, value);
    Ok(values)
}

/// Makes room for `more` elements behind those of `values`.
#[inline]
pub fn grow<T>(values: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    if values.capacity() - values.len() >= more {
        return checked(what);
    }
    let bytes = values.len().saturating_add(more).saturating_mul(size_of::<T>());
    room(bytes, what, || values.try_reserve(more))
}

/// Appends `value`.
#[inline]
pub fn push<T>(values: &mut Vec<T>, value: T, what: &'static str) -> Result<()> {
    grow(values, 1, what)?;
    values.push(value);
    Ok(())
}

/// Appends copies of `more`.
pub fn extend<T: Clone>(values: &mut Vec<T>, more: &[T], what: &'static str) -> Result<()> {
    grow(values, more.len(), what)?;
    values.extend_from_slice(more);
    Ok(())
}

/// A copy of `values`.
pub fn copied<T: Clone>(values: &[T], what: &'static str) -> Result<Vec<T>> {
    let mut copy = reserve(values.len(), what)?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// All values of an iterator that need not know their number.
pub fn collected<T>(values: impl IntoIterator<Item = T>, what: &'static str) -> Result<Vec<T>> {
    let values = values.into_iter();
    let mut all = reserve(values.size_hint().0, what)?;
    values.into_iter().try_for_each(|value| push(&mut all, value, what))?;
    Ok(all)
}

/// Makes room for `more` bytes behind those of `text`.
pub fn grow_text(text: &mut String, more: usize, what: &'static str) -> Result<()> {
    room(text.len().saturating_add(more), what, || text.try_reserve(more))
}

/// A copy of `text`.
pub fn copied_text(text: &str, what: &'static str) -> Result<String> {
    let mut copy = String::new();
    room(text.len(), what, || copy.try_reserve_exact(text.len()))?;
    copy.push_str(text);
    Ok(copy)
}

/// A number of things as a message tells it: "1 thread", "2 threads".
pub struct Count(pub usize, pub &'static str);

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// Bytes as a message tells them; the highest number stands for what cannot be counted.
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("more bytes than there are addresses"),
            bytes => write!(f, "{bytes} byte{}", if bytes == 1 { "" } else { "s" }),
        }
    }
}

/// Hears how far something has come, 0 to 1; an error ends it.
pub type Progress<'a> = dyn FnMut(f32) -> Result<()> + 'a;

/// The progress of a part that leads from `from` to `to` of the whole.
pub fn share<'a>(progress: &'a mut Progress<'_>, from: f32, to: f32) -> impl FnMut(f32) -> Result<()> + 'a {
    // Rounding must not lead beyond the end, where the next part begins.
    move |done| progress(if done < 1.0 { (from + done * (to - from)).min(to) } else { to })
}

/// What a file or a host has written, as a message shows it: its beginning if it is long.
pub struct Excerpt<'a>(pub &'a [u8]);

/// Bytes of the longest text that a message shows whole.
const EXCERPT_BYTES: usize = 200;

impl std::fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(EXCERPT_BYTES)];
        f.write_str(&String::from_utf8_lossy(shown))?;
        f.write_str(if shown.len() < self.0.len() { " [...]" } else { "" })
    }
}
