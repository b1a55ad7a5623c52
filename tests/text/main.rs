//! Tokenizers, streams of text and chat templates, without a model.

#[path = "../common/mod.rs"]
mod common;

mod chat;
mod chat_plain;
mod chat_values;
mod json;
mod replies;
mod replies_wrong;
mod stream;
mod tokenizer;
mod tool_calls;
mod translation;
mod vocab;
