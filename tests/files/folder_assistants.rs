//! Folders of assistants, which draft for another model: they are the GGUF file of the same weights, bit for bit.

use crate::common::assistants::{model_path, path};
use crate::common::drafts::{drafts, one_thread};
use crate::common::folders::tensors;
use crate::common::{Folder, root};
use crate::save::save;
use serde_json::{Value, json};
use std::path::PathBuf;

/// As transformers wrote it.
fn golden() -> PathBuf {
    root().join("tests/golden/assistant/folder")
}

/// Changes configuration and safetensors header of the golden folder, and appends zeros to its data.
fn changed(folder: &Folder, config: impl Fn(&mut Value), header: impl Fn(&mut Value, usize), zeros: usize) {
    let mut said: Value = serde_json::from_slice(&std::fs::read(golden().join("config.json")).unwrap()).unwrap();
    config(&mut said);
    std::fs::write(folder.join("config.json"), said.to_string()).unwrap();
    let bytes = std::fs::read(golden().join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (told, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut told: Value = serde_json::from_slice(told).unwrap();
    header(&mut told, data.len());
    let told = told.to_string();
    let parts = [&(told.len() as u64).to_le_bytes()[..], told.as_bytes(), data, &vec![0; zeros]];
    std::fs::write(folder.join("model.safetensors"), parts.concat()).unwrap();
}

#[test]
fn a_folder_is_the_file_of_its_weights() {
    let (ctx, to) = (one_thread(), Folder::new("folder-assistant"));
    let (backbone, file) = (ctx.load(&model_path()).unwrap(), ctx.load(&path()).unwrap());
    let folder = ctx.load(&golden()).unwrap();
    save(&folder, &to.join("saved.gguf")).unwrap();
    assert!(tensors(&to.join("saved.gguf")) == tensors(&path()));
    let expected = drafts(&backbone, &file);
    assert!(drafts(&backbone, &folder) == expected && expected.1 > 50, "{expected:?}");
    assert!(drafts(&backbone, &ctx.load(&to.join("saved.gguf")).unwrap()) == expected);
    let failed = folder.session(|_| ()).err().unwrap();
    assert!(failed.message.contains("only drafts for another one"), "{}", failed.message);
}

/// E2B's and E4B's have centroids of groups of tokens, by which most logits can be left out.
#[test]
fn groups_of_tokens_are_left_out() {
    let (ctx, to) = (one_thread(), Folder::new("folder-assistant-groups"));
    let add = |header: &mut Value, len: usize| {
        let tensor = |dtype: &str, shape: &[u64], start, end| json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header["masked_embedding.centroids.weight"] = tensor("F32", &[2, 24], len, len + 192);
        header["masked_embedding.token_ordering"] = tensor("I64", &[131], len + 192, len + 192 + 131 * 8);
    };
    changed(&to, |config| config["use_ordered_embeddings"] = json!(true), add, 192 + 131 * 8);
    let folder = ctx.load(to.path()).unwrap();
    save(&folder, &to.join("saved.gguf")).unwrap();
    assert!(tensors(&to.join("saved.gguf")) == tensors(&path()));
}

#[test]
fn configurations_that_say_too_little_are_refused() {
    let (ctx, to) = (one_thread(), Folder::new("folder-assistant-refused"));
    for (change, words) in [
        (
            &|config: &mut Value| _ = config.as_object_mut().unwrap().remove("backbone_hidden_size"),
            "backbone_hidden_size",
        ),
        (&|config: &mut Value| config["backbone_hidden_size"] = json!(-3), "backbone_hidden_size"),
        (&|config: &mut Value| config["backbone_hidden_size"] = json!(64), "nextn.pre_projection"),
        (&|config: &mut Value| config["model_type"] = json!("gemma4"), "_projection.weight"),
    ] as [(&dyn Fn(&mut Value), &str); 4]
    {
        changed(&to, change, |_, _| (), 0);
        let failed = ctx.load(to.path()).err().unwrap();
        assert!(failed.message.contains(words), "{words}: {}", failed.message);
    }
}
