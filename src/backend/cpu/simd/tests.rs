//! The fused multiplication and addition of the scalar kernels against the processor's instruction.

use crate::elementary::fma::tests::{same, triples};

#[target_feature(enable = "fma")]
fn instruction(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[test]
fn it_is_what_the_processor_has() {
    if !std::arch::is_x86_feature_detected!("fma") {
        return;
    }
    let mut special = vec![0.0, 1.0, f32::MAX, f32::INFINITY, f32::NAN, f32::EPSILON, 3.0, 16_777_215.0];
    let bits = [1, 2, 0x7f_ffff, 0x80_0000, 0x80_0001, 0x3f80_0001, 0x3f7f_ffff, 0x3480_0000];
    special.extend(bits.map(f32::from_bits));
    special.extend(special.clone().into_iter().map(|x| -x));
    let compare = |a, b, c| {
        // SAFETY: the processor has it, as was asked above.
        same(a, b, c, unsafe { instruction(a, b, c) });
    };
    for &a in &special {
        for &b in &special {
            special.iter().for_each(|&c| compare(a, b, c));
        }
    }
    triples(4_000_000, compare);
}
