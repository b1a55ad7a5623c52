//! Encoders of weights against the plain ones, bit for bit.

use super::*;
use segno::quant::encode::{ENCODABLE, encode};

/// Rows of 256 values of every kind that weights and broken weights have.
fn rows(random: &mut Random) -> Vec<Vec<f32>> {
    let odd =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -1e-45, 0.0, -0.0, 1e30, -1e19, 1e-20];
    let mut rows = Vec::new();
    for scale in [1e-40, 1e-30, 1e-18, 1e-15, 1e-7, 0.02, 1.0, 300.0, 1e10, 1e18, 1e20, 3e38] {
        let uniform: Vec<f32> = random.uniforms(256).iter().map(|x| x * scale).collect();
        let mut alone = vec![0.0; 256];
        alone[(random.bits() % 256) as usize] = -scale;
        rows.push(uniform.iter().map(|x| x.abs()).collect());
        rows.push(uniform.iter().map(|x| -x.abs()).collect());
        rows.push(uniform.iter().map(|x| x * x * x / scale / scale).collect());
        rows.push(uniform.iter().map(|x| x / 50.0 + scale).collect());
        rows.push(uniform.iter().map(|x| (x / scale * 4.0).round() * scale).collect());
        rows.push(uniform.iter().enumerate().map(|(i, x)| x * 10f32.powi(i as i32 / 16 % 9 - 7)).collect());
        rows.extend([uniform, alone, vec![scale; 256], vec![-scale; 256]]);
    }
    for share in [2, 16, 128] {
        let pick = |random: &mut Random| odd[(random.bits() % odd.len() as u64) as usize];
        let mix =
            |random: &mut Random| if random.bits().is_multiple_of(share) { pick(random) } else { random.uniform() };
        rows.extend((0..64).map(|_| (0..256).map(|_| mix(random)).collect()));
    }
    rows.extend(odd.map(|value| vec![value; 256]));
    rows.extend((0..64).map(|_| (0..256).map(|_| number(random)).collect()));
    rows
}

/// Any number: NaNs may differ in what they carry.
fn number(random: &mut Random) -> f32 {
    let any = f32::from_bits(random.bits() as u32);
    if any.is_nan() { 0.5 } else { any }
}

#[test]
fn weights_become_the_blocks_of_the_plain_encoders() {
    let mut random = Random::new(5);
    for _ in 0..4 {
        let rows = rows(&mut random);
        for dtype in ENCODABLE {
            // Whole blocks of all kinds in a call, an odd number of them too.
            for rows in [1, 2, 3, 64].into_iter().flat_map(|count| rows.chunks(count)) {
                let values = rows.concat();
                let mut expected = vec![0; dtype.row_bytes(values.len() as u64).unwrap() as usize];
                encode(dtype, &values, &mut expected);
                for kernels in available() {
                    let mut found = vec![0xaa; expected.len()];
                    kernels.encode(dtype, &values, &mut found);
                    let bytes = dtype.row_bytes(256).unwrap() as usize;
                    let differing = found.chunks(bytes).zip(expected.chunks(bytes)).position(|(a, b)| a != b);
                    assert_eq!(differing.map(|row| &rows[row]), None, "{dtype}, {}", kernels.name);
                }
            }
        }
    }
}
