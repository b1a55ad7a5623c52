//! Adapters: low-rank changes of a program's matrices (Hu et al., "LoRA"), kept apart from them.
//!
//! Of a product `y = W x` an adapter makes `y + factor * B (A x)`. A file has `A` and `B` of each tensor that it changes, under the names that
//! llama.cpp's converter gives them; where `W` has a matrix for each expert, so have they. The embedding of tokens, whose rows are looked up, has the
//! two the other way round: a row of `A` for each token, by which `B` is multiplied. It is read whole and checked here against the program that it
//! is for; backends multiply by it.

use super::op::{ExpertProduct, Index, MatrixId, Op, Origin, Program};
use super::tensors::{dtype, wrong_shape};
use crate::arch::Hparams;
use crate::arch::names::{Idle, global::EMBEDDING};
use crate::error::{Error, Excerpt, Result, copied, copied_text, filled, push, reserve};
use crate::format::limits::ADAPTER_RANK;
use crate::format::{Gguf, Metadata, TensorInfo};
use crate::quant::{DType, reference};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::sync::Arc;

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
    /// What it adds to the embedding of tokens.
    tokens: Option<Tokens>,
    /// How many tensors its file changes.
    pairs: usize,
    /// The first tensor of its pair that changes the embedding of tokens, if it has one.
    embedding: Option<String>,
}

/// The first matrix of a pair, `A`: `rank` rows of `cols` elements, or as many for each expert.
#[derive(Clone, Debug)]
pub struct Down {
    /// F32, F16 or BF16.
    pub dtype: DType,
    /// 1 for a matrix that all rows share.
    pub experts: usize,
    /// Outputs.
    pub rank: usize,
    /// Inputs.
    pub cols: usize,
    /// The rows.
    pub bytes: Arc<Vec<u8>>,
}

/// The second matrix of a pair, `B`, turned: of each of the first one's outputs, what it adds to all outputs.
#[derive(Debug)]
pub struct Up {
    /// The number of the pair's first matrix, which several may share.
    pub down: usize,
    /// Factor on what is added.
    pub factor: f32,
    /// Outputs; of experts those of the whole tensor, of which a product may read a part.
    pub width: usize,
    /// `rank` rows of `width` elements, or as many for each expert.
    pub values: Floats,
}

/// What is added to the embedding of tokens.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The table that they are looked up in.
    pub table: MatrixId,
    /// F32, F16 or BF16: type of the rows.
    pub dtype: DType,
    /// Elements of a row.
    pub rank: usize,
    /// A row for each token.
    pub bytes: Arc<Vec<u8>>,
    /// Factor on what is added.
    pub factor: f32,
    /// Elements of an embedding.
    pub width: usize,
    /// `rank` rows of `width` elements: what each element of a token's row adds.
    pub values: Floats,
}

/// Numbers in one of two widths.
#[derive(Clone, Debug)]
pub enum Floats {
    /// 16 bits.
    F16(Arc<Vec<f16>>),
    /// 32 bits.
    F32(Arc<Vec<f32>>),
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

    /// The numbers one behind the other, little-endian.
    fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = reserve(self.bytes(), WHAT)?;
        match self {
            Floats::F16(values) => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Floats::F32(values) => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        }
        Ok(bytes)
    }
}

/// What a pair changes.
enum Change {
    /// Products of all rows with a tensor, or with parts of it.
    Products,
    /// Products of rows with the matrices of their experts, so many rows each.
    Experts { each: usize },
    /// The embedding of tokens by this table, and the products that read it too, where the head has no tensor of its own.
    Tokens { table: MatrixId },
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
        let of_matrix = filled(base.program.matrices.len(), None, WHAT)?;
        let (downs, ups) = (Vec::new(), Vec::new());
        let mut adapter = Adapter { downs, ups, of_matrix, tokens: None, pairs: 0, embedding: None };
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
        if adapter.pairs == 0 {
            return Err(Error::Format("the adapter changes nothing".into()));
        }
        Ok(adapter)
    }

    /// Bytes that reading the adapter in `gguf` keeps.
    pub fn bytes_of(gguf: &Gguf) -> u64 {
        // An embedding may be the head too.
        let times = |tensor: &TensorInfo| if tensor.name.starts_with(EMBEDDING) { 2 } else { 1 };
        let kept = |tensor: &TensorInfo| tensor.elements().saturating_mul(times(tensor) * kept_bytes(tensor) as u64);
        gguf.tensors().iter().map(kept).fold(0, u64::saturating_add)
    }

    /// Adds the pair `a` and `b` of the tensor `name`.
    fn add(&mut self, name: &str, pair: [&TensorInfo; 2], alpha: f32, base: &Base) -> Result<()> {
        let change = change_of(name, &pair[0].name, base)?;
        let rank = rank_of(pair[0], !matches!(change, Change::Tokens { .. }))?;
        // Without an alpha the file's own scale is one.
        let factor = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        match change {
            Change::Products => self.add_products(name, pair, (rank, factor), base)?,
            Change::Experts { each } => self.add_experts(name, pair, (rank, factor), each, base)?,
            Change::Tokens { table } => {
                self.embedding = Some(copied_text(&pair[0].name, WHAT)?);
                self.add_tokens(pair, (rank, factor), table, base)?;
            }
        }
        self.pairs += 1;
        Ok(())
    }

    /// Adds a pair whose tensor products read, as a whole or in rows.
    fn add_products(
        &mut self,
        name: &str,
        [a, b]: [&TensorInfo; 2],
        (rank, factor): (usize, f32),
        base: &Base,
    ) -> Result<()> {
        let origins = &base.program.origins;
        let is_part = |id: &usize| origins[*id].tensor == name;
        let first = (0..origins.len()).find(is_part).expect("a product of the tensor was found");
        let (of, cols) = (origins[first].of, base.program.matrices[first].cols);
        check_shape(a, &[cols, rank])?;
        check_shape(b, &[rank, of])?;
        let bytes = Arc::new(kept_rows(a, rank, cols)?);
        let down = Down { dtype: kept_type(a)?, experts: 1, rank, cols, bytes };
        let values = decoded(b, rank, of)?;
        push(&mut self.downs, down, WHAT)?;
        for id in (first..origins.len()).filter(is_part) {
            let Origin { first, .. } = origins[id];
            let width = base.program.matrices[id].rows;
            let part = &values[first * rank..(first + width) * rank];
            self.push_up(id, factor, width, turned(part, rank, width, is_f16(b)?)?)?;
        }
        Ok(())
    }

    /// Adds a pair with matrices for each expert, of which the model's have `each` rows.
    fn add_experts(
        &mut self,
        name: &str,
        [a, b]: [&TensorInfo; 2],
        (rank, factor): (usize, f32),
        each: usize,
        base: &Base,
    ) -> Result<()> {
        let origins = &base.program.origins;
        let id = origins.iter().position(|origin| origin.tensor == name).expect("a product of the tensor was found");
        let matrix = &base.program.matrices[id];
        let (experts, cols) = (matrix.rows / each, matrix.cols);
        check_shape(a, &[cols, rank, experts])?;
        check_shape(b, &[rank, each, experts])?;
        let bytes = Arc::new(kept_rows(a, rank.saturating_mul(experts), cols)?);
        push(&mut self.downs, Down { dtype: kept_type(a)?, experts, rank, cols, bytes }, WHAT)?;
        let values = turned(&decoded(b, rank, matrix.rows)?, rank, each, is_f16(b)?)?;
        self.push_up(id, factor, each, values)
    }

    /// Adds a pair of the embedding of tokens: for each a row of `rank` elements, and what these are multiplied by.
    fn add_tokens(
        &mut self,
        [a, b]: [&TensorInfo; 2],
        (rank, factor): (usize, f32),
        table: MatrixId,
        base: &Base,
    ) -> Result<()> {
        let program = base.program;
        let (vocab, width) = (program.matrices[table.0].rows, program.matrices[table.0].cols);
        check_shape(a, &[rank, vocab])?;
        check_shape(b, &[rank, width])?;
        let values = turned(&decoded(b, rank, width)?, rank, width, is_f16(b)?)?;
        let is_read = |op: &Op| matches!(*op, Op::MatMul { matrix, .. } if matrix == table);
        if program.all_ops().any(is_read) {
            let (dtype, bytes) = (values.dtype(), Arc::new(values.to_bytes()?));
            push(&mut self.downs, Down { dtype, experts: 1, rank, cols: width, bytes }, WHAT)?;
            let of_head = turned(&decoded(a, rank, vocab)?, rank, vocab, is_f16(a)?)?;
            self.push_up(table.0, factor, vocab, of_head)?;
        }
        let bytes = Arc::new(kept_rows(a, vocab, rank)?);
        self.tokens = Some(Tokens { table, dtype: kept_type(a)?, rank, bytes, factor, width, values });
        Ok(())
    }

    /// Adds the second matrix of the last pair for the matrix with the number `id`.
    fn push_up(&mut self, id: usize, factor: f32, width: usize, values: Floats) -> Result<()> {
        self.of_matrix[id] = Some(self.ups.len() as u32);
        push(&mut self.ups, Up { down: self.downs.len() - 1, factor, width, values }, WHAT)
    }

    /// What it is to a half of its program: the pairs of the matrices that are there. Their numbers are shared with it, not copied.
    pub fn part(&self, half: &Program) -> Result<Adapter> {
        let is_there = |id: MatrixId| half.matrices[id.0].rows > 0;
        let tokens = self.tokens.clone().filter(|tokens| is_there(tokens.table));
        let embedding = self.embedding.as_deref().filter(|_| tokens.is_some());
        let embedding = embedding.map(|name| copied_text(name, WHAT)).transpose()?;
        let (of_matrix, pairs) = (filled(self.of_matrix.len(), None, WHAT)?, self.pairs);
        let mut part = Adapter { downs: Vec::new(), ups: Vec::new(), of_matrix, tokens, pairs, embedding };
        for (index, down) in self.downs.iter().enumerate() {
            let up_of = |id: usize| self.of(MatrixId(id)).map(|(_, up)| (id, up));
            let is_own = |&(id, up): &(usize, &Up)| up.down == index && is_there(MatrixId(id));
            let mut ups = (0..self.of_matrix.len()).filter_map(up_of).filter(is_own).peekable();
            if ups.peek().is_some() {
                push(&mut part.downs, down.clone(), WHAT)?;
            }
            ups.try_for_each(|(id, up)| part.push_up(id, up.factor, up.width, up.values.clone()))?;
        }
        Ok(part)
    }

    /// Whether it changes nothing: so may a part.
    pub fn is_empty(&self) -> bool {
        self.ups.is_empty() && self.tokens.is_none()
    }

    /// What is added to products with a matrix, if anything is.
    pub fn of(&self, matrix: MatrixId) -> Option<(&Down, &Up)> {
        let up = &self.ups[(*self.of_matrix.get(matrix.0)?)? as usize];
        Some((&self.downs[up.down], up))
    }

    /// What is added to embeddings of tokens by this table, if anything is.
    pub fn tokens_of(&self, table: MatrixId) -> Option<&Tokens> {
        self.tokens.as_ref().filter(|tokens| tokens.table == table)
    }

    /// Refuses what changes more than products, for devices that run nothing else.
    pub fn check_products(&self) -> Result<()> {
        let Some(tensor) = &self.embedding else { return Ok(()) };
        Err(Error::Unsupported(format!(
            "tensor `{tensor}` cannot be applied on a gpu: it changes an embedding; the cpu can be used instead"
        )))
    }

    /// The first matrices of its pairs.
    pub fn downs(&self) -> &[Down] {
        &self.downs
    }

    /// Gives up the numbers of its matrices, which a device has elsewhere: which products it changes stays known.
    pub fn forget_numbers(&mut self) {
        self.downs.iter_mut().for_each(|down| down.bytes = Arc::default());
        self.ups.iter_mut().for_each(|up| up.values = Floats::F32(Arc::default()));
        self.tokens = None;
    }

    /// The largest rank of its pairs.
    pub fn rank(&self) -> usize {
        self.downs.iter().map(|down| down.rank).max().unwrap_or(0)
    }

    /// How many tensors of the model it changes.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Bytes of its matrices.
    pub fn bytes(&self) -> usize {
        let ups = self.ups.iter().map(|up| up.values.bytes());
        let tokens = self.tokens.iter().map(|tokens| tokens.bytes.len() + tokens.values.bytes());
        self.downs.iter().map(|down| down.bytes.len()).chain(ups).chain(tokens).sum()
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

/// What the pair of the tensor `name` changes, whose first tensor is `change`. Refuses what is read in another way than by products and as the
/// embedding of tokens.
fn change_of(name: &str, change: &str, base: &Base) -> Result<Change> {
    let refused = |why: &str| Err(Error::Unsupported(format!("tensor `{change}` cannot be applied: {why}")));
    let Base { program, tensors, .. } = *base;
    let is_of = |id: MatrixId| program.origins.get(id.0).is_some_and(|origin| origin.tensor == name);
    let mut found = None;
    for op in program.all_ops().filter(|op| op.matrix().is_some_and(is_of)) {
        match *op {
            Op::Embed { table, index: Index::Token, .. } if name == EMBEDDING => found = Some(Change::Tokens { table }),
            Op::MatMul { .. } => found = found.or(Some(Change::Products)),
            Op::ExpertMatMul(ExpertProduct { experts, .. }) => found = Some(Change::Experts { each: experts.each }),
            Op::Embed { .. } => return refused("it changes another embedding than that of tokens"),
            Op::HeadMatMul { .. } => return refused("it changes a matrix of single heads"),
            _ => return refused("it changes a matrix that is read in another way"),
        }
    }
    let is_scaled = program.origins.iter().any(|origin| origin.tensor == name && origin.is_scaled);
    match found {
        None if tensors.iter().any(|tensor| tensor.name == name) => {
            refused("it changes a tensor that is no matrix of a product")
        }
        None => Err(Error::Format(format!("tensor `{change}` is for a tensor that the model does not have"))),
        Some(_) if is_scaled => refused("it changes a matrix that has a scale beside it"),
        Some(found) => Ok(found),
    }
}

/// The rank of a pair by its first tensor: how many rows that has, or elements in a row.
fn rank_of(a: &TensorInfo, is_rows: bool) -> Result<usize> {
    let rank = a.dims.get(usize::from(is_rows)).copied().unwrap_or(1);
    usize::try_from(rank).ok().filter(|&rank| rank <= ADAPTER_RANK).ok_or_else(|| {
        Error::Unsupported(format!("tensor `{}` has rank {rank}, at most {ADAPTER_RANK} are supported", a.name))
    })
}

/// Refuses a tensor of other sizes; ones at the end may be left out.
fn check_shape(tensor: &TensorInfo, wanted: &[usize]) -> Result<()> {
    let count = tensor.dims.len().max(wanted.len());
    let size = |at: usize| tensor.dims.get(at).copied().unwrap_or(1);
    let is_right = (0..count).all(|at| size(at) == wanted.get(at).map_or(1, |&size| size as u64));
    let wanted = || wanted.iter().map(|&size| size as u64).collect();
    if is_right { Ok(()) } else { Err(wrong_shape(tensor, wanted())) }
}

/// Whether a tensor's elements are F16.
fn is_f16(tensor: &TensorInfo) -> Result<bool> {
    Ok(kept_type(tensor)? == DType::F16)
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

/// Rows of `rank` elements as columns, those of each stretch of `each` rows by themselves.
fn turned(values: &[f32], rank: usize, each: usize, as_f16: bool) -> Result<Floats> {
    let mut columns = reserve(values.len(), WHAT)?;
    for rows in values.chunks_exact(each * rank) {
        for element in 0..rank {
            columns.extend((0..each).map(|row| rows[row * rank + element]));
        }
    }
    if !as_f16 {
        return Ok(Floats::F32(Arc::new(columns)));
    }
    let mut halves = filled(columns.len(), f16::ZERO, WHAT)?;
    halves.convert_from_f32_slice(&columns);
    Ok(Floats::F16(Arc::new(halves)))
}
