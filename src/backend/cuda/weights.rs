//! A program's weights on the device: placed in slices, uploaded through two pinned buffers and repacked there.

use super::args::{Matrix, RepackArgs};
use super::driver::Primary;
use super::lower::{is_quantized, takes};
use super::memory::{Block, Mapped, Places, free_bytes};
use super::module::{Kernels, Stream};
use crate::error::{Error, Result, collected};
use crate::plan::{Program, Weight};
use crate::quant::DType;
use std::sync::Arc;

/// Bytes of a staging buffer; a whole number of blocks of every type fits nearly all of it.
const STAGING_BYTES: usize = 16 << 20;

/// All weights of a program.
pub struct Weights {
    pub matrices: Vec<Matrix>,
    pub vectors: Vec<u64>,
    /// Angle a position of every rotated pair.
    pub frequencies: u64,
    /// Owns what the addresses point to.
    _block: Block,
}

/// What the host's memory is for.
const WEIGHTS: &str = "places of weights";

/// Device bytes of a program's weights.
pub fn bytes(program: &Program) -> Result<usize> {
    let mut places = Places::default();
    place(program, &mut places)?;
    Ok(places.bytes())
}

/// Gives every weight its place: matrices, vectors, and the angles.
pub fn place(program: &Program, places: &mut Places) -> Result<(Vec<Matrix>, Vec<u64>, u64)> {
    let matrices = collected(program.matrices.iter().map(|weight| place_matrix(weight, places)), WEIGHTS)?;
    let vectors = program.vectors.iter().map(|vector| places.take(size_of_val(vector.as_slice())));
    let vectors = collected(vectors, WEIGHTS)?;
    let frequencies = places.take(size_of_val(program.rope.frequencies.as_slice()));
    Ok((matrices, vectors, frequencies))
}

/// Columns of a slice of a quantized row; float rows stand as they are, and a warp takes this many columns of them at a time.
const SLICE_COLS: [usize; 2] = [1024, 256];

/// Bytes of a slice of `groups` groups of 32: codes, high bits and scales of each group, then the scales of whole blocks.
fn slice_bytes(dtype: DType, groups: usize) -> usize {
    let bytes = match dtype {
        DType::Q8_0 => 34 * groups,
        DType::Q4_K => 18 * groups + groups / 2,
        DType::Q5_K => 22 * groups + groups / 2,
        _ => 26 * groups + groups / 4,
    };
    bytes.next_multiple_of(16)
}

fn place_matrix(weight: &Weight, places: &mut Places) -> Matrix {
    let dtype = takes(weight.dtype).unwrap_or(0);
    let float_bytes = if dtype == 0 { 4 } else { 2 };
    let (row_bytes, slice) = if is_quantized(weight.dtype) {
        let (whole, rest) = (weight.cols / SLICE_COLS[0], weight.cols % SLICE_COLS[0]);
        let slice = slice_bytes(weight.dtype, SLICE_COLS[0] / 32);
        (whole * slice + slice_bytes(weight.dtype, rest / 32), slice)
    } else {
        (weight.cols * float_bytes, SLICE_COLS[1] * float_bytes)
    };
    Matrix {
        data: places.take(weight.rows.saturating_mul(row_bytes)),
        row_bytes: row_bytes as u32,
        slice_bytes: slice as u32,
        dtype,
        rows: weight.rows as u32,
        cols: weight.cols as u32,
        pad: 0,
    }
}

impl Weights {
    /// Uploads everything; the context must be current.
    pub fn upload(program: &Program, primary: &Arc<Primary>, kernels: &Arc<Kernels>) -> Result<Weights> {
        let (needed, free) = (bytes(program)? as u64, free_bytes()?);
        if needed > free {
            return Err(Error::DeviceMemory { needed, free });
        }
        let block = Block::new(primary, bytes(program)?)?;
        let (matrices, vectors, frequencies) = place(program, &mut Places::new(block.address()))?;
        let mut upload = Upload::new(primary, kernels)?;
        for (weight, matrix) in program.matrices.iter().zip(&matrices) {
            upload.matrix(weight, matrix)?;
        }
        for (vector, &to) in program.vectors.iter().zip(&vectors) {
            upload.floats(vector, to)?;
        }
        upload.floats(&program.rope.frequencies, frequencies)?;
        upload.streams.iter().try_for_each(Stream::wait)?;
        Ok(Weights { matrices, vectors, frequencies, _block: block })
    }
}

/// Two lanes, each a stream with a pinned buffer and a place for blocks on the device; used in turn.
struct Upload {
    streams: [Stream; 2],
    pinned: [Mapped<u8>; 2],
    raw: [Block; 2],
    lane: usize,
}

impl Upload {
    fn new(primary: &Arc<Primary>, kernels: &Arc<Kernels>) -> Result<Upload> {
        Ok(Upload {
            streams: [Stream::new(kernels)?, Stream::new(kernels)?],
            pinned: [Mapped::new(primary, STAGING_BYTES)?, Mapped::new(primary, STAGING_BYTES)?],
            raw: [Block::new(primary, STAGING_BYTES)?, Block::new(primary, STAGING_BYTES)?],
            lane: 0,
        })
    }

    fn matrix(&mut self, weight: &Weight, matrix: &Matrix) -> Result<()> {
        let (block_bytes, is_float) = (weight.dtype.block_bytes(), matrix.dtype <= 2);
        let groups_a_block = (weight.dtype.block_len() / 32) as u64;
        let chunk = STAGING_BYTES / block_bytes * block_bytes;
        let mut done = 0;
        for bytes in weight.bytes.chunks(chunk) {
            if is_float {
                self.send(bytes, matrix.data + done)?;
            } else {
                let raw = self.raw[self.lane].address();
                let lane = self.send(bytes, raw)?;
                let first = done / block_bytes as u64 * groups_a_block;
                let count = (bytes.len() / block_bytes) as u64 * groups_a_block;
                self.streams[lane].repack(&RepackArgs { raw, out: *matrix, first, count })?;
            }
            done += bytes.len() as u64;
        }
        Ok(())
    }

    fn floats(&mut self, values: &[f32], to: u64) -> Result<()> {
        let mut to = to;
        for values in values.chunks(STAGING_BYTES / size_of::<f32>()) {
            let mut bytes = crate::error::reserve(size_of_val(values), "weights on their way")?;
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            self.send(&bytes, to)?;
            to += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies through the next lane, and returns it.
    fn send(&mut self, bytes: &[u8], to: u64) -> Result<usize> {
        let lane = self.lane;
        self.lane = 1 - lane;
        self.streams[lane].wait()?;
        assert!(bytes.len() <= STAGING_BYTES);
        // SAFETY: the buffer has room, and its last copy has ended.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pinned[lane].host(), bytes.len()) };
        self.streams[lane].upload(to, self.pinned[lane].host(), bytes.len())?;
        Ok(lane)
    }
}
