//! Everything but products of weights.

use super::*;
use segno::elementary::fma;
use segno::plan::op::Activation;

const LENGTHS: [usize; 15] = [0, 1, 7, 8, 15, 16, 17, 31, 64, 80, 96, 128, 256, 300, 1001];

fn uniforms(seed: u64, count: usize) -> Vec<f32> {
    Random::new(seed).uniforms(count)
}

fn doubles(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// The two forms of a run of keys or values, and its values.
fn runs<'a>(halves: &'a [f16], floats: &'a [f32]) -> [(KvRun<'a>, Vec<f64>); 2] {
    let decoded = halves.iter().map(|x| x.to_f64()).collect();
    [(KvRun::F16(halves), decoded), (KvRun::F32(floats), doubles(floats))]
}

#[test]
fn quantized_blocks_are_within_half_a_step() {
    for scale in [1e-35, 1e-3, 1.0, 3e38] {
        let x: Vec<f32> = uniforms(1, 32 * 9).iter().map(|x| x * scale).collect();
        let scalar = quantized(available()[0], &x);
        for kernels in available() {
            assert_eq!(scalar, quantized(kernels, &x), "{}", kernels.name);
        }
        for (x, block) in x.chunks(32).zip(&scalar) {
            let largest = x.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
            assert_eq!(block.scale, largest / 127.0);
            for (x, q) in x.iter().zip(block.q) {
                let step = f64::from(block.scale);
                assert!((f64::from(*x) - f64::from(q) * step).abs() <= 0.50001 * step, "{x} is no {q} * {step}");
            }
            let sum = |q: &[i8]| q.iter().map(|q| i16::from(*q)).sum::<i16>();
            assert_eq!(block.sums, [sum(&block.q[..16]), sum(&block.q[16..])]);
        }
    }
}

fn quantized(kernels: &Kernels, x: &[f32]) -> Vec<Q8Block> {
    let mut blocks = vec![Q8Block::default(); x.len() / 32];
    kernels.quantize(x, &mut blocks);
    blocks
}

#[test]
fn quantizing_rounds_ties_to_even() {
    let mut x = [0.0; 32];
    (x[0], x[1], x[2], x[3], x[4]) = (127.0, 0.5, 1.5, -2.5, -127.0);
    for kernels in available() {
        let block = quantized(kernels, &x)[0];
        assert_eq!(block.q[..5], [127, 0, 2, -2, -127]);
    }
}

#[test]
fn blocks_without_a_scale_are_zero_or_no_number() {
    for kernels in available() {
        for tiny in [0.0, -0.0, 1e-44, 9e-37] {
            assert_eq!(quantized(kernels, &[tiny; 32]), [Q8Block::default()]);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut x = [1.0; 32];
            x[17] = bad;
            let block = quantized(kernels, &x)[0];
            assert!(block.scale.is_nan() && block.q == [0; 32] && block.sums == [0; 2], "{}", kernels.name);
        }
    }
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    for n in LENGTHS {
        let (x, weight) = (uniforms(2, n), uniforms(3, n));
        let found = same_everywhere("rms_norm", |kernels| {
            let mut out = vec![f32::NAN; n];
            kernels.rms_norm(&x, &weight, 1e-5, &mut out);
            out
        });
        let mean = doubles(&x).iter().map(|x| x * x).sum::<f64>() / n as f64;
        let factor = 1.0 / (mean + 1e-5).sqrt();
        let expected: Vec<f64> = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * factor * f64::from(*w)).collect();
        assert_close("rms_norm", &found, &expected, &vec![2e-6; n]);
    }
}

#[test]
fn layer_norm_subtracts_the_mean_and_divides_by_the_deviation() {
    for n in LENGTHS {
        let x: Vec<f32> = uniforms(2, n).iter().map(|x| x + 3.0).collect();
        let weight = uniforms(3, n);
        let found = same_everywhere("layer_norm", |kernels| {
            let mut out = vec![f32::NAN; n];
            kernels.layer_norm(&x, &weight, 1e-5, &mut out);
            out
        });
        let count = n.max(1) as f64;
        let mean = doubles(&x).iter().sum::<f64>() / count;
        let variance = doubles(&x).iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + 1e-5).sqrt();
        let value = |(x, w): (&f32, &f32)| (f64::from(*x) - mean) * factor * f64::from(*w);
        let expected: Vec<f64> = x.iter().zip(&weight).map(value).collect();
        // One element has no deviation: what is left of its difference is divided by the root of eps.
        assert_close("layer_norm", &found, &expected, &vec![if n == 1 { 2e-4 } else { 6e-6 }; n]);
    }
}

/// The activation in double precision; erf by its series and its continued fraction.
fn activation(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * inner).exp())
        }
        Activation::GeluErf => x * normal_distribution(x),
        Activation::SquaredRelu => x.max(0.0).powi(2),
        Activation::ClampedSilu { limit, slope } => {
            let x = x.min(f64::from(limit));
            x / (1.0 + (-f64::from(slope) * x).exp())
        }
    }
}

fn normal_distribution(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 4.0 {
        let (mut term, mut sum, mut k) = (x, x, 1.0);
        while term.abs() > 1e-18 * sum.abs() {
            k += 2.0;
            term *= x * x / k;
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let tail = density / (1..60).rev().fold(x.abs(), |rest, k| x.abs() + f64::from(k) / rest);
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[test]
fn gates_multiply_with_their_activation() {
    let clamped = Activation::ClampedSilu { limit: 7.0, slope: 1.702 };
    for kind in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::SquaredRelu, clamped] {
        for n in LENGTHS {
            let gate: Vec<f32> = uniforms(4, n).iter().map(|x| x * 12.0).collect();
            let up: Vec<f32> = uniforms(5, n).iter().map(|x| x * 9.0).collect();
            let found = same_everywhere("gate", |kernels| {
                let mut gate = gate.clone();
                kernels.gate(kind, &mut gate, &up);
                gate
            });
            let other = |up: f64| match kind {
                Activation::ClampedSilu { limit, .. } => up.clamp(f64::from(-limit), f64::from(limit)) + 1.0,
                _ => up,
            };
            let value = |(g, u): (&f32, &f32)| activation(kind, f64::from(*g)) * other(f64::from(*u));
            let expected: Vec<f64> = gate.iter().zip(&up).map(value).collect();
            // The argument of the exponential function is rounded: more so the larger it is.
            let relative = if kind == Activation::Silu { 4e-7 } else { 1e-5 };
            let tolerance: Vec<f64> = expected.iter().map(|x| x.abs() * relative + 1e-7 * relative).collect();
            assert_close("gate", &found, &expected, &tolerance);
        }
    }
}

#[test]
fn an_activation_alone_is_a_gate_of_ones() {
    for kind in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::SquaredRelu] {
        for n in LENGTHS.into_iter().chain([255, 256, 257, 1000]) {
            let x: Vec<f32> = uniforms(4, n).iter().map(|x| x * 12.0).collect();
            let found = same_everywhere("activate", |kernels| {
                let mut x = x.clone();
                kernels.activate(kind, &mut x);
                x
            });
            let expected: Vec<f64> = x.iter().map(|x| activation(kind, f64::from(*x))).collect();
            let tolerance: Vec<f64> = expected.iter().map(|x| x.abs() * 1e-5 + 1e-12).collect();
            assert_close("activate", &found, &expected, &tolerance);
        }
    }
}

#[test]
fn softcap_is_a_scaled_hyperbolic_tangent() {
    for n in LENGTHS {
        for (size, cap) in [(1e-3, 50.0), (40.0, 30.0), (300.0, 50.0), (1e6, 5.0)] {
            let x: Vec<f32> = uniforms(6, n).iter().map(|x| x * size).collect();
            let found = same_everywhere("softcap", |kernels| {
                let mut x = x.clone();
                kernels.softcap(&mut x, cap);
                x
            });
            let cap = f64::from(cap);
            let expected: Vec<f64> = doubles(&x).iter().map(|x| cap * (x / cap).tanh()).collect();
            let tolerance: Vec<f64> = expected.iter().map(|x| x.abs() * 3e-7).collect();
            assert_close("softcap", &found, &expected, &tolerance);
        }
    }
    let found = same_everywhere("softcap", |kernels| {
        let mut x = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::NAN];
        kernels.softcap(&mut x, 50.0);
        x.to_vec()
    });
    assert_eq!(found[..4], [50.0, -50.0, 0.0, 0.0]);
    assert!(found[4].is_nan());
}

#[test]
fn sigmoid_is_exact_at_its_ends() {
    for n in LENGTHS {
        let x: Vec<f32> = uniforms(9, n).iter().map(|x| x * 30.0).collect();
        let found = same_everywhere("sigmoid", |kernels| {
            let mut x = x.clone();
            kernels.sigmoid(&mut x);
            x
        });
        let expected: Vec<f64> = doubles(&x).iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        assert_close("sigmoid", &found, &expected, &expected.iter().map(|x| x * 3e-7).collect::<Vec<f64>>());
    }
    let found = same_everywhere("sigmoid", |kernels| {
        let mut x = [f32::INFINITY, f32::NEG_INFINITY, 0.0, f32::NAN];
        kernels.sigmoid(&mut x);
        x.to_vec()
    });
    assert!(found[..3] == [1.0, 0.0, 0.5] && found[3].is_nan());
}

#[test]
fn rows_are_scaled_and_multiplied() {
    for n in LENGTHS {
        let (x, y) = (uniforms(7, n), uniforms(8, n));
        let scaled = same_everywhere("scale", |kernels| {
            let mut x = x.clone();
            kernels.scale(&mut x, 0.22);
            x
        });
        let multiplied = same_everywhere("mul", |kernels| {
            let mut x = x.clone();
            kernels.mul(&mut x, &y);
            x
        });
        assert!(x.iter().zip(&scaled).all(|(x, found)| x * 0.22 == *found));
        assert!(x.iter().zip(&y).zip(&multiplied).all(|((x, y), found)| x * y == *found));
    }
}

#[test]
fn silu_of_large_gates_does_not_overflow() {
    let gate = [1e38, -1e38, 100.0, -100.0, 0.0, f32::NAN];
    let found = same_everywhere("silu", |kernels| {
        let mut gate = gate;
        kernels.gate(Activation::Silu, &mut gate, &[1.0; 6]);
        gate.to_vec()
    });
    assert_eq!(found[..5], [1e38, 0.0, 100.0, 0.0, 0.0]);
    assert!(found[5].is_nan());
}

#[test]
fn sums_of_vectors_round_once() {
    for n in LENGTHS {
        let (x, y) = (uniforms(6, n), uniforms(7, n));
        let added = same_everywhere("add", |kernels| {
            let mut x = x.clone();
            kernels.add(&mut x, &y);
            x
        });
        let scaled = same_everywhere("scale_add", |kernels| {
            let mut x = x.clone();
            kernels.scale_add(&mut x, 0.3, &y, 0.7);
            x
        });
        for i in 0..n {
            assert_eq!(added[i], x[i] + y[i]);
            assert_eq!(scaled[i], fma(x[i], 0.3, y[i] * 0.7));
        }
    }
}

#[test]
fn rope_turns_pairs_and_leaves_the_rest() {
    for (n, angles) in [(8, 4), (16, 5), (64, 32), (80, 40), (96, 40), (128, 64), (256, 0), (3, 1)] {
        let x = uniforms(8, n);
        let (cos, sin): (Vec<f32>, Vec<f32>) = (0..angles).map(|i| ((i as f32).cos(), (i as f32).sin())).unzip();
        type Rope = fn(&Kernels, &mut [f32], &[f32], &[f32]);
        type Indices = fn(usize, usize) -> [usize; 2];
        let pairs: (Rope, Indices) = (Kernels::rope_pairs, |i, _| [2 * i, 2 * i + 1]);
        let halves: (Rope, Indices) = (Kernels::rope_halves, |i, n| [i, n + i]);
        for (rope, indices) in [pairs, halves] {
            let found = same_everywhere("rope", |kernels| {
                let mut head = x.clone();
                rope(kernels, &mut head, &cos, &sin);
                head
            });
            let mut expected = doubles(&x);
            for i in 0..angles {
                let [a, b] = indices(i, angles);
                let (x, y, cos, sin) = (expected[a], expected[b], f64::from(cos[i]), f64::from(sin[i]));
                (expected[a], expected[b]) = (x * cos - y * sin, x * sin + y * cos);
            }
            assert_close("rope", &found, &expected, &vec![2e-7; n]);
            assert_eq!(found[2 * angles..], x[2 * angles..]);
        }
    }
}

/// Rows of `len` values, put across: value 0 of every row, then value 1.
fn across<T: Copy>(rows: &[T], len: usize) -> Vec<T> {
    (0..len).flat_map(|d| rows.iter().skip(d).step_by(len).copied()).collect()
}

/// Scores of `T` queries on every instruction set, one query after the other.
fn scores<const T: usize>(queries: &[f32], keys: KvRun, count: usize) -> Vec<f32> {
    let len = queries.len() / T;
    same_everywhere("score", |kernels| {
        let mut out = vec![f32::NAN; T * count];
        let mut places = out.chunks_mut(count);
        let queries = std::array::from_fn(|t| &queries[t * len..][..len]);
        kernels.score::<T>(queries, keys, 0.25, std::array::from_fn(|_| places.next().unwrap()));
        out
    })
}

#[test]
fn scores_take_any_head_and_number_of_queries() {
    for head in [1, 8, 16, 24, 64, 80, 96, 128, 256] {
        for count in [16, 32, 48] {
            let (queries, keys) = (uniforms(9, 4 * head), uniforms(10, head * count));
            let halves: Vec<f16> = keys.iter().map(|x| f16::from_f32(*x)).collect();
            let turned = (across(&halves, head), across(&keys, head));
            let rows = runs(&halves, &keys).map(|(_, values)| values);
            for (run, values) in [KvRun::F16(&turned.0), KvRun::F32(&turned.1)].into_iter().zip(rows) {
                let found = scores::<4>(&queries, run, count);
                let dot = |q: &[f32], k: &[f64]| k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * 0.25;
                let of_query = |q| values.chunks(head).map(move |k| dot(q, k));
                let expected: Vec<f64> = queries.chunks(head).flat_map(of_query).collect();
                assert_close("score", &found, &expected, &vec![1e-7 * head as f64; 4 * count]);
                for (t, found) in found.chunks(count).enumerate() {
                    let alone = scores::<1>(&queries[t * head..][..head], run, count);
                    assert_eq!(bits(found), bits(&alone), "query {t} of 4");
                }
            }
        }
    }
}

#[test]
fn the_order_of_a_dot_product_is_the_canonical_one() {
    let (q, k) = (uniforms(11, 75), uniforms(12, 75 * 16));
    let found = scores::<1>(&q, KvRun::F32(&across(&k, 75)), 16);
    for (found, k) in found.iter().zip(k.chunks(75)) {
        let mut lanes = [0.0f32; 16];
        for i in 0..75 {
            lanes[i % 16] = fma(k[i], q[i], lanes[i % 16]);
        }
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        assert_eq!(*found, lanes[0] * 0.25);
    }
}

/// Mixtures for `T` queries on every instruction set, one query after the other, added to `start`.
fn mixed<const T: usize>(weights: &[f32], values: KvRun, start: &[f32]) -> Vec<f32> {
    let (count, len) = (weights.len() / T, start.len() / T);
    same_everywhere("mix", |kernels| {
        let mut out = start.to_vec();
        let mut places = out.chunks_mut(len);
        let weights = std::array::from_fn(|t| &weights[t * count..][..count]);
        kernels.mix::<T>(weights, values, std::array::from_fn(|_| places.next().unwrap()));
        out
    })
}

#[test]
fn values_are_mixed_in_order() {
    for head in [1, 8, 16, 24, 64, 80, 96, 128, 200] {
        for rows in [0, 1, 2, 33] {
            let (p, v, start) = (uniforms(13, 4 * rows), uniforms(14, head * rows), uniforms(15, 4 * head));
            let halves: Vec<f16> = v.iter().map(|x| f16::from_f32(*x)).collect();
            for (run, values) in runs(&halves, &v) {
                let mut expected = start.clone();
                for (t, expected) in expected.chunks_mut(head).enumerate() {
                    for (p, v) in p[t * rows..][..rows].iter().zip(values.chunks(head)) {
                        for (acc, v) in expected.iter_mut().zip(v) {
                            *acc = fma(*p, *v as f32, *acc);
                        }
                    }
                }
                assert_eq!(bits(&mixed::<4>(&p, run, &start)), bits(&expected));
                assert_eq!(bits(&mixed::<1>(&p[..rows], run, &start[..head])), bits(&expected[..head]));
            }
        }
    }
}

#[test]
fn max_skips_what_is_no_number() {
    for n in LENGTHS {
        let mut x = uniforms(16, n);
        let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(same_everywhere("max", |kernels| vec![kernels.max(&x)]), [expected]);
        for i in 0..n {
            let kept = std::mem::replace(&mut x[i], f32::NAN);
            let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(same_everywhere("max", |kernels| vec![kernels.max(&x)]), [expected]);
            x[i] = kept;
        }
    }
}

#[test]
fn exp_sum_returns_what_it_wrote() {
    for n in LENGTHS {
        let x: Vec<f32> = uniforms(17, n).iter().map(|x| x * 20.0).collect();
        let found = same_everywhere("exp_sum", |kernels| {
            let mut y = x.clone();
            let sum = kernels.exp_sum(&mut y, 20.0);
            y.push(sum);
            y
        });
        let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x - 20.0).exp()).collect();
        expected.push(expected.iter().sum());
        let tolerance: Vec<f64> = expected.iter().map(|x| x * 2e-6).collect();
        assert_close("exp_sum", &found, &expected, &tolerance);
    }
}

#[test]
fn exp_is_right_to_about_a_unit_in_the_last_place() {
    let mut worst = 0.0f64;
    for block in 0..800 {
        let x: Vec<f32> = (0..4096).map(|i| -105.0 + (block * 4096 + i) as f32 * (195.0 / 3_276_800.0)).collect();
        let found = same_everywhere("exp", |kernels| {
            let mut y = x.clone();
            kernels.exp_sum(&mut y, 0.0);
            y
        });
        for (x, y) in x.iter().zip(&found) {
            let exact = f64::from(*x).exp();
            if exact > f64::from(f32::MAX) {
                assert!(*y >= f32::MAX, "exp({x}) is no {y}");
                continue;
            }
            let unit = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(*y) - exact).abs() / unit.min(f64::from(f32::MAX)));
        }
    }
    assert!(worst < 1.02, "{worst} units");
}

#[test]
fn exp_has_the_limits_of_the_function() {
    let x = [f32::NEG_INFINITY, -200.0, -0.0, 0.0, 200.0, f32::INFINITY, f32::NAN];
    let found = same_everywhere("exp", |kernels| {
        let mut y = x.to_vec();
        kernels.exp_sum(&mut y, 0.0);
        y
    });
    assert_eq!(found[..6], [0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY]);
    assert!(found[6].is_nan());
}

#[test]
fn to_bf16_rounds_to_the_nearest_and_drops_what_is_tiny() {
    let least = 2.0_f32.powi(-50);
    let mut x = Random::new(9).uniforms(1000);
    x.extend([0.0, -0.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, least, -least, least * 0.99, 1e-40]);
    for kernels in available() {
        let mut found = vec![bf16::ONE; x.len()];
        kernels.to_bf16(&x, &mut found);
        for (x, found) in x.iter().zip(&found) {
            let expected = if x.abs() < least { 0.0 } else { bf16::from_f32(*x).to_f32() };
            assert_eq!(found.to_f32(), expected, "{x}, {}", kernels.name);
        }
        kernels.to_bf16(&[f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &mut found[..4]);
        assert!(found[..4].iter().all(|x| x.is_nan()), "{}", kernels.name);
    }
}

#[test]
fn to_f16_rounds_to_the_nearest() {
    for n in LENGTHS {
        let mut x: Vec<f32> = uniforms(18, n).iter().map(|x| x * 70_000.0).collect();
        x.extend([1e-7, -1e-8, 65_519.0, 65_520.0, f32::INFINITY]);
        for kernels in available() {
            let mut out = vec![f16::ZERO; x.len()];
            kernels.to_f16(&x, &mut out);
            let expected: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
            assert_eq!(out, expected, "{}", kernels.name);
        }
    }
}
