//! The noun `segno_error`: what a failed call leaves behind.

use super::guard::guard_value;
use super::handle::{Handle, Head, Object, borrow, disown, own};
use super::status::{ERROR_CODES, SEGNO_E_INVALID_ARGUMENT, SEGNO_OK, segno_status, status_of};
use crate::engine::Failure;
use crate::memory;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};
use std::fmt::{self, Display, Write};

/// Detail of a failed call: code, message, and the item at fault. Owned by the host, immutable, any thread.
#[allow(non_camel_case_types)]
pub struct segno_error {
    _private: [u8; 0],
}

/// What lies behind a `segno_error`.
pub(super) struct Detail {
    code: segno_status,
    message: Cow<'static, CStr>,
    item: i64,
}

/// What is left to say where there is no memory for an error, of every code; they are there before any call, and are never freed.
static BARE: [Detail; ERROR_CODES] = {
    let mut all = [const { Detail { code: 0, message: Cow::Borrowed(NO_DETAILS), item: -1 } }; ERROR_CODES];
    let mut index = 0;
    while index < ERROR_CODES {
        all[index].code = -1 - index as segno_status;
        index += 1;
    }
    all
};
const NO_DETAILS: &CStr = c"out of memory: none is left for the details of this error, its code tells what failed";

static BARE_HEADS: [Head; ERROR_CODES] = {
    let mut all = [const { Head::of::<segno_error>(&BARE[0]) }; ERROR_CODES];
    let mut index = 0;
    while index < ERROR_CODES {
        all[index] = Head::of::<segno_error>(&BARE[index]);
        index += 1;
    }
    all
};

impl Handle for segno_error {
    type Target = Detail;
    const KIND: Object = Object::Error;
}

impl segno_error {
    pub(super) fn allocate(failure: Failure) -> *mut segno_error {
        let code = status_of(&failure.error);
        memory::forget();
        let message = Cow::Owned(one_line(&failure.error));
        let item = failure.item.and_then(|item| i64::try_from(item).ok()).unwrap_or(-1);
        own(Detail { code, message, item }).unwrap_or_else(|_| segno_error::bare(code))
    }

    /// The error of `code` without details.
    fn bare(code: segno_status) -> *mut segno_error {
        let head = BARE_HEADS.iter().zip(&BARE).find(|(_, detail)| detail.code == code);
        head.map_or(std::ptr::null_mut(), |(head, _)| (&raw const *head).cast_mut().cast())
    }

    pub(super) fn release(pointer: *mut segno_error) {
        if !BARE_HEADS.as_ptr_range().contains(&pointer.cast_const().cast()) {
            drop(disown(pointer));
        }
    }
}

/// Longest message, and what stands for the middle of a longer one, in bytes.
const MAX_MESSAGE: usize = 1024;
const GAP: &str = " [...] ";

/// A message as the host may show it, whatever names a file has put into it: control characters are escaped, and of a long
/// text only beginning and end are kept.
pub(super) fn one_line(message: impl Display) -> CString {
    let mut line = Line::default();
    // A line takes every text.
    let _ = write!(line, "{message}");
    CString::new(line.finish()).unwrap_or_default()
}

/// The beginning and the end of a message that may be of any length.
#[derive(Default)]
struct Line {
    /// At most [`MAX_MESSAGE`] bytes.
    head: String,
    /// What follows; of that only the last bytes.
    tail: String,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '\u{2028}' | '\u{2029}' => c.escape_unicode().for_each(|c| self.push(c)),
                c if c.is_control() => c.escape_default().for_each(|c| self.push(c)),
                c => self.push(c),
            }
        }
        Ok(())
    }
}

impl Line {
    fn push(&mut self, c: char) {
        if self.tail.is_empty() && self.head.len() + c.len_utf8() <= MAX_MESSAGE {
            return self.head.push(c);
        }
        self.tail.push(c);
        if self.tail.len() > 2 * MAX_MESSAGE {
            self.tail.drain(..self.tail.floor_char_boundary(MAX_MESSAGE));
        }
    }

    fn finish(self) -> String {
        let Line { mut head, tail } = self;
        if !tail.is_empty() {
            head.push_str(&tail);
            let half = (MAX_MESSAGE - GAP.len()) / 2;
            head.replace_range(head.floor_char_boundary(half)..head.ceil_char_boundary(head.len() - half), GAP);
        }
        head
    }
}

/// The status code of an error; `SEGNO_OK` for NULL, INVALID_ARGUMENT for what is no error, or one that was freed.
///
/// Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_error_code(error: *const segno_error) -> segno_status {
    guard_value(SEGNO_OK, || {
        if error.is_null() { SEGNO_OK } else { borrow(error).map_or(SEGNO_E_INVALID_ARGUMENT, |detail| detail.code) }
    })
}

/// One line that a user can act on, NUL-terminated UTF-8; "" for NULL and for what is no error, never NULL.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_without_control_characters() {
        let line = one_line("a\nb\0c\u{1b}[2Jd\u{2028}e\u{85}f");
        assert_eq!(line.to_str().unwrap(), "a\\nb\\u{0}c\\u{1b}[2Jd\\u{2028}e\\u{85}f");
        assert_eq!(one_line("größe \u{1f600}").to_str().unwrap(), "größe \u{1f600}");
    }

    #[test]
    fn an_error_for_which_there_is_no_memory_tells_its_code_and_outlives_its_free() {
        for code in 1..=ERROR_CODES as segno_status {
            let error = segno_error::bare(-code);
            for _ in 0..2 {
                assert_eq!((segno_error_code(error), segno_error_item(error)), (-code, -1));
                // SAFETY: the message is NUL-terminated and lives as long as the library.
                let message = unsafe { CStr::from_ptr(segno_error_message(error)) };
                assert_eq!(message, NO_DETAILS);
                segno_error_free(error);
            }
        }
    }

    #[test]
    fn long_messages_keep_their_ends() {
        for filler in ["x", "ß", "\u{1f600}"] {
            let line = one_line(format!("begin {} end", filler.repeat(70_000)));
            let text = line.to_str().unwrap();
            assert!(text.starts_with("begin ") && text.ends_with(" end") && text.contains(GAP));
            assert!((MAX_MESSAGE - 16..=MAX_MESSAGE).contains(&text.len()), "{} bytes", text.len());
        }
        let full = "x".repeat(MAX_MESSAGE);
        assert_eq!(one_line(&full).to_str().unwrap(), full);
    }
}
