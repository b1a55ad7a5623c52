//! Files, folders and vocabularies that strangers made: each ends in a model or an error, in time and within its memory.

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod damage;
mod dice;
mod files;
mod folders;
mod gguf;
mod grammars;
mod host;
mod keys;
mod memory;
mod models;
mod mutation;
mod vocabularies;
mod words;
