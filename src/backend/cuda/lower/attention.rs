//! Lowering of what stands between the projections of a layer: norms and rotation of heads, the cache, attention.

use super::lists::Batches;
use super::{Addresses, ELEMENTS_A_BLOCK, Extent, LayerCache, Lowering, ONE};
use crate::backend::KvType;
use crate::backend::cuda::args::{Args, AttentionArgs, HeadsArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::select::attention::{is_staged, of_heads};
use crate::kv::layout::HeadSizes;
use crate::plan::op::{AttentionKind, AttentionMask, NormKind, RopeId, RopeLayout};
use crate::plan::{Op, ValueId};
use std::f32::consts::LOG2_E;

/// Most elements of a head of keys that attention has shared memory for, and of values.
pub const MAX_HEAD_DIM: usize = 576;
pub const MAX_VALUE_DIM: usize = 512;
/// Heads that a block of the kernels of heads has, a warp each.
pub const HEADS_A_BLOCK: usize = 4;
const ATTENTION_THREADS: usize = 256;
/// Query heads of a block of the plain kernel, and of one of staged steps.
const PLAIN_HEADS: usize = 4;
const STAGED_HEADS: usize = 8;
/// Elements of the keys and values that the kernel of wide heads takes, queries of a block, and its shared memory.
const WIDE_DIMS: [(usize, usize); 2] = [(576, 512), (512, 512)];
const WIDE_QUERIES: usize = 16;
const WIDE_BYTES: usize = 166_400;
/// Elements that keep staged rows apart.
const PAD: usize = 8;
/// Positions of a stage, and stages, of steps and of prompts.
const STEP: (usize, usize) = (128, 3);
const PROMPT_STEP: (usize, usize) = (64, 4);
/// Queries of a block of a prompt, and the largest heads of which a warp takes twice as many.
const PROMPT_QUERIES: usize = 64;
const MOST_NARROW: usize = 128;
/// More positions than there are; twice as many, less one, are an `int`.
const MOST_SEEN: u32 = 1 << 30;
/// Shared memory of an SM, and what each block of steps takes of it beside its own.
const SM_BYTES: usize = 227 << 10;
const OTHER_BYTES: usize = 4 << 10;

impl Lowering<'_> {
    /// Norms and rotations of queries and keys, up to the store that ends them; false leaves them as they are.
    pub fn heads(&mut self) -> bool {
        let Some((mut args, covered)) = self.turned_heads() else { return false };
        if args.k == 0 {
            args.kv_heads = 0;
        }
        self.push_heads(args, covered);
        true
    }

    /// The launch that turns queries and keys and stores keys and values; with no heads of queries those stay as they are.
    fn push_heads(&mut self, args: HeadsArgs, covered: usize) {
        let blocks = Extent::Fixed((args.heads + 2 * args.kv_heads).div_ceil(HEADS_A_BLOCK as u32));
        let function = self.store_kernel().only();
        self.push(function, [blocks, Extent::Rows, ONE], 32 * HEADS_A_BLOCK, Args::Heads(args), covered);
    }

    /// Norms, rotation, the rows' places in the cache, and attention of a step; false leaves them as they are.
    pub fn whole_attention(&mut self) -> bool {
        let Some((heads, covered)) = self.turned_heads() else { return false };
        let Some(&Op::Attention { kind, out, .. }) = self.ops.get(self.next + covered) else { return false };
        if !self.stages_pages(&kind) {
            return false;
        }
        // Of a few rows, kernels leave out forms that products do not read.
        let is_few = matches!(self.batches, Batches::Few(_));
        let kernel = match self.addresses.kv_type {
            KvType::Q8 if is_few => Kernel::AttentionDecodeQ8,
            KvType::Q8 => Kernel::AttentionDecodeBatchQ8,
            _ if is_few => Kernel::AttentionDecode,
            _ => Kernel::AttentionDecodeBatch,
        };
        if self.follows && heads.k != 0 {
            // Rows see the keys of those before them in the step.
            self.push_heads(HeadsArgs { heads: 0, ..heads }, 0);
        }
        self.attend(kernel, heads, &kind, out, covered + 1);
        true
    }

    /// Keys and values to their places as they are.
    pub fn store(&mut self, layer: usize, keys: ValueId, values: ValueId) {
        let args = HeadsArgs { k: self.value(keys), v: self.value(values), heads: 0, ..self.heads_args(layer) };
        self.push_heads(args, 1);
    }

    /// The kernel that writes keys and values to the cache.
    fn store_kernel(&self) -> Kernel {
        match self.addresses.kv_type {
            KvType::F16 | KvType::F32 => Kernel::QkNormRopeKv,
            KvType::Q8 => Kernel::QkNormRopeKvQ8,
        }
    }

    /// What the next ops do with queries, keys and values in one launch, and how many ops that are: norms of heads first, then rotation of queries
    /// and keys by one table or of none, then the store. Without a store, keys and values are in the cache already, and only queries are turned.
    fn turned_heads(&self) -> Option<(HeadsArgs, usize)> {
        let ops = &self.ops[self.next..];
        let is_of_heads = |op: &&Op| matches!(op, Op::HeadNorm { .. } | Op::Rope { .. });
        let end = ops.iter().take_while(is_of_heads).count();
        let stored = match *ops.get(end)? {
            Op::StoreKv { layer, keys, values } => Some((layer, keys, values)),
            _ => None,
        };
        let covered = end + usize::from(stored.is_some());
        let Op::Attention { kind, queries, .. } = *ops.get(covered)? else { return None };
        let (mut args, sizes) = (self.heads_args(kind.layer), self.program.kv.of(kind.layer));
        let own_dim = sizes.head_dim;
        args.q = self.value(queries);
        let (mut keys, mut values) = (None, None);
        if let Some((layer, stored_keys, stored_values)) = stored {
            if kind.layer != layer {
                return None;
            }
            (args.k, args.v) = (self.value(stored_keys), self.value(stored_values));
            keys = Some(stored_keys);
            // What is normalized on its way to the cache may not be read elsewhere.
            let is_last = self.uses.of_value(stored_values).last_reader == self.next + end;
            values =
                Some(stored_values).filter(|&values| is_last && sizes.value_dim == own_dim && values != stored_keys);
        }
        let is_key = |x: ValueId| Some(x) == keys;
        let is_turned = |x: ValueId| x == queries || is_key(x);
        let (mut turned, mut eps) = ([None; 2], None);
        for op in &ops[..end] {
            match *op {
                Op::HeadNorm { head_dim, .. } | Op::Rope { head_dim, .. } if head_dim != own_dim => return None,
                Op::HeadNorm { x, norm, .. } if (is_turned(x) || Some(x) == values) && turned == [None; 2] => {
                    let weight = match x {
                        x if x == queries => &mut args.q_norm,
                        x if is_key(x) => &mut args.k_norm,
                        _ => &mut args.v_norm,
                    };
                    let fits = norm.kind == NormKind::Rms && norm.bias.is_none() && *weight == 0;
                    if !fits || *eps.get_or_insert(norm.eps) != norm.eps {
                        return None;
                    }
                    *weight = self.vector(Some(norm.weight));
                }
                Op::Rope { x, table, .. } if is_turned(x) => {
                    if turned[usize::from(is_key(x))].replace(table).is_some() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        args.eps = eps.unwrap_or(0.0);
        match turned {
            [None, None] => {}
            [Some(table), Some(other)] if table == other => self.turn(&mut args, table),
            [Some(table), None] if stored.is_none() => self.turn(&mut args, table),
            _ => return None,
        }
        Some((args, covered))
    }

    /// The rotation by a table.
    fn turn(&self, args: &mut HeadsArgs, table: RopeId) {
        let angles = self.addresses.step.angles[table.0];
        (args.cos, args.sin, args.half_dims) = (angles.cos, angles.sin, angles.half_dims);
        args.pairs = (self.program.ropes[table.0].layout == RopeLayout::Pairs).into();
    }

    fn heads_args(&self, layer: usize) -> HeadsArgs {
        let (addresses, sizes) = (self.addresses, self.program.kv.of(layer));
        let LayerCache { tables, cache, page_elements, keys, values } = addresses.layers[layer];
        HeadsArgs {
            rows: addresses.step.rows,
            tables,
            cache,
            page_elements,
            keys,
            values,
            table_stride: addresses.table_stride,
            heads: sizes.heads as u32,
            kv_heads: sizes.kv_heads as u32,
            head_dim: sizes.head_dim as u32,
            value_dim: sizes.value_dim as u32,
            cache_f32: (addresses.kv_type == KvType::F32).into(),
            ..HeadsArgs::default()
        }
    }

    /// Whether pages pass through shared memory, and matrix instructions multiply them. Prompts do what steps do.
    fn stages_pages(&self, kind: &AttentionKind) -> bool {
        let HeadSizes { head_dim: dim, value_dim, .. } = self.program.kv.of(kind.layer);
        let has_kernel = value_dim == dim
            && match kind.mask {
                AttentionMask::Causal | AttentionMask::Borrowed => is_staged(dim),
                AttentionMask::Bidirectional => of_heads(self.prompt_kernel(), dim).is_some(),
            };
        kind.softcap.is_none() && self.addresses.kv_type != KvType::F32 && has_kernel
    }

    /// The kernel of prompts that stages pages.
    fn prompt_kernel(&self) -> Kernel {
        if self.addresses.kv_type == KvType::Q8 { Kernel::AttentionPrefillQ8 } else { Kernel::AttentionPrefill }
    }

    /// Attention with staged pages, whose blocks ask for as much shared memory whatever the type of the cache is; the arguments of prompts have only
    /// the queries of what stands in `heads`.
    fn attend(&mut self, kernel: Kernel, heads: HeadsArgs, kind: &AttentionKind, out: ValueId, covered: usize) {
        let sizes = self.program.kv.of(kind.layer);
        let dim = sizes.head_dim;
        // Blocks of 8-bit values must lie within a head, or another launch makes them.
        let merges_later = !dim.is_multiple_of(32);
        let args = self.attention_args(heads, kind, out);
        let args = AttentionArgs { ended: if merges_later { 0 } else { args.ended }, ..args };
        let is_prompt = matches!(kernel, Kernel::AttentionPrefill | Kernel::AttentionPrefillQ8);
        let (grid, shared_bytes) = if is_prompt { prompt_grid(&sizes) } else { self.step_grid(&sizes) };
        let threads = if is_prompt && dim <= MOST_NARROW { ATTENTION_THREADS / 2 } else { ATTENTION_THREADS };
        let function = of_heads(kernel, dim).expect("only staged sizes come here");
        self.push(function, grid, threads, Args::Attention(args), covered);
        let spread_bytes = self.spread_bytes(kernel, dim, shared_bytes);
        let launch = self.launches.last_mut().expect("just added");
        (launch.shared_bytes, launch.spread_bytes) = (shared_bytes as u32, spread_bytes as u32);
        if merges_later {
            self.merge(args, out);
        }
    }

    /// Grid and shared memory of the attention of steps: a ring of stages, and fragments of queries and weights.
    fn step_grid(&self, sizes: &HeadSizes) -> ([Extent; 3], usize) {
        let dim = sizes.head_dim;
        // Weights of two steps.
        let ((positions, stages), fragments) = (STEP, STAGED_HEADS * (dim + 2 * STEP.0));
        let shared = 2 * (stages * positions * (dim + PAD) + fragments + 2 * dim);
        let each = (sizes.kv_heads * sizes.group().div_ceil(STAGED_HEADS)) as u32;
        // The kernel's registers leave room for two.
        let resident = self.addresses.device.sms * (SM_BYTES / (shared + OTHER_BYTES)).clamp(1, 2) as u32;
        ([Extent::SplitShares { each, resident }, Extent::Fixed(each), Extent::Rows], shared)
    }

    /// Shared memory of a block of short splits where few of them run: so much that no two share an SM, and in batches a stage more for its copies.
    fn spread_bytes(&self, kernel: Kernel, dim: usize, own: usize) -> usize {
        let stage = 2 * STEP.0 * (dim + PAD);
        let wanted = match kernel {
            Kernel::AttentionDecodeBatch => (own + stage).max(SM_BYTES / 2),
            // The next kernel has blocks beside these.
            Kernel::AttentionDecode => own + OTHER_BYTES,
            _ => 0,
        };
        if wanted + OTHER_BYTES <= self.addresses.device.most_shared as usize { wanted } else { 0 }
    }

    fn attention_args(&self, heads: HeadsArgs, kind: &AttentionKind, out: ValueId) -> AttentionArgs {
        let Addresses { mixed, states, ended, .. } = *self.addresses;
        let (scale, cap) = match kind.softcap {
            Some(cap) => (kind.scale / cap, cap * LOG2_E),
            None => (kind.scale * LOG2_E, 0.0),
        };
        let window = kind.window.map_or(MOST_SEEN, |window| window.min(MOST_SEEN as usize) as u32);
        // What a row of borrowed keys sees goes to the position before its own, which is the one that kernels are told.
        let window = window.saturating_sub((kind.mask == AttentionMask::Borrowed).into());
        let width = match kind.mask {
            AttentionMask::Causal | AttentionMask::Borrowed => window,
            AttentionMask::Bidirectional => 2 * window - 1,
        };
        let has_other_readers = self.is_read_by_adapters(out) || self.uses.of_value(out).is_read_beside_products();
        let (follows, floats) = (self.follows.into(), has_other_readers.into());
        let (out, sinks) = (self.activation(out), self.vector(kind.sinks));
        AttentionArgs { heads, mixed, states, ended, out, sinks, scale, cap, window, width, follows, floats }
    }

    /// Attention of rows whose heads have their place already.
    pub fn attention(&mut self, kind: AttentionKind, queries: ValueId, out: ValueId) {
        let heads = HeadsArgs { q: self.value(queries), ..self.heads_args(kind.layer) };
        if self.stages_pages(&kind) {
            return self.attend(self.prompt_kernel(), heads, &kind, out, 1);
        }
        let (args, sizes) = (self.attention_args(heads, &kind, out), self.program.kv.of(kind.layer));
        if self.addresses.kv_type == KvType::F16 && self.is_wide(&kind) {
            return self.wide_attention(args, &sizes);
        }
        let kernel = match self.addresses.kv_type {
            KvType::F16 => Kernel::AttentionF16,
            KvType::F32 => Kernel::AttentionF32,
            KvType::Q8 => Kernel::AttentionQ8,
        };
        let parts = ATTENTION_THREADS / (sizes.value_dim / 2);
        let floats = PLAIN_HEADS * (sizes.head_dim + sizes.value_dim * (1 + parts));
        let grid = self.split_grid(&sizes, PLAIN_HEADS, Extent::Rows);
        self.attend_by_splits(kernel, args, grid, floats * size_of::<f32>());
        self.merge(args, out);
    }

    /// A grid in which each split has blocks for all heads, so many of them in a block.
    fn split_grid(&self, sizes: &HeadSizes, heads: usize, rows: Extent) -> [Extent; 3] {
        let blocks = Extent::Fixed((sizes.kv_heads * sizes.group().div_ceil(heads)) as u32);
        [Extent::Splits, blocks, rows]
    }

    fn attend_by_splits(&mut self, kernel: Kernel, args: AttentionArgs, grid: [Extent; 3], shared_bytes: usize) {
        self.push(kernel.only(), grid, ATTENTION_THREADS, Args::Attention(args), 1);
        self.launches.last_mut().expect("just added").shared_bytes = shared_bytes as u32;
    }

    /// Attention of wide heads: a block that has all of a row's positions writes the result itself. Blocks of prompts have several rows, where the
    /// heads of one leave room.
    fn wide_attention(&mut self, args: AttentionArgs, sizes: &HeadSizes) {
        let rows = match self.batches {
            Batches::Prompts => Extent::Stretches { each: 1, width: (WIDE_QUERIES / sizes.group()).max(1) as u32 },
            _ => Extent::Rows,
        };
        let grid = self.split_grid(sizes, WIDE_QUERIES, rows);
        self.attend_by_splits(Kernel::AttentionWide, args, grid, WIDE_BYTES);
        let blocks = Extent::Fixed((sizes.heads * sizes.value_dim).div_ceil(ELEMENTS_A_BLOCK) as u32);
        let grid = [blocks, Extent::Rows, ONE];
        self.push(Kernel::AttentionCombineSplits.only(), grid, ELEMENTS_A_BLOCK, Args::Attention(args), 0);
    }

    /// Whether the kernel of wide heads takes these, and all that is asked for.
    fn is_wide(&self, kind: &AttentionKind) -> bool {
        let HeadSizes { head_dim, value_dim, .. } = self.program.kv.of(kind.layer);
        WIDE_DIMS.contains(&(head_dim, value_dim))
            && kind.mask == AttentionMask::Causal
            && kind.softcap.is_none()
            && kind.sinks.is_none()
            && WIDE_BYTES <= self.addresses.device.most_shared as usize
    }

    fn merge(&mut self, args: AttentionArgs, out: ValueId) {
        let blocks = Extent::Fixed(self.width(out).div_ceil(ELEMENTS_A_BLOCK) as u32);
        let kernel = match self.addresses.kv_type {
            KvType::F16 | KvType::F32 => Kernel::AttentionCombine,
            KvType::Q8 => Kernel::AttentionCombineQ8,
        };
        self.push(kernel.only(), [blocks, Extent::Rows, ONE], ELEMENTS_A_BLOCK, Args::Attention(args), 0);
    }
}

/// Grid and shared memory of the attention of prompts: a ring of stages, and results.
fn prompt_grid(sizes: &HeadSizes) -> ([Extent; 3], usize) {
    let (dim, (positions, stages)) = (sizes.head_dim, PROMPT_STEP);
    let shared = 2 * stages * positions * (dim + PAD) + 4 * PROMPT_QUERIES * (dim + 4);
    let each = sizes.group() as u32;
    ([Extent::Stretches { each, width: PROMPT_QUERIES as u32 }, Extent::Fixed(sizes.kv_heads as u32), ONE], shared)
}
