//! Hugging Face folders: the GGUF file that llama.cpp's converter would write of one, without writing it.
//!
//! The rest of the engine sees one kind of model file. `family` and `names` are tables of what folders call things, `config` and
//! `rope` turn `config.json` into metadata, `making` makes the tensors that do not stand in the folder as the engine reads them.
//! All others are used where they lie. `tokenizer` finds the files of the tokenizer, which [`crate::text`] reads.

mod config;
mod eagle;
mod elements;
mod experts;
mod family;
mod fused;
mod gemma4;
mod hybrid;
mod latent;
mod making;
mod modules;
mod multipliers;
mod mxfp4;
mod names;
mod order;
mod predicting;
mod recurrent;
mod rope;
mod tokenizer;
mod vector;

pub use making::{Making, Workshop, run};
pub use tokenizer::TokenizerFiles;

use crate::arch::names::{global, layer};
use crate::arch::rope::Divisors;
use crate::arch::spec::{AttentionMask, Presence};
use crate::error::{Error, Progress, Result, copied_text, push, reserve, room};
use crate::format::safetensors::{Shard, Stored};
use crate::format::{Builder, Data, Document, Gguf, INTEGERS_64, Parts, Safetensors, limits, read_small};
use crate::quant::DType;
use config::{CONFIG, Config, Sizes};
use elements::Elements;
use experts::{Table, Tables};
use family::Family;
use modules::Modules;
use names::{Form, Role, Rows};
use order::Order;
use predicting::Predicting;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use vector::vector;

/// What the memory of tensors' places is for.
const DIRECTORY: &str = "the tensor directory";

/// Parts of names of tables that stay what they are where matrices are quantized.
const SMALL: [&str; 5] =
    [layer::ROUTER, layer::SCAN_CONVOLUTION, layer::SHORT_CONVOLUTION, layer::SCAN_NORM, layer::SPACE_SKIP];

/// A folder as a model file.
#[derive(Debug)]
pub struct Folder {
    /// Its metadata and tensors.
    pub gguf: Gguf,
    /// The tensors whose bytes are not there yet.
    pub makings: Vec<Making>,
    /// What tells of the tokenizer, where it is not the metadata.
    pub tokenizer: Option<TokenizerFiles>,
    /// How many tensors belong to encoders of images or sound, which are left out.
    pub media: usize,
    /// Why there are no blocks that predict further tokens, where the folder announces some.
    pub lacking: Option<String>,
}

impl Folder {
    /// A file, of which little or nothing need be made.
    pub fn of_file(gguf: Gguf) -> Result<Folder> {
        let mut folder = Folder::whole(gguf);
        match latent::split(&mut folder) {
            Ok(()) => Ok(folder),
            Err(error) => Err(folder.gguf.blamed(error)),
        }
    }

    fn whole(gguf: Gguf) -> Folder {
        Folder { gguf, makings: Vec::new(), tokenizer: None, media: 0, lacking: None }
    }

    /// Lets every matrix of floats become one of type `dtype`, which is one of [`crate::quant::encode::ENCODABLE`]. Nothing is encoded yet.
    pub fn quantize(&mut self, dtype: DType) -> Result<()> {
        let mut by_name = HashMap::new();
        room(self.makings.len() * size_of::<(String, usize)>(), DIRECTORY, || by_name.try_reserve(self.makings.len()))?;
        for (index, making) in self.makings.iter().enumerate() {
            by_name.insert(copied_text(making.name(), DIRECTORY)?, index);
        }
        for index in 0..self.gguf.tensors().len() {
            let tensor = &self.gguf.tensors()[index];
            // Routers, convolutions, biases and what state spaces have for each head are small and decide much.
            let is_small = |name: &str| {
                [".bias", layer::SCAN_RATE].iter().any(|end| name.ends_with(end))
                    || SMALL.iter().any(|part| name.contains(part))
            };
            let is_matrix = matches!(tensor.dims.len(), 2 | 3) && !is_small(&tensor.name);
            let from = DType::from_ggml(tensor.type_id).filter(|from| from.block_len() == 1 && is_matrix);
            let Some(from) = from.filter(|&from| from != dtype) else { continue };
            let place = match by_name.get(&tensor.name) {
                Some(&made) => {
                    self.makings[made].encode(dtype)?;
                    Arc::clone(self.makings[made].place())
                }
                None => {
                    let making = Making::encoding(tensor, from, dtype)?;
                    let place = Arc::clone(making.place());
                    push(&mut self.makings, making, DIRECTORY)?;
                    place
                }
            };
            self.gguf.replace(index, dtype.ggml_id(), place)?;
        }
        Ok(())
    }
}

/// Opens the folder at `path`: its files mapped, or, when `map` is false, read tensor by tensor.
pub fn open(path: &Path, map: bool, progress: &mut Progress) -> Result<Folder> {
    let file = path.join(CONFIG);
    if !file.exists() {
        let path = path.display();
        let problem = format!(
            "{path} is a folder without {CONFIG}; name a .gguf file, or a folder with {CONFIG} and safetensors"
        );
        return Err(Error::InvalidArgument(problem));
    }
    let mut text = read_small(&file, limits::CONFIG_BYTES)?;
    config::without_infinities(&mut text);
    let document = Document::read(&text, CONFIG)?;
    let config = Config::new(document.root())?;
    let weights = Safetensors::open(path, map, progress)?;
    let mut predicting = Predicting::find(&config, &weights)?;
    let mut metadata = Builder::default();
    let sizes = config.convert(predicting.count, &mut metadata)?;
    let name = path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    metadata.set_text("general.name", name.as_deref().unwrap_or_default())?;
    let tokenizer = tokenizer::read(path, &document, &mut metadata)?;
    let modules = modules::read(path, &config.family.arch, map, &mut metadata, progress)?;
    let lacking = predicting.lacking.take();
    let mut assembly = Assembly {
        family: config.family,
        sizes: &sizes,
        predicting: &predicting,
        weights: &weights,
        folder: Folder { tokenizer, lacking, ..Folder::whole(Gguf::of(metadata.build(), CONFIG)?) },
        parts: HashMap::new(),
        tables: Tables::default(),
        modules: &modules,
    };
    weights.tensors().iter().try_for_each(|stored| assembly.tensor(stored))?;
    assembly.finish()
}

struct Assembly<'a> {
    family: Family,
    sizes: &'a Sizes,
    predicting: &'a Predicting,
    weights: &'a Safetensors,
    folder: Folder,
    /// Numbers of the files whose bytes are used where they lie, by their addresses.
    parts: HashMap<*const Shard, usize>,
    /// Tensors of single experts.
    tables: Tables,
    /// What comes behind the model.
    modules: &'a Modules,
}

impl Assembly<'_> {
    fn tensor(&mut self, stored: &Stored) -> Result<()> {
        if names::is_media(&stored.name) {
            self.folder.media += 1;
            return Ok(());
        }
        if self.predicting.leaves_out(&stored.name, &self.family) {
            return Ok(());
        }
        if names::is_redundant(&stored.name, &self.family) || is_scale(&stored.name, self.weights) {
            return Ok(());
        }
        if self.family.arch.drafts_by_features && stored.name == global::DRAFT_TOKENS {
            return self.draft_tokens(stored);
        }
        let predicting = self.predicting.role(&stored.name, &self.family);
        let role = || predicting.or_else(|| names::role(&stored.name, &self.family));
        match if names::is_head(&stored.name) { self.head() } else { role().map(Some) } {
            Some(Some(role)) => self.add(stored, &role),
            Some(None) => Ok(()),
            None => {
                let (name, family) = (&stored.name, self.family.model_type);
                Err(Error::Unsupported(format!("tensor `{name}` is not part of the supported `{family}` models")))
            }
        }
    }

    /// What the output head is; it may be nothing beside the embedding, or stored in its place.
    fn head(&self) -> Option<Option<Role>> {
        let role = |name: &str| Role { name: name.into(), ..Role::default() };
        if self.family.arch.drafts_by_features {
            return Some(Some(role(global::HEAD)));
        }
        let has_embedding = self.weights.tensors().iter().any(|stored| self.is_embedding(stored));
        let is_tied = self.sizes.is_tied == Some(true) || self.family.arch.head == Presence::Absent;
        match (has_embedding, is_tied, self.sizes.is_tied) {
            (true, true, _) => Some(None),
            (true, false, _) => Some(Some(role(global::HEAD))),
            (false, _, Some(false)) => None,
            (false, ..) => Some(Some(role(global::EMBEDDING))),
        }
    }

    /// Adds which token each logit of a head is of.
    fn draft_tokens(&mut self, stored: &Stored) -> Result<()> {
        let bytes = Arc::new(Data::Owned(eagle::tokens(stored)?));
        let part = self.folder.gguf.add_part(bytes, &stored.shard.name)?;
        self.folder.gguf.add_tensor(global::DRAFT_TOKENS, INTEGERS_64, vec![stored.shape[0]], part, 0)
    }

    fn add(&mut self, stored: &Stored, role: &Role) -> Result<()> {
        if let Some(other) = &role.and {
            self.add(stored, other)?;
        }
        if stored.shape.contains(&0) {
            return Err(impossible(stored));
        }
        match mxfp4::find(stored, self.weights)? {
            Some((values, elements)) => self.add_elements(&values, elements, role),
            None => {
                let factors = self.weights.tensor(&format!("{}_scale_inv", stored.name));
                let elements = Elements::of(stored, factors, self.sizes)?;
                self.add_elements(stored, elements, role)
            }
        }
    }

    fn add_elements(&mut self, stored: &Stored, elements: Elements, role: &Role) -> Result<()> {
        let of_all = matches!(role.rows, Rows::OfExperts(_));
        let rows = match *stored.shape.as_slice() {
            // Biases of all experts.
            [experts, rows] if of_all => experts.saturating_mul(rows),
            [rows] | [rows, _] => rows,
            // Of a convolution, the weights of each column.
            [rows, 1, _] if role.is_single() => rows,
            [experts, rows, _] if self.family.experts.is_some() => experts.saturating_mul(rows),
            _ => return Err(impossible(stored)),
        };
        if role.form != Form::Vector && stored.shape.len() != 1 {
            return Err(impossible(stored));
        }
        if let Some(expert) = role.expert {
            return self.tables.add(&role.name, expert, stored, elements);
        }
        let order = Order::of(role, self.sizes, rows, stored)?;
        if stored.shape.len() == 1 || role.is_single() {
            let dims = match (&stored.shape[..], role.form, self.sizes.space) {
                (&[experts, rows], ..) if of_all => vec![order.rows(rows), experts],
                (_, Form::Column, _) => vec![1, rows],
                (_, Form::Groups, Some(space)) => space.groups(stored)?,
                // Of one row there is a vector.
                _ => {
                    let dims = order.dims(&stored.shape);
                    dims[..1].iter().chain(dims[1..].iter().filter(|&&size| size > 1)).copied().collect()
                }
            };
            let bytes = vector(stored, &elements, rows, order, role.change)?;
            let part = self.folder.gguf.add_part(Arc::new(Data::Owned(bytes)), &stored.shard.name)?;
            return self.folder.gguf.add_tensor(&role.name, DType::F32.ggml_id(), dims, part, 0);
        }
        let (dims, type_id) = (order.dims(&stored.shape), elements.dtype().ggml_id());
        let multiplier = self.sizes.multipliers.of(&role.name);
        let is_there = order.is_plain() && multiplier.is_none();
        if let (Elements::Plain(_), true, Parts::Mapped(data)) = (&elements, is_there, &stored.shard.parts) {
            let (part, start) = (self.part(&stored.shard, data)?, stored.start as usize);
            return self.folder.gguf.add_tensor(&role.name, type_id, dims, part, start);
        }
        let making = Making::new(&role.name, stored, elements, order)?.times(multiplier);
        let to = Arc::clone(making.place());
        push(&mut self.folder.makings, making, DIRECTORY)?;
        let part = self.folder.gguf.add_part(to, &stored.shard.name)?;
        self.folder.gguf.add_tensor(&role.name, type_id, dims, part, 0)
    }

    /// Adds the tensors of single experts as one.
    fn add_table(&mut self, table: Table) -> Result<()> {
        let name = copied_text(&table.name, DIRECTORY)?;
        let parts = table.into_parts()?;
        let shape = &parts[0].stored.shape;
        let dims: Vec<u64> = shape.iter().rev().copied().chain([parts.len() as u64]).collect();
        let file = copied_text(&parts[0].stored.shard.name, DIRECTORY)?;
        let making = Making::stacked(&name, parts)?;
        let (to, type_id) = (Arc::clone(making.place()), making.dtype().ggml_id());
        push(&mut self.folder.makings, making, DIRECTORY)?;
        let part = self.folder.gguf.add_part(to, &file)?;
        self.folder.gguf.add_tensor(&name, type_id, dims, part, 0)
    }

    /// The number of a mapped file.
    fn part(&mut self, shard: &Arc<Shard>, data: &Arc<Data>) -> Result<usize> {
        let key = Arc::as_ptr(shard);
        if let Some(&part) = self.parts.get(&key) {
            return Ok(part);
        }
        room(size_of::<(*const Shard, usize)>(), DIRECTORY, || self.parts.try_reserve(1))?;
        let part = self.folder.gguf.add_part(Arc::clone(data), &shard.name)?;
        self.parts.insert(key, part);
        Ok(part)
    }

    /// Adds what follows from the configuration alone.
    fn finish(mut self) -> Result<Folder> {
        let tables = std::mem::take(&mut self.tables);
        tables.into_tables().into_iter().try_for_each(|table| self.add_table(table))?;
        for (name, weights) in &self.modules.dense {
            let role = Role { name: (*name).into(), ..Role::default() };
            weights.tensors().iter().try_for_each(|stored| self.add(stored, &role))?;
        }
        let gguf = &mut self.folder.gguf;
        // A head that drafts may take the model's matrix.
        let needs_head = decodes(&self.family) && !self.modules.are_there && !self.family.arch.drafts_by_features;
        if needs_head && self.sizes.is_tied == Some(false) && gguf.tensor(global::HEAD).is_none() {
            return Err(Error::Format(
                "tensor `lm_head.weight` is missing, though config.json says that it is not tied".into(),
            ));
        }
        self.own_head()?;
        let Divisors { all, long } = &self.sizes.divisors;
        let name = if long.is_some() { global::SHORT_DIVISORS } else { global::ROPE_DIVISORS };
        self.divisors(name, all)?;
        self.divisors(global::LONG_DIVISORS, long)?;
        latent::split(&mut self.folder)?;
        Ok(self.folder)
    }

    /// Makes an output head of the embedding where a file cannot have one matrix for both.
    fn own_head(&mut self) -> Result<()> {
        if !self.sizes.multipliers.parts_head() || self.folder.gguf.tensor(global::HEAD).is_some() {
            return Ok(());
        }
        let weights = self.weights;
        let Some(embedding) = weights.tensors().iter().find(|stored| self.is_embedding(stored)) else { return Ok(()) };
        self.add(embedding, &Role { name: global::HEAD.into(), ..Role::default() })
    }

    fn is_embedding(&self, stored: &Stored) -> bool {
        names::role(&stored.name, &self.family).is_some_and(|role| role.name == global::EMBEDDING)
    }

    /// Adds a tensor of divisors of the rope frequencies, if there are any.
    fn divisors(&mut self, name: &str, divisors: &Option<Vec<f32>>) -> Result<()> {
        let Some(divisors) = divisors else { return Ok(()) };
        let mut bytes = reserve(divisors.len() * size_of::<f32>(), DIRECTORY)?;
        divisors.iter().for_each(|divisor| bytes.extend(divisor.to_le_bytes()));
        let part = self.folder.gguf.add_part(Arc::new(Data::Owned(bytes)), CONFIG)?;
        self.folder.gguf.add_tensor(name, DType::F32.ggml_id(), vec![divisors.len() as u64], part, 0)
    }
}

/// Whether a tensor scales another one of `weights`.
fn is_scale(name: &str, weights: &Safetensors) -> bool {
    let scaled = name.strip_suffix("_scale_inv").and_then(|name| weights.tensor(name));
    scaled.is_some() || mxfp4::is_scales(name, weights)
}

/// Whether models of a family make logits.
fn decodes(family: &Family) -> bool {
    family.arch.mask != AttentionMask::Bidirectional
}

fn impossible(stored: &Stored) -> Error {
    Error::Format(format!("tensor `{}` has shape {:?}, which no weight has", stored.name, stored.shape))
}
