//! Tensors that do not stand in a folder as the engine reads them, and how they are made: rows put into another order or made of columns, 8-bit
//! floats multiplied by their scales, blocks put together, values encoded as another type.

use super::elements::{Elements, WEIGHTS};
use super::experts::Part;
use super::multipliers::Multiplier;
use super::mxfp4;
use super::order::{Order, Turn};
use crate::error::{Error, Excerpt, Progress, Result, copied_text, filled, share};
use crate::format::safetensors::Stored;
use crate::format::{Bytes, Data, TensorInfo};
use crate::quant::{DType, fp8, reference};
use crate::sync::threads;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes between two reports of progress.
const STEP_BYTES: usize = 4 << 20;
/// Stack of a thread that encodes: it has no recursion.
const STACK_BYTES: usize = 256 << 10;

/// A matrix that is to be made.
#[derive(Debug)]
pub struct Making {
    /// Its name in a GGUF file.
    name: String,
    /// Where its bytes go.
    to: Arc<Data>,
    source: Source,
    order: Order,
    rows: u64,
    cols: u64,
    /// The type that it gets.
    dtype: DType,
    /// What its rows are multiplied by.
    multiplier: Option<Multiplier>,
}

/// Where the rows of a matrix come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder's file.
    Stored(Stored, Elements),
    /// Tensors of a folder that are alike, one behind the other.
    Stacked(Vec<Part>),
    /// A file in which it stands as the engine reads it.
    Bytes(Bytes, DType),
}

impl Source {
    /// A matrix of a file.
    pub fn of(tensor: &TensorInfo) -> Result<Source> {
        let known = DType::from_ggml(tensor.type_id);
        let len =
            known.and_then(|dtype| dtype.row_bytes(tensor.dims[0])?.checked_mul(tensor.dims[1..].iter().product()));
        let len = len.and_then(|len| usize::try_from(len).ok());
        let Some((dtype, len)) = known.zip(len) else {
            let (name, type_id) = (&tensor.name, tensor.type_id);
            let problem = format!("tensor `{name}` is stored as ggml type {type_id}, which is not supported for it");
            return Err(Error::Unsupported(problem));
        };
        Ok(Source::Bytes(tensor.bytes(len)?, dtype))
    }

    /// The type in which rows come without being encoded.
    pub fn dtype(&self) -> DType {
        match self {
            Source::Stored(_, elements) => elements.dtype(),
            Source::Stacked(parts) => parts[0].elements.dtype(),
            Source::Bytes(_, dtype) => *dtype,
        }
    }

    /// Whether its rows stand as the engine reads them.
    fn is_plain(&self) -> bool {
        match self {
            Source::Stored(_, elements) => matches!(elements, Elements::Plain(_)),
            Source::Stacked(parts) => matches!(parts[0].elements, Elements::Plain(_)),
            Source::Bytes(..) => true,
        }
    }

    /// The factors of 8-bit floats, of each tensor; empty for other types.
    fn factors(&self) -> Result<Vec<Vec<f32>>> {
        let of = |elements: &Elements| match elements {
            Elements::Scaled(scales) => scales.read().map(Some),
            Elements::Plain(_) | Elements::Blocks(_) => Ok(None),
        };
        match self {
            Source::Stored(_, elements) => Ok(of(elements)?.into_iter().collect()),
            Source::Stacked(parts) => parts.iter().filter_map(|part| of(&part.elements).transpose()).collect(),
            Source::Bytes(..) => Ok(Vec::new()),
        }
    }
}

/// A row in a tensor of a folder.
struct Place<'a> {
    stored: &'a Stored,
    elements: &'a Elements,
    /// The number of the tensor.
    tensor: usize,
    row: u64,
}

impl Making {
    /// The matrix `stored` in the order `order`, which is called `name` in a GGUF file.
    pub fn new(name: &str, stored: &Stored, elements: Elements, order: Order) -> Result<Making> {
        let [rows, cols] = matrix_of(stored)?;
        let (rows, cols, dtype) = (order.rows(rows), order.cols(cols), elements.dtype());
        let to = place(name, dtype, rows, cols)?;
        let name = copied_text(name, WEIGHTS)?;
        let source = Source::Stored(stored.clone(), elements);
        Ok(Making { name, to, source, order, rows, cols, dtype, multiplier: None })
    }

    /// The matrices `parts` of all experts, which are alike, as the table `name`.
    pub fn stacked(name: &str, parts: Vec<Part>) -> Result<Making> {
        let [rows, cols] = matrix_of(&parts[0].stored)?;
        let (rows, dtype) = (rows.saturating_mul(parts.len() as u64), parts[0].elements.dtype());
        let to = place(name, dtype, rows, cols)?;
        let (name, order) = (copied_text(name, WEIGHTS)?, Order::Plain);
        Ok(Making { name, to, source: Source::Stacked(parts), order, rows, cols, dtype, multiplier: None })
    }

    /// A matrix of `rows` rows of `cols` elements for parts of heads, which `order` finds in `source`.
    pub fn of_heads(name: &str, source: Source, order: Order, [rows, cols]: [u64; 2], dtype: DType) -> Result<Making> {
        let to = place(name, dtype, rows, cols)?;
        Ok(Making { name: copied_text(name, WEIGHTS)?, to, source, order, rows, cols, dtype, multiplier: None })
    }

    /// The same with its rows multiplied, which are those of what it is made of.
    pub fn times(self, multiplier: Option<Multiplier>) -> Making {
        Making { multiplier, ..self }
    }

    /// What it is made of, for those that make something else of it.
    pub fn into_source(self) -> Source {
        self.source
    }

    /// The matrix `tensor`, whose elements are of type `from`, encoded as `dtype`.
    pub fn encoding(tensor: &TensorInfo, from: DType, dtype: DType) -> Result<Making> {
        let (cols, rows) = (tensor.dims[0], tensor.dims[1..].iter().product());
        let to = place(&tensor.name, dtype, rows, cols)?;
        let len = from.row_bytes(cols).and_then(|row| usize::try_from(row.checked_mul(rows)?).ok());
        let bytes = tensor.bytes(len.ok_or_else(|| Error::out_of_memory(WEIGHTS, usize::MAX))?)?;
        let (name, order) = (copied_text(&tensor.name, WEIGHTS)?, Order::Plain);
        Ok(Making { name, to, source: Source::Bytes(bytes, from), order, rows, cols, dtype, multiplier: None })
    }

    /// Its name in a GGUF file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type that it gets.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where its bytes go.
    pub fn place(&self) -> &Arc<Data> {
        &self.to
    }

    /// Asks for another type.
    pub fn encode(&mut self, dtype: DType) -> Result<()> {
        self.to = place(&self.name, dtype, self.rows, self.cols)?;
        self.dtype = dtype;
        Ok(())
    }

    /// Whether rows are copied as they are.
    fn is_copy(&self) -> bool {
        let is_same = self.dtype == self.source.dtype() && self.multiplier.is_none();
        is_same && self.source.is_plain() && self.order.keeps_rows()
    }

    /// Elements of a row of the source.
    fn source_cols(&self) -> u64 {
        if let Order::Transposed(turn) = self.order { turn.width } else { self.cols }
    }

    /// Bytes that it will take.
    pub fn bytes(&self) -> u64 {
        self.to.len() as u64
    }

    /// Makes the matrix.
    fn run(&self, by: &Workshop, progress: &mut Progress) -> Result<()> {
        let mut bytes = filled(self.to.len(), 0, WEIGHTS)?;
        let rows = usize::try_from(self.rows).map_err(|_| Error::out_of_memory(WEIGHTS, usize::MAX))?;
        let row_bytes = bytes.len() / rows;
        let factors = self.source.factors()?;
        let step = (STEP_BYTES / row_bytes.max(1)).max(1);
        // Rows that are copied wait for memory alone.
        let threads = if self.is_copy() { 1 } else { by.threads };
        let by = Workshop { threads, ..*by };
        for (number, chunk) in bytes.chunks_mut(step * row_bytes).enumerate() {
            progress((number * step) as f32 / rows as f32)?;
            self.fill((number * step) as u64, row_bytes, chunk, &by, &factors)?;
        }
        self.to.fill(bytes);
        Ok(())
    }

    /// Writes the rows from `first` on to `out`, a stretch of them by each thread.
    fn fill(&self, first: u64, row_bytes: usize, out: &mut [u8], by: &Workshop, factors: &[Vec<f32>]) -> Result<()> {
        let rows = out.len() / row_bytes;
        let part = rows.div_ceil(by.threads.clamp(1, rows.max(1)));
        let write = |first: u64, out: &mut [u8]| {
            let mut reader = Reader::new(self, by.encode, factors)?;
            (first..).zip(out.chunks_exact_mut(row_bytes)).try_for_each(|(row, out)| reader.row(row, out))
        };
        if rows <= part {
            return write(first, out);
        }
        let failed = Mutex::new(None);
        let note = |result: Result<()>| {
            if let Err(error) = result {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        std::thread::scope(|scope| {
            let mut parts = out.chunks_mut(part * row_bytes).zip((first..).step_by(part));
            let own = parts.next();
            for (out, first) in parts {
                let (write, note) = (&write, &note);
                let started = threads::spawn_scoped(scope, "segno-load", STACK_BYTES, move || note(write(first, out)));
                if let Err(error) = started {
                    note(Err(Error::Device(format!("cannot start a thread that encodes weights: {error}"))));
                }
            }
            own.into_iter().for_each(|(out, first)| note(write(first, out)));
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Rows and columns of a matrix, or of all experts' as one.
fn matrix_of(stored: &Stored) -> Result<[u64; 2]> {
    match *stored.shape.as_slice() {
        [rows, cols] => Ok([rows, cols]),
        [experts, rows, cols] => Ok([experts.saturating_mul(rows), cols]),
        _ => {
            let (name, shape) = (&stored.name, &stored.shape);
            Err(Error::Format(format!("tensor `{name}` has shape {shape:?}, expected rows and columns")))
        }
    }
}

/// Room for a matrix.
fn place(name: &str, dtype: DType, rows: u64, cols: u64) -> Result<Arc<Data>> {
    let row = dtype.row_bytes(cols).ok_or_else(|| {
        let len = dtype.block_len();
        let name = Excerpt(name.as_bytes());
        Error::Unsupported(format!(
            "tensor `{name}` has {cols} columns, {dtype} stores blocks of {len}: choose another type"
        ))
    })?;
    let bytes = row.checked_mul(rows).and_then(|bytes| usize::try_from(bytes).ok());
    Ok(Data::later(bytes.ok_or_else(|| Error::out_of_memory(WEIGHTS, usize::MAX))?))
}

/// Reads rows in the order in which the engine wants them.
struct Reader<'a> {
    making: &'a Making,
    encode: Encode<'a>,
    /// Factors of 8-bit floats, of each tensor; empty for other types.
    factors: &'a [Vec<f32>],
    /// A row as it is stored, or what is read of it at once.
    raw: Vec<u8>,
    /// Its values; empty where none are needed.
    values: Vec<f32>,
    /// Of the rows of a head that become columns what is read at once, and which head and columns those are.
    tile: Option<(u64, u64)>,
    block: Vec<f32>,
    /// A row that is put together.
    column: Vec<f32>,
}

impl<'a> Reader<'a> {
    fn new(making: &'a Making, encode: Encode<'a>, factors: &'a [Vec<f32>]) -> Result<Reader<'a>> {
        let is_copy = making.is_copy();
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Error::out_of_memory(WEIGHTS, usize::MAX));
        // Of what becomes a row by another order of columns: columns of the source, rows that are kept, and elements.
        let (cols, kept, placed) = match making.order {
            Order::Transposed(turn) => (turn.span, turn.rows.count, turn.rows.count),
            Order::Columns(_) => (making.cols, 0, making.cols),
            _ => (making.cols, 0, 0),
        };
        let stored = match &making.source {
            Source::Stored(_, Elements::Blocks(_)) => DType::MXFP4.row_bytes(cols).unwrap_or(u64::MAX),
            Source::Stored(stored, _) => stored.len / matrix_of(stored)?[0] / (making.source_cols() / cols),
            Source::Stacked(parts) => parts[0].stored.len / (making.rows / parts.len() as u64),
            Source::Bytes(_, dtype) => dtype.row_bytes(cols).unwrap_or(u64::MAX),
        };
        let raw = if is_copy { Vec::new() } else { filled(size(stored)?, 0, WEIGHTS)? };
        let values = if is_copy { Vec::new() } else { filled(size(cols)?, 0.0, WEIGHTS)? };
        let block = filled(size(cols.saturating_mul(kept))?, 0.0, WEIGHTS)?;
        let column = filled(size(placed)?, 0.0, WEIGHTS)?;
        Ok(Reader { making, encode, factors, raw, values, tile: None, block, column })
    }

    /// Writes row `row` to `out`.
    fn row(&mut self, row: u64, out: &mut [u8]) -> Result<()> {
        if let Order::Transposed(turn) = self.making.order {
            return self.column(&turn, row, out);
        }
        let row = self.making.order.source(row);
        if self.raw.is_empty() {
            return self.making.read(row, out);
        }
        if let Source::Stored(stored, Elements::Blocks(scales)) = &self.making.source {
            return self.join(row, stored, scales, out);
        }
        self.decode(row)?;
        if let Some(multiplier) = self.making.multiplier {
            multiplier.apply(row, &mut self.values);
        }
        let Order::Columns(tiles) = self.making.order else {
            encoded(self.encode, self.making.dtype, &self.values, out);
            return Ok(());
        };
        for (col, to) in (0..).zip(&mut self.column) {
            *to = self.values[tiles.source(col) as usize];
        }
        encoded(self.encode, self.making.dtype, &self.column, out);
        Ok(())
    }

    /// Writes the blocks of row `row` to `out`.
    fn join(&mut self, row: u64, stored: &Stored, scales: &Stored, out: &mut [u8]) -> Result<()> {
        let count = self.raw.len() / DType::MXFP4.block_bytes();
        let (exponents, values) = self.raw.split_at_mut(count);
        scales.shard.parts.read(scales.start + row * exponents.len() as u64, exponents)?;
        stored.shard.parts.read(stored.start + row * values.len() as u64, values)?;
        mxfp4::join(values, exponents, out);
        Ok(())
    }

    /// Writes the column of some rows of a head that becomes row `row` to `out`.
    fn column(&mut self, turn: &Turn, row: u64, out: &mut [u8]) -> Result<()> {
        let (Turn { rows, width, span, .. }, (head, col)) = (*turn, turn.source(row));
        let (tile, within, cols) = (col / span, (col % span) as usize, span as usize);
        if self.tile != Some((head, tile)) {
            for row in 0..rows.count {
                // As if rows were as long as what is read of them.
                self.decode(rows.source(head * rows.count + row) * (width / span) + tile)?;
                self.block[row as usize * cols..][..cols].copy_from_slice(&self.values);
            }
            self.tile = Some((head, tile));
        }
        self.column.iter_mut().zip(self.block.iter().skip(within).step_by(cols)).for_each(|(to, from)| *to = *from);
        encoded(self.encode, self.making.dtype, &self.column, out);
        Ok(())
    }

    /// Reads the values of row `row` of the source.
    fn decode(&mut self, row: u64) -> Result<()> {
        self.making.read(row, &mut self.raw)?;
        match self.making.find(row) {
            Some(Place { elements: Elements::Scaled(scales), tensor, row, .. }) => {
                let [block_rows, block_cols] = scales.block;
                let first = row / block_rows * self.making.source_cols().div_ceil(block_cols);
                let blocks = self.raw.chunks(block_cols as usize).zip(&self.factors[tensor][first as usize..]);
                let values = blocks.flat_map(|(codes, factor)| codes.iter().map(move |&code| fp8::e4m3(code) * factor));
                self.values.iter_mut().zip(values).for_each(|(to, value)| *to = value);
            }
            _ => reference::decode(self.making.source.dtype(), &self.raw, &mut self.values),
        }
        Ok(())
    }
}

/// Writes values as `dtype`; singles are what they are.
fn encoded(encode: Encode, dtype: DType, values: &[f32], out: &mut [u8]) {
    if dtype != DType::F32 {
        return encode(dtype, values, out);
    }
    let singles = out.as_chunks_mut::<{ size_of::<f32>() }>().0;
    singles.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
}

impl Making {
    /// Where row `row` of the source lies in a folder.
    fn find(&self, row: u64) -> Option<Place<'_>> {
        match &self.source {
            Source::Stored(stored, elements) => Some(Place { stored, elements, tensor: 0, row }),
            Source::Stacked(parts) => {
                let each = self.rows / parts.len() as u64;
                let (tensor, row) = ((row / each) as usize, row % each);
                let Part { stored, elements, .. } = &parts[tensor];
                Some(Place { stored, elements, tensor, row })
            }
            Source::Bytes(..) => None,
        }
    }

    /// Reads row `row` of the source as it is stored.
    fn read(&self, row: u64, out: &mut [u8]) -> Result<()> {
        match (&self.source, self.find(row)) {
            (Source::Bytes(bytes, _), _) => {
                out.copy_from_slice(&bytes[row as usize * out.len()..][..out.len()]);
                Ok(())
            }
            (_, Some(Place { stored, row, .. })) => stored.shard.parts.read(stored.start + row * out.len() as u64, out),
            (_, None) => unreachable!("rows of folders lie somewhere"),
        }
    }
}

/// Encodes whole blocks of values, as [`crate::quant::encode::encode`] does.
pub type Encode<'a> = &'a (dyn Fn(DType, &[f32], &mut [u8]) + Sync);

/// What makes tensors.
#[derive(Clone, Copy)]
pub struct Workshop<'a> {
    /// Most threads at work.
    pub threads: usize,
    /// The encoder.
    pub encode: Encode<'a>,
}

/// Makes all of `makings`; `progress` hears of it.
pub fn run(makings: &[Making], by: &Workshop, progress: &mut Progress) -> Result<()> {
    let total = makings.iter().map(Making::bytes).sum::<u64>().max(1) as f64;
    let mut done = 0;
    for making in makings {
        let end = done + making.bytes();
        let (from, to) = ((done as f64 / total) as f32, (end as f64 / total) as f32);
        making.run(by, &mut share(progress, from, to))?;
        done = end;
    }
    Ok(())
}
