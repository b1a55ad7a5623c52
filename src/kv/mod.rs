//! The KV cache: pages, their sharing and copying, what of a sequence is kept, and where a key lies inside a page; and the states of layers that
//! have no keys.

pub mod layout;
pub mod pages;
pub mod paging;
pub mod q8;
pub mod state;

pub use layout::{HeadSizes, Layout, PAGE_TOKENS, Reach, Side, Stores, WindowLimits};
pub use pages::{Pages, Tables};
