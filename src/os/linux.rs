//! Linux: what `/proc`, `/sys` and control groups tell.

mod processor;

use memmap2::{Advice, Mmap};
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn cores() -> Option<usize> {
    let cores: HashSet<String> = allowed_processors().into_iter().filter_map(siblings).collect();
    Some(cores.len()).filter(|&cores| cores > 0)
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

pub fn processor_name() -> Option<String> {
    processor::name(&read(Path::new("/proc/cpuinfo")))
}

pub fn memory_total() -> Option<u64> {
    kibibytes(&read(Path::new("/proc/meminfo")), "MemTotal")
}

pub fn memory_free() -> Option<u64> {
    memory_free_below(Path::new("/"))
}

/// The same by the system's files below `root`.
fn memory_free_below(root: &Path) -> Option<u64> {
    let system = kibibytes(&read(&root.join("proc/meminfo")), "MemAvailable");
    let groups = groups(root);
    [system, address_space(root)].into_iter().flatten().chain(groups).min()
}

/// What the limit of the process's address space leaves.
fn address_space(root: &Path) -> Option<u64> {
    let limits = read(&root.join("proc/self/limits"));
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kibibytes(&read(&root.join("proc/self/status")), "VmSize")?))
}

/// What each control group of the process leaves, and each group around it. A container may see its own group as the root of the tree, under
/// another name than the kernel's: then the names that do not exist say nothing, and the root does.
fn groups(root: &Path) -> Vec<u64> {
    let mut free = Vec::new();
    for line in read(&root.join("proc/self/cgroup")).lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            names if names.split(',').any(|name| name == "memory") => &["sys/fs/cgroup/memory"],
            _ => continue,
        };
        for mount in mounts {
            let path = Path::new(path.trim_start_matches('/'));
            free.extend(path.ancestors().filter_map(|group| free_of(&root.join(mount).join(group))));
        }
    }
    free
}

/// What one control group leaves, of version 2 or 1; none where it has no limit.
fn free_of(group: &Path) -> Option<u64> {
    let number = |name: &str| read(&group.join(name)).trim().parse::<u64>().ok();
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit = limits.into_iter().filter_map(number).min()?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let statistics = read(&group.join("memory.stat"));
    let statistic = |name: &str| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    // Version 1 counts the groups below under names of their own.
    let files = ["inactive_file", "active_file"]
        .into_iter()
        .filter_map(|name| statistic(&format!("total_{name}")).or_else(|| statistic(name)));
    let given_up = files.sum::<u64>().saturating_add(statistic("slab_reclaimable").unwrap_or(0));
    Some(limit.saturating_sub(used.saturating_sub(given_up)))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value behind `name: ` in a file of `/proc`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

/// Such a value that is a number of kibibytes, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split(' ').next()?.parse::<u64>().ok()?.checked_mul(1024)
}

pub fn bring_in(map: &Mmap, range: Range<usize>) {
    // Kernels before 5.14 lack this advice; pages then come in on first use.
    _ = map.advise_range(Advice::PopulateRead, range.start, range.len());
}

/// A tenth of the share of a thread of usual priority: enough to go on beside those that never sleep.
const BEHIND_OTHERS: i32 = 10;

/// Lowers the priority of the calling thread; one that is lower stays.
pub fn give_way() {
    // SAFETY: the calls take numbers. On Linux 0 is the calling thread; what is refused changes nothing.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) < BEHIND_OTHERS {
            libc::setpriority(libc::PRIO_PROCESS, 0, BEHIND_OTHERS);
        }
    }
}

/// Names a thread that nobody has joined.
pub fn name(thread: libc::pthread_t, name: &str) {
    let mut shown = [0u8; 16];
    let len = name.len().min(15);
    shown[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: the thread is joinable, so it exists; the name ends with a 0. Without it the thread is as good.
    unsafe { libc::pthread_setname_np(thread, shown.as_ptr().cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A folder of system files that is removed with the value.
    struct System(PathBuf);

    impl System {
        fn new(name: &str, files: &[(&str, &str)]) -> System {
            let folder = format!("segno-host-memory-{}-{name}", std::process::id());
            let system = System(std::env::temp_dir().join(folder));
            for (path, text) in files {
                let path = system.0.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            system
        }

        fn free(&self) -> Option<u64> {
            memory_free_below(&self.0)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  1000000 kB\nMemAvailable:  500000 kB\n");

    #[test]
    fn the_system_alone_tells_what_is_available() {
        assert_eq!(System::new("alone", &[MEMINFO]).free(), Some(500_000 << 10));
        assert_eq!(System::new("nothing", &[]).free(), None);
        assert!(memory_free().is_some_and(|free| free > 0), "this machine tells");
    }

    #[test]
    fn a_group_of_version_2_leaves_its_limit_less_what_is_used_and_not_given_up() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "100000000\n"),
            ("sys/fs/cgroup/a/memory.current", "40000000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 1\ninactive_file 7000000\nactive_file 2000000\nslab_reclaimable 1000000\n",
            ),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "90000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "10000000\n"),
        ];
        // The outer group leaves 70 million, the inner one 80.
        assert_eq!(System::new("v2", &files).free(), Some(70_000_000));
        let tighter = [&files[..], &[("sys/fs/cgroup/a/b/memory.max", "30000000\n")]].concat();
        assert_eq!(System::new("v2-tighter", &tighter).free(), Some(20_000_000));
        let over = [&files[..], &[("sys/fs/cgroup/a/b/memory.max", "5000000\n")]].concat();
        assert_eq!(System::new("v2-over", &over).free(), Some(0));
    }

    #[test]
    fn a_group_of_version_1_does_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "3:cpuset:/\n2:cpu,memory:/c\n"),
            ("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "50000000\n"),
            ("sys/fs/cgroup/memory/c/memory.usage_in_bytes", "20000000\n"),
            (
                "sys/fs/cgroup/memory/c/memory.stat",
                "inactive_file 1\ntotal_inactive_file 3000000\ntotal_active_file 1000000\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
        ];
        assert_eq!(System::new("v1", &files).free(), Some(34_000_000));
    }

    #[test]
    fn a_container_that_sees_its_own_group_as_the_root_is_limited_by_it() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/docker/0123\n"),
            ("sys/fs/cgroup/memory.max", "60000000\n"),
            ("sys/fs/cgroup/memory.current", "10000000\n"),
        ];
        assert_eq!(System::new("container", &files).free(), Some(50_000_000));
    }

    #[test]
    fn a_limited_address_space_leaves_what_is_not_mapped() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space         40960000             unlimited            bytes\n";
        let files = [MEMINFO, ("proc/self/limits", limits), ("proc/self/status", "Name: a\nVmSize:    10000 kB\n")];
        assert_eq!(System::new("space", &files).free(), Some(40_960_000 - 10_240_000));
        let unlimited = [MEMINFO, ("proc/self/limits", "Max address space  unlimited  unlimited  bytes\n")];
        assert_eq!(System::new("no-space", &unlimited).free(), Some(500_000 << 10));
    }

    #[test]
    fn a_thread_that_may_use_one_processor_has_one_core() {
        // The mask is the thread's own, and ends with it.
        let bound = || {
            let first = allowed_processors()[0];
            // SAFETY: all zeros is a valid empty set.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: the index comes from such a set.
            unsafe { libc::CPU_SET(first, &mut set) };
            // SAFETY: the call reads a set of the size given.
            assert_eq!(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }, 0);
            assert_eq!(allowed_processors(), [first]);
            crate::os::usable_cores()
        };
        assert_eq!(std::thread::spawn(bound).join().unwrap(), 1);
    }

    #[test]
    fn of_a_name_15_bytes_are_shown() {
        let comm = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let comm = crate::os::tests::run("segno-of-many-letters", 256 << 10, comm).unwrap();
        // The name may come a moment after the start.
        assert!(comm == "segno-of-many-l\n" || !comm.starts_with("segno-of"), "{comm}");
    }
}
