//! Random walks over sequences of models some layers of which see a window or have a state: prompts, cancelled ones too, steps in company, forks and
//! cuts, and tokens taken out of the middle, whose logits must be those of fresh evaluation where every layer keeps everything.

use super::{Model, Session, greedy};
use segno::ffi::session::{SEGNO_KV_F16, segno_session_opts};
use segno::ffi::status::*;
use segno::quant::synthetic::Random;

/// Test models with windows of 7 to 12 positions, and a context of 256.
pub const MODELS: [&str; 8] = [
    "gemma2-plain",
    "gemma3-plain",
    "gemma3-listed",
    "olmo3-yarn",
    "exaone4-window",
    "cohere2-plain",
    "gemma4-experts",
    "gemma4-small",
];
/// Test models with layers that have a state: one of each family, and what differs within them.
pub const RECURRENT: [&str; 10] = [
    "lfm2-plain",
    "lfm2-taps",
    "lfm2moe-plain",
    "qwen3next-wide",
    "qwen35-plain",
    "granitehybrid-plain",
    "falconh1-bare",
    "nemotronh-plain",
    "nemotronhmoe-latent",
    "falconh1-plain",
];
const VOCAB: u64 = 131;
const CONTEXT: usize = 256;
const SEQS: usize = 3;

pub fn sizes(opts: &mut segno_session_opts, seqs: usize, prefill: usize) {
    (opts.kv_tokens, opts.max_seqs) = (CONTEXT as u64, seqs as u32);
    (opts.max_prefill, opts.max_prompt) = (prefill as u32, prefill as u32);
}

/// Logits after `tokens`, evaluated at once where every layer keeps everything.
fn fresh(session: &Session, tokens: &[i32]) -> Vec<u32> {
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, tokens).unwrap();
    let logits = bits(session.logits(seq).unwrap());
    session.close(seq).unwrap();
    logits
}

fn bits(logits: Vec<f32>) -> Vec<u32> {
    logits.into_iter().map(f32::to_bits).collect()
}

/// Sequences of a session and the tokens that each must have.
struct Walk<'a> {
    session: &'a Session,
    whole: &'a Session,
    random: Random,
    seqs: Vec<(i32, Vec<i32>)>,
    /// How often a cut lost what layers with a window had kept.
    lost: usize,
}

impl Walk<'_> {
    fn below(&mut self, bound: usize) -> usize {
        (self.random.bits() % bound as u64) as usize
    }

    fn act(&mut self) {
        if self.seqs.is_empty() {
            self.seqs.push((self.session.open(&greedy()).unwrap(), Vec::new()));
        }
        let at = self.below(self.seqs.len());
        let (seq, length) = (self.seqs[at].0, self.seqs[at].1.len());
        match self.below(9) {
            0..3 => self.prefill(at),
            3..5 if length > 0 => self.step_all(),
            5 if length > 0 => {
                let keep = match self.below(2) {
                    0 => length - self.below(length.min(20)),
                    _ => self.below(length) + 1,
                };
                self.cut(at, keep);
            }
            6 if self.seqs.len() < SEQS => match self.session.fork(seq, None) {
                Ok(fork) => self.seqs.push((fork, self.seqs[at].1.clone())),
                Err(failed) => assert_eq!(failed.status, SEGNO_E_KV_FULL),
            },
            7 if length > 0 => self.remove(at),
            8 if self.below(4) == 0 => {
                self.session.close(seq).unwrap();
                self.seqs.remove(at);
            }
            _ => {}
        }
    }

    fn prefill(&mut self, at: usize) {
        let count = self.below(60) + 1;
        let tokens: Vec<i32> = (0..count).map(|_| (self.random.bits() % VOCAB) as i32).collect();
        let (seq, known) = &mut self.seqs[at];
        self.session.cancel(self.random.bits().is_multiple_of(8));
        match self.session.prefill(*seq, &tokens) {
            Ok(SEGNO_OK) => known.extend(tokens),
            Ok(other) => assert_eq!(other, SEGNO_CANCELLED),
            Err(failed) => assert!([SEGNO_E_KV_FULL, SEGNO_E_CONTEXT_FULL].contains(&failed.status)),
        }
        self.session.cancel(false);
        self.check(at);
    }

    /// One token for each sequence that has a prompt and room.
    fn step_all(&mut self) {
        let able = |(_, known): &&mut (i32, Vec<i32>)| (1..CONTEXT).contains(&known.len());
        let mut open: Vec<&mut (i32, Vec<i32>)> = self.seqs.iter_mut().filter(|seq| able(seq)).collect();
        let ids: Vec<i32> = open.iter().map(|(id, _)| *id).collect();
        let (tokens, statuses, _) = self.session.batch(&ids);
        for (index, (_, known)) in open.iter_mut().enumerate() {
            if statuses[index] == SEGNO_OK {
                known.push(tokens[index]);
            } else {
                assert!([SEGNO_PENDING, SEGNO_E_KV_FULL].contains(&statuses[index]), "{}", statuses[index]);
            }
        }
    }

    fn cut(&mut self, at: usize, keep: usize) {
        let (seq, known) = &mut self.seqs[at];
        self.session.truncate(*seq, keep).unwrap();
        known.truncate(keep);
        self.lost += usize::from(self.session.seq_stats(*seq).unwrap().pages == 0);
        self.check(at);
    }

    /// Takes a few tokens out, or most of them.
    fn remove(&mut self, at: usize) {
        let length = self.seqs[at].1.len();
        let first = self.below(length);
        let most = if self.below(2) == 0 { 20 } else { CONTEXT };
        let count = self.below((length - first).min(most)) + 1;
        let (seq, known) = &mut self.seqs[at];
        self.session.remove(*seq, first, count).unwrap();
        known.drain(first..first + count);
        self.check(at);
    }

    fn check(&mut self, at: usize) {
        let (seq, known) = &self.seqs[at];
        assert_eq!(self.session.length(*seq), Ok(known.len()));
        if known.is_empty() {
            return;
        }
        match self.session.logits(*seq) {
            Ok(logits) => assert!(bits(logits) == fresh(self.whole, known), "{} tokens", known.len()),
            Err(failed) => assert_eq!(failed.status, SEGNO_E_KV_FULL),
        }
    }
}

/// Walks over sessions whose passes take 1, 7 and 30 tokens.
pub fn walk(name: &str, model: &Model) {
    [1, 7, 30].into_iter().for_each(|prefill| walk_in(name, model, SEGNO_KV_F16, prefill));
}

/// A walk over a session with such a cache, whose passes take so many tokens.
pub fn walk_in(name: &str, model: &Model, kv_type: i32, prefill: usize) {
    let session = |seqs, prefill| {
        let set = |opts: &mut segno_session_opts| {
            sizes(opts, seqs, prefill);
            opts.kv_type = kv_type;
        };
        model.session(set).unwrap()
    };
    let (whole, session) = (session(1, 512), session(SEQS, prefill));
    let free = session.stats().unwrap().pages_free;
    let random = Random::new(prefill as u64);
    let mut walk = Walk { session: &session, whole: &whole, random, seqs: Vec::new(), lost: 0 };
    (0..150).for_each(|_| walk.act());
    assert!(walk.lost > 0, "{name}: no cut went far back");
    walk.seqs.iter().for_each(|(seq, _)| assert_eq!(session.close(*seq), Ok(SEGNO_OK)));
    assert_eq!(session.stats().unwrap().pages_free, free);
}
