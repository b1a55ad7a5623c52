//! Folders of sentence-transformers: `modules.json` lists what comes behind the model, of which pooling becomes metadata and dense layers tensors.

use crate::arch::Arch;
use crate::arch::names::global;
use crate::arch::spec::Presence;
use crate::error::{Error, Excerpt, Progress, Result, push};
use crate::format::{Builder, Document, Item, Safetensors, limits, read_small};
use std::path::Path;

const MODULES: &str = "modules.json";
const CONFIG: &str = "config.json";
/// The only tensor of a dense layer.
pub const WEIGHT: &str = "linear.weight";
/// What the memory is for.
const LIST: &str = "the modules of a folder";

/// Names of pooling in both forms of its configuration, and its number in metadata.
const POOLINGS: [(&str, &str, u64); 3] = [
    ("pooling_mode_mean_tokens", "mean", 1),
    ("pooling_mode_cls_token", "cls", 2),
    ("pooling_mode_lasttoken", "lasttoken", 3),
];

/// What a folder says behind the model.
#[derive(Debug, Default)]
pub struct Modules {
    /// Whether there is such a list at all.
    pub are_there: bool,
    /// Weights of the dense layers, in order, each with its name in a GGUF file.
    pub dense: Vec<(&'static str, Safetensors)>,
}

/// Reads the modules of `folder`, whose model is of the family `arch`; pooling becomes metadata.
pub fn read(folder: &Path, arch: &Arch, map: bool, out: &mut Builder, progress: &mut Progress) -> Result<Modules> {
    let mut modules = Modules::default();
    if !folder.join(MODULES).exists() {
        return Ok(modules);
    }
    modules.are_there = true;
    let document = document(folder, MODULES)?;
    let bad = || Error::Format(format!("{MODULES} is no list of modules with `type` and `path`"));
    for module in document.root().elements().ok_or_else(bad)? {
        let text = |name| module.get(name).and_then(Item::text);
        let (kind, path) = text("type").zip(text("path")).ok_or_else(bad)?;
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" if path.is_empty() => {}
            "Normalize" => {}
            "Pooling" => pooling(&checked(folder, path)?, arch, out)?,
            "Dense" if modules.dense.len() < global::TEXT_PROJECTIONS.len() => {
                let name = global::TEXT_PROJECTIONS[modules.dense.len()];
                push(&mut modules.dense, (name, dense(&checked(folder, path)?, arch, map, progress)?), LIST)?;
            }
            _ => {
                let kind = Excerpt(kind.as_bytes());
                return Err(Error::Unsupported(format!("module `{kind}` of {MODULES} is not supported here")));
            }
        }
    }
    Ok(modules)
}

fn document(folder: &Path, name: &str) -> Result<Document> {
    Document::read(&read_small(&folder.join(name), limits::CONFIG_BYTES)?, name)
}

/// The folder of a module, which lies within the model's.
fn checked(folder: &Path, path: &str) -> Result<std::path::PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if path.is_empty() || !path.chars().all(is_plain) {
        let path = Excerpt(path.as_bytes());
        return Err(Error::Format(format!("{MODULES} names the path `{path}`, which is no folder beside it")));
    }
    Ok(folder.join(path))
}

fn pooling(folder: &Path, arch: &Arch, out: &mut Builder) -> Result<()> {
    let document = document(folder, CONFIG)?;
    let config = document.root();
    let named = config.get("pooling_mode").and_then(Item::text);
    let is_on = |(name, item): (&str, Item)| name.starts_with("pooling_mode_") && item.flag() == Some(true);
    let flags = config.entries().into_iter().flatten().filter(|entry| is_on(*entry)).count();
    let found = POOLINGS.iter().find(|(flag, name, _)| match named {
        Some(named) => named == *name,
        None => config.get(flag).and_then(Item::flag) == Some(true),
    });
    match found {
        Some((.., number)) if named.is_some() || flags == 1 => {
            out.set_unsigned(&format!("{}.pooling_type", arch.name), *number)
        }
        _ => Err(Error::Unsupported("the pooling of this folder is not supported: mean, cls and lasttoken are".into())),
    }
}

fn dense(folder: &Path, arch: &Arch, map: bool, progress: &mut Progress) -> Result<Safetensors> {
    let document = document(folder, CONFIG)?;
    let config = document.root();
    let activation = config.get("activation_function").and_then(Item::text).unwrap_or("Tanh");
    let is_linear = activation.ends_with("Identity") && config.get("bias").and_then(Item::flag) == Some(false);
    if arch.text_projections == Presence::Absent || !is_linear {
        let (name, activation) = (arch.name, Excerpt(activation.as_bytes()));
        return Err(Error::Unsupported(format!(
            "a module `Dense` with the activation `{activation}` behind a model of `{name}` is not supported"
        )));
    }
    let weights = Safetensors::open(folder, map, progress)?;
    if weights.tensors().len() != 1 || weights.tensor(WEIGHT).is_none() {
        return Err(Error::Format(format!("a module `Dense` must hold the tensor `{WEIGHT}` and no other")));
    }
    Ok(weights)
}
