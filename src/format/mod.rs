//! Model files: GGUF into named tensors and metadata. Knows no model, no quantization and no device.

pub mod gguf;
mod json;
pub mod metadata;
#[allow(unsafe_code)]
mod mmap;
mod split;

pub use gguf::{Gguf, TensorInfo};
pub use metadata::{Array, Metadata, Value};
pub use mmap::{Bytes, Data, Progress};
