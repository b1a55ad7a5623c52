//! Lowering of products for more rows than `gemv` takes: on tensor cores where there are kernels for the types, and by the GEMM of any type.

use super::lists::Batches;
use super::products::Follower;
use super::{Extent, Lowering, ONE, QUANTIZED};
use crate::backend::cuda::args::{Activation, Args, FEW_SEGMENTS, HeadMatmulArgs, MatmulArgs, TensorArgs};
use crate::backend::cuda::catalogue::{DeviceType, Function, Kernel};
use crate::backend::cuda::select::{gemm_f16, gemm_i8};
use crate::plan::op::HeadPart;
use crate::plan::{MatrixId, Op, ValueId};

/// Most columns of the rows that each head has for itself.
pub const MOST_HEAD_COLS: usize = 512;
/// Tiles of outputs that a block of products of heads has in prompts, one after the other.
const HEAD_TILES: usize = 4;
/// Weight rows of a block of the GEMM of any type.
const TILE_ROWS: u32 = 16;
const THREADS: usize = 256;
const WARP: usize = 32;

impl Lowering<'_> {
    /// Products of `x` on tensor cores, with the gated unit or the addition that follows them; false leaves them as they are.
    pub fn gemm(&mut self, x: ValueId) -> bool {
        let Some((args, covered)) = self.tensor_args(x) else { return false };
        self.push_gemm(x, args, covered);
        true
    }

    /// Adds the launch of products of `x`; which kernel of which family runs is for its shape to choose.
    pub fn push_gemm(&mut self, x: ValueId, mut args: TensorArgs, covered: usize) {
        let products = self.products_of(x, self.next, FEW_SEGMENTS);
        self.adapt(x, None, &products, &mut args.segments);
        let kernel = if args.is_f16() { Kernel::GemmF16 } else { Kernel::GemmI8 };
        self.push(Function { kernel, variant: 0 }, [ONE; 3], THREADS, Args::Tensor(args), covered);
    }

    /// What the kernels take for that, if they can, and how many ops it covers.
    pub fn tensor_args(&self, x: ValueId) -> Option<(TensorArgs, usize)> {
        let (products, is_f16) = (self.products_of(x, self.next, FEW_SEGMENTS), self.is_f16(x));
        let has_gemm = |dtype| DeviceType::of(dtype).has_gemm();
        let types = products.matrices().iter().map(|matrix| self.program.matrices[matrix.0].dtype);
        if !is_f16 && !types.into_iter().all(has_gemm) {
            return None;
        }
        let mut args = TensorArgs {
            x: self.input(x),
            cols: self.width(x) as u32,
            count: products.count as u32,
            on_outputs: self.is_on_outputs(x).into(),
            segments: products.few_segments(),
            ..TensorArgs::default()
        };
        args.f16_row_bytes = args.most(gemm_f16::row_bytes);
        if !args.cols.is_multiple_of(32) || (!is_f16 && !gemm_i8::takes(&args, &self.addresses.device)) {
            return None;
        }
        let mut covered = products.count;
        match self.follower(x, &products, self.next + covered) {
            // The kernels of 16-bit floats write such alone, and others none.
            Some(Follower::Gate { unit, gate }) if is_f16 == self.is_f16(gate) => {
                (args.gated, args.unit) = (self.activation(gate), unit);
                covered += 1;
            }
            Some(Follower::Sum(sum)) => {
                (args.segments[0].out, args.segments[0].adds) = (self.value(sum.to), sum.factor);
                covered += sum.ops;
            }
            _ => {}
        }
        Some((args, covered))
    }

    /// Products of heads with rows of their own, put together with other elements of the same heads where that follows.
    pub fn head_product(&mut self, x: ValueId, part: HeadPart, matrix: MatrixId, out: ValueId) {
        let own = self.addresses.matrices[matrix.0];
        let (heads, on_outputs) = (self.width(x) / part.each, self.is_on_outputs(x));
        let width = self.width(out) / heads;
        let is_alone = self.uses.of_value(out).readers == 1;
        let (out, kept, covered) = match self.ops.get(self.next + 1) {
            Some(&Op::JoinHeads { x: other, part: kept, y, out: joined }) if is_alone && (other, y) == (x, out) => {
                (Activation { x: self.value(joined), ..Default::default() }, kept, 2)
            }
            _ => (self.activation_of_parts(out, width), HeadPart { each: part.each, first: 0, count: 0 }, 1),
        };
        let args = HeadMatmulArgs {
            x: self.value(x),
            out,
            matrix: own,
            heads: heads as u32,
            each: part.each as u32,
            first: part.first as u32,
            width: width as u32,
            kept_first: kept.first as u32,
            kept: kept.count as u32,
            on_outputs: on_outputs.into(),
            pad: 0,
        };
        // A lane has a group of columns, or a warp computes one output of floats; a tile has whole 8-bit blocks.
        let lanes = if own.dtype.is_quantized() { (part.count / QUANTIZED).next_power_of_two() } else { WARP };
        let tiles_a_block = if self.batches == Batches::Prompts { HEAD_TILES } else { 1 };
        let blocks = width.div_ceil((THREADS / lanes).max(WARP) * tiles_a_block);
        let grid = [Extent::Fixed(blocks as u32), Extent::Fixed(heads as u32), Extent::Tiles { tiles: 1, on_outputs }];
        let function = Function { kernel: Kernel::HeadMatmul, variant: 0 };
        self.push(function, grid, THREADS, Args::HeadMatmul(args), covered);
    }

    /// Up to three products of one value in a launch; a lone product also takes the addition that follows it.
    pub fn gemm_of_any_type(&mut self, x: ValueId) {
        let products = self.products_of(x, self.next, FEW_SEGMENTS);
        let on_outputs = self.is_on_outputs(x);
        let mut args = MatmulArgs {
            x: self.input(x),
            cols: self.width(x) as u32,
            count: products.count as u32,
            on_outputs: on_outputs.into(),
            segments: products.few_segments(),
            ..MatmulArgs::default()
        };
        for segment in &mut args.segments[..products.count] {
            segment.first_tile = args.tiles;
            args.tiles += segment.matrix.rows.div_ceil(TILE_ROWS);
        }
        let mut covered = products.count;
        if let Some(Follower::Sum(sum)) = self.follower(x, &products, self.next + covered) {
            (args.segments[0].out, args.segments[0].adds) = (self.value(sum.to), sum.factor);
            covered += sum.ops;
        }
        self.adapt(x, None, &products, &mut args.segments);
        let function = Function { kernel: Kernel::GemmDp4a, variant: 0 };
        let grid = [Extent::Tiles { tiles: args.tiles, on_outputs }, ONE, ONE];
        self.push(function, grid, THREADS, Args::Matmul(args), covered);
    }
}
