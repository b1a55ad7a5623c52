//! Metadata of model files made in memory, for tests of text that need no model.

use segno::format::{Data, Gguf, Metadata};
use segno::text::Tokenizer;
use std::path::Path;
use std::sync::Arc;

/// The tokenizer of a file.
pub fn tokenizer(path: &Path) -> Tokenizer {
    let file = Gguf::open(path, false, &mut |_| Ok(())).unwrap();
    Tokenizer::from_metadata(file.metadata()).unwrap().unwrap()
}

/// Writes the metadata of a GGUF file.
#[derive(Clone, Default)]
pub struct MetadataWriter {
    entries: Vec<u8>,
    count: u64,
}

impl MetadataWriter {
    fn entry(mut self, key: &str, type_id: u32) -> Self {
        string(&mut self.entries, key.as_bytes());
        self.entries.extend(type_id.to_le_bytes());
        self.count += 1;
        self
    }

    fn array(self, key: &str, type_id: u32, len: usize) -> Self {
        let mut writer = self.entry(key, 9);
        writer.entries.extend(type_id.to_le_bytes());
        writer.entries.extend((len as u64).to_le_bytes());
        writer
    }

    /// Adds a string.
    pub fn text(self, key: &str, value: &str) -> Self {
        let mut writer = self.entry(key, 8);
        string(&mut writer.entries, value.as_bytes());
        writer
    }

    /// Adds a boolean.
    pub fn bool(self, key: &str, value: bool) -> Self {
        let mut writer = self.entry(key, 7);
        writer.entries.push(value.into());
        writer
    }

    /// Adds a 32-bit number.
    pub fn u32(self, key: &str, value: u32) -> Self {
        let mut writer = self.entry(key, 4);
        writer.entries.extend(value.to_le_bytes());
        writer
    }

    /// Adds an array of strings.
    pub fn strings<T: AsRef<[u8]>>(self, key: &str, values: &[T]) -> Self {
        let mut writer = self.array(key, 8, values.len());
        values.iter().for_each(|value| string(&mut writer.entries, value.as_ref()));
        writer
    }

    /// Adds an array of 32-bit floats.
    pub fn floats(self, key: &str, values: &[f32]) -> Self {
        let mut writer = self.array(key, 6, values.len());
        values.iter().for_each(|value| writer.entries.extend(value.to_le_bytes()));
        writer
    }

    /// Adds an array of bytes.
    pub fn byte_array(self, key: &str, values: &[u8]) -> Self {
        let mut writer = self.array(key, 0, values.len());
        writer.entries.extend(values);
        writer
    }

    /// Adds an array of 32-bit integers.
    pub fn integers(self, key: &str, values: &[i32]) -> Self {
        let mut writer = self.array(key, 5, values.len());
        values.iter().for_each(|value| writer.entries.extend(value.to_le_bytes()));
        writer
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(0u64.to_le_bytes());
        file.extend(self.count.to_le_bytes());
        file.extend(&self.entries);
        file
    }

    /// The metadata as the library reads it.
    pub fn finish(&self) -> Metadata {
        parse(self.bytes()).expect("a well-formed file")
    }
}

/// The metadata of a file's bytes, if the library can read them.
pub fn parse(file: Vec<u8>) -> Option<Metadata> {
    Gguf::parse(Arc::new(Data::Owned(file)), &mut |_| Ok(())).ok().map(|file| file.metadata().clone())
}

fn string(out: &mut Vec<u8>, value: &[u8]) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value);
}
