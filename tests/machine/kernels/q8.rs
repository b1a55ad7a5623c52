//! Keys and values of 8 bits.

use super::*;
use segno::kv::q8::{BLOCK, bytes, plain, rotated};

const HEADS: [usize; 14] = [1, 7, 8, 16, 20, 24, 31, 64, 80, 96, 128, 160, 256, 576];

fn uniforms(seed: u64, count: usize) -> Vec<f32> {
    Random::new(seed).uniforms(count)
}

/// The bytes of heads of `dim` elements, the same on every instruction set.
fn encoded(x: &[f32], dim: usize) -> Vec<u8> {
    let of = |kernels: &Kernels| {
        let mut out = vec![0xaa; x.len() / dim * bytes(dim)];
        x.chunks(dim).zip(out.chunks_mut(bytes(dim))).for_each(|(x, out)| kernels.encode_head(x, out));
        out
    };
    let first = of(available()[0]);
    for kernels in available() {
        assert!(of(kernels) == first, "{}", kernels.name);
    }
    first
}

/// What the bytes stand for, which floats hold exactly.
fn decoded(stored: &[u8], dim: usize) -> Vec<f32> {
    let exact = |x: f64| {
        assert_eq!(f64::from(x as f32), x);
        x as f32
    };
    stored.chunks(bytes(dim)).flat_map(|head| plain::decode(head, dim)).map(exact).collect()
}

/// Rows of `len` values, put across.
fn across<T: Copy>(rows: &[T], len: usize) -> Vec<T> {
    (0..len).flat_map(|d| rows.iter().skip(d).step_by(len).copied()).collect()
}

#[test]
fn heads_are_multiplied_by_hadamard_matrices() {
    for dim in HEADS {
        let x = uniforms(1, dim);
        let rotate = |kernels: &Kernels, x: &[f32]| {
            let mut x = x.to_vec();
            kernels.rotate(&mut x, rotated(dim));
            x
        };
        let found = same_everywhere("rotate", |kernels| rotate(kernels, &x));
        let expected = plain::rotate(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        assert_close("rotate", &found, &expected, &vec![1e-6; dim]);
        let back = same_everywhere("rotate", |kernels| rotate(kernels, &found));
        assert_close("rotated back", &back, &x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &vec![1e-6; dim]);
    }
}

#[test]
fn elements_are_within_half_a_step_of_their_block() {
    for dim in HEADS {
        for size in [1e-2, 1.0, 40.0, 1e6] {
            let x: Vec<f32> = uniforms(2, dim).iter().map(|x| x * size).collect();
            let stored = encoded(&x, dim);
            for (block, (x, found)) in x.chunks(BLOCK).zip(plain::decode(&stored, dim).chunks(BLOCK)).enumerate() {
                let largest = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                let scale = f16::from_le_bytes([stored[dim + 2 * block], stored[dim + 2 * block + 1]]);
                assert_eq!(scale, f16::from_f32(largest / 127.0));
                for (x, found) in x.iter().zip(found) {
                    let error = (f64::from(*x) - found).abs();
                    assert!(error <= 0.50001 * scale.to_f64(), "{x} is no {found}, heads of {dim}");
                }
            }
        }
    }
}

#[test]
fn blocks_without_a_scale_are_zero_or_no_number() {
    for tiny in [0.0, -0.0, 1e-44, 1e-8] {
        assert!(encoded(&[tiny; 40], 40).iter().all(|byte| *byte == 0));
    }
    // Below a scale with all its bits, elements are as near as its least one.
    let x: Vec<f32> = uniforms(3, 64).iter().map(|x| x * 1e-5).collect();
    for (x, found) in x.iter().zip(plain::decode(&encoded(&x, 64), 64)) {
        assert!((f64::from(*x) - found).abs() < 4e-6);
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 1e8] {
        let mut x = [1.0; 80];
        x[37] = bad;
        let stored = encoded(&x, 80);
        let scales: Vec<f16> = stored[80..].as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
        assert!(scales[1].to_bits() == f16::NAN.to_bits() && stored[32..64] == [0; 32], "{bad}");
        assert!(!scales[0].is_nan() && !scales[2].is_nan());
    }
}

#[test]
fn rotation_spreads_an_outlier() {
    let mut head = uniforms(7, 128);
    head[50] = 40.0;
    // The root of the mean square of what storing changes, but for the outlier.
    let error = |found: &[f64]| {
        let others = head.iter().zip(found).filter(|(x, _)| x.abs() < 2.0);
        (others.map(|(x, found)| (f64::from(*x) - found).powi(2)).sum::<f64>() / 127.0).sqrt()
    };
    let plainly = error(&plain::decode(&encoded(&head, 128), 128));
    let mut turned = head.clone();
    available()[0].rotate(&mut turned, rotated(128));
    let spread = error(&plain::rotate(&plain::decode(&encoded(&turned, 128), 128)));
    assert!(spread < 0.5 * plainly, "{plainly:.2e} as it is, {spread:.2e} rotated");
}

/// Scores and mixtures of `T` queries, for keys that lie across and values, on every instruction set.
fn attended<const T: usize>(queries: &[f32], weights: &[f32], keys: KvRun, values: KvRun) -> Vec<f32> {
    let (dim, count) = (queries.len() / T, weights.len() / T);
    same_everywhere("score and mix", |kernels| {
        let mut out = vec![0.5; T * (count + dim)];
        let (scores, mixed) = out.split_at_mut(T * count);
        let (mut scores, mut mixed) = (scores.chunks_mut(count), mixed.chunks_mut(dim));
        let of = |all: &'_ [f32], len: usize, t: usize| all[t * len..][..len].to_vec();
        let queries: [Vec<f32>; T] = std::array::from_fn(|t| of(queries, dim, t));
        let weights: [Vec<f32>; T] = std::array::from_fn(|t| of(weights, count, t));
        let (queries, weights) = (queries.each_ref().map(Vec::as_slice), weights.each_ref().map(Vec::as_slice));
        kernels.score::<T>(queries, keys, 0.25, std::array::from_fn(|_| scores.next().unwrap()));
        kernels.mix::<T>(weights, values, std::array::from_fn(|_| mixed.next().unwrap()));
        out
    })
}

#[test]
fn scores_and_mixtures_are_those_of_the_floats_that_blocks_stand_for() {
    for dim in HEADS {
        for count in [16, 32, 48] {
            let (queries, weights) = (uniforms(4, 4 * dim), uniforms(5, 4 * count));
            let stored = encoded(&uniforms(6, dim * count), dim);
            let floats = decoded(&stored, dim);
            let (keys, key_floats) = (across(&stored, bytes(dim)), across(&floats, dim));
            let (keys, values) = (KvRun::Q8(&keys), KvRun::Q8(&stored));
            let (key_floats, floats) = (KvRun::F32(&key_floats), KvRun::F32(&floats));
            let found = attended::<4>(&queries, &weights, keys, values);
            assert_eq!(bits(&found), bits(&attended::<4>(&queries, &weights, key_floats, floats)), "heads of {dim}");
            let (query, weights) = (&queries[..dim], &weights[..count]);
            let found = attended::<1>(query, weights, keys, values);
            assert_eq!(bits(&found), bits(&attended::<1>(query, weights, key_floats, floats)), "heads of {dim}");
        }
    }
}
