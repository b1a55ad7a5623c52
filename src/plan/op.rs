//! The vocabulary of a program: ops, values, weights.
//!
//! A value is a matrix of f32 with one row for each row of the batch (or for each row whose logits are wanted). Ops run
//! in order. Every number that changes what an op computes is in the op itself. A backend matches on every [`Op`], so that
//! one that it lacks does not compile; what it cannot run it refuses by name (`plan::validate`).

use crate::arch::names::Idle;
pub use crate::arch::rope::{Rope, RopeLayout};
pub use crate::arch::spec::{Activation, NormKind};
use crate::format::Bytes;
use crate::kv::Layout;
use crate::quant::DType;

/// Index into [`Program::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueId(pub usize);

/// Index into [`Program::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub usize);

/// Index into [`Program::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub usize);

/// Index into [`Program::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeId(pub usize);

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
    /// A row at position `p` sees the keys at positions greater than `p - window`; none: all before it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` in place of a score, before the mask.
    pub softcap: Option<f32>,
    /// One more score for each query head, which has no key and adds no value: it only takes its share of the softmax.
    pub sinks: Option<VectorId>,
}

/// One step of a forward pass. `rows` below are the rows of the value that the op writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[row] = table[token of row]`, decoded to f32.
    Embed {
        /// Token embedding, `[vocab, hidden]`.
        table: MatrixId,
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
    /// Normalizes every head of `x` by itself, in place; the weights have `head_dim` elements.
    HeadNorm {
        /// Read and written.
        x: ValueId,
        /// One head's weights.
        norm: Norm,
    },
    /// Rotates every head of `x` by the angles of its row's position, in place.
    Rope {
        /// Read and written.
        x: ValueId,
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
        /// Read; `kv_heads * head_dim` wide.
        keys: ValueId,
        /// Read; `kv_heads * head_dim` wide.
        values: ValueId,
    },
    /// Causal attention of every row over its own sequence's cache.
    Attention {
        /// Scale, mask and the like.
        kind: AttentionKind,
        /// Read; `heads * head_dim` wide.
        queries: ValueId,
        /// Written; as wide as `queries`.
        out: ValueId,
    },
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
}

impl Op {
    /// Name of the op, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Scale { .. } => "scale",
            Op::Norm { .. } => "norm",
            Op::MatMul { .. } => "matmul",
            Op::HeadNorm { .. } => "head norm",
            Op::Rope { .. } => "rope",
            Op::Temperature { .. } => "temperature",
            Op::StoreKv { .. } => "store kv",
            Op::Attention { .. } => "attention",
            Op::Gate { .. } => "gate",
            Op::Activate { .. } => "activate",
            Op::Add { .. } => "add",
            Op::Mul { .. } => "multiply",
            Op::Softcap { .. } => "softcap",
            Op::SelectRows { .. } => "select rows",
        }
    }

    /// Values that the op reads, those that it changes in place included.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + use<> {
        let (first, second) = match *self {
            Op::Embed { .. } => (None, None),
            Op::Scale { x, .. }
            | Op::Norm { x, .. }
            | Op::MatMul { x, .. }
            | Op::HeadNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Temperature { x, .. }
            | Op::Activate { x, .. }
            | Op::Softcap { x, .. }
            | Op::SelectRows { x, .. } => (Some(x), None),
            Op::StoreKv { keys, values, .. } => (Some(keys), Some(values)),
            Op::Attention { queries, .. } => (Some(queries), None),
            Op::Gate { gate, up, .. } => (Some(gate), Some(up)),
            Op::Add { x, y } | Op::Mul { x, y } => (Some(x), Some(y)),
        };
        first.into_iter().chain(second)
    }

    /// The value that the op writes, if any.
    pub fn writes(&self) -> Option<ValueId> {
        match *self {
            Op::Embed { out, .. }
            | Op::Norm { out, .. }
            | Op::MatMul { out, .. }
            | Op::Attention { out, .. }
            | Op::SelectRows { out, .. } => Some(out),
            Op::Scale { x, .. }
            | Op::HeadNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Temperature { x, .. }
            | Op::Activate { x, .. }
            | Op::Add { x, .. }
            | Op::Mul { x, .. }
            | Op::Softcap { x, .. } => Some(x),
            Op::Gate { gate, .. } => Some(gate),
            Op::StoreKv { .. } => None,
        }
    }

    /// Whether a row of the result depends on the same row of what the op reads alone, and not on the row's place in the batch.
    pub fn is_row_wise(&self) -> bool {
        match self {
            Op::Embed { .. }
            | Op::HeadNorm { .. }
            | Op::Rope { .. }
            | Op::Temperature { .. }
            | Op::StoreKv { .. }
            | Op::Attention { .. } => false,
            Op::Scale { .. }
            | Op::Norm { .. }
            | Op::MatMul { .. }
            | Op::Gate { .. }
            | Op::Activate { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::Softcap { .. }
            | Op::SelectRows { .. } => true,
        }
    }
}

/// Which rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One for each row of the batch.
    Batch,
    /// One for each row whose logits are wanted.
    Outputs,
}

/// A matrix of f32 that ops exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Elements of a row.
    pub width: usize,
    /// Number of rows.
    pub rows: Rows,
}

/// A matrix of the model, as it lies in the file: `rows` rows of `cols` elements in blocks of `dtype`.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name in the file.
    pub name: String,
    /// Storage type.
    pub dtype: DType,
    /// Outputs of a multiplication.
    pub rows: usize,
    /// Inputs of a multiplication.
    pub cols: usize,
    /// Exactly `rows` rows.
    pub bytes: Bytes,
}

/// One forward pass, with the weights that it needs.
#[derive(Debug)]
pub struct Program {
    /// The steps, in order.
    pub ops: Vec<Op>,
    /// What the ops read and write.
    pub values: Vec<Value>,
    /// Matrices, in file format.
    pub matrices: Vec<Weight>,
    /// Norm weights and biases, decoded to f32.
    pub vectors: Vec<Vec<f32>>,
    /// Rotations of queries and keys; layers may differ in theirs.
    pub ropes: Vec<Rope>,
    /// Shape of the cache.
    pub kv: Layout,
    /// The value that holds the logits at the end, `vocab` wide.
    pub logits: ValueId,
    /// How many tensors of each kind of [`Idle::ALL`] the file holds that are not run.
    pub idle: [usize; Idle::ALL.len()],
}

impl Program {
    /// Tokens that the model knows.
    pub fn vocab(&self) -> usize {
        self.values[self.logits.0].width
    }

    /// Positions that layers with a window see, the most of any; `None` where every layer sees everything.
    pub fn window(&self) -> Option<usize> {
        self.attentions().filter_map(|kind| kind.window).max()
    }

    /// How layers attend, one after the other.
    pub fn attentions(&self) -> impl Iterator<Item = AttentionKind> {
        self.ops.iter().filter_map(|op| match op {
            Op::Attention { kind, .. } => Some(*kind),
            _ => None,
        })
    }

    /// Bytes of all weights as they lie in the file; a matrix used twice counts once.
    pub fn weight_bytes(&self) -> u64 {
        let matrices: usize = self.matrices.iter().map(|weight| weight.bytes.len()).sum();
        let vectors: usize = self.vectors.iter().map(|vector| size_of_val(vector.as_slice())).sum();
        (matrices + vectors) as u64
    }
}
