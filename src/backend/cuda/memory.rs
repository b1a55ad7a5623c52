//! Memory of a device and mapped memory of the host, each freed by its one owner.

use super::driver::{Primary, check, hear};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUresult, CUstream};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Alignment of everything placed in a block: that of the widest loads, and of cache lines.
const ALIGNMENT: usize = 256;

/// A block of device memory.
pub struct Block {
    address: u64,
    primary: Arc<Primary>,
}

impl Block {
    /// Takes `bytes`, zeroed; the context must be current.
    pub fn new(primary: &Arc<Primary>, bytes: usize) -> Result<Block> {
        let mut address = 0;
        // SAFETY: a context is current; the driver writes the address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            hear("cuMemAlloc");
            return Err(Error::DeviceMemory { needed: bytes as u64, free: free_bytes()? });
        }
        check("cuMemAlloc", result)?;
        let block = Block { address, primary: Arc::clone(primary) };
        zero(primary, address, bytes.max(1))?;
        Ok(block)
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(_current) = self.primary.enter() {
            // SAFETY: the block is freed once, by its owner; its users have waited for the device.
            _ = check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}

/// Fills memory with zeros, and waits for that. The default stream would not do: our streams do not wait for it, so it might still be
/// at work when they write there, and it waits for the host's own.
fn zero(primary: &Primary, address: u64, bytes: usize) -> Result<()> {
    let mut stream: CUstream = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: a context is current.
    check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
    // SAFETY: the caller's memory has that many bytes; the stream lives.
    let filled = check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, 0, bytes, stream) });
    let ended = filled.and_then(|()| primary.wait(stream, primary.longest_wait(), &AtomicBool::new(false)));
    if !primary.is_lost() {
        // SAFETY: destroyed once.
        _ = check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(stream) });
    }
    ended.map(|_| ())
}

/// Bytes free on the device whose context is current.
pub fn free_bytes() -> Result<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: a context is current.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(free as u64)
}

/// A stretch of a block, for whoever looks into it.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What lies there.
    pub name: &'static str,
    /// Its first byte, counted from the block's.
    pub offset: usize,
    /// Its size, in bytes.
    pub bytes: usize,
}

/// Hands out places of one block, one after the other.
#[derive(Default)]
pub struct Places {
    base: u64,
    bytes: usize,
    #[cfg(feature = "testing")]
    parts: Vec<Part>,
}

impl Places {
    /// Places from `base` on; with 0 they only count.
    pub fn new(base: u64) -> Places {
        Places { base, ..Places::default() }
    }

    /// The address of the next `bytes`; tests find them under a name.
    pub fn named(&mut self, _name: &'static str, bytes: usize) -> u64 {
        #[cfg(feature = "testing")]
        self.parts.push(Part { name: _name, offset: self.bytes, bytes });
        self.take(bytes)
    }

    /// What has a name, in order of address.
    #[cfg(feature = "testing")]
    pub fn parts(self) -> Vec<Part> {
        self.parts
    }

    /// The address of the next `bytes`.
    pub fn take(&mut self, bytes: usize) -> u64 {
        let address = self.base + self.bytes as u64;
        self.bytes = self.bytes.saturating_add(bytes).checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
        address
    }

    /// All bytes so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Host memory that the device reads and writes too, `len` elements of plain numbers.
pub struct Mapped<T: Copy> {
    host: NonNull<T>,
    device: u64,
    len: usize,
    primary: Arc<Primary>,
}

// SAFETY: owns its memory, which any thread may use.
unsafe impl<T: Copy + Send> Send for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    /// Takes `len` zeroed elements; the context must be current. `T` must be valid when all its bytes are zero.
    pub fn new(primary: &Arc<Primary>, len: usize) -> Result<Mapped<T>> {
        let bytes = len.max(1).saturating_mul(size_of::<T>());
        let mut host: *mut c_void = null_mut();
        // SAFETY: a context is current; the driver writes the address of pinned, mapped memory.
        let result = unsafe { sys::cuMemHostAlloc(&mut host, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) };
        let missing = || Error::out_of_memory("memory shared with the device", bytes);
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            hear("cuMemHostAlloc");
            return Err(missing());
        }
        check("cuMemHostAlloc", result)?;
        let found = NonNull::new(host.cast::<T>()).ok_or_else(missing)?;
        let mut mapped = Mapped { host: found, device: 0, len, primary: Arc::clone(primary) };
        // SAFETY: the memory has that many bytes; it is mapped.
        unsafe {
            std::ptr::write_bytes(host.cast::<u8>(), 0, bytes);
            check("cuMemHostGetDevicePointer", sys::cuMemHostGetDevicePointer_v2(&mut mapped.device, host, 0))?;
        }
        Ok(mapped)
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its first byte, as the device sees it.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Its first byte, as the host sees it.
    pub fn host(&self) -> *mut T {
        self.host.as_ptr()
    }

    /// Element `index`, which the device may have written meanwhile.
    pub fn read(&self, index: usize) -> T {
        assert!(index < self.len);
        // SAFETY: within the memory; volatile, since the device writes it.
        unsafe { self.host.as_ptr().add(index).read_volatile() }
    }

    /// Sets element `index` for the device to read.
    pub fn write(&mut self, index: usize, value: T) {
        assert!(index < self.len);
        // SAFETY: within the memory; volatile, since the device reads it.
        unsafe { self.host.as_ptr().add(index).write_volatile(value) }
    }

    /// Some elements for the host to fill, which the device is not reading.
    pub fn slice_mut(&mut self, start: usize, count: usize) -> &mut [T] {
        assert!(start <= self.len && count <= self.len - start);
        // SAFETY: within the memory, initialised, and borrowed as this is; what the device is told to read was written before.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr().add(start), count) }
    }

    /// Some elements that the device no longer writes: it has ended, or has told so behind its last write.
    pub fn slice(&self, start: usize, count: usize) -> &[T] {
        assert!(start <= self.len && count <= self.len - start);
        // SAFETY: within the memory, and initialised; the runner has waited for the device, or for what it tells.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().add(start), count) }
    }
}

impl Mapped<u32> {
    /// Sets element `index`; a device that reads it and waits for the value finds what was written here before.
    pub fn publish(&mut self, index: usize, value: u32) {
        assert!(index < self.len);
        // SAFETY: within the memory, aligned, and the host writes it nowhere else meanwhile.
        unsafe { AtomicU32::from_ptr(self.host.as_ptr().add(index)) }.store(value, Ordering::Release);
    }
}

impl Mapped<u64> {
    /// Sets element `index`, as [`Mapped::<u32>::publish`] does.
    pub fn publish(&mut self, index: usize, value: u64) {
        assert!(index < self.len);
        // SAFETY: within the memory, aligned, and the host writes it nowhere else meanwhile.
        unsafe { AtomicU64::from_ptr(self.host.as_ptr().add(index)) }.store(value, Ordering::Release);
    }

    /// Element `index`; who finds there what the device has released finds what it wrote before that, too.
    pub fn acquire(&self, index: usize) -> u64 {
        assert!(index < self.len);
        // SAFETY: within the memory, aligned, and the host writes it nowhere meanwhile; the device stores it at once.
        unsafe { AtomicU64::from_ptr(self.host.as_ptr().add(index)) }.load(Ordering::Acquire)
    }
}

impl<T: Copy> Drop for Mapped<T> {
    fn drop(&mut self) {
        if let Ok(_current) = self.primary.enter() {
            // SAFETY: freed once, by its owner; its users have waited for the device.
            _ = check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.host.as_ptr().cast()) });
        }
    }
}
