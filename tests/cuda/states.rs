//! Layers with states on a GPU, and sequences that are saved there: forks, cuts and company change no token, and what one device saves the other
//! restores as it was. On a machine without a GPU the tests say so and prove nothing.

use crate::common;
use crate::common::distance::distance;
use crate::common::divided::shares;
use crate::common::walk::{MODELS, RECURRENT, sizes, walk};
use crate::common::{Ctx, Folder, Model, Session, call, greedy, root};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::saved::{segno_seq_restore_file, segno_seq_save_file};
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8};
use segno::quant::DType;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null;

fn open(device: i32) -> Ctx {
    Ctx::new(|opts| opts.device = device).unwrap()
}

fn load(ctx: &Ctx, name: &str) -> Model {
    ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap()
}

#[test]
fn chunks_forks_cuts_and_company_of_states_equal_fresh_evaluation() {
    if !common::gpu() {
        return;
    }
    let ctx = open(SEGNO_DEVICE_CUDA);
    for name in RECURRENT {
        walk(name, &load(&ctx, name));
    }
}

fn name_of(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn save(session: &Session, seq: i32, path: &Path) -> Vec<u8> {
    call(|err| segno_seq_save_file(session.0, seq, name_of(path).as_ptr(), err)).unwrap();
    std::fs::read(path).unwrap()
}

fn restore(session: &Session, path: &Path) -> i32 {
    let mut seq = -1;
    call(|err| segno_seq_restore_file(session.0, name_of(path).as_ptr(), null(), &mut seq, err)).unwrap();
    seq
}

/// From the GPU to the processor and back, the other way, and with a GPU that the processor helps: every save gives the same bytes, and logits are as
/// near as those of the devices are.
#[test]
fn what_one_device_saves_the_other_restores() {
    if !common::gpu() {
        return;
    }
    let contexts = [SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA].map(open);
    let folder = Folder::new("cuda-saved");
    let plain = ["llama-ratio1", "qwen3moe-plain", "deepseekv2-lite"];
    let files = MODELS.into_iter().chain(RECURRENT).chain(plain);
    let file = |name: &str| {
        let shared = shares(&contexts[1], &root().join(format!("tests/golden/hf/{name}.gguf"))).pop().unwrap();
        (name.to_owned(), vec![load(&contexts[0], name), load(&contexts[1], name), shared])
    };
    // Sizes of heads that have kernels of their own, over caches of 8 bits.
    let heads = |(dim, kv_heads, group)| {
        let bytes = common::random::of_heads(dim, kv_heads, group, DType::Q8_0).bytes();
        (
            format!("{kv_heads} x {group} heads of {dim}"),
            contexts.iter().map(|ctx| ctx.load_buffer(&bytes).unwrap()).collect(),
        )
    };
    let types = [SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8].into_iter().cycle();
    let made = [(64, 2, 3), (80, 1, 4), (128, 1, 8), (256, 1, 2)].map(heads).map(|case| (case, SEGNO_KV_Q8));
    for ((name, models), kv_type) in files.map(file).zip(types).chain(made) {
        let with_shared = [(1, 2), (2, 0), (0, 2)].into_iter().filter(|_| models.len() == 3);
        for (from, to) in [(0, 1), (1, 0)].into_iter().chain(with_shared) {
            let session = |at: usize| {
                models[at]
                    .session(|opts| {
                        sizes(opts, 2, 64);
                        opts.kv_type = kv_type;
                    })
                    .unwrap()
            };
            let (first, second, path) = (session(from), session(to), folder.join("saved"));
            let seq = first.open(&greedy()).unwrap();
            first.prefill(seq, &(0..77).map(|token| token * 7 % 131).collect::<Vec<i32>>()).unwrap();
            first.generate(seq, 12).unwrap();
            let saved = save(&first, seq, &path);
            let other = restore(&second, &path);
            assert!(save(&second, other, &path) == saved, "{name}: saved again elsewhere");
            let back = restore(&first, &path);
            assert!(save(&first, back, &path) == saved, "{name}: saved again at home");
            let tokens = [3, 5, 8];
            let logits = [(&first, seq), (&first, back), (&second, other)].map(|(session, seq)| {
                session.prefill(seq, &tokens).unwrap();
                session.logits(seq).unwrap()
            });
            assert_eq!(logits[0], logits[1], "{name}: back at home");
            let apart = distance(&logits[0], &logits[2]).relative_l2;
            println!("{name}, {kv_type}, from {from} to {to}: {} bytes, logits {apart:.1e} apart", saved.len());
            assert!(apart < 4e-2, "{name}: {apart}");
        }
    }
}
