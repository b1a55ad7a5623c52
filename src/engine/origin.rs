//! How a model was loaded, for what is done with it later: saving it, and sessions of it.

use super::model::Options;
use crate::quant::DType;

/// Where a model comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// Whether it is a folder.
    pub(super) is_folder: bool,
    /// Whether its files are mapped.
    pub(super) is_mapped: bool,
    /// The type that matrices of floats have become.
    pub(super) quantized: Option<DType>,
    /// Most bytes of a device that it may take; 0 for what is free.
    pub(super) device_memory: u64,
}

impl Origin {
    pub(super) fn new(is_folder: bool, is_mapped: bool, options: &Options) -> Origin {
        let &Options { quantize: quantized, device_memory, .. } = options;
        Origin { is_folder, is_mapped, quantized, device_memory }
    }
}
