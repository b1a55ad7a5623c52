//! Stands for the CUDA backend in a library built without the feature `cuda`: no GPUs, and the reason.

use super::Gpu;
use crate::error::{Error, Result};

/// Number of GPUs that this library can see: none.
pub fn count() -> usize {
    0
}

/// Describes no GPU.
pub fn info(index: usize) -> Result<Gpu> {
    Err(refusal(index))
}

/// Why GPU `index` runs no models.
pub fn refusal(_index: usize) -> Error {
    Error::Unsupported("this library is built without cuda; use the cpu".into())
}
