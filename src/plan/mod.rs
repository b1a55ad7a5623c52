//! One forward pass as a device-free list of ops.
//!
//! [`build`] is the only place that knows the order of a layer; [`memory`] gives every value a buffer by its lifetime;
//! [`validate`] checks a program and what a device says of it; [`halves`] divides one between a device and the host; [`assistant`],
//! [`eagle`] and [`predictor`] draft.

pub mod adapter;
pub mod assistant;
pub mod build;
pub mod eagle;
mod feed_forward;
pub mod halves;
mod latent;
mod layer_embeddings;
pub mod memory;
mod mixture;
pub mod op;
mod outputs;
pub mod predictor;
pub mod program;
mod recurrent;
mod recurrent_layer;
mod tensors;
pub mod validate;
mod value;

pub use op::{MatrixId, Op, Program, ValueId, VectorId};
