//! The vocabulary of a program: ops and values.
//!
//! A value is a matrix with one row for each row of the batch, for each row whose logits are wanted, or for each expert that is chosen for a
//! row; of f32 but where it holds choices. Ops run in order. Every number that changes what an op computes is in the op itself. A backend matches on
//! every [`Op`], so that one that it lacks does not compile; what it cannot run it refuses by name (`plan::validate`).

pub use super::mixture::{ExpertProduct, Experts, Groups, MOST_CHOSEN, MOST_EXPERTS, Routing};
pub use super::program::{Embedding, Origin, Program, Weight};
pub use super::recurrent::{Convolution, MOST_TAPS, Scan, StateId, Strength};
pub use super::value::{Kind, Rows, Value, ValueId};
pub use crate::arch::rope::{Rope, RopeLayout};
pub use crate::arch::spec::{Activation, AttentionMask, NormKind, Score};

/// Index into [`Program::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub usize);

/// Index into [`Program::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub usize);

/// Index into [`Program::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeId(pub usize);

/// Which row of a table stands for a row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// That of its token.
    Token,
    /// That of its position.
    Position,
    /// The first.
    First,
}

/// How a row, or a head, is normalized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What is subtracted and divided by.
    pub kind: NormKind,
    /// Multiplied with the normalized elements; all ones where a model has no weights.
    pub weight: VectorId,
    /// Added at the end.
    pub bias: Option<VectorId>,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

/// What a layer's attention computes, beside its shapes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionKind {
    /// Layer of the cache whose keys and values are read.
    pub layer: usize,
    /// Factor on the dot products of queries and keys.
    pub scale: f32,
    /// Which keys a row may see.
    pub mask: AttentionMask,
    /// A row at position `p` sees the keys at positions greater than `p - window`, and where it sees what follows, less than `p + window`; none:
    /// all that the mask lets it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` in place of a score, before the mask.
    pub softcap: Option<f32>,
    /// One more score for each query head, which has no key and adds no value: it only takes its share of the softmax.
    pub sinks: Option<VectorId>,
}

/// The same elements of each of several heads that stand one after the other in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPart {
    /// Elements of a head.
    pub each: usize,
    /// The first of them that is meant.
    pub first: usize,
    /// How many are.
    pub count: usize,
}

/// One step of a forward pass. `rows` below are the rows of the value that the op writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[row] = table[index]`, decoded to f32.
    Embed {
        /// Vectors, one a row.
        table: MatrixId,
        /// Which of them.
        index: Index,
        /// Written.
        out: ValueId,
    },
    /// `out[row]` = the vector that comes with the row from outside ([`crate::backend::Runner::given`]).
    Given {
        /// Written.
        out: ValueId,
    },
    /// `x *= factor`.
    Scale {
        /// Read and written.
        x: ValueId,
        /// The same for all elements.
        factor: f32,
    },
    /// `out = norm(x)`, row by row.
    Norm {
        /// Read.
        x: ValueId,
        /// Weights as wide as `x`.
        norm: Norm,
        /// Written.
        out: ValueId,
    },
    /// `out = norm(x)`, each of several equal parts of a row by itself.
    GroupNorm {
        /// Read.
        x: ValueId,
        /// How many parts.
        groups: usize,
        /// Weights as wide as `x`.
        norm: Norm,
        /// Written.
        out: ValueId,
    },
    /// `out = x * matrix^T + bias`.
    MatMul {
        /// Read; as wide as the matrix has columns.
        x: ValueId,
        /// Weights, one row for each column of `out`.
        matrix: MatrixId,
        /// Added to every row.
        bias: Option<VectorId>,
        /// Written.
        out: ValueId,
    },
    /// `out = x * matrix^T`, each head of a row by rows of its own.
    HeadMatMul {
        /// Read.
        x: ValueId,
        /// The elements of each head that are multiplied: as many as the matrix has columns.
        part: HeadPart,
        /// Weights: for each head as many rows as `out` has elements for it, one head's after the other's.
        matrix: MatrixId,
        /// Written.
        out: ValueId,
    },
    /// Each head of `out` = elements of the same head of `x`, and behind them the head of `y`.
    JoinHeads {
        /// Read.
        x: ValueId,
        /// The elements of each head of `x`.
        part: HeadPart,
        /// Read; as many heads as `x`.
        y: ValueId,
        /// Written.
        out: ValueId,
    },
    /// Each head of `out` = elements of the same head of `x`.
    TakeHeads {
        /// Read.
        x: ValueId,
        /// The elements of each head.
        part: HeadPart,
        /// Written.
        out: ValueId,
    },
    /// Normalizes every head of `x` by itself, in place.
    HeadNorm {
        /// Read and written.
        x: ValueId,
        /// Elements of a head.
        head_dim: usize,
        /// One head's weights.
        norm: Norm,
    },
    /// Rotates every head of `x` by the angles of its row's position, in place.
    Rope {
        /// Read and written.
        x: ValueId,
        /// Elements of a head.
        head_dim: usize,
        /// Whose angles.
        table: RopeId,
    },
    /// `x *= 1 + factor * ln(1 + floor(position / period))`, for positions beyond the trained context.
    Temperature {
        /// Read and written.
        x: ValueId,
        /// Of the logarithm.
        factor: f32,
        /// Positions of the trained context.
        period: u32,
    },
    /// Puts the keys and values of the batch's rows into their places in the cache.
    StoreKv {
        /// Layer of the cache.
        layer: usize,
        /// Read; as wide as the key-value heads of the layer ([`crate::kv::HeadSizes`]).
        keys: ValueId,
        /// Read; as wide as all their values.
        values: ValueId,
    },
    /// Attention of every row over its own sequence's cache.
    Attention {
        /// Scale, mask and the like.
        kind: AttentionKind,
        /// Read; as wide as the query heads of the layer.
        queries: ValueId,
        /// Written; a head of values for each.
        out: ValueId,
    },
    /// Each column convolved with the rows before.
    Convolve(Convolution),
    /// Linear attention through a state that decays.
    Scan(Scan),
    /// `gate = activation(gate) * up`, in place (Shazeer, "GLU Variants Improve Transformer").
    Gate {
        /// The activation.
        kind: Activation,
        /// Read and written.
        gate: ValueId,
        /// Read.
        up: ValueId,
    },
    /// `x = activation(x)`; none of those that need two values.
    Activate {
        /// The activation.
        kind: Activation,
        /// Read and written.
        x: ValueId,
    },
    /// `x += y`.
    Add {
        /// Read and written.
        x: ValueId,
        /// Read.
        y: ValueId,
    },
    /// `x *= y`.
    Mul {
        /// Read and written.
        x: ValueId,
        /// Read.
        y: ValueId,
    },
    /// `x *= 1 / (1 + exp(-gate))`, with one gate for each element or for a whole row.
    MulSigmoid {
        /// Read and written.
        x: ValueId,
        /// Read; as wide as `x`, or one element.
        gate: ValueId,
    },
    /// Chooses experts for every row.
    Route {
        /// Read; an element for each expert.
        logits: ValueId,
        /// By which rule.
        routing: Routing,
        /// Written, a value of [`Kind::Choices`], best first.
        choice: ValueId,
    },
    /// `out = scale * x * matrix^T + bias`, each row by the rows of its own expert.
    ExpertMatMul(ExpertProduct),
    /// `out` = the sum of the rows of all experts of a row, by the weights of the choice and in its order.
    WeightedSum {
        /// Read; a row for each chosen expert.
        x: ValueId,
        /// Read: the weights.
        choice: ValueId,
        /// Written; a row for each of the batch.
        out: ValueId,
    },
    /// `x = cap * tanh(x / cap)`.
    Softcap {
        /// Read and written.
        x: ValueId,
        /// Positive: no result is larger.
        cap: f32,
    },
    /// Copies the rows whose logits are wanted.
    SelectRows {
        /// Read; a row for each row of the batch.
        x: ValueId,
        /// Written; a row for each wanted one.
        out: ValueId,
    },
    /// Gives the rows of a value to the other half of a program in two ([`super::halves`]).
    Send {
        /// Read; a row for each row of the batch.
        x: ValueId,
        /// How it is exchanged.
        by: Exchanged,
    },
    /// Takes the rows of a value from the other half.
    Receive {
        /// Written; a row for each row of the batch.
        out: ValueId,
        /// How it is exchanged.
        by: Exchanged,
        /// Whether it was there before: what has become of it in the other half takes its place.
        again: bool,
    },
}

/// A value that the halves of a program exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The part of the program's ops that the host does.
    pub part: usize,
    /// Which of the values that go the same way for this part.
    pub index: usize,
    /// Elements of a row of those before it.
    pub start: usize,
    /// Whether it is the last of them.
    pub is_last: bool,
}

impl Op {
    /// Name of the op, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Given { .. } => "given vector",
            Op::Scale { .. } => "scale",
            Op::Norm { .. } => "norm",
            Op::GroupNorm { .. } => "group norm",
            Op::MatMul { .. } => "matmul",
            Op::HeadMatMul { .. } => "head matmul",
            Op::JoinHeads { .. } => "join heads",
            Op::TakeHeads { .. } => "take heads",
            Op::HeadNorm { .. } => "head norm",
            Op::Rope { .. } => "rope",
            Op::Temperature { .. } => "temperature",
            Op::StoreKv { .. } => "store kv",
            Op::Attention { .. } => "attention",
            Op::Convolve(_) => "convolve",
            Op::Scan(_) => "scan",
            Op::Gate { .. } => "gate",
            Op::Activate { .. } => "activate",
            Op::Add { .. } => "add",
            Op::Mul { .. } => "multiply",
            Op::MulSigmoid { .. } => "multiply by sigmoid",
            Op::Route { .. } => "route",
            Op::ExpertMatMul(_) => "expert matmul",
            Op::WeightedSum { .. } => "weighted sum",
            Op::Softcap { .. } => "softcap",
            Op::SelectRows { .. } => "select rows",
            Op::Send { .. } => "send",
            Op::Receive { .. } => "receive",
        }
    }

    /// Values that the op reads, those that it changes in place included.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + use<> {
        let (first, second) = match *self {
            Op::Scan(scan) => return scan.reads().into_iter().flatten(),
            Op::Embed { .. } | Op::Given { .. } | Op::Receive { again: false, .. } => (None, None),
            Op::Scale { x, .. }
            | Op::Norm { x, .. }
            | Op::GroupNorm { x, .. }
            | Op::MatMul { x, .. }
            | Op::HeadMatMul { x, .. }
            | Op::TakeHeads { x, .. }
            | Op::HeadNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Temperature { x, .. }
            | Op::Convolve(Convolution { x, .. })
            | Op::Activate { x, .. }
            | Op::Softcap { x, .. }
            | Op::SelectRows { x, .. }
            | Op::Send { x, .. }
            | Op::Receive { out: x, .. } => (Some(x), None),
            Op::StoreKv { keys, values, .. } => (Some(keys), Some(values)),
            Op::Attention { queries, .. } => (Some(queries), None),
            Op::Gate { gate, up, .. } => (Some(gate), Some(up)),
            Op::MulSigmoid { x, gate } => (Some(x), Some(gate)),
            Op::Route { logits, .. } => (Some(logits), None),
            Op::ExpertMatMul(ExpertProduct { x, choice, .. }) | Op::WeightedSum { x, choice, .. } => {
                (Some(x), Some(choice))
            }
            Op::Add { x, y } | Op::Mul { x, y } | Op::JoinHeads { x, y, .. } => (Some(x), Some(y)),
        };
        [first, second, None, None, None].into_iter().flatten()
    }

    /// The matrix that the op multiplies by, or takes rows of, if any.
    pub fn matrix(&self) -> Option<MatrixId> {
        match *self {
            Op::Embed { table: matrix, .. } | Op::MatMul { matrix, .. } | Op::HeadMatMul { matrix, .. } => Some(matrix),
            Op::ExpertMatMul(ExpertProduct { experts, .. }) => Some(experts.matrix),
            _ => None,
        }
    }

    /// The vectors of weights that the op reads.
    pub fn vectors(&self) -> impl Iterator<Item = VectorId> + use<> {
        let of_norm = |norm: Norm| [Some(norm.weight), norm.bias, None];
        let vectors = match *self {
            Op::Norm { norm, .. } | Op::GroupNorm { norm, .. } | Op::HeadNorm { norm, .. } => of_norm(norm),
            Op::MatMul { bias, .. } => [bias, None, None],
            Op::Attention { kind, .. } => [kind.sinks, None, None],
            Op::Convolve(Convolution { weight, bias, .. }) => [Some(weight), bias, None],
            Op::Scan(Scan { bias, rate, skip, .. }) => [Some(bias), Some(rate), skip],
            Op::Route { routing, .. } => [routing.bias, None, None],
            Op::ExpertMatMul(ExpertProduct { scale, bias, .. }) => [scale, bias, None],
            _ => [None; 3],
        };
        vectors.into_iter().flatten()
    }

    /// The state that the op reads and changes, if any.
    pub fn state(&self) -> Option<StateId> {
        match *self {
            Op::Convolve(Convolution { state, .. }) | Op::Scan(Scan { state, .. }) => Some(state),
            _ => None,
        }
    }

    /// The value that the op writes, if any.
    pub fn writes(&self) -> Option<ValueId> {
        match *self {
            Op::Embed { out, .. }
            | Op::Given { out }
            | Op::Norm { out, .. }
            | Op::GroupNorm { out, .. }
            | Op::MatMul { out, .. }
            | Op::HeadMatMul { out, .. }
            | Op::JoinHeads { out, .. }
            | Op::TakeHeads { out, .. }
            | Op::Convolve(Convolution { out, .. })
            | Op::Scan(Scan { out, .. })
            | Op::Attention { out, .. }
            | Op::ExpertMatMul(ExpertProduct { out, .. })
            | Op::WeightedSum { out, .. }
            | Op::SelectRows { out, .. }
            | Op::Receive { out, .. } => Some(out),
            Op::Route { choice, .. } => Some(choice),
            Op::Scale { x, .. }
            | Op::HeadNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Temperature { x, .. }
            | Op::Activate { x, .. }
            | Op::Add { x, .. }
            | Op::Mul { x, .. }
            | Op::MulSigmoid { x, .. }
            | Op::Softcap { x, .. } => Some(x),
            Op::Gate { gate, .. } => Some(gate),
            Op::StoreKv { .. } | Op::Send { .. } => None,
        }
    }

    /// Whether a row of the result depends on other rows of its sequence.
    pub fn mixes_rows(&self) -> bool {
        matches!(self, Op::Attention { .. } | Op::Convolve(_) | Op::Scan(_))
    }

    /// Whether a row of the result depends on the same row of what the op reads alone, and not on the row's place in the batch.
    pub fn is_row_wise(&self) -> bool {
        match self {
            Op::Embed { .. }
            | Op::Given { .. }
            | Op::HeadNorm { .. }
            | Op::Rope { .. }
            | Op::Temperature { .. }
            | Op::StoreKv { .. }
            | Op::Convolve(_)
            | Op::Scan(_)
            | Op::Send { .. }
            | Op::Receive { .. }
            | Op::Attention { .. } => false,
            Op::Scale { .. }
            | Op::Norm { .. }
            | Op::GroupNorm { .. }
            | Op::MatMul { .. }
            | Op::HeadMatMul { .. }
            | Op::JoinHeads { .. }
            | Op::TakeHeads { .. }
            | Op::Gate { .. }
            | Op::Activate { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::MulSigmoid { .. }
            | Op::Route { .. }
            | Op::ExpertMatMul(_)
            | Op::WeightedSum { .. }
            | Op::Softcap { .. }
            | Op::SelectRows { .. } => true,
        }
    }
}
