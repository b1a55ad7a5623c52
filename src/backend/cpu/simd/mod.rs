//! Vector kernels, chosen at run time from one static table.
//!
//! [`detect`] gives the fastest entry that the processor can run; an entry's methods check lengths and then run a
//! kernel from `generic` compiled for its instruction set. Kernels know neither threads nor models, and allocate nothing.
//!
//! # Canonical sums
//!
//! A result depends on its operands alone: every entry gives the same bits, for any number of activation rows in a
//! call and any cut of the weights into tiles. (NaNs are NaNs everywhere, of any payload.)
//!
//! - Integer weights times int8 blocks: one f32 accumulator for each output; blocks of 32 columns in ascending order;
//!   `acc = fma(activation.scale, v, acc)` with
//!   - `v = d * isum` for Q4_0, Q5_0, Q8_0, Q3_K, Q6_K and the IQ and MX types, where `isum` is the exact integer dot
//!     product of 32 centred weights, times the integer scales of their halves where there are any, and `d` the scale of
//!     the 32, an exact product where it is one;
//!   - `v = fma(m, sum, d * isum)` for Q4_1, Q5_1, Q4_K, Q5_K, where `isum` is the exact dot product of the unsigned
//!     weights, `sum` that of the activations, and `d` and `m` the scale and the (signed) minimum of the 32 weights,
//!     exact products in the K types;
//!   - `v = fma(-dmin, msum, d * isum)` for Q2_K, where `msum` is the exact sum of activations times 4-bit minimums.
//! - Sums over the rows of a state: a lane for each column, the rows in ascending order by fma; convolutions: a lane for each column, the taps in
//!   ascending order by fma.
//! - Float dot products (float weights, decoded weights, keys, squares, exponentials): 16 lanes, element k to lane
//!   k mod 16 by fma in ascending order, the tail filled with zeros; the lanes are added as a fixed tree.
//! - Keys and values of 8 bits are the floats that they stand for, an exact product of scale and integer.
//! - BF16 weights times activations rounded to BF16: the same, but a lane takes two neighbours, of 32 elements the numbers 2 i and 2 i + 1, the
//!   second before the first. The processor's instruction for that knows no number below 2^-126; with weights of at least 2^-62 there are
//!   none, as activations below 2^-50 are rounded to zero.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[allow(clippy::needless_range_loop)] // Arrays of registers are walked in lockstep, by indices that vanish.
mod generic;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operand;
#[allow(clippy::needless_range_loop)] // As above: lanes.
mod scalar;
mod vector;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

pub use operand::{FloatRun, Form, Input, KvRun, Matrix, Q8_LEN, Q8Block, ScanRow};

use crate::backend::cpu::pool::TileMut;
use crate::kv::q8;
use crate::plan::op::Activation;
use crate::quant::DType;
use crate::quant::encode::{self, kquant};
use generic::{activation, attention, float, map, norm, quantize, scan};
use half::{bf16, f16};
use operand::bytes;
use vector::{Kernel, Simd};

/// The kernels of one instruction set.
pub struct Kernels {
    /// `"scalar"`; on x86-64 `"avx2"`, `"avxvnni"`, `"avx512"` or `"avx512bf16"`; on AArch64 `"neon"`, `"neondot"` or `"neoni8mm"`.
    pub name: &'static str,
    isa: Isa,
    detected: fn() -> bool,
}

enum Isa {
    Scalar(scalar::Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<false>),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<false>),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(avx512::Avx512<true>),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<false, false>),
    #[cfg(target_arch = "aarch64")]
    NeonDot(neon::Neon<true, false>),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(neon::Neon<true, true>),
}

/// Slowest first. Entries leave this module only through functions that have asked the processor.
static TABLE: &[Kernels] = &[
    Kernels { name: "scalar", isa: Isa::Scalar(scalar::Scalar), detected: || true },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx2",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::Avx2(unsafe { avx2::Avx2::new() }),
        detected: avx2::Avx2::<false>::detected,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avxvnni",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::AvxVnni(unsafe { avx2::Avx2::new() }),
        detected: avx2::Avx2::<true>::detected,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::Avx512(unsafe { avx512::Avx512::new() }),
        detected: avx512::Avx512::<false>::detected,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512bf16",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::Avx512Bf16(unsafe { avx512::Avx512::new() }),
        detected: avx512::Avx512::<true>::detected,
    },
    #[cfg(target_arch = "aarch64")]
    Kernels {
        name: "neon",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::Neon(unsafe { neon::Neon::new() }),
        detected: neon::Neon::<false, false>::detected,
    },
    #[cfg(target_arch = "aarch64")]
    Kernels {
        name: "neondot",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::NeonDot(unsafe { neon::Neon::new() }),
        detected: neon::Neon::<true, false>::detected,
    },
    #[cfg(target_arch = "aarch64")]
    Kernels {
        name: "neoni8mm",
        // SAFETY: the entry is handed out only where `detected` holds.
        isa: Isa::NeonI8mm(unsafe { neon::Neon::new() }),
        detected: neon::Neon::<true, true>::detected,
    },
];

/// The fastest kernels that this processor can run.
pub fn detect(allow_avx512: bool) -> &'static Kernels {
    let allowed = |kernels: &&Kernels| (kernels.detected)() && (allow_avx512 || !kernels.name.starts_with("avx512"));
    TABLE.iter().rfind(allowed).expect("every processor runs the scalar kernels")
}

/// All kernels that this processor can run, slowest first.
pub fn available() -> Vec<&'static Kernels> {
    TABLE.iter().filter(|kernels| (kernels.detected)()).collect()
}

impl Kernels {
    fn run<K: Kernel>(&self, kernel: K) -> K::Output {
        match self.isa {
            Isa::Scalar(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16(s) => s.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(s) => s.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot(s) => s.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm(s) => s.run(kernel),
        }
    }

    /// In which form products with weights of this type read activations in default mode; all can read f32. The same for every entry of the
    /// table.
    pub fn form(&self, dtype: DType) -> Form {
        generic::form(dtype)
    }

    /// `out[t][i]` = dot product of activation row t and weight row `out.first_col() + i`.
    ///
    /// `x` holds `out.rows()` rows of `w.cols()` values.
    ///
    /// # Panics
    /// If sizes do not match, or `x` has neither the form of the type nor that of f32.
    pub fn matmul(&self, w: &Matrix, x: &Input, out: &mut TileMut<f32>) {
        let values = out.rows() * w.cols();
        assert!(out.first_col() + out.cols() <= w.rows(), "the tile lies outside of the matrix");
        match *x {
            Input::F32 { values: x } => {
                assert_eq!(x.len(), values);
                self.run(float::Product { w, x, x_bytes: bytes(x), out });
            }
            Input::Q8 { blocks: x } => {
                assert!(x.len() * Q8_LEN == values && self.form(w.dtype()) == Form::Q8);
                self.run(generic::quant::Product { w, x, out });
            }
            Input::Bf16 { values: x } => {
                assert!(x.len() == values && w.dtype() == DType::BF16);
                self.run(float::PairProduct { w, x: bytes(x), out });
            }
        }
    }

    /// Activations to int8 blocks: `scale` = largest magnitude / 127, `q` = x * (127 / largest magnitude), rounded to
    /// the nearest, ties to even. Blocks below 1e-36 become zero. A block with an infinity or NaN becomes zeros with
    /// scale NaN, so that every product with it is NaN.
    ///
    /// # Panics
    /// If `x.len() != 32 * out.len()`.
    pub fn quantize(&self, x: &[f32], out: &mut [Q8Block]) {
        assert_eq!(x.len(), out.len() * Q8_LEN);
        self.run(quantize::Quantize { x, out });
    }

    /// Encodes whole blocks of weights as `dtype`: the blocks of [`encode::encode`], bit for bit where the values are numbers.
    ///
    /// # Panics
    /// As there.
    pub fn encode(&self, dtype: DType, values: &[f32], out: &mut [u8]) {
        if !matches!(dtype, DType::Q4_K | DType::Q5_K | DType::Q6_K) {
            return encode::encode(dtype, values, out);
        }
        encode::check(dtype, values, out);
        match dtype {
            DType::Q4_K => {
                self.run(generic::encode::Groups { values, out, search: kquant::Q4_K, pack: kquant::Steps::q4_k })
            }
            DType::Q5_K => {
                self.run(generic::encode::Groups { values, out, search: kquant::Q5_K, pack: kquant::Steps::q5_k })
            }
            _ => self.run(generic::encode::SignedGroups { values, out }),
        }
    }

    /// `out = x * s * weight`, in this order, with `s = 1 / sqrt(mean of squares + eps)`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == out.len());
        self.run(norm::RmsNorm { x, weight, eps, out });
    }

    /// `out = (x - mean) * s * weight`, in this order, with `s = 1 / sqrt(mean of (x - mean)^2 + eps)`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == out.len());
        self.run(norm::LayerNorm { x, weight, eps, out });
    }

    /// `gate = activation(gate) * up`, in this order.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn gate(&self, kind: Activation, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        self.run(activation::Gate { kind, gate, up });
    }

    /// `x = activation(x)`, for an activation of one value.
    pub fn activate(&self, kind: Activation, x: &mut [f32]) {
        self.run(activation::Activate { kind, x });
    }

    /// `x = 1 / (1 + exp(-x))`
    pub fn sigmoid(&self, x: &mut [f32]) {
        self.run(activation::Sigmoid { x });
    }

    /// `x = cap * tanh(x / cap)`
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        self.run(activation::Softcap { x, cap });
    }

    /// `x *= factor`
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        self.run(map::Scale { x, factor });
    }

    /// `x *= y`
    ///
    /// # Panics
    /// If lengths differ.
    pub fn mul(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        self.run(map::Mul { x, y });
    }

    /// `x += y`
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        self.run(map::Add { x, y });
    }

    /// Rotates the pairs (2 i, 2 i + 1) of `head` by the angle i; elements after them stay.
    ///
    /// # Panics
    /// If `cos` and `sin` differ in length or hold more angles than `head` pairs.
    pub fn rope_pairs(&self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && 2 * cos.len() <= head.len());
        self.run(map::RopePairs { head: &mut head[..2 * cos.len()], cos, sin });
    }

    /// Rotates the pairs (i, n + i) of `head` by the angle i of n; elements after them stay.
    ///
    /// # Panics
    /// If `cos` and `sin` differ in length or hold more angles than `head` pairs.
    pub fn rope_halves(&self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && 2 * cos.len() <= head.len());
        self.run(map::RopeHalves { head: &mut head[..2 * cos.len()], cos, sin });
    }

    /// `out[t][j] = scale * dot(queries[t], key j)` for keys that lie across: element 0 of every key, then element 1, and so on. As many
    /// keys as each output has elements.
    ///
    /// # Panics
    /// If lengths differ, or the number of keys is no multiple of 16.
    pub fn score<const T: usize>(&self, queries: [&[f32]; T], keys: KvRun, scale: f32, out: [&mut [f32]; T]) {
        let (len, count) = (queries[0].len(), out[0].len());
        assert!(count.is_multiple_of(16) && keys.holds(count, len));
        assert!(queries.iter().all(|query| query.len() == len) && out.iter().all(|out| out.len() == count));
        self.run(attention::Scores { queries, keys, scale, out });
    }

    /// Rotates each part of `size` elements of `x` by an orthonormal Hadamard matrix, which is its own inverse: the stages of the fast
    /// transform, from neighbours to halves, then a factor of `1 / sqrt(size)`.
    ///
    /// # Panics
    /// If `size` is no power of two that divides the length.
    pub fn rotate(&self, x: &mut [f32], size: usize) {
        assert!(size.is_power_of_two() && x.len().is_multiple_of(size));
        self.run(generic::q8::Rotate { x, size });
    }

    /// A head as the bytes of [`q8`]: the scale rounded to half precision, multiples of that to the nearest, ties to even. A block with an
    /// infinity or NaN, or one whose scale overflows, becomes zeros with scale NaN.
    ///
    /// # Panics
    /// If `out` has not just as many bytes as the head takes.
    pub fn encode_head(&self, x: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), q8::bytes(x.len()));
        self.run(generic::q8::Encode { x, out });
    }

    /// The largest element that is a number; negative infinity if there is none.
    pub fn max(&self, x: &[f32]) -> f32 {
        self.run(attention::Max { x })
    }

    /// `x = exp(x - max)`; returns the sum.
    pub fn exp_sum(&self, x: &mut [f32], max: f32) -> f32 {
        self.run(attention::ExpSum { x, max })
    }

    /// `out[t][d] = fma(weights[t][j], values[j][d], out[t][d])` for the rows of `values` in ascending order, each as long as an output.
    ///
    /// # Panics
    /// If lengths differ, or `values` is not as many rows as there are weights.
    pub fn mix<const T: usize>(&self, weights: [&[f32]; T], values: KvRun, out: [&mut [f32]; T]) {
        let (count, len) = (weights[0].len(), out[0].len());
        assert!(values.holds(count, len));
        assert!(weights.iter().all(|weights| weights.len() == count) && out.iter().all(|out| out.len() == len));
        self.run(attention::Mix { weights, values, out });
    }

    /// The same for one output and a part of each row of `values`, whose rows are `stride` elements apart; the first part begins where `values` do.
    ///
    /// # Panics
    /// If a part is longer than `stride`, or the last one ends behind `values`.
    pub fn mix_part(&self, weights: &[f32], values: FloatRun, stride: usize, out: &mut [f32]) {
        let last = weights.len().saturating_sub(1) * stride;
        assert!(!out.is_empty() && out.len() <= stride && last + out.len() <= values.len());
        self.run(attention::MixPart { weights, values, stride, out });
    }

    /// `acc = fma(x, y, acc)`
    ///
    /// # Panics
    /// If lengths differ.
    pub fn mul_add(&self, acc: &mut [f32], x: &[f32], y: &[f32]) {
        assert!(acc.len() == x.len() && acc.len() == y.len());
        self.run(map::MulAdd { acc, x, y });
    }

    /// A row of [`crate::plan::op::Scan`] for columns of a matrix that lies in blocks of 16 columns, a block's row behind the other:
    /// `m = state[i] * kept` for each row `i`, where the delta rule asks for it `known = fma(m, key[i], known)` over all rows, `new` the rest of the
    /// value by one subtraction, times strength; then `state[i] = fma(key[i], new, m)` and `out = fma(state[i], query[i], out)`, and in the end
    /// `out = fma(skip, value, out)`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn scan_row(&self, row: &ScanRow, state: &mut [f32], out: &mut [f32]) {
        assert!(row.key.len() == row.query.len() && row.value.len() == out.len());
        assert_eq!(state.len(), out.len().next_multiple_of(16) * row.key.len());
        self.run(scan::Scan { row, state, out });
    }

    /// `acc = fma(acc, a, other * b)`
    ///
    /// # Panics
    /// If lengths differ.
    pub fn scale_add(&self, acc: &mut [f32], a: f32, other: &[f32], b: f32) {
        assert_eq!(acc.len(), other.len());
        self.run(map::ScaleAdd { acc, a, other, b });
    }

    /// To half precision, nearest even.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn to_f16(&self, x: &[f32], out: &mut [f16]) {
        assert_eq!(x.len(), out.len());
        self.run(map::ToF16 { x, out });
    }

    /// To BF16, nearest even. What is below 2^-50 becomes zero, and infinities become NaN.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn to_bf16(&self, x: &[f32], out: &mut [bf16]) {
        assert_eq!(x.len(), out.len());
        self.run(map::ToBf16 { x, out });
    }
}
