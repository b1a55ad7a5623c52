//! Blocks that predict further tokens: their logits against a reference in f64 that knows the tensors of a file alone, and what a pass of the model
//! leaves for them.

use crate::common::distance::distance;
use crate::common::gguf::parsed;
use crate::common::passes::{bits, limits, precise};
use crate::common::predictors::{Guesses, predicting, predictor_of};
use segno::arch::{Arch, Hparams};
use segno::backend::{Backend, Batch, Chooser, Hidden, KvType, Limits, Row, Runner, Stage, cpu};
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::{Program, build::build};
use segno::quant::synthetic::Random;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Largest relative L2 distance of a row in precise mode with an F32 cache.
const PRECISE: f64 = 2e-5;
/// Models, and the layer that their blocks are like.
const MODELS: [(&str, usize); 2] = [("qwen35-plain", 1), ("glm4moe-plain", 2)];
/// Tokens of a text.
const LENGTH: usize = 45;
const VOCAB: usize = 131;

/// A block of a file in plain f64, one of the models above.
struct Reference<'a> {
    gguf: &'a Gguf,
    block: usize,
    hidden: usize,
    eps: f64,
    is_gated: bool,
}

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
/// Leading elements of a head that rotate.
const ROTATED: usize = 8;
const THETA: f64 = 1e6;

impl<'a> Reference<'a> {
    fn new(gguf: &'a Gguf) -> Reference<'a> {
        let arch = gguf.metadata().text("general.architecture").unwrap().unwrap();
        let number = |key: &str| gguf.metadata().u32(&format!("{arch}.{key}")).unwrap().unwrap() as usize;
        let eps = gguf.metadata().f32(&format!("{arch}.attention.layer_norm_rms_epsilon")).unwrap().unwrap();
        let block = number("block_count") - number("nextn_predict_layers");
        let hidden = number("embedding_length");
        Reference { gguf, block, hidden, eps: eps.into(), is_gated: arch.starts_with("qwen") }
    }

    fn global(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.gguf.tensor(name)?;
        let bytes = tensor.bytes(4 * tensor.elements() as usize).unwrap();
        Some(bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap()).into()).collect())
    }

    fn own(&self, name: &str) -> Option<Vec<f64>> {
        self.global(&format!("blk.{}.{name}", self.block))
    }

    /// `x` times the matrix `name` of the block, with its bias.
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let out = product(&self.own(&format!("{name}.weight")).unwrap(), x);
        let bias = self.own(&format!("{name}.bias")).unwrap_or_else(|| vec![0.0; out.len()]);
        out.iter().zip(bias).map(|(value, bias)| value + bias).collect()
    }

    fn norm(&self, weight: &[f64], x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|value| value * value).sum::<f64>() / x.len() as f64;
        x.iter().zip(weight).map(|(value, weight)| value / (mean + self.eps).sqrt() * weight).collect()
    }

    fn norm_of(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.norm(&self.own(&format!("{name}.weight")).unwrap(), x)
    }

    /// Logits, and the vector before them, behind each of `tokens`, which come with `given`.
    fn rows(&self, tokens: &[u32], given: &[Vec<f32>]) -> Vec<[Vec<f64>; 2]> {
        let shared = |own: &str, others: &[&str]| {
            self.own(own).or_else(|| others.iter().find_map(|name| self.global(name))).unwrap()
        };
        let table = shared("nextn.embed_tokens.weight", &["token_embd.weight"]);
        let last = shared("nextn.shared_head_norm.weight", &["output_norm.weight"]);
        let head = shared("nextn.shared_head_head.weight", &["output.weight", "token_embd.weight"]);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let row = |(place, (&token, given)): (usize, (&u32, &Vec<f32>))| {
            let embedding = &table[token as usize * self.hidden..][..self.hidden];
            let given: Vec<f64> = given.iter().map(|&value| value.into()).collect();
            let both = [self.norm_of("nextn.enorm", embedding), self.norm_of("nextn.hnorm", &given)].concat();
            let mut x = self.project("nextn.eh_proj", &both);
            let input = self.norm_of("attn_norm", &x);
            add(&mut x, &self.attention(place, &input, &mut keys, &mut values));
            let input = self.norm_of("post_attention_norm", &x);
            add(&mut x, &self.feed_forward(&input));
            let normed = self.norm(&last, &x);
            [product(&head, &normed), normed]
        };
        tokens.iter().zip(given).enumerate().map(row).collect()
    }

    fn attention(&self, place: usize, x: &[f64], keys: &mut Vec<Vec<f64>>, values: &mut Vec<Vec<f64>>) -> Vec<f64> {
        let projected = self.project("attn_q", x);
        let (queries, gates) = if self.is_gated {
            let half = |first: usize| projected.chunks(2 * HEAD_DIM).flat_map(move |h| h[first..][..HEAD_DIM].to_vec());
            (half(0).collect(), half(HEAD_DIM).collect())
        } else {
            (projected, Vec::new())
        };
        let position = |name: &str, heads: &[f64]| -> Vec<f64> {
            heads.chunks(HEAD_DIM).flat_map(|head| rotated(&self.norm_of(name, head), place)).collect()
        };
        let queries: Vec<f64> = position("attn_q_norm", &queries);
        keys.push(position("attn_k_norm", &self.project("attn_k", x)));
        values.push(self.project("attn_v", x));
        let head = |head: usize| {
            let part = head / (HEADS / KV_HEADS) * HEAD_DIM..(head / (HEADS / KV_HEADS) + 1) * HEAD_DIM;
            let query = &queries[head * HEAD_DIM..][..HEAD_DIM];
            let score = |key: &Vec<f64>| dot(query, &key[part.clone()]) / (HEAD_DIM as f64).sqrt();
            let shares = softmax(&keys.iter().map(score).collect::<Vec<f64>>());
            let mix =
                |at: usize| shares.iter().zip(&*values).map(|(share, value)| share * value[part.start + at]).sum();
            (0..HEAD_DIM).map(mix).collect::<Vec<f64>>()
        };
        let mut mixed: Vec<f64> = (0..HEADS).flat_map(head).collect();
        mixed.iter_mut().zip(&gates).for_each(|(value, gate)| *value *= sigmoid(*gate));
        self.project("attn_output", &mixed)
    }

    fn feed_forward(&self, x: &[f64]) -> Vec<f64> {
        if self.own("ffn_gate_inp.weight").is_none() {
            return self.gated(["ffn_gate", "ffn_up", "ffn_down"].map(|name| self.whole(name)), x);
        }
        let scores: Vec<f64> = self.project("ffn_gate_inp", x).iter().map(|&logit| sigmoid(logit)).collect();
        let bias = self.own("exp_probs_b.bias").unwrap();
        let ranks: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
        // Four groups of two, of which the two with the largest sums are looked at.
        let groups = largest(&ranks.chunks(2).map(|group| group.iter().sum()).collect::<Vec<f64>>(), 2);
        let ranks: Vec<f64> =
            ranks.iter().enumerate().map(|(i, r)| if groups.contains(&(i / 2)) { *r } else { f64::MIN }).collect();
        let chosen = largest(&ranks, 3);
        let sum: f64 = chosen.iter().map(|&expert| scores[expert]).sum();
        let mut out = self.gated(["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(|name| self.whole(name)), x);
        for expert in chosen {
            let part = |name: &str| {
                let all = self.whole(name);
                let each = all.len() / 8;
                all[expert * each..][..each].to_vec()
            };
            let given = self.gated(["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].map(part), x);
            let weight = f64::from(1.7f32) * scores[expert] / sum;
            out.iter_mut().zip(given).for_each(|(out, value)| *out += weight * value);
        }
        out
    }

    fn whole(&self, name: &str) -> Vec<f64> {
        self.own(&format!("{name}.weight")).unwrap()
    }

    fn gated(&self, [gate, up, down]: [Vec<f64>; 3], x: &[f64]) -> Vec<f64> {
        let (gate, up) = (product(&gate, x), product(&up, x));
        let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate * sigmoid(*gate) * up).collect();
        product(&down, &inner)
    }
}

fn product(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| dot(row, x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    scores.iter().map(|score| (score - most).exp() / sum).collect()
}

/// Indices of the `count` largest.
fn largest(values: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(count);
    order
}

fn rotated(head: &[f64], place: usize) -> Vec<f64> {
    let (mut out, half) = (head.to_vec(), ROTATED / 2);
    for pair in 0..half {
        let angle = place as f64 / THETA.powf(2.0 * pair as f64 / ROTATED as f64);
        let (x, y) = (head[pair], head[pair + half]);
        (out[pair], out[pair + half]) = (x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos());
    }
    out
}

/// A program with a cache for two texts.
struct Run {
    runner: Box<dyn Runner>,
    tables: Tables,
}

impl Run {
    fn new(backend: &dyn Backend, program: &Arc<Program>, hidden: Hidden) -> Run {
        let kv_type = KvType::F32;
        let limits = Limits { rows: 64, outputs: 64, context: 256, kv_type, hidden, ..limits(program, 64, 2) };
        let (mut pages, mut tables) = (Pages::new(4).unwrap(), Tables::new(2, 2).unwrap());
        (0..2).for_each(|slot| assert!(tables.grow(slot, 2, &mut pages)));
        let runner = backend.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap().open(&limits).unwrap();
        Run { runner, tables }
    }

    /// Evaluates some tokens of a text, and wants the logits of `outputs`.
    fn pass(&mut self, slot: u32, tokens: &[u32], start: usize, outputs: &[u32]) -> Vec<Vec<f32>> {
        let Run { runner, tables } = self;
        runner.run(&batch(&rows(slot, tokens, start), outputs, tables), &AtomicBool::new(false)).unwrap();
        (0..outputs.len()).map(|index| runner.logits(index).to_vec()).collect()
    }
}

fn batch<'a>(rows: &'a [Row], outputs: &'a [u32], tables: &'a Tables) -> Batch<'a> {
    Batch { rows, outputs, chooser: Chooser::Host, tables, window_tables: None, moves: &[] }
}

fn rows(slot: u32, tokens: &[u32], start: usize) -> Vec<Row> {
    let row = |(place, &token): (usize, &u32)| Row { token, position: (start + place) as u32, slot };
    tokens.iter().enumerate().map(row).collect()
}

fn tokens() -> Vec<u32> {
    (0..LENGTH).map(|place| (place * 37 % VOCAB) as u32).collect()
}

#[test]
fn logits_are_those_of_the_reference() {
    for ((name, layer), own) in MODELS.into_iter().flat_map(|model| [(model, false), (model, true)]) {
        let gguf = parsed(&predicting(name, layer, Guesses::Random { own }).bytes());
        let (program, reference) = (predictor_of(&gguf), Reference::new(&gguf));
        let (tokens, mut random) = (tokens(), Random::new(5));
        let given: Vec<Vec<f32>> = (0..LENGTH).map(|_| random.uniforms(reference.hidden)).collect();
        let expected = reference.rows(&tokens, &given);
        for chunk in [LENGTH, 7, 1] {
            let mut run = Run::new(&precise(), &program, Hidden::Outputs);
            let mut found = Vec::new();
            for start in (0..LENGTH).step_by(chunk) {
                let end = LENGTH.min(start + chunk);
                let outputs: Vec<u32> = (0..(end - start) as u32).collect();
                (start..end).for_each(|row| run.runner.given(row - start).copy_from_slice(&given[row]));
                let logits = run.pass(1, &tokens[start..end], start, &outputs);
                found.extend(
                    logits.into_iter().enumerate().map(|(row, logits)| [logits, run.runner.hidden(row).to_vec()]),
                );
            }
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            let worst = pairs.map(|(found, expected)| {
                let expected: Vec<f32> = expected.iter().map(|&value| value as f32).collect();
                distance(found, &expected).relative_l2
            });
            let worst = worst.fold(0.0, f64::max);
            println!("{name}, own {own}, chunks of {chunk}: {worst:.2e}");
            assert!(worst <= PRECISE, "{name} {chunk}: {worst:.2e}");
        }
    }
}

#[test]
fn vectors_of_outputs_are_those_of_their_rows() {
    let gguf = parsed(&predicting("glm4moe-plain", 2, Guesses::Random { own: false }).bytes());
    let (program, mut random) = (predictor_of(&gguf), Random::new(6));
    let given: Vec<Vec<f32>> = (0..LENGTH).map(|_| random.uniforms(32)).collect();
    let mut both = [Hidden::Rows, Hidden::Outputs].map(|hidden| {
        let mut run = Run::new(&precise(), &program, hidden);
        given.iter().enumerate().for_each(|(row, vector)| run.runner.given(row).copy_from_slice(vector));
        let logits = run.pass(0, &tokens(), 0, &[3, 40]);
        let rows = if hidden == Hidden::Rows { [3, 40] } else { [0, 1] };
        (bits(&logits), bits(&rows.map(|row| run.runner.hidden(row).to_vec())))
    });
    assert!(both[0].1[0] != both[0].1[1]);
    both.reverse();
    assert!(both[0] == both[1]);
}

#[test]
fn a_pass_that_leaves_vectors_gives_the_same_logits_and_those_of_embeddings() {
    let gguf = parsed(&predicting("glm4moe-plain", 2, Guesses::Random { own: false }).bytes());
    let arch = Arch::find("glm4moe").unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    let program = Arc::new(build(&gguf, &arch, &hparams).unwrap());
    for precise in [true, false] {
        let backend =
            cpu::Cpu::new(&cpu::Options { threads: 2, precise, allow_avx512: true, gives_way: false }).unwrap();
        let run = |hidden: Hidden, outputs: &[u32]| {
            let mut run = Run::new(&backend, &program, hidden);
            let logits = bits(&run.pass(0, &tokens(), 0, outputs));
            (logits, run)
        };
        for outputs in [&[44][..], &[0, 7, 44], &[]] {
            let ((expected, _), (logits, with)) = (run(Hidden::None, outputs), run(Hidden::Rows, outputs));
            assert!(logits == expected);
            let Run { mut runner, tables } = Run::new(&backend, &program, Hidden::Rows);
            let (rows, all) = (rows(0, &tokens(), 0), (0..LENGTH as u32).collect::<Vec<u32>>());
            let give = &mut |row: usize, vector: &[f32]| {
                let [a, b] =
                    [vector, with.runner.hidden(row)].map(|v| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
                assert!(a == b, "row {row}");
            };
            let batch = batch(&rows, &all, &tables);
            runner.embed(&batch, Stage::Tokens, &AtomicBool::new(false), give).unwrap();
        }
    }
}
