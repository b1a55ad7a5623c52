//! Devices that run a program: the trait, and the one place that chooses an implementation.

pub mod cpu;
