//! Numbers of the CPU backend: storage types, whole families, the sampler, placing and lowering of programs, the pool, the thread of submitted steps.

#[path = "../common/mod.rs"]
mod common;

mod assistants;
mod cache_types;
mod deputy;
mod eagle;
mod experts;
mod families;
mod halves;
mod latent;
mod layers;
mod placement;
mod pool;
mod predictors;
mod programs;
mod quant;
mod reference;
mod sample;
mod states;
mod types;
mod wanted_rows;
mod windows;
