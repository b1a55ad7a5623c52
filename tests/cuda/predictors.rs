//! Blocks that predict further tokens on a GPU, and what passes leave for them: near the processor's precise mode, and the same bits alone, in
//! company and in parts. On a machine without a GPU the lists of launches alone are made.

use crate::common;
use crate::common::distance::distance;
use crate::common::gguf::parsed;
use crate::common::launches::{GIVEN, HIDDEN, Sort, leaving_lists, program};
use crate::common::passes::{Case, RANDOM, RANDOM_TWO_LAYERS, Run, assert_near, bits, limits, precise};
use crate::common::predictors::{Guesses, MODELS, predicting, predictor_of};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::args::Args;
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::lower::supported;
use segno::backend::{Backend, Chooser, Drawn, Hidden, KvType, Limits, Row, Stage};
use segno::plan::{Op, Program};
use segno::quant::synthetic::Random;
use segno::sample::Options;
use std::sync::Arc;

const POSITIONS: usize = 90;

/// The block of each family, with a head of its own and with the model's.
fn predictors() -> impl Iterator<Item = (String, Arc<Program>)> {
    let both = MODELS.into_iter().flat_map(|(name, layer)| [false, true].map(|own| (name, layer, own)));
    both.map(|(name, layer, own)| {
        let gguf = parsed(&predicting(name, layer, Guesses::Random { own }).bytes());
        (format!("{name}, own {own}"), predictor_of(&gguf))
    })
}

/// The models themselves.
fn models() -> impl Iterator<Item = (String, Arc<Program>)> {
    MODELS.into_iter().map(|(name, layer)| {
        let gguf = parsed(&predicting(name, layer, Guesses::Random { own: false }).bytes());
        (name.to_owned(), Arc::new(program(&gguf)))
    })
}

fn given(program: &Program) -> Vec<Vec<f32>> {
    let mut random = Random::new(5);
    (0..POSITIONS).map(|_| random.uniforms(program.given_width())).collect()
}

/// Rows of a slot.
fn rows(run: &Run, slot: u32, places: std::ops::Range<usize>) -> Vec<Row> {
    places.map(|place| Row { token: run.tokens[place], position: place as u32, slot }).collect()
}

/// Logits of the last of these places of a slot, and its vector; the others go before in the same pass.
fn part(run: &mut Run, slot: u32, places: std::ops::Range<usize>, given: &[Vec<f32>]) -> [Vec<f32>; 2] {
    let rows = rows(run, slot, places.clone());
    places.enumerate().for_each(|(row, place)| run.runner.given(row).copy_from_slice(&given[place]));
    let logits = run.pass(&rows, &[rows.len() as u32 - 1], Chooser::Host).remove(0);
    [logits, run.runner.hidden(0).to_vec()]
}

#[test]
fn predictions_and_their_vectors_are_near_those_of_the_precise_processor() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for (name, program) in predictors() {
        let given = given(&program);
        for kv_type in [KvType::F32, KvType::F16, KvType::Q8] {
            let all = |backend: &dyn Backend| -> [Vec<Vec<f32>>; 2] {
                let mut run = Run::leaving(backend, &program, kv_type, POSITIONS, 1, Hidden::Outputs);
                let found = (0..POSITIONS).map(|place| part(&mut run, 0, place..place + 1, &given));
                let (logits, vectors) = found.map(|[logits, vector]| (logits, vector)).unzip();
                [logits, vectors]
            };
            let ([found, vectors], [expected, precise]) = (all(&device), all(&precise()));
            let case = Case { name: name.clone(), program: Arc::clone(&program), bar: RANDOM_TWO_LAYERS.over(kv_type) };
            assert_near(&case, &format!("{kv_type:?}"), &found, &expected);
            assert_vectors(&case, &vectors, &precise);
        }
    }
}

fn assert_vectors(case: &Case, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len());
    let apart = found.iter().zip(expected).map(|(found, expected)| distance(found, expected).relative_l2);
    let worst = apart.fold(0.0, |worst: f64, apart| if apart.is_nan() { f64::INFINITY } else { worst.max(apart) });
    println!("{}: vectors differ by {worst:.1e}", case.name);
    assert!(worst <= case.bar.distance, "{}: vectors differ by {worst:.1e}", case.name);
}

#[test]
fn predictions_are_the_same_bits_in_any_company_and_in_parts() {
    if !common::gpu() {
        return;
    }
    let [device, eager] = [false, true].map(|eager| Cuda::new(0, eager).unwrap());
    for (name, program) in predictors() {
        let given = given(&program);
        for kv_type in [KvType::F16, KvType::Q8] {
            let run = |backend: &Cuda, seqs| Run::leaving(backend, &program, kv_type, POSITIONS, seqs, Hidden::Outputs);
            let mut alone = run(&device, 1);
            let expected: Vec<_> = (0..POSITIONS).map(|at| bits(&part(&mut alone, 0, at..at + 1, &given))).collect();
            let mut listed = run(&eager, 1);
            (0..POSITIONS).for_each(|at| assert!(bits(&part(&mut listed, 0, at..at + 1, &given)) == expected[at]));
            for length in [1, 2, 7, 31, POSITIONS] {
                let mut parts = run(&device, 2);
                for start in (0..POSITIONS).step_by(length) {
                    let end = POSITIONS.min(start + length);
                    let found = bits(&part(&mut parts, 1, start..end, &given));
                    assert!(found == expected[end - 1], "{name}, {kv_type:?}: parts of {length} at {start}");
                }
            }
            for seqs in [2, 3, 5, 16] {
                let mut together = run(&device, seqs);
                for (place, expected) in expected.iter().enumerate() {
                    let all: Vec<Row> =
                        (0..seqs as u32).flat_map(|slot| rows(&together, slot, place..place + 1)).collect();
                    (0..seqs).for_each(|row| together.runner.given(row).copy_from_slice(&given[place]));
                    let outputs: Vec<u32> = (0..seqs as u32).collect();
                    let logits = together.pass(&all, &outputs, Chooser::Host);
                    for (output, logits) in logits.into_iter().enumerate() {
                        let found = bits(&[logits, together.runner.hidden(output).to_vec()]);
                        assert!(found == *expected, "{name}, {kv_type:?}: {seqs} at once at {place}");
                    }
                }
            }
        }
    }
}

#[test]
fn passes_that_leave_vectors_give_the_same_logits_and_the_vectors_of_embeddings() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for (name, program) in models() {
        let run = |hidden, seqs| Run::leaving(&device, &program, KvType::F16, POSITIONS, seqs, hidden);
        let (mut without, mut with) = (run(Hidden::None, 1), run(Hidden::Rows, 1));
        let mut vectors = Vec::new();
        for place in 0..POSITIONS {
            let rows = rows(&with, 0, place..place + 1);
            let [expected, found] = [&mut without, &mut with].map(|run| bits(&run.pass(&rows, &[0], Chooser::Host)));
            assert!(expected == found, "{name}: logits at {place}");
            vectors.push(with.runner.hidden(0).to_vec());
        }
        let vectors = bits(&vectors);
        let all: Vec<u32> = (0..POSITIONS as u32).collect();
        let text = rows(&with, 0, 0..POSITIONS);
        // Of a text as a whole: nothing that does not end with it may be kept of the sequence.
        assert!(vectors == bits(&run(Hidden::None, 1).embed(&text, &all, Stage::Tokens)), "{name}: embeddings");
        for length in [2, 7, 31, POSITIONS] {
            let mut parts = run(Hidden::Rows, 2);
            for start in (0..POSITIONS).step_by(length) {
                let end = POSITIONS.min(start + length);
                // Logits of some row, or of none.
                let outputs = [end as u32 - start as u32 - 1];
                parts.pass(&rows(&parts, 1, start..end), &outputs[..start % 2], Chooser::Host);
                for (row, expected) in vectors[start..end].iter().enumerate() {
                    let found = bits(&[parts.runner.hidden(row).to_vec()]);
                    assert!(found[0] == *expected, "{name}: parts of {length} at {start}, row {row}");
                }
            }
        }
        // With the tokens that the device chooses, and draws, the vectors are there, without a wait for the end of the pass.
        for (seqs, chooser, draws) in [
            (1, Chooser::Device, false),
            (1, Chooser::Device, true),
            (2, Chooser::Device, false),
            (5, Chooser::Device, true),
            (16, Chooser::Device, false),
            (16, Chooser::Host, false),
        ] {
            let mut together = run(Hidden::Rows, seqs);
            for (place, expected) in vectors.iter().enumerate() {
                let all: Vec<Row> = (0..seqs as u32).flat_map(|slot| rows(&together, slot, place..place + 1)).collect();
                let outputs: Vec<u32> = (0..seqs as u32).collect();
                for output in (0..seqs).filter(|_| draws) {
                    let (options, history, position) =
                        (&Options { seed: 5, ..Options::defaults() }, &[][..], place as u64);
                    let drawn = Drawn { options, history, position, is_masked: false };
                    assert!(together.runner.draw(output, &drawn), "{name}: output {output}");
                }
                together.pass(&all, &outputs, chooser);
                for row in 0..seqs {
                    let found = bits(&[together.runner.hidden(row).to_vec()]);
                    assert!(found[0] == *expected, "{name}: {seqs} at once at {place}");
                }
            }
        }
    }
}

#[test]
fn vectors_that_passes_leave_are_near_those_of_the_precise_processor() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for (name, program) in models() {
        let all = |backend: &dyn Backend| -> Vec<Vec<f32>> {
            let mut run = Run::leaving(backend, &program, KvType::F16, POSITIONS, 1, Hidden::Rows);
            let rows = rows(&run, 0, 0..POSITIONS);
            run.pass(&rows, &[], Chooser::Host);
            (0..POSITIONS).map(|row| run.runner.hidden(row).to_vec()).collect()
        };
        let (found, expected) = (all(&device), all(&precise()));
        let case = Case { name, program: Arc::clone(&program), bar: RANDOM };
        assert_vectors(&case, &found, &expected);
    }
}

#[test]
fn weights_that_a_model_has_are_not_there_twice() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for (name, layer) in MODELS {
        let gguf = parsed(&predicting(name, layer, Guesses::Random { own: false }).bytes());
        let (model, block) = (Arc::new(program(&gguf)), predictor_of(&gguf));
        let limits = Limits { hidden: Hidden::Outputs, ..limits(&block, POSITIONS, 1) };
        let alone = device.memory(&block, &limits).unwrap().device_weights;
        let own = device.weights_beside(&block, &[&model]).unwrap();
        let table = &model.matrices[model.token_table().unwrap().0];
        assert!(own > 0 && own + table.bytes.len() as u64 <= alone, "{name}: {own} of {alone}");
        let loaded = device.prepare(Arc::clone(&model), &mut |_| Ok(())).unwrap();
        let beside = loaded.beside(Arc::clone(&block), None).unwrap();
        // What both have stays where it is.
        drop(loaded);
        let apart = device.prepare(Arc::clone(&block), &mut |_| Ok(())).unwrap();
        let mut runs = [&apart, &beside].map(|prepared| Run::open(&**prepared, &block, &limits));
        drop(beside);
        let given = given(&block);
        for place in 0..POSITIONS {
            let [expected, found] = runs.each_mut().map(|run| bits(&part(run, 0, place..place + 1, &given)));
            assert!(expected == found, "{name} at {place}");
        }
    }
}

#[test]
fn every_op_of_passes_that_leave_vectors_is_covered_once_and_one_launch_writes_them() {
    let goldens = common::launches::goldens().into_iter().filter(|(.., runs)| runs.is_ok());
    let goldens = goldens.map(|(path, program, _)| (path.display().to_string(), Arc::new(program)));
    let (mut seen, mut given) = (0, 0);
    for (name, program) in predictors().chain(goldens) {
        supported::check(&program).unwrap();
        let (Some(embedding), true) = (&program.embedding, program.logits.is_some()) else { continue };
        let norm = embedding.ops.iter().rposition(|op| op.writes() == Some(embedding.tokens)).unwrap();
        let all: Vec<usize> = (0..program.ops.len() + norm + 1).collect();
        for sort in [Sort::Exact, Sort::Fast, Sort::F32Cache, Sort::Q8Cache] {
            let lists = leaving_lists(&program, sort);
            let sorted = Some(&lists.sorted).filter(|list| !list.is_empty());
            let lists = [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt];
            for list in lists.into_iter().chain(sorted) {
                let mut covered: Vec<usize> = list.iter().flat_map(|launch| launch.covers.clone()).collect();
                covered.sort_unstable();
                assert_eq!(covered, all, "{name}");
                let leaves = |args: &Args| matches!(args, Args::Normalize(args) if args.out.x == HIDDEN);
                assert_eq!(list.iter().filter(|launch| leaves(&launch.args)).count(), 1, "{name}");
                let chooses = |args: &Args| match args {
                    Args::Matvec(args) => args.best != 0,
                    _ => false,
                };
                let argmax = list.iter().filter(|launch| launch.function.kernel == Kernel::Argmax).count();
                let chosen = list.iter().filter(|launch| chooses(&launch.args)).count();
                assert_eq!(argmax + chosen, 1, "{name}: tokens are chosen once");
                let takes = |args: &Args| matches!(args, Args::CopyHeads(args) if args.x == GIVEN);
                given += list.iter().filter(|launch| takes(&launch.args)).count();
                // The host reads vectors once it has the tokens: the launches that tell these are the last, and release what was written before.
                let tells = |args: &Args| match args {
                    Args::Argmax(args) => Some(args.has_vectors),
                    Args::Sample(args) => Some(args.has_vectors),
                    _ => None,
                };
                let (before, last) =
                    list.split_at(list.iter().position(|launch| tells(&launch.args).is_some()).unwrap());
                assert!(before.iter().any(|launch| leaves(&launch.args)), "{name}");
                assert!(last.iter().all(|launch| tells(&launch.args) == Some(1)), "{name}");
            }
            seen += 1;
        }
        let is_block = program.ops.iter().any(|op| matches!(op, Op::Given { .. }));
        assert_eq!(is_block, program.given_width() > 0);
    }
    // Six lists of each block, and those with experts one more.
    assert!(seen > 100 && given >= 10 * 4 * 6, "{seen} programs, {given} launches that take vectors");
}
