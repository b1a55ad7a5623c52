//! The noun `segno_error`: what a failed call leaves behind.

use super::guard::guard_value;
use super::handle::{Handle, borrow, disown, own};
use super::status::{SEGNO_OK, segno_status, status_of};
use crate::engine::Failure;
use std::ffi::{CString, c_char};

/// Detail of a failed call: code, message, and the item at fault. Owned by the host, immutable, any thread.
#[allow(non_camel_case_types)]
pub struct segno_error {
    _private: [u8; 0],
}

/// What lies behind a `segno_error`.
pub(super) struct Detail {
    code: segno_status,
    message: CString,
    item: i64,
}

impl Handle for segno_error {
    type Target = Detail;
    const NAME: &'static str = "error";
}

impl segno_error {
    pub(super) fn allocate(failure: Failure) -> *mut segno_error {
        let mut text = failure.error.to_string().into_bytes();
        text.retain(|&byte| byte != 0);
        let message = CString::new(text).unwrap_or_default();
        let item = failure.item.and_then(|item| i64::try_from(item).ok()).unwrap_or(-1);
        own(Detail { code: status_of(&failure.error), message, item })
    }

    pub(super) fn release(pointer: *mut segno_error) {
        drop(disown(pointer));
    }
}

/// The status code of an error; `SEGNO_OK` for NULL.
///
/// Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_error_code(error: *const segno_error) -> segno_status {
    guard_value(SEGNO_OK, || borrow(error).map_or(SEGNO_OK, |detail| detail.code))
}

/// One line that a user can act on, NUL-terminated UTF-8; "" for NULL, never NULL.
///
/// Valid until the error is freed. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_error_message(error: *const segno_error) -> *const c_char {
    guard_value(c"".as_ptr(), || borrow(error).map_or(c"".as_ptr(), |detail| detail.message.as_ptr()))
}

/// Index of the item of a list (a token, a sequence of a batch) that the error concerns; -1 when it concerns none, or for NULL.
///
/// Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_error_item(error: *const segno_error) -> i64 {
    guard_value(-1, || borrow(error).map_or(-1, |detail| detail.item))
}

/// Frees an error; NULL is allowed. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_error_free(error: *mut segno_error) {
    guard_value((), || segno_error::release(error))
}
