//! Masks of grammars on the device: tokens of masked rows are those of the processor, beside rows without a mask, and when masks come late. On a
//! machine without a GPU the tests say so and prove nothing.

use crate::common;
use crate::common::{Model, Session, bundled_model};
use crate::sample::{ALONE, Case, Dice, assert_drawn_alike, context, expected, sampler};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::testing::drawing::{Drawing, Request};
use segno::ffi::ctx::SEGNO_CTX_HOST_ARGMAX;
use segno::ffi::grammar::{SEGNO_GRAMMAR_COMPACT, SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_REGEX};
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, segno_logit_bias};
use segno::ffi::status::{SEGNO_CANCELLED, SEGNO_GRAMMAR_END, SEGNO_OK};
use segno::sample::Scratch;
use std::time::Duration;

/// None, no token, one, few, most, all, or whole stretches of a vocabulary; some lists end early, as those of grammars do.
fn mask(dice: &mut Dice, vocab: usize) -> Option<Vec<u32>> {
    let mut words = vec![0u32; vocab.div_ceil(32)];
    let mut allow = |token: usize| words[token / 32] |= 1 << (token % 32);
    match dice.below(8) {
        0 => return None,
        1 => {}
        2 => allow(dice.below(vocab)),
        3 => (0..5).for_each(|_| allow(dice.below(vocab))),
        4 => (0..vocab).filter(|_| dice.below(50) > 0).for_each(allow),
        5 => (0..vocab).for_each(allow),
        6 => (0..vocab).filter(|_| dice.below(2) == 0).for_each(allow),
        _ => (0..vocab).filter(|token| token / 1000 % 3 == 1).for_each(allow),
    }
    words.truncate(words.len() - dice.below(8) / 7);
    Some(words)
}

#[test]
fn masked_tokens_are_the_processors_beside_rows_without_a_mask() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let cuda = Cuda::new(0, false).unwrap();
    let mut dice = Dice(5);
    let (mut masked, mut none) = (0, 0);
    for (vocab, cases) in [
        (1, 60),
        (31, 120),
        (33, 120),
        (255, 150),
        (4_095, 150),
        (4_097, 250),
        (20_001, 250),
        (49_152, 150),
        (128_256, 150),
        (151_936, 60),
        (262_145, 40),
    ] {
        let cases: Vec<(Case, Vec<f32>)> = (0..cases)
            .map(|_| {
                let history = (0..dice.choose(&[0, 30])).map(|_| dice.below(vocab.min(120)) as i32).collect();
                let mut case = Case::new(dice.options(vocab), history, dice.next() >> 40, None);
                case.mask = mask(&mut dice, vocab);
                // Names outside the vocabulary are passed over.
                let names = if case.mask.is_some() { dice.choose(&[0, 0, 1, 3]) } else { 0 };
                case.named = (0..names).map(|_| dice.below(vocab + 2) as i32).collect();
                (case, dice.logits(vocab))
            })
            .collect();
        let requests: Vec<Request> = cases.iter().map(|(case, logits)| case.request(logits)).collect();
        assert_drawn_alike(&cuda, &requests);
        let mut scratch = Scratch::new(vocab).unwrap();
        masked += requests.iter().filter(|request| request.drawn.is_masked).count();
        none += requests.iter().filter(|request| expected(request, &mut scratch).is_none()).count();
    }
    println!("{masked} masked draws, {none} draws without a token");
    assert!(masked > 1_000 && none > 50 && none < masked / 2);
}

#[test]
fn the_device_waits_for_masks_that_come_late() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let (cuda, vocab) = (Cuda::new(0, false).unwrap(), 50_001);
    let (mut dice, mut scratch) = (Dice(6), Scratch::new(vocab).unwrap());
    let mut drawing = Drawing::new(&cuda, 8, vocab).unwrap();
    for round in 0..40 {
        let cases: Vec<(Case, Vec<f32>)> = (0..8)
            .map(|row| {
                let mut case = Case::new(dice.options(vocab), vec![row], round, None);
                // Nearly everything changes from one round to the next, so that what is left of the one before shows.
                case.mask = mask(&mut dice, vocab).filter(|_| row % 3 > 0);
                (case, dice.logits(vocab))
            })
            .collect();
        let requests: Vec<Request> = cases.iter().map(|(case, logits)| case.request(logits)).collect();
        let drawn = drawing.draw(&cuda, &requests, Duration::from_millis(round % 4 * 3)).unwrap();
        let all: Vec<Option<i32>> = requests.iter().map(|request| expected(request, &mut scratch)).collect();
        assert_eq!(drawn, all, "round {round}");
    }
}

/// Nine sequences, six of them with a grammar.
fn constrained(model: &Model) -> (Session, Vec<i32>) {
    let schema = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}}, "required": ["name", "age"]}"#;
    let grammars = [
        model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, schema).unwrap(),
        model.grammar(SEGNO_GRAMMAR_REGEX, 0, "[A-Z][a-z ,]{5,40}[.!?]").unwrap(),
    ];
    let session = model.session(|opts| opts.max_seqs = 16).unwrap();
    let mut seqs = Vec::new();
    for which in 0..9 {
        let mut opts = sampler(which % 5, &[segno_logit_bias { token: 7, bias: 0.5 }; 3]);
        opts.flags = if which % 2 == 0 { SEGNO_SAMPLER_IGNORE_EOG } else { 0 };
        let seq = session.open(&opts).unwrap();
        session.append(seq, &[seq % 50 + 4, 9, 7]).unwrap();
        if let Some(grammar) = grammars.get(which as usize % 3) {
            session.constrain(seq, Some(grammar), -1).unwrap();
        }
        seqs.push(seq);
    }
    (session, seqs)
}

/// Tokens and outcomes of such sequences that are stepped together, forked, cut and cancelled.
fn constrained_story(model: &Model) -> Vec<(Vec<i32>, Vec<i32>)> {
    let (session, mut seqs) = constrained(model);
    let mut heard = Vec::new();
    for step in 0..80 {
        match step {
            10 => seqs.push(session.fork(seqs[0], None).unwrap()),
            15 => _ = session.truncate(seqs[1], 8).unwrap(),
            20 => {
                session.cancel(true);
                assert_eq!(session.batch(&seqs).2, Ok(SEGNO_CANCELLED));
                session.cancel(false);
            }
            30 => _ = session.close(seqs.remove(3)).unwrap(),
            _ => {}
        }
        let (tokens, outcomes, result) = session.batch(&seqs);
        result.unwrap();
        heard.push((tokens, outcomes));
    }
    heard
}

#[test]
fn constrained_sequences_say_the_same_whoever_draws() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let load = |flags| context(flags).load(&bundled_model()).unwrap();
    let heard = constrained_story(&load(0));
    assert_eq!(heard, constrained_story(&load(SEGNO_CTX_HOST_ARGMAX)));
    let ended = |(_, outcomes): &(_, Vec<i32>)| outcomes.contains(&SEGNO_GRAMMAR_END) && outcomes.contains(&SEGNO_OK);
    assert!(heard.iter().any(ended), "some end while others go on");
}

/// What forced tokens and the ends of texts come to does not depend on whether a pass is run for others.
#[test]
fn constrained_sequences_say_the_same_alone() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let model = context(0).load(&bundled_model()).unwrap();
    let story = |width: usize| {
        let (session, seqs) = constrained(&model);
        let mut heard = vec![Vec::new(); seqs.len()];
        for _ in 0..60 {
            for (seqs, heard) in seqs.chunks(width).zip(heard.chunks_mut(width)) {
                let (tokens, outcomes, result) = session.batch(seqs);
                result.unwrap();
                let steps = tokens.into_iter().zip(outcomes);
                heard.iter_mut().zip(steps).for_each(|(heard, step)| heard.push(step));
            }
        }
        heard
    };
    let alone = story(1);
    assert!(alone.iter().flatten().any(|&(_, outcome)| outcome == SEGNO_GRAMMAR_END));
    for width in [2, 4, 9] {
        assert_eq!(story(width), alone, "{width} at once");
    }
}
