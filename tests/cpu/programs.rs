//! Random programs of all ops in the precise mode against plain f64.

use crate::common::passes::{Run, bits, precise};
use crate::common::plain::{Plain, Rounding};
use crate::common::programs::{latent, random, recurrent};
use segno::backend::cpu::{Cpu, Options};
use segno::backend::{Chooser, KvType, Row};
use segno::plan::Program;
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
    let (mut worst, mut experts, mut states) = (0.0f64, 0, 0);
    for seed in 0..72 {
        let program = Arc::new(match seed {
            48.. => recurrent(seed),
            _ if seed % 4 == 1 => latent(seed),
            _ => random(seed, seed % 2 == 0),
        });
        states += program.states.len();
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
    println!("72 programs, {experts} with experts, {states} states: {worst:.2e} at most");
    assert!(experts > 10 && states > 40);
}

/// Logits of the last position of each of two sequences, evaluated in passes of so many rows, whose states two threads carry.
fn chunked(cpu: &Cpu, program: &Arc<Program>, chunk: usize) -> Vec<Vec<u32>> {
    let mut run = Run::new(cpu, program, KvType::F16, POSITIONS, 2);
    let mut last = Vec::new();
    for start in (0..POSITIONS).step_by(chunk) {
        let end = POSITIONS.min(start + chunk);
        last = bits(&run.stretches(&[(1, start..end), (0, start..end)]));
    }
    last
}

#[test]
fn states_have_the_same_bits_in_every_chunk_and_on_every_instruction_set() {
    let cpu =
        |threads, allow_avx512| Cpu::new(&Options { threads, precise: false, allow_avx512, gives_way: false }).unwrap();
    let (one, two, narrow) = (cpu(1, true), cpu(2, true), cpu(2, false));
    for seed in 0..16 {
        let program = Arc::new(recurrent(seed));
        let expected = chunked(&one, &program, 1);
        assert_eq!(expected[0], expected[1], "program {seed}: sequences differ");
        for (cpu, chunk) in [(&two, 7), (&two, POSITIONS), (&narrow, 64), (&narrow, 1)] {
            assert!(chunked(cpu, &program, chunk) == expected, "program {seed}, chunks of {chunk}");
        }
    }
}

/// A pass that keeps the state before its last row lets that row be evaluated again, and another in its place.
#[test]
fn a_pass_keeps_the_state_before_its_last_row() {
    let cpu = precise();
    for seed in 100..112 {
        let program = Arc::new(recurrent(seed));
        let mut run = Run::new(&cpu, &program, KvType::F16, POSITIONS, 1);
        let expected = run.stretches(&[(0, 0..FIRST)]);
        assert_eq!(bits(&run.stretches(&[(0, FIRST - 1..FIRST)])), bits(&expected), "program {seed}");
        let next = bits(&run.stretches(&[(0, FIRST..FIRST + 1)]));
        run.stretches(&[(0, FIRST + 1..POSITIONS)]);
        run.stretches(&[(0, 0..FIRST + 1)]);
        assert_eq!(bits(&run.stretches(&[(0, FIRST..FIRST + 1)])), next, "program {seed}");
    }
}
