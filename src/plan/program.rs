//! A program: its ops, its values, the weights that it needs, and what it makes beside logits, or in their place.

use super::eagle::{Fusion, Subset};
use super::op::{AttentionKind, AttentionMask, Index, MatrixId, Op, Rope, Rows, Value, ValueId};
use super::tensors::PLAN;
use crate::arch::names::Idle;
use crate::error::{Result, collected, reserve};
use crate::format::Bytes;
use crate::kv::Layout;
use crate::kv::state::Shape;
use crate::quant::DType;

/// A matrix of the model, as it lies in the file: `rows` rows of `cols` elements in blocks of `dtype`. Those of all experts are one.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Storage type.
    pub dtype: DType,
    /// Outputs of a multiplication.
    pub rows: usize,
    /// Inputs of a multiplication.
    pub cols: usize,
    /// Exactly `rows` rows.
    pub bytes: Bytes,
}

/// Where a matrix comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The tensor that holds its rows.
    pub tensor: String,
    /// The first of them.
    pub first: usize,
    /// Rows of the tensor.
    pub of: usize,
    /// Whether the file has a factor beside the tensor, by which products with it are multiplied.
    pub is_scaled: bool,
}

/// One forward pass, with the weights that it needs.
#[derive(Debug)]
pub struct Program {
    /// The steps, in order.
    pub ops: Vec<Op>,
    /// The number of the first op of each layer, and of the first behind the last one; nothing where no layers are told apart.
    pub layers: Vec<usize>,
    /// What the ops read and write.
    pub values: Vec<Value>,
    /// Matrices, in file format.
    pub matrices: Vec<Weight>,
    /// Where each of them comes from; nothing for matrices of no file.
    pub origins: Vec<Origin>,
    /// Norm weights and biases, decoded to f32.
    pub vectors: Vec<Vec<f32>>,
    /// Rotations of queries and keys; layers may differ in theirs.
    pub ropes: Vec<Rope>,
    /// Shape of the cache, and the heads of every layer.
    pub kv: Layout,
    /// What layers without keys keep of each sequence.
    pub states: Vec<Shape>,
    /// The value that holds the logits at the end, `vocab` wide; none in models that make embeddings alone.
    pub logits: Option<ValueId>,
    /// Which tokens these are of, where they are not of all.
    pub subset: Option<Subset>,
    /// How embeddings are made, in models that this is known of.
    pub embedding: Option<Embedding>,
    /// The vector of each row for a head that drafts for the model, which the last ops make, behind the logits.
    pub features: Option<ValueId>,
    /// Of such a head what it makes that vector of.
    pub fusion: Option<Fusion>,
    /// How many tensors of each kind of [`Idle::ALL`] the file holds that are not run.
    pub idle: [usize; Idle::ALL.len()],
}

/// What is made of the last layer in place of logits.
#[derive(Clone, Debug, Default)]
pub struct Embedding {
    /// How many of [`Program::ops`] come before; those behind them are the head, which makes logits.
    pub after: usize,
    /// The steps, each of which reads and writes rows of the batch one by one.
    pub ops: Vec<Op>,
    /// A vector for each token: what the last norm gives.
    pub tokens: ValueId,
    /// What the model's last projections make of these, the same value where it has none. They have no bias and no activation, so that it does not
    /// matter whether they come before or behind the mean of several.
    pub texts: ValueId,
    /// What a classifier makes of the vector of one token, where the model has one.
    pub scores: Option<ValueId>,
}

impl Embedding {
    /// The values that a pass may end with.
    pub fn ends(&self) -> impl Iterator<Item = ValueId> + use<> {
        [self.tokens, self.texts].into_iter().chain(self.scores)
    }
}

impl Program {
    /// One without ops, whose cache has this shape.
    pub fn new(kv: Layout) -> Program {
        Program {
            ops: Vec::new(),
            layers: Vec::new(),
            values: Vec::new(),
            matrices: Vec::new(),
            origins: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            kv,
            states: Vec::new(),
            logits: None,
            subset: None,
            embedding: None,
            features: None,
            fusion: None,
            idle: [0; Idle::ALL.len()],
        }
    }

    /// Tokens that the model knows.
    pub fn vocab(&self) -> usize {
        if let Some(subset) = &self.subset {
            return subset.of;
        }
        let told = self.fusion.as_ref().map_or(0, |fusion| fusion.vocab);
        let rows = self.token_table().map_or(told, |table| self.matrices[table.0].rows);
        self.logits.map_or(rows, |logits| self.values[logits.0].width)
    }

    /// Logits of a row; 0 in models that make embeddings alone.
    pub fn logits_width(&self) -> usize {
        self.logits.map_or(0, |logits| self.values[logits.0].width)
    }

    /// What a pass may end with, logits apart.
    pub fn vectors_made(&self) -> impl Iterator<Item = ValueId> {
        self.embedding.iter().flat_map(Embedding::ends).chain(self.features)
    }

    /// The vector of a row that a host reads beside logits ([`crate::backend::Limits::hidden`]).
    pub fn hidden(&self) -> Option<ValueId> {
        self.features.or(self.embedding.as_ref().map(|embedding| embedding.tokens))
    }

    /// Whether it only drafts for another model, and cannot run without it.
    pub fn only_drafts(&self) -> bool {
        self.borrows_keys() || self.fusion.is_some()
    }

    /// The table of the first embedding of tokens.
    pub fn token_table(&self) -> Option<MatrixId> {
        self.ops.iter().find_map(|op| match *op {
            Op::Embed { table, index: Index::Token, .. } => Some(table),
            _ => None,
        })
    }

    /// Elements of the vector that each row brings along ([`Op::Given`]); 0 where rows are tokens alone.
    pub fn given_width(&self) -> usize {
        let given = self.ops.iter().find_map(|op| if let Op::Given { out } = *op { Some(out) } else { None });
        given.map_or(0, |out| self.values[out.0].width)
    }

    /// All ops: those that lead to logits, and behind them those of embeddings.
    pub fn all_ops(&self) -> impl DoubleEndedIterator<Item = &Op> + Clone {
        self.ops.iter().chain(self.embedding.iter().flat_map(|embedding| &embedding.ops))
    }

    /// Whether some rows see others behind them, so that a text is evaluated as a whole.
    pub fn sees_ahead(&self) -> bool {
        self.attentions().any(|kind| kind.mask == AttentionMask::Bidirectional)
    }

    /// Whether it reads the keys and values of another model, for which it drafts ([`super::assistant`]).
    pub fn borrows_keys(&self) -> bool {
        self.attentions().any(|kind| kind.mask == AttentionMask::Borrowed)
    }

    /// How many experts the value `choice` chooses for a row.
    pub fn chosen(&self, choice: ValueId) -> usize {
        self.values[choice.0].width / 2
    }

    /// Elements and rows of a value where those of all experts of a row count as one row.
    pub fn extent(&self, id: ValueId) -> (usize, Rows) {
        let Value { width, rows, .. } = self.values[id.0];
        match rows {
            Rows::Chosen(choice) => (width * self.chosen(choice), Rows::Batch),
            rows => (width, rows),
        }
    }

    /// Positions that layers with a window see, the most of any; `None` where every layer sees everything, and where a window has two sides.
    pub fn window(&self) -> Option<usize> {
        let behind = self.attentions().filter(|kind| kind.mask != AttentionMask::Bidirectional);
        behind.filter_map(|kind| kind.window).max()
    }

    /// How layers attend, one after the other.
    pub fn attentions(&self) -> impl Iterator<Item = AttentionKind> {
        self.ops.iter().filter_map(|op| match op {
            Op::Attention { kind, .. } => Some(*kind),
            _ => None,
        })
    }

    /// A program of the same weights.
    pub(super) fn copied(&self) -> Result<Program> {
        let mut vectors = reserve(self.vectors.len(), PLAN)?;
        for vector in &self.vectors {
            vectors.push(collected(vector.iter().copied(), PLAN)?);
        }
        let embedding = match &self.embedding {
            Some(embedding) => Some(Embedding { ops: collected(embedding.ops.iter().cloned(), PLAN)?, ..*embedding }),
            None => None,
        };
        Ok(Program {
            ops: collected(self.ops.iter().cloned(), PLAN)?,
            layers: collected(self.layers.iter().copied(), PLAN)?,
            values: collected(self.values.iter().copied(), PLAN)?,
            matrices: collected(self.matrices.iter().cloned(), PLAN)?,
            origins: collected(self.origins.iter().cloned(), PLAN)?,
            vectors,
            ropes: collected(self.ropes.iter().cloned(), PLAN)?,
            kv: Layout::new(self.kv.all())?,
            states: collected(self.states.iter().cloned(), PLAN)?,
            logits: self.logits,
            subset: self.subset.clone(),
            embedding,
            features: self.features,
            fusion: self.fusion.as_ref().map(Fusion::copied).transpose()?,
            idle: self.idle,
        })
    }

    /// Bytes of all weights as they lie in the file; a matrix used twice counts once.
    pub fn weight_bytes(&self) -> u64 {
        let matrices: usize = self.matrices.iter().map(|weight| weight.bytes.len()).sum();
        let vectors: usize = self.vectors.iter().map(|vector| size_of_val(vector.as_slice())).sum();
        (matrices + vectors) as u64
    }
}
