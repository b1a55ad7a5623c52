//! What the systems of Unix's family have in common: files, and threads of the C library's own.

use super::{Entry, machine};
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{null, null_mut};

pub fn open(path: &Path) -> io::Result<File> {
    // Otherwise the open of a pipe waits until somebody writes to it; files do not care.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

pub fn read_exact_at(file: &File, out: &mut [u8], start: u64) -> io::Result<()> {
    file.read_exact_at(out, start)
}

/// A thread that runs, or has run. Without [`Thread::join`] it ends by itself.
pub struct Thread(libc::pthread_t);

// SAFETY: the handle is bound to no thread; some systems make it a pointer.
unsafe impl Send for Thread {}
// SAFETY: as above, and nothing can be done by a shared reference.
unsafe impl Sync for Thread {}

impl Thread {
    /// Waits until it has ended.
    pub fn join(self) {
        // SAFETY: the thread was made joinable, and nobody else joins it. An error would say that it is this thread itself.
        unsafe { libc::pthread_join(self.0, null_mut()) };
        std::mem::forget(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread was made joinable, and is given up once.
        unsafe { libc::pthread_detach(self.0) };
    }
}

extern "C" fn begin<E: Entry>(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `start` alone names this function, and its caller vouches for the argument.
    unsafe { E::enter(argument) };
    null_mut()
}

/// # Safety
/// As for [`super::start`].
pub unsafe fn start<E: Entry>(name: &str, stack_bytes: usize, argument: *mut c_void) -> io::Result<Thread> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call fills them.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: they were filled. A stack of more bytes than the least possible is accepted.
    let sized = check(unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes) });
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let made = sized.and_then(|()| {
        let _quiet = Quiet::begin();
        // SAFETY: the attributes were filled; the caller vouches for entry and argument.
        check(unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin::<E>, argument) })
    });
    // SAFETY: filled above and not used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    made?;
    // SAFETY: filled by the call that succeeded.
    let thread = Thread(unsafe { thread.assume_init() });
    machine::name(thread.0, name);
    Ok(thread)
}

fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Signals that tell of a fault of the thread that gets them: blocked, they would end the process without the host's handler.
const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// While it lives, this thread gets no signals but those, and a thread that it makes never does.
pub struct Quiet(libc::sigset_t);

impl Quiet {
    /// Blocks the signals.
    pub fn begin() -> Quiet {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the calls fill the sets, which takes every valid signal; a mask can always be set.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            FAULTS.iter().for_each(|&signal| _ = libc::sigdelset(all.as_mut_ptr(), signal));
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Quiet(before.assume_init())
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the system.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, null::<libc::sigset_t>().cast_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::tests::run;

    const STACK: usize = 256 << 10;

    #[test]
    fn a_stack_that_is_too_small_is_refused() {
        assert!(run("segno", 1, || ()).is_err());
    }

    #[test]
    fn signals_are_blocked_there_and_not_here() {
        let blocked = |signal| {
            let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the call fills the set.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, null(), mask.as_mut_ptr());
                libc::sigismember(mask.as_ptr(), signal) == 1
            }
        };
        let there = run("segno", STACK, || [libc::SIGTERM, libc::SIGUSR1, libc::SIGSEGV].map(blocked)).unwrap();
        assert_eq!(there, [true, true, false]);
        let quiet = Quiet::begin();
        let of_another = std::thread::spawn(move || [libc::SIGTERM, libc::SIGUSR1, libc::SIGSEGV].map(blocked));
        drop(quiet);
        assert_eq!(of_another.join().unwrap(), [true, true, false]);
        assert_eq!([libc::SIGTERM, libc::SIGUSR1].map(blocked), [false, false]);
    }
}
