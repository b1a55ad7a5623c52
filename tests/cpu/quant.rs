//! Every decoder gives, bit for bit, the values that others computed from the same blocks.

use crate::common::skip::{Lack, skip};
use std::fs;
use std::path::{Path, PathBuf};

use segno::backend::cpu::simd;
use segno::quant::{DType, encode, grids, reference};

#[test]
fn decoders_equal_the_own_goldens() {
    let dir = own_goldens();
    for dtype in DType::ALL {
        assert_decodes(&dir, dtype, dtype.name());
    }
}

#[test]
fn decoders_equal_ggml() {
    let Some(dir) = shared_goldens() else {
        skip(Lack::Data, "shared test data absent");
        return;
    };
    let index: serde_json::Value = serde_json::from_slice(&read(&dir.join("index.json"))).unwrap();
    let types = index["types"].as_object().unwrap();
    assert_eq!(types.len(), DType::ALL.len() - 1, "every type but F32");
    for (name, facts) in types {
        let dtype = DType::from_ggml(facts["ggml_type"].as_u64().unwrap() as u32).unwrap();
        assert_eq!(dtype.name(), name);
        assert_eq!(dtype.block_len() as u64, facts["block"].as_u64().unwrap(), "{name}");
        assert_eq!(dtype.block_bytes() as u64, facts["bytes"].as_u64().unwrap(), "{name}");
        assert_decodes(&dir, dtype, name);
        assert_decodes(&dir, dtype, &format!("{name}.rand"));
    }
}

#[test]
fn grids_equal_the_golden() {
    let eight = [&grids::IQ1[..], &grids::IQ2_XXS, &grids::IQ2_XS, &grids::IQ2_S].into_iter().flatten();
    let four = [&grids::IQ3_XXS[..], &grids::IQ3_S].into_iter().flatten();
    let bytes: Vec<u8> =
        eight.flat_map(|entry| entry.to_le_bytes()).chain(four.flat_map(|e| e.to_le_bytes())).collect();
    assert!(bytes == read(&own_goldens().join("grids.i8")));
}

#[test]
fn any_bits_decode_and_every_value_is_written() {
    // The fill is a NaN whose bits no decoder produces from finite or quiet scales.
    let unwritten = f32::from_bits(0x7f80_0001);
    let mut state = 1u64;
    for dtype in DType::ALL {
        let mut bytes = vec![0; 256 * dtype.block_bytes()];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        let mut out = vec![unwritten; 256 * dtype.block_len()];
        reference::decode(dtype, &bytes, &mut out);
        assert!(out.iter().all(|value| value.to_bits() != unwritten.to_bits()), "{dtype}");
    }
}

#[test]
#[should_panic = "64 Q8_0 values do not fit 63 floats exactly"]
fn a_short_output_is_refused() {
    reference::decode(DType::Q8_0, &[0; 68], &mut [0.0; 63]);
}

/// Decodes `NAME.raw` and compares with `NAME.f32`; a NaN equals a NaN.
fn assert_decodes(dir: &Path, dtype: DType, name: &str) {
    let raw = read(&dir.join(format!("{name}.raw")));
    let expected = read(&dir.join(format!("{name}.f32")));
    let (expected, _) = expected.as_chunks::<4>();
    let mut found = vec![0.0; expected.len()];
    assert!(!found.is_empty());
    reference::decode(dtype, &raw, &mut found);
    for (i, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        let expected = f32::from_le_bytes(*expected);
        let equal = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(equal, "{name}: value {i} is {found:e}, expected {expected:e}");
    }
}

fn own_goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quant")
}

fn shared_goldens() -> Option<PathBuf> {
    let root = std::env::var_os("SEGNO_TEST_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    Some(root.join("quant")).filter(|dir| dir.is_dir())
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares each encoder with the blocks in `dir`.
fn assert_encodes(dir: &Path) {
    let values: Vec<f32> =
        read(&dir.join("values.f32")).chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
    let whole = |dtype: &DType| dtype.block_len() > 1;
    for dtype in encode::ENCODABLE.into_iter().filter(whole) {
        let expected = read(&dir.join(format!("{dtype}.raw")));
        let assert_same = |encoder: &str, encode: &dyn Fn(&mut [u8])| {
            let (mut found, bytes) = (vec![0; expected.len()], dtype.block_bytes());
            encode(&mut found);
            let differing = found.chunks(bytes).zip(expected.chunks(bytes)).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "{dtype}, {encoder}: of {} blocks", expected.len() / bytes);
        };
        assert_same("plain", &|out| encode::encode(dtype, &values, out));
        for kernels in simd::available() {
            assert_same(kernels.name, &|out| kernels.encode(dtype, &values, out));
        }
    }
}

#[test]
fn encoders_give_the_blocks_of_ggml() {
    assert_encodes(&own_goldens().with_file_name("encode"));
    // More rows, made by the same script.
    if let Some(dir) = std::env::var_os("SEGNO_ENCODE_GOLDENS") {
        assert_encodes(Path::new(&dir));
    }
}

#[test]
fn floats_are_rounded_to_even() {
    let mut bytes = [0; 4];
    // Halfway between two of each type.
    encode::encode(DType::BF16, &[f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000)], &mut bytes);
    assert_eq!(bytes, [0x80, 0x3f, 0x82, 0x3f]);
    encode::encode(DType::F16, &[1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0], &mut bytes);
    assert_eq!(bytes, [0x00, 0x3c, 0x02, 0x3c]);
}
