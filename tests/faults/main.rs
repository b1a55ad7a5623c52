//! Memory that is refused, allocation by allocation.

#[path = "../common/mod.rs"]
mod common;

mod allocator;
mod calls;
mod folders;
mod models;
