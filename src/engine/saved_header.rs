//! What a saved sequence begins with: of which model and cache it is, how much there is of everything, and how it draws. [`super::saved`] has what
//! follows.

use super::sequence::Sequence;
use crate::backend::KvType;
use crate::error::{Error, Result};
use crate::sample;
use twox_hash::XxHash3_128;

/// What every saved sequence begins with.
const MAGIC: [u8; 8] = *b"SEGNOSEQ";
/// The form that is written of a sequence without adapters, and of one with some: what lacks the newer parts stays readable where they are not known.
const PLAIN: u32 = 2;
const ADAPTED: u32 = 3;
/// Bytes of a header, its checksum included.
pub const HEADER_BYTES: usize = 136;
/// Bytes of a checksum.
pub const CHECK_BYTES: usize = 16;
/// Flags of the sampler.
const IGNORE_EOG: u32 = 1;
const RANDOM_SEED: u32 = 2;
/// A grammar follows.
const GRAMMAR: u32 = 4;
/// Adapters follow.
const ADAPTERS: u32 = 8;

/// The header of a saved sequence.
#[derive(Debug)]
pub struct Header {
    /// Fingerprint of the model.
    pub model: u128,
    /// Type of the cache's elements.
    pub kv_type: KvType,
    /// Tokens, evaluated or not.
    pub tokens: u64,
    /// Those whose keys and values follow.
    pub evaluated: u64,
    /// The first page of layers that see a window.
    pub first: u64,
    /// How it draws; the lists are empty here.
    pub sampler: sample::Options,
    /// Whether the seed was taken at random.
    pub random_seed: bool,
    /// Entries of the sampler's lists.
    pub biases: u32,
    /// The same of tokens that end it.
    pub stops: u32,
    /// Marks that follow.
    pub marks: u32,
    /// States of layers behind them.
    pub states: u32,
    /// Whether a grammar follows.
    pub has_grammar: bool,
    /// Whether adapters follow.
    pub has_adapters: bool,
}

impl Header {
    /// That of `sequence`, whose layers with a window begin at the page `first`, without states.
    pub fn of(sequence: &Sequence, model: u128, kv_type: KvType, first: usize) -> Header {
        let sampler = &sequence.sampler;
        Header {
            model,
            kv_type,
            tokens: sequence.tokens.len() as u64,
            evaluated: sequence.evaluated as u64,
            first: first as u64,
            biases: sampler.bias.len() as u32,
            stops: sampler.stop_tokens.len() as u32,
            marks: 0,
            states: 0,
            sampler: sample::Options { bias: Vec::new(), stop_tokens: Vec::new(), ..*sampler },
            random_seed: sequence.has_random_seed(),
            has_grammar: sequence.constraint.is_some(),
            has_adapters: !sequence.adapters.is_empty(),
        }
    }

    /// As it is written.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut fields = Fields { bytes: [0; HEADER_BYTES], at: 0 };
        let sampler = &self.sampler;
        fields.put(MAGIC);
        fields.put((if self.has_adapters { ADAPTED } else { PLAIN }).to_le_bytes());
        fields.put(number_of(self.kv_type).to_le_bytes());
        fields.put(self.model.to_le_bytes());
        [self.tokens, self.evaluated, self.first, sampler.seed].into_iter().for_each(|x| fields.put(x.to_le_bytes()));
        let flags = [
            (sampler.ignore_eog, IGNORE_EOG),
            (self.random_seed, RANDOM_SEED),
            (self.has_grammar, GRAMMAR),
            (self.has_adapters, ADAPTERS),
        ];
        let flags = flags.into_iter().map(|(is_set, flag)| u32::from(is_set) * flag).sum::<u32>();
        [flags, self.biases, self.stops, self.marks, self.states].into_iter().for_each(|x| fields.put(x.to_le_bytes()));
        [sampler.top_k, sampler.penalty_last_n].into_iter().for_each(|x| fields.put(x.to_le_bytes()));
        floats(sampler).into_iter().for_each(|x| fields.put(x.to_le_bytes()));
        let check = XxHash3_128::oneshot(&fields.bytes[..HEADER_BYTES - CHECK_BYTES]);
        fields.bytes[HEADER_BYTES - CHECK_BYTES..].copy_from_slice(&check.to_le_bytes());
        fields.bytes
    }

    /// Reads what [`Header::encode`] has written.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Header> {
        let check = XxHash3_128::oneshot(&bytes[..HEADER_BYTES - CHECK_BYTES]);
        let mut fields = Fields { bytes, at: 0 };
        if fields.get() != MAGIC {
            return Err(bad("it does not begin as one; is it another file?"));
        }
        let version = fields.u32();
        if ![PLAIN, ADAPTED].contains(&version) {
            let problem = format!("the saved sequence has version {version}, this library reads {PLAIN} and {ADAPTED}");
            return Err(Error::Unsupported(problem));
        }
        if bytes[HEADER_BYTES - CHECK_BYTES..] != check.to_le_bytes() {
            return Err(bad("the checksum of its header is wrong"));
        }
        let kv_type = match fields.u32() {
            0 => KvType::F16,
            1 => KvType::F32,
            2 => KvType::Q8,
            number => return Err(bad(&format!("it has the unknown cache type {number}"))),
        };
        let model = u128::from_le_bytes(fields.get());
        let [tokens, evaluated, first, seed] = [(); 4].map(|()| u64::from_le_bytes(fields.get()));
        let [flags, biases, stops, marks, states] = [(); 5].map(|()| fields.u32());
        let [top_k, penalty_last_n] = [(); 2].map(|()| i32::from_le_bytes(fields.get()));
        let [temperature, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty] =
            [(); 7].map(|()| f32::from_le_bytes(fields.get()));
        let adapters = if version == ADAPTED { ADAPTERS } else { 0 };
        if flags & ADAPTERS != adapters || flags & !(IGNORE_EOG | RANDOM_SEED | GRAMMAR | ADAPTERS) != 0 {
            return Err(bad(&format!("it has unknown flags {flags:#x}")));
        }
        let sampler = sample::Options {
            ignore_eog: flags & IGNORE_EOG != 0,
            temperature,
            top_p,
            min_p,
            typical_p,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            top_k,
            penalty_last_n,
            seed,
            bias: Vec::new(),
            stop_tokens: Vec::new(),
        };
        let [random_seed, has_grammar, has_adapters] = [RANDOM_SEED, GRAMMAR, ADAPTERS].map(|flag| flags & flag != 0);
        Ok(Header {
            model,
            kv_type,
            tokens,
            evaluated,
            first,
            sampler,
            random_seed,
            biases,
            stops,
            marks,
            states,
            has_grammar,
            has_adapters,
        })
    }
}

/// The error of a damaged saved sequence.
pub fn bad(problem: &str) -> Error {
    Error::Saved(problem.into())
}

fn number_of(kv_type: KvType) -> u32 {
    match kv_type {
        KvType::F16 => 0,
        KvType::F32 => 1,
        KvType::Q8 => 2,
    }
}

fn floats(sampler: &sample::Options) -> [f32; 7] {
    [
        sampler.temperature,
        sampler.top_p,
        sampler.min_p,
        sampler.typical_p,
        sampler.repeat_penalty,
        sampler.frequency_penalty,
        sampler.presence_penalty,
    ]
}

/// Numbers one after the other.
struct Fields {
    bytes: [u8; HEADER_BYTES],
    at: usize,
}

impl Fields {
    fn put<const N: usize>(&mut self, number: [u8; N]) {
        self.bytes[self.at..][..N].copy_from_slice(&number);
        self.at += N;
    }

    fn get<const N: usize>(&mut self) -> [u8; N] {
        let mut number = [0; N];
        number.copy_from_slice(&self.bytes[self.at..][..N]);
        self.at += N;
        number
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let sampler = sample::Options { seed: 7, top_k: 3, ignore_eog: true, ..sample::Options::defaults() };
        Header {
            model: 1 << 100,
            kv_type: KvType::F32,
            tokens: 5,
            evaluated: 4,
            first: 1,
            sampler,
            random_seed: true,
            biases: 2,
            stops: 3,
            marks: 6,
            states: 2,
            has_grammar: true,
            has_adapters: true,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for (has_adapters, version) in [(false, PLAIN), (true, ADAPTED)] {
            let header = Header { has_adapters, ..header() };
            let read = Header::decode(header.encode()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{header:?}"));
            assert_eq!(u32::from(header.encode()[8]), version);
        }
    }

    #[test]
    fn adapters_are_of_the_form_that_has_some() {
        for (has_adapters, version) in [(false, ADAPTED), (true, PLAIN)] {
            let mut bytes = Header { has_adapters, ..header() }.encode();
            bytes[8] = version as u8;
            let check = XxHash3_128::oneshot(&bytes[..HEADER_BYTES - CHECK_BYTES]);
            bytes[HEADER_BYTES - CHECK_BYTES..].copy_from_slice(&check.to_le_bytes());
            let message = Header::decode(bytes).unwrap_err().to_string();
            assert!(message.contains("unknown flags"), "{message}");
        }
    }

    #[test]
    fn no_changed_bit_passes() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_form_is_named() {
        let mut bytes = header().encode();
        bytes[8] = 4;
        let message = Header::decode(bytes).unwrap_err().to_string();
        assert!(message.contains("version 4") && message.contains("reads 2 and 3"), "{message}");
    }
}
