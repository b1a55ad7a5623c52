//! How many threads a pool has when the host does not say.

use std::collections::HashSet;

/// Physical cores that this process may use, from its affinity and its share of processor time; at least 1.
///
/// `available_parallelism` counts hardware threads of the affinity mask and rounds a cgroup's quota down; siblings of one
/// core count once here, since two of them do not multiply faster than one.
pub fn usable_cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cores: HashSet<String> = allowed_processors().into_iter().filter_map(siblings).collect();
    if cores.is_empty() { threads } else { threads.min(cores.len()) }
}

/// The hardware threads that share a core with `processor`, as the system writes them; the same text for each of them.
fn siblings(processor: usize) -> Option<String> {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")).ok()
}

fn allowed_processors() -> Vec<usize> {
    // SAFETY: all zeros is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes at most the size given into the set, which lives on this stack frame.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if status != 0 {
        return Vec::new();
    }
    // SAFETY: every index is below the capacity of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn at_least_one_core_and_no_more_than_threads() {
        let threads = std::thread::available_parallelism().unwrap().get();
        assert!((1..=threads).contains(&super::usable_cores()));
    }

    #[test]
    fn a_thread_that_may_use_one_processor_has_one_core() {
        // The mask is the thread's own, and ends with it.
        let bound = || {
            let first = super::allowed_processors()[0];
            // SAFETY: all zeros is a valid empty set.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: the index comes from such a set.
            unsafe { libc::CPU_SET(first, &mut set) };
            // SAFETY: the call reads a set of the size given.
            assert_eq!(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }, 0);
            assert_eq!(super::allowed_processors(), [first]);
            super::usable_cores()
        };
        assert_eq!(std::thread::spawn(bound).join().unwrap(), 1);
    }
}
