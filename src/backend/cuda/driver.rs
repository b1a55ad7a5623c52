//! The CUDA driver, as far as finding devices goes: opened on first use, checked before anything is asked of it.
//!
//! The bindings open `libcuda` lazily and panic when it is missing, so [`open`] is the only way in: it looks for the library and
//! its version before any other call. A [`Driver`] is proof that both are there.

use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUresult, CUstream};
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Oldest CUDA version of a driver that this library uses: that of the compiler of its kernels.
const OLDEST: u32 = 13_000;
/// The driver release that brought it, which users know better.
const OLDEST_RELEASE: &str = "580";
/// How long a call waits for the device when nobody says: longer than any other process may keep a device that works.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Times that a waiting thread spins between two questions to the driver, so that it does not keep the driver's locks from other threads.
const PAUSE: usize = 32;

/// A driver that is there, new enough and initialised.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: u32,
}

/// One GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    handle: CUdevice,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    /// All of it.
    pub total: u64,
    /// What can be taken now.
    pub free: u64,
}

/// Opens the driver. Looks again after a failure, so that a driver installed meanwhile is found.
pub fn open() -> Result<Driver> {
    static OPENED: OnceLock<Driver> = OnceLock::new();
    if let Some(&driver) = OPENED.get() {
        return Ok(driver);
    }
    let driver = find()?;
    Ok(*OPENED.get_or_init(|| driver))
}

fn find() -> Result<Driver> {
    // SAFETY: opens the shared library by its well-known names and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Unsupported("there is no nvidia driver: libcuda.so.1 was not found".into()));
    }
    let mut version: c_int = 0;
    // SAFETY: the library is present; every version of it has this call, which needs no initialisation.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    let version = u32::try_from(version).unwrap_or(0);
    new_enough(version)?;
    // SAFETY: a present library; 0 is the one value that the flags may have.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_ERROR_NO_DEVICE => Err(Error::NotFound("the nvidia driver shows no cuda device".into())),
        result => check("cuInit", result).map(|()| Driver { version }),
    }
}

fn new_enough(version: u32) -> Result<()> {
    if version >= OLDEST {
        return Ok(());
    }
    let (major, minor) = (version / 1000, version % 1000 / 10);
    let (needed_major, needed_minor) = (OLDEST / 1000, OLDEST % 1000 / 10);
    Err(Error::Unsupported(format!(
        "the nvidia driver knows cuda {major}.{minor}, {needed_major}.{needed_minor} is needed: install driver {OLDEST_RELEASE} or newer"
    )))
}

/// Notes a driver call, for tests.
#[cfg(feature = "testing")]
pub use super::testing::hear;
#[cfg(not(feature = "testing"))]
pub fn hear(_call: &'static str) {}

/// Turns a failed driver call into an error that names it. Every call of this backend passes here.
pub fn check(call: &'static str, result: CUresult) -> Result<()> {
    hear(call);
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: writes a pointer to a static string, or leaves it NULL for a number that the driver does not know.
    unsafe { sys::cuGetErrorString(result, &mut text) };
    let reason = if text.is_null() {
        "unknown error".into()
    } else {
        // SAFETY: the driver's strings are static and end with NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy()
    };
    Err(Error::Device(format!("{call}: {reason} ({})", result as u32)))
}

impl Driver {
    /// Its CUDA version, as the driver counts: 13000 for 13.0.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Number of devices.
    pub fn devices(&self) -> Result<usize> {
        let mut count: c_int = 0;
        // SAFETY: the driver is initialised.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Device `index`.
    pub fn device(&self, index: usize) -> Result<Device> {
        let count = self.devices()?;
        let ordinal = c_int::try_from(index).ok().filter(|_| index < count);
        let ordinal =
            ordinal.ok_or_else(|| Error::NotFound(format!("there is no cuda device {index}; there are {count}")))?;
        let mut handle: CUdevice = 0;
        // SAFETY: the driver is initialised and has a device of this number.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut handle, ordinal) })?;
        Ok(Device { handle })
    }
}

impl Device {
    /// Its number, as the driver counts.
    pub fn ordinal(&self) -> i32 {
        self.handle
    }

    /// What the maker calls it.
    pub fn name(&self) -> Result<String> {
        let mut name = [0; 128];
        // SAFETY: the buffer has the length that is told; the handle comes from the driver.
        check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, self.handle) })?;
        // SAFETY: on success the driver has ended the text with NUL inside the buffer.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Compute capability, ten times the major number plus the minor one.
    pub fn compute(&self) -> Result<u32> {
        let major = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(10 * major + minor)
    }

    /// Most shared memory of a block, in bytes.
    pub fn shared_memory(&self) -> Result<u32> {
        self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    /// Number of its multiprocessors.
    pub fn processors(&self) -> Result<u32> {
        self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// Bytes a second that its memory can move, by clock and width.
    pub fn memory_bandwidth(&self) -> Result<f64> {
        let kilohertz = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        let bits = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        // Two transfers a cycle.
        Ok(2.0 * f64::from(kilohertz) * 1e3 * f64::from(bits) / 8.0)
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<u32> {
        let mut value: c_int = 0;
        // SAFETY: the handle comes from the driver.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.handle) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// All memory and what is free of it, which the driver tells inside a context only.
    pub fn memory(&self) -> Result<DeviceMemory> {
        let primary = Primary::retain(*self)?;
        let _current = primary.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device's context is current on this thread.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(DeviceMemory { total: total as u64, free: free as u64 })
    }
}

/// The context that this backend works in: the device's primary one, which CUDA runtime programs in this process use too, or one of the host's own.
pub struct Primary {
    context: CUcontext,
    device: Device,
    /// Whether `context` is a share that must be given back; the host keeps its own.
    shared: bool,
    stream_priority: c_int,
    longest_wait: Duration,
    /// Whether the device did not answer in time: no call may be made any more, as each might wait for ever.
    lost: AtomicBool,
}

/// What a wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The work has ended.
    Ended,
    /// The host gave it up; the device may still be at work.
    Cancelled,
}

impl Primary {
    /// Takes a share.
    pub fn retain(device: Device) -> Result<Primary> {
        let mut context: CUcontext = null_mut();
        // SAFETY: the handle comes from the driver; the share is given back when the value drops.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device.handle) })?;
        Ok(Primary::new(context, device, true))
    }

    fn new(context: CUcontext, device: Device, shared: bool) -> Primary {
        let lost = AtomicBool::new(false);
        Primary { context, device, shared, stream_priority: 0, longest_wait: LONGEST_WAIT, lost }
    }

    /// Works in a context of the host's own, the address of a `CUcontext` that must outlive the result.
    pub fn adopt(context: usize) -> Result<Primary> {
        let context = std::ptr::with_exposed_provenance_mut(context);
        let mut adopted = Primary::new(context, Device { handle: 0 }, false);
        let current = adopted.enter()?;
        let mut handle: CUdevice = 0;
        // SAFETY: the host's context is current on this thread.
        check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut handle) })?;
        drop(current);
        adopted.device = Device { handle };
        Ok(adopted)
    }

    /// Whether addresses of the other one are good here.
    pub fn is_same(&self, other: &Primary) -> bool {
        self.context == other.context
    }

    /// Gives streams that are made from now on this priority, of which lower numbers run first. Refuses what the device does not have.
    pub fn set_stream_priority(&mut self, priority: i32) -> Result<()> {
        let current = self.enter()?;
        let (mut last, mut first): (c_int, c_int) = (0, 0);
        // SAFETY: the context is current on this thread.
        check("cuCtxGetStreamPriorityRange", unsafe { sys::cuCtxGetStreamPriorityRange(&mut last, &mut first) })?;
        drop(current);
        if !(first..=last).contains(&priority) {
            return Err(Error::InvalidArgument(format!(
                "stream_priority is {priority}; this device takes {first} (runs first) to {last}"
            )));
        }
        self.stream_priority = priority;
        Ok(())
    }

    /// Priority of new streams.
    pub fn stream_priority(&self) -> i32 {
        self.stream_priority
    }

    /// The device that it belongs to.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Lets calls wait so long for the device; zero for as long as they do when nobody says.
    pub fn set_longest_wait(&mut self, longest: Duration) {
        self.longest_wait = if longest.is_zero() { LONGEST_WAIT } else { longest };
    }

    /// How long a call waits for the device.
    pub fn longest_wait(&self) -> Duration {
        self.longest_wait
    }

    /// Gives the device up, as it has not answered within `limit`; the error to report.
    pub fn give_up(&self, limit: Duration) -> Error {
        self.lost.store(true, Ordering::Relaxed);
        let seconds = limit.as_secs_f64();
        Error::Device(format!(
            "the gpu has not answered for {seconds:.1} s: free what was made from this context; its memory on the gpu comes back when the process ends"
        ))
    }

    /// Whether the device was given up.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything started in `stream` has ended: for `limit` at the longest, which gives the device up, or until `cancel` is raised.
    pub fn wait(&self, stream: CUstream, limit: Duration, cancel: &AtomicBool) -> Result<Waited> {
        let start = Instant::now();
        loop {
            // Looked at before the device is asked, so that a process which was stopped for a while asks once more.
            let is_late = start.elapsed() > limit;
            if is_idle(stream)? {
                return Ok(Waited::Ended);
            }
            if is_late {
                return Err(self.give_up(limit));
            }
            if cancel.load(Ordering::Relaxed) {
                return Ok(Waited::Cancelled);
            }
            (0..PAUSE).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Makes the context current on this thread until the result drops; the host's own is current again afterwards. Fails when the device was
    /// given up, so that what it may still be using is never freed.
    pub fn enter(&self) -> Result<Current<'_>> {
        if self.is_lost() {
            let message =
                "the gpu has stopped answering: free what was made from this context, and restart the process";
            return Err(Error::Device(message.into()));
        }
        // SAFETY: the context lives as long as `self`, which the result borrows.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context) })?;
        Ok(Current { _primary: self })
    }
}

// SAFETY: a context is a handle that any thread may make current; the driver guards it itself.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

impl Drop for Primary {
    fn drop(&mut self) {
        if self.shared && !self.is_lost() {
            // SAFETY: gives back the one share that `retain` took.
            _ = check("cuDevicePrimaryCtxRelease", unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.handle) });
        }
    }
}

/// Whether everything started in a living stream has ended; a failed kernel is an error.
pub fn is_idle(stream: CUstream) -> Result<bool> {
    // SAFETY: the stream lives, as the caller says.
    let result = unsafe { sys::cuStreamQuery(stream) };
    if result == CUresult::CUDA_ERROR_NOT_READY {
        hear("cuStreamQuery");
        return Ok(false);
    }
    check("cuStreamQuery", result).map(|()| true)
}

/// While it lives, a context of ours is current on this thread.
pub struct Current<'a> {
    _primary: &'a Primary,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped: CUcontext = null_mut();
        // SAFETY: takes off what `enter` put on this thread's stack of contexts.
        _ = check("cuCtxPopCurrent", unsafe { sys::cuCtxPopCurrent_v2(&mut popped) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_refused_with_both_versions() {
        let message = new_enough(12_080).unwrap_err().to_string();
        assert!(message.contains("cuda 12.8") && message.contains("13.0") && message.contains("580"), "{message}");
        assert!(new_enough(13_000).is_ok() && new_enough(14_010).is_ok());
    }

    #[test]
    fn a_device_beyond_the_last_is_an_error_and_never_a_panic() {
        let found = open().and_then(|driver| driver.device(4096));
        assert!(matches!(found, Err(Error::Unsupported(_) | Error::NotFound(_))), "{found:?}");
    }
}
