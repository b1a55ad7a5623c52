//! A crowd on a GPU: sequences of random lengths that join, leave and fork for two thousand steps, each with the tokens that it has alone, without
//! a graph or memory being made on the way. On a machine without a GPU the test says so and proves nothing.

#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

use common::{Ctx, Model, Session, greedy, sampler};
use segno::backend::cuda;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, segno_sampler_opts};
use segno::ffi::status::{SEGNO_OK, SEGNO_PENDING};
use segno::quant::DType;
use segno::quant::synthetic::Random;

const STEPS: usize = 2000;
const MOST: usize = 64;
/// Tokens of the longest prompt, and of a sequence that leaves.
const PROMPT: usize = 200;
const LONGEST: usize = 300;

/// A sequence: what it was given, and what came of it.
struct Life {
    seq: i32,
    drawn: Option<u64>,
    given: Vec<i32>,
    tokens: Vec<i32>,
}

impl Life {
    fn options(&self) -> segno_sampler_opts {
        match self.drawn {
            None => greedy(),
            Some(seed) => segno_sampler_opts { seed, flags: SEGNO_SAMPLER_IGNORE_EOG, ..sampler() },
        }
    }

    fn length(&self) -> usize {
        self.given.len() + self.tokens.len()
    }
}

struct Crowd {
    session: Session,
    random: Random,
    live: Vec<Life>,
    ended: Vec<Life>,
    forks: usize,
}

impl Crowd {
    fn below(&mut self, count: usize) -> usize {
        (self.random.bits() % count as u64) as usize
    }

    fn join(&mut self) {
        let count = 1 + self.below(PROMPT);
        let given = (0..count).map(|_| self.below(common::random::VOCAB) as i32).collect();
        let drawn = (self.below(2) == 1).then(|| self.random.bits());
        let mut life = Life { seq: -1, drawn, given, tokens: Vec::new() };
        life.seq = self.session.open(&life.options()).unwrap();
        self.session.append(life.seq, &life.given).unwrap();
        self.live.push(life);
    }

    fn leave(&mut self, index: usize) {
        let life = self.live.swap_remove(index);
        self.session.close(life.seq).unwrap();
        self.ended.push(life);
    }

    /// A copy that goes on from another token.
    fn fork(&mut self) {
        let (index, other) = (self.below(self.live.len()), self.below(common::random::VOCAB) as i32);
        let parent = &self.live[index];
        if parent.tokens.is_empty() {
            return;
        }
        let seq = self.session.fork(parent.seq, Some(&greedy())).unwrap();
        self.session.append(seq, &[other]).unwrap();
        let given = [&parent.given[..], &parent.tokens, &[other]].concat();
        self.live.push(Life { seq, drawn: None, given, tokens: Vec::new() });
        self.forks += 1;
    }

    fn step(&mut self) {
        while self.live.len() < 4 {
            self.join();
        }
        if self.live.len() < MOST && self.below(3) == 0 {
            self.join();
        }
        if self.live.len() < MOST && self.below(8) == 0 {
            self.fork();
        }
        if self.below(6) == 0 {
            let index = self.below(self.live.len());
            self.leave(index);
        }
        while let Some(index) = self.live.iter().position(|life| life.length() >= LONGEST) {
            self.leave(index);
        }
        // Some pause.
        let chosen: Vec<usize> = (0..self.live.len()).filter(|_| !self.random.bits().is_multiple_of(8)).collect();
        let seqs: Vec<i32> = chosen.iter().map(|&index| self.live[index].seq).collect();
        let (tokens, statuses, result) = self.session.batch(&seqs);
        result.unwrap();
        for (at, index) in chosen.into_iter().enumerate() {
            match statuses[at] {
                SEGNO_OK => self.live[index].tokens.push(tokens[at]),
                status => assert_eq!(status, SEGNO_PENDING),
            }
        }
    }
}

fn assert_alone(model: &Model, crowd: &Crowd) {
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (1, 2 * LONGEST as u64)).unwrap();
    for life in &crowd.ended {
        let seq = session.open(&life.options()).unwrap();
        session.append(seq, &life.given).unwrap();
        assert_eq!(session.generate(seq, life.tokens.len()).unwrap(), life.tokens, "after {} tokens", life.given.len());
        session.close(seq).unwrap();
    }
}

#[test]
fn a_crowd_that_comes_and_goes_has_the_tokens_of_each_alone() {
    if !common::gpu() {
        return;
    }
    let file = common::random::file(|name| match name {
        name if name.contains("attn_v") || name.contains("output") => DType::Q6_K,
        name if name.contains("ffn_down") => DType::Q8_0,
        _ => DType::Q4_K,
    });
    let model = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap().load_buffer(&file.bytes()).unwrap();
    let room = (MOST * (LONGEST + 1).next_multiple_of(32)) as u64;
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (MOST as u32, room)).unwrap();
    let mut crowd = Crowd { session, random: Random::new(29), live: Vec::new(), ended: Vec::new(), forks: 0 };
    let free = || cuda::info(0).unwrap().memory_free;
    (0..100).for_each(|_| crowd.step());
    let before = free();
    let ((), calls) = cuda::testing::calls_of(|| (100..STEPS).for_each(|_| crowd.step()));
    assert_eq!(free(), before, "device memory");
    let made = calls.iter().find(|call| call.contains("Instantiate") || call.contains("Alloc"));
    assert_eq!(made, None, "made on the way");
    while !crowd.live.is_empty() {
        crowd.leave(0);
    }
    let tokens: usize = crowd.ended.iter().map(|life| life.tokens.len()).sum();
    println!("{} sequences, {} of them forks, {tokens} tokens", crowd.ended.len(), crowd.forks);
    assert!(crowd.forks > 50 && tokens > 20 * STEPS);
    assert_alone(&model, &crowd);
}
