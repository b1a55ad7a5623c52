//! Faults of the system: files that cannot be mapped or read, threads that cannot be started, and a pool of pages that runs out in
//! the middle of a batch. Each is an error, nothing is kept, and what was there before goes on.
//!
//! Limits hold for a whole process, so the tests that set one run in a process of their own.

#[path = "../common/mod.rs"]
mod common;

use common::gguf::{Shape, Storage};
use common::process::{assert_passes, program};
use common::skip::{Lack, skip};
use common::{Ctx, Folder, Model, Result, bundled_model, greedy, model_opts};
use segno::ffi::{chat::*, model::*, status::*};
use std::ffi::{CString, c_void};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads and files are counted for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const MEBIBYTE: usize = 1 << 20;
/// Tokens that a sequence is to have.
const TOKENS: usize = 90;

fn context(threads: u32) -> Result<Ctx> {
    Ctx::new(|opts| (opts.device, opts.n_threads) = (segno::ffi::device::SEGNO_DEVICE_CPU, threads))
}

fn load(ctx: &Ctx, path: &Path, flags: u32) -> Result<Model> {
    let mut opts = model_opts(flags, &mut common::Watch::default());
    opts.progress = None;
    ctx.load_with(path, &opts).map(|(_, model)| model)
}

/// Statuses of a load, mapped and read.
fn statuses(ctx: &Ctx, path: &Path) -> [segno_status; 2] {
    [0, SEGNO_MODEL_NO_MMAP].map(|flags| load(ctx, path, flags).err().map_or(SEGNO_OK, |failed| failed.status))
}

/// Threads of the library, and open files of this process.
fn held() -> (usize, usize) {
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let threads =
        fs::read_dir("/proc/self/task").unwrap().filter(|task| name(task.as_ref().unwrap()).starts_with("segno"));
    (threads.count(), fs::read_dir("/proc/self/fd").unwrap().count())
}

/// Asserts that no more is held than `before`; the system lists a thread for a moment after it was joined.
fn assert_held(before: (usize, usize), what: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while held() != before && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(held(), before, "{what}");
}

/// A first prompt and its tokens, which say whether a model works.
fn tokens_of(model: &Model) -> Vec<i32> {
    let session = model.session(|opts| opts.kv_tokens = 128).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5, 6, 7]).unwrap();
    session.generate(seq, 4).unwrap()
}

#[test]
fn what_is_no_readable_file_is_an_error_at_once() {
    let _alone = alone();
    let (folder, ctx) = (Folder::new("no-files"), context(1).unwrap());
    let pipe = folder.join("pipe.gguf");
    let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    fs::write(folder.join("empty.gguf"), b"").unwrap();
    std::os::unix::fs::symlink("loop.gguf", folder.join("loop.gguf")).unwrap();
    let before = held();
    for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
        assert_eq!(statuses(&ctx, path), [SEGNO_E_INVALID_ARGUMENT; 2], "{}", path.display());
    }
    for path in [folder.join("absent.gguf"), folder.join("loop.gguf"), folder.join("empty.gguf/x")] {
        assert_eq!(statuses(&ctx, &path), [SEGNO_E_IO; 2], "{}", path.display());
    }
    // Files of the system say that they are empty.
    for path in [folder.join("empty.gguf"), "/proc/self/maps".into(), "/proc/self/mem".into()] {
        assert_eq!(statuses(&ctx, &path), [SEGNO_E_FORMAT; 2], "{}", path.display());
    }
    assert_held(before, "");
}

#[test]
fn a_file_that_the_system_fails_to_read_or_map_is_an_error() {
    let _alone = alone();
    // A file of 4096 bytes, says the system, which then can neither be mapped nor read so far.
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if !path.is_file() {
        return skip(Lack::Machine, &format!("no {}", path.display()));
    }
    let ctx = context(1).unwrap();
    let before = held();
    assert_eq!(statuses(&ctx, path), [SEGNO_E_IO; 2]);
    assert_held(before, "");
}

/// Cuts the file at `user`, a path, when half of it is read.
// SAFETY: called by a load only, with the pointer that came with it.
unsafe extern "C" fn cut(user: *mut c_void, done: f32) -> i32 {
    // SAFETY: the caller of the load keeps the path for as long.
    let path = unsafe { &*user.cast::<PathBuf>() };
    if done < 0.6 {
        File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
    }
    0
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_an_error_and_afterwards_is_nothing() {
    let _alone = alone();
    let (folder, ctx) = (Folder::new("cut"), context(1).unwrap());
    let mut path = folder.join("model.gguf");
    Shape { vocab: 300_000, storage: Storage::Hole, ..Shape::small() }.file().write(&path);
    let mut opts = model_opts(SEGNO_MODEL_NO_MMAP, &mut common::Watch::default());
    opts.progress = Some(cut);
    opts.progress_user = (&raw mut path).cast();
    let before = held();
    assert_eq!(ctx.load_with(&path, &opts).err().map(|failed| failed.status), Some(SEGNO_E_IO));
    assert_held(before, "");
    fs::copy(bundled_model(), &path).unwrap();
    let model = load(&ctx, &path, SEGNO_MODEL_NO_MMAP).unwrap();
    let expected = tokens_of(&model);
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(tokens_of(&model), expected, "a model that was read needs its file no more");
}

/// Calls `f` while this process has at most so much of a resource.
fn limited<T>(resource: u32, most: usize, f: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the struct and nothing else.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut before) }, 0);
    let set = |limit| {
        // SAFETY: the call reads the struct and nothing else.
        assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
    };
    set(libc::rlimit { rlim_cur: most as u64, ..before });
    let value = f();
    set(before);
    value
}

/// Bytes of address space in use.
fn address_space() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096
}

/// Runs `f` with room for `more` bytes of address space.
fn with_room<T>(more: usize, f: impl FnOnce() -> T) -> T {
    limited(libc::RLIMIT_AS, address_space() + more, f)
}

/// Runs an ignored test of this file in a process of its own.
fn in_own_process(test: &str) {
    assert_passes(&mut program(test));
}

#[test]
fn threads_that_cannot_be_started_are_an_error_and_those_started_end() {
    let _alone = alone();
    in_own_process("with_room_for_few_threads");
}

#[test]
#[ignore = "run in a process of its own"]
fn with_room_for_few_threads() {
    let model = context(2).unwrap().load(&bundled_model()).unwrap();
    let expected = tokens_of(&model);
    let before = held();
    let mut failures = 0;
    // A thread's stack takes 2 MiB, its allocator up to 128.
    for room in (0..20).map(|step| step * 40 * MEBIBYTE) {
        let result = with_room(room, || context(64).map(drop));
        if let Err(failed) = result {
            assert!([SEGNO_E_DEVICE, SEGNO_E_OUT_OF_MEMORY].contains(&failed.status), "{}", failed.message);
            failures += usize::from(failed.message.contains("cannot start worker thread"));
        }
        assert_held(before, &format!("{room} bytes"));
    }
    assert!(failures > 0, "no thread was refused");
    assert_eq!(tokens_of(&model), expected);
    context(64).unwrap();
}

#[test]
fn a_template_whose_thread_cannot_be_started_is_an_error() {
    let _alone = alone();
    in_own_process("with_room_for_no_template");
}

#[test]
#[ignore = "run in a process of its own"]
fn with_room_for_no_template() {
    let model = context(1).unwrap().load(&bundled_model()).unwrap();
    let render = || {
        // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
        let mut opts: segno_chat_opts = unsafe { std::mem::zeroed() };
        segno_chat_opts_init(&mut opts, size_of::<segno_chat_opts>());
        (opts.template_text, opts.template_len) = (c"{{ 1 }}".as_ptr(), 7);
        let (mut room, mut len) = ([0; 8], 0);
        let messages = c"[]";
        let (out, cap) = (room.as_mut_ptr(), room.len());
        common::call(|err| segno_chat_render(model.0, messages.as_ptr(), 2, &opts, out, cap, &mut len, err))
    };
    assert_eq!(render(), Ok(SEGNO_OK));
    let before = held();
    let failed = with_room(16 * MEBIBYTE, render).unwrap_err();
    assert_eq!(failed.status, SEGNO_E_OUT_OF_MEMORY, "{}", failed.message);
    assert_held(before, "");
    assert_eq!(render(), Ok(SEGNO_OK));
}

#[test]
fn a_file_for_which_there_is_no_room_is_an_error() {
    let _alone = alone();
    in_own_process("with_room_for_no_file");
}

#[test]
#[ignore = "run in a process of its own"]
fn with_room_for_no_file() {
    let (folder, ctx) = (Folder::new("no-room"), context(1).unwrap());
    let path = folder.join("large.gguf");
    Shape { vocab: 2_000_000, storage: Storage::Hole, ..Shape::small() }.file().write(&path);
    let before = held();
    let codes = with_room(64 * MEBIBYTE, || statuses(&ctx, &path));
    assert!(codes.iter().all(|code| [SEGNO_E_IO, SEGNO_E_OUT_OF_MEMORY].contains(code)), "{codes:?}");
    assert_held(before, "");
    // How many files may be open is limited too.
    let codes = limited(libc::RLIMIT_NOFILE, 0, || statuses(&ctx, &bundled_model()));
    assert_eq!(codes, [SEGNO_E_IO; 2]);
    assert_held(before, "");
    assert_eq!(statuses(&ctx, &path), [SEGNO_OK; 2]);
}

#[test]
fn a_pool_that_runs_out_within_a_batch_takes_back_one_item_and_touches_no_other() {
    let _alone = alone();
    let model = context(2).unwrap().load(&bundled_model()).unwrap();
    let prompt = |count: i32, start: i32| (0..count).map(|i| (i * 7 + start) % 97 + 1).collect::<Vec<_>>();
    let prompts = [prompt(30, 1), prompt(45, 2), prompt(31, 3)];
    // What each gives alone, with all the room there is.
    let alone = prompts.each_ref().map(|prompt| {
        let session = model.session(|_| ()).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, prompt).unwrap();
        session.generate(seq, TOKENS).unwrap()
    });
    // Four pages and one a sequence, and the batch needs more and more of them.
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (3, 128)).unwrap();
    let seqs = prompts.each_ref().map(|prompt| {
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, prompt).unwrap();
        seq
    });
    let mut given: [Vec<i32>; 3] = Default::default();
    let (mut open, mut failures) = (vec![0, 1, 2], 0);
    while !open.is_empty() {
        let lengths = |open: &[usize]| open.iter().map(|&at| session.length(seqs[at]).unwrap()).collect::<Vec<_>>();
        let before = lengths(&open);
        let (tokens, statuses, result) = session.batch(&open.iter().map(|&at| seqs[at]).collect::<Vec<_>>());
        let after = lengths(&open);
        for (index, &status) in statuses.iter().enumerate() {
            assert!([SEGNO_OK, SEGNO_E_KV_FULL].contains(&status), "{status}");
            assert_eq!(after[index], before[index] + usize::from(status == SEGNO_OK));
            given[open[index]].extend((status == SEGNO_OK).then_some(tokens[index]));
        }
        failures += usize::from(result.is_err());
        // Room comes back when the longest ends: one that has enough, or after some failures any.
        let longest = (0..open.len()).max_by_key(|&index| after[index]).unwrap();
        if given[open[longest]].len() == TOKENS || (result.is_err() && failures % 4 == 0) {
            session.close(seqs[open.remove(longest)]).unwrap();
        }
    }
    assert!(failures > 0, "the pool never ran out");
    for (given, alone) in given.iter().zip(&alone) {
        assert!(given.len() >= 30 && given[..] == alone[..given.len()], "as if the failed calls had never been made");
    }
}
