//! Programs of all ops in random order, for tests of what an op's company must not change.

mod recurrent;

use segno::arch::rope::{Rope, RopeLayout};
use segno::format::{Bytes, Data};
use segno::kv::{HeadSizes, Layout};
use segno::plan::op::{
    Activation, AttentionKind, AttentionMask, ExpertProduct, Experts, Groups, HeadPart, Index, Kind, Norm, NormKind,
    RopeId, Routing, Rows, Score, Value,
};
use segno::plan::{MatrixId, Op, Program, ValueId, VectorId, program::Weight, validate};
use segno::quant::DType;
use segno::quant::synthetic::{Random, scaled_blocks};

const VOCAB: usize = 160;

/// A program on its way.
struct Builder {
    random: Random,
    /// For what came later, so that the rest of a program is as it was.
    later: Random,
    program: Program,
    dtypes: Vec<DType>,
    /// Values with a row for each of the batch that later ops may read.
    live: Vec<ValueId>,
    /// Whether some units are experts.
    has_experts: bool,
    /// Whether heads are multiplied by rows of their own, and values shorter than keys: no GPU runs that.
    is_latent: bool,
    /// Whether some layers have a state in place of keys and values.
    has_states: bool,
}

impl Builder {
    fn new(seed: u64) -> Builder {
        let mut random = Random::new(seed);
        let mut pick = |all: &[usize]| all[random.bits() as usize % all.len()];
        let (head_dim, kv_heads, group) = (pick(&[16, 48, 64, 80, 128, 256]), pick(&[1, 2]), pick(&[1, 2, 3]));
        let layers = pick(&[1, 2, 3]);
        let mut sizes = vec![HeadSizes::new(kv_heads * group, kv_heads, head_dim); layers];
        if seed / 2 % 8 == 1 {
            // Layers that differ; by numbers of their own, so that the rest is as it was.
            let mut random = Random::new(!seed);
            let mut pick = |all: &[usize]| all[random.bits() as usize % all.len()];
            for sizes in sizes.iter_mut().skip(1) {
                let kv_heads = pick(&[1, 2, 3]);
                *sizes = HeadSizes::new(kv_heads * pick(&[1, 2, 4]), kv_heads, pick(&[16, 48, 64, 80, 128, 256]));
            }
        }
        let dtypes = match pick(&[0, 1, 2, 3]) {
            0 => vec![DType::F32],
            1 => vec![DType::Q8_0, DType::Q4_0],
            2 => vec![DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::MXFP4],
            _ => vec![DType::Q8_0, DType::F16, DType::Q5_1, DType::BF16],
        };
        let program = Program { logits: Some(ValueId(0)), ..Program::new(Layout::new(sizes).unwrap()) };
        Builder {
            random,
            later: Random::new(seed ^ 0x5eed),
            program,
            dtypes,
            live: Vec::new(),
            has_experts: false,
            is_latent: false,
            has_states: false,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.bits() as usize % end
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn later_chance(&mut self, percent: u64) -> bool {
        self.later.bits() % 100 < percent
    }

    /// One of these widths, or where types have blocks of 256 columns of those.
    fn one_of(&mut self, widths: &[usize], of_blocks: &[usize]) -> usize {
        let all = if self.dtypes.contains(&DType::Q4_K) { of_blocks } else { widths };
        all[self.below(all.len())]
    }

    fn value(&mut self, width: usize, rows: Rows) -> ValueId {
        self.program.values.push(Value::floats(width, rows));
        ValueId(self.program.values.len() - 1)
    }

    fn width(&self, id: ValueId) -> usize {
        self.program.values[id.0].width
    }

    fn matrix(&mut self, rows: usize, cols: usize, spread: f32) -> MatrixId {
        let at = self.below(self.dtypes.len());
        // Rows are whole blocks.
        let dtype = if cols.is_multiple_of(self.dtypes[at].block_len()) { self.dtypes[at] } else { DType::F16 };
        let bytes = scaled_blocks(dtype, rows * cols / dtype.block_len(), spread, &mut self.random);
        let data = Data::copy(&bytes, &mut |_| Ok(())).unwrap();
        let bytes = Bytes::new(&data, 0..bytes.len()).unwrap();
        self.program.matrices.push(Weight { dtype, rows, cols, bytes });
        MatrixId(self.program.matrices.len() - 1)
    }

    fn vector(&mut self, len: usize, mean: f32, spread: f32) -> VectorId {
        let values = self.random.uniforms(len).into_iter().map(|v| mean + spread * v).collect();
        self.program.vectors.push(values);
        VectorId(self.program.vectors.len() - 1)
    }

    fn norm(&mut self, width: usize) -> Norm {
        let kind = if self.chance(70) { NormKind::Rms } else { NormKind::Layer };
        let weight = self.vector(width, 1.0, 0.3);
        let bias = if self.chance(25) { Some(self.vector(width, 0.0, 0.2)) } else { None };
        Norm { kind, weight, bias, eps: 1e-5 }
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    fn project(&mut self, x: ValueId, width: usize) -> ValueId {
        let (cols, rows) = (self.width(x), self.program.values[x.0].rows);
        let matrix = self.matrix(width, cols, 1.0 / (cols as f32).sqrt());
        let bias = if self.chance(25) { Some(self.vector(width, 0.0, 0.2)) } else { None };
        let out = self.value(width, rows);
        self.push(Op::MatMul { x, matrix, bias, out });
        out
    }

    fn normed(&mut self, x: ValueId) -> ValueId {
        let out = self.value(self.width(x), self.program.values[x.0].rows);
        let norm = self.norm(self.width(x));
        let groups = if self.is_latent { [1, 2, 4][self.below(3)] } else { 1 };
        let is_whole = groups == 1 || !self.width(x).is_multiple_of(groups);
        self.push(if is_whole { Op::Norm { x, norm, out } } else { Op::GroupNorm { x, groups, norm, out } });
        out
    }

    /// A rotation of heads of so many elements.
    fn rope(&mut self, head_dim: usize) -> RopeId {
        let fits = |program: &Program| {
            let ropes = program.ropes.iter().enumerate();
            ropes.filter(|(_, rope)| rope.dims() <= head_dim).map(|(at, _)| at).collect::<Vec<usize>>()
        };
        let is_full = self.program.ropes.len() >= 3;
        if !is_full || fits(&self.program).is_empty() {
            // The last one fits the smallest heads.
            let half = if is_full { 8 } else { head_dim / 2 };
            let dims = [half, half / 2][self.below(2)].max(1);
            let layout = [RopeLayout::Pairs, RopeLayout::Halves][self.below(2)];
            let frequencies = (0..dims).map(|i| 500f32.powf(-(i as f32) / dims as f32)).collect();
            self.program.ropes.push(Rope { layout, frequencies, magnitude: 1.0, long: None });
        }
        let fitting = fits(&self.program);
        RopeId(fitting[self.below(fitting.len())])
    }

    /// A few changes of heads in place, in any order.
    fn change_heads(&mut self, head_dim: usize, values: &[ValueId]) {
        for _ in 0..self.below(4) {
            let same = self.chance(60);
            let table = self.rope(head_dim);
            let norm = self.norm(head_dim);
            let kind = self.below(3);
            for &x in values.iter().take(if same { 2 } else { 1 }) {
                self.push(match kind {
                    0 => Op::HeadNorm { x, head_dim, norm },
                    1 => Op::Rope { x, head_dim, table },
                    _ => Op::Temperature { x, factor: 0.2, period: 37 },
                });
            }
        }
    }

    fn attention(&mut self, layer: usize, x: ValueId) -> ValueId {
        let kv = self.program.kv.of(layer);
        let head_dim = kv.head_dim;
        let queries = if self.is_latent { self.joined(x, kv) } else { self.project(x, kv.heads * kv.head_dim) };
        let keys = self.project(x, kv.kv_heads * kv.head_dim);
        let values = self.project(x, kv.kv_heads * kv.value_dim);
        if self.later_chance(25) {
            let norm = self.head_norm(kv.value_dim);
            self.push(Op::HeadNorm { x: values, head_dim: kv.value_dim, norm });
        }
        let (queries, keys) = if self.chance(80) {
            // Scores of random weights stay within what exponentials tell apart.
            let (of_queries, of_keys) = (self.head_norm(head_dim), self.head_norm(head_dim));
            self.push(Op::HeadNorm { x: queries, head_dim, norm: of_queries });
            self.push(Op::HeadNorm { x: keys, head_dim, norm: of_keys });
            (queries, keys)
        } else {
            (self.normed(queries), self.normed(keys))
        };
        self.change_heads(head_dim, &[queries, keys]);
        self.push(Op::StoreKv { layer, keys, values });
        let out = self.value(kv.heads * kv.value_dim, Rows::Batch);
        let window = [None, Some(7), Some(64), Some(150)][self.below(4)];
        let softcap = if self.chance(20) { Some(3.0) } else { None };
        let sinks = if self.chance(20) { Some(self.vector(kv.heads, 0.0, 2.0)) } else { None };
        let scale = [1.0, 0.7][self.below(2)] / (kv.head_dim as f32).sqrt();
        let kind = AttentionKind { layer, scale, mask: AttentionMask::Causal, window, softcap, sinks };
        self.push(Op::Attention { kind, queries, out });
        if self.later_chance(25) {
            self.attend_again(kind, x, out);
        }
        let part = HeadPart { each: kv.value_dim, first: 0, count: kv.value_dim };
        if self.is_latent { self.head_product(out, part, kv.heads, 24) } else { out }
    }

    fn head_norm(&mut self, head_dim: usize) -> Norm {
        let weight = self.vector(head_dim, 1.0, 0.2);
        Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-6 }
    }

    /// Adds to `out` the attention of other queries over the same keys and values.
    fn attend_again(&mut self, kind: AttentionKind, x: ValueId, out: ValueId) {
        let HeadSizes { heads, head_dim, .. } = self.program.kv.of(kind.layer);
        let (queries, norm, table) = (self.project(x, heads * head_dim), self.head_norm(head_dim), self.rope(head_dim));
        self.push(Op::HeadNorm { x: queries, head_dim, norm });
        if self.later_chance(70) {
            self.push(Op::Rope { x: queries, head_dim, table });
        }
        let again = self.value(self.width(out), Rows::Batch);
        self.push(Op::Attention { kind, queries, out: again });
        self.push(Op::Add { x: out, y: again });
    }

    /// Queries of a part of each head and of a product of the rest.
    fn joined(&mut self, x: ValueId, kv: HeadSizes) -> ValueId {
        let own = [8, 32][self.below(2)].min(kv.head_dim - 8);
        let each = 32 + own;
        let x = self.project(x, kv.heads * each);
        let y = self.head_product(x, HeadPart { each, first: own, count: 32 }, kv.heads, kv.head_dim - own);
        let out = self.value(kv.heads * kv.head_dim, Rows::Batch);
        self.push(Op::JoinHeads { x, part: HeadPart { each, first: 0, count: own }, y, out });
        out
    }

    fn head_product(&mut self, x: ValueId, part: HeadPart, heads: usize, width: usize) -> ValueId {
        let rows = heads * width;
        let (matrix, out) = (self.matrix(rows, part.count, 0.15), self.value(rows, Rows::Batch));
        self.push(Op::HeadMatMul { x, part, matrix, out });
        out
    }

    fn activation(&mut self, gates: bool) -> Activation {
        match self.below(if gates { 5 } else { 4 }) {
            0 => Activation::Silu,
            1 => Activation::GeluTanh,
            2 => Activation::GeluErf,
            3 => Activation::SquaredRelu,
            _ => Activation::ClampedSilu { limit: 1.5, slope: 1.7 },
        }
    }

    /// Experts of which each row has some, with a shared one beside them at times.
    fn experts(&mut self, x: ValueId) -> ValueId {
        let (count, out) = ([1, 3, 8, 12][self.below(4)], [32, 64, 160][self.below(3)]);
        let chosen = 1 + self.below(count.min(4));
        let logits = self.project(x, count);
        // The gate of a shared expert, which is computed in halves beside those of the others.
        let has_shared = self.chance(40);
        let shared_gate = (has_shared && self.chance(50)).then(|| self.bare(x, 1, None));
        let routing = Routing {
            score: [Score::Softmax, Score::Sigmoid, Score::ChosenSoftmax][self.below(3)],
            bias: if self.chance(30) { Some(self.vector(count, 0.0, 0.1)) } else { None },
            groups: (count == 12 && self.chance(50)).then_some(Groups { count: 4, kept: 2, best: 2 }),
            normalizes: self.chance(50),
            scale: [1.0, 1.5][self.below(2)],
        };
        let choice = self.value(2 * chosen, Rows::Batch);
        self.program.values[choice.0].kind = Kind::Choices;
        self.push(Op::Route { logits, routing, choice });
        let width = self.one_of(&[32, 96, 256], &[256, 512]);
        let gate = self.expert_product(x, choice, count, width);
        let kind;
        if self.chance(30) {
            kind = self.activation(false);
            self.push(Op::Activate { kind, x: gate });
        } else {
            let up = self.expert_product(x, choice, count, width);
            kind = self.activation(true);
            self.push(Op::Gate { kind, gate, up });
        }
        let dtype = self.program.matrices.last().map(|matrix| matrix.dtype);
        let shared = has_shared.then(|| {
            let width = self.one_of(&[32, 160, 256], &[256, 512]);
            let [gate, up] = [(); 2].map(|()| self.bare(x, width, dtype));
            let kind = if self.chance(80) { kind } else { Activation::GeluErf };
            self.push(Op::Gate { kind, gate, up });
            gate
        });
        let each = self.expert_product(gate, choice, count, out);
        let sum = self.value(out, Rows::Batch);
        self.push(Op::WeightedSum { x: each, choice, out: sum });
        if let Some(inner) = shared {
            let dtype = self.program.matrices.last().map(|matrix| matrix.dtype);
            let y = self.bare(inner, out, dtype);
            if let Some(gate) = shared_gate {
                self.push(Op::MulSigmoid { x: y, gate });
            }
            self.push(Op::Add { x: sum, y });
        } else if self.chance(40) {
            let shared = self.project(x, out);
            let gates = if self.chance(50) { 1 } else { out };
            let gate = self.project(x, gates);
            self.push(Op::MulSigmoid { x: shared, gate });
            self.push(Op::Add { x: sum, y: shared });
        }
        sum
    }

    /// A product without a bias, with a matrix of this type at most times.
    fn bare(&mut self, x: ValueId, width: usize, dtype: Option<DType>) -> ValueId {
        let (cols, kept) = (self.width(x), self.dtypes.clone());
        if let Some(dtype) = dtype.filter(|_| self.chance(80)) {
            self.dtypes = vec![dtype];
        }
        let matrix = self.matrix(width, cols, 1.0 / (cols as f32).sqrt());
        self.dtypes = kept;
        let out = self.value(width, Rows::Batch);
        self.push(Op::MatMul { x, matrix, bias: None, out });
        out
    }

    /// A product of each row with the matrix of its expert, or with some rows of it.
    fn expert_product(&mut self, x: ValueId, choice: ValueId, count: usize, width: usize) -> ValueId {
        let (cols, more) = (self.width(x), [0, 0, 32][self.below(3)]);
        let first = if more > 0 { self.below(more + 1) } else { 0 };
        let matrix = self.matrix(count * (width + more), cols, 1.0 / (cols as f32).sqrt());
        let scale = if self.chance(20) { Some(self.vector(count, 1.0, 0.3)) } else { None };
        let bias = if self.chance(25) { Some(self.vector(count * width, 0.0, 0.2)) } else { None };
        let out = self.value(width, Rows::Chosen(choice));
        let experts = Experts { matrix, each: width + more, first };
        self.push(Op::ExpertMatMul(ExpertProduct { x, choice, experts, scale, bias, out }));
        out
    }

    /// A unit of two products, or of one.
    fn unit(&mut self, x: ValueId) -> ValueId {
        if self.has_experts && self.chance(70) {
            return self.experts(x);
        }
        let width = [32, 96, 256, 320][self.below(4)];
        let gate = self.project(x, width);
        if self.chance(30) {
            let kind = self.activation(false);
            self.push(Op::Activate { kind, x: gate });
            return gate;
        }
        let up = if self.later_chance(20) {
            let each = width + 64;
            let (wide, out) = (self.project(x, each), self.value(width, Rows::Batch));
            self.push(Op::TakeHeads { x: wide, part: HeadPart { each, first: 32, count: width }, out });
            out
        } else if self.chance(80) {
            self.project(x, width)
        } else {
            let up = self.project(x, width);
            self.normed(up)
        };
        let kind = self.activation(true);
        self.push(Op::Gate { kind, gate, up });
        if self.chance(15) {
            // Somebody else reads it too.
            let other = self.project(up, 32);
            self.live.push(other);
        }
        gate
    }

    /// Changes `x` by another value of its width.
    fn combine(&mut self, x: ValueId, y: ValueId) {
        let y = if self.width(x) == self.width(y) { y } else { self.project(y, self.width(x)) };
        let y = if self.chance(30) { self.normed(y) } else { y };
        if self.chance(30) {
            self.push(Op::Scale { x: y, factor: 0.4 });
        }
        if self.chance(15) {
            self.push(Op::Softcap { x: y, cap: 1.5 });
        }
        let op = if self.chance(85) { Op::Add { x, y } } else { Op::Mul { x, y } };
        self.push(op);
        if self.chance(10) {
            self.live.push(y);
        }
    }

    /// A value to read, as it is or normalized.
    fn any(&mut self, hidden: ValueId) -> ValueId {
        let mut id = hidden;
        if !self.live.is_empty() && self.chance(15) {
            let at = self.below(self.live.len());
            id = self.live[at];
        }
        if self.chance(80) { self.normed(id) } else { id }
    }

    fn build(mut self) -> Program {
        let hidden_width = self.one_of(&[32, 64, 160, 256], &[256, 256, 256, 1280]);
        let table = self.matrix(VOCAB, hidden_width, 1.0);
        let hidden = self.value(hidden_width, Rows::Batch);
        self.push(Op::Embed { table, index: Index::Token, out: hidden });
        if self.chance(40) {
            self.push(Op::Scale { x: hidden, factor: 1.7 });
        }
        for layer in 0..self.program.kv.count() {
            let input = self.any(hidden);
            let attended = match () {
                () if !self.has_states || self.chance(40) => self.attention(layer, input),
                () if self.chance(70) => self.scanned(input),
                () => self.convolved(input),
            };
            // Parallel blocks read the same.
            let input = if self.chance(20) {
                let fed = self.unit(input);
                self.combine(hidden, attended);
                self.combine(hidden, fed);
                continue;
            } else {
                self.combine(hidden, attended);
                self.any(hidden)
            };
            let fed = self.unit(input);
            self.combine(hidden, fed);
            if self.chance(30) {
                let input = self.any(hidden);
                let added = self.project(input, hidden_width);
                self.push(Op::Add { x: hidden, y: added });
            }
            // Products of random signs would grow or vanish.
            let norm = self.norm(hidden_width);
            let out = self.value(hidden_width, Rows::Batch);
            self.push(Op::Norm { x: hidden, norm, out });
            self.push(Op::Add { x: hidden, y: out });
            if self.later_chance(30) {
                self.push(Op::Scale { x: hidden, factor: 0.8 });
            }
        }
        let selected = self.value(hidden_width, Rows::Outputs);
        self.push(Op::SelectRows { x: hidden, out: selected });
        let normed = if self.chance(80) { self.normed(selected) } else { selected };
        let logits = self.project(normed, VOCAB);
        if self.chance(30) {
            self.push(Op::Scale { x: logits, factor: 0.5 });
        }
        if self.chance(30) {
            self.push(Op::Softcap { x: logits, cap: 4.0 });
        }
        self.program.logits = Some(logits);
        validate::check(&self.program).unwrap();
        self.program
    }
}

/// A program, some of whose units may be experts.
pub fn random(seed: u64, has_experts: bool) -> Program {
    Builder { has_experts, ..Builder::new(seed) }.build()
}

/// A program with experts and shorter values, whose heads have rows of their own.
pub fn latent(seed: u64) -> Program {
    let mut builder = Builder { has_experts: true, is_latent: true, ..Builder::new(seed) };
    let shorter = builder.program.kv.all().map(|sizes| HeadSizes { value_dim: sizes.head_dim / 2, ..sizes });
    builder.program.kv = Layout::new(shorter.collect::<Vec<_>>()).unwrap();
    builder.build()
}

/// A program some of whose layers have a state.
pub fn recurrent(seed: u64) -> Program {
    Builder { has_experts: seed.is_multiple_of(2), has_states: true, ..Builder::new(seed) }.build()
}
