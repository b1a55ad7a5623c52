//! Model files: GGUF and safetensors into named tensors, GGUF and JSON into metadata. Knows no model, no quantization and no device.

pub mod document;
pub mod gguf;
mod header;
mod json;
mod kind;
pub mod limits;
pub mod metadata;
mod mmap;
mod replace;
pub mod safetensors;
mod split;
mod writer;

pub use document::{Document, Item};
pub use gguf::{Gguf, INTEGERS_64, TensorInfo};
pub use kind::check_is_model;
pub use metadata::{Builder, Metadata, ScalarKind, Value};
pub use mmap::{Bytes, Data, Parts, read_small};
pub use replace::replace;
pub use safetensors::Safetensors;
pub use writer::{Draft, save};
