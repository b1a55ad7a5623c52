//! GGUF files made by tests: [`Writer`] puts a header together piece by piece, wrong ones too; [`File`] is a whole file that can be
//! changed, split and written; [`Shape`] describes a model, whose weights come from a fixed sequence of numbers.

use segno::error::Error;
use segno::format::{Data, Gguf};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a header of any version.
pub struct Writer {
    version: u32,
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn new(version: u32, tensors: u64, entries: u64) -> Writer {
        let mut writer = Writer { version, bytes: b"GGUF".to_vec() };
        writer.u32(version).count(tensors).count(entries);
        writer
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// 32 bits wide in version 1.
    pub fn count(&mut self, value: u64) -> &mut Self {
        if self.version == 1 { self.u32(value as u32) } else { self.u64(value) }
    }

    pub fn string(&mut self, text: &[u8]) -> &mut Self {
        self.count(text.len() as u64);
        self.bytes.extend(text);
        self
    }

    pub fn entry(&mut self, key: &str, type_id: u32, value: &[u8]) -> &mut Self {
        self.string(key.as_bytes()).u32(type_id);
        self.bytes.extend(value);
        self
    }

    pub fn tensor(&mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> &mut Self {
        self.string(name.as_bytes()).u32(dims.len() as u32);
        for &dim in dims {
            self.count(dim);
        }
        self.u32(type_id).u64(offset)
    }

    pub fn data(&mut self, alignment: usize, bytes: &[u8]) -> &mut Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
        self.bytes.extend(bytes);
        self
    }

    pub fn parse(&self) -> Result<Gguf, Error> {
        Gguf::parse(Arc::new(Data::Owned(self.bytes.clone())), &mut |_| Ok(()))
    }
}

/// What a whole file of a model says.
pub fn parsed(bytes: &[u8]) -> Gguf {
    let progress = &mut |_: f32| Ok(());
    Gguf::parse(Data::copy(bytes, progress).unwrap(), progress).unwrap()
}

/// A metadata value as it stands in a file of version 3.
#[derive(Clone)]
pub struct Value {
    type_id: u32,
    raw: Vec<u8>,
}

impl Value {
    /// One of such a type by its bytes.
    pub fn raw(type_id: u32, raw: &[u8]) -> Value {
        Value { type_id, raw: raw.to_vec() }
    }
}

macro_rules! numbers {
    ($($number:ty: $type_id:literal),*) => {$(
        impl From<$number> for Value {
            fn from(value: $number) -> Value {
                Value { type_id: $type_id, raw: value.to_le_bytes().to_vec() }
            }
        }
    )*};
}

numbers!(u8: 0, i8: 1, u16: 2, i16: 3, u32: 4, i32: 5, f32: 6, u64: 10, i64: 11, f64: 12);

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value { type_id: 7, raw: vec![value.into()] }
    }
}

impl From<&[u8]> for Value {
    fn from(text: &[u8]) -> Value {
        let mut raw = (text.len() as u64).to_le_bytes().to_vec();
        raw.extend(text);
        Value { type_id: 8, raw }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        text.as_bytes().into()
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(values: [T; N]) -> Value {
        Vec::from(values).into()
    }
}

/// The elements must be of one type; an empty array is one of u8.
impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(values: Vec<T>) -> Value {
        let values: Vec<Value> = values.into_iter().map(Into::into).collect();
        let mut raw = values.first().map_or(0, |value| value.type_id).to_le_bytes().to_vec();
        raw.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| raw.extend(&value.raw));
        Value { type_id: 9, raw }
    }
}

/// What a tensor holds.
#[derive(Clone)]
pub enum Content {
    Bytes(Vec<u8>),
    /// So many zeros, which take no room on the disk.
    Hole(u64),
}

impl Content {
    pub fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Hole(len) => *len,
        }
    }
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub content: Content,
}

/// A file of version 3.
#[derive(Clone, Default)]
pub struct File {
    pub entries: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
    /// 32 unless the file says otherwise.
    pub alignment: Option<u32>,
}

impl File {
    /// Adds or replaces a metadata entry.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.remove(key).entries.push((key.to_owned(), value.into()));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.entries.retain(|(other, _)| other != key);
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len() + 1, before, "{name}");
        self
    }

    /// Adds a vector.
    pub fn add_f32(&mut self, name: &str, values: &[f32]) -> &mut Self {
        let content = Content::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect());
        self.tensors.push(Tensor { name: name.to_owned(), dims: vec![values.len() as u64], type_id: 0, content });
        self
    }

    /// Adds an F32 tensor of zeros.
    pub fn add_zeros(&mut self, name: &str, dims: &[u64]) -> &mut Self {
        let content = Content::Hole(4 * dims.iter().product::<u64>());
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), type_id: 0, content });
        self
    }

    fn alignment(&self) -> u64 {
        self.alignment.unwrap_or(32).into()
    }

    /// Everything before the tensors' bytes, and their offsets behind it.
    fn header(&self) -> (Vec<u8>, Vec<u64>) {
        let mut entries = self.entries.clone();
        entries.extend(self.alignment.map(|alignment| ("general.alignment".to_owned(), alignment.into())));
        let mut writer = Writer::new(3, self.tensors.len() as u64, entries.len() as u64);
        for (key, value) in &entries {
            writer.entry(key, value.type_id, &value.raw);
        }
        let (mut offsets, mut end) = (Vec::new(), 0u64);
        for tensor in &self.tensors {
            let offset = end.next_multiple_of(self.alignment());
            writer.tensor(&tensor.name, &tensor.dims, tensor.type_id, offset);
            offsets.push(offset);
            end = offset + tensor.content.len();
        }
        writer.data(self.alignment() as usize, &[]);
        (writer.bytes, offsets)
    }

    /// The whole file in memory.
    pub fn bytes(&self) -> Vec<u8> {
        let (mut bytes, offsets) = self.header();
        let base = bytes.len();
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            bytes.resize(base + offset as usize, 0);
            match &tensor.content {
                Content::Bytes(content) => bytes.extend(content),
                Content::Hole(len) => bytes.resize(bytes.len() + *len as usize, 0),
            }
        }
        bytes
    }

    /// The whole file on the disk; holes take no room.
    pub fn write(&self, path: &Path) {
        let (header, offsets) = self.header();
        let mut file = fs::File::create(path).unwrap();
        file.write_all(&header).unwrap();
        let mut end = header.len() as u64;
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            let start = header.len() as u64 + offset;
            if let Content::Bytes(bytes) = &tensor.content {
                file.seek(SeekFrom::Start(start)).unwrap();
                file.write_all(bytes).unwrap();
            }
            end = start + tensor.content.len();
        }
        file.set_len(end).unwrap();
    }

    /// The parts of a split model, `counts[i]` tensors in part `i`: the first holds the metadata, the others their numbers only.
    pub fn split(&self, counts: &[usize]) -> Vec<File> {
        assert_eq!(counts.iter().sum::<usize>(), self.tensors.len());
        let mut tensors = self.tensors.iter().cloned();
        let parts = counts.iter().enumerate().map(|(number, &count)| {
            let entries = if number == 0 { self.entries.clone() } else { Vec::new() };
            let mut part = File { entries, tensors: tensors.by_ref().take(count).collect(), alignment: self.alignment };
            part.set("split.no", number as u16).set("split.count", counts.len() as u16);
            part.set("split.tensors.count", self.tensors.len() as i32);
            part
        });
        parts.collect()
    }
}

/// Writes `parts` as `NAME-0000I-of-0000N.gguf`; the paths, in order.
pub fn write_parts(folder: &Path, name: &str, parts: &[File]) -> Vec<PathBuf> {
    let count = parts.len();
    let paths = parts.iter().enumerate().map(|(number, part)| {
        let path = folder.join(format!("{name}-{:05}-of-{count:05}.gguf", number + 1));
        part.write(&path);
        path
    });
    paths.collect()
}

/// Storage of the matrices of a made model.
#[derive(Clone, Copy, PartialEq)]
pub enum Storage {
    F32,
    Q8_0,
    /// F16 zeros that take no room.
    Hole,
}

/// A model with weights from a fixed sequence of numbers, and no tokenizer.
#[derive(Clone, Copy)]
pub struct Shape {
    pub arch: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    pub vocab: usize,
    pub context: usize,
    pub tied: bool,
    pub storage: Storage,
}

impl Shape {
    /// A Llama of 70 thousand parameters.
    pub fn small() -> Shape {
        Shape {
            arch: "llama",
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            feed_forward: 96,
            vocab: 101,
            context: 256,
            tied: false,
            storage: Storage::F32,
        }
    }

    pub fn file(&self) -> File {
        let mut file = File::default();
        file.set("general.architecture", self.arch).set("tokenizer.ggml.model", "no_vocab");
        for (key, size) in [
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("block_count", self.layers),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("feed_forward_length", self.feed_forward),
        ] {
            file.set(&format!("{}.{key}", self.arch), size as u32);
        }
        file.set(&format!("{}.attention.layer_norm_rms_epsilon", self.arch), 1e-5f32);
        file.tensors = self.tensors();
        file
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (hidden, queries, keys) = (self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut weights = Weights { storage: self.storage, state: 0x9E37_79B9_7F4A_7C15, tensors: Vec::new() };
        weights.matrix("token_embd", hidden, self.vocab);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            weights.norm(&name("attn_norm"), hidden);
            for (part, width) in [("q", queries), ("k", keys), ("v", keys)] {
                weights.matrix(&name(&format!("attn_{part}")), hidden, width);
                if self.arch == "qwen2" {
                    weights.vector(&name(&format!("attn_{part}.bias")), width, 0.0);
                }
            }
            if self.arch == "qwen3" {
                weights.norm(&name("attn_q_norm"), self.head_dim);
                weights.norm(&name("attn_k_norm"), self.head_dim);
            }
            weights.matrix(&name("attn_output"), queries, hidden);
            weights.norm(&name("ffn_norm"), hidden);
            weights.matrix(&name("ffn_gate"), hidden, self.feed_forward);
            weights.matrix(&name("ffn_up"), hidden, self.feed_forward);
            weights.matrix(&name("ffn_down"), self.feed_forward, hidden);
        }
        weights.norm("output_norm", hidden);
        if !self.tied {
            weights.matrix("output", hidden, self.vocab);
        }
        weights.tensors
    }
}

struct Weights {
    storage: Storage,
    state: u64,
    tensors: Vec<Tensor>,
}

impl Weights {
    fn matrix(&mut self, name: &str, cols: usize, rows: usize) {
        let content = match self.storage {
            Storage::F32 => Content::Bytes(self.floats(cols * rows, 0.0, 1.0 / (cols as f32).sqrt())),
            Storage::Q8_0 => Content::Bytes(self.blocks(cols * rows / 32, 0.02 / (cols as f32).sqrt())),
            Storage::Hole => Content::Hole(2 * (cols * rows) as u64),
        };
        let type_id = match self.storage {
            Storage::F32 => 0,
            Storage::Q8_0 => 8,
            Storage::Hole => 1,
        };
        let dims = vec![cols as u64, rows as u64];
        self.tensors.push(Tensor { name: format!("{name}.weight"), dims, type_id, content });
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.vector(&format!("{name}.weight"), width, 1.0);
    }

    fn vector(&mut self, name: &str, width: usize, mean: f32) {
        let content = Content::Bytes(self.floats(width, mean, 0.1));
        self.tensors.push(Tensor { name: name.to_owned(), dims: vec![width as u64], type_id: 0, content });
    }

    fn floats(&mut self, count: usize, mean: f32, spread: f32) -> Vec<u8> {
        (0..count).flat_map(|_| (mean + spread * self.next()).to_le_bytes()).collect()
    }

    fn blocks(&mut self, count: usize, scale: f32) -> Vec<u8> {
        let scale = half::f16::from_f32(scale).to_le_bytes();
        let mut bytes = Vec::new();
        for _ in 0..count {
            bytes.extend(scale);
            bytes.extend((0..32).map(|_| (100.0 * self.next()) as i8 as u8));
        }
        bytes
    }

    /// Between -1 and 1: Marsaglia's xorshift.
    fn next(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
