//! What Linux tells and its relatives do not, or in ways of their own: macOS, Android and the BSDs. Programs run; figures are missing.

use memmap2::Mmap;
use std::ops::Range;

pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn cores() -> Option<usize> {
    None
}

pub fn memory_free() -> Option<u64> {
    None
}

pub fn memory_total() -> Option<u64> {
    None
}

pub fn processor_name() -> Option<String> {
    None
}

pub fn bring_in(map: &Mmap, range: Range<usize>) {
    super::touch(&map[range]);
}

/// No thread gives way here: what there is for it differs.
pub fn give_way() {}

/// Threads stay without names here: the calls for it differ.
pub fn name(_: libc::pthread_t, _: &str) {}
