//! Time that a thread computes, whatever else the machine does.

use std::time::Duration;

/// What a thread has computed so far.
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    pub fn of_this_thread() -> ThreadClock {
        let mut id = 0;
        // SAFETY: the calling thread is alive, and the number has room.
        assert_eq!(unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut id) }, 0);
        ThreadClock(id)
    }

    pub fn now(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the struct has room; a clock that is gone would be an error.
        assert_eq!(unsafe { libc::clock_gettime(self.0, &mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}
