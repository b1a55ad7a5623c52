//! Sessions whose program reads the keys and values of another one's (`plan::assistant`): the cache and the stream are the lender's, page tables are
//! the reader's own. Its rows stand at the position behind what they see: kernels of attention are told the one before, and rotations go on from
//! there.

use super::lower::{Addresses, LayerCache};
use super::memory::Block;
use super::module::Stream;
use super::runner::CudaRunner;
use crate::backend::not_lent;
use crate::error::{Error, Result};
use std::any::Any;
use std::sync::Arc;

/// The runner of this backend that lends its cache.
pub fn lent(lent: &dyn Any) -> Result<&CudaRunner> {
    lent.downcast_ref().ok_or_else(not_lent)
}

/// What a reader has in common with it.
pub fn shared(lender: &CudaRunner) -> (Arc<Block>, Arc<Stream>) {
    (Arc::clone(&lender.cache), Arc::clone(&lender.stream))
}

/// Lets the layers of a reader be where those of the lender are, with page tables of its own.
pub fn borrow_keys(lender: &CudaRunner, addresses: &mut Addresses) {
    for (own, lent) in addresses.layers.iter_mut().zip(&lender.addresses.layers) {
        *own = LayerCache { tables: own.tables, ..*lent };
    }
    addresses.step.ahead = 1;
}

impl CudaRunner {
    /// Refuses a lender that this one was not opened over.
    pub fn check_lender(&self, lender: &CudaRunner) -> Result<()> {
        match Arc::ptr_eq(&self.cache, &lender.cache) {
            true => Ok(()),
            false => Err(Error::InvalidArgument("the runner was opened over the keys of another one".into())),
        }
    }
}
