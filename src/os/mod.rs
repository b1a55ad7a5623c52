//! What the library asks of the operating system, one file a system: no other module names a system or its C library.
//!
//! Linux and Windows have files of their own, `unix` holds what Linux shares with its relatives, and `other` stands in for what only Linux has on
//! those. What a system does not tell is `None`: then the caller does without. Clocks, locks, parking and the number of the process, by which
//! a fork is known, are those of the standard library everywhere.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(all(unix, not(target_os = "linux")))]
mod other;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
use linux as machine;
#[cfg(all(unix, not(target_os = "linux")))]
use other as machine;
#[cfg(unix)]
use unix as process;
#[cfg(windows)]
use windows::{self as machine, self as process};

use memmap2::Mmap;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

pub use process::{Quiet, Thread};

/// Lets all threads of usual priority go before the calling one, where the system has priorities of threads that anybody may lower.
pub fn give_way() {
    machine::give_way();
}

/// Hardware threads that this process may use at once, from its affinity and, on Linux, its cgroup's share of processor time, rounded down; at
/// least 1.
pub fn usable_threads() -> usize {
    machine::threads().max(1)
}

/// Physical cores among them; at least 1.
///
/// Siblings of one core count once, since two of them do not multiply faster than one.
pub fn usable_cores() -> usize {
    let threads = usable_threads();
    machine::cores().map_or(threads, |cores| cores.clamp(1, threads))
}

/// Bytes of memory that this process can take now, by the figures of the system and the limits of the process and of the groups (Linux) or the
/// job (Windows) that it is in.
///
/// Pages of files that the system keeps in memory count as memory that can be taken: it gives them up first. So a mapped model counts as
/// memory that is needed, whether its pages are there already or not.
pub fn memory_free() -> Option<u64> {
    machine::memory_free()
}

/// All memory of the machine, in bytes.
pub fn memory_total() -> Option<u64> {
    machine::memory_total()
}

/// What the maker calls the processor.
pub fn processor_name() -> Option<String> {
    machine::processor_name()
}

/// Opens a file, or a folder, to be read; what is neither does not keep the caller waiting.
pub fn open(path: &Path) -> io::Result<File> {
    process::open(path)
}

/// Fills `out` with a file's bytes from `start` on. Several threads may read one file at a time, if all do it by this function.
pub fn read_exact_at(file: &File, out: &mut [u8], start: u64) -> io::Result<()> {
    process::read_exact_at(file, out, start)
}

/// Maps a file that is not empty; its pages come in on demand.
///
/// Nobody may truncate it while it is mapped: Windows forbids that by itself, other systems answer an access with a signal. It is for the
/// host to promise.
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only, and every access goes through slices of its length. That nobody truncates the file meanwhile is the
    // host's promise (SEGNO_MODEL_NO_MMAP is for hosts that cannot give it).
    unsafe { Mmap::map(file) }
}

/// Brings the pages of a range of `map` into memory.
///
/// # Panics
/// Some systems: if the range does not lie within the map.
pub fn bring_in(map: &Mmap, range: Range<usize>) {
    machine::bring_in(map, range);
}

/// Reads a byte of each page of a range.
#[cfg(not(target_os = "linux"))]
fn touch(bytes: &[u8]) {
    const PAGE_BYTES: usize = 4096;
    for page in bytes.chunks(PAGE_BYTES) {
        std::hint::black_box(page[0]);
    }
}

/// What a thread does.
pub trait Entry {
    /// Runs on the new thread, with what [`start`] was given, and does not unwind.
    ///
    /// # Safety
    /// Called once for each [`start`], with its argument.
    unsafe fn enter(argument: *mut c_void);
}

/// Starts a thread with a stack of `stack_bytes`, on which no handler of a signal of the host's runs. Of the name some systems show only the first
/// 15 bytes. An error, and nothing has happened, where the system refuses.
///
/// # Safety
/// `E` may be entered with `argument` on any thread.
pub unsafe fn start<E: Entry>(name: &str, stack_bytes: usize, argument: *mut c_void) -> io::Result<Thread> {
    // SAFETY: the caller's promise is passed on.
    unsafe { process::start::<E>(name, stack_bytes, argument) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of `body`, which runs on a thread of its own.
    pub fn run<T, F: FnOnce() -> T>(name: &str, stack_bytes: usize, body: F) -> io::Result<T> {
        struct Job<F, T>(Option<F>, Option<T>);
        impl<F: FnOnce() -> T, T> Entry for Job<F, T> {
            unsafe fn enter(job: *mut c_void) {
                // SAFETY: whoever started the thread waits for its end.
                let job = unsafe { &mut *job.cast::<Job<F, T>>() };
                job.1 = job.0.take().map(|body| body());
            }
        }
        let mut job = Job(Some(body), None);
        // SAFETY: the job stays here until the thread has ended.
        unsafe { start::<Job<F, T>>(name, stack_bytes, (&raw mut job).cast())? }.join();
        Ok(job.1.unwrap())
    }

    #[test]
    fn a_thread_runs_on_a_stack_of_the_size_asked_for() {
        let deep = || {
            let bytes = std::hint::black_box([1u8; 3 << 20]);
            bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>()
        };
        assert_eq!(run("segno", 16 << 20, deep).unwrap(), 3 << 20);
    }

    #[test]
    fn at_least_one_core_and_no_more_than_threads() {
        assert!((1..=usable_threads()).contains(&usable_cores()));
    }

    #[test]
    fn a_folder_opens_and_says_what_it_is() {
        let folder = open(&std::env::temp_dir()).unwrap();
        assert!(folder.metadata().unwrap().is_dir());
    }

    #[test]
    fn a_file_is_read_at_any_place_and_mapped() {
        let path = std::env::temp_dir().join(format!("segno-ö-文-{}", std::process::id()));
        let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = open(&path).unwrap();
        let mut part = [0; 1000];
        for start in [99_000, 0, 12_345] {
            read_exact_at(&file, &mut part, start as u64).unwrap();
            assert_eq!(part, bytes[start..start + 1000]);
        }
        let beyond = read_exact_at(&file, &mut part, 99_001).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        let map = map(&file).unwrap();
        bring_in(&map, 0..50_001);
        bring_in(&map, 50_001..map.len());
        assert!(map[..] == bytes[..]);
        drop((map, file));
        std::fs::remove_file(path).unwrap();
    }
}
