//! What a file's header says of a model: everything but its weights on a device.

use crate::arch::names::{Idle, is_in_layer};
use crate::arch::{Arch, Hparams};
use crate::backend::{Backend, Memory, Prepared};
use crate::convert::Folder;
use crate::error::{Error, Result, copied_text};
use crate::format::limits::VOCAB;
use crate::format::{Gguf, INTEGERS_64, TensorInfo, check_is_model};
use crate::plan::{Program, build::build, predictor, validate};
use crate::quant::DType;
use std::sync::{Arc, Mutex, PoisonError};

/// Something that a model may have, or why it has none.
pub(super) type OrReason<T> = std::result::Result<T, String>;

/// The family, the sizes and the forward pass of a model.
pub(super) struct Header {
    pub(super) arch: Arch,
    pub(super) hparams: Hparams,
    pub(super) program: Program,
    /// The block behind the layers that guesses a token further ahead.
    pub(super) predictor: OrReason<Program>,
}

/// A model's own predictor.
pub struct Predictor {
    /// What it computes.
    pub program: Arc<Program>,
    /// Bytes of its weights, those apart that are the model's too.
    pub own: Memory,
    /// The same on the model's device, from the first session on that drafts with it.
    prepared: Mutex<Option<Arc<dyn Prepared>>>,
}

impl Header {
    /// Reads the family, the sizes and the forward pass; refuses what the library lacks. Errors name the file. A predictor that cannot be run is no
    /// error: the model does without.
    pub(super) fn read(folder: &Folder) -> Result<Header> {
        let mut header = Header::parse(&folder.gguf).map_err(|error| folder.gguf.blamed(error))?;
        if let Some(reason) = &folder.lacking {
            header.predictor = Err(copied_text(reason, "why a model has no predictor")?);
        }
        Ok(header)
    }

    fn parse(gguf: &Gguf) -> Result<Header> {
        check_is_model(gguf)?;
        let (metadata, key) = (gguf.metadata(), "general.architecture");
        let arch = Arch::find(metadata.required(key, metadata.text(key)?)?)?;
        let hparams = Hparams::read(metadata, &arch)?;
        let program = build(gguf, &arch, &hparams)?;
        validate::check(&program)?;
        let vocab = program.vocab();
        if vocab > VOCAB {
            return Err(Error::Format(format!("the embedding has {vocab} rows, at most {VOCAB} are supported")));
        }
        let predictor = match read_predictor(gguf, &arch, vocab) {
            Ok(predictor) => Ok(predictor),
            Err(error @ (Error::Unsupported(_) | Error::Format(_) | Error::Tensor { .. })) => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        gguf.check_apart(stored_bytes)?;
        Ok(Header { arch, hparams, program, predictor })
    }

    /// Does without a predictor that `backend` cannot run; counts the tensors of one that it can among those in use.
    pub(super) fn suit(&mut self, gguf: &Gguf, backend: &dyn Backend) {
        let Ok(program) = &self.predictor else { return };
        if let Err(refused) = backend.check(program) {
            self.predictor = Err(refused.to_string());
            return;
        }
        let block = self.hparams.layers;
        let used = gguf.tensors().iter().filter(|tensor| is_in_layer(block, &tensor.name)).count();
        let idle = &mut self.program.idle[Idle::Prediction as usize];
        *idle = idle.saturating_sub(used);
    }
}

/// Bytes of a tensor of a known type in its file.
pub(super) fn stored_bytes(tensor: &TensorInfo) -> Option<u64> {
    let cols = tensor.dims[0];
    if tensor.type_id == INTEGERS_64 {
        return tensor.elements().checked_mul(size_of::<i64>() as u64);
    }
    DType::from_ggml(tensor.type_id)?.row_bytes(cols)?.checked_mul(tensor.elements() / cols)
}

/// The program of the first block behind the layers, which has the model's tokens.
fn read_predictor(gguf: &Gguf, arch: &Arch, vocab: usize) -> Result<Program> {
    let hparams = Hparams::of_predictor(gguf.metadata(), arch)?;
    let program = predictor::build(gguf, arch, &hparams)?;
    validate::check(&program)?;
    let tokens = program.vocab();
    if tokens != vocab {
        return Err(Error::Format(format!("the block that predicts further tokens has {tokens} tokens, not {vocab}")));
    }
    Ok(program)
}

impl Predictor {
    /// The predictor of `model`, which has so many layers.
    pub(super) fn new(program: Program, model: &Program, layers: usize, backend: &dyn Backend) -> Result<Predictor> {
        let own = own_bytes(&program, model, layers, backend)?;
        Ok(Predictor { program: Arc::new(program), own, prepared: Mutex::new(None) })
    }

    /// It on the device of `model`; brings it there first if no session has drafted with it yet.
    pub(super) fn on_device(&self, model: &dyn Prepared) -> Result<Arc<dyn Prepared>> {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let made = prepared.take().map_or_else(|| model.beside(Arc::clone(&self.program), None), Ok)?;
        Ok(Arc::clone(prepared.insert(made)))
    }
}

/// Bytes of the weights of a predictor of `model`, which has so many layers, those apart that are the model's too.
pub(super) fn own_bytes(program: &Program, model: &Program, layers: usize, backend: &dyn Backend) -> Result<Memory> {
    let matrices = program.matrices.iter().zip(&program.origins);
    let own = matrices.filter(|(_, origin)| is_in_layer(layers, &origin.tensor));
    let weights = own.map(|(weight, _)| weight.bytes.len() as u64).sum();
    Ok(Memory { weights, device_weights: backend.weights_beside(program, &[model])?, ..Memory::default() })
}
