//! Random walks over the same sequences in a session that drafts and in one that does not: prompts, steps alone, in batches and several at once,
//! forks, cuts, saves, other samplers, grammars, cancelled calls and full caches, all of which must give the same tokens, outcomes and figures.

use super::predictors::planned;
use super::saved::{restore, save_within};
use super::{Ctx, Grammar, Model, Session, greedy, root, sampler};
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::grammar::SEGNO_GRAMMAR_REGEX;
use segno::ffi::seq::{segno_logit_bias, segno_sampler_opts};
use segno::ffi::session::*;
use segno::ffi::status::*;
use segno::quant::synthetic::Random;
use std::path::Path;
use std::ptr::null;

/// Models of so many families, of each attention that there is: windows, latent vectors, sinks, experts.
pub const MODELS: [&str; 14] = [
    "llama-llama3",
    "qwen2-tied",
    "qwen3-tied",
    "gemma2-plain",
    "gemma3-listed",
    "olmo3-yarn",
    "cohere2-plain",
    "gptoss-plain",
    "phi3-short",
    "granite-plain",
    "glm4moe-plain",
    "deepseekv3-plain",
    "mixtral-plain",
    "minimax-plain",
];

/// Models whose layers have a state.
pub const STATES: [&str; 7] = [
    "lfm2-plain",
    "lfm2moe-plain",
    "qwen3next-wide",
    "qwen35-plain",
    "granitehybrid-plain",
    "falconh1-bare",
    "nemotronh-plain",
];

/// Sequences of a session, and tokens that one may have: the context of these models.
const SEQS: u32 = 4;

/// Drafts from repetitions whether they pay or not.
pub const REPETITIONS: i32 = SEGNO_SPECULATION_NGRAM + SEGNO_SPECULATION_ALWAYS;
/// Drafts of a model whether they pay or not.
pub const DRAFTED: i32 = SEGNO_SPECULATION_DRAFT + SEGNO_SPECULATION_ALWAYS;

/// A way to draft: where from, at most how many, and the draft model, which is the model itself where its name is empty.
pub type Way = (i32, u32, Option<&'static str>);
pub const WAYS: [Way; 3] =
    [(REPETITIONS, 0, None), (SEGNO_SPECULATION_AUTO, 3, None), (REPETITIONS + SEGNO_SPECULATION_SHARED, 4, None)];
pub const WAYS_OF_MODELS: [Way; 3] =
    [(DRAFTED, 0, Some("")), (DRAFTED, 2, Some("llama-bias")), (SEGNO_SPECULATION_AUTO, 15, Some(""))];

/// Tokens of each walk; `SEGNO_DRAFT_TOKENS` sets another number.
pub fn tokens() -> usize {
    std::env::var("SEGNO_DRAFT_TOKENS").map_or(400, |text| text.parse().expect("a number"))
}

/// Walks through models with drafts of each way; how many were evaluated, and how many of them were right.
pub fn walks(ctx: &Ctx, models: &[&str], ways: &[Way]) -> (u64, u64) {
    walks_in(ctx, SEGNO_KV_F16, models, ways)
}

/// The same over such a cache.
pub fn walks_in(ctx: &Ctx, kv_type: i32, models: &[&str], ways: &[Way]) -> (u64, u64) {
    let mut sum = (0, 0);
    for (seed, name) in (1..).zip(models) {
        let model = load(ctx, name);
        for (turn, &(speculation, most, draft)) in (0..).zip(ways) {
            let draft = draft.map(|draft| load(ctx, if draft.is_empty() { name } else { draft }));
            let drafting = Drafting { speculation, most, draft: draft.as_ref(), kv_type };
            // Every other walk in a cache that is often full, but where the snapshots of states decide how many pages a cut leaves.
            let kv_tokens = if (seed + turn) % 2 == 0 || has_states(&model) { 1024 } else { 320 };
            let (drafted, accepted) = walk(&model, drafting, kv_tokens, seed, tokens());
            sum = (sum.0 + drafted, sum.1 + accepted);
        }
    }
    sum
}

/// A model of the tree by its name.
pub fn load(ctx: &Ctx, name: &str) -> Model {
    ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap()
}

/// How a session drafts, and its cache.
#[derive(Clone, Copy)]
pub struct Drafting<'a> {
    pub speculation: i32,
    pub most: u32,
    pub draft: Option<&'a Model>,
    pub kv_type: i32,
}

pub const PLAIN: Drafting =
    Drafting { speculation: SEGNO_SPECULATION_OFF, most: 0, draft: None, kv_type: SEGNO_KV_F16 };

/// A session of so many tokens that drafts in such a way. Where layers have states, other snapshots let other prompts be long after a cut, so there
/// each is a single pass.
pub fn session(model: &Model, drafting: Drafting, kv_tokens: u64) -> Session {
    let max_prefill = if has_states(model) { 1024 } else { 24 };
    let opts = |opts: &mut segno_session_opts| {
        (opts.max_seqs, opts.kv_tokens) = (SEQS, kv_tokens);
        (opts.max_prefill, opts.max_prompt) = (max_prefill, max_prefill);
        (opts.speculation, opts.max_drafts) = (drafting.speculation, drafting.most);
        (opts.draft, opts.kv_type) = (drafting.draft.map_or(null(), |draft| draft.0), drafting.kv_type);
    };
    model.session(opts).unwrap()
}

/// A context of the processor and one thread.
pub fn one_thread() -> Ctx {
    Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1)).unwrap()
}

/// Two sequences of a model with a draft that thinks as it does, the second drawn by `drawn`: all drafts are right but the last ones.
pub fn assert_right(model: &Model, draft: &Model, drawn: &segno_sampler_opts) {
    let drafting = Drafting { speculation: DRAFTED, most: 5, draft: Some(draft), ..PLAIN };
    let session = session(model, drafting, 1024);
    let (first, second) = (session.open(&greedy()).unwrap(), session.open(drawn).unwrap());
    session.append(first, &[3, 5, 7]).unwrap();
    session.append(second, &[11; 50]).unwrap();
    for _ in 0..150 {
        session.batch(&[first, second]).2.unwrap();
    }
    let stats = session.stats().unwrap();
    assert!(stats.accepted + 5 >= stats.drafted, "{} of {}", stats.accepted, stats.drafted);
    assert!(stats.passes < 100 && stats.drafted > 200, "{} passes, {} drafts", stats.passes, stats.drafted);
}

/// A session of `model` is refused, with `draft` if there is one, in these words.
pub fn assert_refused(model: &Model, draft: Option<&Model>, words: &str) {
    let opts = |opts: &mut segno_session_opts| {
        opts.speculation = if draft.is_some() { SEGNO_SPECULATION_DRAFT } else { SEGNO_SPECULATION_OFF };
        opts.draft = draft.map_or(null(), |draft| draft.0);
    };
    let failed = model.session(opts).err().unwrap();
    assert!(failed.status == SEGNO_E_UNSUPPORTED && failed.message.contains(words), "{failed:?}");
}

/// What a model says with drafts of `draft`, and how many there were and were right.
pub fn drafts(model: &Model, draft: &Model) -> (Vec<i32>, u64, u64) {
    let drafting = Drafting { speculation: DRAFTED, most: 4, draft: Some(draft), ..PLAIN };
    let session = session(model, drafting, 512);
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[3, 5, 7]).unwrap();
    let tokens = session.generate(seq, 60).unwrap();
    let stats = session.stats().unwrap();
    (tokens, stats.drafted, stats.accepted)
}

/// Walks of models with drafts that were made for them, with seeds from `seed` on; how many were drafted, and how many of them were right.
pub fn walks_of_pairs(seed: u64, pairs: [(&Model, &Model); 4]) -> (u64, u64) {
    let (mut drafted, mut accepted) = (0, 0);
    for (seed, (model, draft)) in (seed..).zip(pairs) {
        for (speculation, most, kv_type) in
            [(DRAFTED, 5, SEGNO_KV_F16), (DRAFTED, 0, SEGNO_KV_Q8), (SEGNO_SPECULATION_AUTO, 15, SEGNO_KV_F16)]
        {
            let drafting = Drafting { speculation, most, draft: Some(draft), kv_type };
            let kv_tokens = if seed % 2 == 0 { 320 } else { 1024 };
            let (more, right) = walk(model, drafting, kv_tokens, seed, tokens());
            assert!(more > 0 || speculation < SEGNO_SPECULATION_ALWAYS);
            (drafted, accepted) = (drafted + more, accepted + right);
        }
    }
    (drafted, accepted)
}

/// Of the drafts of walks many were right, and many wrong.
pub fn assert_mixed(drafted: u64, accepted: u64) {
    let (wrong, few) = (drafted - accepted, tokens() as u64);
    assert!(accepted > few && wrong > few, "of {drafted} drafts {accepted} were right");
}

/// The memory of sessions of the model at `path` on a device, without a draft and with one, which is as planned.
pub fn planned_memory(ctx: &Ctx, path: &Path, draft: &Model) -> [segno_memory; 2] {
    let model = ctx.load(path).unwrap();
    let drafting = |draft| Drafting { speculation: SEGNO_SPECULATION_AUTO, most: 0, draft, ..PLAIN };
    let [alone, both] = [None, Some(draft)].map(|draft| session(&model, drafting(draft), 512).memory());
    let plan = planned(ctx, path, |opts| {
        (opts.max_prefill, opts.max_prompt) = (24, 24);
        (opts.speculation, opts.draft) = (SEGNO_SPECULATION_AUTO, draft.0);
    });
    let device = (plan.device_kv, plan.device_arena, plan.device_graphs, plan.host_arena);
    assert_eq!(device, (both.device_kv, both.device_arena, both.device_graphs, both.host_arena));
    // The draft is loaded already.
    assert_eq!(plan.device_weights, alone.device_weights);
    [alone, both]
}

/// Walks until so many tokens have come, and gives how many drafts were evaluated and how many of them were right.
pub fn walk(model: &Model, drafting: Drafting, kv_tokens: u64, seed: u64, tokens: usize) -> (u64, u64) {
    let bias = [segno_logit_bias { token: 7, bias: 2.0 }, segno_logit_bias { token: 9, bias: f32::NEG_INFINITY }];
    let without = Drafting { kv_type: drafting.kv_type, ..PLAIN };
    let (plain, drafts) = (session(model, without, kv_tokens), session(model, drafting, kv_tokens));
    let texts = [r"([a-m ]{1,3}[^a-m ]){2,}", r"(ab|a[bc]*d|[^x]{2,9}){3,9}"];
    let mut walk = Walk {
        sessions: [&plain, &drafts],
        vocab: model.info().vocab as usize,
        samplers: samplers(&bias),
        has_states: has_states(model),
        // For models that have a tokenizer.
        grammars: texts.iter().filter_map(|text| model.grammar(SEGNO_GRAMMAR_REGEX, 0, text).ok()).collect(),
        random: Random::new(seed),
        seqs: Vec::new(),
        tokens: 0,
    };
    while walk.tokens < tokens {
        walk.act();
    }
    let stats = drafts.stats().unwrap();
    (stats.drafted, stats.accepted)
}

fn has_states(model: &Model) -> bool {
    let arch = String::from_utf8(model.meta("general.architecture").unwrap()).unwrap();
    ["lfm2", "qwen3next", "qwen35", "granitehybrid", "falcon-h1", "nemotron_h"]
        .iter()
        .any(|name| arch.starts_with(name))
}

/// Greedy with and without penalties, drawn, biased, and one that ends.
fn samplers(bias: &[segno_logit_bias]) -> [segno_sampler_opts; 5] {
    let (mut penalized, mut drawn, mut biased, mut ending) = (greedy(), greedy(), greedy(), sampler());
    (penalized.repeat_penalty, penalized.penalty_last_n) = (1.02, 20);
    (drawn.temperature, drawn.top_k, drawn.seed) = (0.3, 4, 5);
    (biased.bias, biased.bias_count) = (bias.as_ptr(), bias.len());
    (ending.temperature, ending.seed) = (0.2, 9);
    [greedy(), penalized, drawn, biased, ending]
}

struct Walk<'a> {
    /// The one without drafts first.
    sessions: [&'a Session; 2],
    vocab: usize,
    samplers: [segno_sampler_opts; 5],
    grammars: Vec<Grammar>,
    random: Random,
    seqs: Vec<i32>,
    tokens: usize,
    /// Whether layers have states, of which drafts leave other snapshots behind.
    has_states: bool,
}

impl Walk<'_> {
    fn below(&mut self, bound: usize) -> usize {
        (self.random.bits() % bound as u64) as usize
    }

    /// Calls both, which must answer the same.
    fn both<T: PartialEq + std::fmt::Debug>(&self, call: impl Fn(&Session) -> T) -> T {
        let [expected, found] = self.sessions.map(call);
        assert_eq!(expected, found);
        found
    }

    fn prompt(&mut self) -> Vec<i32> {
        let (length, period) = (1 + self.below(60), 2 + self.below(6));
        let words: Vec<i32> = (0..period).map(|_| self.below(self.vocab) as i32).collect();
        (0..length).map(|place| words[place % period]).collect()
    }

    fn open(&mut self) {
        let (which, prompt) = (self.below(self.samplers.len()), self.prompt());
        let seq = self.both(|session| session.open(&self.samplers[which])).unwrap();
        self.both(|session| session.append(seq, &prompt)).unwrap();
        self.seqs.push(seq);
        if self.below(2) == 0 {
            self.constrain(seq);
        }
    }

    fn act(&mut self) {
        if self.seqs.is_empty() {
            self.open();
        }
        let place = self.below(self.seqs.len());
        let seq = self.seqs[place];
        let length = self.both(|session| session.length(seq)).unwrap();
        if length == 0 {
            // All of it was taken out.
            return self.close(seq);
        }
        match self.below(48) {
            0 if self.seqs.len() < SEQS as usize => self.open(),
            1 if self.seqs.len() < SEQS as usize => {
                // There may be no page for it.
                self.seqs.extend(self.both(|session| session.fork(seq, None)));
            }
            2 => {
                let keep = length - self.below(length.min(12));
                self.both(|session| session.nearest(seq, keep).map(|found| if self.has_states { 0 } else { found }))
                    .unwrap();
                self.both(|session| session.truncate(seq, keep)).unwrap();
            }
            3 => {
                let prompt = self.prompt();
                _ = self.both(|session| session.append(seq, &prompt));
            }
            4 => {
                let which = self.below(self.samplers.len());
                self.both(|session| session.set_sampler(seq, &self.samplers[which])).unwrap();
            }
            5 => {
                let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                _ = self.both(|session| session.logits(seq).map(bits));
            }
            6 => self.close(seq),
            7 => self.cancel(seq),
            8 => self.move_house(seq),
            9 => self.constrain(seq),
            10 => self.compare_figures(seq),
            11 => {
                let prompt = self.prompt();
                _ = self.both(|session| session.prefill(seq, &prompt));
            }
            12 => {
                let first = self.below(length);
                let count = self.below((length - first).min(12)) + 1;
                // Its grammar may have followed them.
                _ = self.both(|session| session.remove(seq, first, count));
            }
            _ => self.step(seq, length),
        }
    }

    fn close(&mut self, seq: i32) {
        self.both(|session| session.close(seq)).unwrap();
        self.seqs.retain(|&open| open != seq);
    }

    fn cancel(&mut self, seq: i32) {
        self.both(|session| session.cancel(true));
        let (tokens, _, cancelled) = self.both(|session| session.batch(&[seq]));
        assert_eq!((tokens, cancelled), (vec![-1], Ok(SEGNO_CANCELLED)));
        assert_eq!(self.both(|session| session.many(seq, 4)), Ok((vec![], SEGNO_CANCELLED)));
        self.both(|session| session.cancel(false));
    }

    /// Saves a sequence, closes it, and restores it.
    fn move_house(&mut self, seq: i32) {
        let saved = self.sessions.map(|session| save_within(session, seq, usize::MAX).unwrap());
        // A text of bytes is too long to be shown.
        assert!(self.has_states || saved[0] == saved[1], "the saved sequences differ");
        self.close(seq);
        let [expected, found] = [0, 1].map(|which| restore(self.sessions[which], &saved[which]));
        assert_eq!(expected, found);
        self.seqs.extend(found);
    }

    /// Gives a sequence a grammar, at once or behind a token that often comes, or takes it away.
    fn constrain(&mut self, seq: i32) {
        let (which, trigger) = (self.below(3), [-1, -1, 7, 8][self.below(4)]);
        let grammar = self.grammars.get(which);
        self.both(|session| session.constrain(seq, grammar, if grammar.is_some() { trigger } else { -1 })).unwrap();
    }

    fn compare_figures(&mut self, seq: i32) {
        self.both(|session| {
            let stats = session.seq_stats(seq).unwrap();
            let seed = if stats.seed == u64::MAX { 0 } else { stats.seed };
            (stats.tokens, if self.has_states { 0 } else { stats.pages }, stats.decoded_tokens, seed)
        });
        self.both(|session| {
            let stats = session.stats().unwrap();
            (stats.seqs, stats.tokens, if self.has_states { 0 } else { stats.pages_used }, stats.decoded_tokens)
        });
    }

    /// A step of one, of all, or several tokens at once, which the other session takes one by one.
    fn step(&mut self, seq: i32, length: usize) {
        let outcome = match self.below(3) {
            0 => self.both(|session| session.step(seq)).map(|(token, _)| usize::from(token >= 0)),
            1 => {
                let seqs = self.seqs.clone();
                let (tokens, _, result) = self.both(|session| session.batch(&seqs));
                let count = tokens.iter().filter(|&&token| token >= 0).count();
                result.map(|_| count).or(Ok(count))
            }
            _ => self.several(seq),
        };
        match outcome {
            Ok(count) => self.tokens += count,
            // A full context or cache.
            Err(_) => self.close(seq),
        }
        let is_long = length > 150 && self.below(20) == 0;
        if is_long && self.seqs.contains(&seq) {
            self.close(seq);
        }
    }

    fn several(&mut self, seq: i32) -> super::Result<usize> {
        let ([plain, drafting], room) = (self.sessions, 1 + self.below(12));
        let result = drafting.many(seq, room);
        let Ok((tokens, status)) = &result else {
            assert_eq!(plain.step(seq).map(|_| 0), result.map(|_| 0));
            return plain.step(seq).map(|_| 0);
        };
        for (place, &token) in tokens.iter().enumerate() {
            let last = place + 1 == tokens.len();
            assert_eq!(plain.step(seq), Ok((token, if last { *status } else { SEGNO_OK })));
        }
        if tokens.is_empty() {
            assert_eq!(plain.step(seq), Ok((-1, *status)));
        }
        Ok(tokens.len())
    }
}
