//! Small programs that end with attention: every size of heads that has kernels of its own, those of latent attention, and all others.

use super::cases::{EIGHT_BITS, F16, begin, finish, floats, random_vector, rope};
use super::{Case, Pass};
use crate::common::parts::Parts;
use segno::arch::rope::RopeLayout;
use segno::backend::KvType;
use segno::kv::HeadSizes;
use segno::plan::op::{AttentionKind, AttentionMask, Norm, NormKind, Rows};
use segno::plan::{Op, Program, ValueId};
use segno::quant::DType;
use std::sync::Arc;

/// What attention has beside its sizes.
#[derive(Clone, Copy, Default)]
pub struct Attention {
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub has_sinks: bool,
    /// Norms of heads before the rotation, of values too.
    pub has_norms: bool,
    /// Whether other queries attend to the same keys behind the first ones, whose results are added.
    pub attends_again: bool,
    pub rope: Option<RopeLayout>,
    /// Whether heads turn as a whole, not half of each alone.
    pub turns_whole: bool,
}

fn attention(kv: HeadSizes, with: Attention) -> Arc<Program> {
    let (b, out) = attended(kv, with, AttentionMask::Causal);
    finish(b, out)
}

/// A program that ends with attention, and what that gives.
pub fn attended(kv: HeadSizes, with: Attention, mask: AttentionMask) -> (Parts, ValueId) {
    let (mut b, hidden) = begin(kv);
    let queries = floats(&mut b, hidden, kv.heads * kv.head_dim);
    let keys = floats(&mut b, hidden, kv.kv_heads * kv.head_dim);
    let values = floats(&mut b, hidden, kv.kv_heads * kv.value_dim);
    let normalize = |b: &mut Parts, x: ValueId| {
        let weight = random_vector(b, kv.head_dim, 1.0);
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-6 };
        b.program.ops.push(Op::HeadNorm { x, head_dim: kv.head_dim, norm });
    };
    if with.has_norms {
        let of_values = (kv.value_dim == kv.head_dim).then_some(values);
        of_values.into_iter().chain([queries, keys]).for_each(|x| normalize(&mut b, x));
    }
    let table =
        with.rope.map(|layout| rope(&mut b, layout, if with.turns_whole { kv.head_dim } else { kv.head_dim / 2 }));
    if let Some(table) = table {
        b.program.ops.extend([queries, keys].map(|x| Op::Rope { x, head_dim: kv.head_dim, table }));
    }
    b.program.ops.push(Op::StoreKv { layer: 0, keys, values });
    let sinks = with.has_sinks.then(|| random_vector(&mut b, kv.heads, 1.0));
    let scale = 1.0 / (kv.head_dim as f32).sqrt();
    let kind = AttentionKind { layer: 0, scale, mask, window: with.window, softcap: with.softcap, sinks };
    let out = b.value(kv.heads * kv.value_dim, Rows::Batch);
    b.program.ops.push(Op::Attention { kind, queries, out });
    if with.attends_again {
        let queries = floats(&mut b, hidden, kv.heads * kv.head_dim);
        if with.has_norms {
            normalize(&mut b, queries);
        }
        b.program.ops.extend(table.map(|table| Op::Rope { x: queries, head_dim: kv.head_dim, table }));
        let again = b.value(kv.heads * kv.value_dim, Rows::Batch);
        b.program.ops.extend([Op::Attention { kind, queries, out: again }, Op::Add { x: out, y: again }]);
    }
    (b, out)
}

/// Norms of heads before a rotation by halves, and a rotation of pairs with a window; the same with other queries behind them.
const NORMED: Attention = Attention {
    has_norms: true,
    attends_again: false,
    rope: Some(RopeLayout::Halves),
    window: None,
    softcap: None,
    has_sinks: false,
    turns_whole: false,
};
const TURNED: Attention = Attention { has_norms: false, rope: Some(RopeLayout::Pairs), window: Some(150), ..NORMED };
const NORMED_AGAIN: Attention = Attention { attends_again: true, ..NORMED };
const TURNED_AGAIN: Attention = Attention { attends_again: true, ..TURNED };

/// A position behind several splits, for batches over caches of 8 bits and of long keys: to farther ones plain f64 takes minutes.
const FEWER: usize = 600;

pub fn attentions() -> Vec<Case> {
    let mut cases = Vec::new();
    staged(&mut cases);
    clusters(&mut cases);
    stored_before(&mut cases);
    single_split(&mut cases);
    wide(&mut cases);
    plain(&mut cases);
    cases
}

/// Adds a case to a list.
fn add(cases: &mut Vec<Case>, kernels: &[&str], program: &Arc<Program>, pass: Pass, cache: KvType, within: f64) {
    let kernels = kernels.iter().map(|&name| name.to_owned()).collect();
    cases.push(Case { kernels, program: Arc::clone(program), pass, cache, fast: false, within });
}

fn staged(cases: &mut Vec<Case>) {
    let sinks = Attention { has_sinks: true, ..TURNED };
    for dim in [64, 80, 96, 128, 256] {
        let all = [(2, 3, NORMED), (1, 9, TURNED), (3, 1, Attention::default()), (2, 9, sinks)];
        for (kv_heads, group, with) in all.into_iter().filter(|case| !case.2.has_sinks || dim <= 80) {
            let program = attention(HeadSizes::new(kv_heads * group, kv_heads, dim), with);
            let of = |name: &str| format!("{name}_hd{dim}");
            let prompt = of("attention_prefill");
            let mut prompts = vec!["qk_norm_rope_kv", prompt.as_str()];
            if dim == 80 {
                prompts.push("attention_combine");
            }
            for rows in [1, 5, 77, 300] {
                add(cases, &prompts, &program, Pass::Prompt(rows.max(2)), KvType::F16, F16);
            }
            let prompt = of("attention_prefill_q8");
            let mut prompts = vec!["qk_norm_rope_kv_q8", prompt.as_str()];
            if dim == 80 {
                prompts.push("attention_combine_q8");
            }
            for rows in [2, 77, 300] {
                add(cases, &prompts, &program, Pass::Prompt(rows), KvType::Q8, EIGHT_BITS);
            }
            let is_plain = !with.has_norms && !with.has_sinks && with.window.is_none() && [64, 128].contains(&dim);
            let plain = if is_plain { "_plain" } else { "" };
            for (position, name, plain) in [
                (0, "attention_decode_split", plain),
                (300, "attention_decode_split", plain),
                (2500, "attention_decode", ""),
            ] {
                let [single, batch] = [format!("{name}{plain}"), format!("{name}_batch{plain}")].map(|name| of(&name));
                // Several splits of a single row are a cluster.
                let is_cluster = position == 300 && [128, 256].contains(&dim);
                let single = if is_cluster { of(&format!("attention_decode_cluster{plain}")) } else { single };
                add(cases, &[&single], &program, Pass::Step(1, position), KvType::F16, F16);
                add(cases, &[&batch], &program, Pass::Step(6, position), KvType::F16, F16);
                let [single, batch] = ["attention_decode_q8", "attention_decode_batch_q8"].map(of);
                add(cases, &[&single], &program, Pass::Step(1, position), KvType::Q8, EIGHT_BITS);
                add(cases, &[&batch], &program, Pass::Step(6, position.min(FEWER)), KvType::Q8, EIGHT_BITS);
            }
        }
    }
}

/// Splits of a single row as a cluster, some of which see no key, with sinks, and heads of which a block has some.
fn clusters(cases: &mut Vec<Case>) {
    let sinks = Attention { has_sinks: true, window: Some(700), ..TURNED };
    for (dim, position) in [(128, 257), (128, 2047), (256, 1400), (256, 2047)] {
        let program = attention(HeadSizes::new(18, 2, dim), sinks);
        let kernel = format!("attention_decode_cluster_hd{dim}");
        add(cases, &[&kernel], &program, Pass::Step(1, position), KvType::F16, F16);
    }
}

/// Queries over keys that an earlier op has stored.
fn stored_before(cases: &mut Vec<Case>) {
    const F16_KERNELS: [&str; 5] = [
        "qk_norm_rope_kv",
        "attention_prefill",
        "attention_decode_split",
        "attention_decode_split_batch",
        "attention_decode",
    ];
    const Q8_KERNELS: [&str; 5] = [
        "qk_norm_rope_kv_q8",
        "attention_prefill_q8",
        "attention_decode_q8",
        "attention_decode_batch_q8",
        "attention_decode_q8",
    ];
    for (dim, with) in [(64, NORMED_AGAIN), (80, TURNED_AGAIN), (256, NORMED_AGAIN)] {
        let program = attention(HeadSizes::new(2, 1, dim), with);
        let of = |name: &str| format!("{name}_hd{dim}");
        for (cache, within, [store, prompt, split, batch, far]) in
            [(KvType::F16, F16, F16_KERNELS), (KvType::Q8, EIGHT_BITS, Q8_KERNELS)]
        {
            add(cases, &[store, &of(prompt)], &program, Pass::Prompt(77), cache, within);
            let several = if dim == 256 && cache == KvType::F16 { "attention_decode_cluster" } else { split };
            let steps = [(1, 0, split), (1, 260, several), (6, 40, batch), (1, 2100, far)];
            for (rows, position, kernel) in steps.into_iter().filter(|step| dim == 80 || step.1 < FEWER) {
                add(cases, &[&of(kernel)], &program, Pass::Step(rows, position), cache, within);
            }
        }
    }
}

/// Rows of one split whose results a product reads, which rounds them to 8 bits; or another op before that, as floats, which products do not need.
fn single_split(cases: &mut Vec<Case>) {
    let whole = Attention { turns_whole: true, ..NORMED };
    let pairs = Attention { rope: Some(RopeLayout::Pairs), ..whole };
    let distant = Attention { window: None, ..TURNED };
    let plain = Attention { has_norms: false, ..whole };
    for dim in [64, 128] {
        for (heads, kv_heads, with, reads_floats) in [
            (4, 2, NORMED, false),
            (4, 2, NORMED, true),
            (8, 1, whole, false),
            (14, 2, pairs, false),
            (3, 3, whole, true),
            (4, 2, distant, false),
            (8, 1, plain, false),
            (7, 1, plain, true),
            (2, 1, Attention::default(), false),
        ] {
            let (mut b, out) = attended(HeadSizes::new(heads, kv_heads, dim), with, AttentionMask::Causal);
            if reads_floats {
                b.program.ops.push(Op::Softcap { x: out, cap: 3.0 });
            }
            let (matrix, _) = b.random_matrix(DType::Q8_0, 50, heads * dim, 0.3);
            let result = b.product(out, matrix, None);
            let of = if with.has_norms || reads_floats { "" } else { "_plain" };
            let (program, kernel) = (finish(b, result), format!("attention_single_split{of}_hd{dim}"));
            for position in [0, 100, 255] {
                add(cases, &[&kernel], &program, Pass::Step(1, position), KvType::F16, EIGHT_BITS);
            }
        }
    }
}

/// Fewer heads than a block has, as many, and more; prompts have several rows in a block where there is room.
fn wide(cases: &mut Vec<Case>) {
    let distant = Attention { window: None, ..TURNED };
    for (heads, kv_heads, dim, with) in [
        (16, 1, 576, distant),
        (20, 1, 576, distant),
        (5, 1, 576, TURNED),
        (6, 2, 512, NORMED),
        (8, 1, 512, NORMED_AGAIN),
        (2, 2, 512, TURNED_AGAIN),
        (18, 1, 512, TURNED),
    ] {
        let program = attention(HeadSizes { value_dim: 512, ..HeadSizes::new(heads, kv_heads, dim) }, with);
        let kernels = ["qk_norm_rope_kv", "attention_wide"];
        for rows in [2, 77, 300].into_iter().filter(|&rows| dim == 576 || rows < 300) {
            add(cases, &kernels, &program, Pass::Prompt(rows), KvType::F16, F16);
        }
        let far = if dim == 576 { [(1, 600), (6, 300)] } else { [(1, 260), (3, 70)] };
        for (rows, position) in [(1, 0), (1, 63)].into_iter().chain(far) {
            let kernels = if position < 256 { &kernels[..] } else { &["attention_wide", "attention_combine_splits"] };
            add(cases, kernels, &program, Pass::Step(rows, position), KvType::F16, F16);
        }
    }
}

fn plain(cases: &mut Vec<Case>) {
    let capped = Attention { softcap: Some(2.0), ..NORMED };
    let sinks = Attention { has_sinks: true, ..TURNED };
    for (dim, with, cache) in [
        (576, sinks, KvType::F16),
        (576, TURNED, KvType::F32),
        (576, TURNED, KvType::Q8),
        (26, NORMED, KvType::F16),
        (26, NORMED, KvType::Q8),
        (48, NORMED, KvType::F16),
        (64, capped, KvType::F16),
        (48, sinks, KvType::F16),
        (128, sinks, KvType::F32),
        (112, TURNED, KvType::F32),
        (6, NORMED, KvType::Q8),
        (20, TURNED, KvType::Q8),
        (48, NORMED, KvType::Q8),
        (64, capped, KvType::Q8),
        (112, sinks, KvType::Q8),
        (112, TURNED, KvType::Q8),
        (512, NORMED, KvType::Q8),
    ] {
        // Values are shorter where only latent attention has such keys.
        let value_dim = match dim {
            576 => 512,
            26 => 20,
            dim => dim,
        };
        let program = attention(HeadSizes { value_dim, ..HeadSizes::new(10, 2, dim) }, with);
        // Queries are floats here; keys may be rounded to the neighbour.
        let (kernels, within) = match cache {
            KvType::F16 => (["qk_norm_rope_kv", "attention_f16", "attention_combine"], 5e-4),
            KvType::F32 => (["qk_norm_rope_kv", "attention_f32", "attention_combine"], 1e-5),
            KvType::Q8 => (["qk_norm_rope_kv_q8", "attention_q8", "attention_combine_q8"], EIGHT_BITS),
        };
        let many = if cache == KvType::Q8 || dim > 512 { FEWER } else { 2500 };
        for pass in [Pass::Prompt(40), Pass::Step(1, 300), Pass::Step(6, many)] {
            add(cases, &kernels, &program, pass, cache, within);
        }
    }
}
