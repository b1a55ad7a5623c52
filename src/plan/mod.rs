//! One forward pass as a device-free list of ops.
//!
//! [`build`] is the only place that knows the order of a layer; [`memory`] gives every value a buffer by its lifetime.

pub mod build;
pub mod memory;
pub mod op;

pub use op::{MatrixId, Op, Program, Value, ValueId, VectorId, Weight};
