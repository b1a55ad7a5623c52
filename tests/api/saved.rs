//! Saved sequences through the C API: what is restored goes on as if it had never stopped, and what is damaged, or belongs elsewhere, is refused and
//! leaves nothing behind.

use crate::common::adapters::{Adapter, Form, Lora};
use crate::common::gguf::{Content, Shape};
use crate::common::latent::latent;
use crate::common::mixture::mixture;
use crate::common::saved::*;
use crate::common::walk::{MODELS, sizes};
use crate::common::{Ctx, Failed, Folder, Model, Result, Session, bundled_model, call, greedy, root, sampler};
use segno::ffi::saved::*;
use segno::ffi::seq::{segno_logit_bias, segno_sampler_opts};
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8, segno_session_opts};
use segno::ffi::status::*;
use segno::quant::DType;
use segno::quant::synthetic::Random;
use std::ffi::{CString, c_void};
use std::iter::once;
use std::ops::Range;
use std::path::Path;
use std::ptr::null;
use twox_hash::XxHash3_128;

/// What a session holds: sequences, tokens, pages.
pub fn held(session: &Session) -> (u32, u64, u64) {
    let stats = session.stats().unwrap();
    (stats.seqs, stats.tokens, stats.pages_used)
}

pub fn refused(result: Result<i32>) -> Failed {
    result.expect_err("it was taken")
}

fn prompt(length: usize, vocab: u32) -> Vec<i32> {
    (0..length).map(|i| ((i * 37 + length * 11 + 3) % vocab as usize) as i32).collect()
}

/// Draws with everything that a sampler has.
fn rich<'a>(bias: &'a [segno_logit_bias], stops: &'a [i32]) -> segno_sampler_opts {
    let mut opts = sampler();
    (opts.flags, opts.temperature, opts.repeat_penalty, opts.presence_penalty) = (1, 1.3, 1.2, 0.3);
    (opts.bias, opts.bias_count) = (bias.as_ptr(), bias.len());
    (opts.stop_tokens, opts.stop_token_count) = (stops.as_ptr(), stops.len());
    opts
}

#[test]
fn what_is_restored_goes_on_as_if_it_had_never_stopped() {
    let bias = [segno_logit_bias { token: 5, bias: 1.5 }, segno_logit_bias { token: 7, bias: f32::NEG_INFINITY }];
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    let made = [mixture(DType::Q8_0), latent(DType::Q8_0)].map(|file| ctx.load_buffer(&file.bytes()).unwrap());
    let models = [ctx.load(&bundled_model()).unwrap()].into_iter().chain(made);
    for model in models {
        let vocab = model.info().vocab;
        for kv_type in [SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8] {
            let session = model.session(|opts| opts.kv_type = kv_type).unwrap();
            let other = model.session(|opts| (opts.kv_type, opts.max_prefill) = (kv_type, 9)).unwrap();
            for (length, queued, steps) in [(1, 0, 0), (31, 0, 5), (32, 0, 0), (33, 4, 0), (100, 1, 7), (0, 3, 0)] {
                let seq = session.open(&rich(&bias, &[])).unwrap();
                session.prefill(seq, &prompt(length, vocab)).unwrap();
                session.generate(seq, steps).unwrap();
                session.append(seq, &prompt(queued, vocab)).unwrap();
                let bytes = save(&session, seq);
                let whole = session.generate(seq, 20).unwrap();
                for (place, step) in [(&session, usize::MAX), (&other, 13)] {
                    let (again, read) = restore_by(place, &bytes, step, null()).unwrap();
                    assert_eq!((read, place.length(again)), (bytes.len(), Ok(length + steps + queued)));
                    assert_eq!(save(place, again), bytes, "saved again");
                    assert_eq!(place.generate(again, 20).unwrap(), whole, "{length} + {steps} + {queued}");
                    place.close(again).unwrap();
                }
                session.close(seq).unwrap();
            }
        }
    }
}

#[test]
fn windows_are_kept_whatever_the_sessions_keep() {
    for name in MODELS {
        let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
        let model = ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap();
        // In passes of 512 rows a window has no pages of its own.
        let kv_type = if name.len() % 2 == 0 { SEGNO_KV_Q8 } else { SEGNO_KV_F16 };
        let sessions = [8, 64, 512].map(|prefill| {
            let set = |opts: &mut segno_session_opts| {
                sizes(opts, 2, prefill);
                opts.kv_type = kv_type;
            };
            model.session(set).unwrap()
        });
        for from in &sessions {
            for length in [5, 40, 200] {
                let seq = from.open(&greedy()).unwrap();
                from.prefill(seq, &prompt(length, 131)).unwrap();
                from.generate(seq, 3).unwrap();
                let bytes = save(from, seq);
                let whole = from.generate(seq, 12).unwrap();
                from.close(seq).unwrap();
                for to in &sessions {
                    let again = restore(to, &bytes).unwrap();
                    assert_eq!(to.generate(again, 12).unwrap(), whole, "{name}, {length}");
                    // Further back than a window reaches.
                    to.truncate(again, length / 2).unwrap();
                    let fresh = to.open(&greedy()).unwrap();
                    to.prefill(fresh, &prompt(length, 131)[..length / 2]).unwrap();
                    assert_eq!(to.generate(again, 6).unwrap(), to.generate(fresh, 6).unwrap(), "{name}, {length}, cut");
                    to.close(again).unwrap();
                    to.close(fresh).unwrap();
                }
            }
        }
    }
}

#[test]
fn states_of_layers_go_on_too() {
    for name in ["lfm2-plain", "qwen35-plain", "qwen3next-wide", "nemotronh-plain", "falconh1-plain"] {
        let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
        let model = ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap();
        let sessions = [8, 64].map(|prefill| model.session(|opts| sizes(opts, 2, prefill)).unwrap());
        for (from, to) in [(&sessions[0], &sessions[1]), (&sessions[1], &sessions[0])] {
            for (length, steps, queued) in [(1, 0, 0), (40, 0, 0), (40, 3, 0), (40, 3, 5), (0, 0, 4)] {
                let seq = from.open(&greedy()).unwrap();
                from.prefill(seq, &prompt(length, 131)).unwrap();
                from.generate(seq, steps).unwrap();
                from.append(seq, &prompt(queued, 131)).unwrap();
                let bytes = save(from, seq);
                let whole = from.generate(seq, 12).unwrap();
                let again = restore(to, &bytes).unwrap();
                let before = to.seq_stats(again).unwrap();
                assert_eq!(to.generate(again, 12).unwrap(), whole, "{name}, {length} + {steps} + {queued}");
                // What was queued behind the last sampled token, and nothing of what was evaluated before.
                let evaluated = to.seq_stats(again).unwrap().prompt_tokens - before.prompt_tokens;
                let pending = queued + usize::from(steps > 0);
                let expected = if queued > 0 { pending as u64 } else { 0 };
                assert_eq!(evaluated, expected, "{name}, {length} + {steps} + {queued}");
                let mut damaged = bytes.clone();
                *damaged.last_mut().unwrap() ^= 1;
                assert_eq!(refused(restore(to, &damaged)).status, SEGNO_E_FORMAT);
                to.close(again).unwrap();
                from.close(seq).unwrap();
            }
        }
    }
}

/// A session that restored a sequence goes back to the marks that it had, and one with less room for marks to the newest of them.
#[test]
fn marks_go_along_as_far_as_there_is_room() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let model = ctx.load(&root().join("tests/golden/hf/lfm2-plain.gguf")).unwrap();
    let open = |marks| model.session(|opts| (opts.kv_tokens, opts.max_seqs, opts.max_marks) = (256, 2, marks)).unwrap();
    let (from, roomy, tight) = (open(8), open(8), open(2));
    let seq = from.open(&greedy()).unwrap();
    from.prefill(seq, &prompt(10, 131)).unwrap();
    for steps in [20, 5, 40] {
        from.generate(seq, steps).unwrap();
        from.mark(seq).unwrap();
    }
    from.generate(seq, 30).unwrap();
    let bytes = save(&from, seq);
    let places = [100, 74, 73, 34, 33, 29, 28, 9, 8];
    let nearest = |session: &Session, seq| places.map(|place| session.nearest(seq, place).unwrap());
    assert_eq!(nearest(&from, seq), [74, 74, 34, 34, 29, 29, 9, 9, 0], "the marks that the sequence had");
    let again = restore(&roomy, &bytes).unwrap();
    assert_eq!(nearest(&roomy, again), nearest(&from, seq));
    assert_eq!(save(&roomy, again), bytes, "saved again");
    let other = restore(&tight, &bytes).unwrap();
    assert_eq!(nearest(&tight, other), [74, 74, 34, 34, 0, 0, 0, 0, 0], "the newest marks");
    // Marks of others stay.
    assert_eq!(nearest(&tight, restore(&tight, &bytes).unwrap()), [0; 9]);
    assert_eq!(nearest(&tight, other)[1], 74);
    for place in [80, 60, 31] {
        for (session, seq) in [(&from, seq), (&roomy, again), (&tight, other)] {
            session.truncate(seq, place).unwrap();
        }
        let tokens = from.generate(seq, 3).unwrap();
        assert_eq!((&roomy.generate(again, 3).unwrap(), &tight.generate(other, 3).unwrap()), (&tokens, &tokens));
    }
}

fn small(ctx: &Ctx) -> Model {
    ctx.load_buffer(&Shape::small().file().bytes()).unwrap()
}

/// The last page has room for positions of others, which must not get out.
#[test]
fn the_same_history_gives_the_same_bytes_whoever_had_the_pages_before() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let model = small(&ctx);
    let (vocab, saved) = (model.info().vocab, |session: &Session| {
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &prompt(35, model.info().vocab)).unwrap();
        save(session, seq)
    });
    let session = model.session(|_| ()).unwrap();
    let expected = saved(&session);
    let used = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (1, 64)).unwrap();
    let seq = used.open(&greedy()).unwrap();
    used.prefill(seq, &prompt(60, vocab).into_iter().rev().collect::<Vec<_>>()).unwrap();
    used.close(seq).unwrap();
    assert!(saved(&used) == expected);
}

#[test]
fn a_sampler_that_is_given_takes_the_place_of_the_saved_one() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let (model, stops) = (small(&ctx), [3, 4]);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&rich(&[], &stops)).unwrap();
    session.prefill(seq, &[1, 2, 3]).unwrap();
    let bytes = save(&session, seq);
    let (again, _) = restore_by(&session, &bytes, usize::MAX, &greedy()).unwrap();
    let plain = session.fork(seq, Some(&greedy())).unwrap();
    assert_eq!(session.generate(again, 10).unwrap(), session.generate(plain, 10).unwrap());
    let mut wrong = greedy();
    wrong.top_p = 7.0;
    let failed = restore_by(&session, &bytes, usize::MAX, &wrong).unwrap_err();
    assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
    assert!(failed.message.contains("top_p"), "{}", failed.message);
}

#[test]
fn what_belongs_elsewhere_is_refused_by_name() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let model = small(&ctx);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[1, 2, 3]).unwrap();
    let bytes = save(&session, seq);
    let wrong = |session: &Session, status, text: &str| {
        let before = held(session);
        let failed = refused(restore(session, &bytes));
        assert!(failed.status == status && failed.message.contains(text), "{failed:?}");
        assert_eq!(held(session), before);
    };
    let mut changed = Shape::small().file();
    let tensor = changed.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.attn_k.weight").unwrap();
    let Content::Bytes(weights) = &mut tensor.content else { panic!("the weights are not stored") };
    weights[100] ^= 1;
    let other = ctx.load_buffer(&changed.bytes()).unwrap();
    wrong(&other.session(|_| ()).unwrap(), SEGNO_E_INVALID_ARGUMENT, "another model");
    let floats = model.session(|opts| opts.kv_type = SEGNO_KV_F32).unwrap();
    wrong(&floats, SEGNO_E_INVALID_ARGUMENT, "cache of F16");
    let blocks = model.session(|opts| opts.kv_type = SEGNO_KV_Q8).unwrap();
    wrong(&blocks, SEGNO_E_INVALID_ARGUMENT, "this session one of Q8");
    let full = model.session(|opts| opts.max_seqs = 1).unwrap();
    full.open(&greedy()).unwrap();
    wrong(&full, SEGNO_E_SEQ_FULL, "sequence");
    let tight = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 32)).unwrap();
    let large = tight.open(&greedy()).unwrap();
    tight.prefill(large, &prompt(90, model.info().vocab)).unwrap();
    wrong(&tight, SEGNO_E_KV_FULL, "kv pool is full");
}

/// So many changes of a few bytes, of which none may pass; `SEGNO_SAVED_CHANGES` sets another number.
const CHANGES: usize = 20_000;
/// Bytes of a header, its checksum included, and of a checksum.
pub const HEADER: usize = 136;
pub const CHECK: usize = 16;

fn changes() -> usize {
    std::env::var("SEGNO_SAVED_CHANGES").map_or(CHANGES, |text| text.parse().expect("a number"))
}

/// A saved sequence, and where it may be restored.
struct Example {
    session: Session,
    bytes: Vec<u8>,
    /// What each checksum is of; it stands behind that.
    sealed: Vec<Range<usize>>,
    /// The adapter that it has.
    _adapter: Option<Adapter>,
}

/// A model without states, the same with an adapter, and one with states, and a sequence of each: with a sampler's lists, marks and a queue.
fn examples(ctx: &Ctx) -> [Example; 3] {
    let recurrent = ctx.load(&root().join("tests/golden/hf/lfm2-plain.gguf")).unwrap();
    [(small(ctx), false), (small(ctx), true), (recurrent, false)].map(|(model, is_adapted)| {
        let session = model.session(|opts| (opts.kv_tokens, opts.max_seqs) = (64, 2)).unwrap();
        let adapter = is_adapted.then(|| small_adapter(&model));
        let seq = session.open(&rich(&[segno_logit_bias { token: 5, bias: 1.5 }], &[9])).unwrap();
        adapter.iter().for_each(|adapter| _ = session.adapt(seq, &[(adapter, 0.7), (adapter, 0.2)]).unwrap());
        session.prefill(seq, &prompt(33, model.info().vocab)).unwrap();
        session.mark(seq).unwrap();
        session.append(seq, &[1, 2]).unwrap();
        let bytes = save(&session, seq);
        session.close(seq).unwrap();
        let adapters = is_adapted.then_some(HEADER..HEADER + 4 + 2 * 24);
        let sealed = once(0..HEADER - CHECK).chain(adapters).chain(once(0..bytes.len() - CHECK)).collect();
        Example { session, bytes, sealed, _adapter: adapter }
    })
}

/// An adapter of the small model, without a name.
fn small_adapter(model: &Model) -> Adapter {
    let (folder, base) = (Folder::new("saved-changes"), Shape::small().file().bytes());
    Lora::random(&base, Form::new(3, 4), |name| name.contains("attn_q")).file().write(&folder.join("adapter.gguf"));
    model.adapter(&folder.join("adapter.gguf")).unwrap()
}

/// Changes a few bits, half of the time where most is decided.
fn change(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    let span = if random.bits().is_multiple_of(2) { 300 } else { bytes.len() as u64 };
    for _ in 0..1 + random.bits() % 3 {
        damaged[(random.bits() % span) as usize] ^= 1 << (random.bits() % 8);
    }
    damaged
}

#[test]
fn nothing_damaged_is_taken_and_nothing_of_it_stays() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let examples = examples(&ctx);
    let each = changes().div_ceil(examples.len());
    for Example { session, bytes, .. } in &examples {
        let before = held(session);
        for length in (0..bytes.len()).step_by(61).chain(0..200) {
            let failed = refused(restore(session, &bytes[..length]));
            assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains("ends after"), "{length}: {failed:?}");
        }
        let mut random = Random::new(5);
        for _ in 0..each {
            let damaged = change(bytes, &mut random);
            if damaged != *bytes {
                refused(restore(session, &damaged));
            }
        }
        assert_eq!(held(session), before);
        let again = restore(session, bytes).unwrap();
        assert_eq!(save(session, again), *bytes);
    }
}

/// Checksums keep out damage and not strangers: what has the right ones is refused, or becomes a sequence as any other.
#[test]
fn strangers_get_an_error_or_a_sequence() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    for Example { session, bytes, sealed, _adapter } in examples(&ctx) {
        let (before, mut random, mut taken) = (held(&session), Random::new(6), 0);
        let cases = changes() / 10;
        for _ in 0..cases {
            let mut forged = change(&bytes, &mut random);
            for part in &sealed {
                let check = XxHash3_128::oneshot(&forged[part.clone()]);
                forged[part.end..][..CHECK].copy_from_slice(&check.to_le_bytes());
            }
            let Ok(seq) = restore(&session, &forged) else { continue };
            taken += 1;
            let length = session.length(seq).unwrap();
            match session.step(seq) {
                Ok((token, status)) => {
                    assert!([SEGNO_OK, SEGNO_DONE].contains(&status) && token >= 0, "{token}, {status}")
                }
                Err(failed) => assert!(failed.message.contains("no usable logit"), "{failed:?}"),
            }
            session.truncate(seq, length / 2).unwrap();
            session.close(seq).unwrap();
            assert_eq!(held(&session), before);
        }
        assert!(taken > cases / 20 && taken < cases, "{taken} of {cases} were taken");
        assert_eq!(held(&session), before);
    }
}

#[test]
fn hosts_that_refuse_and_calls_that_are_cancelled_change_nothing() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let model = small(&ctx);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &prompt(70, model.info().vocab)).unwrap();
    let (bytes, before) = (save(&session, seq), held(&session));
    for room in [0, 100, 200, bytes.len() - 1] {
        let failed = save_within(&session, seq, room).unwrap_err();
        assert!(failed.status == SEGNO_E_IO && failed.message.contains("returned 5"), "{failed:?}");
    }
    session.cancel(true);
    let mut host = Host { bytes: Vec::new(), room: usize::MAX, at: 0, step: 0 };
    let cancelled = call(|err| segno_seq_save(session.0, seq, Some(take), (&raw mut host).cast(), err));
    assert_eq!(cancelled, Ok(SEGNO_CANCELLED));
    let (mut host, mut id) = (Host { bytes: bytes.clone(), room: 0, at: 0, step: usize::MAX }, -7);
    let user = (&raw mut host).cast();
    let cancelled = call(|err| segno_seq_restore(session.0, Some(give), user, null(), &mut id, err));
    assert_eq!((cancelled, id, held(&session)), (Ok(SEGNO_CANCELLED), -7, before));
    session.cancel(false);
    assert_eq!(save(&session, seq), bytes);
}

/// Calls its session from inside the call.
///
/// # Safety
/// As `segno_write_fn` is called, with a session.
unsafe extern "C" fn call_back(user: *mut c_void, _: *const c_void, _: usize) -> i32 {
    let session = Session(user.cast());
    let failed = session.length(1).map(|_| 0).and_then(|_| session.step(1).map(|_| 0)).unwrap_err();
    std::mem::forget(session);
    failed.status
}

#[test]
fn a_host_that_calls_its_session_from_inside_is_told_so() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let model = small(&ctx);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    let failed = call(|err| segno_seq_save(session.0, seq, Some(call_back), session.0.cast(), err)).unwrap_err();
    assert!(failed.message.contains(&format!("returned {SEGNO_E_BUSY}")), "{failed:?}");
}

fn path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

#[test]
fn a_file_holds_one_sequence_and_nothing_else() {
    let folder = Folder::new("saved-sequence");
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let model = small(&ctx);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &prompt(50, model.info().vocab)).unwrap();
    let file = folder.join("one.segno");
    let to_file = |seq, file: &Path| call(|err| segno_seq_save_file(session.0, seq, path(file).as_ptr(), err));
    let from_file = |file: &Path| {
        let mut seq = -7;
        call(|err| segno_seq_restore_file(session.0, path(file).as_ptr(), null(), &mut seq, err)).map(|_| seq)
    };
    to_file(seq, &file).unwrap();
    assert!(std::fs::read(&file).unwrap() == save(&session, seq));
    let again = from_file(&file).unwrap();
    assert_eq!(session.generate(again, 10).unwrap(), session.generate(seq, 10).unwrap());
    assert_eq!(to_file(99, &folder.join("none")).unwrap_err().status, SEGNO_E_NOT_FOUND);
    assert_eq!(to_file(seq, folder.path()).unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(to_file(seq, &folder.join("no/folder")).unwrap_err().status, SEGNO_E_IO);
    assert_eq!(from_file(&folder.join("none")).unwrap_err().status, SEGNO_E_IO);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something is left of what failed");
    let before = held(&session);
    std::fs::write(&file, [std::fs::read(&file).unwrap(), vec![0]].concat()).unwrap();
    let failed = refused(from_file(&file));
    assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains("behind its end"), "{failed:?}");
    std::fs::write(&file, b"GGUF and more that is no sequence").unwrap();
    assert_eq!((refused(from_file(&file)).status, held(&session)), (SEGNO_E_FORMAT, before));
}
