//! Loading, decoding and freeing again and again gives all memory, threads and files back.
//!
//! `SEGNO_CYCLES` sets how often; 100 by default.

mod common;

use common::{Ctx, bundled_model, call, sampler};
use segno::ffi::text::{segno_text_create, segno_text_free, segno_text_push};
use std::ptr::{null, null_mut};

const WARM_UP: usize = 20;

/// One life of a host's objects, freed in one of two orders.
fn live(children_first: bool) {
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let session = model.session(|opts| opts.kv_tokens = 512).unwrap();
    let (mut text, mut len) = (null_mut(), 0);
    call(|err| segno_text_create(model.0, null(), &mut text, err)).unwrap();
    let seq = session.open(&sampler()).unwrap();
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

/// Resident bytes, threads and open files of this process.
fn held() -> (usize, usize, usize) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    (pages * 4096, count("/proc/self/task"), count("/proc/self/fd"))
}

#[test]
fn memory_threads_and_files_come_back() {
    let cycles = std::env::var("SEGNO_CYCLES").map_or(100, |text| text.parse().expect("a number"));
    (0..WARM_UP).for_each(|cycle| live(cycle % 2 == 0));
    let (bytes, threads, files) = held();
    (0..cycles).for_each(|cycle| live(cycle % 2 == 0));
    let (bytes_after, threads_after, files_after) = held();
    println!("{cycles} cycles: {bytes} resident bytes before, {bytes_after} after");
    assert_eq!((threads, files), (threads_after, files_after));
    assert!(bytes_after <= bytes + bytes / 50, "{bytes} resident bytes before, {bytes_after} after {cycles} cycles");
}
