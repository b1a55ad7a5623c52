//! Lowering of what stands between the projections of a layer: norms and rotation of heads, the cache, attention.

use super::args::{Args, AttendArgs, AttentionArgs, HeadsArgs};
use super::lower::{Addresses, ELEMENTS_A_BLOCK, Extent, HEAD_GROUP, Kernel, Lowering, ONE};
use crate::error::Result;
use crate::kv::Side;
use crate::plan::op::RopeLayout;
use crate::plan::{Op, ValueId};

const HEADS_A_BLOCK: usize = 4;
const ATTENTION_THREADS: usize = 256;
/// Most elements of a head whose pages fit into shared memory.
const MAX_STAGED_DIM: usize = 192;
/// Positions of a split of attention.
const SPLIT_TOKENS: usize = 256;

impl Lowering<'_> {
    /// Norms and rotations of queries and keys, up to the store that ends them.
    pub fn heads(&mut self) -> Result<()> {
        let Some((args, covered)) = self.turned_heads() else { return Err(self.out_of_place()) };
        let heads = self.program.kv.heads + 2 * self.program.kv.kv_heads;
        let blocks = Extent::Fixed(heads.div_ceil(HEADS_A_BLOCK) as u32);
        self.push(Kernel::Heads, [blocks, Extent::Rows, ONE], 32 * HEADS_A_BLOCK, Args::Heads(args), covered);
        Ok(())
    }

    /// What the next ops do with heads, and how many ops that are.
    pub fn turned_heads(&self) -> Option<(HeadsArgs, usize)> {
        let ops = &self.program.ops[self.next..];
        let end = ops.iter().position(|op| matches!(op, Op::StoreKv { .. }))?;
        let Op::StoreKv { layer, keys, values } = ops[end] else { return None };
        let mut args = self.heads_args(layer);
        (args.k, args.v) = (self.value(keys), self.value(values));
        let mut turned = 0;
        for op in &ops[..end] {
            match *op {
                Op::HeadNorm { x, weight } if x == keys => args.k_norm = self.vector(Some(weight)),
                Op::HeadNorm { weight, .. } => args.q_norm = self.vector(Some(weight)),
                Op::Rope { x } => {
                    turned += 1;
                    if x != keys {
                        args.q = self.value(x);
                    }
                }
                _ => return None,
            }
        }
        (turned == 2 && args.q != 0).then_some((args, end + 1))
    }

    pub fn heads_args(&self, layer: usize) -> HeadsArgs {
        let (program, addresses, kv) = (self.program, self.addresses, &self.program.kv);
        HeadsArgs {
            cos: addresses.step.cos,
            sin: addresses.step.sin,
            rows: addresses.step.rows,
            tables: addresses.step.tables,
            cache: addresses.cache,
            page_elements: kv.page_elements().unwrap_or(0) as u64,
            keys: kv.run(layer, Side::Keys, 0) as u64,
            values: kv.run(layer, Side::Values, 0) as u64,
            table_stride: addresses.table_stride,
            heads: kv.heads as u32,
            kv_heads: kv.kv_heads as u32,
            head_dim: kv.head_dim as u32,
            half_dims: program.rope.dims() as u32 / 2,
            pairs: (program.rope.layout == RopeLayout::Pairs).into(),
            cache_f32: addresses.cache_f32.into(),
            eps: program.norm_eps,
            ..HeadsArgs::default()
        }
    }

    /// Whether pages pass through shared memory.
    pub fn stages_pages(&self) -> bool {
        let dim = self.program.kv.head_dim;
        !self.addresses.cache_f32 && dim.is_multiple_of(32) && dim <= MAX_STAGED_DIM
    }

    /// Attention with staged pages; the arguments of a batch have only the queries of what stands in `heads`.
    pub fn attend(&mut self, kernel: Kernel, heads: HeadsArgs, out: ValueId, blocks: Extent, covered: usize) {
        let Addresses { mixed, states, ended, .. } = *self.addresses;
        let args = Args::Attend(AttendArgs { heads, mixed, states, ended, out: self.activation(out) });
        self.push(kernel, [Extent::Splits, blocks, Extent::Rows], ATTENTION_THREADS, args, covered);
        let dim = self.program.kv.head_dim;
        let halves = (2 * SPLIT_TOKENS + 2) * dim;
        let floats = HEAD_GROUP * (dim + SPLIT_TOKENS / 32 * dim + SPLIT_TOKENS);
        self.launches.last_mut().expect("just added").shared_bytes = (2 * halves + 4 * floats) as u32;
    }

    /// Attention of a batch, or of a row whose heads have their place already.
    pub fn attention(&mut self, layer: usize, queries: ValueId, out: ValueId) {
        let blocks = Extent::Fixed((self.program.kv.kv_heads * self.program.kv.group().div_ceil(HEAD_GROUP)) as u32);
        if self.stages_pages() {
            let heads = HeadsArgs { q: self.value(queries), ..self.heads_args(layer) };
            return self.attend(Kernel::AttendBatch, heads, out, blocks, 1);
        }
        let (addresses, kv) = (self.addresses, self.program.kv);
        let args = Args::Attention(AttentionArgs {
            q: self.value(queries),
            mixed: addresses.mixed,
            states: addresses.states,
            rows: addresses.step.rows,
            tables: addresses.step.tables,
            cache: addresses.cache,
            page_elements: kv.page_elements().unwrap_or(0) as u64,
            keys: kv.run(layer, Side::Keys, 0) as u64,
            values: kv.run(layer, Side::Values, 0) as u64,
            table_stride: addresses.table_stride,
            heads: kv.heads as u32,
            kv_heads: kv.kv_heads as u32,
            head_dim: kv.head_dim as u32,
            out: self.activation(out),
        });
        let kernel = if addresses.cache_f32 { Kernel::AttentionF32 } else { Kernel::AttentionF16 };
        self.push(kernel, [Extent::Splits, blocks, Extent::Rows], ATTENTION_THREADS, args, 1);
        let parts = ATTENTION_THREADS / (kv.head_dim / 2);
        let floats = HEAD_GROUP * kv.head_dim * (2 + parts);
        self.launches.last_mut().expect("just added").shared_bytes = (floats * size_of::<f32>()) as u32;
        let blocks = Extent::Fixed(self.width(out).div_ceil(ELEMENTS_A_BLOCK) as u32);
        self.push(Kernel::Merge, [blocks, Extent::Rows, ONE], ELEMENTS_A_BLOCK, args, 0);
    }
}
