//! Memory layouts of the stored blocks, and the view of a tensor's bytes as a slice of them.
//!
//! Every struct is a block as a GGUF file holds it: little-endian, without padding or alignment, the fields in the
//! file's order and under the format's own names. [`super::reference`] says what the bits mean. Blocks are viewed in
//! place, never copied or changed. This is the only file of [`super`] with `unsafe` code.

#![allow(unsafe_code)]
#![allow(non_camel_case_types)] // A block is called like its `DType`.

use std::slice;

/// A type that any bytes of its size represent.
///
/// # Safety
/// The type has alignment 1, no padding and no invalid bit pattern.
pub unsafe trait Block: Copy + Send + Sync + 'static {}

/// The blocks that `bytes` holds.
///
/// # Panics
/// If `bytes` is no whole number of blocks.
pub fn view<B: Block>(bytes: &[u8]) -> &[B] {
    const { assert!(align_of::<B>() == 1 && size_of::<B>() > 0) }
    assert!(bytes.len().is_multiple_of(size_of::<B>()), "{} bytes are no whole number of blocks", bytes.len());
    // SAFETY: `Block` admits any bytes at any address; the region is that of `bytes` and lives as long.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<B>()) }
}

/// A half-precision number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Half([u8; 2]);

impl Half {
    /// The number in single precision, which holds every half exactly.
    pub fn get(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }
}

/// A 16-bit word.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Word([u8; 2]);

impl Word {
    /// The word in the machine's byte order.
    pub fn get(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

/// A 32-bit word.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Long([u8; 4]);

impl Long {
    /// The word in the machine's byte order.
    pub fn get(self) -> u32 {
        u32::from_le_bytes(self.0)
    }
}

/// One value: a single.
pub type F32 = Long;

/// One value: a half.
pub type F16 = Half;

/// One value: the upper half of a single.
pub type BF16 = Word;

/// 32 values of 4 bits, centred on 8.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale.
    pub d: Half,
    /// Low nibbles: values 0 to 15; high nibbles: values 16 to 31.
    pub qs: [u8; 16],
}

/// 32 values of 4 bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q4_1 {
    /// Scale.
    pub d: Half,
    /// Minimum, added.
    pub m: Half,
    /// Low nibbles: values 0 to 15; high nibbles: values 16 to 31.
    pub qs: [u8; 16],
}

/// 32 values of 5 bits, centred on 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q5_0 {
    /// Scale.
    pub d: Half,
    /// Fifth bit of each value.
    pub qh: Long,
    /// Low nibbles: values 0 to 15; high nibbles: values 16 to 31.
    pub qs: [u8; 16],
}

/// 32 values of 5 bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q5_1 {
    /// Scale.
    pub d: Half,
    /// Minimum, added.
    pub m: Half,
    /// Fifth bit of each value.
    pub qh: Long,
    /// Low nibbles: values 0 to 15; high nibbles: values 16 to 31.
    pub qs: [u8; 16],
}

/// 32 values of 8 bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale.
    pub d: Half,
    /// Values.
    pub qs: [i8; 32],
}

/// 256 values of 2 bits in 16 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q2_K {
    /// A group's scale in the low nibble, its minimum in the high one.
    pub scales: [u8; 16],
    /// 32 bytes for each 128 values; bits 2k and 2k + 1 belong to the k-th 32 of them.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minimums, which are subtracted.
    pub dmin: Half,
}

/// 256 values of 3 bits, centred on 4, in 16 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q3_K {
    /// Third bit of each value: bit k belongs to the k-th 32 values.
    pub hmask: [u8; 32],
    /// 32 bytes for each 128 values; bits 2k and 2k + 1 belong to the k-th 32 of them.
    pub qs: [u8; 64],
    /// 16 scales of 6 bits, centred on 32: low nibbles in bytes 0 to 7, two high bits in bytes 8 to 11.
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: Half,
}

/// 256 values of 4 bits in 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q4_K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minimums, which are subtracted.
    pub dmin: Half,
    /// 8 scales and 8 minimums of 6 bits: see [`six_bit_scales`].
    pub scales: [u8; 12],
    /// 32 bytes for two groups: the even one in the low nibbles, the odd one in the high ones.
    pub qs: [u8; 128],
}

/// 256 values of 5 bits in 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q5_K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minimums, which are subtracted.
    pub dmin: Half,
    /// 8 scales and 8 minimums of 6 bits: see [`six_bit_scales`].
    pub scales: [u8; 12],
    /// Fifth bit of each value: bit k belongs to group k.
    pub qh: [u8; 32],
    /// 32 bytes for two groups: the even one in the low nibbles, the odd one in the high ones.
    pub qs: [u8; 128],
}

/// 256 values of 6 bits, centred on 32, in 16 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q6_K {
    /// 64 bytes for each 128 values: the first 64 in the low nibbles, the others in the high ones.
    pub ql: [u8; 128],
    /// Two high bits of each value: 32 bytes for each 128 values, bits 2k and 2k + 1 for the k-th 32 of them.
    pub qh: [u8; 64],
    /// A group's scale.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: Half,
}

/// 256 values in 32 grid entries of 8, 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ1_S {
    /// Scale of the scales.
    pub d: Half,
    /// Low 8 bits of each grid index.
    pub qs: [u8; 32],
    /// A group's word: three high bits of 4 grid indices, 3 bits of scale, the sign of the shift.
    pub qh: [Word; 8],
}

/// 256 values in 32 grid entries of 8, 16 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ1_M {
    /// Low 8 bits of each grid index.
    pub qs: [u8; 32],
    /// A nibble for each grid entry: three high bits of the index, the sign of the shift.
    pub qh: [u8; 16],
    /// Each word: 4 scales of 3 bits, and a nibble of the half that scales them all.
    pub scales: [Word; 4],
}

/// 256 values in 32 grid entries of 8, 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ2_XXS {
    /// Scale of the scales.
    pub d: Half,
    /// A group's indices, signs and scale.
    pub groups: [IQ2_XXS_Group; 8],
}

/// 32 values of [`IQ2_XXS`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ2_XXS_Group {
    /// Grid indices.
    pub qs: [u8; 4],
    /// 4 sign patterns of 7 bits, and 4 bits of scale.
    pub signs_scale: Long,
}

/// 256 values in 32 grid entries of 8, 16 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ2_XS {
    /// Scale of the scales.
    pub d: Half,
    /// A grid index of 9 bits and a sign pattern of 7 bits each.
    pub qs: [Word; 32],
    /// A nibble of scale for each group.
    pub scales: [u8; 8],
}

/// 256 values in 32 grid entries of 8, 16 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ2_S {
    /// Scale of the scales.
    pub d: Half,
    /// Low 8 bits of each grid index.
    pub qs: [u8; 32],
    /// A sign bit for each value.
    pub signs: [u8; 32],
    /// Two high bits of each grid index, 4 to a byte.
    pub qh: [u8; 8],
    /// A nibble of scale for each group.
    pub scales: [u8; 8],
}

/// 256 values in 64 grid entries of 4, 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ3_XXS {
    /// Scale of the scales.
    pub d: Half,
    /// Grid indices.
    pub qs: [u8; 64],
    /// A group's 4 sign patterns of 7 bits, and 4 bits of scale.
    pub signs_scales: [Long; 8],
}

/// 256 values in 64 grid entries of 4, 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ3_S {
    /// Scale of the scales.
    pub d: Half,
    /// Low 8 bits of each grid index.
    pub qs: [u8; 64],
    /// Ninth bit of each grid index.
    pub qh: [u8; 8],
    /// A sign bit for each value.
    pub signs: [u8; 32],
    /// A nibble of scale for each group.
    pub scales: [u8; 4],
}

/// 32 indices into 16 levels.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ4_NL {
    /// Scale.
    pub d: Half,
    /// Low nibbles: values 0 to 15; high nibbles: values 16 to 31.
    pub qs: [u8; 16],
}

/// 256 indices into 16 levels in 8 groups of 32.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IQ4_XS {
    /// Scale of the scales.
    pub d: Half,
    /// Two high bits of each scale.
    pub scales_h: Word,
    /// Low nibble of each scale; scales are centred on 32.
    pub scales_l: [u8; 4],
    /// 16 bytes a group: its first 16 values in the low nibbles, the others in the high ones.
    pub qs: [u8; 128],
}

/// 256 ternary values in base 3.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TQ1_0 {
    /// Values 0 to 159 in the first 32 bytes and 160 to 239 in the other 16, 5 digits each.
    pub qs: [u8; 48],
    /// Values 240 to 255, 4 digits each.
    pub qh: [u8; 4],
    /// Scale.
    pub d: Half,
}

/// 256 ternary values of 2 bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TQ2_0 {
    /// 32 bytes for each 128 values; bits 2k and 2k + 1 belong to the k-th 32 of them.
    pub qs: [u8; 64],
    /// Scale.
    pub d: Half,
}

/// 32 E2M1 values.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MXFP4 {
    /// Scale: an exponent biased by 127.
    pub e: u8,
    /// Low nibbles: values 0 to 15; high nibbles: values 16 to 31.
    pub qs: [u8; 16],
}

/// 64 E2M1 values in 4 groups of 16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NVFP4 {
    /// A group's scale, unsigned E4M3.
    pub d: [u8; 4],
    /// A group's values: the first 8 in the low nibbles, the others in the high ones.
    pub qs: [[u8; 8]; 4],
}

/// 128 signs.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Q1_0 {
    /// Magnitude.
    pub d: Half,
    /// A bit for each value: set if it is `d`, clear if it is `-d`.
    pub qs: [u8; 16],
}

/// The scale and the minimum of one of 8 groups from the 12 bytes that [`Q4_K`] and [`Q5_K`] share.
///
/// Bytes 0 to 3 hold scales 0 to 3 and bytes 4 to 7 minimums 0 to 3 in their low 6 bits. Bytes 8 to 11 hold the low
/// nibbles of scales 4 to 7 (low) and minimums 4 to 7 (high), whose two high bits stand on top of bytes 0 to 7.
pub fn six_bit_scales(scales: &[u8; 12], group: usize) -> (u8, u8) {
    if group < 4 {
        return (scales[group] & 63, scales[group + 4] & 63);
    }
    let low = scales[group + 4];
    (low & 15 | scales[group - 4] >> 6 << 4, low >> 4 | scales[group] >> 6 << 4)
}

macro_rules! any_bytes {
    ($($block:ty)*) => { $(
        // SAFETY: `repr(C)` or `repr(transparent)` over bytes and types that are `Block` themselves, so alignment is 1,
        // nothing is padded, and any bits are valid.
        unsafe impl Block for $block {}
    )* };
}

any_bytes! {
    Half Word Long
    Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
    IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS
    TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_viewed_in_place_at_any_address() {
        let bytes: Vec<u8> = (0..2 * 34 + 1).collect();
        let blocks = view::<Q8_0>(&bytes[1..]);
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks.as_ptr() as usize, bytes.as_ptr() as usize + 1);
        assert_eq!((blocks[0].qs[0], blocks[1].qs[31]), (3, 68));
        assert!(view::<Q8_0>(&[]).is_empty());
    }

    #[test]
    #[should_panic = "35 bytes are no whole number of blocks"]
    fn a_partial_block_is_refused() {
        view::<Q8_0>(&[0; 35]);
    }
}
