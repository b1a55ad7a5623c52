//! A kernel that fails on the device: the host's wait ends, calls answer DEVICE, and the process lives. Such a fault stays with the process, so this
//! is a test program of one test. On a machine without a GPU it says so and proves nothing.

#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

use common::{Ctx, Session, bundled_model, greedy};
use cudarc::driver::sys;
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::status::{SEGNO_E_DEVICE, SEGNO_OK};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A kernel that waits a while, and then writes where nothing is mapped.
const WRITES_NOWHERE: &std::ffi::CStr = c"
.version 7.0
.target sm_80
.address_size 64
.visible .entry writes_nowhere()
{
    .reg .b64 %rd<4>;
    .reg .pred %p;
    mov.u64 %rd1, %clock64;
again:
    mov.u64 %rd2, %clock64;
    sub.u64 %rd2, %rd2, %rd1;
    setp.lt.u64 %p, %rd2, 20000000;
    @%p bra again;
    mov.u64 %rd3, 64;
    st.global.u64 [%rd3], %rd1;
    ret;
}
";

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// Starts the kernel in the primary context, which a session uses too.
fn break_device() {
    let (mut context, mut module, mut function) = (null_mut(), null_mut(), null_mut());
    // SAFETY: device 0 exists; the text ends with NUL; the kernel has no arguments. What it does to the context is the purpose.
    unsafe {
        check(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        check(sys::cuCtxPushCurrent_v2(context));
        check(sys::cuModuleLoadData(&mut module, WRITES_NOWHERE.as_ptr().cast()));
        check(sys::cuModuleGetFunction(&mut function, module, c"writes_nowhere".as_ptr()));
        let none = null_mut();
        check(sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), none));
        check(sys::cuCtxPopCurrent_v2(&mut context));
    }
}

/// Steps until one fails; how it failed, and after how many steps.
fn step_until_failure(session: &Session, seq: i32) -> (common::Failed, usize) {
    let start = Instant::now();
    for steps in 0.. {
        match session.step(seq) {
            Err(failed) => return (failed, steps),
            Ok((_, status)) => assert_eq!(status, SEGNO_OK),
        }
        if session.length(seq).unwrap() >= 100 {
            session.truncate(seq, 3).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the fault was never noticed");
    }
    unreachable!("steps have no end")
}

#[test]
fn a_fault_on_the_device_is_an_error_of_the_call() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let (session, idle) = (model.session(|_| ()).unwrap(), model.session(|_| ()).unwrap());
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5, 6, 7]).unwrap();
    let ready = Barrier::new(2);
    let (failed, steps) = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            session.step(seq).unwrap();
            ready.wait();
            step_until_failure(&session, seq)
        });
        ready.wait();
        break_device();
        running.join().unwrap()
    });
    println!("after {steps} steps: {}", failed.message);
    assert_eq!(failed.status, SEGNO_E_DEVICE);
    assert!(failed.message.starts_with("device failure: cu"), "{}", failed.message);
    // The session stays as it is; every object answers, and can be freed.
    assert_eq!(session.step(seq).err().unwrap().status, SEGNO_E_DEVICE);
    assert!(session.length(seq).unwrap() >= 3);
    let other = idle.open(&greedy()).unwrap();
    assert_eq!(idle.prefill(other, &[1, 2]).err().unwrap().status, SEGNO_E_DEVICE);
    assert_eq!(ctx.load(&bundled_model()).err().unwrap().status, SEGNO_E_DEVICE);
    assert_eq!(model.session(|_| ()).err().unwrap().status, SEGNO_E_DEVICE);
    drop((session, idle, model, ctx));
    let processor = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CPU).unwrap();
    let session = processor.load(&bundled_model()).unwrap().session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5, 6, 7]).unwrap();
    assert_eq!(session.generate(seq, 20).unwrap().len(), 20);
}
