//! Text in and out: tokenizers, streaming detokenization with stop strings, chat templates, replies as events.
//!
//! Built from a model file's metadata alone; knows no model, no device and no sampling.

pub mod chat;
pub mod dates;
pub mod reply;
pub mod stream;
pub mod tokenizer;

pub use reply::{Reply, ReplyOptions};
pub use stream::{StreamOptions, TextStream};
pub use tokenizer::Tokenizer;
