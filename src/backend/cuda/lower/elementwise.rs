//! Launches of single ops that run in any program, beside those that `gemv`, `gemm` and `attention` make of several: norms whose result is there as
//! such, rotation of heads, and what is done element by element.

use super::attention::HEADS_A_BLOCK;
use super::{ELEMENTS_A_BLOCK, Extent, Lowering, NORM_THREADS, ONE, QUANTIZED};
use crate::backend::cuda::args::{Activation as Written, Args, ElementwiseArgs, NormalizeArgs, RopeArgs, Sigmoid};
use crate::backend::cuda::catalogue::Kernel;
use crate::plan::op::{Activation, HeadPart, Norm, NormKind, RopeId, RopeLayout};
use crate::plan::{Op, ValueId};

/// Threads of a warp.
const WARP: usize = 32;

/// Widest row that the registers of a block that norms it hold.
const MOST_HELD: usize = 4096;

/// An addition of a result to another value.
pub struct Sum {
    /// What it is added to.
    pub to: ValueId,
    /// What it is multiplied by before.
    pub factor: f32,
    /// Ops that this takes.
    pub ops: usize,
}

impl Lowering<'_> {
    /// A norm of rows, with the addition of its result where that follows. Where nothing reads that sum but another norm whose result is added, this
    /// is done too; and a scale behind all.
    pub fn normalize(&mut self, x: ValueId, norm: Norm, out: ValueId) {
        let mut args = self.normalize_args(x, norm, self.width(x));
        let (mut result, mut covered) = (out, 1);
        if let Some(Sum { to, factor, ops }) = self.sum_of(out, self.next + 1) {
            (args.sum, args.factor, result, covered) = (self.value(to), factor, to, 1 + ops);
            if let Some((again, Sum { to, factor, ops })) = self.norm_of_sum(to, self.next + covered) {
                (args.then_weight, args.then_eps) = (self.vector(Some(again.weight)), again.eps);
                (args.then_sum, args.then_factor, result, covered) = (self.value(to), factor, to, covered + 1 + ops);
            }
            if let Some(&Op::Scale { x, factor }) = self.ops.get(self.next + covered)
                && x == result
            {
                (args.scale, covered) = (factor, covered + 1);
            }
        }
        args.out = self.activation(result);
        self.push(Kernel::Normalize.only(), [self.rows(out), ONE, ONE], NORM_THREADS, Args::Normalize(args), covered);
    }

    /// The norm of `sum` at op `at`, behind which nothing reads that, and the addition of its result, where rows are no wider than a block holds.
    fn norm_of_sum(&self, sum: ValueId, at: usize) -> Option<(Norm, Sum)> {
        let &Op::Norm { x, norm, out } = self.ops.get(at)? else { return None };
        let is_plain = norm.kind == NormKind::Rms && norm.bias.is_none();
        let is_held = self.width(sum).is_multiple_of(QUANTIZED) && self.width(sum) <= MOST_HELD;
        let is_alone = x == sum && self.uses.of_value(sum).last_reader == at;
        let next = self.sum_of(out, at + 1).filter(|next| next.to != sum)?;
        (is_plain && is_held && is_alone).then_some((norm, next))
    }

    /// A norm of every head by itself.
    pub fn normalize_heads(&mut self, x: ValueId, dim: usize, norm: Norm) {
        let heads = Extent::Fixed((self.width(x) / dim) as u32);
        let args = self.normalize_args(x, norm, dim);
        let (args, covered) = match self.gate_of(x, dim) {
            Some((gate, unit)) => {
                (NormalizeArgs { gate: self.value(gate), unit, out: self.activation(gate), ..args }, 2)
            }
            None => (NormalizeArgs { out: Written { x: args.x, ..Default::default() }, ..args }, 1),
        };
        // A warp has a small head by itself.
        let is_small = dim <= 4 * WARP && dim.is_multiple_of(WARP);
        let threads = if is_small { WARP } else { NORM_THREADS };
        self.push(Kernel::Normalize.only(), [self.rows(x), heads, ONE], threads, Args::Normalize(args), covered);
    }

    /// A norm of each of several equal parts of rows.
    pub fn normalize_groups(&mut self, x: ValueId, groups: usize, norm: Norm, out: ValueId) {
        let each = self.width(x) / groups;
        let out_of_parts = self.activation_of_parts(out, each);
        let args = NormalizeArgs { out: out_of_parts, grouped: 1, ..self.normalize_args(x, norm, each) };
        let grid = [self.rows(out), Extent::Fixed(groups as u32), ONE];
        self.push(Kernel::Normalize.only(), grid, NORM_THREADS, Args::Normalize(args), 1);
    }

    /// The gated unit behind the norm of heads of `x`, which nothing else reads, if the norm can take it along: its gate, and the activation.
    /// Heads are written as rows of their own, so 8-bit blocks must be theirs, and 16-bit floats have another place.
    fn gate_of(&self, x: ValueId, dim: usize) -> Option<(ValueId, Sigmoid)> {
        let Op::Gate { kind, gate, up } = *self.ops.get(self.next + 1)? else { return None };
        let fits = up == x && gate != x && self.uses.of_value(x).readers == 2;
        let is_whole = dim.is_multiple_of(QUANTIZED) && !self.is_f16(gate);
        sigmoid(kind).filter(|_| fits && is_whole).map(|unit| (gate, unit))
    }

    fn normalize_args(&self, x: ValueId, norm: Norm, width: usize) -> NormalizeArgs {
        NormalizeArgs {
            x: self.value(x),
            weight: self.vector(Some(norm.weight)),
            bias: self.vector(norm.bias),
            width: width as u32,
            eps: norm.eps,
            centered: (norm.kind == NormKind::Layer).into(),
            scale: 1.0,
            ..NormalizeArgs::default()
        }
    }

    /// A rotation of heads by itself.
    pub fn rotate(&mut self, x: ValueId, dim: usize, table: RopeId) {
        let angles = self.addresses.step.angles[table.0];
        let heads = self.width(x) / dim;
        let args = RopeArgs {
            x: self.value(x),
            cos: angles.cos,
            sin: angles.sin,
            heads: heads as u32,
            head_dim: dim as u32,
            half_dims: angles.half_dims,
            pairs: (self.program.ropes[table.0].layout == RopeLayout::Pairs).into(),
        };
        let blocks = Extent::Fixed(heads.div_ceil(HEADS_A_BLOCK) as u32);
        self.push(Kernel::Rope.only(), [blocks, self.rows(x), ONE], 32 * HEADS_A_BLOCK, Args::Rope(args), 1);
    }

    /// The next op, which gates each row of `x`, with the addition of its result that follows, and that of this sum where nothing else reads it;
    /// false leaves it as it is.
    pub fn add_gated_rows(&mut self, x: ValueId, gate: ValueId) -> bool {
        let plain = |y: ValueId, at: usize| self.sum_of(y, at).filter(|sum| sum.ops == 1).map(|sum| sum.to);
        let Some(first) = plain(x, self.next + 1).filter(|_| self.width(gate) == 1) else { return false };
        let second = plain(first, self.next + 2);
        let to = second.unwrap_or(first);
        let args = ElementwiseArgs {
            x: self.activation(to),
            y: self.value(x),
            width: self.width(to) as u32,
            y_stride: self.width(x) as u32,
            gate: self.value(gate),
            sum: second.map_or(0, |_| self.value(first)),
            ..ElementwiseArgs::default()
        };
        self.push_elementwise(Kernel::AddGatedRows, to, args, if second.is_some() { 3 } else { 2 });
        true
    }

    /// The next op, which changes a value element by element; a scale that an addition follows becomes one with it.
    pub fn elementwise(&mut self) {
        let (mut y, mut a, mut b, mut period, mut covered) = (None, 0.0, 0.0, 0, 1);
        let (x, kernel) = match self.ops[self.next] {
            Op::Scale { x: scaled, factor } => {
                a = factor;
                match self.sum_of(scaled, self.next) {
                    Some(Sum { to, ops, .. }) => {
                        (y, covered) = (Some(scaled), ops);
                        (to, Kernel::AddScaled)
                    }
                    None => (scaled, Kernel::Scale),
                }
            }
            Op::Softcap { x, cap } => {
                a = cap;
                (x, Kernel::Softcap)
            }
            Op::Temperature { x, factor, period: each } => {
                (a, period) = (factor, each);
                (x, Kernel::Temperature)
            }
            Op::Add { x, y: other } => {
                y = Some(other);
                (x, Kernel::Add)
            }
            Op::Mul { x, y: other } => {
                y = Some(other);
                (x, Kernel::Mul)
            }
            Op::MulSigmoid { x, gate } => {
                y = Some(gate);
                let is_whole = self.width(gate) == self.width(x);
                (x, if is_whole { Kernel::MulSigmoid } else { Kernel::MulSigmoidRow })
            }
            Op::Activate { kind, x } => {
                (a, b) = parameters(kind);
                (x, activation(kind))
            }
            Op::Gate { kind, gate, up } => {
                ((a, b), y) = (parameters(kind), Some(up));
                (gate, gated(kind))
            }
            _ => unreachable!("only ops of single elements come here"),
        };
        let args = ElementwiseArgs {
            x: self.activation(x),
            y: y.map_or(0, |y| self.value(y)),
            rows: self.addresses.step.rows,
            width: self.width(x) as u32,
            a,
            b,
            period,
            y_stride: y.map_or(0, |y| self.width(y)) as u32,
            ..ElementwiseArgs::default()
        };
        self.push_elementwise(kernel, x, args, covered);
    }

    /// The next op, which takes a part of each row as `out`, with the gated unit behind it whose second value this is, if nothing else reads it;
    /// false leaves both as they are.
    pub fn gate_part(&mut self, x: ValueId, part: HeadPart, out: ValueId) -> bool {
        let Some(&Op::Gate { kind, gate, up }) = self.ops.get(self.next + 1) else { return false };
        let is_alone = self.uses.of_value(out).readers == 1 && part.each == self.width(x);
        if up != out || gate == out || gate == x || !is_alone {
            return false;
        }
        let (a, b) = parameters(kind);
        let args = ElementwiseArgs {
            x: self.activation(gate),
            y: self.value(x) + (part.first * size_of::<f32>()) as u64,
            width: self.width(gate) as u32,
            y_stride: part.each as u32,
            a,
            b,
            ..ElementwiseArgs::default()
        };
        self.push_elementwise(gated(kind), gate, args, 2);
        true
    }

    /// The addition at op `at` of `y`, which nothing reads behind it, with a scale before it or without one.
    pub fn sum_of(&self, y: ValueId, at: usize) -> Option<Sum> {
        let last_reader = self.uses.of_value(y).last_reader;
        match (self.ops.get(at)?, self.ops.get(at + 1)) {
            (&Op::Add { x, y: added }, _) if added == y && x != y && last_reader == at => {
                Some(Sum { to: x, factor: 1.0, ops: 1 })
            }
            (&Op::Scale { x: scaled, factor }, Some(&Op::Add { x, y: added }))
                if scaled == y && added == y && x != y && last_reader == at + 1 && factor != 0.0 =>
            {
                Some(Sum { to: x, factor, ops: 2 })
            }
            _ => None,
        }
    }

    /// The same of a product of `read`. The blocks of such a launch do not wait for each other, so it may not add to what others still read.
    pub fn sum_of_product(&self, read: ValueId, y: ValueId, at: usize) -> Option<Sum> {
        self.sum_of(y, at).filter(|sum| sum.to != read)
    }

    pub fn push_elementwise(&mut self, kernel: Kernel, x: ValueId, args: ElementwiseArgs, covered: usize) {
        let blocks = Extent::Fixed(self.width(x).div_ceil(ELEMENTS_A_BLOCK) as u32);
        self.push(kernel.only(), [blocks, self.rows(x), ONE], ELEMENTS_A_BLOCK, Args::Elementwise(args), covered);
    }
}

fn activation(kind: Activation) -> Kernel {
    match kind {
        Activation::Silu | Activation::GeluTanh => Kernel::Sigmoid,
        Activation::GeluErf => Kernel::GeluErf,
        Activation::SquaredRelu => Kernel::SquaredRelu,
        Activation::ClampedSilu { .. } => unreachable!("validated: it takes two values"),
    }
}

fn gated(kind: Activation) -> Kernel {
    match kind {
        Activation::Silu | Activation::GeluTanh => Kernel::SigmoidMul,
        Activation::GeluErf => Kernel::GeluErfMul,
        Activation::SquaredRelu => Kernel::SquaredReluMul,
        Activation::ClampedSilu { .. } => Kernel::ClampedSiluMul,
    }
}

/// What the kernels of an activation take as `a` and `b`.
fn parameters(kind: Activation) -> (f32, f32) {
    match (kind, sigmoid(kind)) {
        (_, Some(Sigmoid { linear, cubic })) => (linear, cubic),
        (Activation::ClampedSilu { limit, slope }, _) => (limit, slope),
        _ => (0.0, 0.0),
    }
}

/// The activations that products do themselves.
pub fn sigmoid(kind: Activation) -> Option<Sigmoid> {
    match kind {
        Activation::Silu => Some(Sigmoid { linear: 1.0, cubic: 0.0 }),
        // `(1 + tanh(z)) / 2 = 1 / (1 + exp(-2z))` with `z = sqrt(2 / pi) * (x + 0.044715 x^3)`.
        Activation::GeluTanh => Some(Sigmoid { linear: 1.595_769, cubic: 1.595_769 * 0.044_715 }),
        Activation::GeluErf | Activation::SquaredRelu | Activation::ClampedSilu { .. } => None,
    }
}
