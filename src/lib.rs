//! Segno runs language models inside other programs. This crate is the engine and its C boundary.
//!
//! The stable surface is the C ABI in `include/segno.h`, generated from [`ffi`]; the Rust modules are public for the
//! tests and benchmarks of this repository and promise nothing. The one story, top to bottom:
//!
//! ```text
//! file bytes -> format -> weights + sizes -> arch -> plan::Program -> backend -> [ batch -> run -> sample -> token ]*
//! ```
//!
//! Imports point down this list only: `ffi -> engine -> {text, sample, arch, convert, plan, kv, backend} -> {quant, format} -> {error, sync,
//! elementary} -> memory -> os`.

#![deny(unsafe_code)]

#[cfg(panic = "abort")]
compile_error!("the C boundary catches panics: build with panic = \"unwind\"");

pub mod arch;
pub mod backend;
pub mod convert;
pub mod elementary;
pub mod engine;
pub mod error;
#[allow(unsafe_code)]
pub mod ffi;
pub mod format;
pub mod kv;
#[allow(unsafe_code)]
pub mod memory;
#[allow(unsafe_code)]
pub mod os;
pub mod plan;
pub mod quant;
pub mod sample;
pub mod sync;
pub mod text;
