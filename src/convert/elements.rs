//! How the elements of a tensor are stored in a folder, and the scales that some of them need.

use super::config::Sizes;
use crate::error::{Error, Result, filled};
use crate::format::safetensors::Stored;
use crate::quant::{DType, reference};

/// What memory is for.
pub const WEIGHTS: &str = "the weights of the model";

/// How the elements of a tensor are stored.
#[derive(Clone, Debug)]
pub enum Elements {
    /// As a type that the engine knows.
    Plain(DType),
    /// Floats of 8 bits.
    Scaled(Scales),
    /// Floats of 4 bits, and the tensor of their scales.
    Blocks(Stored),
}

/// Factors of 8-bit floats, one for each block.
#[derive(Clone, Debug)]
pub struct Scales {
    /// The tensor of factors.
    stored: Stored,
    /// Its type.
    dtype: DType,
    /// Rows and columns of a block.
    pub block: [u64; 2],
}

impl Elements {
    /// How the tensor `stored` is; `factors` is the tensor of its scales, if there is one.
    pub fn of(stored: &Stored, factors: Option<&Stored>, sizes: &Sizes) -> Result<Elements> {
        let name = &stored.name;
        let dtype = plain_type(stored.type_name);
        match (stored.type_name, dtype, factors, sizes.scaled) {
            (_, Some(dtype), None, _) => Ok(Elements::Plain(dtype)),
            ("F8_E4M3", _, Some(factors), Some(block)) => Scales::of(stored, factors, block).map(Elements::Scaled),
            ("F8_E4M3", ..) => {
                let missing = "without `weight_block_size` in config.json or without `weight_scale_inv`";
                Err(Error::Unsupported(format!("tensor `{name}` holds 8-bit floats {missing}, which is not supported")))
            }
            (other, ..) => Err(Error::Unsupported(format!(
                "tensor `{name}` is stored as {other}, which is not supported for weights"
            ))),
        }
    }

    /// The type in which the engine gets the elements. Products of 8-bit floats and their scales are rounded, as converters do.
    pub fn dtype(&self) -> DType {
        match self {
            Elements::Plain(dtype) => *dtype,
            Elements::Scaled(_) => DType::BF16,
            Elements::Blocks(_) => DType::MXFP4,
        }
    }
}

fn plain_type(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "F16" => Some(DType::F16),
        "BF16" => Some(DType::BF16),
        _ => None,
    }
}

impl Scales {
    fn of(stored: &Stored, factors: &Stored, block: [u64; 2]) -> Result<Scales> {
        let expected: Vec<u64> = stored.shape.iter().zip(block).map(|(size, block)| size.div_ceil(block)).collect();
        let dtype = plain_type(factors.type_name).filter(|_| stored.shape.len() == 2 && factors.shape == expected);
        let dtype = dtype.ok_or_else(|| {
            let (name, kind, shape) = (&factors.name, factors.type_name, &factors.shape);
            Error::Format(format!(
                "tensor `{name}` has shape {shape:?} in {kind}, expected floats of shape {expected:?}"
            ))
        })?;
        Ok(Scales { stored: factors.clone(), dtype, block })
    }

    /// The factor of every block.
    pub fn read(&self) -> Result<Vec<f32>> {
        decoded(&self.stored, self.dtype)
    }
}

/// All elements of a tensor of a plain type.
pub fn decoded(stored: &Stored, dtype: DType) -> Result<Vec<f32>> {
    let mut raw = filled(bytes_of(stored)?, 0, WEIGHTS)?;
    stored.shard.parts.read(stored.start, &mut raw)?;
    let mut values = filled(raw.len() / dtype.block_bytes(), 0.0, WEIGHTS)?;
    reference::decode(dtype, &raw, &mut values);
    Ok(values)
}

fn bytes_of(stored: &Stored) -> Result<usize> {
    usize::try_from(stored.len).map_err(|_| Error::out_of_memory(WEIGHTS, usize::MAX))
}
