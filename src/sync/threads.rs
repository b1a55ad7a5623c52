//! Threads of the library, made by the system's own function.
//!
//! One of the standard library's takes memory that has no way to fail, on its way and when it starts, and its stack is as large as an
//! environment variable says. These have a stack of stated size, and no handler of a signal of the host's runs on them.

use crate::os::{self, Entry};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Scope, ScopedJoinHandle};

pub use os::Thread;

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a thread of the library.
pub fn is_ours() -> bool {
    OURS.get()
}

/// Lets all threads of usual priority go before the calling one.
pub fn give_way() {
    os::give_way();
}

/// Starts a thread that calls `body`, which catches its panics. Of the name the first 15 bytes are shown.
pub fn spawn<F: FnOnce() + Send + 'static>(name: &str, stack_bytes: usize, body: F) -> io::Result<Thread> {
    struct Boxed<F>(PhantomData<F>);
    impl<F: FnOnce()> Entry for Boxed<F> {
        unsafe fn enter(body: *mut c_void) {
            OURS.set(true);
            // SAFETY: the pointer came from `into_raw` and is taken back here alone.
            let body = unsafe { Box::from_raw(body.cast::<F>()) };
            // The payload of a panic may panic itself when it is dropped.
            std::mem::forget(catch_unwind(AssertUnwindSafe(*body)));
        }
    }
    let body = Box::into_raw(Box::new(body));
    // SAFETY: the entry takes the box, whose content may be sent.
    let thread = unsafe { os::start::<Boxed<F>>(name, stack_bytes, body.cast()) };
    if thread.is_err() {
        // SAFETY: no thread has taken it.
        drop(unsafe { Box::from_raw(body) });
    }
    thread
}

/// The result of `body`, which runs on a thread of its own with a stack of so many bytes, or the panic that ended it.
pub fn run<T: Send, F: FnOnce() -> T + Send>(
    name: &str,
    stack_bytes: usize,
    body: F,
) -> io::Result<std::thread::Result<T>> {
    struct Job<F, T> {
        body: Option<F>,
        result: Option<std::thread::Result<T>>,
    }
    impl<F: FnOnce() -> T, T> Entry for Job<F, T> {
        unsafe fn enter(job: *mut c_void) {
            OURS.set(true);
            // SAFETY: the caller waits until this thread has ended before it looks at the job again.
            let job = unsafe { &mut *job.cast::<Job<F, T>>() };
            job.result = job.body.take().map(|body| catch_unwind(AssertUnwindSafe(body)));
        }
    }
    let mut job = Job { body: Some(body), result: None };
    // SAFETY: the job stays here until the thread has ended, and what it holds may be sent.
    unsafe { os::start::<Job<F, T>>(name, stack_bytes, (&raw mut job).cast())? }.join();
    Ok(job.result.unwrap_or_else(|| Err(Box::new("a thread ended without a result"))))
}

/// Starts a thread of the standard library's inside a scope, otherwise like those above.
pub fn spawn_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    let _quiet = os::Quiet::begin();
    let builder = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes);
    builder.spawn_scoped(scope, || {
        OURS.set(true);
        body();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    const STACK: usize = 256 << 10;

    #[test]
    fn a_thread_runs_to_its_end_and_is_waited_for() {
        let ended = Arc::new(AtomicBool::new(false));
        let copy = Arc::clone(&ended);
        let (send, receive) = mpsc::channel();
        let thread = spawn("segno", STACK, move || {
            send.send(is_ours()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            copy.store(true, Ordering::SeqCst);
        });
        thread.unwrap().join();
        assert!(ended.load(Ordering::SeqCst) && !is_ours() && receive.recv().unwrap());
    }

    #[test]
    fn a_result_or_a_panic_comes_back() {
        let borrowed = [1, 2, 3];
        assert_eq!(run("segno", STACK, || borrowed.iter().sum::<i32>()).unwrap().unwrap(), 6);
        let panic = run("segno", STACK, || panic!("forced")).unwrap().unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"forced"));
    }
}
