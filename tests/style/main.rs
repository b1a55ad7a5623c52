//! The tree itself: style, layering, the header, the bindings, licences.

mod bindings;
mod header;
mod hostile_table;
mod kernels;
mod licences;
mod listing;
mod tidy;
