//! The C boundary: the only `extern "C"` functions of the library. Translates, nothing else.
//!
//! One file for each noun of `include/segno.h`. Every body runs inside `guard`, takes its arguments through `argument` and its
//! objects through `handle`. The comments of the exported functions are the manual that hosts read in the header.

pub mod adapter;
mod argument;
pub mod chat;
pub mod chat_submit;
pub mod conversation;
pub mod ctx;
pub mod decode;
pub mod device;
pub mod embed;
pub mod error;
mod exclusive;
#[cfg(test)]
mod forced_panic;
pub mod grammar;
mod guard;
mod handle;
pub mod model;
pub mod plan;
mod process;
pub mod reply;
pub mod saved;
pub mod seq;
pub mod session;
pub mod status;
pub mod submit;
pub mod text;
pub mod tools;
pub mod turn;
pub mod version;
