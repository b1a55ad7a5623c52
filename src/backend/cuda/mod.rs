//! NVIDIA GPUs: which are there, and why one cannot be used.
//!
//! The driver is opened at run time (`driver`), so the library also loads on machines without one. No call here leaves another
//! current context behind than it found. Runs no models: a context on a GPU is refused with the reason.

#[allow(unsafe_code)]
mod driver;

use super::Gpu;
use crate::error::{Error, Result};

/// Number of GPUs that the driver shows; 0 where there is no driver, or an older one than this library can use.
pub fn count() -> usize {
    driver::open().and_then(|driver| driver.devices()).unwrap_or(0)
}

/// Describes GPU `index`. Makes the device's primary context for as long as that takes, if nobody holds it.
pub fn info(index: usize) -> Result<Gpu> {
    let driver = driver::open()?;
    let device = driver.device(index)?;
    let memory = device.memory()?;
    Ok(Gpu {
        name: device.name()?,
        memory_total: memory.total,
        memory_free: memory.free,
        compute: device.compute()?,
        driver: driver.version(),
    })
}

/// Why GPU `index` runs no models.
pub fn refusal(index: usize) -> Error {
    let name = driver::open().and_then(|driver| driver.device(index)?.name());
    match name {
        Ok(name) => Error::Unsupported(format!("{name}: this library is built without cuda kernels; use the cpu")),
        Err(error) => error,
    }
}
