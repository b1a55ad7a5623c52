//! GGUF files as data: written as the format says, but every count, length, type and offset can lie.

/// A file, with what it says about itself where that differs from what it holds.
#[derive(Clone)]
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: usize,
    pub said_entries: Option<u64>,
    pub said_tensors: Option<u64>,
    pub entries: Vec<Entry>,
    pub tensors: Vec<Tensor>,
}

/// A metadata entry.
#[derive(Clone)]
pub struct Entry {
    pub key: Vec<u8>,
    pub value: Value,
}

/// A metadata value.
#[derive(Clone)]
pub enum Value {
    Scalar { type_id: u32, bytes: Vec<u8> },
    Text { bytes: Vec<u8>, said: Option<u64> },
    Array { type_id: u32, items: Vec<Value>, said: Option<u64> },
}

/// A tensor and its data.
#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub said_rank: Option<u32>,
    pub type_id: u32,
    pub said_offset: Option<u64>,
    pub data: Vec<u8>,
}

pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;

impl Value {
    pub fn u32(value: u32) -> Value {
        Value::Scalar { type_id: U32, bytes: value.to_le_bytes().to_vec() }
    }

    pub fn i32(value: i32) -> Value {
        Value::Scalar { type_id: I32, bytes: value.to_le_bytes().to_vec() }
    }

    pub fn f32(value: f32) -> Value {
        Value::Scalar { type_id: F32, bytes: value.to_le_bytes().to_vec() }
    }

    pub fn bool(value: bool) -> Value {
        Value::Scalar { type_id: BOOL, bytes: vec![value.into()] }
    }

    pub fn text(text: impl AsRef<[u8]>) -> Value {
        Value::Text { bytes: text.as_ref().to_vec(), said: None }
    }

    /// An array of values of one type.
    pub fn array(type_id: u32, items: impl IntoIterator<Item = Value>) -> Value {
        Value::Array { type_id, items: items.into_iter().collect(), said: None }
    }

    pub fn type_id(&self) -> u32 {
        match self {
            Value::Scalar { type_id, .. } => *type_id,
            Value::Text { .. } => TEXT,
            Value::Array { .. } => ARRAY,
        }
    }
}

impl File {
    /// Adds an entry.
    pub fn set(&mut self, key: &str, value: Value) {
        self.entries.push(Entry { key: key.into(), value });
    }

    /// The file as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer { version: self.version, bytes: self.magic.to_vec() };
        writer.u32(self.version);
        writer.count(self.said_tensors.unwrap_or(self.tensors.len() as u64));
        writer.count(self.said_entries.unwrap_or(self.entries.len() as u64));
        for Entry { key, value } in &self.entries {
            writer.text(key, None);
            writer.u32(value.type_id());
            writer.value(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            writer.tensor(tensor, data.len());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        let mut bytes = writer.bytes;
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(data);
        bytes
    }
}

struct Writer {
    version: u32,
    bytes: Vec<u8>,
}

impl Writer {
    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// 32 bits wide in version 1.
    fn count(&mut self, value: u64) {
        match self.version {
            1 => self.u32(value as u32),
            _ => self.bytes.extend(value.to_le_bytes()),
        }
    }

    fn text(&mut self, bytes: &[u8], said: Option<u64>) {
        self.count(said.unwrap_or(bytes.len() as u64));
        self.bytes.extend(bytes);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Scalar { bytes, .. } => self.bytes.extend(bytes),
            Value::Text { bytes, said } => self.text(bytes, *said),
            Value::Array { type_id, items, said } => {
                self.u32(*type_id);
                self.count(said.unwrap_or(items.len() as u64));
                items.iter().for_each(|item| self.value(item));
            }
        }
    }

    fn tensor(&mut self, tensor: &Tensor, offset: usize) {
        self.text(&tensor.name, None);
        self.u32(tensor.said_rank.unwrap_or(tensor.dims.len() as u32));
        tensor.dims.iter().for_each(|&dim| self.count(dim));
        self.u32(tensor.type_id);
        self.bytes.extend(tensor.said_offset.unwrap_or(offset as u64).to_le_bytes());
    }
}
