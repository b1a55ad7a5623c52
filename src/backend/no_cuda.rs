//! Stands for the CUDA backend in a library built without the feature `cuda`: no GPUs, and the reason.

use super::{Backend, Gpu, GpuOptions};
use crate::error::{Error, Result};

/// Number of GPUs that this library can see: none.
pub fn count() -> usize {
    0
}

/// Describes no GPU.
pub fn info(index: usize) -> Result<Gpu> {
    Err(Error::NotFound(format!("there is no cuda device {index}; this library is built without cuda")))
}

/// Opens no GPU, and says why.
pub fn open(_options: &GpuOptions) -> Result<Box<dyn Backend>> {
    Err(Error::Unsupported("this library is built without cuda".into()))
}

/// Whether GPUs can run models: never.
pub fn is_usable() -> bool {
    false
}
