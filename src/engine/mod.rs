//! The nouns of the C API: context, model, session, sequence, batch.

pub mod adapter;
mod batch;
pub mod board;
pub mod callback;
pub mod context;
pub mod conversation;
pub mod deputy;
pub mod device;
mod draft;
pub mod embedding;
mod fingerprint;
mod limits;
mod masks;
pub mod model;
mod pass;
pub mod plan;
mod save;
mod saved;
mod saved_adapters;
mod saved_grammar;
mod saved_header;
mod saved_states;
pub mod sequence;
pub mod session;
mod slice;
mod speculation;
pub mod stats;

pub use adapter::Adapter;
pub use context::{Context, LogLevel};
pub use conversation::Conversation;
pub use model::Model;
pub use plan::Plan;
pub use session::{Failure, Session, Step};
