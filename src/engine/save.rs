//! A model as one GGUF file, whatever it was loaded from: the metadata and tensors that it was made of, quantized as it is.

use super::Model;
use super::header::stored_bytes;
use crate::error::{Progress, Result, reserve};
use crate::format::{Builder, Draft, Metadata, TensorInfo, save};
use crate::quant::DType;
use std::path::Path;

/// What tells that quantized blocks are those of today; ggml has had no other version since files have it.
const QUANTIZATION_VERSION: u64 = 2;

impl Model {
    /// Writes the model to the file at `path`, which appears, or takes the place of another, when it is whole. `progress` runs on this thread,
    /// and hears 1 once, at the end.
    pub fn save(&self, path: &Path, progress: &mut Progress) -> Result<()> {
        let additions = self.additions()?;
        let mut metadata = reserve(3, "metadata")?;
        metadata.push(self.metadata());
        metadata.extend(self.described());
        metadata.push(&additions);
        save(&Draft { metadata: &metadata, tensors: self.tensors(), bytes: stored_bytes }, path, progress)
    }

    /// What a file says of a model that was made, beside what its source says.
    fn additions(&self) -> Result<Metadata> {
        let (origin, mut out) = (self.origin(), Builder::default());
        if origin.is_folder {
            out.set_unsigned(&format!("{}.vocab_size", self.arch().name), self.vocab() as u64)?;
            match (self.described(), self.tokenizer()) {
                (Some(described), Ok(tokenizer)) => tokenizer.describe_words(described, &mut out)?,
                _ => out.set_text("tokenizer.ggml.model", "no_vocab")?,
            }
        }
        if origin.is_folder || origin.quantized.is_some() {
            if let Some(number) = main_type(self.tensors()).and_then(file_type) {
                out.set_unsigned("general.file_type", number)?;
            }
            out.set_unsigned("general.quantization_version", QUANTIZATION_VERSION)?;
        }
        Ok(out.build())
    }
}

/// The type of most elements of matrices.
fn main_type(tensors: &[TensorInfo]) -> Option<DType> {
    let elements = |dtype: &DType| {
        let of_type = tensors.iter().filter(|tensor| tensor.dims.len() > 1 && tensor.type_id == dtype.ggml_id());
        of_type.map(TensorInfo::elements).fold(0u64, u64::saturating_add)
    };
    DType::ALL.into_iter().max_by_key(elements).filter(|dtype| elements(dtype) > 0)
}

/// llama.cpp's number for files whose matrices are of this type (`llama_ftype` of llama.h); none for types that nothing becomes here.
fn file_type(dtype: DType) -> Option<u64> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q8_0 => 7,
        DType::Q5_0 => 8,
        DType::Q5_1 => 9,
        DType::Q4_K => 14,
        DType::Q5_K => 16,
        DType::Q6_K => 18,
        DType::BF16 => 32,
        _ => return None,
    })
}
