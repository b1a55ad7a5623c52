//! Model families as data: what their layers hold, which metadata gives their sizes, how their tensors are named.

mod choices;
pub mod eagle;
pub mod encoders;
pub mod experts;
pub mod heads;
pub mod hparams;
pub mod hybrids;
pub mod latent;
pub mod mixtures;
pub mod names;
pub mod pooling;
pub mod recurrent;
pub mod rope;
pub mod spec;

pub use hparams::Hparams;
pub use spec::Arch;
