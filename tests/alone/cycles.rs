//! Loading, decoding and freeing again and again gives all memory, threads and files back.
//!
//! `SEGNO_CYCLES` sets how often; 100 by default.

#[path = "../common/mod.rs"]
mod common;

use common::{Ctx, bundled_model, call, sampler};
use segno::ffi::text::{segno_text_create, segno_text_free, segno_text_push};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// The library keeps the heads of the last 64 objects of each kind that were freed.
const WARM_UP: usize = 80;
const ATTEMPTS: usize = 3;

/// One life of a host's objects, freed in one of two orders.
fn live(children_first: bool) {
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let session = model.session(|opts| opts.kv_tokens = 512).unwrap();
    let (mut text, mut len) = (null_mut(), 0);
    call(|err| segno_text_create(model.0, null(), &mut text, err)).unwrap();
    let seq = session.open(&sampler()).unwrap();
    let adapter = model.adapter(&bundled_model().with_file_name("shakespeare-lora.gguf")).unwrap();
    session.adapt(seq, &[(&adapter, 1.0), (&adapter, 0.5)]).unwrap();
    session.prefill(seq, &[5, 6, 7, 8]).unwrap();
    for _ in 0..4 {
        let (token, _) = session.step(seq).unwrap();
        let mut room = [0; 256];
        call(|err| segno_text_push(text, token, room.as_mut_ptr(), room.len(), &mut len, err)).unwrap();
    }
    // A refused load, too, leaves nothing.
    ctx.load("/no/such/file.gguf".as_ref()).err().unwrap();
    if children_first {
        segno_text_free(text);
        drop(session);
        drop(model);
    } else {
        drop(ctx);
        drop(model);
        drop(session);
        segno_text_free(text);
    }
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn threads() -> usize {
    count("/proc/self/task")
}

/// Resident bytes, threads and open files of this process, which had `threads_before` threads before it used the library: the system
/// lists a thread for a moment after it was joined. Bytes that no file holds: what is mapped comes and goes as the system sees fit.
fn held(threads_before: usize) -> (usize, usize, usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while threads() > threads_before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap();
    assert!(!read("maps").contains(".gguf"), "a model is still mapped");
    let status = read("status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes: usize = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap();
    (kilobytes << 10, threads(), count("/proc/self/fd"))
}

#[test]
fn memory_threads_and_files_come_back() {
    let cycles = std::env::var("SEGNO_CYCLES").map_or(100, |text| text.parse().expect("a number"));
    let alone = threads();
    (0..WARM_UP).for_each(|cycle| live(cycle % 2 == 0));
    // What is lost grows each time; the system's allocator may take a little more once.
    for attempt in 1..=ATTEMPTS {
        let (bytes, threads_held, files) = held(alone);
        (0..cycles).for_each(|cycle| live(cycle % 2 == 0));
        let (bytes_after, threads_after, files_after) = held(alone);
        println!("{cycles} cycles: {bytes} resident bytes before, {bytes_after} after");
        assert_eq!((threads_held, files), (threads_after, files_after));
        if bytes_after <= bytes + bytes / 50 {
            return;
        }
        assert!(attempt < ATTEMPTS, "{bytes} resident bytes before, {bytes_after} after {cycles} cycles");
    }
}
