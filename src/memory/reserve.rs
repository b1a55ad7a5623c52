//! The memory that stands in: a reserve of fixed size in the library's image, and what calls set aside for themselves.
//!
//! Both are heaps of talc's. Whoever frees a block need not know where it came from: the heaps are found by the address. All of this
//! is behind one lock; who frees a block of the system's does not take it in normal times.

use super::{STATE, fallible};
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use talc::base::Talc;
use talc::source::Manual;
use talc::{DefaultBinning, min_first_heap_size};

/// Bytes of the reserve. They are pages of zeros that take no memory before the first refusal.
pub const RESERVE_BYTES: usize = 8 << 20;

type Heap = Talc<Manual, DefaultBinning>;

#[repr(align(64))]
struct Region(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: the bytes are touched by the heap that claims them, which is behind a lock, and by the owners of its blocks.
unsafe impl Sync for Region {}

static REGION: Region = Region(UnsafeCell::new([0; RESERVE_BYTES]));

/// Blocks that are out.
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
/// Headers that are linked.
static LINKED: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the reserve that are out, and the most that ever were.
static USED: AtomicUsize = AtomicUsize::new(0);
#[cfg(feature = "testing")]
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What stands in.
struct StandIn {
    reserve: Heap,
    claimed: bool,
    /// What calls have set aside and use, linked by their headers.
    first: *mut Header,
}

// SAFETY: the list is reached through the lock alone.
unsafe impl Send for StandIn {}

static STAND_IN: Mutex<StandIn> = Mutex::new(StandIn { reserve: Heap::new(Manual), claimed: false, first: null_mut() });

/// The beginning of the memory that a call has set aside; the heap is behind it. Read and written under the lock once it is `linked`.
pub(super) struct Header {
    next: *mut Header,
    heap: Heap,
    /// Bytes of header and heap.
    size: usize,
    blocks: usize,
    /// Whether it is in the list: it is from the first refusal on.
    linked: bool,
    /// Whether the call has ended while blocks were out; the last of them frees it.
    left: bool,
}

/// Whether no block is out. Who holds a block sees that one is.
#[inline]
pub(super) fn is_empty() -> bool {
    BLOCKS.load(Ordering::Relaxed) == 0
}

/// Whether so much of the reserve is out that no further call should begin.
pub fn is_low() -> bool {
    USED.load(Ordering::Relaxed) > RESERVE_BYTES / 2
}

/// Most bytes of the reserve that were ever out.
#[cfg(feature = "testing")]
pub fn reserve_peak() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// A block from what the call has set aside, or else from the reserve; null if neither has room.
pub(super) fn allocate(layout: Layout, backing: *mut Header) -> *mut u8 {
    let mut stand_in = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
    let block = stand_in.allocate_backed(layout, backing).or_else(|| stand_in.allocate_reserved(layout));
    if block.is_some() {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
    }
    block.map_or(null_mut(), NonNull::as_ptr)
}

/// Whether `block` may have come from here: a quick look, since hardly any has. Who holds a block sees what it lies in linked.
#[inline]
fn may_own(block: *mut u8) -> bool {
    in_reserve(block) || LINKED.load(Ordering::Relaxed) > 0
}

/// Whether `block` came from here.
#[inline]
pub(super) fn owns(block: *mut u8) -> bool {
    may_own(block) && (in_reserve(block) || is_linked(block))
}

#[cold]
fn is_linked(block: *mut u8) -> bool {
    let stand_in = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
    !stand_in.header_of(block).is_null()
}

/// Takes `block` back if it came from here; whether it did.
#[inline]
pub(super) fn take_back(block: *mut u8, layout: Layout) -> bool {
    may_own(block) && look_and_take_back(block, layout)
}

#[cold]
fn look_and_take_back(block: *mut u8, layout: Layout) -> bool {
    let mut stand_in = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = None;
    if in_reserve(block) {
        // SAFETY: who frees a block passes the layout that it was asked for with, and only this heap hands out addresses of the region.
        unsafe { stand_in.reserve.deallocate(block, layout) };
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
    } else {
        let header = stand_in.header_of(block);
        if header.is_null() {
            return false;
        }
        // SAFETY: linked headers are alive, and the lock is held. The block lies in the heap behind this one, and in no other.
        let is_last = unsafe {
            (*header).heap.deallocate(block, layout);
            (*header).blocks -= 1;
            (*header).left && (*header).blocks == 0
        };
        if is_last {
            left = Some(stand_in.unlink(header));
        }
    }
    BLOCKS.fetch_sub(1, Ordering::Relaxed);
    drop(stand_in);
    if let Some((header, layout)) = left {
        // SAFETY: nobody refers to it any more, and it was allocated with this layout.
        unsafe { std::alloc::dealloc(header.cast(), layout) };
    }
    true
}

#[inline]
fn in_reserve(block: *mut u8) -> bool {
    block.addr().wrapping_sub(REGION.0.get().addr()) < RESERVE_BYTES
}

impl StandIn {
    fn allocate_reserved(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if !self.claimed {
            // SAFETY: the region belongs to this heap from here on, and nobody else touches it.
            unsafe { self.reserve.claim(REGION.0.get().cast(), RESERVE_BYTES) }?;
            self.claimed = true;
        }
        // SAFETY: who asks an allocator for memory never asks for no bytes.
        let block = unsafe { self.reserve.allocate(layout) }?;
        let _used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        #[cfg(feature = "testing")]
        PEAK.fetch_max(_used, Ordering::Relaxed);
        Some(block)
    }

    fn allocate_backed(&mut self, layout: Layout, backing: *mut Header) -> Option<NonNull<u8>> {
        // SAFETY: null, or the header of the running call's own, which lives as long as it is set. Until it is linked this thread alone uses
        // it, then whoever holds the lock, as this thread does.
        let header = unsafe { backing.as_mut() }?;
        if !header.linked {
            // SAFETY: what lies behind the header belongs to its heap alone.
            unsafe { header.heap.claim(backing.add(1).cast(), header.size - size_of::<Header>()) }?;
            header.linked = true;
            header.next = self.first;
            self.first = backing;
            LINKED.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: who asks an allocator for memory never asks for no bytes.
        let block = unsafe { header.heap.allocate(layout) }?;
        header.blocks += 1;
        Some(block)
    }

    /// The header before the heap that `block` lies in, or null.
    fn header_of(&self, block: *mut u8) -> *mut Header {
        let mut header = self.first;
        // SAFETY: linked headers are alive, and the lock is held.
        while let Some(found) = unsafe { header.as_ref() } {
            if block.addr().wrapping_sub(header.addr()) < found.size {
                break;
            }
            header = found.next;
        }
        header
    }

    /// Takes a header out of the list; what to free it with.
    fn unlink(&mut self, header: *mut Header) -> (*mut Header, Layout) {
        // SAFETY: linked headers are alive, and the lock is held; `place` points to the list's head or to a header's link.
        unsafe {
            let mut place = &raw mut self.first;
            while *place != header {
                place = &raw mut (**place).next;
            }
            *place = (*header).next;
            LINKED.fetch_sub(1, Ordering::Relaxed);
            (header, layout_of((*header).size))
        }
    }
}

fn layout_of(size: usize) -> Layout {
    // The size was a valid one when the memory was set aside.
    Layout::from_size_align(size, align_of::<Header>()).unwrap_or(Layout::new::<Header>())
}

/// Memory that a call has set aside for code that grows with its input and has no way to fail: what the system refuses to this thread
/// comes from here first. Untouched as long as the system refuses nothing.
pub struct Backing {
    header: *mut Header,
    /// What was set aside before; it serves again afterwards.
    outer: *mut Header,
    _of_this_thread: PhantomData<*mut ()>,
}

impl Backing {
    /// Sets `bytes` aside until it is dropped; `None` if there is not so much.
    pub fn new(bytes: usize) -> Option<Backing> {
        let around = size_of::<Header>() + min_first_heap_size::<DefaultBinning>();
        let size = bytes.checked_add(around)?.checked_next_multiple_of(align_of::<Header>())?;
        let layout = Layout::from_size_align(size, align_of::<Header>()).ok()?;
        // SAFETY: the layout has bytes.
        let header = fallible(|| unsafe { std::alloc::alloc(layout) }).cast::<Header>();
        if header.is_null() {
            return None;
        }
        let heap = Heap::new(Manual);
        // SAFETY: the memory is new, and large and aligned enough.
        unsafe { header.write(Header { next: null_mut(), heap, size, blocks: 0, linked: false, left: false }) };
        let outer = STATE.with(|state| state.backing.replace(header));
        Some(Backing { header, outer, _of_this_thread: PhantomData })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        STATE.with(|state| state.backing.set(self.outer));
        // SAFETY: the header is alive, and this thread alone links it.
        let (linked, size) = unsafe { ((*self.header).linked, (*self.header).size) };
        let mut unused = Some((self.header, layout_of(size)));
        if linked {
            let mut stand_in = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the header is alive, and the lock is held.
            let blocks = unsafe { (*self.header).blocks };
            if blocks == 0 {
                stand_in.unlink(self.header);
            } else {
                // SAFETY: as above.
                unsafe { (*self.header).left = true };
                unused = None;
            }
        }
        if let Some((header, layout)) = unused {
            // SAFETY: no block is out and nobody refers to it; it was allocated with this layout.
            unsafe { std::alloc::dealloc(header.cast(), layout) };
        }
    }
}
