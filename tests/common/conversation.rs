//! Conversations for tests: an owner of `segno_chat`, a model that knows the special tokens of all families, and replies that a test chooses.

use super::gguf::Shape;
use super::replies::Vocabulary;
use super::{Ctx, Model, Result, Session, call, greedy, shared_data};
use segno::ffi::chat::*;
use segno::ffi::chat_submit::*;
use segno::ffi::conversation::*;
use segno::ffi::reply::*;
use segno::ffi::seq::*;
use segno::ffi::status::*;
use segno::ffi::submit::{segno_submit_opts, segno_submit_opts_init};
use segno::ffi::turn::*;
use serde_json::{Value, json};
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

/// 2024-07-26 12:00:00 UTC
pub const NOON: i64 = 1_721_995_200;

/// The address and length of a text.
pub fn parts(text: Option<&str>) -> (*const c_char, usize) {
    text.map_or((null(), 0), |text| (text.as_ptr().cast(), text.len()))
}

/// A small random model with the special tokens of all families.
pub fn model(ctx: &Ctx, context: usize, template: Option<&str>) -> Model {
    let (tokens, kinds) = Vocabulary::parts(false);
    let shape =
        Shape { layers: 1, hidden: 32, heads: 1, kv_heads: 1, head_dim: 32, feed_forward: 32, ..Shape::small() };
    let mut file = Shape { vocab: tokens.len(), context, tied: true, ..shape }.file();
    let number = |name: &str| tokens.iter().position(|token| token == name).unwrap() as u32;
    file.set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.add_space_prefix", false)
        .set("tokenizer.ggml.scores", vec![0f32; tokens.len()])
        .set("tokenizer.ggml.token_type", kinds)
        .set("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>())
        .set("tokenizer.ggml.eot_token_id", number("<|END_OF_TURN_TOKEN|>"))
        .set("tokenizer.ggml.eom_token_id", number("<|end_of_msg|>"))
        .set("tokenizer.ggml.eos_token_id", number("<|message_sep|>"));
    if let Some(template) = template {
        file.set("tokenizer.chat_template", template);
    }
    ctx.load_buffer(&file.bytes()).unwrap()
}

/// The form of ChatML, without a word of its own.
pub const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                          {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The tokens of messages as the low level gives them.
pub fn tokenized(model: &Model, messages: &Value, change: impl FnOnce(&mut segno_chat_opts)) -> Result<Vec<i32>> {
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_chat_opts = unsafe { std::mem::zeroed() };
    segno_chat_opts_init(&mut opts, size_of::<segno_chat_opts>());
    (opts.now, opts.flags) = (NOON, SEGNO_CHAT_ADD_GENERATION_PROMPT);
    change(&mut opts);
    let json = messages.to_string();
    let (json, len) = parts(Some(&json));
    let mut count = 0;
    call(|err| segno_chat_tokenize(model.0, json, len, &opts, null_mut(), 0, &mut count, err))?;
    let mut tokens = vec![0; count];
    let room = tokens.as_mut_ptr();
    call(|err| segno_chat_tokenize(model.0, json, len, &opts, room, count, &mut count, err))?;
    Ok(tokens)
}

/// An event, its texts copied.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: i32,
    pub text: String,
    pub id: String,
}

impl Event {
    fn of(event: &segno_event) -> Event {
        let copy = |data: *const c_char, len: usize| {
            // SAFETY: the library gives texts of that length, which are valid until the next call.
            let bytes = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) } };
            String::from_utf8(bytes.to_vec()).expect("whole characters")
        };
        Event { kind: event.kind, text: copy(event.text, event.len), id: copy(event.id, event.id_len) }
    }
}

/// The texts of all events of a kind, joined.
pub fn joined(events: &[Event], kind: i32) -> String {
    events.iter().filter(|event| event.kind == kind).map(|event| event.text.as_str()).collect()
}

pub struct Chat(pub *mut segno_chat);

// SAFETY: the header allows any thread; a second call at once is answered, not undefined.
unsafe impl Send for Chat {}
// SAFETY: as above.
unsafe impl Sync for Chat {}

/// Room for the events of a step.
const ROOM: usize = 64;

impl Chat {
    /// A conversation that takes the highest logit, at noon.
    pub fn new(session: &Session, change: impl FnOnce(&mut segno_chat_create_opts)) -> Result<Chat> {
        // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
        let mut opts: segno_chat_create_opts = unsafe { std::mem::zeroed() };
        segno_chat_create_opts_init(&mut opts, size_of::<segno_chat_create_opts>());
        let sampler = greedy();
        (opts.now, opts.sampler) = (NOON, &sampler);
        change(&mut opts);
        let mut chat = null_mut();
        call(|err| segno_chat_create(session.0, &opts, &mut chat, err)).map(|_| Chat(chat))
    }

    /// One with this template.
    pub fn with_template(session: &Session, template: &str) -> Result<Chat> {
        Chat::new(session, |opts| (opts.template_text, opts.template_len) = parts(Some(template)))
    }

    pub fn say(&self, role: &str, text: &str) -> Result<segno_status> {
        let role = CString::new(role).unwrap();
        let (text, len) = parts(Some(text));
        call(|err| segno_chat_say(self.0, role.as_ptr(), text, len, err))
    }

    pub fn add(&self, messages: &Value) -> Result<segno_status> {
        let json = messages.to_string();
        let (json, len) = parts(Some(&json));
        call(|err| segno_chat_add(self.0, json, len, err))
    }

    /// Has the calls of replies watched; `name` is the tool that must be called.
    pub fn watch(&self, choice: i32, flags: u32, name: Option<&str>) -> Result<segno_status> {
        let name = name.map(|name| CString::new(name).unwrap());
        let name = name.as_ref().map_or(null(), |name| name.as_ptr());
        call(|err| segno_chat_tools_set(self.0, choice, flags, name, err))
    }

    pub fn truncate(&self, messages: usize) -> Result<segno_status> {
        call(|err| segno_chat_truncate(self.0, messages, err))
    }

    /// All messages as JSON.
    pub fn json(&self) -> Result<Vec<u8>> {
        let mut len = 0;
        call(|err| segno_chat_messages(self.0, null_mut(), 0, &mut len, err))?;
        let mut text = vec![0u8; len];
        let room = text.as_mut_ptr().cast();
        call(|err| segno_chat_messages(self.0, room, len, &mut len, err))?;
        Ok(text)
    }

    pub fn messages(&self) -> Value {
        serde_json::from_slice(&self.json().unwrap()).unwrap()
    }

    pub fn seq(&self) -> i32 {
        let mut seq = -1;
        call(|err| segno_chat_seq(self.0, &mut seq, err)).unwrap();
        seq
    }

    pub fn stats(&self) -> segno_chat_stats {
        // SAFETY: the struct holds numbers, for which zero is a value.
        let mut stats = unsafe { std::mem::zeroed() };
        call(|err| segno_chat_stats_get(self.0, &mut stats, size_of::<segno_chat_stats>(), err)).unwrap();
        stats
    }

    pub fn fork(&self) -> Result<Chat> {
        let mut fork = null_mut();
        call(|err| segno_chat_fork(self.0, null(), &mut fork, err)).map(|_| Chat(fork))
    }

    /// One step.
    pub fn next(&self) -> Result<(segno_status, Vec<Event>)> {
        // SAFETY: the struct holds numbers and pointers, for which zero is a value.
        let mut events: [segno_event; ROOM] = unsafe { std::mem::zeroed() };
        let mut count = usize::MAX;
        let status = call(|err| segno_chat_next(self.0, events.as_mut_ptr(), ROOM, &mut count, err))?;
        if status == SEGNO_CANCELLED {
            return Ok((status, Vec::new()));
        }
        Ok((status, events[..count].iter().map(Event::of).collect()))
    }

    /// Steps until the reply is over.
    pub fn finish(&self) -> Result<Vec<Event>> {
        let mut all = Vec::new();
        loop {
            let (status, events) = self.next()?;
            all.extend(events);
            match status {
                SEGNO_OK | SEGNO_PENDING => {}
                SEGNO_DONE => return Ok(all),
                other => panic!("unexpected outcome {other}"),
            }
        }
    }

    /// Lets the model reply with these tokens, and then end by `end`.
    pub fn reply(&self, session: &Session, tokens: &[i32], end: i32) -> Result<Vec<Event>> {
        let mut all = Vec::new();
        for &token in tokens.iter().chain([&end]) {
            steer(session, self.seq(), token);
            loop {
                let (status, events) = self.next()?;
                all.extend(events);
                match status {
                    SEGNO_PENDING => {}
                    SEGNO_OK => break,
                    SEGNO_DONE => return Ok(all),
                    other => panic!("unexpected outcome {other}"),
                }
            }
        }
        panic!("the reply does not end: {all:?}")
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        segno_chat_free(self.0);
    }
}

/// Steps of several conversations in one pass.
pub fn next_batch(session: &Session, chats: &[&Chat]) -> (Vec<(segno_status, Vec<Event>)>, Result<segno_status>) {
    let handles: Vec<*mut segno_chat> = chats.iter().map(|chat| chat.0).collect();
    // SAFETY: the struct holds numbers and pointers, for which zero is a value.
    let mut events: Vec<segno_event> = vec![unsafe { std::mem::zeroed() }; ROOM * chats.len()];
    let (mut counts, mut statuses) = (vec![usize::MAX; chats.len()], vec![-99; chats.len()]);
    let (room, counts_at, statuses_at) = (events.as_mut_ptr(), counts.as_mut_ptr(), statuses.as_mut_ptr());
    let (list, count) = (handles.as_ptr(), handles.len());
    let result = call(|err| segno_chat_next_batch(session.0, list, count, room, ROOM, counts_at, statuses_at, err));
    let of = |item: usize| events[ROOM * item..].iter().take(counts[item]).map(Event::of).collect();
    ((0..chats.len()).map(|item| (statuses[item], of(item))).collect(), result)
}

/// What a poll has told: of each conversation, unless the step runs, and of the call.
pub type Polled = (Vec<(segno_status, Vec<Event>)>, Result<segno_status>);

/// Submits a step of conversations.
pub fn submit_chats(session: &Session, chats: &[&Chat], budget_us: u64) -> Result<segno_status> {
    let handles: Vec<*mut segno_chat> = chats.iter().map(|chat| chat.0).collect();
    // SAFETY: the struct holds numbers, for which zero is a value.
    let mut opts: segno_submit_opts = unsafe { std::mem::zeroed() };
    segno_submit_opts_init(&mut opts, size_of::<segno_submit_opts>());
    opts.budget_us = budget_us;
    call(|err| segno_chat_submit(session.0, handles.as_ptr(), handles.len(), &opts, err))
}

/// Polls a step of so many conversations, with room for so many events of each.
pub fn poll_chats(session: &Session, count: usize, room: usize, timeout_us: u64) -> Polled {
    // SAFETY: the struct holds numbers and pointers, for which zero is a value.
    let mut events: Vec<segno_event> = vec![unsafe { std::mem::zeroed() }; room * count];
    let (mut counts, mut statuses) = (vec![usize::MAX; count], vec![-99; count]);
    let (places, counts_at, statuses_at) = (events.as_mut_ptr(), counts.as_mut_ptr(), statuses.as_mut_ptr());
    let result = call(|err| segno_chat_poll(session.0, timeout_us, places, room, counts_at, statuses_at, err));
    if result == Ok(SEGNO_PENDING) {
        assert!(counts.iter().all(|&count| count == usize::MAX) && statuses.iter().all(|&status| status == -99));
        return (Vec::new(), result);
    }
    let of = |item: usize| match statuses[item] {
        SEGNO_E_BUFFER_TOO_SMALL => Vec::new(),
        _ => events[room * item..].iter().take(counts[item]).map(Event::of).collect(),
    };
    ((0..count).map(|item| (statuses[item], of(item))).collect(), result)
}

/// Submits a step of conversations, and polls it to its end.
pub fn step_chats(session: &Session, chats: &[&Chat], budget_us: u64) -> Polled {
    assert_eq!(submit_chats(session, chats, budget_us), Ok(SEGNO_OK));
    poll_chats(session, chats.len(), ROOM, u64::MAX)
}

/// Makes the next token of a sequence this one.
pub fn steer(session: &Session, seq: i32, token: i32) {
    let bias = segno_logit_bias { token, bias: 1e6 };
    let opts = segno_sampler_opts { bias: &bias, bias_count: 1, ..greedy() };
    call(|err| segno_seq_sampler_set(session.0, seq, &opts, err)).unwrap();
}

/// A template of the shared test data.
pub fn templates() -> Vec<(String, String)> {
    let Some(data) = shared_data() else { return Vec::new() };
    let entries = std::fs::read_dir(data.join("chat/templates")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let named = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(named).collect()
}

/// A sequence that is fed by hand with what a conversation's sequence must hold.
pub struct Reference<'a> {
    session: &'a Session,
    pub seq: i32,
    pub held: Vec<i32>,
}

impl Reference<'_> {
    pub fn new(session: &Session) -> Reference<'_> {
        Reference { session, seq: session.open(&greedy()).unwrap(), held: Vec::new() }
    }

    /// Makes it these tokens.
    pub fn set(&mut self, tokens: &[i32]) {
        let same = self.held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.session.truncate(self.seq, same).unwrap();
        self.session.append(self.seq, &tokens[same..]).unwrap();
        self.held = tokens.to_vec();
    }

    /// Whether a conversation's sequence holds the same.
    pub fn assert_same(&self, session: &Session, chat: &Chat, what: &str) {
        assert_eq!(session.length(chat.seq()), Ok(self.held.len()), "{what}");
        let (own, other) = (self.session.logits(self.seq).unwrap(), session.logits(chat.seq()).unwrap());
        assert!(own.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: other tokens");
    }
}

/// A model that replies what it is told to, and a plain account of what a sequence must hold.
pub struct Case {
    pub model: Model,
    pub vocabulary: Vocabulary,
    /// A token that ends a reply, and that no template writes.
    pub end: i32,
}

impl Case {
    pub fn new(ctx: &Ctx, context: usize) -> Case {
        let vocabulary = Vocabulary::new(false);
        let end = vocabulary.tokenizer.eos().unwrap();
        Case { model: model(ctx, context, Some(CHATML)), vocabulary, end }
    }

    pub fn session(&self, kv_tokens: u64) -> Session {
        self.model.session(|opts| (opts.kv_tokens, opts.max_seqs) = (kv_tokens, 4)).unwrap()
    }

    /// The tokens of messages with a template.
    pub fn render(&self, template: &str, messages: &Value, prompt: bool) -> Option<Vec<i32>> {
        let set = |opts: &mut segno_chat_opts| {
            (opts.template_text, opts.template_len) = parts(Some(template));
            opts.flags = u32::from(prompt);
        };
        tokenized(&self.model, messages, set).ok()
    }

    /// Tokens of a reply as the template writes it behind `prompt`, up to the first that ends it; or else plain ones.
    pub fn canonical(&self, template: &str, messages: &Value, prompt: &[i32], text: &str) -> Vec<i32> {
        let mut all = messages.as_array().unwrap().clone();
        all.push(json!({"role": "assistant", "content": text}));
        let tokenizer = &self.vocabulary.tokenizer;
        let whole = self.render(template, &Value::Array(all), false).filter(|whole| whole.starts_with(prompt));
        let plain = || self.plain(prompt, text, || true);
        let tokens = whole.map_or_else(plain, |whole| whole[prompt.len()..].to_vec());
        let end = tokens.iter().position(|&token| tokenizer.is_eog(token)).unwrap_or(tokens.len());
        tokens[..tokens.len().min(end + 1)].to_vec()
    }

    /// Tokens of a reply that says `text`, cut anyhow; reasoning that the prompt has opened ends first.
    pub fn plain(&self, prompt: &[i32], text: &str, cut: impl FnMut() -> bool) -> Vec<i32> {
        let end = self.vocabulary.tokenizer.decode(&prompt[prompt.len().saturating_sub(24)..], true).unwrap();
        let end = String::from_utf8_lossy(&end).trim_end().to_owned();
        let opened = ["<think>", "<think:opensource>", "[THINK]", "<|START_THINKING|>", "<|open|>think<|sep|>"];
        let closing = ["</think>", "</think:opensource>", "[/THINK]", "<|END_THINKING|>", "<|close|>think<|sep|>"];
        let closing = opened.iter().position(|tag| end.ends_with(tag)).map_or("", |at| closing[at]);
        self.vocabulary.tokens(&format!("{closing}{text}"), cut)
    }

    /// The tokens that must stand where `held` were, once `wanted` is rendered: the longest beginning of `held` that says the same stays.
    pub fn merged(&self, held: &[i32], wanted: &[i32]) -> Vec<i32> {
        let units = |tokens: &[i32]| {
            let (mut units, mut ends) = (Vec::new(), vec![0]);
            for &token in tokens {
                if self.vocabulary.tokenizer.is_special(token) {
                    units.push(256 + token);
                } else {
                    units.extend(self.vocabulary.tokenizer.piece(token, false).unwrap().iter().map(|&b| i32::from(b)));
                }
                ends.push(units.len());
            }
            (units, ends)
        };
        let ((a, a_ends), (b, b_ends)) = (units(held), units(wanted));
        let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let at = (0..=same).rev().find(|at| a_ends.contains(at) && b_ends.contains(at)).unwrap();
        let of = |ends: &[usize]| ends.iter().position(|&end| end == at).unwrap();
        [&held[..of(&a_ends)], &wanted[of(&b_ends)..]].concat()
    }
}

/// A conversation in ChatML with the texts of its users, each answered by itself in capitals.
pub fn talk(case: &Case, session: &Session, chat: &Chat, texts: &[&str]) {
    for text in texts {
        chat.say("user", text).unwrap();
        answer(case, session, chat, &text.to_uppercase());
    }
}

/// Lets the model say `text`.
pub fn answer(case: &Case, session: &Session, chat: &Chat, text: &str) -> Vec<Event> {
    let end = case.vocabulary.tokens("<|im_end|>", || true)[0];
    chat.reply(session, &case.vocabulary.tokens(text, || false), end).unwrap()
}
