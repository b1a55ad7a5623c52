//! Weights quantized while they are loaded: a folder and a GGUF file of floats become, bit for bit, the model whose GGUF file holds the blocks
//! of the plain encoders, whatever the number of threads.

use crate::common;
use crate::common::folders::{entries_of, write};
use crate::common::gguf::{Content, Shape};
use crate::common::{Ctx, Folder, Model, Watch, call, greedy, model_opts, root};
use segno::ffi::model::*;
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::status::*;
use segno::format::Gguf;
use segno::quant::{DType, encode};
use serde_json::json;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr::null;

/// The bits of the logits after a prompt.
fn bits(model: &Model) -> Vec<u32> {
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[1, 7, 42, 3]).unwrap();
    session.logits(seq).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn plan(ctx: &Ctx, path: &Path, opts: &segno_model_opts) -> common::Result<segno_plan> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the struct holds numbers, for which zero is a value.
    let mut plan = unsafe { std::mem::zeroed() };
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), opts, null(), &mut plan, size_of::<segno_plan>(), err))
        .map(|_| plan)
}

/// A model whose rows are whole blocks of every type.
fn wide() -> Shape {
    Shape {
        layers: 1,
        hidden: 256,
        feed_forward: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocab: 61,
        ..Shape::small()
    }
}

/// The model as a folder, and as GGUF files with its own floats and with matrices of another type.
fn quantized_files(folder: &Folder, dtype: DType) -> [PathBuf; 3] {
    let mut file = wide().file();
    let paths = ["folder", "floats.gguf", "blocks.gguf"].map(|name| folder.join(name));
    file.write(&paths[1]);
    let config = json!({
        "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "num_hidden_layers": 1, "intermediate_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5
    });
    write(&paths[0], &config, &entries_of(&Gguf::open(&paths[1], true, &mut |_| Ok(())).unwrap(), &config));
    for tensor in file.tensors.iter_mut().filter(|tensor| tensor.dims.len() == 2) {
        let Content::Bytes(raw) = &tensor.content else { panic!() };
        let values: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
        let mut blocks = vec![0; dtype.row_bytes(values.len() as u64).unwrap() as usize];
        encode::encode(dtype, &values, &mut blocks);
        (tensor.type_id, tensor.content) = (dtype.ggml_id(), Content::Bytes(blocks));
    }
    file.write(&paths[2]);
    paths
}

#[test]
fn weights_are_quantized_while_they_are_loaded() {
    let types = [
        (SEGNO_TYPE_F16, DType::F16),
        (SEGNO_TYPE_BF16, DType::BF16),
        (SEGNO_TYPE_Q8_0, DType::Q8_0),
        (SEGNO_TYPE_Q4_0, DType::Q4_0),
        (SEGNO_TYPE_Q4_1, DType::Q4_1),
        (SEGNO_TYPE_Q5_0, DType::Q5_0),
        (SEGNO_TYPE_Q5_1, DType::Q5_1),
        (SEGNO_TYPE_Q4_K, DType::Q4_K),
        (SEGNO_TYPE_Q5_K, DType::Q5_K),
        (SEGNO_TYPE_Q6_K, DType::Q6_K),
    ];
    assert_eq!(types.len(), encode::ENCODABLE.len());
    let folder = Folder::new("folder-quantized");
    for (quantize, dtype) in types {
        let [unpacked, floats, blocks] = quantized_files(&folder, dtype);
        for n_threads in [1, 3] {
            let ctx = Ctx::new(|opts| opts.n_threads = n_threads).unwrap();
            let expected = ctx.load(&blocks).unwrap();
            let planned = plan(&ctx, &blocks, &model_opts(0, &mut Watch::default())).unwrap().host_weights;
            let (bits_expected, bytes) = (bits(&expected), expected.info().weight_bytes);
            for (path, flags) in
                [(&unpacked, 0), (&unpacked, SEGNO_MODEL_NO_MMAP), (&floats, 0), (&floats, SEGNO_MODEL_NO_MMAP)]
            {
                let mut watch = Watch::default();
                let mut opts = model_opts(flags, &mut watch);
                opts.quantize = quantize;
                let (_, model) = ctx.load_with(path, &opts).unwrap();
                assert!(bits(&model) == bits_expected, "{dtype}: {} differs", path.display());
                assert_eq!(model.info().weight_bytes, bytes);
                assert!(watch.heard.is_sorted() && watch.heard.last() == Some(&1.0));
                assert_eq!(plan(&ctx, path, &opts).unwrap().host_weights, planned);
            }
            let mut watch = Watch::default();
            let mut opts = model_opts(0, &mut watch);
            opts.quantize = quantize;
            let (_, model) = ctx.load_buffer_with(&std::fs::read(&floats).unwrap(), &opts).unwrap();
            assert!(bits(&model) == bits_expected, "{dtype}: from memory");
            // What is quantized already stays.
            let (_, model) = ctx.load_with(&blocks, &opts).unwrap();
            let is_float = dtype.block_len() == 1;
            assert!(bits(&model) == bits_expected || is_float);
        }
    }
}

/// Biases of all experts are a table, as matrices are, and no matrix.
#[test]
fn biases_of_experts_stay_what_they_are() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let path = root().join("tests/golden/hf/gptoss-plain.gguf");
    let floats = ctx.load(&path).unwrap();
    let mut watch = Watch::default();
    let mut opts = model_opts(0, &mut watch);
    opts.quantize = SEGNO_TYPE_BF16;
    let (_, model) = ctx.load_with(&path, &opts).unwrap();
    assert!(model.info().weight_bytes < floats.info().weight_bytes && bits(&model) != bits(&floats));
    let near = |a: u32, b: u32| (f32::from_bits(a) - f32::from_bits(b)).abs() < 0.5;
    assert!(bits(&model).into_iter().zip(bits(&floats)).all(|(a, b)| near(a, b)));
}

/// What a state space has for each head stays, whatever the type: of rows of one element no blocks can be made. The first tensor of which none
/// can be made behind them is a matrix.
#[test]
fn tables_of_state_spaces_stay_as_they_are() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let mut watch = Watch::default();
    let mut opts = model_opts(0, &mut watch);
    opts.quantize = SEGNO_TYPE_Q8_0;
    let failed = ctx.load_with(&root().join("tests/golden/hf/nemotronh-plain.gguf"), &opts).err().unwrap();
    assert!(failed.message.contains("ffn_down.weight` has 44 columns, Q8_0 stores blocks of 32"), "{}", failed.message);
}

#[test]
fn what_cannot_be_quantized_is_refused() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let golden = root().join("tests/golden/hf");
    for (quantize, reserved, status, words) in [
        (SEGNO_TYPE_Q4_K, 0, SEGNO_E_UNSUPPORTED, "has 32 columns, Q4_K stores blocks of 256: choose another type"),
        (SEGNO_TYPE_Q8_0, 0, SEGNO_E_UNSUPPORTED, "has 44 columns, Q8_0 stores blocks of 32"),
        (11, 0, SEGNO_E_INVALID_ARGUMENT, "quantize 11 is no SEGNO_TYPE_..."),
        (-1, 0, SEGNO_E_INVALID_ARGUMENT, "quantize -1"),
        (SEGNO_TYPE_Q8_0, 1, SEGNO_E_INVALID_ARGUMENT, "reserved is 1"),
    ] {
        let mut watch = Watch::default();
        let mut opts = model_opts(0, &mut watch);
        (opts.quantize, opts.reserved) = (quantize, reserved);
        for path in [golden.join("llama-llama3.gguf"), golden.join("folders/llama-llama3")] {
            for failed in [ctx.load_with(&path, &opts).map(drop), plan(&ctx, &path, &opts).map(drop)] {
                let failed = failed.unwrap_err();
                assert!(failed.status == status && failed.message.contains(words), "{}", failed.message);
            }
        }
    }
}
