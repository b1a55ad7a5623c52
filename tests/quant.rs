//! Every decoder gives, bit for bit, the values that others computed from the same blocks.

use std::fs;
use std::path::{Path, PathBuf};

use segno::quant::{DType, grids, reference};

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
        println!("skipped: shared test data absent");
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
