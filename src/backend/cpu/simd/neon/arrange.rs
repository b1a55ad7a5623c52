//! Bytes of rows in other orders.

use super::Ints;
use std::arch::aarch64::*;

/// The bytes of `gather_rows` as those of `gather_pairs`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn pairs_of_rows(rows: [Ints; 4]) -> [Ints; 4] {
    let mut out = rows;
    for c in 0..2 {
        for i in 0..4 {
            let (first, second) = (vreinterpretq_s64_s32(rows[2 * c][i]), vreinterpretq_s64_s32(rows[2 * c + 1][i]));
            out[c][i] = vreinterpretq_s32_s64(vtrn1q_s64(first, second));
            out[2 + c][i] = vreinterpretq_s32_s64(vtrn2q_s64(first, second));
        }
    }
    out
}

/// Lane r of register c is the lane c of register r.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose(rows: [int32x4_t; 4]) -> [int32x4_t; 4] {
    let [r0, r1, r2, r3] = rows;
    let (even01, odd01) = (vreinterpretq_s64_s32(vtrn1q_s32(r0, r1)), vreinterpretq_s64_s32(vtrn2q_s32(r0, r1)));
    let (even23, odd23) = (vreinterpretq_s64_s32(vtrn1q_s32(r2, r3)), vreinterpretq_s64_s32(vtrn2q_s32(r2, r3)));
    [
        vreinterpretq_s32_s64(vtrn1q_s64(even01, even23)),
        vreinterpretq_s32_s64(vtrn1q_s64(odd01, odd23)),
        vreinterpretq_s32_s64(vtrn2q_s64(even01, even23)),
        vreinterpretq_s32_s64(vtrn2q_s64(odd01, odd23)),
    ]
}
