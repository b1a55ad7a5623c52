//! Adapters: low-rank changes of a program's matrices (Hu et al., "LoRA"), kept apart from them.
//!
//! Of a product `y = W x` an adapter makes `y + factor * B (A x)`. A file has `A` and `B` of each tensor that it changes, under the names that
//! llama.cpp's converter gives them. It is read whole and checked here against the program that it is for; backends multiply by it.

use super::op::{MatrixId, Op, Origin, Program};
use super::tensors::{dtype, wrong_shape};
use crate::arch::Hparams;
use crate::arch::names::Idle;
use crate::error::{Error, Excerpt, Result, copied, filled, push, reserve};
use crate::format::limits::ADAPTER_RANK;
use crate::format::{Gguf, Metadata, TensorInfo};
use crate::quant::{DType, reference};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// What memory is for.
const WHAT: &str = "an adapter";
/// What the names of a pair's tensors end with, behind that of the tensor that they change.
const ENDS: [&str; 2] = [".lora_a", ".lora_b"];
/// The factor on all that an adapter adds, before it is divided by the rank.
pub const ALPHA: &str = "adapter.lora.alpha";
/// What may be said of an adapter.
const KEYS: [&str; 4] = ["adapter.type", ALPHA, "adapter.lora.task_name", "adapter.lora.prompt_prefix"];

/// What an adapter adds to the products of a program.
#[derive(Debug)]
pub struct Adapter {
    downs: Vec<Down>,
    ups: Vec<Up>,
    /// Of each matrix of the program its place in `ups`.
    of_matrix: Vec<Option<u32>>,
}

/// The first matrix of a pair, `A`: `rank` rows of `cols` elements.
#[derive(Debug)]
pub struct Down {
    /// F32, F16 or BF16.
    pub dtype: DType,
    /// Outputs.
    pub rank: usize,
    /// Inputs.
    pub cols: usize,
    /// The rows.
    pub bytes: Vec<u8>,
}

/// The second matrix of a pair, `B`, turned: of each of the first one's outputs, what it adds to all outputs.
#[derive(Debug)]
pub struct Up {
    /// The number of the pair's first matrix, which several may share.
    pub down: usize,
    /// Factor on what is added.
    pub factor: f32,
    /// Outputs.
    pub width: usize,
    /// `rank` rows of `width` elements.
    pub values: Floats,
}

/// Numbers in one of two widths.
#[derive(Debug)]
pub enum Floats {
    /// 16 bits.
    F16(Vec<f16>),
    /// 32 bits.
    F32(Vec<f32>),
}

impl Floats {
    /// How they are stored.
    pub fn dtype(&self) -> DType {
        match self {
            Floats::F16(_) => DType::F16,
            Floats::F32(_) => DType::F32,
        }
    }

    /// Bytes of the numbers.
    pub fn bytes(&self) -> usize {
        match self {
            Floats::F16(values) => size_of_val(values.as_slice()),
            Floats::F32(values) => size_of_val(values.as_slice()),
        }
    }
}

/// The model that an adapter is for.
#[derive(Clone, Copy)]
pub struct Base<'a> {
    /// Its forward pass.
    pub program: &'a Program,
    /// The name of its family.
    pub family: &'a str,
    /// Its sizes.
    pub hparams: &'a Hparams,
    /// The tensors of its file.
    pub tensors: &'a [TensorInfo],
}

impl Adapter {
    /// Reads the adapter in `gguf`. What it would change and cannot is refused by name: the model would run wrongly.
    pub fn read(gguf: &Gguf, base: &Base) -> Result<Adapter> {
        let alpha = check_metadata(gguf.metadata(), base.family)?;
        let mut adapter =
            Adapter { downs: Vec::new(), ups: Vec::new(), of_matrix: filled(base.program.matrices.len(), None, WHAT)? };
        for tensor in gguf.tensors() {
            let Some((name, other)) = pair_of(&tensor.name) else {
                let name = &tensor.name;
                let problem = format!("tensor `{name}` is no part of a low-rank adapter (.lora_a, .lora_b)");
                return Err(Error::Unsupported(problem));
            };
            let other = gguf.tensor(&format!("{name}{other}")).ok_or_else(|| {
                Error::Format(format!("tensor `{}` stands alone: `{name}{other}` is missing", tensor.name))
            })?;
            // What is not run is not changed either.
            if tensor.name.ends_with(ENDS[0]) && Idle::of(name, base.hparams).is_none() {
                adapter.add(name, [tensor, other], alpha, base)?;
            }
        }
        if adapter.ups.is_empty() {
            return Err(Error::Format("the adapter changes nothing".into()));
        }
        Ok(adapter)
    }

    /// Bytes that reading the adapter in `gguf` keeps.
    pub fn bytes_of(gguf: &Gguf) -> u64 {
        let kept = |tensor: &TensorInfo| tensor.elements().saturating_mul(kept_bytes(tensor) as u64);
        gguf.tensors().iter().map(kept).fold(0, u64::saturating_add)
    }

    /// Adds the pair `a` and `b` of the tensor `name`.
    fn add(&mut self, name: &str, [a, b]: [&TensorInfo; 2], alpha: f32, base: &Base) -> Result<()> {
        check_is_product(name, &a.name, base)?;
        let rank = rank_of(a)?;
        let origins = &base.program.origins;
        let is_part = |id: &usize| origins[*id].tensor == name;
        let first = (0..origins.len()).find(is_part).expect("a product of the tensor was found");
        let (of, cols) = (origins[first].of, base.program.matrices[first].cols);
        let shape = |tensor: &TensorInfo, dims: [usize; 2]| {
            let dims = dims.map(|dim| dim as u64);
            let is_row = dims[1] == 1 && tensor.dims == dims[..1];
            if is_row || tensor.dims == dims { Ok(()) } else { Err(wrong_shape(tensor, dims.to_vec())) }
        };
        shape(a, [cols, rank])?;
        shape(b, [rank, of])?;
        let down = Down { dtype: kept_type(a)?, rank, cols, bytes: kept_rows(a, rank, cols)? };
        let values = decoded(b, rank, of)?;
        push(&mut self.downs, down, WHAT)?;
        // Without an alpha the file's own scale is one.
        let factor = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        for id in (first..origins.len()).filter(is_part) {
            let Origin { first, .. } = origins[id];
            let width = base.program.matrices[id].rows;
            let values = turned(&values[first * rank..(first + width) * rank], rank, kept_type(b)? == DType::F16)?;
            self.of_matrix[id] = Some(self.ups.len() as u32);
            push(&mut self.ups, Up { down: self.downs.len() - 1, factor, width, values }, WHAT)?;
        }
        Ok(())
    }

    /// What is added to products with a matrix, if anything is.
    pub fn of(&self, matrix: MatrixId) -> Option<(&Down, &Up)> {
        let up = &self.ups[(*self.of_matrix.get(matrix.0)?)? as usize];
        Some((&self.downs[up.down], up))
    }

    /// The first matrices of its pairs.
    pub fn downs(&self) -> &[Down] {
        &self.downs
    }

    /// Gives up the numbers of its matrices, which a device has elsewhere: what it changes stays known.
    pub fn forget_numbers(&mut self) {
        self.downs.iter_mut().for_each(|down| down.bytes = Vec::new());
        self.ups.iter_mut().for_each(|up| up.values = Floats::F32(Vec::new()));
    }

    /// The largest rank of its pairs.
    pub fn rank(&self) -> usize {
        self.downs.iter().map(|down| down.rank).max().unwrap_or(0)
    }

    /// How many tensors of the model it changes.
    pub fn pairs(&self) -> usize {
        self.downs.len()
    }

    /// Bytes of its matrices.
    pub fn bytes(&self) -> usize {
        let ups = self.ups.iter().map(|up| up.values.bytes());
        self.downs.iter().map(|down| down.bytes.len()).chain(ups).sum()
    }
}

/// Refuses a file that is no adapter, or one for models of another family; gives its alpha.
fn check_metadata(meta: &Metadata, family: &str) -> Result<f32> {
    let is = |key: &str, wanted: &str, problem: &str| match meta.text(key)? {
        Some(found) if found == wanted => Ok(()),
        Some(found) => {
            let found = Excerpt(found.as_bytes());
            Err(Error::Unsupported(format!("{problem}: `{key}` is `{found}`, `{wanted}` is needed")))
        }
        None => Err(Error::Unsupported(format!("{problem}: `{key}` is missing, `{wanted}` is needed"))),
    };
    is("general.type", "adapter", "the file is no adapter")?;
    is("adapter.type", "lora", "the adapter is of a kind that is not supported")?;
    is("general.architecture", family, "the adapter is for models of another family")?;
    let mut keys = meta.entries().map(|(key, _)| key);
    if let Some(key) = keys.find(|key| key.starts_with("adapter.") && !KEYS.contains(key)) {
        let key = Excerpt(key.as_bytes());
        return Err(Error::Unsupported(format!("the adapter's metadata `{key}` is not supported")));
    }
    Ok(meta.f32(ALPHA)?.unwrap_or(0.0))
}

/// The tensor that the tensor `name` changes, and the end of the name of the other one of the pair.
fn pair_of(name: &str) -> Option<(&str, &'static str)> {
    let [a, b] = ENDS;
    name.strip_suffix(a).map(|name| (name, b)).or_else(|| name.strip_suffix(b).map(|name| (name, a)))
}

/// Refuses to change the tensor `name`, as `change` would, where it is not multiplied as a whole or in rows.
fn check_is_product(name: &str, change: &str, base: &Base) -> Result<()> {
    let refused = |why: &str| Err(Error::Unsupported(format!("tensor `{change}` cannot be applied: {why}")));
    let Base { program, tensors, .. } = *base;
    let is_of = |id: MatrixId| program.origins.get(id.0).is_some_and(|origin| origin.tensor == name);
    let uses = program.all_ops().filter(|op| op.matrix().is_some_and(is_of));
    let mut products = 0;
    for op in uses {
        match op {
            Op::MatMul { .. } => products += 1,
            Op::Embed { .. } => return refused("it changes an embedding"),
            Op::HeadMatMul { .. } => return refused("it changes a matrix of single heads"),
            _ => return refused("it changes matrices of experts"),
        }
    }
    let is_scaled = program.origins.iter().any(|origin| origin.tensor == name && origin.is_scaled);
    match products {
        0 if tensors.iter().any(|tensor| tensor.name == name) => {
            refused("it changes a tensor that is no matrix of a product")
        }
        0 => Err(Error::Format(format!("tensor `{change}` is for a tensor that the model does not have"))),
        _ if is_scaled => refused("it changes a matrix that has a scale beside it"),
        _ => Ok(()),
    }
}

/// The rank of a pair by its first tensor.
fn rank_of(a: &TensorInfo) -> Result<usize> {
    let rank = a.dims.get(1).copied().unwrap_or(1);
    usize::try_from(rank).ok().filter(|&rank| rank <= ADAPTER_RANK).ok_or_else(|| {
        Error::Unsupported(format!("tensor `{}` has rank {rank}, at most {ADAPTER_RANK} are supported", a.name))
    })
}

/// The type in which a tensor's elements are kept: its own if that is one of floats.
fn kept_type(tensor: &TensorInfo) -> Result<DType> {
    Ok(match dtype(tensor)? {
        own @ (DType::F16 | DType::BF16) => own,
        _ => DType::F32,
    })
}

/// The most bytes that an element is kept in.
fn kept_bytes(tensor: &TensorInfo) -> usize {
    if DType::from_ggml(tensor.type_id) == Some(DType::F16) { 2 } else { 4 }
}

/// The rows of a tensor, decoded unless they are floats.
fn kept_rows(tensor: &TensorInfo, rows: usize, cols: usize) -> Result<Vec<u8>> {
    if kept_type(tensor)? == dtype(tensor)? {
        return copied(&tensor.bytes(stored(tensor, rows, cols)?)?, WHAT);
    }
    let values = decoded(tensor, cols, rows)?;
    let mut bytes = reserve(values.len() * size_of::<f32>(), WHAT)?;
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Ok(bytes)
}

/// Bytes of a tensor of these sizes, which are its own.
fn stored(tensor: &TensorInfo, rows: usize, cols: usize) -> Result<usize> {
    let dtype = dtype(tensor)?;
    let row = dtype.row_bytes(cols as u64).and_then(|bytes| usize::try_from(bytes).ok());
    row.and_then(|row| row.checked_mul(rows)).ok_or_else(|| {
        let (name, dtype) = (&tensor.name, dtype.name());
        Error::Format(format!("tensor `{name}` of {rows} rows of {cols} elements cannot be stored as {dtype}"))
    })
}

/// The elements of a tensor of `rows` rows of `cols` elements.
fn decoded(tensor: &TensorInfo, cols: usize, rows: usize) -> Result<Vec<f32>> {
    let bytes = tensor.bytes(stored(tensor, rows, cols)?)?;
    let mut values = filled(rows * cols, 0.0, WHAT)?;
    reference::decode(dtype(tensor)?, &bytes, &mut values);
    Ok(values)
}

/// Rows of `rank` elements as columns.
fn turned(values: &[f32], rank: usize, as_f16: bool) -> Result<Floats> {
    let rows = values.len() / rank;
    let mut columns = reserve(values.len(), WHAT)?;
    for element in 0..rank {
        columns.extend((0..rows).map(|row| values[row * rank + element]));
    }
    if !as_f16 {
        return Ok(Floats::F32(columns));
    }
    let mut halves = filled(columns.len(), f16::ZERO, WHAT)?;
    halves.convert_from_f32_slice(&columns);
    Ok(Floats::F16(halves))
}
