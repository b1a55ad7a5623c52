//! Layers that see a window on a GPU: they keep no more than that and a pass, in a cache of their own, and every logit is what it would be if they
//! kept all. On a machine without a GPU the tests say so and prove nothing.

use crate::common;
use crate::common::passes::{Case, Run, bits, random};
use crate::common::walk::{MODELS, walk, walk_in};
use crate::common::{Ctx, root};
use segno::backend::KvType;
use segno::backend::cuda::Cuda;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::SEGNO_KV_Q8;
use segno::plan::Op;
use segno::quant::DType;
use std::sync::Arc;

#[test]
fn sequences_behind_windows_equal_fresh_ones() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in MODELS {
        let model = ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap();
        walk(name, &model);
        walk_in(name, &model, SEGNO_KV_Q8, 7);
    }
}

/// A model of two layers, the first of which sees `window` positions.
fn model(dim: usize, kv_heads: usize, group: usize, window: usize) -> Case {
    let mut case = random("window", &common::random::of_heads(dim, kv_heads, group, DType::Q8_0));
    let program = Arc::get_mut(&mut case.program).unwrap();
    for op in &mut program.ops {
        if let Op::Attention { kind, .. } = op {
            kind.window = Some(window).filter(|_| kind.layer == 0);
        }
    }
    case
}

#[test]
fn pages_that_no_row_sees_may_be_gone() {
    if !common::gpu() {
        return;
    }
    let cuda = Cuda::new(0, false).unwrap();
    let end = 3000;
    for (dim, kv_heads, group, window) in
        [(64, 2, 2, 20), (128, 1, 4, 100), (256, 1, 2, 256), (80, 2, 2, 300), (96, 1, 1, 1000), (48, 2, 2, 130)]
    {
        let Case { program, .. } = model(dim, kv_heads, group, window);
        for kv_type in [KvType::F16, KvType::F32, KvType::Q8] {
            let mut whole = Run::new(&cuda, &program, kv_type, end, 4);
            let mut windowed = Run::with_windows(&cuda, &program, kv_type, end, 4, Some(window));
            let how = format!("heads of {dim}, window of {window}, {kv_type:?}");
            for chunk in [512, 77] {
                for count in [200, 1100, end - 10] {
                    let expected = whole.chunks(1, count, 512);
                    assert!(
                        bits(&[windowed.chunks(1, count, chunk)]) == bits(&[expected]),
                        "{how}: {count} by {chunk}"
                    );
                }
            }
            for slot in 0..4 {
                whole.chunks(slot, end - 10, 512);
                windowed.chunks(slot, end - 10, 300);
            }
            let expected = whole.steps(end - 10..end, 4);
            assert!(bits(&windowed.steps(end - 10..end, 4)) == bits(&expected), "{how}: steps");
        }
    }
}
