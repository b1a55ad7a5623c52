//! A tensor of a file: its sizes, and what it holds, written as it is made.

use segno::format::INTEGERS_64;
use segno::quant::DType;
use segno::quant::synthetic::{Random, scaled_blocks};
use std::io::{Result, Write};

pub const ALIGNMENT: usize = 32;
/// Values that are copied together, at least; and different pieces of as many in one tensor. More would only cost time.
const PIECE_VALUES: usize = 256;
const DISTINCT_PIECES: usize = 4096;
/// Seed of the first tensor of a file, and of which rows of a copy of it are others.
pub const FIRST_SEED: u64 = 7;
const OTHERS_SEED: u64 = 8;

/// A tensor to be written.
pub struct Tensor {
    pub name: String,
    pub dims: Vec<usize>,
    pub dtype: DType,
    pub content: Content,
}

/// What a tensor holds.
pub enum Content {
    /// Random values: those of matrices have a spread, those of vectors lie around a mean.
    Drawn { mean: f32, spread: f32 },
    /// These.
    Values(Vec<f32>),
    /// Ones where row and column have the same number, as Q8_0 has them, and zeros.
    Diagonal,
    /// 64-bit integers, as many as there are elements, evenly from 0 up to this.
    Tokens { of: usize },
    /// The rows of the file's first tensor, each so many places `behind`, of which so many of 100 are those of the row before.
    LikeFirst { behind: usize, others: u32 },
}

impl Tensor {
    pub fn of_values(name: &str, values: Vec<f32>) -> Tensor {
        let (name, dims) = (name.into(), vec![values.len()]);
        Tensor { name, dims, dtype: DType::F32, content: Content::Values(values) }
    }

    /// ggml's number of its type.
    pub fn type_id(&self) -> u32 {
        if matches!(self.content, Content::Tokens { .. }) { INTEGERS_64 } else { self.dtype.ggml_id() }
    }

    pub fn bytes(&self) -> usize {
        self.row_bytes() * self.dims[1..].iter().product::<usize>()
    }

    fn row_bytes(&self) -> usize {
        if matches!(self.content, Content::Tokens { .. }) {
            return self.dims[0] * size_of::<i64>();
        }
        self.dtype.row_bytes(self.dims[0] as u64).expect("whole blocks") as usize
    }

    /// Writes it, and zeros up to the next one; `first` is the file's first tensor.
    pub fn write(&self, first: Option<&Tensor>, random: &mut Random, out: &mut impl Write) -> Result<()> {
        match &self.content {
            Content::Drawn { mean, spread } => self.draw(*mean, *spread, random, out)?,
            Content::Values(values) => values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))?,
            Content::Diagonal => self.write_diagonal(out)?,
            Content::Tokens { of } => {
                let (count, of) = (self.dims[0], *of);
                (0..count).try_for_each(|index| out.write_all(&((index * of / count) as i64).to_le_bytes()))?
            }
            Content::LikeFirst { behind, others } => {
                let mut rows = Vec::new();
                if let Some(Tensor { content: Content::Drawn { mean, spread }, .. }) = first {
                    self.draw(*mean, *spread, &mut Random::new(FIRST_SEED), &mut rows)?;
                }
                let (bytes, mut random) = (self.row_bytes(), Random::new(OTHERS_SEED));
                rows.rotate_right(behind * bytes);
                // From the last on, so that each takes what its neighbour had.
                for start in (bytes..rows.len()).step_by(bytes).rev() {
                    if random.bits() % 100 < u64::from(*others) {
                        rows.copy_within(start - bytes..start, start);
                    }
                }
                out.write_all(&rows)?;
            }
        }
        let bytes = self.bytes();
        out.write_all(&vec![0; bytes.next_multiple_of(ALIGNMENT) - bytes])
    }

    fn draw(&self, mean: f32, spread: f32, random: &mut Random, out: &mut impl Write) -> Result<()> {
        if self.dims.len() == 1 {
            // The sum of three even distributions has a variance of one.
            let mut normal = || mean + spread * (random.uniform() + random.uniform() + random.uniform());
            return (0..self.dims[0]).try_for_each(|_| out.write_all(&normal().to_le_bytes()));
        }
        let (bytes, blocks) = (self.bytes(), PIECE_VALUES.div_ceil(self.dtype.block_len()));
        let size = blocks * self.dtype.block_bytes();
        let pieces = scaled_blocks(self.dtype, DISTINCT_PIECES * blocks, spread, random);
        for start in (0..bytes).step_by(size) {
            let pick = random.bits() as usize % DISTINCT_PIECES * size;
            out.write_all(&pieces[pick..pick + size.min(bytes - start)])?;
        }
        Ok(())
    }

    fn write_diagonal(&self, out: &mut impl Write) -> Result<()> {
        assert_eq!(self.dtype, DType::Q8_0);
        // A scale of 2^-6, and 64 of it.
        let (scale, one, scale_bytes) = (0x2400u16, 64, 2);
        let (block_len, block_bytes) = (self.dtype.block_len(), self.dtype.block_bytes());
        for index in 0..self.dims[1] {
            let mut row = vec![0; self.row_bytes()];
            row.chunks_exact_mut(block_bytes)
                .for_each(|block| block[..scale_bytes].copy_from_slice(&scale.to_le_bytes()));
            row[index / block_len * block_bytes + scale_bytes + index % block_len] = one;
            out.write_all(&row)?;
        }
        Ok(())
    }
}
