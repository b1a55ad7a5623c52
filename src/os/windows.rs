//! Windows: processors, memory, files and threads by the functions of `kernel32` and `advapi32`.

use super::Entry;
use memmap2::Mmap;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr::{null, null_mut};
use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};
use windows_sys::Win32::Storage::FileSystem::{FILE_FLAG_BACKUP_SEMANTICS, FILE_TYPE_DISK, GetFileType};
use windows_sys::Win32::System::JobObjects::*;
use windows_sys::Win32::System::LibraryLoader::*;
use windows_sys::Win32::System::Memory::{PrefetchVirtualMemory, WIN32_MEMORY_RANGE_ENTRY};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS_EX};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::*;
use windows_sys::Win32::System::Threading::*;
use windows_sys::w;

/// The processors that the process may use, in the way the system names them.
enum Allowed {
    /// Those of a mask, in one group of at most 64.
    Group { number: u16, mask: usize },
    /// All: the process has threads in several groups.
    All,
}

fn allowed() -> Allowed {
    let (mut mask, mut system) = (0, 0);
    let mut own = GROUP_AFFINITY::default();
    // SAFETY: the calls write where they are told, and the handles stand for the caller.
    let known = unsafe {
        GetProcessAffinityMask(GetCurrentProcess(), &mut mask, &mut system) != 0
            && GetThreadGroupAffinity(GetCurrentThread(), &mut own) != 0
    };
    if known && mask != 0 { Allowed::Group { number: own.Group, mask } } else { Allowed::All }
}

impl Allowed {
    /// How many there are of a core's.
    fn of_core(&self, core: GROUP_AFFINITY) -> u32 {
        match *self {
            Allowed::All => core.Mask.count_ones(),
            Allowed::Group { number, mask } if number == core.Group => (core.Mask & mask).count_ones(),
            Allowed::Group { .. } => 0,
        }
    }
}

/// The processors that share each core of the machine.
fn all_cores() -> Vec<GROUP_AFFINITY> {
    let mut bytes = 0;
    // SAFETY: without room the call says how much it needs.
    unsafe { GetLogicalProcessorInformationEx(RelationProcessorCore, null_mut(), &mut bytes) };
    // Of words, as the records hold pointers' worth of bits.
    let mut room = vec![0u64; (bytes as usize).div_ceil(8)];
    // SAFETY: there is room for as many bytes, and the call says how many it has written.
    if unsafe { GetLogicalProcessorInformationEx(RelationProcessorCore, room.as_mut_ptr().cast(), &mut bytes) } == 0 {
        return Vec::new();
    }
    let first =
        offset_of!(SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX, Anonymous) + offset_of!(PROCESSOR_RELATIONSHIP, GroupMask);
    let (mut cores, mut at) = (Vec::new(), 0);
    while at + first + size_of::<GROUP_AFFINITY>() <= bytes as usize {
        let record = room.as_ptr().cast::<u8>().wrapping_add(at);
        // SAFETY: a record begins here, and holds at least its head and one mask: a core lies in one group.
        let (size, mask) = unsafe {
            let head = record.cast::<SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX>();
            ((&raw const (*head).Size).read_unaligned(), record.add(first).cast::<GROUP_AFFINITY>().read_unaligned())
        };
        cores.push(mask);
        at += (size as usize).max(1);
    }
    cores
}

pub fn threads() -> usize {
    let allowed = allowed();
    let threads: u32 = all_cores().into_iter().map(|core| allowed.of_core(core)).sum();
    if threads > 0 { threads as usize } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

pub fn cores() -> Option<usize> {
    let allowed = allowed();
    let cores = all_cores().into_iter().filter(|&core| allowed.of_core(core) > 0).count();
    Some(cores).filter(|&cores| cores > 0)
}

pub fn processor_name() -> Option<String> {
    let mut text = [0u16; 128];
    let mut bytes = size_of_val(&text) as u32;
    let key = w!("HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0");
    // SAFETY: the names end with a 0, and the call writes at most as many bytes as it is told.
    let status = unsafe {
        let (value, room) = (w!("ProcessorNameString"), text.as_mut_ptr().cast());
        RegGetValueW(HKEY_LOCAL_MACHINE, key, value, RRF_RT_REG_SZ, null_mut(), room, &mut bytes)
    };
    let text = text.split(|&unit| unit == 0).next().unwrap_or_default();
    let name = String::from_utf16_lossy(text).trim().to_owned();
    Some(name).filter(|name| status == 0 && !name.is_empty())
}

fn memory() -> Option<MEMORYSTATUSEX> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the call fills a structure that says its own size.
    (unsafe { GlobalMemoryStatusEx(&mut status) } != 0).then_some(status)
}

pub fn memory_total() -> Option<u64> {
    memory().map(|memory| memory.ullTotalPhys)
}

pub fn memory_free() -> Option<u64> {
    // What is committed needs a place in memory or in the page file, whether it is used or not.
    let system = memory().map(|memory| memory.ullAvailPhys.min(memory.ullAvailPageFile));
    let job = job_limits().and_then(|limits| Some(left(&limits, committed()?)));
    [system, job].into_iter().flatten().min()
}

/// The limits of the job that the process is in, if it is in one.
fn job_limits() -> Option<JOBOBJECT_EXTENDED_LIMIT_INFORMATION> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    let (room, bytes) = ((&raw mut limits).cast(), size_of_val(&limits) as u32);
    // SAFETY: no handle stands for the job of the caller; the call fills a structure of the size that it is told.
    let known =
        unsafe { QueryInformationJobObject(null_mut(), JobObjectExtendedLimitInformation, room, bytes, null_mut()) };
    (known != 0).then_some(limits)
}

/// Bytes that the process has committed.
fn committed() -> Option<u64> {
    let mut counters = PROCESS_MEMORY_COUNTERS_EX::default();
    let (room, bytes) = ((&raw mut counters).cast(), size_of_val(&counters) as u32);
    // SAFETY: the call fills a structure of the size that it is told, which the extended one is for.
    let known = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), room, bytes) };
    (known != 0).then_some(counters.PrivateUsage as u64)
}

/// What limits leave to a process that has committed so many bytes. What other processes of the job take is not known, so that it is the most.
fn left(limits: &JOBOBJECT_EXTENDED_LIMIT_INFORMATION, committed: u64) -> u64 {
    let flags = limits.BasicLimitInformation.LimitFlags;
    let limit = |flag, bytes: usize| if flags & flag != 0 { bytes as u64 } else { u64::MAX };
    let process = limit(JOB_OBJECT_LIMIT_PROCESS_MEMORY, limits.ProcessMemoryLimit);
    process.min(limit(JOB_OBJECT_LIMIT_JOB_MEMORY, limits.JobMemoryLimit)).saturating_sub(committed)
}

pub fn open(path: &Path) -> io::Result<File> {
    // The flag lets folders open, which say what they are. Pipes and devices open too, without waiting; a read of one might.
    let file = OpenOptions::new().read(true).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)?;
    // SAFETY: the handle is open.
    let kind = unsafe { GetFileType(file.as_raw_handle()) };
    if kind == FILE_TYPE_DISK { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

pub fn read_exact_at(file: &File, mut out: &mut [u8], mut start: u64) -> io::Result<()> {
    while !out.is_empty() {
        let read = file.seek_read(out, start)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[read..];
        start += read as u64;
    }
    Ok(())
}

pub fn bring_in(map: &Mmap, range: Range<usize>) {
    let bytes = &map[range];
    let place =
        WIN32_MEMORY_RANGE_ENTRY { VirtualAddress: bytes.as_ptr().cast_mut().cast(), NumberOfBytes: bytes.len() };
    // SAFETY: the range is mapped; the call reads its one description. It fetches in large pieces, if it can; and who touches, waits.
    unsafe { PrefetchVirtualMemory(GetCurrentProcess(), 1, &place, 0) };
    super::touch(bytes);
}

/// A thread that runs, or has run. Without [`Thread::join`] it ends by itself.
pub struct Thread(HANDLE);

// SAFETY: a handle belongs to the process, not to a thread.
unsafe impl Send for Thread {}
// SAFETY: as above, and nothing can be done by a shared reference.
unsafe impl Sync for Thread {}

impl Thread {
    /// Waits until it has ended.
    pub fn join(self) {
        // SAFETY: the handle is open until the value is dropped.
        unsafe { WaitForSingleObject(self.0, INFINITE) };
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody uses it again.
        unsafe { CloseHandle(self.0) };
    }
}

/// # Safety
/// Called by the system for [`start`] alone, with its argument.
unsafe extern "system" fn begin<E: Entry>(argument: *mut c_void) -> u32 {
    // SAFETY: the caller of `start` vouches for the argument.
    unsafe { E::enter(argument) };
    0
}

/// # Safety
/// As for [`super::start`].
pub unsafe fn start<E: Entry>(name: &str, stack_bytes: usize, argument: *mut c_void) -> io::Result<Thread> {
    stay_loaded()?;
    // SAFETY: the caller vouches for entry and argument.
    let handle = unsafe {
        CreateThread(null(), stack_bytes, Some(begin::<E>), argument, STACK_SIZE_PARAM_IS_A_RESERVATION, null_mut())
    };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut shown = [0u16; 32];
    let most = shown.len() - 1;
    shown[..most].iter_mut().zip(name.encode_utf16()).for_each(|(shown, unit)| *shown = unit);
    // SAFETY: the handle is open; the name ends with a 0. Without it the thread is as good.
    unsafe { SetThreadDescription(handle, shown.as_ptr()) };
    Ok(Thread(handle))
}

/// Lowers the priority of the calling thread.
pub fn give_way() {
    // SAFETY: the handle stands for the calling thread and is not closed.
    unsafe { SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_LOWEST) };
}

/// Keeps the library mapped until the process ends: a thread may still be leaving when a host closes it. Elsewhere the linker says so.
fn stay_loaded() -> io::Result<()> {
    let flags = GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
    let mut module = MaybeUninit::uninit();
    let inside: fn() -> io::Result<()> = stay_loaded;
    // SAFETY: the address is that of a function of the module, which the call finds by it.
    let known = unsafe { GetModuleHandleExW(flags, inside as *const u16, module.as_mut_ptr()) };
    if known != 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Threads get no signals here, so that there is nothing to do.
pub struct Quiet(());

impl Quiet {
    /// Does nothing.
    pub fn begin() -> Quiet {
        Quiet(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_one_core_or_group_alone_are_counted() {
        let core = |group, mask| GROUP_AFFINITY { Mask: mask, Group: group, ..Default::default() };
        let cores = [core(0, 0b11), core(0, 0b1100), core(1, 0b11)];
        let counts = |allowed: Allowed| cores.map(|core| allowed.of_core(core));
        assert_eq!(counts(Allowed::All), [2, 2, 2]);
        assert_eq!(counts(Allowed::Group { number: 0, mask: 0b1110 }), [1, 2, 0]);
        assert_eq!(counts(Allowed::Group { number: 1, mask: 0b1 }), [0, 0, 1]);
    }

    #[test]
    fn every_core_has_processors() {
        let cores = all_cores();
        assert!(!cores.is_empty() && cores.iter().all(|core| core.Mask != 0));
    }

    #[test]
    fn the_machine_tells_its_memory_and_processor() {
        let (free, total) = (memory_free().unwrap(), memory_total().unwrap());
        assert!(0 < free && free <= total);
        assert!(committed().unwrap() > 0);
        assert!(processor_name().is_some_and(|name| !name.is_empty()));
    }

    #[test]
    fn limits_of_a_job_leave_what_is_not_committed() {
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION {
            ProcessMemoryLimit: 1000,
            JobMemoryLimit: 700,
            ..Default::default()
        };
        let mut left_by = |flags, committed| {
            limits.BasicLimitInformation.LimitFlags = flags;
            left(&limits, committed)
        };
        assert_eq!(left_by(0, 100), u64::MAX - 100);
        assert_eq!(left_by(JOB_OBJECT_LIMIT_PROCESS_MEMORY, 100), 900);
        assert_eq!(left_by(JOB_OBJECT_LIMIT_PROCESS_MEMORY | JOB_OBJECT_LIMIT_JOB_MEMORY, 100), 600);
        assert_eq!(left_by(JOB_OBJECT_LIMIT_JOB_MEMORY, 800), 0);
    }

    #[test]
    fn the_library_can_be_pinned_more_than_once() {
        stay_loaded().unwrap();
        stay_loaded().unwrap();
    }
}
