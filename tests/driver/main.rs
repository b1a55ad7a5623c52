//! The CUDA backend above a driver that stands in for NVIDIA's. Needs no GPU; each test starts this program again.

#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

mod assistants;
mod calls;
mod divided;
mod eagle;
mod fake;
mod predictors;
mod prompts;
mod wait;
