//! How many tokens passes over prompts have on a GPU, where no stream waits for them: under a driver that stands in for the real one (`fake`).

use crate::common::divided::limited;
use crate::common::predictors::planned;
use crate::common::{self, Model, greedy};
use crate::fake::{Fake, built, open, under_a_driver};
use segno::ffi::device::SEGNO_DEVICE_CUDA;

#[test]
fn prompts_alone_have_longer_passes_where_memory_allows_it() {
    under_a_driver("prompts::longer_passes_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn longer_passes_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let ctx = open(SEGNO_DEVICE_CUDA).0.unwrap();
    let file = |name: &str| common::root().join("tests/golden/hf").join(name);
    // Passes over a prompt of 64 tokens, and the buffers of the session on the device.
    let of = |model: &Model, max_prompt: u32| {
        let session = model.session(|opts| (opts.kv_tokens, opts.max_prefill, opts.max_prompt) = (128, 8, max_prompt));
        let session = session.unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &[5; 64]).unwrap();
        (session.stats().unwrap().passes, session.memory().device_arena)
    };
    let model = ctx.load(&file("llama-single.gguf")).unwrap();
    let (usual, short) = (of(&model, 0), of(&model, 8));
    assert_eq!((usual.0, short.0), (64 / 32, 64 / 8));
    let plan = planned(&ctx, &file("llama-single.gguf"), |opts| {
        (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (8, 128, 8);
    });
    assert_eq!(plan.device_arena, usual.1, "planned as taken");
    assert!(short.1 < usual.1, "{} bytes of buffers, {} with longer passes", short.1, usual.1);
    // What layers with a window keep would grow for every sequence.
    let windows = ctx.load(&file("gemma3-plain.gguf")).unwrap();
    assert_eq!((of(&windows, 0).0, of(&windows, 32).0), (64 / 8, 64 / 32));
    // Of a limit no more is taken than is needed.
    let held = ctx.load_with(&file("llama-single.gguf"), &limited(1 << 30)).unwrap().1;
    assert_eq!(of(&held, 0), short);
    drop((model, windows, held, ctx));
    assert_eq!(fake.live(), 0);
}
