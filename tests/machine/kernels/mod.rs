//! Kernels: every entry of their table against plain arithmetic, and against every other entry bit for bit.

mod encode;
mod matmul;
mod ops;
mod q8;

use half::{bf16, f16};
use segno::backend::cpu::pool::TileMut;
use segno::backend::cpu::simd::*;
use segno::quant::DType;
use segno::quant::synthetic::Random;

/// Bits of floats, all NaNs as one.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// Runs `f` on every entry, checks that all return the same bits, and gives these.
fn same_everywhere(what: &str, mut f: impl FnMut(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let kernels = available();
    let first = f(kernels[0]);
    for other in &kernels[1..] {
        assert_eq!(bits(&first), bits(&f(other)), "{what}: {} differs from {}", other.name, kernels[0].name);
    }
    first
}

fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, found) in found.iter().enumerate() {
        let error = (f64::from(*found) - expected[i]).abs();
        assert!(error <= tolerance[i], "{what}, element {i}: {found} is no {}", expected[i]);
    }
}

#[test]
fn the_table_ends_with_the_fastest_entry() {
    let names: Vec<_> = available().iter().map(|kernels| kernels.name).collect();
    assert_eq!(detect(true).name, *names.last().unwrap());
    assert!(!detect(false).name.starts_with("avx512"));
    assert_eq!(names[0], "scalar");
}

#[test]
fn a_matrix_must_have_the_bytes_of_its_shape() {
    let bytes = [0; 3 * 68];
    assert!(Matrix::new(DType::Q8_0, &bytes, 3, 64).is_some());
    assert!(Matrix::new(DType::Q8_0, &bytes, 3, 63).is_none());
    assert!(Matrix::new(DType::Q8_0, &bytes, 2, 64).is_none());
    assert!(Matrix::new(DType::Q8_0, &bytes, usize::MAX, 64).is_none());
}
