//! Lowering of layers with a state: convolutions, which take along what stands behind them, and scans.

use super::elementwise::sigmoid;
use super::lists::Batches;
use super::{Extent, Lowering, ONE, QUANTIZED};
use crate::backend::cuda::args::{
    Args, ConvolutionArgs, ConvolveArgs, ConvolvePart, MOST_PARTS, RecurrentStepArgs, ScanArgs,
};
use crate::backend::cuda::catalogue::Kernel;
use crate::error::{Error, Result};
use crate::kv::state::Shape;
use crate::plan::op::{Activation, Convolution, Norm, NormKind, Scan, Strength};
use crate::plan::{Op, ValueId};

/// Threads, and most columns, of a block that convolves.
const CONVOLVE_THREADS: usize = 256;
/// Rows of such a block in prompts.
const CONVOLVE_ROWS: u32 = 8;
const WARP: usize = 32;
/// Threads of a block that scans, and its columns.
const SCAN_THREADS: usize = 128;
const SCAN_COLUMNS: usize = 32;
/// Threads of a block that makes a step of a head, most elements of its keys and values, and most taps.
const STEP_THREADS: usize = 512;
const STEP_ELEMENTS: usize = 128;
const STEP_TAPS: usize = 4;
/// Most elements of a key that a scan takes.
pub const MOST_KEYS: usize = 256;

/// Convolutions in one launch, with what becomes of each.
#[derive(Clone, Copy)]
struct Group {
    parts: [Option<Part>; MOST_PARTS],
    /// Ops that the launch covers.
    covered: usize,
}

#[derive(Clone, Copy)]
struct Part {
    op: Convolution,
    activates: bool,
    norm: Option<(usize, Norm)>,
}

impl Group {
    fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.parts.iter().flatten().copied()
    }

    fn part_of(&mut self, id: ValueId) -> Option<&mut Part> {
        self.parts.iter_mut().flatten().find(|part| part.op.out == id)
    }
}

impl Lowering<'_> {
    /// The next convolutions, with the activations and the norms of heads that follow.
    pub fn convolve(&mut self, first: Convolution) {
        let group = self.convolutions(first);
        if self.batches != Batches::Prompts
            && !self.follows
            && let Some((args, covered)) = self.step(&group)
        {
            let sequences = Extent::Sequences(self.addresses.step.most_stretches);
            let grid = [Extent::Fixed(args.heads), sequences, ONE];
            return self.push(Kernel::RecurrentStep.only(), grid, STEP_THREADS, Args::RecurrentStep(args), covered);
        }
        let mut args = ConvolveArgs {
            rows: self.addresses.step.rows,
            stretches: self.addresses.step.stretches,
            records: self.addresses.records,
            taps: first.taps as u32,
            count: group.parts().count() as u32,
            rows_each: if self.batches == Batches::Prompts { CONVOLVE_ROWS } else { 1 },
            ..ConvolveArgs::default()
        };
        let mut blocks = 0;
        for (part, to) in group.parts().zip(&mut args.parts) {
            *to = ConvolvePart { first_block: blocks, ..self.convolve_part(&part) };
            blocks += to.width.div_ceil(to.tile);
        }
        let widest = args.parts.iter().map(|part| part.tile as usize).max().unwrap_or(0);
        let grid = [Extent::Fixed(blocks), Extent::Stretches { each: 1, width: args.rows_each }, ONE];
        let threads = widest.next_multiple_of(WARP);
        self.push(Kernel::Convolve.only(), grid, threads, Args::Convolve(args), group.covered);
    }

    fn convolve_part(&self, part: &Part) -> ConvolvePart {
        let Part { op, activates, norm } = *part;
        let width = self.width(op.out);
        let (tile, weight, eps) = match norm {
            Some((head_dim, norm)) => (head_dim, self.vector(Some(norm.weight)), norm.eps),
            None => (width.min(CONVOLVE_THREADS), 0, 0.0),
        };
        ConvolvePart {
            convolution: self.convolution(&op),
            norm: weight,
            out: self.value(op.out),
            width: width as u32,
            tile: tile as u32,
            eps,
            activates: activates.into(),
            ..ConvolvePart::default()
        }
    }

    fn convolution(&self, op: &Convolution) -> ConvolutionArgs {
        ConvolutionArgs {
            x: self.value(op.x),
            weight: self.vector(Some(op.weight)),
            bias: self.vector(op.bias),
            state: self.addresses.state_starts[op.state.0],
        }
    }

    /// The step of a layer that these convolutions begin, up to the gated unit behind its norm, and how many ops it has; none where anything else is
    /// done with what stands between, or where sizes are the kernel's no longer.
    fn step(&self, group: &Group) -> Option<(RecurrentStepArgs, usize)> {
        let [Op::Scan(scan), Op::HeadNorm { x, head_dim, norm }, Op::Gate { kind, gate, up }, ..] =
            self.ops[self.next + group.covered..]
        else {
            return None;
        };
        let Shape::Matrices { heads, rows, cols } = self.program.states[scan.state.0] else { return None };
        let unit = sigmoid(kind)?;
        let is_chain = (x, up, head_dim) == (scan.out, scan.out, cols) && self.uses.of_value(scan.out).readers == 2;
        let is_plain = norm.kind == NormKind::Rms && norm.bias.is_none() && !self.is_f16(gate);
        let is_whole = |dim: usize| dim.is_multiple_of(QUANTIZED) && dim <= STEP_ELEMENTS;
        let fits = is_whole(rows) && is_whole(cols) && group.parts().all(|part| part.op.taps <= STEP_TAPS);
        if !is_chain || !is_plain || !fits {
            return None;
        }
        // Each of the three, which nothing but its own ops reads.
        let part_of = |id: ValueId, head_dim: usize| {
            let part = group.parts().find(|part| part.op.out == id && part.activates)?;
            let readers = 2 + usize::from(part.norm.is_some());
            let is_own = self.uses.of_value(id).readers == readers;
            (is_own && part.norm.is_none_or(|(dim, _)| dim == head_dim)).then_some(part)
        };
        let [queries, keys] = [part_of(scan.queries, rows)?, part_of(scan.keys, rows)?];
        let values = part_of(scan.values, cols).filter(|part| part.norm.is_none())?;
        let weight = |part: &Part| self.vector(part.norm.map(|(_, norm)| norm.weight));
        let eps = |part: &Part| part.norm.map_or(0.0, |(_, norm)| norm.eps);
        let covered = group.covered + 3;
        let ScanArgs { decay, strength, bias, rate, skip, stretches, records, state, .. } =
            self.scan_args(&scan, [heads, rows, cols]);
        let args = RecurrentStepArgs {
            queries: self.convolution(&queries.op),
            keys: self.convolution(&keys.op),
            values: self.convolution(&values.op),
            query_norm: weight(&queries),
            key_norm: weight(&keys),
            decay,
            strength,
            bias,
            rate,
            skip,
            norm: self.vector(Some(norm.weight)),
            gate: self.value(gate),
            out: self.activation(gate),
            stretches,
            records,
            state,
            unit,
            heads: heads as u32,
            key_heads: scan.key_heads as u32,
            key_dim: rows as u32,
            value_dim: cols as u32,
            is_tiled: scan.is_tiled.into(),
            taps: queries.op.taps as u32,
            query_eps: eps(&queries),
            key_eps: eps(&keys),
            norm_eps: norm.eps,
            pad: 0,
        };
        (group.parts().count() == MOST_PARTS).then_some((args, covered))
    }

    /// Which ops the launch of a convolution takes along.
    fn convolutions(&self, first: Convolution) -> Group {
        let mut group = Group { parts: [None; MOST_PARTS], covered: 0 };
        for (slot, op) in group.parts.iter_mut().zip(&self.ops[self.next..]) {
            let &Op::Convolve(op) = op else { break };
            if op.taps != first.taps {
                break;
            }
            *slot = Some(Part { op, activates: false, norm: None });
            group.covered += 1;
        }
        while let Some(op) = self.ops.get(self.next + group.covered)
            && self.takes_along(&mut group, op)
        {
            group.covered += 1;
        }
        group
    }

    /// Adds an op to what becomes of a convolution's result, if the kernel can do it.
    fn takes_along(&self, group: &mut Group, op: &Op) -> bool {
        match *op {
            Op::Activate { kind: Activation::Silu, x } if !self.is_f16(x) => {
                let Some(part) = group.part_of(x).filter(|part| !part.activates && part.norm.is_none()) else {
                    return false;
                };
                part.activates = true;
                true
            }
            Op::HeadNorm { x, head_dim, norm } => {
                let is_plain = norm.kind == NormKind::Rms && norm.bias.is_none() && head_dim <= CONVOLVE_THREADS;
                let part = group.part_of(x).filter(|part| is_plain && part.norm.is_none());
                part.map(|part| part.norm = Some((head_dim, norm))).is_some()
            }
            _ => false,
        }
    }

    /// Linear attention through a state.
    pub fn scan(&mut self, scan: Scan) -> Result<()> {
        let Shape::Matrices { heads, rows, cols } = self.program.states[scan.state.0] else {
            return Err(self.out_of_place());
        };
        let args = self.scan_args(&scan, [heads, rows, cols]);
        let takes = [64, 128, MOST_KEYS].into_iter().find(|&keys| rows <= keys);
        let function = takes.and_then(|keys| Kernel::Scan.of_numbers(&[keys as u32]));
        let function = function.ok_or_else(|| Error::Unsupported(too_wide(rows)))?;
        let blocks = Extent::Fixed((heads * cols.div_ceil(SCAN_COLUMNS)) as u32);
        let sequences = Extent::Sequences(self.addresses.step.most_stretches);
        self.push(function, [blocks, sequences, ONE], SCAN_THREADS, Args::Scan(args), 1);
        Ok(())
    }

    fn scan_args(&self, scan: &Scan, [heads, rows, cols]: [usize; 3]) -> ScanArgs {
        let strength = match scan.strength {
            Strength::Delta(strength) => self.value(strength),
            Strength::Step => 0,
        };
        ScanArgs {
            queries: self.value(scan.queries),
            keys: self.value(scan.keys),
            values: self.value(scan.values),
            decay: self.value(scan.decay),
            strength,
            bias: self.vector(Some(scan.bias)),
            rate: self.vector(Some(scan.rate)),
            skip: self.vector(scan.skip),
            out: self.value(scan.out),
            stretches: self.addresses.step.stretches,
            records: self.addresses.records,
            state: self.addresses.state_starts[scan.state.0],
            heads: heads as u32,
            key_heads: scan.key_heads as u32,
            key_dim: rows as u32,
            value_dim: cols as u32,
            is_tiled: scan.is_tiled.into(),
            pad: 0,
        }
    }
}

/// Why a scan has no kernel.
pub fn too_wide(keys: usize) -> String {
    format!("a state of keys of {keys} elements: the cuda kernels take {MOST_KEYS} at most")
}
