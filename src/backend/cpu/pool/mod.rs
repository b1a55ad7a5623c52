//! The worker threads of a context, and the tiles that they share out.

mod tile;

pub use tile::{Grid, TileMut};
