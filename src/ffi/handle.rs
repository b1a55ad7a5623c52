//! C pointers to the objects of the engine: which Rust type stands behind each C name, and who owns it.
//!
//! The C types are private zero-length structs; an object is reached through a shared reference only, so that a second thread
//! with the same pointer meets a lock and never an aliased `&mut`.

use crate::error::{Error, Result};
use std::sync::Arc;

/// A C type that stands for a Rust type.
pub(super) trait Handle {
    /// What lies behind the pointer.
    type Target;
    /// The parameter's name in messages.
    const NAME: &'static str;
}

/// The object behind `pointer`, for the duration of a call.
pub(super) fn borrow<'a, H: Handle>(pointer: *const H) -> Result<&'a H::Target> {
    // SAFETY: a non-NULL pointer came from `own` or `share` and has not been freed, as the header demands.
    unsafe { pointer.cast::<H::Target>().as_ref() }.ok_or(Error::NullPointer(H::NAME))
}

/// Gives an object to the host; [`disown`] takes it back.
pub(super) fn own<H: Handle>(value: H::Target) -> *mut H {
    Box::into_raw(Box::new(value)).cast()
}

/// Takes an object back from the host; NULL is nothing.
pub(super) fn disown<H: Handle>(pointer: *mut H) -> Option<Box<H::Target>> {
    // SAFETY: a non-NULL pointer came from `own` and is freed once, as the header demands.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer.cast()) })
}

/// Gives the host a share of an object; [`unshare`] takes it back.
pub(super) fn share<H: Handle>(value: Arc<H::Target>) -> *mut H {
    Arc::into_raw(value).cast_mut().cast()
}

/// A share of our own in an object that the host holds a share of.
pub(super) fn share_of<H: Handle>(pointer: *const H) -> Result<Arc<H::Target>> {
    let target = borrow(pointer)? as *const H::Target;
    // SAFETY: the pointer came from `share`, so the host's count keeps the object alive while ours is added.
    unsafe {
        Arc::increment_strong_count(target);
        Ok(Arc::from_raw(target))
    }
}

/// Takes the host's share back; NULL is nothing.
pub(super) fn unshare<H: Handle>(pointer: *mut H) -> Option<Arc<H::Target>> {
    // SAFETY: a non-NULL pointer came from `share` and is freed once, as the header demands.
    (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer.cast_const().cast()) })
}
