//! Storage types of weights: one table of sizes, and plain decoders that are the oracle of every kernel.

mod dtype;

pub use dtype::DType;
