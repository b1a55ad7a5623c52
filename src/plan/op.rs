//! The vocabulary of a program: ops, values, weights.
//!
//! A value is a matrix of f32 with one row for each row of the batch (or for each row whose logits are wanted). Ops run
//! in order. A backend matches on every [`Op`], so that one that it lacks does not compile.

pub use crate::arch::rope::{Rope, RopeLayout};
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
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, row by row (Zhang and Sennrich, "Root Mean Square Layer Normalization").
    Norm {
        /// Read.
        x: ValueId,
        /// As wide as `x`.
        weight: VectorId,
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
    /// RMS norm of every head of `x` by itself, in place; `weight` has `head_dim` elements.
    HeadNorm {
        /// Read and written.
        x: ValueId,
        /// One head's weights.
        weight: VectorId,
    },
    /// Rotates every head of `x` by the angles of its row's position, in place.
    Rope {
        /// Read and written.
        x: ValueId,
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
    /// Causal attention of every row over its own sequence's cache, scaled by `1 / sqrt(head_dim)`.
    Attention {
        /// Layer of the cache.
        layer: usize,
        /// Read; `heads * head_dim` wide.
        queries: ValueId,
        /// Written; as wide as `queries`.
        out: ValueId,
    },
    /// `gate = gate * sigmoid(gate) * up`, in place (Shazeer, "GLU Variants Improve Transformer").
    SiluMul {
        /// Read and written.
        gate: ValueId,
        /// Read.
        up: ValueId,
    },
    /// `x += y`.
    Add {
        /// Read and written.
        x: ValueId,
        /// Read.
        y: ValueId,
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
            Op::Norm { .. } => "norm",
            Op::MatMul { .. } => "matmul",
            Op::HeadNorm { .. } => "head norm",
            Op::Rope { .. } => "rope",
            Op::StoreKv { .. } => "store kv",
            Op::Attention { .. } => "attention",
            Op::SiluMul { .. } => "silu mul",
            Op::Add { .. } => "add",
            Op::SelectRows { .. } => "select rows",
        }
    }

    /// Values that the op reads, those that it changes in place included.
    pub fn reads(&self) -> [Option<ValueId>; 2] {
        match *self {
            Op::Embed { .. } => [None, None],
            Op::Norm { x, .. } | Op::MatMul { x, .. } | Op::HeadNorm { x, .. } | Op::Rope { x } => [Some(x), None],
            Op::StoreKv { keys, values, .. } => [Some(keys), Some(values)],
            Op::Attention { queries, .. } => [Some(queries), None],
            Op::SiluMul { gate, up } => [Some(gate), Some(up)],
            Op::Add { x, y } => [Some(x), Some(y)],
            Op::SelectRows { x, .. } => [Some(x), None],
        }
    }

    /// The value that the op writes, if any.
    pub fn writes(&self) -> Option<ValueId> {
        match *self {
            Op::Embed { out, .. }
            | Op::Norm { out, .. }
            | Op::MatMul { out, .. }
            | Op::Attention { out, .. }
            | Op::SelectRows { out, .. } => Some(out),
            Op::HeadNorm { x, .. } | Op::Rope { x } | Op::Add { x, .. } => Some(x),
            Op::SiluMul { gate, .. } => Some(gate),
            Op::StoreKv { .. } => None,
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
    /// Rotation of queries and keys.
    pub rope: Rope,
    /// Shape of the cache.
    pub kv: Layout,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// The value that holds the logits at the end, `vocab` wide.
    pub logits: ValueId,
}

impl Program {
    /// Tokens that the model knows.
    pub fn vocab(&self) -> usize {
        self.values[self.logits.0].width
    }

    /// Bytes of all weights as they lie in the file; a matrix used twice counts once.
    pub fn weight_bytes(&self) -> u64 {
        let matrices: usize = self.matrices.iter().map(|weight| weight.bytes.len()).sum();
        let vectors: usize = self.vectors.iter().map(|vector| size_of_val(vector.as_slice())).sum();
        (matrices + vectors) as u64
    }
}
