//! Devices of this machine, before a context is made on one.

use super::argument::{Out, SizedStruct, chars, write_sized};
use super::error::segno_error;
use super::guard::guard;
use super::status::{SEGNO_OK, segno_status};
use crate::engine::device::{self, Kind};
use crate::error::{Error, Result};
use std::ffi::c_char;

/// The best device of this machine: a GPU where the library can use one, otherwise the processor.
pub const SEGNO_DEVICE_AUTO: i32 = 0;
/// The processor.
pub const SEGNO_DEVICE_CPU: i32 = 1;
/// An NVIDIA GPU.
pub const SEGNO_DEVICE_CUDA: i32 = 2;

/// One device.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_device_info {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// `SEGNO_DEVICE_CPU` or `SEGNO_DEVICE_CUDA`.
    pub kind: i32,
    /// All memory of the device, in bytes.
    pub memory_total: u64,
    /// Memory that can be taken now, in bytes.
    pub memory_free: u64,
    /// What the maker calls it.
    pub name: [c_char; 128],
    /// Compute capability of a GPU, ten times the major number plus the minor one, as in 90 for 9.0; 0 for the processor.
    pub compute_capability: u32,
    /// CUDA version that a GPU's driver knows, as in 13000 for 13.0; 0 for the processor.
    pub driver_version: u32,
}

// SAFETY: repr(C), size first, 4 + 4 + 8 + 8 + 128 + 4 + 4 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_device_info {}

pub(super) fn kind_of(kind: i32) -> Result<Kind> {
    match kind {
        SEGNO_DEVICE_AUTO => Ok(Kind::Auto),
        SEGNO_DEVICE_CPU => Ok(Kind::Cpu),
        SEGNO_DEVICE_CUDA => Ok(Kind::Cuda),
        _ => Err(Error::InvalidArgument(format!("there is no device kind {kind}"))),
    }
}

/// Number of devices of a kind (`SEGNO_DEVICE_...`); for `SEGNO_DEVICE_CUDA` those that the driver shows, 0 without a
/// usable driver. Whether the library can run models on them, `segno_has_feature("cuda")` tells.
///
/// `out` receives the number. Codes: INVALID_ARGUMENT (unknown kind), NULL_POINTER. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_device_count(kind: i32, out: *mut i32, err: *mut *mut segno_error) -> segno_status {
    guard(None, err, || {
        let out = Out::new(out, "out")?;
        out.set(i32::try_from(device::count(kind_of(kind)?)).unwrap_or(i32::MAX));
        Ok(SEGNO_OK)
    })
}

/// Describes device `index` of a kind; `SEGNO_DEVICE_AUTO` describes the one that a context would choose.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: INVALID_ARGUMENT (unknown kind), NULL_POINTER, NOT_FOUND (no
/// such device), DEVICE (the driver failed). Asking for a GPU makes its primary context for the time of the call; the thread's current context
/// is as before. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_device_info_get(
    kind: i32,
    index: i32,
    out: *mut segno_device_info,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        let index =
            usize::try_from(index).map_err(|_| Error::InvalidArgument(format!("device index {index} is negative")))?;
        let info = device::info(kind_of(kind)?, index)?;
        let value = segno_device_info {
            struct_size: 0,
            kind: match info.kind {
                Kind::Cuda => SEGNO_DEVICE_CUDA,
                Kind::Auto | Kind::Cpu => SEGNO_DEVICE_CPU,
            },
            memory_total: info.memory_total,
            memory_free: info.memory_free,
            name: chars(&info.name),
            compute_capability: info.compute,
            driver_version: info.driver,
        };
        write_sized(out, size, &value, "out")?;
        Ok(SEGNO_OK)
    })
}
