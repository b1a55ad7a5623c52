//! The header of a GGUF file, written value by value.

/// The part of a file before the tensor data.
#[derive(Default)]
pub struct Header {
    pub bytes: Vec<u8>,
    pub entries: u64,
}

impl Header {
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub fn string(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64);
        self.bytes.extend(text.as_bytes());
        self
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.entries += 1;
        self.string(key).u32(8).string(value)
    }

    pub fn number(&mut self, key: &str, value: u32) -> &mut Self {
        self.entries += 1;
        self.string(key).u32(4).u32(value)
    }

    pub fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.entries += 1;
        self.string(key).u32(6).u32(value.to_bits())
    }

    pub fn texts(&mut self, key: &str, values: &[String]) -> &mut Self {
        self.entries += 1;
        self.string(key).u32(9).u32(8).u64(values.len() as u64);
        values.iter().fold(self, |header, value| header.string(value))
    }

    pub fn flags(&mut self, key: &str, values: &[bool]) -> &mut Self {
        self.entries += 1;
        self.string(key).u32(9).u32(7).u64(values.len() as u64);
        self.bytes.extend(values.iter().map(|&value| u8::from(value)));
        self
    }

    pub fn numbers(&mut self, key: &str, values: &[u32]) -> &mut Self {
        self.entries += 1;
        self.string(key).u32(9).u32(5).u64(values.len() as u64);
        values.iter().fold(self, |header, &value| header.u32(value))
    }
}
