//! A disk without room, as a limit on the size of files stands for: in a process of its own, which the limit is of.

#![cfg(unix)]

#[path = "../common/mod.rs"]
mod common;

use common::{Ctx, Folder, call, root};
use segno::ffi::model::segno_model_save;
use segno::ffi::status::SEGNO_E_IO;
use std::ffi::CString;
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

#[test]
fn a_file_that_finds_no_room_is_removed() {
    let folder = Folder::new("save-full");
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let source = root().join("tests/golden/hf/llama-llama3.gguf");
    let bytes = std::fs::metadata(&source).unwrap().len();
    let model = ctx.load(&source).unwrap();
    let target = folder.join("model.gguf");
    std::fs::write(&target, b"another file").unwrap();
    let path = CString::new(target.to_str().unwrap()).unwrap();
    let save = || call(|err| segno_model_save(model.0, path.as_ptr(), null(), err));
    for room in [0, 100, bytes / 2, bytes - 4096] {
        limit(room);
        let failed = save().unwrap_err();
        limit(libc::RLIM_INFINITY);
        assert!(failed.status == SEGNO_E_IO && failed.message.contains("cannot write"), "{}", failed.message);
        assert_eq!(std::fs::read(&target).unwrap(), b"another file");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something is left of the attempt");
    }
    save().unwrap();
    assert!(std::fs::metadata(&target).unwrap().len() > bytes / 2);
}
