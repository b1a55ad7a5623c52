//! The nouns of the C API: context, model, session, sequence, batch.

mod batch;
pub mod context;
pub mod device;
pub mod model;
pub mod plan;
pub mod sequence;
pub mod session;

pub use context::{Context, LogLevel};
pub use model::Model;
pub use plan::Plan;
pub use session::{Failure, Session, Step};
