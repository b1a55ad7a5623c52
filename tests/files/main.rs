//! Model files and folders: what is read, what is refused by name, what is written.

#[path = "../common/mod.rs"]
mod common;

mod folder_assistants;
mod folder_eagle;
mod folder_experts;
mod folder_hybrids;
mod folder_limits;
mod folder_predictors;
mod folder_quantize;
mod folder_states;
mod folders;
mod gguf;
mod kinds;
mod limits;
mod model_files;
mod model_meta;
mod model_sizes;
mod save;
