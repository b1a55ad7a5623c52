//! Small programs of attention to later tokens, over whole texts of odd lengths: with windows of both sides and without, for every size of heads.

use super::attention::{Attention, attended};
use super::cases::{EIGHT_BITS, F16};
use super::{Case, Pass};
use segno::arch::rope::RopeLayout;
use segno::backend::KvType;
use segno::kv::HeadSizes;
use segno::plan::op::{AttentionMask, Embedding};
use segno::plan::{Program, validate};
use std::sync::Arc;

/// Lengths of texts: one of a single row, some that end within blocks of rows and of keys and at their ends, and one of several splits.
const LENGTHS: [&[usize]; 5] = [&[1], &[5, 1, 64, 63], &[77, 3, 130], &[64, 128, 65], &[300, 7]];

fn attention(kv: HeadSizes, with: Attention) -> Arc<Program> {
    let (mut b, out) = attended(kv, with, AttentionMask::Bidirectional);
    let after = b.program.ops.len();
    b.program.logits = None;
    b.program.embedding = Some(Embedding { after, ops: Vec::new(), tokens: out, texts: out, scores: None });
    validate::check(&b.program).unwrap();
    Arc::new(b.program)
}

pub fn texts() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |kernels: &[&str], program: &Arc<Program>, cache: KvType, within: f64| {
        cases.extend(LENGTHS.iter().map(|&lengths| Case {
            kernels: kernels.iter().map(|&name| name.to_owned()).collect(),
            program: Arc::clone(program),
            pass: Pass::Texts(lengths),
            cache,
            fast: false,
            within,
        }));
    };
    let whole = Attention::default();
    let normed = Attention { has_norms: true, rope: Some(RopeLayout::Halves), window: Some(7), ..whole };
    let turned = Attention { rope: Some(RopeLayout::Pairs), window: Some(65), ..whole };
    let own = Attention { window: Some(1), ..whole };
    for dim in [32, 64, 80, 96, 128, 256] {
        for (kv_heads, group, with) in [(3, 1, whole), (2, 3, normed), (1, 9, turned), (1, 2, own)] {
            let program = attention(HeadSizes::new(kv_heads * group, kv_heads, dim), with);
            let prompt = format!("attention_prefill_hd{dim}");
            add(&["qk_norm_rope_kv", &prompt], &program, KvType::F16, F16);
            let prompt = if dim == 32 { "attention_q8".to_owned() } else { format!("attention_prefill_q8_hd{dim}") };
            add(&["qk_norm_rope_kv_q8", &prompt], &program, KvType::Q8, EIGHT_BITS);
        }
    }
    let capped = Attention { softcap: Some(2.0), ..normed };
    let sinks = Attention { has_sinks: true, ..turned };
    for (dim, with, cache) in [
        (48, whole, KvType::F16),
        (8, turned, KvType::F16),
        (64, capped, KvType::F16),
        (128, sinks, KvType::F32),
        (64, whole, KvType::F32),
        (112, turned, KvType::F32),
        (512, normed, KvType::F16),
        (48, own, KvType::Q8),
        (64, capped, KvType::Q8),
    ] {
        let program = attention(HeadSizes::new(10, 2, dim), with);
        // As where rows see no later ones.
        let (kernel, within) = match cache {
            KvType::F16 => ("attention_f16", 5e-4),
            KvType::F32 => ("attention_f32", 1e-5),
            KvType::Q8 => ("attention_q8", EIGHT_BITS),
        };
        add(&[kernel], &program, cache, within);
    }
    cases
}
