//! From the tensors of a file to the weights of a program: looks them up by name, checks shape and type, and tells in the end which
//! ones nothing used. It does not know the order of a layer.

use super::op::{MatrixId, Origin, VectorId, Weight};
use crate::arch::Hparams;
use crate::arch::names::{Idle, is_in_layer};
use crate::arch::spec::Presence;
use crate::error::{Error, Result, collected, copied_text, filled, push, reserve, room};
use crate::format::{Gguf, INTEGERS_64, TensorInfo};
use crate::quant::{DType, reference};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What the memory of a program is for.
pub(super) const PLAN: &str = "the plan of a pass";

/// Rows of a tensor: all, or those of one of several weights that a file stores as one.
pub(super) struct Part {
    /// Those that are meant, within `of`.
    pub taken: Range<usize>,
    /// How many the tensor must have.
    pub of: usize,
}

impl Part {
    /// All rows of a tensor.
    pub fn all(count: usize) -> Part {
        Part { taken: 0..count, of: count }
    }
}

/// What was made of the tensors of a file.
pub(super) struct Weights {
    /// Matrices, in file format.
    pub matrices: Vec<Weight>,
    /// Where each of them comes from.
    pub origins: Vec<Origin>,
    /// Decoded vectors.
    pub vectors: Vec<Vec<f32>>,
    /// How many tensors of each kind of [`Idle::ALL`] nothing used.
    pub idle: [usize; Idle::ALL.len()],
}

/// The tensors of a file, and the weights made of them so far.
pub(super) struct Tensors<'a> {
    gguf: &'a Gguf,
    matrices: Vec<Weight>,
    origins: Vec<Origin>,
    vectors: Vec<Vec<f32>>,
    matrix_ids: HashMap<String, MatrixId>,
    used: HashSet<String>,
}

impl<'a> Tensors<'a> {
    /// Nothing used yet.
    pub fn new(gguf: &'a Gguf) -> Result<Self> {
        // No tensor is used under two names, so the file says how many there can be.
        let count = gguf.tensors().len();
        let bytes = count.saturating_mul(size_of::<(String, MatrixId)>());
        let (mut matrix_ids, mut used) = (HashMap::new(), HashSet::new());
        room(bytes, PLAN, || matrix_ids.try_reserve(count))?;
        room(bytes, PLAN, || used.try_reserve(count))?;
        let (matrices, origins, vectors) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Tensors { gguf, matrices, origins, vectors, matrix_ids, used })
    }

    /// Whether the file has a tensor that a family has under this name; an error where it must.
    pub fn has(&self, name: &str, presence: Presence) -> Result<bool> {
        match presence {
            Presence::Absent => Ok(false),
            Presence::Optional => Ok(self.gguf.tensor(name).is_some()),
            Presence::Required => self.info(name).map(|_| true),
        }
    }

    /// A tensor that must be there.
    pub fn info(&self, name: &str) -> Result<&'a TensorInfo> {
        self.gguf.tensor(name).ok_or_else(|| Error::Format(format!("tensor `{name}` is missing")))
    }

    /// How many rows the matrix `name` of `cols` columns has, one for each token.
    pub fn rows_of_tokens(&self, name: &str, cols: usize) -> Result<usize> {
        let info = self.info(name)?;
        let rows = match info.dims.as_slice() {
            [_, rows] => usize::try_from(*rows).ok().filter(|&rows| rows <= i32::MAX as usize),
            _ => None,
        };
        rows.ok_or_else(|| {
            let dims = &info.dims;
            Error::Format(format!("tensor `{name}` has shape {dims:?}, expected {cols} columns and a row a token"))
        })
    }

    /// A matrix that was made before.
    pub fn weight(&self, id: MatrixId) -> &Weight {
        &self.matrices[id.0]
    }

    /// The matrix `name`, which stays as it is in the file.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId> {
        if let Some(&id) = self.matrix_ids.get(name) {
            return Ok(id);
        }
        let id = self.rows(name, &Part::all(rows), cols)?;
        self.matrix_ids.insert(copied_text(name, PLAN)?, id);
        Ok(id)
    }

    /// The matrices of all experts as one, `rows` rows of each of `count`, which stay as they are in the file.
    pub fn experts(&mut self, name: &str, rows: usize, cols: usize, count: usize) -> Result<MatrixId> {
        let (info, dims) = (self.info(name)?, [cols as u64, rows as u64, count as u64]);
        if info.dims != dims {
            return Err(wrong_shape(info, dims.to_vec()));
        }
        let all = rows.checked_mul(count).ok_or_else(|| Error::Format(format!("tensor `{name}` is too large")))?;
        self.place(info, &Part::all(all), cols)
    }

    /// Part of the matrix `name` as a matrix, which stay as they are in the file.
    pub fn rows(&mut self, name: &str, part: &Part, cols: usize) -> Result<MatrixId> {
        let info = self.info(name)?;
        // One row may be a vector.
        let is_row = part.of == 1 && info.dims == [cols as u64];
        if !is_row && info.dims != [cols as u64, part.of as u64] {
            return Err(wrong_shape(info, vec![cols as u64, part.of as u64]));
        }
        self.place(info, part, cols)
    }

    /// A tensor of `part.of` rows as a matrix of some of them.
    fn place(&mut self, info: &TensorInfo, part: &Part, cols: usize) -> Result<MatrixId> {
        let (name, dtype) = (info.name.as_str(), dtype(info)?);
        let row_bytes = dtype.row_bytes(cols as u64).ok_or_else(|| {
            Error::Format(format!(
                "tensor `{name}` has {cols} columns, {} stores blocks of {}",
                dtype.name(),
                dtype.block_len()
            ))
        })?;
        let bytes_of = |rows: usize| row_bytes.checked_mul(rows as u64).and_then(|len| usize::try_from(len).ok());
        let len = bytes_of(part.of).ok_or_else(|| Error::Format(format!("tensor `{name}` is too large")))?;
        let [start, end] = [part.taken.start, part.taken.end].map(|row| bytes_of(row).filter(|&byte| byte <= len));
        let bytes = info.bytes(len)?;
        let bytes = start.zip(end).and_then(|(start, end)| bytes.part(start..end));
        let bytes =
            bytes.ok_or_else(|| Error::Format(format!("tensor `{name}` has fewer than {:?} rows", part.taken)))?;
        let weight = Weight { dtype, rows: part.taken.len(), cols, bytes };
        push(&mut self.matrices, weight, PLAN)?;
        let tensor = copied_text(name, PLAN)?;
        let origin = Origin { tensor, first: part.taken.start, of: part.of, is_scaled: false };
        push(&mut self.origins, origin, PLAN)?;
        self.mark(name)?;
        Ok(MatrixId(self.matrices.len() - 1))
    }

    /// The one-dimensional tensor `name`, decoded to f32.
    pub fn vector(&mut self, name: &str, width: usize) -> Result<VectorId> {
        self.elements(name, &Part::all(width))
    }

    /// Elements of the one-dimensional tensor `name`, decoded to f32.
    pub fn elements(&mut self, name: &str, part: &Part) -> Result<VectorId> {
        let mut values = self.decode(name, part.of)?;
        values.truncate(part.taken.end);
        values.drain(..part.taken.start);
        push(&mut self.vectors, values, PLAN)?;
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// The tensor `name` of `count` rows of `width` elements, decoded to f32, one row behind the other.
    pub fn table(&mut self, name: &str, width: usize, count: usize) -> Result<VectorId> {
        let (info, dims) = (self.info(name)?, [width as u64, count as u64]);
        let len = width.checked_mul(count).filter(|_| info.dims == dims);
        let values = decode_elements(info, len.ok_or_else(|| wrong_shape(info, dims.to_vec()))?)?;
        push(&mut self.vectors, values, PLAN)?;
        self.mark(name)?;
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// The one-dimensional tensor `name` times `factor`, decoded to f32.
    pub fn scaled_vector(&mut self, name: &str, width: usize, factor: f32) -> Result<VectorId> {
        let mut values = self.decode(name, width)?;
        values.iter_mut().for_each(|value| *value *= factor);
        push(&mut self.vectors, values, PLAN)?;
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// The elements of the one-dimensional tensor `name` of `count` 64-bit integers.
    pub fn integers(&mut self, name: &str, count: usize) -> Result<Vec<i64>> {
        let info = self.info(name)?;
        if info.type_id != INTEGERS_64 {
            let problem = format!("tensor `{name}` is stored as ggml type {}, not as 64-bit integers", info.type_id);
            return Err(Error::Format(problem));
        }
        if info.dims != [count as u64] {
            return Err(wrong_shape(info, vec![count as u64]));
        }
        let bytes = info.bytes(count * size_of::<i64>())?;
        let integers = bytes.as_chunks().0.iter().map(|raw| i64::from_le_bytes(*raw));
        let integers = collected(integers, PLAN)?;
        self.mark(name)?;
        Ok(integers)
    }

    /// The one number of the tensor `name`.
    pub fn number(&mut self, name: &str) -> Result<f32> {
        match self.decode(name, 1)?[0] {
            number if number.is_finite() => Ok(number),
            number => Err(Error::Format(format!("tensor `{name}` holds {number}"))),
        }
    }

    /// Some columns of the convolution `name`, of which the file has the weights of all `taps` behind each other: a row for each tap.
    pub fn taps(&mut self, name: &str, taps: usize, part: &Part) -> Result<VectorId> {
        let (info, dims) = (self.info(name)?, [taps as u64, part.of as u64]);
        let len = taps.checked_mul(part.of).filter(|_| info.dims == dims);
        let values = decode_elements(info, len.ok_or_else(|| wrong_shape(info, dims.to_vec()))?)?;
        let mut rows = reserve(taps * part.taken.len(), PLAN)?;
        for tap in 0..taps {
            rows.extend(part.taken.clone().map(|column| values[column * taps + tap]));
        }
        push(&mut self.vectors, rows, PLAN)?;
        self.mark(name)?;
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// A vector of equal elements, which no file holds.
    pub fn constant(&mut self, value: f32, width: usize) -> Result<VectorId> {
        push(&mut self.vectors, filled(width, value, PLAN)?, PLAN)?;
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// The factors that a file has for each of `count` experts of the projection `name`, if any; see [`Tensors::scale`].
    pub fn expert_scales(&mut self, name: &str, count: usize) -> Result<Option<VectorId>> {
        let input = format!("{name}.input_scale");
        if self.has(&input, Presence::Optional)? {
            self.decode(&input, count)?;
        }
        let own = format!("{name}.scale");
        if self.has(&own, Presence::Optional)? { self.vector(&own, count).map(Some) } else { Ok(None) }
    }

    /// The factor that a file has for all elements of the projection `name`, if any. The one for what it multiplies is for devices that
    /// round activations to 4 bits: nothing here does.
    pub fn scale(&mut self, name: &str) -> Result<Option<f32>> {
        let input = format!("{name}.input_scale");
        if self.has(&input, Presence::Optional)? {
            self.decode(&input, 1)?;
        }
        let own = format!("{name}.scale");
        if !self.has(&own, Presence::Optional)? {
            return Ok(None);
        }
        let weight = format!("{name}.weight");
        let scaled = self.origins.iter_mut().filter(|origin| origin.tensor == weight);
        scaled.for_each(|origin| origin.is_scaled = true);
        self.number(&own).map(Some)
    }

    /// The elements of the one-dimensional tensor `name`, which need not become weights of the program.
    pub fn decode(&mut self, name: &str, width: usize) -> Result<Vec<f32>> {
        let values = decode_vector(self.info(name)?, width)?;
        self.mark(name)?;
        Ok(values)
    }

    /// Ends the use of the file of a model with `hparams`, or of one `block` of it: the tensors of each kind that nothing used because it is not
    /// run. Others that nothing used are refused.
    pub fn finish(self, family: &str, hparams: &Hparams, block: Option<usize>) -> Result<Weights> {
        let mut idle = [0; Idle::ALL.len()];
        for tensor in self.gguf.tensors().iter().filter(|tensor| !self.used.contains(tensor.name.as_str())) {
            let name = &tensor.name;
            if block.is_some_and(|block| !is_in_layer(block, name)) {
                continue;
            }
            match Idle::of(name, hparams) {
                Some(kind) => idle[kind as usize] += 1,
                None => {
                    let problem = format!("tensor `{name}` is not part of the supported `{family}` models");
                    return Err(Error::Unsupported(problem));
                }
            }
        }
        Ok(Weights { matrices: self.matrices, origins: self.origins, vectors: self.vectors, idle })
    }

    fn mark(&mut self, name: &str) -> Result<()> {
        self.used.insert(copied_text(name, PLAN)?);
        Ok(())
    }
}

/// The storage type of a tensor.
pub(super) fn dtype(info: &TensorInfo) -> Result<DType> {
    DType::from_ggml(info.type_id).ok_or_else(|| {
        Error::Unsupported(format!(
            "tensor `{}` is stored as ggml type {}, which is not supported",
            info.name, info.type_id
        ))
    })
}

/// The error for a tensor that should have the sizes `expected`.
pub(super) fn wrong_shape(info: &TensorInfo, expected: Vec<u64>) -> Error {
    Error::Tensor { name: info.name.clone(), expected, found: info.dims.clone() }
}

/// A one-dimensional tensor of `width` elements as f32.
fn decode_vector(info: &TensorInfo, width: usize) -> Result<Vec<f32>> {
    if info.elements() != width as u64 || info.dims[0] != width as u64 {
        return Err(wrong_shape(info, vec![width as u64]));
    }
    decode_elements(info, width)
}

/// All elements of a tensor, `width` of them, as f32.
fn decode_elements(info: &TensorInfo, width: usize) -> Result<Vec<f32>> {
    let dtype = dtype(info)?;
    let len = dtype.row_bytes(width as u64).and_then(|len| usize::try_from(len).ok());
    let len = len.ok_or_else(|| Error::Format(format!("tensor `{}` is not whole blocks", info.name)))?;
    let mut values = filled(width, 0.0, "norm weights and biases")?;
    reference::decode(dtype, &info.bytes(len)?, &mut values);
    Ok(values)
}
