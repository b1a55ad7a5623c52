//! Which matrix of which shape and mix has which type, and that a file says so; the rules are llama-quantize's.

use super::eagle::Head;
use super::gemma4::Gemma4;
use super::*;
use DType::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0};
use segno::arch::{Arch, Hparams};
use segno::format::{Data, Gguf};
use segno::plan::build::build;
use segno::plan::{Program, assistant, eagle, predictor};
use segno::quant::reference;
use std::sync::Arc;

fn model(shape: &str, types: &str) -> Model<'static> {
    let shape = SHAPES.iter().find(|known| known.name == shape).unwrap();
    let mut model = Model { shape, mix: mix(types).unwrap(), tensors: Vec::new(), says: Says::Anything };
    model.collect();
    model
}

/// Every matrix is of type `most`, but for those that `others` names by a part of theirs, the first match counting.
fn assert_types(shape: &str, types: &str, most: DType, others: &[(&str, DType)]) {
    let model = model(shape, types);
    let matrices: Vec<&Tensor> = model.tensors.iter().filter(|tensor| tensor.dims.len() == 2).collect();
    assert_eq!(matrices.len(), 7 * model.shape.layers + if model.shape.tied { 1 } else { 2 });
    let other = |tensor: &Tensor| others.iter().position(|(part, _)| tensor.name.contains(part));
    for tensor in &matrices {
        let expected = other(tensor).map_or(most, |at| others[at].1);
        assert_eq!(tensor.dtype, expected, "{} of {shape} in {types}", tensor.name);
    }
    let all_named = (0..others.len()).all(|at| matrices.iter().any(|tensor| other(tensor) == Some(at)));
    assert!(all_named, "{shape} in {types}");
}

#[test]
fn mixes_are_those_of_llama_quantize() {
    let fine = ["blk.0.", "blk.1.", "blk.4.", "blk.7.", "blk.10.", "blk.13.", "blk.14.", "blk.15."];
    let fine = fine.map(|layer| ["attn_v", "ffn_down"].map(|part| format!("{layer}{part}")));
    let mut others: Vec<_> = fine.as_flattened().iter().map(|name| (name.as_str(), Q6_K)).collect();
    others.push(("token_embd", Q6_K));
    assert_types("llama-3.2-1b", "Q4_K_M", Q4_K, &others);
    assert_types("llama-3.2-1b", "Q5_K_M", Q5_K, &others);

    let fine = [("token_embd", Q6_K), ("attn_v", Q4_K), ("attn_output", Q3_K), ("ffn_down", Q3_K)];
    assert_types("llama-3.2-1b", "Q2_K_MIX", Q2_K, &fine);
    let fine = [("token_embd", Q6_K), ("attn_v", Q4_K), ("blk.0.ffn_down", Q4_K), ("blk.1.ffn_down", Q4_K)];
    assert_types("llama-3.2-1b", "Q2_K_S", Q2_K, &fine);
}

#[test]
fn two_bit_mixes_know_heads_that_share_little_and_embeddings_that_are_no_head() {
    let fine = [("token_embd", Q6_K), ("attn_v", Q3_K), ("attn_output", Q3_K), ("ffn_down", Q3_K)];
    assert_types("qwen3-0.6b", "Q2_K_MIX", Q2_K, &fine);
    let fine = [("token_embd", Q6_K), ("blk.0.ffn_down", Q4_K), ("blk.1.ffn_down", Q4_K), ("blk.2.ffn_down", Q4_K)];
    assert_types("qwen3-0.6b", "Q2_K_S", Q2_K, &fine);

    let fine = [("attn_v", Q4_K), ("attn_output", Q3_K), ("ffn_down", Q3_K), ("output.weight", Q6_K)];
    assert_types("llama-3.1-8b", "Q2_K_MIX", Q2_K, &fine);
}

#[test]
fn tables_of_experts_are_mixed_as_one_block_is() {
    let type_of = |shape: &str, types: &str, name: &str| {
        let model = model(shape, types);
        model
            .tensors
            .iter()
            .find(|tensor| tensor.name == name)
            .map(|tensor| (tensor.dims.clone(), tensor.dtype))
            .unwrap()
    };
    for (name, dims, dtype) in [
        ("blk.0.ffn_down_exps.weight", vec![1024, 2048, 64], Q6_K),
        ("blk.3.ffn_down_exps.weight", vec![1024, 2048, 64], Q4_K),
        ("blk.0.ffn_up_exps.weight", vec![2048, 1024, 64], Q4_K),
        ("blk.0.ffn_gate_inp.weight", vec![2048, 64], DType::F32),
        ("blk.0.attn_k_norm.weight", vec![2048], DType::F32),
    ] {
        assert_eq!(type_of("olmoe-1b-7b", "Q4_K_M", name), (dims, dtype), "{name}");
    }
    for (name, dims, dtype) in [
        ("blk.0.ffn_gate_exps.weight", vec![2880, 2880, 32], DType::MXFP4),
        ("blk.0.ffn_gate_exps.bias", vec![2880, 32], DType::F32),
        ("blk.0.attn_q.weight", vec![2880, 4096], Q8_0),
        ("token_embd.weight", vec![2880, 201_088], Q8_0),
    ] {
        assert_eq!(type_of("gpt-oss-20b", "MXFP4_MOE", name), (dims, dtype), "{name}");
    }
}

/// The rows of keys of a head, and those of an expert's last projection, are no whole blocks of 256.
#[test]
fn heads_of_latent_attention_are_mixed_as_matrices_are() {
    let model = model("deepseek-v2-lite", "Q4_K_M");
    let type_of = |name: &str| model.tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.dtype);
    for (name, dtype) in [
        ("blk.3.attn_k_b.weight", Some(DType::Q8_0)),
        ("blk.3.attn_v_b.weight", Some(DType::Q4_K)),
        ("blk.3.ffn_down_exps.weight", Some(DType::Q8_0)),
        ("blk.0.ffn_gate.weight", Some(DType::Q4_K)),
        ("blk.0.ffn_gate_exps.weight", None),
        ("blk.1.ffn_gate_shexp.weight", Some(DType::Q4_K)),
    ] {
        assert_eq!(type_of(name), dtype, "{name}");
    }
}

#[test]
fn rows_of_no_whole_blocks_are_q8_0() {
    assert_types("qwen2.5-0.5b", "Q2_K_MIX", Q8_0, &[("ffn_down", Q3_K)]);
    let others = [("blk.0.ffn_down", Q4_K), ("blk.1.ffn_down", Q4_K), ("blk.2.ffn_down", Q4_K), ("ffn_down", Q2_K)];
    assert_types("qwen2.5-0.5b", "Q2_K_S", Q8_0, &others);
}

#[test]
fn a_storage_type_is_that_of_every_matrix() {
    assert_types("llama-3.1-8b", "Q2_K", Q2_K, &[]);
}

#[test]
fn files_say_what_they_hold() {
    for (types, file_type) in [("Q2_K_MIX", 10), ("Q4_K_M", 15), ("Q5_K_M", 17), ("Q2_K_S", 21)] {
        let model = model("tiny", types);
        let mut bytes = Vec::new();
        model.write(&mut bytes).unwrap();
        let gguf = Gguf::parse(Arc::new(Data::Owned(bytes)), &mut |_| Ok(())).unwrap();
        assert_eq!(gguf.metadata().u32("general.file_type").unwrap(), Some(file_type));
        let held: Vec<_> = gguf.tensors().iter().map(|tensor| (&tensor.name, tensor.type_id)).collect();
        let wanted: Vec<_> = model.tensors.iter().map(|tensor| (&tensor.name, tensor.dtype.ggml_id())).collect();
        assert_eq!(held, wanted, "{types}");
    }
}

/// The program that the engine makes of a file of `shape`.
fn program(shape: &Shape) -> Program {
    let (gguf, arch) = (parsed(shape, Says::Anything), Arch::find(shape.arch).unwrap());
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    build(&gguf, &arch, &hparams).unwrap()
}

/// A file of `shape` that says such things.
fn parsed(shape: &Shape, says: Says) -> Gguf {
    let mut model = Model { shape, mix: mix("Q4_K_M").unwrap(), tensors: Vec::new(), says };
    model.collect();
    let mut bytes = Vec::new();
    model.write(&mut bytes).unwrap();
    Gguf::parse(Arc::new(Data::Owned(bytes)), &mut |_| Ok(())).unwrap()
}

/// The shape `name` with few layers and experts.
fn small(name: &str, layers: usize) -> Shape {
    let known = SHAPES.iter().find(|known| known.name == name).unwrap();
    let experts = known.experts.map(|experts| Experts { count: 8, ..experts });
    Shape { layers, vocab: 1000, experts, ..*known }
}

/// A few layers with few experts: the engine makes a program of each, which has as many states as layers without attention ask for.
#[test]
fn files_of_layers_with_states_are_those_of_their_family() {
    for (name, attention) in [("qwen3.5-0.8b", 1), ("qwen3.6-35b-a3b", 1), ("lfm2.5-1.2b", 1)] {
        let shape = small(name, 4);
        let program = program(&shape);
        assert_eq!(program.attentions().count(), attention, "{name}");
        // A delta rule has three convolutions beside it.
        let each = if shape.arch == "lfm2" { 1 } else { 4 };
        assert_eq!(program.states.len(), (4 - attention) * each, "{name}");
    }
}

/// Of twelve layers two see everything, and where some read the keys of others, the cache has fewer.
#[test]
fn files_of_layers_of_two_kinds_are_those_of_their_family() {
    for (name, sharing) in [("gemma4-26b-a4b", 0), ("gemma4-e4b", 6)] {
        let shape = small(name, 12);
        let gemma4 = shape.gemma4.map(|sizes| Gemma4 { sharing, ..sizes });
        let program = program(&Shape { gemma4, ..shape });
        let seeing: Vec<bool> = program.attentions().map(|kind| kind.window.is_none()).collect();
        assert_eq!(seeing.iter().filter(|sees| **sees).count(), 2, "{name}");
        assert_eq!((seeing.len(), program.kv.count()), (12, 12 - sharing), "{name}");
        assert_eq!(program.kv.of(5).head_dim, 512, "{name}");
    }
}

/// An assistant reads the keys of the model that it is for.
#[test]
fn an_assistant_suits_its_model() {
    let (model, own) = (small("gemma4-e4b", 12), small("gemma4-e4b-assistant", 4));
    let model = Shape { gemma4: model.gemma4.map(|sizes| Gemma4 { sharing: 6, ..sizes }), ..model };
    let own = Shape { gemma4: own.gemma4.map(|sizes| Gemma4 { backbone: model.hidden, ..sizes }), ..own };
    let over = assistant::over(&program(&own), &program(&model), 1.0).unwrap();
    let read: Vec<usize> = over.attentions().map(|kind| kind.layer).collect();
    // Of six layers with keys the last one that sees a window, and the last one that sees everything.
    assert_eq!(read, [4, 4, 4, 5]);
}

/// A head reads three layers of its model, and knows some of its tokens.
#[test]
fn a_head_suits_its_model() {
    let (model, own) = (small("llama-3.1-8b", 6), small("llama-3.1-8b-eagle3", 1));
    let own = Shape { head_of: Some(Head { known: 300 }), ..own };
    let (model, own) = (program(&model), program(&own));
    let over = eagle::over(&own, &model).unwrap();
    assert_eq!((over.logits_width(), over.vocab(), over.given_width()), (300, 1000, 4096));
    let told = eagle::telling(&model, &own).unwrap();
    assert_eq!(told.ops.len(), model.ops.len() + 3 + 2 + 1);
}

/// Small layers of every dense shape: the engine finds all that it asks for, and asks for all that is there.
#[test]
fn files_of_dense_models_are_those_of_their_family() {
    let is_dense = |shape: &&Shape| {
        shape.experts.is_none()
            && shape.recurrent.is_none()
            && shape.gemma4.is_none()
            && shape.latent.is_none()
            && shape.head_of.is_none()
    };
    for known in SHAPES.iter().filter(is_dense) {
        let shape = Shape { hidden: 256, feed_forward: 256, ..small(known.name, 2) };
        let program = program(&shape);
        assert_eq!((program.attentions().count(), program.idle), (2, Default::default()), "{}", shape.name);
        let file = parsed(&shape, Says::Anything);
        let vectors = file.tensors().iter().filter(|tensor| tensor.dims.len() == 1).count();
        assert_eq!(program.vectors.len(), vectors, "{}", shape.name);
    }
}

#[test]
fn files_for_embeddings_alone_make_no_logits() {
    let program = program(&small("embeddinggemma-300m", 7));
    assert!(program.logits.is_none() && program.sees_ahead());
    let windows: Vec<_> = program.attentions().map(|kind| kind.window).collect();
    assert_eq!(windows, [Some(257), Some(257), Some(257), Some(257), Some(257), None, Some(257)]);
}

/// The block is one that the engine runs, the layers add nothing, and as many rows of its embedding as asked are the model's.
#[test]
fn blocks_that_predict_are_right_as_often_as_asked() {
    for (name, layers) in [("llama-3.1-8b", 2), ("qwen3.5-0.8b", 4), ("qwen3.6-35b-a3b", 4)] {
        let shape = Shape { hidden: 256, feed_forward: 256, ..small(name, layers) };
        for right in [0, 75, 100] {
            let gguf = parsed(&shape, Says::Predicted(right));
            let arch = Arch::find(shape.arch).unwrap();
            let own = build(&gguf, &arch, &Hparams::read(gguf.metadata(), &arch).unwrap()).unwrap();
            assert!(own.logits.is_some(), "{name}");
            let hparams = Hparams::of_predictor(gguf.metadata(), &arch).unwrap();
            let program = predictor::build(&gguf, &arch, &hparams).unwrap();
            assert_eq!((program.attentions().count(), program.given_width()), (1, 256), "{name}");
            let values = |tensor: &str| values(&gguf, tensor);
            let block = |part: &str| format!("blk.{layers}.nextn.{part}.weight");
            let (all, own) = (values("token_embd.weight"), values(&block("embed_tokens")));
            let rows = all.chunks_exact(256).zip(own.chunks_exact(256));
            let same = rows.filter(|(row, own)| row == own).count();
            let expected = right as usize * shape.vocab / 100;
            assert!(same.abs_diff(expected) <= 50, "{name}: {same} rows of {expected}");
            let diagonal = values(&block("eh_proj"));
            let is_one = |place: usize| place % 512 == place / 512;
            assert!(diagonal.iter().enumerate().all(|(place, &value)| value == f32::from(is_one(place))), "{name}");
            let ends = ["blk.0.ffn_down.weight", "blk.0.ffn_down_exps.weight"];
            let end = ends.into_iter().find(|end| gguf.tensors().iter().any(|tensor| tensor.name == *end)).unwrap();
            assert!(values(end).iter().all(|&value| value == 0.0), "{name}");
        }
    }
}

/// The values of a tensor of a file.
fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensors().iter().find(|found| found.name == name).unwrap();
    let dtype = DType::from_ggml(tensor.type_id).unwrap();
    let bytes = tensor.bytes(dtype.row_bytes(tensor.elements()).unwrap() as usize).unwrap();
    let mut values = vec![0.0; tensor.elements() as usize];
    reference::decode(dtype, &bytes, &mut values);
    values
}

/// The engine runs it, and as many rows of its head as asked are those of the token before.
#[test]
fn models_that_count_are_right_as_often_as_asked() {
    for name in ["llama-3.1-8b", "llama-3.2-1b"] {
        let shape = Shape { hidden: 256, feed_forward: 256, ..small(name, 2) };
        for right in [75, 100] {
            let gguf = parsed(&shape, Says::Next(right));
            let arch = Arch::find(shape.arch).unwrap();
            assert!(build(&gguf, &arch, &Hparams::read(gguf.metadata(), &arch).unwrap()).unwrap().logits.is_some());
            let (embedding, head) = (values(&gguf, "token_embd.weight"), values(&gguf, "output.weight"));
            let rows = embedding.chunks_exact(256).zip(head.chunks_exact(256).skip(1));
            let same = rows.filter(|(before, row)| before == row).count();
            let expected = right as usize * shape.vocab / 100;
            assert!(same.abs_diff(expected) <= 50, "{name}: {same} rows of {expected}");
            assert!(values(&gguf, "blk.1.ffn_down.weight").iter().all(|&value| value == 0.0));
        }
    }
}
