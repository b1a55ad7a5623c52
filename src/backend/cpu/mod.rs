//! The CPU backend: worker pool, arena, and the ops of a program over rows of tokens.

#[allow(unsafe_code)]
pub mod pool;
#[allow(unsafe_code)]
pub mod simd;
