//! The CPU backend: worker pool, arena, and the ops of a program over rows of tokens.

pub mod simd;
