//! What a context logs.

use segno::ffi::ctx::segno_ctx_opts;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

/// The lines so far, each with its level in front.
pub type Lines = Mutex<Vec<String>>;

// SAFETY: called by a context with the list that came with it, and a line that ends with NUL.
unsafe extern "C" fn hear(user: *mut c_void, level: i32, line: *const c_char) {
    // SAFETY: as above; the list is never freed.
    let (lines, line) = unsafe { (&*user.cast::<Lines>(), CStr::from_ptr(line)) };
    lines.lock().unwrap().push(format!("{level} {}", line.to_str().unwrap()));
}

/// Lets a context with these options log to the list that is returned.
pub fn listen(opts: &mut segno_ctx_opts) -> &'static Lines {
    /// Contexts may live on and log later, so lists are never freed. They stand here, so that none counts as lost.
    static ALL: Mutex<Vec<&Lines>> = Mutex::new(Vec::new());
    let lines: &Lines = Box::leak(Box::default());
    ALL.lock().unwrap().push(lines);
    opts.log = Some(hear);
    opts.log_user = (&raw const *lines).cast_mut().cast();
    lines
}

/// The lines so far without their levels.
pub fn texts(lines: &Lines) -> Vec<String> {
    lines.lock().unwrap().iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}
