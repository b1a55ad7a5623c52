//! Floats of 8 bits with 4 of exponent and 3 of mantissa (E4M3, "FP8 Formats for Deep Learning", 2022), which no GGUF file stores.

/// The number that `bits` stand for. There are no infinities; all ones behind the sign are no number.
pub fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::e4m3;

    #[test]
    fn numbers_are_those_of_the_format() {
        for (bits, value) in
            [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x07, 7.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0)]
        {
            assert_eq!((e4m3(bits), e4m3(bits | 0x80)), (value, -value), "{bits:x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert!((0..=0x7eu8).map(e4m3).is_sorted());
    }
}
