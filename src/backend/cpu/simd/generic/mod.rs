//! The kernels, each written once over the vector type. Callers have checked the lengths.

pub(super) mod activation;
pub(super) mod attention;
pub(super) mod encode;
pub(super) mod exp;
pub(super) mod float;
mod grid;
mod kquant;
mod lone;
pub(super) mod map;
pub(super) mod norm;
mod panel;
pub(super) mod q8;
pub(super) mod quant;
pub(super) mod quantize;
mod rows;
pub(super) mod scan;
mod small;
mod terms;

use super::operand::Form;
use super::vector::Simd;
use crate::quant::DType;

/// What products with weights of a type read.
pub(super) fn form(dtype: DType) -> Form {
    match dtype {
        DType::BF16 => Form::Bf16,
        _ if has_integers(dtype) => Form::Q8,
        _ => Form::F32,
    }
}

/// Whether a type has an integer kernel.
fn has_integers(dtype: DType) -> bool {
    use DType::*;
    let small = matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4);
    let large = matches!(dtype, Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS);
    small || large || matches!(dtype, IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S)
}

/// Up to 16 values as a vector, filled with zeros.
#[inline(always)]
fn load_part<S: Simd>(s: S, x: &[f32]) -> S::F {
    let mut lanes = [0.0; 16];
    lanes[..x.len()].copy_from_slice(x);
    s.load(&lanes)
}

/// The first lanes of a vector.
#[inline(always)]
fn store_part<S: Simd>(s: S, x: S::F, out: &mut [f32]) {
    let mut lanes = [0.0; 16];
    s.store(x, &mut lanes);
    out.copy_from_slice(&lanes[..out.len()]);
}
