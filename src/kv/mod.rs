//! The KV cache: pages, their sharing and copying, and where a key lies inside one.

pub mod layout;
pub mod pages;

pub use layout::{Layout, PAGE_TOKENS, Side};
pub use pages::{Pages, Tables};
