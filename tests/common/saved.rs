//! Saving and restoring sequences by callbacks, as a host does.

use super::{Result, Session, call};
use segno::ffi::saved::*;
use segno::ffi::seq::segno_sampler_opts;
use segno::ffi::status::SEGNO_OK;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::null;
use std::time::Instant;

/// A host's end of a saved sequence: takes bytes until it has `room`, or gives those behind `at`, at most `step` at a time.
pub struct Host {
    pub bytes: Vec<u8>,
    pub room: usize,
    pub at: usize,
    pub step: usize,
}

/// # Safety
/// As `segno_write_fn` is called, with a host.
pub unsafe extern "C" fn take(user: *mut c_void, data: *const c_void, len: usize) -> i32 {
    // SAFETY: `user` is the host of the running call, `data` has so many bytes.
    let (host, data) = unsafe { (&mut *user.cast::<Host>(), std::slice::from_raw_parts(data.cast::<u8>(), len)) };
    if host.bytes.len() + len > host.room {
        return 5;
    }
    host.bytes.extend_from_slice(data);
    0
}

/// # Safety
/// As `segno_read_fn` is called, with a host.
pub unsafe extern "C" fn give(user: *mut c_void, data: *mut c_void, len: usize) -> usize {
    // SAFETY: as above.
    let (host, data) = unsafe { (&mut *user.cast::<Host>(), std::slice::from_raw_parts_mut(data.cast::<u8>(), len)) };
    let count = len.min(host.step).min(host.bytes.len() - host.at);
    data[..count].copy_from_slice(&host.bytes[host.at..][..count]);
    host.at += count;
    count
}

pub fn save_within(session: &Session, seq: i32, room: usize) -> Result<Vec<u8>> {
    let mut host = Host { bytes: Vec::new(), room, at: 0, step: 0 };
    call(|err| segno_seq_save(session.0, seq, Some(take), (&raw mut host).cast(), err)).map(|status| {
        assert_eq!(status, SEGNO_OK);
        host.bytes
    })
}

pub fn save(session: &Session, seq: i32) -> Vec<u8> {
    save_within(session, seq, usize::MAX).unwrap()
}

/// Restores by reads of at most `step` bytes; the sequence, and how many bytes were read.
pub fn restore_by(
    session: &Session,
    bytes: &[u8],
    step: usize,
    opts: *const segno_sampler_opts,
) -> Result<(i32, usize)> {
    let (mut host, mut seq) = (Host { bytes: bytes.to_vec(), room: 0, at: 0, step }, -7);
    let result = call(|err| segno_seq_restore(session.0, Some(give), (&raw mut host).cast(), opts, &mut seq, err));
    assert_eq!(result.is_ok(), seq != -7);
    result.map(|_| (seq, host.at))
}

pub fn restore(session: &Session, bytes: &[u8]) -> Result<i32> {
    restore_by(session, bytes, usize::MAX, null()).map(|(seq, _)| seq)
}

/// Saves a sequence to memory and restores it from there: bytes, and seconds of each way.
pub fn through_memory(session: &Session, seq: i32) -> (usize, [f64; 2]) {
    let mut host = Host { bytes: Vec::new(), room: usize::MAX, at: 0, step: usize::MAX };
    let save = |host: &mut Host| {
        host.bytes.clear();
        call(|err| segno_seq_save(session.0, seq, Some(take), (&raw mut *host).cast(), err)).unwrap();
    };
    // The first time brings the fingerprint of the model, and room for the bytes.
    save(&mut host);
    let start = Instant::now();
    save(&mut host);
    let out = start.elapsed().as_secs_f64();
    let (start, mut again) = (Instant::now(), -1);
    call(|err| segno_seq_restore(session.0, Some(give), (&raw mut host).cast(), null(), &mut again, err)).unwrap();
    let back = start.elapsed().as_secs_f64();
    session.close(again).unwrap();
    (host.bytes.len(), [out, back])
}

/// The same through a file.
pub fn through_file(session: &Session, seq: i32, path: &Path) -> (usize, [f64; 2]) {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let start = Instant::now();
    call(|err| segno_seq_save_file(session.0, seq, name.as_ptr(), err)).unwrap();
    let out = start.elapsed().as_secs_f64();
    let (start, mut again) = (Instant::now(), -1);
    call(|err| segno_seq_restore_file(session.0, name.as_ptr(), null(), &mut again, err)).unwrap();
    let back = start.elapsed().as_secs_f64();
    session.close(again).unwrap();
    (std::fs::metadata(path).unwrap().len() as usize, [out, back])
}
