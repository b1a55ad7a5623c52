//! A disk without room, as a limit on the size of files stands for: in a process of its own, which the limit is of.

#![cfg(unix)]

#[path = "../common/mod.rs"]
mod common;

use common::{Ctx, Folder, Result, call, greedy, root};
use segno::ffi::model::segno_model_save;
use segno::ffi::saved::segno_seq_save_file;
use segno::ffi::status::{SEGNO_E_IO, segno_status};
use std::ffi::CString;
use std::path::Path;
use std::ptr::null;

/// Lets no file of this process grow beyond `bytes`.
fn limit(bytes: u64) {
    // SAFETY: plain calls of the C library with valid arguments; a signal that is ignored makes the write fail instead.
    let done = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY })
    };
    assert_eq!(done, 0);
}

/// Calls `save` with too little room for its `bytes`, then with enough: the file at `target` stays as it was until it is whole.
fn saves_whole_or_not_at_all(folder: &Folder, target: &Path, bytes: u64, save: &dyn Fn() -> Result<segno_status>) {
    std::fs::write(target, b"another file").unwrap();
    for room in [0, 100, bytes / 2, bytes - 4096] {
        limit(room);
        let failed = save().unwrap_err();
        limit(libc::RLIM_INFINITY);
        assert!(failed.status == SEGNO_E_IO && failed.message.contains("cannot write"), "{}", failed.message);
        assert_eq!(std::fs::read(target).unwrap(), b"another file");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something is left of the attempt");
    }
    save().unwrap();
    assert!(std::fs::metadata(target).unwrap().len() > bytes / 2);
}

/// One test, as the limit is of the process.
#[test]
fn a_file_that_finds_no_room_is_removed() {
    let folder = Folder::new("save-full");
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let source = root().join("tests/golden/hf/llama-llama3.gguf");
    let model = ctx.load(&source).unwrap();
    let target = folder.join("saved");
    let path = CString::new(target.to_str().unwrap()).unwrap();
    let save_model = || call(|err| segno_model_save(model.0, path.as_ptr(), null(), err));
    saves_whole_or_not_at_all(&folder, &target, std::fs::metadata(&source).unwrap().len(), &save_model);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5; 100]).unwrap();
    let save_sequence = || call(|err| segno_seq_save_file(session.0, seq, path.as_ptr(), err));
    save_sequence().unwrap();
    let bytes = std::fs::metadata(&target).unwrap().len();
    saves_whole_or_not_at_all(&folder, &target, bytes, &save_sequence);
}
