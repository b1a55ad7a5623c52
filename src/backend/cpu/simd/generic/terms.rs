//! What a float product multiplies: stored weights and activations, taken in steps of one vector of 64 bytes.

use crate::backend::cpu::simd::vector::Simd;
use std::marker::PhantomData;

/// A stored float type.
pub(super) trait Element {
    /// 16 elements as bytes.
    type Chunk;
    /// Whole chunks, and the bytes left.
    fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// 16 elements.
    fn load<S: Simd>(s: S, chunk: &Self::Chunk) -> S::F;
    /// Fewer than 16 elements, filled with zeros.
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Element for F32 {
    type Chunk = [u8; 64];

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 64]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 64]) -> S::F {
        s.as_float(s.load_bytes(chunk))
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        Self::load(s, &padded(bytes))
    }
}

impl Element for F16 {
    type Chunk = [u8; 32];

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 32]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 32]) -> S::F {
        s.load_half(chunk)
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        Self::load(s, &padded(bytes))
    }
}

impl Element for BF16 {
    type Chunk = [u8; 32];

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 32]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 32]) -> S::F {
        s.as_float(s.shl(s.load_words(chunk), 16))
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        Self::load(s, &padded(bytes))
    }
}

#[inline(always)]
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// A pair of forms, of weights and of activations. A step is a vector of activations, and the weights that meet it; it is added in `HALVES` parts.
pub(super) trait Terms {
    /// Stored weights of a step.
    type Chunk;
    /// Bytes of an activation.
    const X_BYTES: usize;
    const HALVES: usize = 1;
    /// Whole steps of weights, and the bytes left.
    fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// The weights of a part of a step, as [`Terms::add`] takes them.
    fn load<S: Simd>(s: S, chunk: &Self::Chunk, half: usize) -> S::I;
    /// Those of less than a step, filled with zeros.
    fn load_part<S: Simd>(s: S, bytes: &[u8], half: usize) -> S::I;
    /// `acc` plus the products of a part of a step.
    fn add<S: Simd>(s: S, acc: S::F, w: S::I, x: S::I) -> S::F;

    /// The activations of a part of a step.
    #[inline(always)]
    fn load_x<S: Simd>(s: S, x: &[u8; 64], _half: usize) -> S::I {
        s.load_bytes(x)
    }

    /// Those of less than a step, filled with zeros.
    #[inline(always)]
    fn load_x_part<S: Simd>(s: S, x: &[u8], half: usize) -> S::I {
        Self::load_x(s, &padded(x), half)
    }
}

/// Weights of any float type and f32 activations, 16 of each in a step.
pub(super) struct Floats<E>(PhantomData<E>);

impl<E: Element> Terms for Floats<E> {
    type Chunk = E::Chunk;
    const X_BYTES: usize = 4;

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[E::Chunk], &[u8]) {
        E::chunks(bytes)
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &E::Chunk, _half: usize) -> S::I {
        s.as_int(E::load(s, chunk))
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8], _half: usize) -> S::I {
        s.as_int(E::load_part(s, bytes))
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, acc: S::F, w: S::I, x: S::I) -> S::F {
        s.fma(s.as_float(w), s.as_float(x), acc)
    }
}

/// BF16 weights and activations, 32 of each in a step, two in a lane.
pub(super) struct Pairs;

impl Terms for Pairs {
    type Chunk = [u8; 64];
    const X_BYTES: usize = 2;

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 64]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 64], _half: usize) -> S::I {
        s.load_bytes(chunk)
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8], _half: usize) -> S::I {
        s.load_bytes(&padded(bytes))
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, acc: S::F, w: S::I, x: S::I) -> S::F {
        s.dot_pairs(acc, w, x)
    }
}

/// The same in the order of [`Simd::dot_pairs`] without its instruction: the second of each pair as an f32, then the first.
pub(super) struct SplitPairs;

impl Terms for SplitPairs {
    type Chunk = [u8; 64];
    const X_BYTES: usize = 2;
    const HALVES: usize = 2;

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 64]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 64], half: usize) -> S::I {
        let pairs = s.load_bytes(chunk);
        if half == 0 { s.and(pairs, s.splat_int(0xffff_0000_u32 as i32)) } else { s.shl(pairs, 16) }
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8], half: usize) -> S::I {
        Self::load(s, &padded(bytes), half)
    }

    #[inline(always)]
    fn load_x<S: Simd>(s: S, x: &[u8; 64], half: usize) -> S::I {
        Self::load(s, x, half)
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, acc: S::F, w: S::I, x: S::I) -> S::F {
        s.fma(s.as_float(w), s.as_float(x), acc)
    }
}
