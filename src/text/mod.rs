//! Text in and out: tokenizers, streaming detokenization with stop strings, chat templates.
//!
//! Built from a model file's metadata alone; knows no model, no device and no sampling.

pub mod chat;
pub mod stream;
pub mod tokenizer;

pub use stream::{StreamOptions, TextStream};
pub use tokenizer::Tokenizer;
