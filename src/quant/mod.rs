//! Storage types of weights: one table of sizes, and plain decoders that are the oracle of every kernel.
//!
//! [`DType`] answers everything about a type that is no kernel. [`blocks`] lays the stored bytes out for decoders and
//! kernels, [`grids`] holds the constant tables that some types index, [`mod@reference`] says what stored bytes mean.
//! Weights are read as stored; only [`mod@bytes`] writes them another way, and [`encode`] where a host asks for it. [`synthetic`] makes blocks for
//! tests and benchmarks.

pub mod blocks;
pub mod bytes;
mod dtype;
pub mod encode;
pub mod fp8;
pub mod grids;
pub mod reference;
#[cfg(feature = "testing")]
pub mod synthetic;

pub use dtype::DType;
