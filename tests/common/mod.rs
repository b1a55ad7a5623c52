//! The C API for tests: thin owners of its objects, which call the exported functions and nothing else.

#![allow(dead_code)] // Every test binary uses another part.

pub mod adapters;
pub mod assistants;
#[cfg(unix)]
pub mod clock;
pub mod conversation;
pub mod distance;
pub mod divided;
pub mod drafts;
pub mod draws;
pub mod eagle;
pub mod embeddings;
pub mod folders;
pub mod gguf;
pub mod latent;
#[cfg(feature = "cuda")]
pub mod launches;
pub mod layers;
#[allow(dead_code)] // Few tests listen.
pub mod log;
pub mod metadata;
pub mod mixture;
pub mod parts;
pub mod passes;
pub mod patient;
pub mod perplexity;
pub mod plain;
pub mod predictors;
pub mod process;
pub mod programs;
pub mod random;
pub mod replies;
pub mod saved;
pub mod skip;
pub mod submitted;
pub mod tokenizers;
pub mod validator;
pub mod walk;

use segno::ffi::{
    ctx::*, decode::*, error::*, grammar::*, model::*, plan::*, seq::*, session::*, status::*, submit::*, text::*,
    version::*,
};
use skip::{Lack, skip};
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A failed call.
#[derive(Debug, PartialEq)]
pub struct Failed {
    pub status: segno_status,
    pub message: String,
    pub item: i64,
}

pub type Result<T> = std::result::Result<T, Failed>;

/// Turns a status and an error object into a result; positive outcomes are values.
pub fn check(status: segno_status, err: *mut segno_error) -> Result<segno_status> {
    if status >= 0 {
        assert!(err.is_null(), "an outcome leaves no error object");
        return Ok(status);
    }
    assert_eq!(segno_error_code(err), status);
    // SAFETY: a failed call leaves an error object, whose message is NUL-terminated and lives as long.
    let message = unsafe { CStr::from_ptr(segno_error_message(err)) }.to_str().unwrap().to_owned();
    let item = segno_error_item(err);
    segno_error_free(err);
    Err(Failed { status, message, item })
}

/// Calls `f` with a place for the error object.
pub fn call(f: impl FnOnce(*mut *mut segno_error) -> segno_status) -> Result<segno_status> {
    let mut err = null_mut();
    let status = f(&mut err);
    check(status, err)
}

/// Folder of the shared test data, or a line that says what is skipped.
pub fn shared_data() -> Option<PathBuf> {
    let path = match std::env::var_os("SEGNO_TEST_DATA") {
        Some(path) => PathBuf::from(path),
        None => root().join("../shared/data"),
    };
    if path.is_dir() {
        return Some(path);
    }
    skip(Lack::Data, "shared test data absent");
    None
}

/// Whether there is a GPU for the kernels of this library; the test is skipped otherwise.
#[cfg(feature = "cuda")]
pub fn gpu() -> bool {
    let usable = segno::backend::cuda::is_usable();
    if !usable {
        skip(Lack::Gpu, "no cuda device, or no kernels");
    }
    usable
}

/// Folder of this repository; `SEGNO_TEST_ROOT` names it for test programs that were built elsewhere.
pub fn root() -> PathBuf {
    std::env::var_os("SEGNO_TEST_ROOT").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// The model that comes with the repository.
pub fn bundled_model() -> PathBuf {
    root().join("examples/models/shakespeare.gguf")
}

/// A folder of this test's own, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        // Tests beside each other, of this process or of others, may use one name.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{process}-{number}"));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// What a load's progress callback hears; the call of that number (from 0) cancels.
#[derive(Default)]
pub struct Watch {
    pub heard: Vec<f32>,
    pub cancel_at: Option<usize>,
}

// SAFETY: called by a load only, with the pointer that came with it.
unsafe extern "C" fn hear(user: *mut c_void, done: f32) -> i32 {
    // SAFETY: `model_opts` passes a watch that the caller keeps for the whole load.
    let watch = unsafe { &mut *user.cast::<Watch>() };
    watch.heard.push(done);
    (watch.cancel_at == Some(watch.heard.len() - 1)).into()
}

/// Model options whose progress goes to `watch`.
pub fn model_opts(flags: u32, watch: &mut Watch) -> segno_model_opts {
    // SAFETY: as in `Ctx::new`.
    let mut opts = unsafe { std::mem::zeroed() };
    segno_model_opts_init(&mut opts, size_of::<segno_model_opts>());
    (opts.flags, opts.progress_user) = (flags, (&raw mut *watch).cast());
    opts.progress = Some(hear);
    opts
}

pub struct Ctx(pub *mut segno_ctx);

// SAFETY: the header allows any thread.
unsafe impl Send for Ctx {}
// SAFETY: as above.
unsafe impl Sync for Ctx {}

impl Ctx {
    pub fn new(change: impl FnOnce(&mut segno_ctx_opts)) -> Result<Ctx> {
        // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
        let mut opts = unsafe { std::mem::zeroed() };
        segno_ctx_opts_init(&mut opts, size_of::<segno_ctx_opts>());
        change(&mut opts);
        let mut ctx = null_mut();
        call(|err| segno_ctx_create(SEGNO_ABI_VERSION, &opts, &mut ctx, err)).map(|_| Ctx(ctx))
    }

    pub fn precise() -> Ctx {
        Ctx::new(|opts| opts.precision = SEGNO_PRECISION_PRECISE).unwrap()
    }

    pub fn load(&self, path: &Path) -> Result<Model> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut model = null_mut();
        call(|err| segno_model_load(self.0, path.as_ptr(), null(), &mut model, err)).map(|_| Model(model))
    }

    /// Loads with options; the model is NULL when the outcome is not `SEGNO_OK`.
    pub fn load_with(&self, path: &Path, opts: &segno_model_opts) -> Result<(segno_status, Model)> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut model = std::ptr::dangling_mut();
        let result = call(|err| segno_model_load(self.0, path.as_ptr(), opts, &mut model, err));
        assert_eq!(model.is_null(), result != Ok(SEGNO_OK), "a model if and only if the load succeeds");
        result.map(|status| (status, Model(model)))
    }

    /// The plan of a model and a session of default options.
    pub fn plan(&self, path: &Path, opts: &segno_model_opts) -> Result<segno_plan> {
        // SAFETY: plain data, which the call fills.
        let mut plan = unsafe { std::mem::zeroed() };
        let (path, size) = (CString::new(path.to_str().unwrap()).unwrap(), size_of::<segno_plan>());
        call(|err| segno_plan_get(self.0, path.as_ptr(), opts, null(), &mut plan, size, err)).map(|_| plan)
    }

    /// As [`Ctx::load_with`], from memory.
    pub fn load_buffer_with(&self, bytes: &[u8], opts: &segno_model_opts) -> Result<(segno_status, Model)> {
        let (data, mut model) = (bytes.as_ptr().cast(), std::ptr::dangling_mut());
        let result = call(|err| segno_model_load_buffer(self.0, data, bytes.len(), opts, &mut model, err));
        assert_eq!(model.is_null(), result != Ok(SEGNO_OK), "a model if and only if the load succeeds");
        result.map(|status| (status, Model(model)))
    }

    pub fn load_buffer(&self, bytes: &[u8]) -> Result<Model> {
        self.load_buffer_with(bytes, &model_opts(0, &mut Watch::default())).map(|(_, model)| model)
    }
}

impl Drop for Ctx {
    fn drop(&mut self) {
        segno_ctx_free(self.0);
    }
}

pub struct Model(pub *mut segno_model);

// SAFETY: the header allows any thread.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    pub fn info(&self) -> segno_model_info {
        // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
        let mut info = unsafe { std::mem::zeroed() };
        call(|err| segno_model_info_get(self.0, &mut info, size_of::<segno_model_info>(), err)).unwrap();
        info
    }

    /// A metadata entry as text.
    pub fn meta(&self, key: &str) -> Result<Vec<u8>> {
        let key = CString::new(key).unwrap();
        let mut len = usize::MAX;
        call(|err| segno_model_meta(self.0, key.as_ptr(), null_mut(), 0, &mut len, err))?;
        let mut text = vec![0u8; len];
        let room = text.as_mut_ptr().cast();
        call(|err| segno_model_meta(self.0, key.as_ptr(), room, len, &mut len, err))?;
        assert_eq!(len, text.len());
        Ok(text)
    }

    pub fn grammar(&self, kind: i32, flags: u32, text: &str) -> Result<Grammar> {
        // SAFETY: as above.
        let mut opts: segno_grammar_opts = unsafe { std::mem::zeroed() };
        segno_grammar_opts_init(&mut opts, size_of::<segno_grammar_opts>());
        (opts.kind, opts.flags, opts.text, opts.text_len) = (kind, flags, text.as_ptr().cast(), text.len());
        let mut grammar = null_mut();
        call(|err| segno_grammar_create(self.0, &opts, &mut grammar, err)).map(|_| Grammar(grammar))
    }

    pub fn session(&self, change: impl FnOnce(&mut segno_session_opts)) -> Result<Session> {
        // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
        let mut opts = unsafe { std::mem::zeroed() };
        segno_session_opts_init(&mut opts, size_of::<segno_session_opts>());
        change(&mut opts);
        let mut session = null_mut();
        call(|err| segno_session_create(self.0, &opts, &mut session, err)).map(|_| Session(session))
    }

    pub fn session_f32(&self) -> Session {
        self.session(|opts| opts.kv_type = SEGNO_KV_F32).unwrap()
    }

    pub fn tokenize(&self, text: &[u8], flags: u32) -> Result<Vec<i32>> {
        let mut count = 0;
        let data = text.as_ptr().cast();
        call(|err| segno_tokenize(self.0, data, text.len(), flags, null_mut(), 0, &mut count, err))?;
        let mut tokens = vec![0; count];
        let room = tokens.as_mut_ptr();
        call(|err| segno_tokenize(self.0, data, text.len(), flags, room, count, &mut count, err))?;
        Ok(tokens)
    }

    pub fn detokenize(&self, tokens: &[i32], flags: u32) -> Result<Vec<u8>> {
        let mut len = 0;
        call(|err| segno_detokenize(self.0, tokens.as_ptr(), tokens.len(), flags, null_mut(), 0, &mut len, err))?;
        let mut text = vec![0u8; len];
        let room = text.as_mut_ptr().cast();
        call(|err| segno_detokenize(self.0, tokens.as_ptr(), tokens.len(), flags, room, len, &mut len, err))?;
        Ok(text)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        segno_model_free(self.0);
    }
}

pub struct Grammar(pub *mut segno_grammar);

// SAFETY: the header allows any thread.
unsafe impl Send for Grammar {}
// SAFETY: as above.
unsafe impl Sync for Grammar {}

impl Drop for Grammar {
    fn drop(&mut self) {
        segno_grammar_free(self.0);
    }
}

/// Sampler options that take the highest logit and never end.
pub fn greedy() -> segno_sampler_opts {
    let mut opts = sampler();
    opts.temperature = 0.0;
    opts.flags = SEGNO_SAMPLER_IGNORE_EOG;
    opts
}

/// The default sampler options with a given seed: a test that draws says the same whenever it runs.
pub fn sampler() -> segno_sampler_opts {
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let mut opts = unsafe { std::mem::zeroed() };
    segno_sampler_opts_init(&mut opts, size_of::<segno_sampler_opts>());
    opts.seed = 42;
    opts
}

pub struct Session(pub *mut segno_session);

// SAFETY: the header allows any thread; a second call at once is answered, not undefined.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Session {
    pub fn open(&self, opts: &segno_sampler_opts) -> Result<i32> {
        let mut seq = -1;
        call(|err| segno_seq_open(self.0, opts, &mut seq, err)).map(|_| seq)
    }

    pub fn append(&self, seq: i32, tokens: &[i32]) -> Result<segno_status> {
        call(|err| segno_seq_append(self.0, seq, tokens.as_ptr(), tokens.len(), err))
    }

    pub fn prefill(&self, seq: i32, tokens: &[i32]) -> Result<segno_status> {
        call(|err| segno_seq_prefill(self.0, seq, tokens.as_ptr(), tokens.len(), err))
    }

    pub fn length(&self, seq: i32) -> Result<usize> {
        let mut length = 0;
        call(|err| segno_seq_length(self.0, seq, &mut length, err)).map(|_| length)
    }

    pub fn stats(&self) -> Result<segno_session_stats> {
        // SAFETY: the struct holds numbers, for which zero is a value.
        let mut stats = unsafe { std::mem::zeroed() };
        call(|err| segno_session_stats_get(self.0, &mut stats, size_of::<segno_session_stats>(), err)).map(|_| stats)
    }

    pub fn seq_stats(&self, seq: i32) -> Result<segno_seq_stats> {
        // SAFETY: as above.
        let mut stats = unsafe { std::mem::zeroed() };
        call(|err| segno_seq_stats_get(self.0, seq, &mut stats, size_of::<segno_seq_stats>(), err)).map(|_| stats)
    }

    pub fn logits(&self, seq: i32) -> Result<Vec<f32>> {
        let mut count = 0;
        call(|err| segno_seq_logits(self.0, seq, null_mut(), 0, &mut count, err))?;
        let mut logits = vec![f32::NAN; count];
        call(|err| segno_seq_logits(self.0, seq, logits.as_mut_ptr(), count, &mut count, err))?;
        Ok(logits)
    }

    pub fn fork(&self, seq: i32, opts: Option<&segno_sampler_opts>) -> Result<i32> {
        let mut child = -1;
        let opts = opts.map_or(null(), |opts| opts as *const _);
        call(|err| segno_seq_fork(self.0, seq, opts, &mut child, err)).map(|_| child)
    }

    pub fn truncate(&self, seq: i32, tokens: usize) -> Result<segno_status> {
        call(|err| segno_seq_truncate(self.0, seq, tokens, err))
    }

    pub fn remove(&self, seq: i32, first: usize, count: usize) -> Result<segno_status> {
        call(|err| segno_seq_remove(self.0, seq, first, count, err))
    }

    pub fn mark(&self, seq: i32) -> Result<segno_status> {
        call(|err| segno_seq_mark(self.0, seq, err))
    }

    pub fn set_sampler(&self, seq: i32, opts: &segno_sampler_opts) -> Result<segno_status> {
        call(|err| segno_seq_sampler_set(self.0, seq, opts, err))
    }

    /// How many tokens stay evaluated when a sequence is cut to so many.
    pub fn nearest(&self, seq: i32, tokens: usize) -> Result<usize> {
        let mut found = usize::MAX;
        call(|err| segno_seq_mark_nearest(self.0, seq, tokens, &mut found, err)).map(|_| found)
    }

    pub fn memory(&self) -> segno_memory {
        // SAFETY: the struct holds numbers, for which zero is a value.
        let mut memory = unsafe { std::mem::zeroed() };
        call(|err| segno_session_memory(self.0, &mut memory, size_of::<segno_memory>(), err)).unwrap();
        memory
    }

    /// Gives a sequence a grammar, behind the next `start_token` unless that is -1.
    pub fn constrain(&self, seq: i32, grammar: Option<&Grammar>, start_token: i32) -> Result<segno_status> {
        let grammar = grammar.map_or(null_mut(), |grammar| grammar.0);
        call(|err| segno_seq_grammar_set(self.0, seq, grammar, start_token, err))
    }

    pub fn close(&self, seq: i32) -> Result<segno_status> {
        call(|err| segno_seq_close(self.0, seq, err))
    }

    pub fn step(&self, seq: i32) -> Result<(i32, segno_status)> {
        let mut token = -1;
        call(|err| segno_decode_step(self.0, seq, &mut token, err)).map(|status| (token, status))
    }

    /// Steps until `count` tokens have come.
    pub fn generate(&self, seq: i32, count: usize) -> Result<Vec<i32>> {
        let mut tokens = Vec::new();
        while tokens.len() < count {
            match self.step(seq)? {
                (_, SEGNO_PENDING) => {}
                (token, SEGNO_OK) => tokens.push(token),
                (_, status) => panic!("unexpected outcome {status}"),
            }
        }
        Ok(tokens)
    }

    /// The tokens that a call of several has given, and how it ended.
    pub fn many(&self, seq: i32, room: usize) -> Result<(Vec<i32>, segno_status)> {
        let (mut tokens, mut count) = (vec![-7; room], usize::MAX);
        let status = call(|err| segno_decode_many(self.0, seq, tokens.as_mut_ptr(), room, &mut count, err))?;
        assert!(tokens[count..].iter().all(|&token| token == -7));
        tokens.truncate(count);
        Ok((tokens, status))
    }

    /// Tokens, statuses and the result of one batch.
    pub fn batch(&self, seqs: &[i32]) -> (Vec<i32>, Vec<segno_status>, Result<segno_status>) {
        let (mut tokens, mut statuses) = (vec![-7; seqs.len()], vec![-99; seqs.len()]);
        let result = call(|err| {
            segno_decode_batch(self.0, seqs.as_ptr(), seqs.len(), tokens.as_mut_ptr(), statuses.as_mut_ptr(), err)
        });
        (tokens, statuses, result)
    }

    /// Starts a step within a budget in microseconds.
    pub fn submit(&self, seqs: &[i32], budget_us: u64) -> Result<segno_status> {
        // SAFETY: the struct holds numbers, for which zero is a value.
        let mut opts: segno_submit_opts = unsafe { std::mem::zeroed() };
        segno_submit_opts_init(&mut opts, size_of::<segno_submit_opts>());
        opts.budget_us = budget_us;
        call(|err| segno_session_submit(self.0, seqs.as_ptr(), seqs.len(), &opts, err))
    }

    /// Tokens, statuses and the result of the step that was submitted for so many sequences.
    pub fn poll(&self, count: usize, timeout_us: u64) -> (Vec<i32>, Vec<segno_status>, Result<segno_status>) {
        let (mut tokens, mut statuses) = (vec![-7; count], vec![-99; count]);
        let result =
            call(|err| segno_session_poll(self.0, timeout_us, tokens.as_mut_ptr(), statuses.as_mut_ptr(), err));
        (tokens, statuses, result)
    }

    pub fn cancel(&self, on: bool) {
        assert_eq!(segno_session_cancel(self.0, on.into()), SEGNO_OK);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        segno_session_free(self.0);
    }
}
