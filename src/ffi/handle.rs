//! C pointers to the objects of the engine: which Rust type stands behind each C name, and who owns it.
//!
//! A host holds the address of a head: a word that tells the kind of object, and a pointer to the object. The word is looked at before anything
//! else, and cleared when the object is freed, so that an object of another kind, a freed one, or a pointer into the middle of a head is an
//! error. That looking at a freed head is sound, its memory is never given back: freed heads queue up, and once more than [`KEPT`] of a kind do,
//! the one that was freed first serves a new object. From then on a pointer to the old object is one to the new. What is left to the
//! host is that a pointer which is a multiple of 64 leads to readable memory.
//!
//! The first object of a process fills the queues, so that later calls give back all that they take. Each head is an allocation of its own,
//! and no place of the library tells where those in use are: so tools that look for lost memory find objects that a host has lost.
//!
//! The C types are private zero-length structs; an object is reached through a shared reference only, so that a second thread
//! with the same pointer meets a lock and never an aliased `&mut`.

use crate::error::{Error, Result, checked, reserve};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Ctx,
    Model,
    Session,
    Text,
    Grammar,
    Error,
    Reply,
    Chat,
    Adapter,
}

/// The word of a freed head; those of the kinds count on from it. A number that no other memory holds but by the rarest accident.
const FREED: u64 = 0x9c5e_67e0_b1d3_4a00;
const KINDS: [Object; 9] = [
    Object::Ctx,
    Object::Model,
    Object::Session,
    Object::Text,
    Object::Grammar,
    Object::Error,
    Object::Reply,
    Object::Chat,
    Object::Adapter,
];

impl Object {
    /// The name of the C type behind `segno_`, and of the parameter.
    const fn name(self) -> &'static str {
        ["ctx", "model", "session", "text", "grammar", "error", "reply", "chat", "adapter"][self as usize]
    }

    const fn word(self) -> u64 {
        FREED + 1 + self as u64
    }
}

/// A C type that stands for a Rust type.
pub(super) trait Handle {
    /// What lies behind the pointer.
    type Target;
    /// Which kind of object it is.
    const KIND: Object;
    /// The parameter's name in messages.
    const NAME: &'static str = Self::KIND.name();
}

/// What a host's pointer leads to. So aligned, most pointers that are none of ours are known without looking at what they lead to.
#[repr(C, align(64))]
pub(super) struct Head {
    /// That of the kind, or [`FREED`].
    word: AtomicU64,
    /// The object; of a freed head the one that was freed next, NULL for none.
    object: AtomicPtr<()>,
}

impl Head {
    /// A head for an object that is there for good, and which [`disown`] must not get.
    pub(super) const fn of<H: Handle>(object: &'static H::Target) -> Head {
        let object = (&raw const *object).cast_mut().cast();
        Head { word: AtomicU64::new(H::KIND.word()), object: AtomicPtr::new(object) }
    }
}

/// Freed heads of a kind that wait before one of them is used again, and how many more there are from the start: 41 KiB for all kinds.
const KEPT: usize = 64;
const SPARE: usize = 8;

/// Freed heads, in the order of their freeing.
struct Queue {
    first: Option<&'static Head>,
    last: Option<&'static Head>,
    len: usize,
    /// Whether the heads of the start have been made.
    filled: bool,
}

static QUEUES: [Mutex<Queue>; KINDS.len()] =
    [const { Mutex::new(Queue { first: None, last: None, len: 0, filled: false }) }; KINDS.len()];
/// Whether all of them are filled.
static FILLED: AtomicBool = AtomicBool::new(false);

impl Queue {
    /// Makes the heads of the start. What was made before memory was refused stays.
    fn fill(&mut self) -> Result<()> {
        while !self.filled && self.len < KEPT + SPARE {
            self.push(new_head()?);
        }
        self.filled = true;
        Ok(())
    }

    fn push(&mut self, head: &'static Head) {
        head.object.store(null_mut(), Ordering::Relaxed);
        match self.last.replace(head) {
            Some(last) => last.object.store((&raw const *head).cast_mut().cast(), Ordering::Relaxed),
            None => self.first = Some(head),
        }
        self.len += 1;
    }

    /// The head that was freed first, once there are more than must wait.
    fn pop(&mut self) -> Option<&'static Head> {
        let first = self.first.filter(|_| self.len > KEPT)?;
        let next = first.object.load(Ordering::Relaxed).cast::<Head>();
        // SAFETY: the pointer of a queued head leads to the next, and heads live for good.
        self.first = unsafe { next.as_ref() };
        self.len -= 1;
        Some(first)
    }
}

fn queue(kind: Object) -> MutexGuard<'static, Queue> {
    QUEUES[kind as usize].lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_head() -> Result<&'static Head> {
    let mut one = reserve(1, "an object")?;
    one.push(Head { word: AtomicU64::new(FREED), object: AtomicPtr::new(null_mut()) });
    Ok(&one.leak()[0])
}

/// Makes a head for an object.
fn head_for<H: Handle>(object: *mut H::Target) -> Result<*mut H> {
    checked(H::NAME)?;
    if !FILLED.load(Ordering::Acquire) {
        KINDS.into_iter().try_for_each(|kind| queue(kind).fill())?;
        FILLED.store(true, Ordering::Release);
    }
    let head = queue(H::KIND).pop().map_or_else(new_head, Ok)?;
    head.object.store(object.cast(), Ordering::Relaxed);
    head.word.store(H::KIND.word(), Ordering::Release);
    Ok((&raw const *head).cast_mut().cast())
}

/// The head that `pointer` leads to, and the word in it.
fn look<H: Handle>(pointer: *const H) -> Result<(*const Head, u64)> {
    if pointer.is_null() {
        return Err(Error::NullPointer(H::NAME));
    }
    let head = pointer.cast::<Head>();
    if !head.is_aligned() {
        return Err(stranger::<H>());
    }
    // SAFETY: the header demands a pointer that the library gave out, which leads to a head for good. Of any other, memory that the
    // process has is read, and nothing beside the word until that has been recognized.
    let word = unsafe { AtomicU64::from_ptr((&raw const (*head).word).cast_mut().cast()) };
    Ok((head, word.load(Ordering::Acquire)))
}

/// Why a word is not that of the kind.
fn refusal<H: Handle>(word: u64) -> Error {
    let name = H::NAME;
    match KINDS.iter().find(|kind| kind.word() == word) {
        _ if word == FREED => Error::InvalidArgument(format!("`{name}` has been freed")),
        Some(kind) => Error::InvalidArgument(format!("`{name}` is a segno_{}, not a segno_{name}", kind.name())),
        None => stranger::<H>(),
    }
}

fn stranger<H: Handle>() -> Error {
    let name = H::NAME;
    Error::InvalidArgument(format!("`{name}` is no segno_{name}; pass the pointer that the library gave you"))
}

/// The object behind `pointer`.
fn target<H: Handle>(pointer: *const H) -> Result<*const H::Target> {
    let (head, word) = look(pointer)?;
    if word != H::KIND.word() {
        return Err(refusal::<H>(word));
    }
    // SAFETY: the word says that this is a head, and heads live for good.
    Ok(unsafe { &*head }.object.load(Ordering::Relaxed).cast::<H::Target>())
}

/// Takes the object from behind `pointer`, once; what is no object of the kind stays as it is.
fn take<H: Handle>(pointer: *mut H) -> Option<*mut H::Target> {
    let (head, word) = look(pointer.cast_const()).ok()?;
    if word != H::KIND.word() {
        return None;
    }
    // SAFETY: the word says that this is a head, and heads live for good.
    let head = unsafe { &*head };
    head.word.compare_exchange(H::KIND.word(), FREED, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    let object = head.object.load(Ordering::Relaxed).cast();
    queue(H::KIND).push(head);
    Some(object)
}

/// The object behind `pointer`, for the duration of a call.
pub(super) fn borrow<'a, H: Handle>(pointer: *const H) -> Result<&'a H::Target> {
    // SAFETY: the head's word says that the object is of this kind and has not been freed; that nobody frees it meanwhile, the header demands.
    target(pointer).map(|object| unsafe { &*object })
}

/// Gives an object to the host; [`disown`] takes it back. An error if a part of it lies in the reserve.
pub(super) fn own<H: Handle>(value: H::Target) -> Result<*mut H> {
    let object = Box::into_raw(Box::new(value));
    // SAFETY: the object came from a box just now, and no host has seen it.
    head_for(object).inspect_err(|_| drop(unsafe { Box::from_raw(object) }))
}

/// Takes an object back from the host; NULL and what is no object of the kind are nothing.
pub(super) fn disown<H: Handle>(pointer: *mut H) -> Option<Box<H::Target>> {
    // SAFETY: what lies behind a head of this kind came from `own`, and is taken once.
    take(pointer).map(|object| unsafe { Box::from_raw(object) })
}

/// Gives the host a share of an object; [`unshare`] takes it back. An error if a part of it lies in the reserve.
pub(super) fn share<H: Handle>(value: Arc<H::Target>) -> Result<*mut H> {
    let object = Arc::into_raw(value).cast_mut();
    // SAFETY: the object came from an `Arc` just now, and no host has seen it.
    head_for(object).inspect_err(|_| drop(unsafe { Arc::from_raw(object) }))
}

/// A share of our own in an object that the host holds a share of.
pub(super) fn share_of<H: Handle>(pointer: *const H) -> Result<Arc<H::Target>> {
    let target = target(pointer)?;
    // SAFETY: the pointer came from `share`, so the host's count keeps the object alive while ours is added.
    unsafe {
        Arc::increment_strong_count(target);
        Ok(Arc::from_raw(target))
    }
}

/// Takes the host's share back; NULL and what is no object of the kind are nothing.
pub(super) fn unshare<H: Handle>(pointer: *mut H) -> Option<Arc<H::Target>> {
    // SAFETY: what lies behind a head of this kind came from `share`, and is taken once.
    take(pointer).map(|object| unsafe { Arc::from_raw(object.cast_const()) })
}

#[cfg(test)]
mod tests {
    use super::super::error::segno_error;
    use super::super::text::segno_text;
    use super::*;
    use crate::engine::Failure;
    use std::sync::atomic::AtomicUsize;

    fn error() -> *mut segno_error {
        segno_error::allocate(Failure::from(Error::Cancelled))
    }

    #[test]
    fn a_freed_head_is_used_again_only_after_many_others_and_memory_stays_bounded() {
        // Objects of a kind that no other test here makes, as the queue belongs to the process.
        struct Probe;
        impl Handle for Probe {
            type Target = u32;
            const KIND: Object = Object::Text;
        }
        let first = own::<Probe>(7).unwrap();
        assert_eq!(disown(first).as_deref(), Some(&7));
        let mut seen = std::collections::HashSet::new();
        for count in 0..10 * KEPT {
            assert!(borrow(first.cast_const()).is_err() || count + 8 >= KEPT, "used again after {count}");
            let next = own::<Probe>(8).unwrap();
            seen.insert(next as usize);
            assert_eq!(disown(next).as_deref(), Some(&8));
        }
        // Those of the start serve, so that no object of these took memory for good.
        assert!(seen.len() <= KEPT + SPARE, "{} heads", seen.len());
    }

    #[test]
    fn an_object_that_two_threads_free_is_freed_once() {
        for _ in 0..if cfg!(miri) { 10 } else { 200 } {
            let (pointer, freed) = (error() as usize, AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        freed.fetch_add(disown(pointer as *mut segno_error).is_some().into(), Ordering::Relaxed)
                    });
                }
            });
            assert_eq!(freed.into_inner(), 1);
        }
    }

    #[test]
    fn what_is_no_object_of_the_kind_is_told_apart() {
        // Of a kind that the other tests free rarely, so that its head is not used again meanwhile.
        struct Probe;
        impl Handle for Probe {
            type Target = u32;
            const KIND: Object = Object::Model;
        }
        let model = own::<Probe>(7).unwrap();
        let message = |pointer: *const segno_text| borrow(pointer).err().unwrap().to_string();
        assert_eq!(message(model.cast()), "`text` is a segno_model, not a segno_text");
        for offset in [1, 8, 32, 63] {
            assert!(message(model.wrapping_byte_add(offset).cast()).starts_with("`text` is no segno_text;"));
        }
        #[repr(align(64))]
        struct Foreign([u64; 8]);
        let mut foreign = Foreign([1; 8]);
        assert!(message((&raw mut foreign).cast_const().cast()).starts_with("`text` is no segno_text;"));
        assert_eq!(foreign.0[0], 1);
        assert_eq!(disown(model).as_deref(), Some(&7));
        assert_eq!(message(model.cast()), "`text` has been freed");
        assert_eq!(message(std::ptr::null()), "`text` must not be NULL");
    }
}
