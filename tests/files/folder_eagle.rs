//! Folders of heads that draft by vectors between a model's layers: they are the GGUF file of the same weights, bit for bit.

use crate::common::drafts::{drafts, one_thread};
use crate::common::eagle::{model_path, path, with_the_models_logits};
use crate::common::folders::{Entry, tensors, write};
use crate::common::{Ctx, Folder, Model, Watch, model_opts, root};
use crate::save::save;
use segno::ffi::model::SEGNO_MODEL_NO_MMAP;
use segno::format::{Gguf, Value as Metadata};
use serde_json::{Value, json};
use std::path::PathBuf;

/// As those who train heads write them.
fn golden(name: &str) -> PathBuf {
    root().join("tests/golden/eagle").join(name)
}

/// Loads the folder of a head with another configuration, from `to`, which must outlive the model that has it mapped.
fn changed(ctx: &Ctx, to: &Folder, name: &str, change: impl Fn(&mut Value)) -> crate::common::Result<Model> {
    let mut config: Value = serde_json::from_slice(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(golden(name).join("model.safetensors"), to.join("model.safetensors")).unwrap();
    ctx.load(to.path())
}

#[test]
fn a_folder_is_the_file_of_its_weights() {
    let (ctx, to) = (one_thread(), Folder::new("folder-head"));
    let (model, saved) = (ctx.load(&model_path()).unwrap(), to.join("saved.gguf"));
    for name in ["plain", "own"] {
        let expected = drafts(&model, &ctx.load(&path(name)).unwrap());
        for flags in [0, SEGNO_MODEL_NO_MMAP] {
            let folder = ctx.load_with(&golden(name), &model_opts(flags, &mut Watch::default())).unwrap().1;
            save(&folder, &saved).unwrap();
            assert!(tensors(&saved) == tensors(&path(name)), "{name}");
            assert!(drafts(&model, &folder) == expected && expected.1 > 50, "{name}: {expected:?}");
            assert!(drafts(&model, &ctx.load(&saved).unwrap()) == expected, "{name}");
        }
    }
}

/// The tensors of the folder `name`.
fn entries(name: &str) -> Vec<Entry> {
    let file = std::fs::read(golden(name).join("model.safetensors")).unwrap();
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let entry = |(name, stored): (String, Value)| {
        let numbers = |key: &str| stored[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap());
        let [start, end] = [0, 1].map(|side| numbers("data_offsets").nth(side).unwrap() as usize);
        let (kind, shape) = (stored["dtype"].as_str().unwrap().to_owned(), numbers("shape").collect());
        Entry { name, kind, shape, bytes: data[start..end].to_vec() }
    };
    tensors.map(entry).collect()
}

/// It takes the model's.
#[test]
fn a_folder_may_lack_the_matrix_for_logits() {
    let (ctx, to) = (one_thread(), Folder::new("folder-head-bare"));
    let config: Value = serde_json::from_slice(&std::fs::read(golden("plain").join("config.json")).unwrap()).unwrap();
    let mut kept = entries("plain");
    kept.retain(|entry| !["lm_head.weight", "d2t", "t2d"].contains(&entry.name.as_str()));
    write(to.path(), &config, &kept);
    let bare = with_the_models_logits()[0].bytes();
    let (model, head) = (ctx.load(&model_path()).unwrap(), ctx.load(to.path()).unwrap());
    let expected = drafts(&model, &ctx.load_buffer(&bare).unwrap());
    assert!(drafts(&model, &head) == expected && expected.1 > 50, "{expected:?}");
    save(&head, &to.join("saved.gguf")).unwrap();
    assert!(drafts(&model, &ctx.load(&to.join("saved.gguf")).unwrap()) == expected);
}

/// What a saved head says that it reads: the layers, and elements of a vector.
fn read_of(head: &Model) -> (Option<Vec<u64>>, Option<u32>) {
    let to = Folder::new("folder-head-said");
    save(head, &to.join("saved.gguf")).unwrap();
    let gguf = Gguf::open(&to.join("saved.gguf"), true, &mut |_| Ok(())).unwrap();
    let listed = gguf.metadata().scalars("eagle3.target_layers").unwrap();
    let layers = listed.map(|listed| {
        let layer = |value| if let Metadata::Unsigned(layer) = value { layer } else { panic!("{value:?}") };
        listed.map(layer).collect()
    });
    (layers, gguf.metadata().u32("eagle3.target_hidden_size").unwrap())
}

#[test]
fn what_a_head_reads_is_said_in_several_ways() {
    let (ctx, to) = (one_thread(), Folder::new("folder-head-read"));
    assert_eq!(read_of(&ctx.load(&golden("plain")).unwrap()), (Some(vec![2, 0, 1]), Some(32)));
    let less = changed(&ctx, &to, "plain", |config| {
        let config = config.as_object_mut().unwrap();
        config.retain(|name, _| name != "eagle_aux_hidden_state_layer_ids" && name != "target_hidden_size");
    });
    assert_eq!(less.map(|head| read_of(&head)).unwrap(), (None, Some(32)));
    let nested = changed(&ctx, &to, "plain", |config| {
        config.as_object_mut().unwrap().remove("eagle_aux_hidden_state_layer_ids").unwrap();
        config["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": [1, 0, 3]});
    });
    assert_eq!(nested.map(|head| read_of(&head)).unwrap(), (Some(vec![1, 0, 3]), Some(32)));
}

#[test]
fn configurations_that_do_not_suit_are_refused() {
    let (ctx, to) = (one_thread(), Folder::new("folder-head-refused"));
    for (change, words) in [
        (&|config: &mut Value| config["target_hidden_size"] = json!(16), "fc.weight"),
        (&|config: &mut Value| config["eagle_aux_hidden_state_layer_ids"] = json!([1, 2]), "fc.weight"),
        (&|config: &mut Value| config["eagle_aux_hidden_state_layer_ids"] = json!([1, -2, 0]), "eagle_aux_hidden"),
        (&|config: &mut Value| config["eagle_aux_hidden_state_layer_ids"] = json!("last"), "target_layers"),
        (&|config: &mut Value| config["norm_before_fc"] = json!(true), "enc.output_norm"),
        (&|config: &mut Value| config["vocab_size"] = json!(40), "names the token"),
        (&|config: &mut Value| config["num_hidden_layers"] = json!(2), "one layer"),
        (&|config: &mut Value| config["model_type"] = json!("gemma2"), "layers of `gemma2`"),
        (&|config: &mut Value| config["draft_vocab_size"] = Value::Null, "is not part of the supported `llama`"),
    ] as [(&dyn Fn(&mut Value), &str); 9]
    {
        let failed = changed(&ctx, &to, "plain", change).err().unwrap();
        assert!(failed.message.contains(words), "{words}: {}", failed.message);
    }
}
