//! Keys and values of 8 bits: how a head is rotated, and how it is stored then.
//!
//! A head is multiplied by an orthonormal Hadamard matrix, part by part, which spreads an outlier over its part (Ashkboos and others,
//! "QuaRot", 2024). Keys are rotated behind their rotation by position, and queries with them, so that their products stay what they were;
//! values are rotated as they are stored, and the sum that attention makes of them is rotated back: the matrix is its own inverse.
//!
//! What comes out is cut into blocks of [`BLOCK`] elements, the last of which may be shorter. A block is a scale of 16-bit floats, its largest
//! magnitude / 127, and the multiples of it, -127 to 127. The bytes of a head are its multiples, then its scales, little-endian.

/// Elements of a block.
pub const BLOCK: usize = 32;
/// Most elements that are rotated together.
const MOST_ROTATED: usize = 128;

/// Bytes of a head of `dim` elements.
pub const fn bytes(dim: usize) -> usize {
    dim + 2 * dim.div_ceil(BLOCK)
}

/// Elements of a head of so many bytes.
#[cfg(any(test, feature = "cuda"))]
pub const fn elements(bytes: usize) -> usize {
    bytes - 2 * bytes.div_ceil(BLOCK + 2)
}

/// Elements that are rotated together in a head of `dim`: the largest power of two that divides it, up to 128.
pub const fn rotated(dim: usize) -> usize {
    let power = dim.trailing_zeros();
    if power < MOST_ROTATED.trailing_zeros() { 1 << power } else { MOST_ROTATED }
}

/// The form from its definition, in double precision, for tests.
#[cfg(any(test, feature = "testing"))]
pub mod plain {
    use super::{BLOCK, rotated};
    use half::f16;

    /// A head times its Hadamard matrices, whose elements `i` and `j` have a sign for each bit that both numbers have.
    pub fn rotate(head: &[f64]) -> Vec<f64> {
        let size = rotated(head.len());
        let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let row = |part: &[f64], i| (0..size).map(|j| sign(i, j) * part[j]).sum::<f64>() / (size as f64).sqrt();
        head.chunks(size).flat_map(|part| (0..size).map(move |i| row(part, i))).collect()
    }

    /// What the bytes of a head of `dim` elements stand for, rotated as it is.
    pub fn decode(bytes: &[u8], dim: usize) -> Vec<f64> {
        let (multiples, scales) = bytes.split_at(dim);
        let scale = |block: usize| f16::from_le_bytes([scales[2 * block], scales[2 * block + 1]]).to_f64();
        multiples.iter().enumerate().map(|(i, &q)| f64::from(q as i8) * scale(i / BLOCK)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_cut_as_their_sizes_allow() {
        for (dim, parts, size) in
            [(64, 64, 68), (128, 128, 136), (256, 128, 272), (80, 16, 86), (96, 32, 102), (576, 64, 612), (7, 1, 9)]
        {
            assert_eq!((rotated(dim), bytes(dim)), (parts, size), "heads of {dim}");
        }
        assert_eq!(bytes(0), 0);
        assert!((0..600).all(|dim| elements(bytes(dim)) == dim));
    }
}
