//! What tests, benchmarks and tools need of this backend, and no host: devices that run every step as single launches, the driver's calls of a
//! thread, the buffers of a session, and the kernel that draws tokens alone.

mod calls;
pub mod drawing;
pub mod inspect;

use super::Cuda;
use crate::backend::GpuOptions;
use crate::error::Result;
pub use calls::{calls_of, hear};

impl Cuda {
    /// Opens GPU `index`; `eager` runs every step as single launches, for comparison with the graphs.
    pub fn new(index: usize, eager: bool) -> Result<Cuda> {
        Ok(Cuda { eager, ..Cuda::open(&GpuOptions { index, ..GpuOptions::default() })? })
    }

    /// The same with fast batches, where the device has kernels for them.
    pub fn fast(index: usize, eager: bool) -> Result<Cuda> {
        Ok(Cuda { eager, ..Cuda::open(&GpuOptions { index, fast_batches: true, ..GpuOptions::default() })? })
    }
}
