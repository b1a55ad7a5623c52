//! Segno runs language models inside other programs. This crate is the engine and its C boundary.
//!
//! The stable surface is the C ABI in `include/segno.h`, generated from [`ffi`]. The Rust modules behind it promise nothing: they are public with the
//! feature `testing` alone, for the tests, benchmarks and tools of this repository. The one story, top to bottom:
//!
//! ```text
//! file bytes -> format -> weights + sizes -> arch -> plan::Program -> backend -> [ batch -> run -> sample -> token ]*
//! ```
//!
//! Imports point down this list only: `ffi -> engine -> {text, grammar, sample, speculate, arch, convert, plan, kv, backend} -> {quant, format} ->
//! {error, sync, elementary} -> memory -> os`.

#![deny(unsafe_code)]

#[cfg(panic = "abort")]
compile_error!("the C boundary catches panics: build with panic = \"unwind\"");

/// Everything behind the C boundary. Private in the library that is installed, so that the compiler finds what nothing but tests uses.
// Without GPUs some of it is idle.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
#[path = ""]
mod internal {
    pub mod arch;
    pub mod backend;
    pub mod convert;
    pub mod elementary;
    pub mod engine;
    pub mod error;
    pub mod format;
    pub mod grammar;
    pub mod kv;
    #[allow(unsafe_code)]
    pub mod memory;
    #[allow(unsafe_code)]
    pub mod os;
    pub mod plan;
    pub mod quant;
    pub mod sample;
    pub mod speculate;
    pub mod sync;
    pub mod text;
}

#[allow(unsafe_code)]
pub mod ffi;

#[cfg(not(feature = "testing"))]
use internal::*;
#[cfg(feature = "testing")]
pub use internal::*;
