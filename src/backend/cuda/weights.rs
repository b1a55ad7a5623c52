//! A program's weights on the device: placed in slices, uploaded through two pinned buffers and repacked there. Types that the kernels lack are
//! turned into bytes on the way, by several threads.

use super::args::{Matrix, RepackArgs};
use super::catalogue::DeviceType;
use super::driver::Primary;
use super::lower::Addresses;
use super::memory::{Block, Mapped, Places, free_bytes};
use super::module::{Kernels, Stream};
use super::select::gemm_f16;
use crate::error::{Error, Progress, Result, collected};
use crate::plan::Program;
use crate::plan::op::{Origin, Weight};
use crate::quant::{DType, bytes as groups};
use crate::sync::threads;
use std::sync::Arc;

/// Bytes of a staging buffer; a whole number of blocks of every type fits nearly all of it.
const STAGING_BYTES: usize = 16 << 20;

/// Bytes of the device's memory that an upload takes meanwhile.
pub const LOADING_BYTES: u64 = 2 * STAGING_BYTES as u64;

/// All weights of a program.
pub struct Weights {
    pub matrices: Vec<Matrix>,
    pub vectors: Vec<u64>,
    /// Of every rotation: the angle a position of each rotated pair, and the same for long sequences, at one place where they do not differ.
    pub frequencies: Vec<[u64; 2]>,
    /// Owns what the addresses point to, those apart that the weights of other programs own.
    _block: Block,
    _there: Vec<Arc<Weights>>,
}

/// What the host's memory is for.
const WEIGHTS: &str = "places of weights";

/// Device bytes of a program's weights.
pub fn bytes(program: &Program) -> Result<usize> {
    let mut places = Places::default();
    place(program, &mut places)?;
    Ok(places.bytes())
}

/// Those of a program that has weights of the files of `there`, programs whose weights are on the device already.
pub fn bytes_beside(program: &Program, there: &[&Program]) -> Result<usize> {
    let mut places = Places::default();
    let is_there = |id| there.iter().any(|first| twin(program, id, first).is_some());
    place_beside(program, |id| is_there(id).then(Matrix::default), &mut places)?;
    Ok(places.bytes())
}

/// The matrix of `first`, a program of one of its files, that is matrix `id` of `program` too.
fn twin(program: &Program, id: usize, first: &Program) -> Option<usize> {
    let (weight, origin) = (&program.matrices[id], program.origins.get(id)?);
    let is_same = |(other, from): (&Weight, &Origin)| {
        let is_alike = (other.dtype, other.rows, other.cols) == (weight.dtype, weight.rows, weight.cols);
        // Two files have tensors of one name.
        from == origin && is_alike && other.bytes.as_ptr() == weight.bytes.as_ptr()
    };
    first.matrices.iter().zip(&first.origins).position(is_same)
}

/// Matrices, vectors and angles of a program on the device.
type Placed = (Vec<Matrix>, Vec<u64>, Vec<[u64; 2]>);

/// Gives every weight its place.
pub fn place(program: &Program, places: &mut Places) -> Result<Placed> {
    place_beside(program, |_| None, places)
}

/// Gives every weight its place but the matrices that `there` knows.
fn place_beside(program: &Program, there: impl Fn(usize) -> Option<Matrix>, places: &mut Places) -> Result<Placed> {
    let matrices = program.matrices.iter().enumerate();
    let matrices = matrices.map(|(id, weight)| there(id).unwrap_or_else(|| place_matrix(weight, places)));
    let matrices = collected(matrices, WEIGHTS)?;
    let vectors = program.vectors.iter().map(|vector| places.take(size_of_val(vector.as_slice())));
    let vectors = collected(vectors, WEIGHTS)?;
    let frequencies = program.ropes.iter().map(|rope| {
        let mut take = |values: &Vec<f32>| places.take(size_of_val(values.as_slice()));
        let short = take(&rope.frequencies);
        [short, rope.long.as_ref().map_or(short, |long| take(&long.frequencies))]
    });
    let frequencies = collected(frequencies, WEIGHTS)?;
    Ok((matrices, vectors, frequencies))
}

fn place_matrix(weight: &Weight, places: &mut Places) -> Matrix {
    let dtype = DeviceType::of(weight.dtype);
    let row_bytes = dtype.row_bytes(weight.cols);
    Matrix {
        data: places.take(gemm_f16::rows_in_memory(dtype, weight.rows).saturating_mul(row_bytes)),
        row_bytes: row_bytes as u32,
        slice_bytes: dtype.slice_bytes() as u32,
        dtype,
        rows: weight.rows as u32,
        cols: weight.cols as u32,
        pad: 0,
    }
}

impl Weights {
    /// Uploads everything, with so many threads where values must be decoded (0 for as many as there can be); the context must be current.
    /// Matrices of `first`, other programs of its files, with their weights, are taken from there. `progress` hears of every buffer that is sent.
    pub fn upload(
        program: &Program,
        first: &[(&Program, &Arc<Weights>)],
        primary: &Arc<Primary>,
        kernels: &Arc<Kernels>,
        threads: usize,
        progress: &mut Progress,
    ) -> Result<Weights> {
        let there = |id| first.iter().find_map(|(first, weights)| Some(weights.matrices[twin(program, id, first)?]));
        let mut places = Places::default();
        place_beside(program, there, &mut places)?;
        let (needed, free) = (places.bytes() as u64, free_bytes()?);
        if needed > free {
            return Err(Error::DeviceMemory { needed, free });
        }
        let block = Block::new(primary, places.bytes())?;
        let (matrices, vectors, frequencies) = place_beside(program, there, &mut Places::new(block.address()))?;
        let mut upload = Upload::new(primary, kernels, threads)?;
        let (all, mut sent) = (program.weight_bytes() as f32, 0);
        let mut report = |bytes: usize| {
            sent += bytes;
            progress((sent as f32 / all).min(1.0))
        };
        for (id, (weight, matrix)) in program.matrices.iter().zip(&matrices).enumerate() {
            if there(id).is_none() {
                upload.matrix(weight, matrix, &mut report)?;
            }
        }
        for (vector, &to) in program.vectors.iter().zip(&vectors) {
            upload.floats(vector, to)?;
        }
        for (rope, [short, long]) in program.ropes.iter().zip(&frequencies) {
            upload.floats(&rope.frequencies, *short)?;
            rope.long.iter().try_for_each(|of_long| upload.floats(&of_long.frequencies, *long))?;
        }
        upload.streams.iter().try_for_each(Stream::wait)?;
        Ok(Weights {
            matrices,
            vectors,
            frequencies,
            _block: block,
            _there: collected(first.iter().map(|(_, weights)| Arc::clone(weights)), WEIGHTS)?,
        })
    }
}

impl Weights {
    /// Tells where they are; rotations are those for sequences of so many tokens.
    pub fn tell(&self, program: &Program, context: usize, addresses: &mut Addresses) {
        let angles = addresses.step.angles.iter_mut().zip(&program.ropes).zip(&self.frequencies);
        for ((angles, rope), frequencies) in angles {
            angles.frequencies = frequencies[usize::from(rope.is_long(context))];
        }
        (addresses.matrices, addresses.vectors) = (self.matrices.clone(), self.vectors.clone());
    }
}

/// Two lanes, each a stream with a pinned buffer and a place for blocks on the device; used in turn.
struct Upload {
    streams: [Stream; 2],
    pinned: [Mapped<u8>; 2],
    raw: [Block; 2],
    lane: usize,
    threads: usize,
}

impl Upload {
    fn new(primary: &Arc<Primary>, kernels: &Arc<Kernels>, threads: usize) -> Result<Upload> {
        let usable = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        Ok(Upload {
            streams: [Stream::new(kernels)?, Stream::new(kernels)?],
            pinned: [Mapped::new(primary, STAGING_BYTES)?, Mapped::new(primary, STAGING_BYTES)?],
            raw: [Block::new(primary, STAGING_BYTES)?, Block::new(primary, STAGING_BYTES)?],
            lane: 0,
            threads: if threads == 0 { usable } else { threads.min(usable) },
        })
    }

    /// Sends a matrix; `report` hears of every part of its bytes.
    fn matrix(&mut self, weight: &Weight, matrix: &Matrix, report: &mut impl FnMut(usize) -> Result<()>) -> Result<()> {
        let own = DeviceType::of(weight.dtype);
        if !own.is_quantized() {
            let mut to = matrix.data;
            for bytes in weight.bytes.chunks(STAGING_BYTES) {
                self.send(to, bytes.len(), |staging| copy(bytes, staging))?;
                to += bytes.len() as u64;
                report(bytes.len())?;
            }
            return Ok(());
        }
        let (dtype, as_stored) = (weight.dtype, own != DeviceType::BYTES);
        let all_groups = dtype.block_len() / groups::GROUP_LEN;
        let (block_bytes, block_groups) =
            if as_stored { (dtype.block_bytes(), all_groups) } else { (groups::GROUP_BYTES, 1) };
        // What is sent for a block of the file.
        let sent = block_bytes * (all_groups / block_groups);
        let mut first = 0;
        for blocks in weight.bytes.chunks(STAGING_BYTES / sent * dtype.block_bytes()) {
            let blocks_sent = blocks.len() / dtype.block_bytes();
            let (raw, threads) = (self.raw[self.lane].address(), self.threads);
            let lane = self.send(raw, blocks_sent * sent, |staging| match as_stored {
                true => copy(blocks, staging),
                false => write_groups(dtype, blocks, staging, threads),
            })?;
            let count = (blocks_sent * all_groups) as u64;
            let (block_bytes, block_groups) = (block_bytes as u32, block_groups as u32);
            self.streams[lane].repack(&RepackArgs { raw, out: *matrix, first, count, block_bytes, block_groups })?;
            first += count;
            report(blocks.len())?;
        }
        Ok(())
    }

    fn floats(&mut self, values: &[f32], to: u64) -> Result<()> {
        let mut to = to;
        for values in values.chunks(STAGING_BYTES / size_of::<f32>()) {
            let mut bytes = crate::error::reserve(size_of_val(values), "weights on their way")?;
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            self.send(to, bytes.len(), |staging| copy(&bytes, staging))?;
            to += bytes.len() as u64;
        }
        Ok(())
    }

    /// Sends what `fill` puts into the next lane's buffer, and returns the lane.
    fn send(&mut self, to: u64, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<usize> {
        let lane = self.lane;
        self.lane = 1 - lane;
        self.streams[lane].wait()?;
        assert!(bytes <= STAGING_BYTES);
        // SAFETY: the buffer has room and was zeroed when it was made; its last copy has ended.
        fill(unsafe { std::slice::from_raw_parts_mut(self.pinned[lane].host(), bytes) })?;
        self.streams[lane].upload(to, self.pinned[lane].host(), bytes)?;
        Ok(lane)
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> Result<()> {
    to.copy_from_slice(from);
    Ok(())
}

/// Most threads that decode.
const MOST_THREADS: usize = 16;
/// Stack of such a thread.
const STACK_BYTES: usize = 512 << 10;
/// Blocks that are worth a thread.
const LEAST_BLOCKS: usize = 1024;

/// Decodes blocks into groups of bytes, by so many threads, the caller's included.
fn write_groups(dtype: DType, blocks: &[u8], to: &mut [u8], threads: usize) -> Result<()> {
    let count = blocks.len() / dtype.block_bytes();
    let share = count.div_ceil(threads).max(LEAST_BLOCKS);
    let mut parts = blocks.chunks(share * dtype.block_bytes()).zip(to.chunks_mut(share * (to.len() / count)));
    std::thread::scope(|scope| {
        let own = parts.next();
        for (blocks, to) in parts {
            threads::spawn_scoped(scope, "segno-load", STACK_BYTES, move || groups::write(dtype, blocks, to))
                .map_err(|error| Error::Device(format!("cannot start a thread that decodes weights: {error}")))?;
        }
        own.into_iter().for_each(|(blocks, to)| groups::write(dtype, blocks, to));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::synthetic::{Random, blocks};

    #[test]
    fn threads_share_blocks_without_a_difference() {
        let (dtype, count) = (DType::IQ3_S, 3 * LEAST_BLOCKS + 7);
        let blocks = blocks(dtype, count, &mut Random::new(2));
        let mut expected = vec![0; count * 8 * groups::GROUP_BYTES];
        groups::write(dtype, &blocks, &mut expected);
        for threads in [1, 2, 16] {
            let mut found = vec![0; expected.len()];
            write_groups(dtype, &blocks, &mut found, threads).unwrap();
            assert!(found == expected, "{threads} threads");
        }
    }
}
