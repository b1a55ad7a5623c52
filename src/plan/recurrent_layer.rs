//! What layers without attention have in its place, and the attention of their families that has a gate: see [`crate::arch::recurrent`].

use super::build::Builder;
use super::op::{Activation, Convolution, HeadPart, Norm, NormKind, Op, Rows, Scan, StateId, Strength, ValueId};
use super::tensors::{PLAN, Part};
use crate::arch::heads::Heads;
use crate::arch::names::{in_layer, layer};
use crate::arch::recurrent::{Recurrence, Recurrent, ValueHeads};
use crate::arch::spec::Presence;
use crate::error::{Error, Result, push};
use crate::kv::state::Shape;
use std::ops::Range;

/// What is added to the square of a head of queries or keys before a scan, whatever the norms of layers add.
const SQUARE_EPS: f32 = 1e-6;

impl Builder<'_> {
    /// What the block of layer `index`, which has no attention, makes of `input`.
    pub(super) fn recurrent(&mut self, index: usize, recurrent: &Recurrent, input: ValueId) -> Result<ValueId> {
        match recurrent.kind {
            Recurrence::ShortConvolution => self.short_convolution(index, recurrent.taps, input),
            Recurrence::StateSpace => self.state_space(index, recurrent, input),
            Recurrence::DeltaNet(heads) => self.delta_net(index, recurrent, heads, input),
        }
    }

    /// A selective state space: keys and queries are the ways into the state and out of it, the same for all heads of a group.
    fn state_space(&mut self, index: usize, sizes: &Recurrent, input: ValueId) -> Result<ValueId> {
        let &Recurrent { taps, key_heads, key_dim, value_heads, value_dim, .. } = sizes;
        let (keys, width) = (key_heads * key_dim, value_heads * value_dim);
        let (of, channels) = (2 * width + 2 * keys + value_heads, width + 2 * keys);
        let (name, none) = (in_layer(index, layer::SPACE_IN), Presence::Absent);
        let gate = self.project_part(&name, input, &Part { taken: 0..width, of }, none)?;
        let decay = self.project_part(&name, input, &Part { taken: width + channels..of, of }, none)?;
        let parts = [0..width, width..width + keys, width + keys..channels];
        let mut project = |taken: &Range<usize>| {
            let x = Part { taken: width + taken.start..width + taken.end, of };
            self.project_part(&name, input, &x, none)
        };
        let projected = [project(&parts[0])?, project(&parts[1])?, project(&parts[2])?];
        let parts = parts.map(|taken| Part { taken, of: channels });
        let [values, keys, queries] = self.convolved(index, projected, taps, &parts, Presence::Optional)?;
        let rate = self.tensors.table(&in_layer(index, layer::SCAN_RATE), 1, value_heads)?;
        let bias = self.tensors.vector(&in_layer(index, layer::SCAN_STEP), value_heads)?;
        let skip = Some(self.tensors.table(&in_layer(index, layer::SPACE_SKIP), 1, value_heads)?);
        let state = self.state(Shape::Matrices { heads: value_heads, rows: key_dim, cols: value_dim })?;
        let (out, strength, is_tiled) = (self.value(width, Rows::Batch)?, Strength::Step, false);
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
        }))?;
        self.push(Op::Gate { kind: Activation::Silu, gate, up: out })?;
        let normed = self.space_norm(index, gate, key_heads)?;
        self.project(&in_layer(index, layer::SCAN_OUT), normed, self.hparams.hidden, none)
    }

    /// The norm of what a state space gives, where the model has one: of each group of heads by itself.
    fn space_norm(&mut self, index: usize, x: ValueId, groups: usize) -> Result<ValueId> {
        let (width, name) = (self.values[x.0].width, format!("{}.weight", in_layer(index, layer::SCAN_NORM)));
        if !self.tensors.has(&name, self.arch.space_norm)? {
            return Ok(x);
        }
        if !width.is_multiple_of(groups) {
            return Err(Error::Format(format!("{groups} groups do not divide a state space of {width} elements")));
        }
        let weight = self.tensors.table(&name, width / groups, groups)?;
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: self.hparams.norm_eps };
        let out = self.value(width, Rows::Batch)?;
        self.push(if groups == 1 { Op::Norm { x, norm, out } } else { Op::GroupNorm { x, groups, norm, out } })?;
        Ok(out)
    }

    /// `second gate * convolution(first gate * values)`
    fn short_convolution(&mut self, index: usize, taps: usize, input: ValueId) -> Result<ValueId> {
        let (hidden, name) = (self.hparams.hidden, in_layer(index, layer::SHORT_IN));
        let mut part = |part: usize| {
            let part = Part { taken: part * hidden..(part + 1) * hidden, of: 3 * hidden };
            self.project_part(&name, input, &part, Presence::Absent)
        };
        let [first, second, values] = [part(0)?, part(1)?, part(2)?];
        self.push(Op::Mul { x: values, y: first })?;
        let name = in_layer(index, layer::SHORT_CONVOLUTION);
        let mixed = self.convolve(&name, values, taps, &Part::all(hidden), Presence::Absent)?;
        self.push(Op::Mul { x: mixed, y: second })?;
        self.project(&in_layer(index, layer::SHORT_OUT), mixed, hidden, Presence::Absent)
    }

    /// The gated delta rule over heads that a convolution has mixed.
    fn delta_net(&mut self, index: usize, sizes: &Recurrent, heads: ValueHeads, input: ValueId) -> Result<ValueId> {
        let &Recurrent { taps, key_heads, key_dim, value_heads, value_dim, .. } = sizes;
        let (keys, width) = (key_heads * key_dim, value_heads * value_dim);
        let of = 2 * keys + width;
        let parts = [0..keys, keys..2 * keys, 2 * keys..of].map(|taken| Part { taken, of });
        let mut project = |part| self.project_part(&in_layer(index, layer::QKV), input, part, Presence::Absent);
        let projected = [project(&parts[0])?, project(&parts[1])?, project(&parts[2])?];
        let gate = self.project(&in_layer(index, layer::SCAN_GATE), input, width, Presence::Absent)?;
        let [strength, decay] = self.scan_gates(index, sizes, heads, input)?;
        let [queries, keys, values] = self.convolved(index, projected, taps, &parts, Presence::Absent)?;
        // Unit vectors; the scale of products goes into those of queries.
        let unit = 1.0 / (key_dim as f32).sqrt();
        for (x, length) in [(queries, unit), (keys, 1.0)] {
            let weight = self.tensors.constant(length * unit, key_dim)?;
            let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: SQUARE_EPS / key_dim as f32 };
            self.push(Op::HeadNorm { x, head_dim: key_dim, norm })?;
        }
        let rate = self.tensors.vector(&in_layer(index, layer::SCAN_RATE), value_heads)?;
        let bias = self.tensors.vector(&in_layer(index, layer::SCAN_STEP), value_heads)?;
        let state = self.state(Shape::Matrices { heads: value_heads, rows: key_dim, cols: value_dim })?;
        let out = self.value(width, Rows::Batch)?;
        let strength = Strength::Delta(strength);
        let (is_tiled, skip) = (heads == ValueHeads::Tiled, None);
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
        }))?;
        let norm = self.norm_of(&in_layer(index, layer::SCAN_NORM), value_dim, NormKind::Rms, Presence::Absent)?;
        self.push(Op::HeadNorm { x: out, head_dim: value_dim, norm })?;
        self.push(Op::Gate { kind: Activation::Silu, gate, up: out })?;
        self.project(&in_layer(index, layer::SCAN_OUT), gate, self.hparams.hidden, Presence::Absent)
    }

    /// Queries, keys and values of a scan: parts of what was projected, convolved and activated, each op for all three at once, which suits backends
    /// that do neighbouring ops together.
    fn convolved(
        &mut self,
        index: usize,
        projected: [ValueId; 3],
        taps: usize,
        parts: &[Part; 3],
        bias: Presence,
    ) -> Result<[ValueId; 3]> {
        let name = in_layer(index, layer::SCAN_CONVOLUTION);
        let mut all = projected;
        for (x, part) in all.iter_mut().zip(parts) {
            *x = self.convolve(&name, *x, taps, part, bias)?;
        }
        for x in all {
            self.push(Op::Activate { kind: Activation::Silu, x })?;
        }
        Ok(all)
    }

    /// How much of the delta rule enters each head's state, and how much is kept.
    fn scan_gates(&mut self, index: usize, sizes: &Recurrent, heads: ValueHeads, x: ValueId) -> Result<[ValueId; 2]> {
        let &Recurrent { key_heads, value_heads, .. } = sizes;
        if heads == ValueHeads::Tiled {
            let mut project = |name| self.project(&in_layer(index, name), x, value_heads, Presence::Absent);
            return Ok([project(layer::SCAN_STRENGTH)?, project(layer::SCAN_DECAY)?]);
        }
        let both = self.project(&in_layer(index, layer::SCAN_GATES), x, 2 * value_heads, Presence::Absent)?;
        let count = value_heads / key_heads;
        let mut half = |first| self.take_heads(both, HeadPart { each: 2 * count, first, count });
        Ok([half(0)?, half(count)?])
    }

    /// Queries, keys and values, and the gate that stands behind each head of queries.
    pub(super) fn gated_queries(&mut self, index: usize, input: ValueId) -> Result<([ValueId; 3], Option<ValueId>)> {
        let Heads { heads, kv_heads, head_dim, .. } = self.hparams.heads[index];
        let mut project = |name, width| self.project(&in_layer(index, name), input, width, Presence::Absent);
        let both = project(layer::Q, 2 * heads * head_dim)?;
        let (keys, values) = (project(layer::K, kv_heads * head_dim)?, project(layer::V, kv_heads * head_dim)?);
        let mut half = |first| self.take_heads(both, HeadPart { each: 2 * head_dim, first, count: head_dim });
        Ok(([half(0)?, keys, values], Some(half(head_dim)?)))
    }

    pub(super) fn take_heads(&mut self, x: ValueId, part: HeadPart) -> Result<ValueId> {
        let out = self.value(self.values[x.0].width / part.each * part.count, Rows::Batch)?;
        self.push(Op::TakeHeads { x, part, out })?;
        Ok(out)
    }

    /// Convolves the columns `part` of those that the tensor `name` has weights for.
    fn convolve(&mut self, name: &str, x: ValueId, taps: usize, part: &Part, bias: Presence) -> Result<ValueId> {
        let width = part.taken.len();
        let weight = self.tensors.taps(&format!("{name}.weight"), taps, part)?;
        let bias = self.bias(name, part, bias)?;
        let state = self.state(Shape::Rows { count: taps - 1, width })?;
        let out = self.value(width, Rows::Batch)?;
        self.push(Op::Convolve(Convolution { state, x, taps, weight, bias, out }))?;
        Ok(out)
    }

    fn state(&mut self, shape: Shape) -> Result<StateId> {
        push(&mut self.states, shape, PLAN)?;
        Ok(StateId(self.states.len() - 1))
    }
}
