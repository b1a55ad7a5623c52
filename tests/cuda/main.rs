//! The CUDA backend. On a machine without a GPU most tests say that they are skipped; lists of launches are made everywhere.

#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

mod adapter_launches;
mod adapters;
mod assistants;
mod batches;
mod devices;
mod divided;
mod drafts;
mod eagle;
mod embeddings;
mod fast;
mod kernels;
mod lowering;
mod masks;
mod models;
mod ops;
mod options;
mod predictors;
mod programs;
mod sample;
mod sessions;
mod speculation;
mod states;
mod types;
mod windows;
