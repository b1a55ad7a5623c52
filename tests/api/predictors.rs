//! Speculation by a model's own predictor, through the C API: tokens and outcomes are those of a session that drafts nothing, drafts are those of the
//! predictor over all of the text, and a model whose predictor cannot be used does without.

use crate::common::drafts::*;
use crate::common::gguf::parsed;
use crate::common::log::{listen, texts};
use crate::common::passes::limits;
use crate::common::predictors::{Guesses, MODELS, PREDICTED, assert_right, plan, predicting, predicting_file};
use crate::common::{Ctx, Folder, Model, bundled_model, greedy};
use segno::arch::{Arch, Hparams};
use segno::backend::{Backend, Batch, Chooser, Hidden, Limits, Row, Runner, cpu};
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::session::*;
use segno::ffi::status::*;
use segno::format::Gguf;
use segno::kv::state::{States, records};
use segno::kv::{Pages, Tables};
use segno::plan::{Program, build::build, predictor};
use segno::quant::synthetic::Random;
use segno::sample;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const RANDOM: Guesses = Guesses::Random { own: false };

fn one_thread() -> Ctx {
    Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1)).unwrap()
}

fn load(ctx: &Ctx, (name, layer): (&str, usize), guesses: Guesses) -> Model {
    ctx.load_buffer(&predicting(name, layer, guesses).bytes()).unwrap()
}

#[test]
fn tokens_are_those_without_drafts() {
    let ctx = one_thread();
    let (mut drafted, mut accepted) = (0, 0);
    for (seed, model) in (11..).zip(MODELS) {
        for (guesses, speculation, most) in [
            (Guesses::Right, PREDICTED, 5),
            (RANDOM, PREDICTED, 0),
            (Guesses::Right, SEGNO_SPECULATION_AUTO, 15),
            (Guesses::Random { own: true }, SEGNO_SPECULATION_MTP, 1),
            (Guesses::Nothing, PREDICTED, 3),
        ] {
            let drafting = Drafting { speculation, most, ..PLAIN };
            let kv_tokens = if seed % 2 == 0 && !model.0.starts_with("qwen3") { 320 } else { 1024 };
            let (more, right) = walk(&load(&ctx, model, guesses), drafting, kv_tokens, seed, tokens());
            assert!(more > 0 || guesses == Guesses::Nothing || speculation < SEGNO_SPECULATION_ALWAYS, "{model:?}");
            (drafted, accepted) = (drafted + more, accepted + right);
        }
    }
    assert_mixed(drafted, accepted);
}

#[test]
fn tokens_are_those_without_drafts_over_a_cache_of_8_bits() {
    let ctx = one_thread();
    for model in MODELS {
        let drafting = Drafting { speculation: PREDICTED, most: 4, kv_type: SEGNO_KV_Q8, ..PLAIN };
        let (drafted, _) = walk(&load(&ctx, model, Guesses::Right), drafting, 1024, 3, tokens());
        assert!(drafted > 50, "{model:?}: {drafted}");
    }
}

#[test]
fn tokens_are_those_without_drafts_under_grammars() {
    let file = predicting_file(&bundled_model(), 5, RANDOM);
    let model = one_thread().load_buffer(&file.bytes()).unwrap();
    let drafting = Drafting { speculation: PREDICTED, most: 5, ..PLAIN };
    let (drafted, accepted) = walk(&model, drafting, 512, 3, 2 * tokens());
    assert!(drafted > accepted + 100, "of {drafted} drafts {accepted} were right");
}

#[test]
fn a_predictor_that_thinks_as_the_model_is_right() {
    let ctx = one_thread();
    MODELS.into_iter().for_each(|which| assert_right(&ctx, which));
}

/// Programs of a file over one text, by themselves.
struct Alone {
    runner: Box<dyn Runner>,
    tables: Tables,
    states: Option<States>,
}

const CONTEXT: usize = 256;

impl Alone {
    fn new(program: Program, hidden: Hidden) -> Alone {
        let options = cpu::Options { threads: 1, precise: false, allow_avx512: true, gives_way: false };
        let (program, cpu) = (Arc::new(program), cpu::Cpu::new(&options).unwrap());
        let records = if program.states.is_empty() { 0 } else { records(1, 2, false) };
        let pages = CONTEXT / 32;
        let limits = Limits { rows: CONTEXT, context: CONTEXT, records, hidden, ..limits(&program, CONTEXT, 1) };
        let (mut all, mut tables) = (Pages::new(pages).unwrap(), Tables::new(1, pages).unwrap());
        assert!(tables.grow(0, pages, &mut all));
        let runner = cpu.prepare(Arc::clone(&program), &mut |_| Ok(())).unwrap().open(&limits).unwrap();
        Alone { runner, tables, states: (records > 0).then(|| States::new(1, 2, false).unwrap()) }
    }

    /// Evaluates a whole text.
    fn pass(&mut self, tokens: &[i32]) {
        let row = |(place, &token): (usize, &i32)| Row { token: token as u32, position: place as u32, slot: 0 };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let outputs = [rows.len() as u32 - 1];
        self.states.iter_mut().for_each(|states| states.plan(0, rows.len(), true));
        let moves = self.states.as_ref().map_or(&[][..], |states| states.moves());
        let (chooser, tables, window_tables) = (Chooser::Host, &self.tables, None);
        let batch = Batch { rows: &rows, outputs: &outputs, chooser, tables, window_tables, moves };
        self.runner.run(&batch, &AtomicBool::new(false)).unwrap();
    }
}

/// What the predictor of a file guesses behind `tokens`, of which all but the last have `vectors`.
fn guess(gguf: &Gguf, arch: &Arch, options: &sample::Options, tokens: &[i32], vectors: &[Vec<f32>]) -> i32 {
    let hparams = Hparams::of_predictor(gguf.metadata(), arch).unwrap();
    let mut alone = Alone::new(predictor::build(gguf, arch, &hparams).unwrap(), Hidden::Outputs);
    vectors.iter().enumerate().for_each(|(row, vector)| alone.runner.given(row).copy_from_slice(vector));
    alone.pass(&tokens[1..]);
    let (logits, mask) = (alone.runner.logits(0), sample::Mask::default());
    let mut scratch = sample::Scratch::new(logits.len()).unwrap();
    sample::sample_masked(options, logits, &mask, tokens, tokens.len() as u64, &mut scratch).unwrap()
}

/// How often they are right, over passes of a prompt, of single tokens and of drafts, tells that they are those of a predictor that has seen all.
#[test]
fn drafts_are_what_the_predictor_says_of_all_of_the_text() {
    let ctx = one_thread();
    for (which, max_prefill) in [MODELS[0], MODELS[1]].into_iter().flat_map(|which| [24, 136].map(|most| (which, most)))
    {
        let file = predicting(which.0, which.1, RANDOM);
        let gguf = parsed(&file.bytes());
        let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
        let model = ctx.load_buffer(&file.bytes()).unwrap();
        let mut again = greedy();
        again.frequency_penalty = -0.3;
        let prompt: Vec<i32> = (0..140).map(|place| place * place % 23).collect();
        let session = model.session(|opts| {
            (opts.max_seqs, opts.max_prefill, opts.speculation, opts.max_drafts) = (2, max_prefill, PREDICTED, 1);
        });
        let session = session.unwrap();
        let seq = session.open(&again).unwrap();
        session.append(seq, &prompt).unwrap();
        let text = [prompt.clone(), session.generate(seq, 105).unwrap()].concat();
        let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
        let mut alone = Alone::new(build(&gguf, &arch, &hparams).unwrap(), Hidden::Rows);
        alone.pass(&text);
        let vectors: Vec<Vec<f32>> = (0..text.len()).map(|row| alone.runner.hidden(row).to_vec()).collect();
        let frequency_penalty = again.frequency_penalty;
        let options = sample::Options { temperature: 0.0, frequency_penalty, ..sample::Options::defaults() };
        let (mut drafted, mut accepted, mut length) = (0, 0, prompt.len() + 1);
        while length < text.len() {
            // Drafts stay in the page of the last token.
            let drafts = length % 32 != 0;
            let draft = drafts.then(|| guess(&gguf, &arch, &options, &text[..length], &vectors[..length - 1]));
            let is_right = draft == Some(text[length]);
            (drafted, accepted) = (drafted + u64::from(drafts), accepted + u64::from(is_right));
            length += if is_right { 2 } else { 1 };
        }
        let stats = session.stats().unwrap();
        println!("{which:?}, {max_prefill}: {accepted} of {drafted}, {} of {}", stats.accepted, stats.drafted);
        assert_eq!((stats.drafted, stats.accepted), (drafted, accepted), "{which:?}");
        assert!(accepted > 0 && accepted < drafted, "{accepted} of {drafted} prove little");
    }
}

#[test]
fn a_predictor_that_is_wrong_is_asked_no_more() {
    let ctx = one_thread();
    let model = load(&ctx, MODELS[0], RANDOM);
    let stats = |_| {
        let session = model.session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &[3, 5, 7]).unwrap();
        session.generate(seq, 240).unwrap();
        session.stats().unwrap()
    };
    // What passes take is measured, and may mislead while other programs keep the processors busy: so one of some.
    assert!((0..5).map(stats).any(|stats| stats.drafted - stats.accepted < 120), "drafts go on that lose");
}

#[test]
fn memory_and_plan_count_the_predictor() {
    let (ctx, folder) = (one_thread(), Folder::new("predictor"));
    let path = folder.join("model.gguf");
    predicting("qwen35-plain", 1, RANDOM).write(&path);
    let model = ctx.load(&path).unwrap();
    let kinds = [SEGNO_SPECULATION_NGRAM, SEGNO_SPECULATION_MTP, SEGNO_SPECULATION_AUTO];
    let [without, with, auto] = kinds.map(|speculation| {
        let session = session(&model, Drafting { speculation, ..PLAIN }, 512);
        (session.memory(), plan(&ctx, &path, speculation))
    });
    for (memory, planned) in [&without, &with, &auto] {
        let found = (planned.host_weights, planned.host_kv, planned.host_arena);
        assert_eq!(found, (memory.host_weights, memory.host_kv, memory.host_arena));
    }
    assert_eq!((with.0.host_kv, with.0.host_arena), (auto.0.host_kv, auto.0.host_arena));
    // Keys and values of one layer, 20 pages of 32 positions, of two heads.
    assert_eq!(with.0.host_kv - without.0.host_kv, 20 * 32 * 2 * 2 * 16 * 2);
    assert!(with.0.host_weights > without.0.host_weights && with.0.host_arena > without.0.host_arena);
}

#[test]
fn a_model_whose_predictor_cannot_be_used_does_without() {
    let whole = predicting("qwen35-plain", 1, RANDOM);
    let changed = |change: &dyn Fn(&mut crate::common::gguf::File)| {
        let mut file = whole.clone();
        change(&mut file);
        file
    };
    let none = "no block that predicts further tokens";
    for (file, reason) in [
        (
            changed(&|file| _ = file.remove_tensor("blk.4.nextn.eh_proj.weight")),
            "`blk.4.nextn.eh_proj.weight` is missing",
        ),
        (changed(&|file| _ = file.remove_tensor("blk.4.attn_k.weight")), "`blk.4.attn_k.weight` is missing"),
        (changed(&|file| file.tensor("blk.4.nextn.enorm.weight").dims = vec![16, 2]), "blk.4.nextn.enorm.weight"),
        (changed(&|file| file.tensor("blk.4.nextn.eh_proj.weight").dims = vec![32, 64]), "blk.4.nextn.eh_proj.weight"),
        (changed(&|file| _ = file.add_zeros("blk.4.nextn.other.weight", &[3])), "blk.4.nextn.other.weight"),
        (changed(&|file| _ = file.add_zeros("blk.4.nextn.embed_tokens.weight", &[32, 9])), "expected [32, 9]"),
    ] {
        let (ctx, log) = {
            let mut lines = None;
            let ctx = Ctx::new(|opts| {
                (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1);
                lines = Some(listen(opts));
            });
            (ctx.unwrap(), lines.unwrap())
        };
        let model = ctx.load_buffer(&file.bytes()).unwrap();
        let failed = model.session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).err().unwrap();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
        assert!(failed.message.contains("(MTP)") && failed.message.contains(reason), "{}", failed.message);
        let text = |speculation| {
            let session = session(&model, Drafting { speculation, ..PLAIN }, 512);
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, &[3, 5, 7]).unwrap();
            session.generate(seq, 20).unwrap()
        };
        assert_eq!(text(SEGNO_SPECULATION_AUTO), text(SEGNO_SPECULATION_OFF));
        drop(model);
        assert!(
            texts(log).iter().any(|line| line.contains("no speculation by the model itself") && line.contains(reason))
        );
    }
    let ctx = one_thread();
    let plain = crate::common::drafts::load(&ctx, "llama-bias");
    let failed = plain.session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).err().unwrap();
    assert!(failed.status == SEGNO_E_UNSUPPORTED && failed.message.contains(none), "{}", failed.message);
    let model = ctx.load_buffer(&whole.bytes()).unwrap();
    let both = model.session(|opts| (opts.speculation, opts.draft) = (SEGNO_SPECULATION_MTP, model.0)).err().unwrap();
    assert!(
        both.status == SEGNO_E_INVALID_ARGUMENT && both.message.contains("asks no draft model"),
        "{}",
        both.message
    );
}

#[test]
fn changed_files_of_models_with_predictors_load_or_are_refused() {
    let ctx = one_thread();
    let (mut refused, mut without, mut with) = (0, 0, 0);
    for (name, layer) in [("qwen35-plain", 1), ("glm4moe-plain", 2), ("deepseekv3-plain", 2)] {
        let (file, mut random) = (predicting(name, layer, RANDOM), Random::new(3));
        let whole = file.bytes();
        // The metadata, names and sizes of what the block has beside those of a layer, and weights of that.
        let at = |name: &str| whole.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
        let directory = at("nextn.eh_proj") - 6..at("nextn.hnorm") + 40;
        let parts = [at("general.architecture")..at("token_embd.weight"), directory, whole.len() - 4096..whole.len()];
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.bits() % 2 {
                let part = &parts[random.bits() as usize % 3];
                bytes[part.start + random.bits() as usize % part.len()] = random.bits() as u8;
            }
            let Ok(model) = ctx.load_buffer(&bytes) else {
                refused += 1;
                continue;
            };
            let session = model.session(|opts| {
                (opts.max_seqs, opts.kv_tokens, opts.max_prefill, opts.speculation) = (2, 256, 16, PREDICTED);
            });
            match session {
                Ok(session) => {
                    let seq = session.open(&greedy()).unwrap();
                    session.append(seq, &[3; 40]).unwrap();
                    let outcome = session.generate(seq, 12);
                    assert!(!outcome.is_err_and(|failed| failed.status == SEGNO_E_PANIC), "{name}");
                    with += 1;
                }
                Err(failed) => {
                    assert_ne!(failed.status, SEGNO_E_PANIC, "{}", failed.message);
                    without += 1;
                }
            }
        }
    }
    println!("{refused} refused, {without} without a predictor, {with} with one");
    assert!(refused > 100 && without > 20 && with > 100, "{refused}, {without} and {with} prove little");
}
