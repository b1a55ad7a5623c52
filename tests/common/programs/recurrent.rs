//! The parts of random programs that have a state: convolutions, and scans as models have them or on their own.

use super::Builder;
use segno::kv::state::Shape;
use segno::plan::op::{Activation, Convolution, HeadPart, Norm, NormKind, Rows, Scan, StateId, Strength};
use segno::plan::{Op, ValueId};

impl Builder {
    fn state(&mut self, shape: Shape) -> StateId {
        self.program.states.push(shape);
        StateId(self.program.states.len() - 1)
    }

    pub fn convolved(&mut self, x: ValueId) -> ValueId {
        let taps = 2 + self.below(4);
        self.convolved_by(x, taps)
    }

    fn convolved_by(&mut self, x: ValueId, taps: usize) -> ValueId {
        let width = self.width(x);
        let state = self.state(Shape::Rows { count: taps - 1, width });
        let weight = self.vector(taps * width, 0.0, 0.6);
        let bias = if self.chance(40) { Some(self.vector(width, 0.0, 0.2)) } else { None };
        let out = self.value(width, Rows::Batch);
        self.push(Op::Convolve(Convolution { state, x, taps, weight, bias, out }));
        out
    }

    /// A scan over convolved heads, in place of an attention.
    pub fn scanned(&mut self, x: ValueId) -> ValueId {
        let (key_heads, group) = (1 + self.below(3), 1 + self.below(3));
        // As models have it, with a norm and a gated unit behind, or in parts.
        let is_layer = self.chance(40);
        let (heads, rows) = (key_heads * group, if is_layer { [32, 64, 33] } else { [8, 16, 33] }[self.below(3)]);
        let cols = if is_layer { [32, 64, 48, 64, 128, 160] } else { [8, 16, 48, 64, 100, 160] }[self.below(6)];
        let state = self.state(Shape::Matrices { heads, rows, cols });
        let unit = |builder: &mut Builder, x: ValueId, head_dim: usize, scale: f32| {
            let weight = builder.vector(head_dim, scale, 0.05);
            let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
            builder.push(Op::HeadNorm { x, head_dim, norm });
        };
        let widths = [(key_heads * rows, rows), (key_heads * rows, rows), (heads * cols, cols)];
        let gate = is_layer.then(|| self.project(x, heads * cols));
        let both = self.project(x, 2 * heads);
        let mut half = |first: usize| {
            let out = self.value(heads, Rows::Batch);
            self.push(Op::TakeHeads { x: both, part: HeadPart { each: 2 * group, first, count: group }, out });
            out
        };
        let (decay, strength) = (half(0), half(group));
        let [queries, keys, values] = if is_layer {
            let projected = widths.map(|(width, _)| self.project(x, width));
            let taps = 2 + self.below(4);
            let all = projected.map(|x| self.convolved_by(x, taps));
            all.into_iter().for_each(|x| self.push(Op::Activate { kind: Activation::Silu, x }));
            for x in &all[..2] {
                unit(self, *x, rows, 1.0 / (rows as f32).sqrt());
            }
            all
        } else {
            widths.map(|(width, head_dim)| {
                let x = self.project(x, width);
                let x = if self.chance(70) { self.convolved(x) } else { x };
                unit(self, x, head_dim, 1.0 / (head_dim as f32).sqrt());
                x
            })
        };
        let strength = if self.chance(60) { Strength::Delta(strength) } else { Strength::Step };
        let (bias, rate) = (self.vector(heads, -1.0, 1.0), self.vector(heads, -1.5, 1.4));
        let skip = if self.chance(50) { Some(self.vector(heads, 0.0, 1.0)) } else { None };
        let (is_tiled, out) = (self.chance(50), self.value(heads * cols, Rows::Batch));
        self.push(Op::Scan(Scan {
            state,
            queries,
            keys,
            values,
            decay,
            strength,
            bias,
            rate,
            skip,
            key_heads,
            is_tiled,
            out,
        }));
        let Some(gate) = gate else { return out };
        unit(self, out, cols, 1.0);
        self.push(Op::Gate { kind: Activation::Silu, gate, up: out });
        gate
    }
}
