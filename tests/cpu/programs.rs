//! Random programs of all ops in the precise mode against plain f64.

use crate::common::passes::{Run, precise};
use crate::common::plain::{Plain, Rounding};
use crate::common::programs::{latent, random};
use segno::backend::{Chooser, KvType, Row};
use std::sync::Arc;

/// Rows of the first pass, and of all.
const FIRST: usize = 37;
const POSITIONS: usize = 90;

/// Relative distance of each row of logits.
fn distance(found: &[f32], expected: &[f64]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = square(&mut found.iter().zip(expected).map(|(&a, b)| f64::from(a) - b));
    (off / square(&mut expected.iter().copied())).sqrt()
}

#[test]
fn the_precise_mode_computes_random_programs_as_plain_f64_does() {
    let cpu = precise();
    let (mut worst, mut experts) = (0.0f64, 0);
    for seed in 0..48 {
        let program = Arc::new(if seed % 4 == 1 { latent(seed) } else { random(seed, seed % 2 == 0) });
        experts += usize::from(program.ops.iter().any(|op| op.name() == "route"));
        let mut run = Run::new(&cpu, &program, KvType::F32, POSITIONS, 1);
        let mut plain = Plain::new(&program, Rounding::default(), 1);
        for (start, end) in [(0, FIRST), (FIRST, POSITIONS - 1), (POSITIONS - 1, POSITIONS)] {
            let row = |p: usize| Row { token: run.tokens[p], position: p as u32, slot: 0 };
            let rows: Vec<Row> = (start..end).map(row).collect();
            let outputs = [rows.len() as u32 - 1];
            let expected = plain.pass(&rows, &outputs);
            let found = run.pass(&rows, &outputs, Chooser::Host);
            let off = distance(&found[0], &expected[0]);
            assert!(off < 1e-5, "program {seed}, rows {start} to {end}: {off:.2e}");
            worst = worst.max(off);
        }
    }
    println!("48 programs, {experts} with experts: {worst:.2e} at most");
    assert!(experts > 10);
}
