//! From a file and its family to a [`Program`]: the one description of a forward pass.

use super::op::{MatrixId, Op, Program, Rows, Value, ValueId, VectorId, Weight};
use crate::arch::names::{global, in_layer, is_redundant, layer};
use crate::arch::rope::Rope;
use crate::arch::spec::Presence;
use crate::arch::{Arch, Hparams, hparams::Keys};
use crate::error::{Error, Result, copied_text, filled, push};
use crate::format::{Gguf, TensorInfo};
use crate::kv::Layout;
use crate::quant::{DType, reference};
use std::collections::{HashMap, HashSet};

/// What the memory of a program is for.
const OPS: &str = "the plan of a pass";

/// Builds the program of the model in `gguf`. Tensors that the family does not use are refused: the model would run wrongly
/// without them.
pub fn build(gguf: &Gguf, arch: &Arch, hparams: &Hparams) -> Result<Program> {
    let mut builder = Builder::new(gguf, arch, hparams)?;
    let hidden = builder.embed()?;
    for index in 0..hparams.layers {
        builder.attention(index, hidden)?;
        builder.feed_forward(index, hidden)?;
    }
    let logits = builder.head(hidden)?;
    builder.finish(logits)
}

struct Builder<'a> {
    gguf: &'a Gguf,
    arch: &'a Arch,
    hparams: &'a Hparams,
    program: Program,
    matrices: HashMap<String, MatrixId>,
    vectors: HashSet<String>,
}

impl<'a> Builder<'a> {
    fn new(gguf: &'a Gguf, arch: &'a Arch, hparams: &'a Hparams) -> Result<Self> {
        let divisors = match gguf.tensor(global::ROPE_DIVISORS) {
            Some(info) => Some(decode_vector(info, hparams.rope_dims / 2)?),
            None => None,
        };
        let keys = Keys::new(arch);
        let rope = Rope::read(gguf.metadata(), &keys, arch.rope, hparams.rope_dims, divisors.as_deref())?;
        let program = Program {
            ops: Vec::new(),
            values: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            rope,
            kv: Layout::new(hparams.layers, hparams.heads, hparams.kv_heads, hparams.head_dim),
            norm_eps: hparams.norm_eps,
            logits: ValueId(0),
        };
        // No tensor is used under two names, so the file says how many there can be.
        let tensors = gguf.tensors().len();
        let out_of_memory = |_| Error::out_of_memory(OPS, tensors.saturating_mul(size_of::<(String, MatrixId)>()));
        let (mut matrices, mut vectors) = (HashMap::new(), HashSet::new());
        matrices.try_reserve(tensors).map_err(out_of_memory)?;
        vectors.try_reserve(tensors).map_err(out_of_memory)?;
        Ok(Builder { gguf, arch, hparams, program, matrices, vectors })
    }

    fn embed(&mut self) -> Result<ValueId> {
        let info = self.info(global::EMBEDDING)?;
        let vocab = match info.dims.as_slice() {
            [_, vocab] => usize::try_from(*vocab).ok().filter(|&v| v <= i32::MAX as usize),
            _ => None,
        };
        let vocab = vocab.ok_or_else(|| {
            let (name, dims, hidden) = (global::EMBEDDING, &info.dims, self.hparams.hidden);
            Error::Format(format!("tensor `{name}` has shape {dims:?}, expected {hidden} columns and a row a token"))
        })?;
        let table = self.matrix(global::EMBEDDING, vocab, self.hparams.hidden)?;
        let out = self.value(self.hparams.hidden, Rows::Batch)?;
        self.push(Op::Embed { table, out })?;
        Ok(out)
    }

    fn attention(&mut self, index: usize, hidden: ValueId) -> Result<()> {
        let Hparams { hidden: width, heads, kv_heads, head_dim, .. } = *self.hparams;
        let bias = self.arch.qkv_bias;
        let normed = self.norm(&in_layer(index, layer::ATTENTION_NORM), hidden)?;
        let queries = self.project(&in_layer(index, layer::Q), normed, heads * head_dim, bias)?;
        let keys = self.project(&in_layer(index, layer::K), normed, kv_heads * head_dim, bias)?;
        let values = self.project(&in_layer(index, layer::V), normed, kv_heads * head_dim, bias)?;
        self.head_norm(&in_layer(index, layer::Q_NORM), queries)?;
        self.head_norm(&in_layer(index, layer::K_NORM), keys)?;
        self.push(Op::Rope { x: queries })?;
        self.push(Op::Rope { x: keys })?;
        self.push(Op::StoreKv { layer: index, keys, values })?;
        let mixed = self.value(heads * head_dim, Rows::Batch)?;
        self.push(Op::Attention { layer: index, queries, out: mixed })?;
        let output = self.project(&in_layer(index, layer::ATTENTION_OUTPUT), mixed, width, self.arch.output_bias)?;
        self.push(Op::Add { x: hidden, y: output })?;
        Ok(())
    }

    fn feed_forward(&mut self, index: usize, hidden: ValueId) -> Result<()> {
        let Hparams { hidden: width, feed_forward, .. } = *self.hparams;
        let normed = self.norm(&in_layer(index, layer::FEED_FORWARD_NORM), hidden)?;
        let gate = self.project(&in_layer(index, layer::GATE), normed, feed_forward, Presence::Absent)?;
        let up = self.project(&in_layer(index, layer::UP), normed, feed_forward, Presence::Absent)?;
        self.push(Op::SiluMul { gate, up })?;
        let down = self.project(&in_layer(index, layer::DOWN), gate, width, Presence::Absent)?;
        self.push(Op::Add { x: hidden, y: down })?;
        Ok(())
    }

    /// Last norm and output head; a file without a head of its own uses the embedding.
    fn head(&mut self, hidden: ValueId) -> Result<ValueId> {
        let width = self.hparams.hidden;
        let selected = self.value(width, Rows::Outputs)?;
        self.push(Op::SelectRows { x: hidden, out: selected })?;
        let normed = self.norm(global::OUTPUT_NORM, selected)?;
        let vocab = self.program.matrices[0].rows;
        let name = if self.gguf.tensor(global::HEAD).is_some() { global::HEAD } else { global::EMBEDDING };
        let matrix = self.matrix(name, vocab, width)?;
        let bias = self.bias(global::HEAD_BIAS, vocab, Presence::Optional)?;
        let out = self.value(vocab, Rows::Outputs)?;
        self.push(Op::MatMul { x: normed, matrix, bias, out })?;
        Ok(out)
    }

    fn finish(mut self, logits: ValueId) -> Result<Program> {
        self.program.logits = logits;
        let unused = self.gguf.tensors().iter().find(|tensor| !self.is_used(&tensor.name));
        match unused {
            None => Ok(self.program),
            Some(tensor) => {
                let (name, arch) = (&tensor.name, self.arch.name);
                Err(Error::Unsupported(format!("tensor `{name}` is not part of the supported `{arch}` models")))
            }
        }
    }

    fn is_used(&self, name: &str) -> bool {
        self.matrices.contains_key(name)
            || self.vectors.contains(name)
            || name == global::ROPE_DIVISORS
            || is_redundant(name)
    }

    fn push(&mut self, op: Op) -> Result<()> {
        push(&mut self.program.ops, op, OPS)
    }

    fn value(&mut self, width: usize, rows: Rows) -> Result<ValueId> {
        push(&mut self.program.values, Value { width, rows }, OPS)?;
        Ok(ValueId(self.program.values.len() - 1))
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let Value { width, rows } = self.program.values[x.0];
        let weight = self.vector(name, width)?;
        let out = self.value(width, rows)?;
        self.push(Op::Norm { x, weight, out })?;
        Ok(out)
    }

    fn head_norm(&mut self, name: &str, x: ValueId) -> Result<()> {
        if self.has(name, self.arch.qk_norm)? {
            let weight = self.vector(name, self.hparams.head_dim)?;
            self.push(Op::HeadNorm { x, weight })?;
        }
        Ok(())
    }

    fn project(&mut self, name: &str, x: ValueId, width: usize, bias: Presence) -> Result<ValueId> {
        let Value { width: cols, rows } = self.program.values[x.0];
        let matrix = self.matrix(&format!("{name}.weight"), width, cols)?;
        let bias = self.bias(&format!("{name}.bias"), width, bias)?;
        let out = self.value(width, rows)?;
        self.push(Op::MatMul { x, matrix, bias, out })?;
        Ok(out)
    }

    fn bias(&mut self, name: &str, width: usize, presence: Presence) -> Result<Option<VectorId>> {
        if self.has(name, presence)? { self.vector(name, width).map(Some) } else { Ok(None) }
    }

    fn has(&self, name: &str, presence: Presence) -> Result<bool> {
        match presence {
            Presence::Absent => Ok(false),
            Presence::Optional => Ok(self.gguf.tensor(name).is_some()),
            Presence::Required => self.info(name).map(|_| true),
        }
    }

    fn info(&self, name: &str) -> Result<&'a TensorInfo> {
        self.gguf.tensor(name).ok_or_else(|| Error::Format(format!("tensor `{name}` is missing")))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId> {
        if let Some(&id) = self.matrices.get(name) {
            return Ok(id);
        }
        let info = self.info(name)?;
        let dtype = dtype(info)?;
        if info.dims != [cols as u64, rows as u64] {
            return Err(wrong_shape(info, vec![cols as u64, rows as u64]));
        }
        let row_bytes = dtype.row_bytes(cols as u64).ok_or_else(|| {
            Error::Format(format!(
                "tensor `{name}` has {cols} columns, {} stores blocks of {}",
                dtype.name(),
                dtype.block_len()
            ))
        })?;
        let len = row_bytes.checked_mul(rows as u64).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(|| Error::Format(format!("tensor `{name}` is too large")))?;
        let weight = Weight { name: copied_text(name, OPS)?, dtype, rows, cols, bytes: info.bytes(len)? };
        push(&mut self.program.matrices, weight, OPS)?;
        let id = MatrixId(self.program.matrices.len() - 1);
        self.matrices.insert(copied_text(name, OPS)?, id);
        Ok(id)
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<VectorId> {
        let vector = decode_vector(self.info(name)?, width)?;
        push(&mut self.program.vectors, vector, OPS)?;
        self.vectors.insert(copied_text(name, OPS)?);
        Ok(VectorId(self.program.vectors.len() - 1))
    }
}

fn dtype(info: &TensorInfo) -> Result<DType> {
    DType::from_ggml(info.type_id).ok_or_else(|| {
        Error::Unsupported(format!(
            "tensor `{}` is stored as ggml type {}, which is not supported",
            info.name, info.type_id
        ))
    })
}

fn wrong_shape(info: &TensorInfo, expected: Vec<u64>) -> Error {
    Error::Tensor { name: info.name.clone(), expected, found: info.dims.clone() }
}

/// A one-dimensional tensor of `width` elements as f32.
fn decode_vector(info: &TensorInfo, width: usize) -> Result<Vec<f32>> {
    if info.elements() != width as u64 || info.dims[0] != width as u64 {
        return Err(wrong_shape(info, vec![width as u64]));
    }
    let dtype = dtype(info)?;
    let len = dtype.row_bytes(width as u64).and_then(|len| usize::try_from(len).ok());
    let len = len.ok_or_else(|| Error::Format(format!("tensor `{}` is not whole blocks", info.name)))?;
    let mut values = filled(width, 0.0, "norm weights and biases")?;
    reference::decode(dtype, &info.bytes(len)?, &mut values);
    Ok(values)
}
