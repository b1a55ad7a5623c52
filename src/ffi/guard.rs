//! The one way into the library: catches panics, and turns results into status codes and error objects.

use super::error::segno_error;
use super::process;
use super::status::{SEGNO_CANCELLED, segno_status, status_of};
use crate::engine::{Context, Failure, LogLevel};
use crate::error::Error;
use crate::memory;
use crate::sync::threads;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of an exported function, unless the process is a fork, or the call comes from a callback of `context`. `err`, unless NULL, receives
/// NULL, or the error object of a negative status. The text of a panic also goes to the log of `context`.
pub(super) fn guard(
    context: Option<&Context>,
    err: *mut *mut segno_error,
    body: impl FnOnce() -> Result<segno_status, Failure>,
) -> segno_status {
    let result = contain(context, || permit(context).and_then(|()| body()));
    let (status, object) = match result {
        Ok(status) => (status, std::ptr::null_mut()),
        Err(Failure { error: Error::Cancelled, .. }) => (SEGNO_CANCELLED, std::ptr::null_mut()),
        Err(failure) => (status_of(&failure.error), segno_error::allocate(failure)),
    };
    if err.is_null() {
        segno_error::release(object);
    } else {
        // SAFETY: the host passes NULL or a place for one pointer, as the header says.
        unsafe { err.write(object) };
    }
    status
}

/// Runs what works for an exported function, on whatever thread; a panic is an error, and its text goes to the log of `context` too.
pub(super) fn contain<T>(context: Option<&Context>, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch(body).unwrap_or_else(|text| {
        if let Some(context) = context {
            context.log(LogLevel::Error, format_args!("internal failure: {text}"));
        }
        Err(Error::Panic(text).into())
    })
}

/// Runs the body of an exported function that returns no status; `default` stands for the result after a panic.
pub(super) fn guard_value<T>(default: T, body: impl FnOnce() -> T) -> T {
    catch(body).unwrap_or(default)
}

/// Frees what an exported function was given; does nothing in a forked process, whose threads to wait for do not exist.
pub(super) fn guard_free(body: impl FnOnce()) {
    guard_value((), || {
        if process::check().is_ok() {
            body()
        }
    })
}

/// Whether a call may begin.
fn permit(context: Option<&Context>) -> Result<(), Failure> {
    process::check()?;
    if memory::is_low() {
        return Err(Error::out_of_memory("what calls need when memory runs out", memory::RESERVE_BYTES).into());
    }
    if context.is_some_and(Context::is_calling) { Err(Error::InCallback.into()) } else { Ok(()) }
}

fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    let outer = INSIDE.replace(true);
    if !outer {
        memory::forget();
    }
    // What the body holds is dropped while it unwinds; locks are poisoned, and every shared state is behind one.
    let result = catch_unwind(AssertUnwindSafe(body));
    INSIDE.set(outer);
    result.map_err(text_of)
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic without a message").replace('\n', " ")
}

/// Keeps panics of this library off the host's standard error; those of others go where they went before.
pub(super) fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !threads::is_ours() && !INSIDE.get() {
                previous(info);
            }
        }));
    });
}
