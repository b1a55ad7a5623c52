//! Programs in plain f64, op by op as `plan::op` defines them: what every other computation of a program is compared with.

use half::f16;
use segno::arch::rope::RopeLayout;
use segno::backend::{KvType, Row};
use segno::kv::q8::{self, plain::rotate};
use segno::kv::state::Shape;
use segno::plan::op::{
    Activation, AttentionKind, AttentionMask, Convolution, ExpertProduct, Experts, HeadPart, Index, Norm, NormKind,
    RopeId, Routing, Rows, Scan, Score, Strength,
};
use segno::plan::{MatrixId, Op, Program, ValueId, VectorId, program::Weight};
use segno::quant::{DType, reference};
use std::f32::consts::LOG2_E;

/// The rows of a value.
type Matrix = Vec<Vec<f64>>;

/// What is rounded on the way; all else is as exact as f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rounding {
    /// Keys and values to what the cache holds.
    pub cache: Option<KvType>,
    /// What quantized matrices multiply to 8-bit blocks.
    pub activations: bool,
    /// Queries, times the scale and log2(e), to 16-bit floats.
    pub queries: bool,
}

/// A program, and the keys and values of all its sequences.
pub struct Plain<'a> {
    program: &'a Program,
    rounding: Rounding,
    matrices: Vec<Vec<f32>>,
    values: Vec<Matrix>,
    /// By layer and slot, a row of keys and one of values for each position.
    cache: Vec<Vec<Vec<[Vec<f64>; 2]>>>,
    /// By state and slot, for each position the row that was convolved, or the matrices behind it.
    states: Vec<Vec<Matrix>>,
}

/// What a head becomes in a cache of 8 bits.
fn in_8_bits(head: &[f64]) -> Vec<f64> {
    let block = |block: &[f64]| {
        let most = block.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        let scale = f16::from_f64(most / 127.0).to_f64();
        let rounded =
            |v: &f64| if scale > 0.0 { (v / scale).round_ties_even().clamp(-127.0, 127.0) * scale } else { 0.0 };
        block.iter().map(rounded).collect::<Vec<f64>>()
    };
    rotate(&rotate(head).chunks(q8::BLOCK).flat_map(block).collect::<Vec<f64>>())
}

impl<'a> Plain<'a> {
    pub fn new(program: &'a Program, rounding: Rounding, slots: usize) -> Plain<'a> {
        let decoded = |weight: &Weight| {
            let mut values = vec![0.0; weight.rows * weight.cols];
            reference::decode(weight.dtype, &weight.bytes, &mut values);
            values
        };
        Plain {
            program,
            rounding,
            matrices: program.matrices.iter().map(decoded).collect(),
            values: vec![Matrix::new(); program.values.len()],
            cache: vec![vec![Vec::new(); slots]; program.kv.count()],
            states: vec![vec![Matrix::new(); slots]; program.states.len()],
        }
    }

    /// The logits of the rows of a pass that `outputs` names; without any the pass ends where the cache is filled.
    pub fn pass(&mut self, rows: &[Row], outputs: &[u32]) -> Matrix {
        let stores = |op: &Op| matches!(op, Op::StoreKv { .. } | Op::Convolve(_) | Op::Scan(_));
        let stored = self.program.ops.iter().rposition(stores).map_or(0, |last| last + 1);
        let end = if outputs.is_empty() { stored } else { self.program.ops.len() };
        let program = self.program;
        self.run(&program.ops[..end], rows, outputs);
        self.values[self.program.logits.expect("logits").0].clone()
    }

    /// The vectors of the rows of a pass that `outputs` names, as the last norm gives them.
    pub fn vectors(&mut self, rows: &[Row], outputs: &[u32]) -> Matrix {
        let program = self.program;
        let embedding = program.embedding.as_ref().expect("embeddings");
        self.run(&program.ops[..embedding.after], rows, &[]);
        self.run(&embedding.ops, rows, &[]);
        outputs.iter().map(|&row| self.of(embedding.tokens)[row as usize].clone()).collect()
    }

    fn run(&mut self, ops: &[Op], rows: &[Row], outputs: &[u32]) {
        for op in ops {
            if let Op::StoreKv { layer, keys, values } = *op {
                self.store(layer, keys, values, rows);
                continue;
            }
            let written = op.writes().expect("all others write");
            self.values[written.0] = match op {
                Op::Convolve(convolution) => self.convolved(convolution, rows),
                Op::Scan(scan) => self.scanned(scan, rows),
                _ => self.computed(op, rows, outputs),
            };
        }
    }

    fn of(&self, id: ValueId) -> &Matrix {
        &self.values[id.0]
    }

    fn vector(&self, id: VectorId) -> impl Fn(usize) -> f64 + '_ {
        let vector = &self.program.vectors[id.0];
        |index| f64::from(vector[index])
    }

    /// What an op makes of the values that it reads.
    fn computed(&self, op: &Op, rows: &[Row], outputs: &[u32]) -> Matrix {
        let each = |x: ValueId, change: &dyn Fn(&[f64]) -> Vec<f64>| self.of(x).iter().map(|row| change(row)).collect();
        let zip = |x: ValueId, y: ValueId, change: &dyn Fn(f64, f64) -> f64| {
            let rows = self.of(x).iter().zip(self.of(y));
            // One element stands for a whole row.
            rows.map(|(x, y)| x.iter().zip(y.iter().cycle()).map(|(&x, &y)| change(x, y)).collect()).collect()
        };
        match *op {
            Op::Embed { table, index, .. } => {
                let of = |row: &Row| match index {
                    Index::Token => row.token as usize,
                    Index::Position => row.position as usize,
                    Index::First => 0,
                };
                rows.iter().map(|row| self.weights(table, of(row)).collect()).collect()
            }
            Op::Scale { x, factor } => each(x, &|row| row.iter().map(|v| v * f64::from(factor)).collect()),
            Op::Norm { x, norm, .. } => each(x, &|row| self.normed(&norm, row)),
            Op::GroupNorm { x, groups, norm, .. } => each(x, &|row| self.normed_groups(&norm, groups, row)),
            Op::MatMul { x, matrix, bias, .. } => each(x, &|row| self.product(row, matrix, bias)),
            Op::HeadMatMul { x, part, matrix, .. } => each(x, &|row| self.head_product(row, part, matrix)),
            Op::JoinHeads { x, part, y, .. } => {
                let joined = |(x, y): (&Vec<f64>, &Vec<f64>)| {
                    let (each, heads) = (part.each, x.len() / part.each);
                    let own = y.len() / heads;
                    let head =
                        |head: usize| [&x[head * each + part.first..][..part.count], &y[head * own..][..own]].concat();
                    (0..heads).flat_map(head).collect()
                };
                self.of(x).iter().zip(self.of(y)).map(joined).collect()
            }
            Op::TakeHeads { x, part, .. } => {
                let head = |head: &[f64]| head[part.first..part.first + part.count].to_vec();
                each(x, &|row| row.chunks(part.each).flat_map(head).collect())
            }
            Op::HeadNorm { x, head_dim, norm } => {
                each(x, &|row| row.chunks(head_dim).flat_map(|head| self.normed(&norm, head)).collect())
            }
            Op::Rope { x, head_dim, table } => {
                self.of(x).iter().zip(rows).map(|(x, row)| self.rotated(x, head_dim, row.position, table)).collect()
            }
            Op::Temperature { x, factor, period } => {
                let by = |row: &Row| 1.0 + f64::from(factor) * f64::from(1 + row.position / period).ln();
                self.of(x).iter().zip(rows).map(|(x, row)| x.iter().map(|v| v * by(row)).collect()).collect()
            }
            Op::Attention { kind, queries, .. } => {
                self.of(queries).iter().zip(rows).map(|(x, row)| self.attended(&kind, x, row)).collect()
            }
            Op::Gate { kind, gate, up } => zip(gate, up, &|gate, up| gated(kind, gate, up)),
            Op::Activate { kind, x } => each(x, &|row| row.iter().map(|&v| activated(kind, v)).collect()),
            Op::Add { x, y } => zip(x, y, &|x, y| x + y),
            Op::Mul { x, y } => zip(x, y, &|x, y| x * y),
            Op::MulSigmoid { x, gate } => zip(x, gate, &|x, gate| x / (1.0 + (-gate).exp())),
            Op::Route { logits, routing, choice } => {
                each(logits, &|row| self.routed(&routing, row, self.program.chosen(choice)))
            }
            Op::ExpertMatMul(ExpertProduct { x, choice, experts, scale, bias, out }) => {
                self.expert_products(x, choice, experts, scale, bias, self.program.values[out.0].width)
            }
            Op::WeightedSum { x, choice, out } => self.weighted_sum(x, choice, self.program.values[out.0].width),
            Op::Softcap { x, cap } => {
                let cap = f64::from(cap);
                each(x, &|row| row.iter().map(|v| cap * (v / cap).tanh()).collect())
            }
            Op::SelectRows { x, .. } => outputs.iter().map(|&row| self.of(x)[row as usize].clone()).collect(),
            _ => unreachable!("none of these here"),
        }
    }

    /// A row of a matrix.
    fn weights(&self, matrix: MatrixId, row: usize) -> impl Iterator<Item = f64> + '_ {
        let cols = self.program.matrices[matrix.0].cols;
        self.matrices[matrix.0][row * cols..][..cols].iter().map(|&w| f64::from(w))
    }

    fn dot(&self, matrix: MatrixId, row: usize, x: &[f64]) -> f64 {
        self.weights(matrix, row).zip(x).map(|(w, x)| w * x).sum()
    }

    /// A row as a matrix multiplies it.
    fn multiplied(&self, matrix: MatrixId, x: &[f64]) -> Vec<f64> {
        let is_quantized = !matches!(self.program.matrices[matrix.0].dtype, DType::F32 | DType::F16 | DType::BF16);
        if !(self.rounding.activations && is_quantized) {
            return x.to_vec();
        }
        let rounded = |block: &[f64]| {
            let unit = block.iter().fold(0.0, |most: f64, v| most.max(v.abs())) / 127.0;
            block
                .iter()
                .map(|v| if unit > 0.0 { (v / unit).round_ties_even() * unit } else { 0.0 })
                .collect::<Vec<f64>>()
        };
        x.chunks(32).flat_map(rounded).collect()
    }

    fn product(&self, x: &[f64], matrix: MatrixId, bias: Option<VectorId>) -> Vec<f64> {
        let x = self.multiplied(matrix, x);
        let bias = |row| bias.map_or(0.0, |bias| self.vector(bias)(row));
        (0..self.program.matrices[matrix.0].rows).map(|row| self.dot(matrix, row, &x) + bias(row)).collect()
    }

    fn head_product(&self, x: &[f64], part: HeadPart, matrix: MatrixId) -> Vec<f64> {
        let heads = x.len() / part.each;
        let each = self.program.matrices[matrix.0].rows / heads;
        let head = |head: usize| {
            let x = self.multiplied(matrix, &x[head * part.each + part.first..][..part.count]);
            (0..each).map(|row| self.dot(matrix, head * each + row, &x)).collect::<Vec<f64>>()
        };
        (0..heads).flat_map(head).collect()
    }

    /// The norm of each of several equal parts of a row.
    fn normed_groups(&self, norm: &Norm, groups: usize, x: &[f64]) -> Vec<f64> {
        let each = x.len() / groups;
        x.chunks(each).enumerate().flat_map(|(group, part)| self.normed_part(norm, group * each, part)).collect()
    }

    fn normed(&self, norm: &Norm, x: &[f64]) -> Vec<f64> {
        self.normed_part(norm, 0, x)
    }

    /// The norm of a part of a row that begins at the element `first`.
    fn normed_part(&self, norm: &Norm, first: usize, x: &[f64]) -> Vec<f64> {
        let count = x.len() as f64;
        let center = if norm.kind == NormKind::Layer { x.iter().sum::<f64>() / count } else { 0.0 };
        let square = x.iter().map(|v| (v - center).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (square + f64::from(norm.eps)).sqrt();
        let bias = |index| norm.bias.map_or(0.0, |bias| self.vector(bias)(index));
        let weight = self.vector(norm.weight);
        x.iter()
            .enumerate()
            .map(|(index, v)| (v - center) * factor * weight(first + index) + bias(first + index))
            .collect()
    }

    fn rotated(&self, x: &[f64], dim: usize, position: u32, table: RopeId) -> Vec<f64> {
        let rope = &self.program.ropes[table.0];
        let (half, mut x) = (rope.frequencies.len(), x.to_vec());
        for head in x.chunks_mut(dim) {
            for (index, frequency) in rope.frequencies.iter().enumerate() {
                let (first, second) = match rope.layout {
                    RopeLayout::Pairs => (2 * index, 2 * index + 1),
                    RopeLayout::Halves => (index, index + half),
                };
                let (sin, cos) = (f64::from(position) * f64::from(*frequency)).sin_cos();
                let (a, b, by) = (head[first], head[second], f64::from(rope.magnitude));
                (head[first], head[second]) = ((a * cos - b * sin) * by, (a * sin + b * cos) * by);
            }
        }
        x
    }

    fn store(&mut self, layer: usize, keys: ValueId, values: ValueId, rows: &[Row]) {
        let sizes = self.program.kv.of(layer);
        let rounded = |row: &Vec<f64>, dim| match self.rounding.cache {
            Some(KvType::F16) => row.iter().map(|&v| f16::from_f64(v).to_f64()).collect(),
            Some(KvType::Q8) => row.chunks(dim).flat_map(in_8_bits).collect(),
            Some(KvType::F32) | None => row.clone(),
        };
        for (index, row) in rows.iter().enumerate() {
            let own = [
                rounded(&self.values[keys.0][index], sizes.head_dim),
                rounded(&self.values[values.0][index], sizes.value_dim),
            ];
            let slot = &mut self.cache[layer][row.slot as usize];
            slot.truncate(row.position as usize);
            assert_eq!(slot.len(), row.position as usize, "positions come in their order");
            slot.push(own);
        }
    }

    fn convolved(&mut self, convolution: &Convolution, rows: &[Row]) -> Matrix {
        let Convolution { state, x, taps, weight, bias, .. } = *convolution;
        let mut out = Matrix::new();
        for (index, row) in rows.iter().enumerate() {
            let x = self.values[x.0][index].clone();
            let seen = &mut self.states[state.0][row.slot as usize];
            seen.truncate(row.position as usize);
            assert_eq!(seen.len(), row.position as usize, "positions come in their order");
            seen.push(x);
            let (seen, last) = (&self.states[state.0][row.slot as usize], row.position as usize);
            let width = seen[0].len();
            let (weight, bias) = (self.vector(weight), bias.map(|bias| self.vector(bias)));
            let sum = |column: usize| {
                let tap = |tap: usize| (last + tap + 1).checked_sub(taps).map_or(0.0, |row| seen[row][column]);
                let sum: f64 = (0..taps).map(|index| weight(index * width + column) * tap(index)).sum();
                sum + bias.as_ref().map_or(0.0, |bias| bias(column))
            };
            out.push((0..width).map(sum).collect());
        }
        out
    }

    fn scanned(&mut self, scan: &Scan, rows: &[Row]) -> Matrix {
        let Shape::Matrices { heads, rows: keys, cols } = self.program.states[scan.state.0] else {
            panic!("a scan has matrices")
        };
        let mut out = Matrix::new();
        for (index, row) in rows.iter().enumerate() {
            let (position, own) = (row.position as usize, |id: ValueId| &self.values[id.0][index]);
            let before = &self.states[scan.state.0][row.slot as usize][..position];
            let mut state = before.last().cloned().unwrap_or(vec![0.0; heads * keys * cols]);
            let mut sums = vec![0.0; heads * cols];
            for head in 0..heads {
                let step = (own(scan.decay)[head] + self.vector(scan.bias)(head)).exp().ln_1p();
                let kept = (self.vector(scan.rate)(head) * step).exp();
                let matrix = &mut state[head * keys * cols..][..keys * cols];
                matrix.iter_mut().for_each(|element| *element *= kept);
                let first = scan.key_head(head, heads) * keys;
                let (key, query) = (&own(scan.keys)[first..][..keys], &own(scan.queries)[first..][..keys]);
                for column in 0..cols {
                    let value = own(scan.values)[head * cols + column];
                    let times = |by: &[f64], matrix: &[f64]| {
                        by.iter().enumerate().map(|(row, by)| by * matrix[row * cols + column]).sum::<f64>()
                    };
                    let new = match scan.strength {
                        Strength::Step => step * value,
                        Strength::Delta(by) => (value - times(key, matrix)) / (1.0 + (-own(by)[head]).exp()),
                    };
                    key.iter().enumerate().for_each(|(row, key)| matrix[row * cols + column] += key * new);
                    let skip = scan.skip.map_or(0.0, |skip| self.vector(skip)(head) * value);
                    sums[head * cols + column] = times(query, matrix) + skip;
                }
            }
            let kept = &mut self.states[scan.state.0][row.slot as usize];
            kept.truncate(position);
            kept.push(state);
            out.push(sums);
        }
        out
    }

    fn attended(&self, kind: &AttentionKind, queries: &[f64], row: &Row) -> Vec<f64> {
        let (kv, own) = (self.program.kv.of(kind.layer), row.position as usize + 1);
        let cached = &self.cache[kind.layer][row.slot as usize];
        let end = match kind.mask {
            AttentionMask::Causal => own,
            AttentionMask::Borrowed => own - 1,
            AttentionMask::Bidirectional => cached.len().min(own + kind.window.unwrap_or(cached.len()) - 1),
        };
        let seen = &cached[kind.window.map_or(0, |window| own.saturating_sub(window))..end];
        let unit = f64::from(kind.scale * LOG2_E);
        let halves = |q: &f64| f16::from_f64(q * unit).to_f64() / f64::from(LOG2_E);
        let scaled: Vec<f64> = match self.rounding {
            Rounding { queries: false, .. } => queries.iter().map(|q| q * f64::from(kind.scale)).collect(),
            // Rounded as they are multiplied, which is rotated.
            Rounding { cache: Some(KvType::Q8), .. } => {
                let rounded = |head| rotate(&rotate(head).iter().map(halves).collect::<Vec<f64>>());
                queries.chunks(kv.head_dim).flat_map(rounded).collect()
            }
            _ => queries.iter().map(halves).collect(),
        };
        let head = |head: usize| {
            let (query, shared) = (&scaled[head * kv.head_dim..][..kv.head_dim], head / kv.group());
            let score = |[key, _]: &[Vec<f64>; 2]| {
                let key = &key[shared * kv.head_dim..][..kv.head_dim];
                let score = query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
                kind.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let sink = kind.sinks.map(|sinks| self.vector(sinks)(head));
            let most = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().copied().chain(sink).map(|score| (score - most).exp()).sum();
            let mut out = vec![0.0; kv.value_dim];
            for (score, [_, value]) in scores.iter().zip(seen) {
                let weight = (score - most).exp() / sum;
                let value = &value[shared * kv.value_dim..][..kv.value_dim];
                out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v);
            }
            out
        };
        (0..kv.heads).flat_map(head).collect()
    }

    fn routed(&self, routing: &Routing, logits: &[f64], count: usize) -> Vec<f64> {
        let scores = match routing.score {
            Score::Softmax => softmax(logits),
            Score::Sigmoid => logits.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect(),
            Score::ChosenSoftmax => logits.to_vec(),
        };
        let rank = |index: usize| scores[index] + routing.bias.map_or(0.0, |bias| self.vector(bias)(index));
        let best = |of: &mut Vec<usize>, rank: &dyn Fn(usize) -> f64| {
            of.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)).then(a.cmp(&b)))
        };
        let mut experts: Vec<usize> = (0..logits.len()).collect();
        if let Some(groups) = routing.groups {
            let size = logits.len() / groups.count;
            let sum = |group: usize| {
                let mut own: Vec<usize> = (group * size..(group + 1) * size).collect();
                best(&mut own, &rank);
                own.iter().take(groups.best).map(|&index| rank(index)).sum::<f64>()
            };
            let mut order: Vec<usize> = (0..groups.count).collect();
            best(&mut order, &sum);
            order.truncate(groups.kept);
            experts.retain(|index| order.contains(&(index / size)));
        }
        best(&mut experts, &rank);
        experts.truncate(count);
        let mut weights: Vec<f64> = experts.iter().map(|&index| scores[index]).collect();
        if routing.score == Score::ChosenSoftmax {
            weights = softmax(&weights);
        }
        let sum = if routing.normalizes { weights.iter().sum::<f64>().max(1.0 / 16384.0) } else { 1.0 };
        let weights = weights.iter().map(|weight| weight / sum * f64::from(routing.scale));
        experts.iter().map(|&index| index as f64).chain(weights).collect()
    }

    /// The experts of each row of a choice.
    fn experts_of(&self, choice: ValueId) -> impl Iterator<Item = (usize, usize)> + '_ {
        let count = self.program.chosen(choice);
        let rows = self.of(choice).iter().enumerate();
        rows.flat_map(move |(row, choice)| choice[..count].iter().map(move |&expert| (row, expert as usize)))
    }

    fn expert_products(
        &self,
        x: ValueId,
        choice: ValueId,
        experts: Experts,
        scale: Option<VectorId>,
        bias: Option<VectorId>,
        width: usize,
    ) -> Matrix {
        let is_on_pairs = matches!(self.program.values[x.0].rows, Rows::Chosen(_));
        let product = |(pair, (row, expert)): (usize, (usize, usize))| {
            let x = self.multiplied(experts.matrix, &self.of(x)[if is_on_pairs { pair } else { row }]);
            let (first, by) =
                (expert * experts.each + experts.first, scale.map_or(1.0, |scale| self.vector(scale)(expert)));
            let bias = |row: usize| bias.map_or(0.0, |bias| self.vector(bias)(expert * width + row));
            (0..width).map(|row| by * self.dot(experts.matrix, first + row, &x) + bias(row)).collect()
        };
        self.experts_of(choice).enumerate().map(product).collect()
    }

    fn weighted_sum(&self, x: ValueId, choice: ValueId, width: usize) -> Matrix {
        let count = self.program.chosen(choice);
        let sum = |(row, choice): (usize, &Vec<f64>)| {
            let mut out = vec![0.0; width];
            for (pair, weight) in self.of(x)[row * count..].iter().zip(&choice[count..]) {
                out.iter_mut().zip(pair).for_each(|(out, v)| *out += weight * v);
            }
            out
        };
        self.of(choice).iter().enumerate().map(sum).collect()
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = x.iter().map(|v| (v - most).exp()).sum();
    x.iter().map(|v| (v - most).exp() / sum).collect()
}

fn activated(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::GeluErf => x / 2.0 * (1.0 + erf(x / 2f64.sqrt())),
        Activation::SquaredRelu => x.max(0.0).powi(2),
        Activation::ClampedSilu { .. } => unreachable!("validated: it takes two values"),
    }
}

fn gated(kind: Activation, gate: f64, up: f64) -> f64 {
    let Activation::ClampedSilu { limit, slope } = kind else { return activated(kind, gate) * up };
    let (limit, gate) = (f64::from(limit), gate.min(f64::from(limit)));
    gate / (1.0 + (-f64::from(slope) * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
}

/// The error function by a series all of whose terms have one sign (Abramowitz and Stegun, 7.1.6).
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    sum * (-x * x).exp() * 2.0 / std::f64::consts::PI.sqrt()
}
