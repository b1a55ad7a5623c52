//! What devices there are, as the host sees them.

use crate::backend::{cpu, cuda};
use crate::error::{Error, Result};
use crate::os;

/// Kinds of device that a host can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The best device of this machine.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// One device.
#[derive(Clone, Debug)]
pub struct Info {
    /// The processor or a GPU, never [`Kind::Auto`].
    pub kind: Kind,
    /// What the maker calls it.
    pub name: String,
    /// All its memory, in bytes.
    pub memory_total: u64,
    /// Memory that can be taken now, in bytes.
    pub memory_free: u64,
    /// Compute capability of a GPU, ten times the major number plus the minor one; 0 for the processor.
    pub compute: u32,
    /// CUDA version of a GPU's driver, as in 13000 for 13.0; 0 for the processor.
    pub driver: u32,
}

/// Number of devices of `kind`.
pub fn count(kind: Kind) -> usize {
    match kind {
        Kind::Auto | Kind::Cpu => 1,
        Kind::Cuda => cuda::count(),
    }
}

/// Device `index` of `kind`.
pub fn info(kind: Kind, index: usize) -> Result<Info> {
    if kind == Kind::Cuda || (kind == Kind::Auto && cuda::is_usable()) {
        return gpu_info(index);
    }
    if index > 0 {
        return Err(Error::NotFound(format!("there is no cpu device {index}; there is 1")));
    }
    Ok(cpu_info())
}

/// Whether a capability, by its name, is compiled in and usable on this machine now.
pub fn has_feature(name: &str) -> bool {
    (name == "cuda" && cuda::is_usable()) || cpu::simd::available().iter().any(|kernels| kernels.name == name)
}

fn gpu_info(index: usize) -> Result<Info> {
    let gpu = cuda::info(index).map_err(|error| match error {
        Error::Unsupported(reason) => Error::NotFound(format!("there is no cuda device {index}: {reason}")),
        other => other,
    })?;
    Ok(Info {
        kind: Kind::Cuda,
        name: gpu.name,
        memory_total: gpu.memory_total,
        memory_free: gpu.memory_free,
        compute: gpu.compute,
        driver: gpu.driver,
    })
}

fn cpu_info() -> Info {
    Info {
        kind: Kind::Cpu,
        name: os::processor_name().unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH)),
        memory_total: os::memory_total().unwrap_or(0),
        memory_free: os::memory_free().unwrap_or(0),
        compute: 0,
        driver: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_device_zero_and_has_memory() {
        let info = info(Kind::Cpu, 0).unwrap();
        assert!(!info.name.is_empty() && info.memory_total >= info.memory_free && info.memory_free > 0);
    }

    #[test]
    fn an_index_beyond_the_last_device_is_not_found() {
        assert!(matches!(super::info(Kind::Cpu, 1), Err(Error::NotFound(_))));
    }
}
