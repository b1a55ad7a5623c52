//! GPUs as a host sees them through the C API. On a machine without one the tests say so and prove nothing.

use crate::common;
use crate::common::call;
use cudarc::driver::sys;
use segno::ffi::device::*;
use segno::ffi::status::{SEGNO_E_NOT_FOUND, SEGNO_E_UNSUPPORTED};
use std::ptr::null_mut;

fn count() -> i32 {
    let mut count = -1;
    call(|err| segno_device_count(SEGNO_DEVICE_CUDA, &mut count, err)).unwrap();
    count
}

fn info(index: i32) -> common::Result<segno_device_info> {
    // SAFETY: numbers only, so zeros are a value.
    let mut info: segno_device_info = unsafe { std::mem::zeroed() };
    call(|err| segno_device_info_get(SEGNO_DEVICE_CUDA, index, &mut info, size_of::<segno_device_info>(), err))?;
    Ok(info)
}

fn current() -> sys::CUcontext {
    let mut context = null_mut();
    // SAFETY: a device was found, so the driver is open and initialised.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, sys::CUresult::CUDA_SUCCESS);
    context
}

#[test]
fn a_gpu_beyond_the_last_is_not_found() {
    assert!(count() >= 0);
    assert_eq!(info(count()).err().map(|failed| failed.status), Some(SEGNO_E_NOT_FOUND));
}

#[test]
fn a_gpu_tells_its_name_memory_and_versions() {
    if !common::gpu() {
        return;
    }
    let info = info(0).unwrap();
    assert_eq!(info.kind, SEGNO_DEVICE_CUDA);
    assert!(info.name[0] != 0 && info.memory_free > 0 && info.memory_total >= info.memory_free);
    assert!(info.compute_capability >= 50 && info.driver_version >= 13_000, "{}", info.driver_version);
}

#[test]
fn asking_a_gpu_leaves_a_thread_without_a_context_as_it_was() {
    if common::gpu() {
        info(0).unwrap();
        assert!(current().is_null());
    }
}

#[test]
fn asking_a_gpu_leaves_the_host_its_own_context() {
    if !common::gpu() {
        return;
    }
    let mut host = null_mut();
    // SAFETY: device 0 exists; the share and the place on the stack are given back below.
    unsafe {
        assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut host, 0), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxPushCurrent_v2(host), sys::CUresult::CUDA_SUCCESS);
    }
    info(0).unwrap();
    assert_eq!(current(), host);
    let failed = common::Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).err().map(|failed| failed.status);
    assert!(failed.is_none_or(|status| status == SEGNO_E_UNSUPPORTED));
    assert_eq!(current(), host);
    // SAFETY: undoes what was done above, in reverse order.
    unsafe {
        sys::cuCtxPopCurrent_v2(&mut host);
        sys::cuDevicePrimaryCtxRelease_v2(0);
    }
}
