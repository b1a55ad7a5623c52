//! Adapters for tests: an owner of `segno_adapter`, LoRA files of random numbers, and models that these are merged into.

use super::gguf::{Content, File, Tensor, parsed};
use super::{Model, Result, Session, call, greedy};
use segno::ffi::adapter::{segno_adapter, segno_adapter_free, segno_adapter_load, segno_seq_adapters_set};
use segno::ffi::status::segno_status;
use segno::quant::synthetic::Random;
use segno::quant::{DType, encode, reference};
use std::ffi::CString;
use std::path::Path;
use std::ptr::{null, null_mut};

pub struct Adapter(pub *mut segno_adapter);

// SAFETY: the header allows any thread.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Drop for Adapter {
    fn drop(&mut self) {
        segno_adapter_free(self.0);
    }
}

impl Model {
    pub fn adapter(&self, path: &Path) -> Result<Adapter> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut adapter = std::ptr::dangling_mut();
        let result = call(|err| segno_adapter_load(self.0, path.as_ptr(), null(), &mut adapter, err));
        assert_eq!(adapter.is_null(), result.is_err(), "an adapter if and only if the load succeeds");
        result.map(|_| Adapter(adapter))
    }
}

impl Session {
    pub fn adapt(&self, seq: i32, adapters: &[(&Adapter, f32)]) -> Result<segno_status> {
        let (handles, scales): (Vec<_>, Vec<_>) =
            adapters.iter().map(|&(adapter, scale)| (adapter.0.cast_const(), scale)).unzip();
        call(|err| segno_seq_adapters_set(self.0, seq, handles.as_ptr(), scales.as_ptr(), adapters.len(), err))
    }

    /// The same with scales that are not given.
    pub fn adapt_plainly(&self, seq: i32, adapters: &[&Adapter]) -> Result<segno_status> {
        let handles: Vec<_> = adapters.iter().map(|adapter| adapter.0.cast_const()).collect();
        call(|err| segno_seq_adapters_set(self.0, seq, handles.as_ptr(), null_mut(), handles.len(), err))
    }
}

/// What changes one tensor.
#[derive(Clone)]
pub struct Pair {
    pub name: String,
    /// `rank` rows of `cols` elements, or as many for each expert.
    pub a: Vec<f32>,
    /// `rows` rows of `rank` elements, or as many for each expert.
    pub b: Vec<f32>,
    cols: usize,
    rank: usize,
    /// More than one for tables of experts.
    experts: usize,
}

impl Pair {
    /// Random numbers for a tensor of these sizes.
    fn random(name: &str, dims: &[u64], form: Form, random: &mut Random) -> Pair {
        let (cols, rows, rank) = (dims[0] as usize, dims[1] as usize, form.rank);
        let experts = dims.get(2).map_or(1, |&experts| experts as usize);
        let mut matrix = |rows: usize, cols: usize, spread: f32| -> Vec<f32> {
            let values: Vec<f32> = (0..rows * cols).map(|_| spread * random.uniform()).collect();
            values.chunks(cols).flat_map(|row| stored(row, form.dtype).0).collect()
        };
        let spread = 1.0 / (cols as f32).sqrt();
        // What the file has the other way round is rounded in the rows that it has there.
        let a = match is_embedding(name) {
            true => turned(&matrix(cols, rank, spread), rank),
            false => matrix(rank * experts, cols, spread),
        };
        let b = matrix(rows * experts, rank, 0.2 / (rank as f32).sqrt());
        Pair { name: name.to_owned(), a, b, cols, rank, experts }
    }

    /// The two tensors of a file: the ends of their names, the values and the sizes.
    fn tensors(&self) -> [(&'static str, Vec<f32>, Vec<usize>); 2] {
        let Pair { a, b, cols, rank, experts, .. } = self;
        let rows = b.len() / rank / experts;
        if is_embedding(&self.name) {
            // The other way round: a row for each token, and `A` turned.
            return [("lora_a", b.clone(), vec![*rank, rows]), ("lora_b", turned(a, *cols), vec![*rank, *cols])];
        }
        let dims = |first, second| if *experts > 1 { vec![first, second, *experts] } else { vec![first, second] };
        [("lora_a", a.clone(), dims(*cols, *rank)), ("lora_b", b.clone(), dims(*rank, rows))]
    }
}

/// A LoRA adapter.
#[derive(Clone)]
pub struct Lora {
    pub family: String,
    pub alpha: f32,
    pub pairs: Vec<Pair>,
    pub dtype: DType,
}

/// What the random pairs of an adapter have in common.
#[derive(Clone, Copy)]
pub struct Form {
    pub seed: u64,
    pub rank: usize,
    pub alpha: f32,
    pub dtype: DType,
}

impl Form {
    pub fn new(seed: u64, rank: usize) -> Form {
        Form { seed, rank, alpha: 2.0 * rank as f32, dtype: DType::F32 }
    }
}

/// Whether products read a tensor of this name and shape as a whole, or in rows.
pub fn is_product(name: &str, dims: &[u64]) -> bool {
    let others = ["token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"];
    let parts = ["ssm_conv1d", "shortconv.conv", "ssm_norm", "attn_k_b", "attn_v_b"];
    let is_other = others.contains(&name) || parts.iter().any(|part| name.contains(part));
    dims.len() == 2 && name.ends_with(".weight") && !is_other
}

/// Whether a tensor holds the matrices of all experts.
pub fn is_table(name: &str, dims: &[u64]) -> bool {
    dims.len() == 3 && name.ends_with("_exps.weight")
}

/// Whether a tensor is the embedding of tokens.
pub fn is_embedding(name: &str) -> bool {
    name == "token_embd.weight"
}

impl Lora {
    /// Random pairs for the tensors of `model` that `of` takes of those that products of all rows read.
    pub fn random(model: &[u8], form: Form, of: impl Fn(&str) -> bool) -> Lora {
        Lora::of_all(model, form, is_product, of)
    }

    /// The same of these, the tables of experts and the embedding of tokens.
    pub fn whole(model: &[u8], form: Form, of: impl Fn(&str) -> bool) -> Lora {
        let may_change =
            |name: &str, dims: &[u64]| is_product(name, dims) || is_table(name, dims) || is_embedding(name);
        Lora::of_all(model, form, may_change, of)
    }

    /// The same of these and the tables of experts.
    pub fn of_products(model: &[u8], form: Form, of: impl Fn(&str) -> bool) -> Lora {
        Lora::of_all(model, form, |name, dims| is_product(name, dims) || is_table(name, dims), of)
    }

    fn of_all(model: &[u8], form: Form, may_change: impl Fn(&str, &[u64]) -> bool, of: impl Fn(&str) -> bool) -> Lora {
        let (gguf, mut random) = (parsed(model), Random::new(form.seed));
        let family = gguf.metadata().text("general.architecture").unwrap().unwrap().to_owned();
        let tensors = gguf.tensors().iter().filter(|tensor| may_change(&tensor.name, &tensor.dims) && of(&tensor.name));
        let pairs = tensors.map(|tensor| Pair::random(&tensor.name, &tensor.dims, form, &mut random));
        let pairs: Vec<Pair> = pairs.collect();
        assert!(!pairs.is_empty());
        Lora { family, alpha: form.alpha, pairs, dtype: form.dtype }
    }

    /// The file that llama.cpp's converter would write of it.
    pub fn file(&self) -> File {
        let mut file = File::default();
        file.set("general.architecture", self.family.as_str()).set("general.type", "adapter");
        file.set("adapter.type", "lora").set("adapter.lora.alpha", self.alpha);
        for pair in &self.pairs {
            for (end, values, dims) in pair.tensors() {
                let (dtype, bytes) = all_stored(&values, dims[0], self.dtype);
                let (name, dims) = (format!("{}.{end}", pair.name), dims.iter().map(|&dim| dim as u64).collect());
                file.tensors.push(Tensor { name, dims, type_id: dtype.ggml_id(), content: Content::Bytes(bytes) });
            }
        }
        file
    }

    /// Adds what it would add with this scale to the F32 weights of `model`.
    pub fn merge_into(&self, model: &mut [u8], scale: f32) {
        let gguf = parsed(model);
        for Pair { name, a, b, cols, rank, experts } in &self.pairs {
            let tensor = gguf.tensor(name).unwrap();
            assert_eq!(DType::from_ggml(tensor.type_id), Some(DType::F32), "{name}");
            let len = 4 * cols * (b.len() / rank);
            let bytes = tensor.bytes(len).unwrap();
            let at = model.windows(len).rposition(|window| *window == *bytes).unwrap();
            let factor = f64::from(scale) * if self.alpha == 0.0 { 1.0 } else { f64::from(self.alpha) / *rank as f64 };
            let rows = b.len() / rank / experts;
            for (row, b) in b.chunks(*rank).enumerate() {
                let a = &a[row / rows * rank * cols..];
                for col in 0..*cols {
                    let change: f64 =
                        b.iter().enumerate().map(|(k, b)| f64::from(*b) * f64::from(a[k * cols + col])).sum();
                    let place = &mut model[at + 4 * (row * cols + col)..][..4];
                    let old = f64::from(f32::from_le_bytes((&*place).try_into().unwrap()));
                    place.copy_from_slice(&((old + factor * change) as f32).to_le_bytes());
                }
            }
        }
    }
}

/// The values that a row has once it is stored, and its bytes.
fn stored(row: &[f32], dtype: DType) -> (Vec<f32>, Vec<u8>) {
    let (dtype, bytes) = all_stored(row, row.len(), dtype);
    let mut values = vec![0.0; row.len()];
    reference::decode(dtype, &bytes, &mut values);
    (values, bytes)
}

/// Rows as `dtype`, or as F16 where they are no whole blocks, as llama.cpp's converter has it.
fn all_stored(values: &[f32], cols: usize, dtype: DType) -> (DType, Vec<u8>) {
    let dtype = if cols.is_multiple_of(dtype.block_len()) { dtype } else { DType::F16 };
    let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.block_bytes()];
    match dtype {
        DType::F32 => bytes.copy_from_slice(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()),
        _ => encode::encode(dtype, values, &mut bytes),
    }
    (dtype, bytes)
}

/// The columns of a matrix as rows.
fn turned(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols).copied()).collect()
}

/// What sequences begin with.
pub const PROMPT: [i32; 14] = [3, 17, 5, 29, 11, 8, 2, 40, 23, 7, 19, 4, 31, 6];

/// The logits behind the prompt of a sequence with adapters.
pub fn logits(session: &Session, adapters: &[(&Adapter, f32)]) -> Vec<f32> {
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, adapters).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    let logits = session.logits(seq).unwrap();
    session.close(seq).unwrap();
    logits
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The largest difference of two rows of logits.
pub fn farthest(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // A difference that is no number must fail.
    differences.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}
