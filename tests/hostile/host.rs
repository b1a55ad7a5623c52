//! A host that does with a file what hosts do, and notes whether the library kept its word: an outcome or an error, no panic.

use super::dice::Dice;
use super::models::backbones;
use crate::common::assistants;
use crate::common::eagle;
use crate::common::embeddings::{embed_opts, of_tokens};
use crate::common::{Ctx, Failed, Model, Result, Session, call, sampler};
use segno::ffi::{chat::*, model::*, plan::*, session::*, status::*, text::*};
use std::ffi::CString;
use std::path::Path;
use std::ptr::{null, null_mut};

const TEXT: &str = "the <s>Hello</s> wörld\u{2581}\u{1F600} <|im_end|>\n\n 123 a\u{301} <tool>";

/// How far a file came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reached {
    /// It was refused.
    Refusal,
    /// It became a model, which could not decode.
    Model,
    /// Four tokens were decoded, or vectors made by a model that is for that alone.
    Tokens,
}

/// Loads a file both ways, and uses the model. Panics when the library breaks a promise.
pub fn use_file(ctx: &Ctx, bytes: &[u8], path: &Path, dice: &mut Dice) -> Reached {
    std::fs::write(path, bytes).expect("the test can write its file");
    let from_file = load_file(ctx, path, dice.one_in(3));
    plan(ctx, path, from_file.is_ok());
    let from_bytes = load_bytes(ctx, bytes);
    if let (Ok(_), Err(failed)) | (Err(failed), Ok(_)) = (&from_file, &from_bytes) {
        panic!("a file and its bytes are not the same model: {failed:?}");
    }
    let (from_file, from_bytes) = (orderly(from_file), orderly(from_bytes));
    let model = if dice.one_in(2) { from_file } else { from_bytes };
    model.map_or(Reached::Refusal, |model| use_model(ctx, &model, dice))
}

/// Loads a file from its bytes alone.
pub fn use_bytes(ctx: &Ctx, bytes: &[u8], dice: &mut Dice) -> Reached {
    orderly(load_bytes(ctx, bytes)).map_or(Reached::Refusal, |model| use_model(ctx, &model, dice))
}

/// Plans and loads what lies at `path`, a file or a folder, and uses the model.
#[allow(dead_code)] // Files are loaded from memory too, by another function.
pub fn use_path(ctx: &Ctx, path: &Path, dice: &mut Dice) -> Reached {
    let model = load_file(ctx, path, dice.one_in(3));
    plan(ctx, path, model.is_ok());
    orderly(model).map_or(Reached::Refusal, |model| use_model(ctx, &model, dice))
}

/// Why a file is refused, loaded as a file and from its bytes.
pub fn refusals(ctx: &Ctx, bytes: &[u8], path: &Path) -> (Option<String>, Option<String>) {
    let message = |result: Result<Model>| result.err().map(|failed| failed.message);
    (message(load_file(ctx, path, false)), message(load_bytes(ctx, bytes)))
}

/// The value of a call; errors are fine, panics and poison are not.
pub fn orderly<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Failed { status: status @ (SEGNO_E_PANIC | SEGNO_E_POISONED | SEGNO_E_BUSY), message, .. }) => {
            panic!("status {status}: {message}")
        }
        Err(failed) => {
            let message = &failed.message;
            let clean = !message.is_empty() && message.len() <= 1024 && !message.contains(char::is_control);
            assert!(clean, "a message that no host can show: {message:?}");
            None
        }
    }
}

fn load_file(ctx: &Ctx, path: &Path, read: bool) -> Result<Model> {
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_model_opts = unsafe { std::mem::zeroed() };
    segno_model_opts_init(&mut opts, size_of::<segno_model_opts>());
    opts.flags = if read { SEGNO_MODEL_NO_MMAP } else { 0 };
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let mut model = null_mut();
    call(|err| segno_model_load(ctx.0, path.as_ptr(), &opts, &mut model, err)).map(|_| Model(model))
}

fn load_bytes(ctx: &Ctx, bytes: &[u8]) -> Result<Model> {
    let mut model = null_mut();
    let data = bytes.as_ptr().cast();
    call(|err| segno_model_load_buffer(ctx.0, data, bytes.len(), null(), &mut model, err)).map(|_| Model(model))
}

/// The plan of a file never fails where its model loads.
fn plan(ctx: &Ctx, path: &Path, loads: bool) {
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let mut plan: segno_plan = unsafe { std::mem::zeroed() };
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let size = size_of::<segno_plan>();
    let result = call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), null(), &mut plan, size, err));
    if loads {
        result.expect("a model that loads can be planned");
    } else {
        orderly(result);
    }
}

fn use_model(ctx: &Ctx, model: &Model, dice: &mut Dice) -> Reached {
    assert!(model.info().vocab > 0);
    for key in ["general.name", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "nested", "general.architecture"] {
        read_metadata(model, key);
    }
    let mut tokens = Vec::new();
    for flags in 0..4 {
        tokens = orderly(model.tokenize(TEXT.as_bytes(), flags)).unwrap_or_default();
        orderly(model.detokenize(&tokens, flags & SEGNO_DETOKENIZE_SPECIAL));
    }
    let vocab = model.info().vocab as i32;
    tokens.truncate(10);
    tokens.extend([0, vocab - 1, vocab / 2]);
    stream(model, &tokens);
    render_chat(model);
    open(ctx, model, dice).map_or(Reached::Model, |session| {
        let texts = [&tokens[..tokens.len().min(5)], &tokens[..1]];
        let vectors = [embed_opts(), of_tokens()].map(|opts| orderly(session.embed(&texts, &opts)));
        decode(&session, &tokens).unwrap_or(if vectors[0].is_some() { Reached::Tokens } else { Reached::Model })
    })
}

/// A session of a model, or where it only drafts for another one, of that.
fn open(ctx: &Ctx, model: &Model, dice: &mut Dice) -> Option<Session> {
    let kv_type = [SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8][dice.below(3)];
    let session = |of: &Model, draft: Option<&Model>| {
        orderly(of.session(|opts| {
            (opts.max_seqs, opts.kv_tokens, opts.max_prefill, opts.kv_type) = (2, 40, 7, kv_type);
            if let Some(draft) = draft {
                (opts.speculation, opts.draft) = (SEGNO_SPECULATION_DRAFT + SEGNO_SPECULATION_ALWAYS, draft.0);
            }
        }))
    };
    if !is_assistant(model) {
        return session(model, None);
    }
    let goldens = [assistants::model_path(), eagle::model_path()];
    let goldens = goldens.map(|path| std::fs::read(path).expect("a file of the tree"));
    let made = backbones().map(|file| file.to_bytes());
    let mut all = made.iter().chain(&goldens);
    all.find_map(|bytes| session(&load_bytes(ctx, bytes).expect("a model as it should be"), Some(model)))
}

fn is_assistant(model: &Model) -> bool {
    let refused = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (1, 40, 7)).err();
    refused.is_some_and(|failed| failed.message.contains("only drafts for another one"))
}

/// Four tokens by the default sampler, then what else a session can do; none of it with a model that makes embeddings alone.
fn decode(session: &Session, tokens: &[i32]) -> Option<Reached> {
    let mut opts = sampler();
    opts.seed = 7;
    let seq = match session.open(&opts) {
        Err(Failed { status: SEGNO_E_UNSUPPORTED, message, .. }) if message.contains("segno_embed") => return None,
        other => other.expect("a session has room for a sequence"),
    };
    if orderly(session.prefill(seq, tokens)).is_none() {
        return Some(Reached::Model);
    }
    let decoded = (0..4).filter_map(|_| orderly(session.step(seq))).count();
    orderly(session.logits(seq));
    if let Some(child) = orderly(session.fork(seq, None)) {
        orderly(session.truncate(child, 3));
        orderly(session.batch(&[child, seq]).2);
    }
    Some(if decoded == 4 { Reached::Tokens } else { Reached::Model })
}

fn read_metadata(model: &Model, key: &str) {
    let key = CString::new(key).unwrap();
    let mut len = 0;
    if orderly(call(|err| segno_model_meta(model.0, key.as_ptr(), null_mut(), 0, &mut len, err))).is_some() {
        let mut text = vec![0u8; len];
        let room = text.as_mut_ptr().cast();
        call(|err| segno_model_meta(model.0, key.as_ptr(), room, len, &mut len, err)).expect("the size was asked for");
    }
}

/// Renders a conversation with the file's template.
fn render_chat(model: &Model) {
    let messages = r#"[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the"}]"#;
    let (data, mut len) = (messages.as_ptr().cast(), 0);
    orderly(call(|err| segno_chat_render(model.0, data, messages.len(), null(), null_mut(), 0, &mut len, err)));
}

/// Streams tokens into a buffer that grows when it must; what comes out is UTF-8.
fn stream(model: &Model, tokens: &[i32]) {
    let mut text = null_mut();
    if orderly(call(|err| segno_text_create(model.0, null(), &mut text, err))).is_none() {
        return;
    }
    let mut room = vec![0u8; 8];
    let mut out = Vec::new();
    for &token in tokens {
        let mut len = 0;
        let push = |room: &mut [u8], len: &mut usize| {
            call(|err| segno_text_push(text, token, room.as_mut_ptr().cast(), room.len(), len, err))
        };
        let mut result = push(&mut room, &mut len);
        if matches!(&result, Err(failed) if failed.status == SEGNO_E_BUFFER_TOO_SMALL) {
            room.resize(len, 0);
            result = push(&mut room, &mut len);
        }
        if orderly(result).is_some() {
            out.extend(&room[..len]);
        }
    }
    std::str::from_utf8(&out).expect("a stream gives whole characters");
    let mut len = 0;
    orderly(call(|err| segno_text_flush(text, null_mut(), 0, &mut len, err)));
    segno_text_free(text);
}
