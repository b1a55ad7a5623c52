//! Tokens that the device draws are those of the processor, for the same logits, options and seed. On a machine without a GPU the tests say so and
//! prove nothing.

use crate::common;
use crate::common::draws::{Golden, history, int, off, options};
use crate::common::{Ctx, Model, bundled_model};
use segno::backend::Drawn;
use segno::backend::cuda::Cuda;
use segno::backend::cuda::testing::drawing::{Drawing, Request};
use segno::ffi::ctx::SEGNO_CTX_HOST_ARGMAX;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, segno_logit_bias, segno_sampler_opts};
use segno::sample::{Mask, Options, Scratch, sample_masked};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One test at a time: each has memory for many rows.
pub static ALONE: Mutex<()> = Mutex::new(());

/// Rows of a launch.
const ROWS: usize = 48;

/// What the processor draws.
pub fn expected(request: &Request, scratch: &mut Scratch) -> Option<i32> {
    let Drawn { options, history, position, .. } = request.drawn;
    sample_masked(options, request.logits, &request.mask, history, position, scratch).ok()
}

/// Draws all requests, whose logits have one length, in launches of every size up to [`ROWS`], and compares.
pub fn assert_drawn_alike(cuda: &Cuda, requests: &[Request]) {
    let vocab = requests[0].logits.len();
    let mut drawing = Drawing::new(cuda, ROWS, vocab).unwrap();
    let mut scratch = Scratch::new(vocab).unwrap();
    let (mut rest, mut size) = (requests, 1);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(size.min(rest.len()));
        for (request, drawn) in now.iter().zip(drawing.draw(cuda, now, Duration::ZERO).unwrap()) {
            let Drawn { options, history, position, .. } = request.drawn;
            let expected = expected(request, &mut scratch);
            let mask = request.mask.bits.map(|bits| bits.iter().map(|word| word.count_ones()).sum::<u32>());
            assert_eq!(
                drawn, expected,
                "{vocab} tokens, {mask:?} allowed, position {position}, history {history:?}, {options:?}"
            );
        }
        (rest, size) = (later, size % ROWS + 1);
    }
}

/// A token to draw, and which it is where that is recorded.
pub struct Case {
    options: Options,
    history: Vec<i32>,
    position: u64,
    token: Option<i32>,
    /// A bit for each token that may be drawn.
    pub mask: Option<Vec<u32>>,
    /// Tokens that may be drawn beside those.
    pub named: Vec<i32>,
}

impl Case {
    pub fn new(options: Options, history: Vec<i32>, position: u64, token: Option<i32>) -> Case {
        Case { options, history, position, token, mask: None, named: Vec::new() }
    }

    pub fn request<'a>(&'a self, logits: &'a [f32]) -> Request<'a> {
        let Case { options, history, position, mask, named, .. } = self;
        let drawn = Drawn { options, history, position: *position, is_masked: mask.is_some() };
        Request { drawn, logits, mask: Mask { bits: mask.as_deref(), named: [named, &[]] } }
    }
}

#[test]
fn every_recorded_case_is_drawn_as_on_the_processor() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let (golden, cuda) = (Golden::load(), Cuda::new(0, false).unwrap());
    let mut cases: HashMap<&str, Vec<Case>> = HashMap::new();
    for case in &golden.cases {
        let (options, history) = (options(case), history(case));
        let list = cases.entry(case["logits"].as_str().unwrap()).or_default();
        for draw in case["draws"].as_array().into_iter().flatten() {
            let options = Options { seed: draw[0].as_u64().unwrap(), ..options.clone() };
            let (position, token) = (draw[1].as_u64().unwrap(), Some(int(&draw[2])));
            list.push(Case::new(options, history.clone(), position, token));
        }
        for seed in 0..24 {
            // Greedy, too, which no filter concerns.
            let temperature = [options.temperature, 0.3, 3.0, 0.0][seed as usize % 4];
            let options = Options { seed, temperature, ..options.clone() };
            list.push(Case::new(options, history.clone(), 7 * seed, None));
        }
    }
    let recorded = cases.values().flatten().filter(|case| case.token.is_some()).count();
    println!("{} cases, {recorded} recorded draws, {} in all", golden.cases.len(), cases.values().flatten().count());
    assert!(golden.cases.len() > 300 && recorded > 800);
    for (name, list) in &cases {
        let logits = &golden.vectors[*name];
        let requests: Vec<Request> = list.iter().map(|case| case.request(logits)).collect();
        assert_drawn_alike(&cuda, &requests);
        let mut drawing = Drawing::new(&cuda, 1, logits.len()).unwrap();
        for case in list.iter().filter(|case| case.token.is_some()) {
            let drawn = drawing.draw(&cuda, &[case.request(logits)], Duration::ZERO).unwrap();
            assert_eq!(drawn, [case.token], "{name}: {:?}", case.options);
        }
    }
}

/// Numbers without order, the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Close to a normal distribution.
    fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit() - 0.5).sum::<f32>() * 1.4
    }

    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    pub fn logits(&mut self, vocab: usize) -> Vec<f32> {
        let (scale, kind, odd) = (self.choose(&[0.01, 1.0, 4.0, 30.0, 3e37]), self.below(9), self.below(3) == 0);
        let mut logits: Vec<f32> = (0..vocab)
            .map(|token| match kind {
                0 => 1.5,
                1 => (self.normal() * 3.0).round(),
                2 => -(token as f32) * 1e-3,
                3 => token as f32 * 1e-3,
                // All the best ones together, and a multiple of a block's threads apart.
                4 => {
                    if token < 700 {
                        20.0 + self.normal()
                    } else {
                        self.normal()
                    }
                }
                5 => {
                    if token % 256 == 3 {
                        20.0 + self.normal()
                    } else {
                        self.normal()
                    }
                }
                6 => {
                    if self.below(vocab) < 3 {
                        40.0
                    } else {
                        self.normal()
                    }
                }
                _ => self.normal() * scale,
            })
            .collect();
        if odd {
            let values = [f32::NAN, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY];
            let values = &values[..7 - self.below(3)];
            let share = self.choose(&[1, 2, 50, 3_000]);
            for logit in logits.iter_mut() {
                if self.below(share) == 0 {
                    *logit = self.choose(values);
                }
            }
        }
        logits
    }

    pub fn options(&mut self, vocab: usize) -> Options {
        let share = |dice: &mut Dice| dice.choose(&[1.0, 1.0, 0.95, 0.5, 0.05, 0.999_999, 1e-9]);
        let bias = (0..self.choose(&[0, 0, 0, 1, 5, 300])).map(|_| {
            let bias = if self.below(4) == 0 { f32::NEG_INFINITY } else { self.normal() * 5.0 };
            // Some tokens more than once.
            (self.below(vocab.min(200)) as i32, bias)
        });
        let bias = bias.collect();
        Options {
            temperature: self.choose(&[0.0, 0.01, 0.8, 0.8, 1.0, 5.0, 100.0, f32::from_bits(1)]),
            top_k: self.choose(&[0, 1, 2, 40, 40, 40, 41, 64, 127, 128, 129, 1_000, 100_000, i32::MAX]),
            top_p: share(self),
            typical_p: share(self),
            min_p: self.choose(&[0.0, 0.0, 0.05, 0.5, 1.0, 1e-30]),
            repeat_penalty: self.choose(&[1.0, 1.0, 1.3, 0.5, 1e-40]),
            frequency_penalty: self.choose(&[0.0, 0.0, 0.7, -1.0]),
            presence_penalty: self.choose(&[0.0, 0.0, 2.0, -3.0]),
            penalty_last_n: self.choose(&[64, 64, 0, 1, -1]),
            seed: self.next(),
            bias,
            ..off()
        }
    }
}

#[test]
fn whatever_the_options_and_logits_the_tokens_are_the_processors() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let cuda = Cuda::new(0, false).unwrap();
    let mut dice = Dice(1);
    let (mut drawn, mut none) = (0, 0);
    for (vocab, cases) in [
        (1, 60),
        (2, 80),
        (31, 150),
        (255, 150),
        (4_096, 250),
        (4_097, 250),
        (20_000, 250),
        (40_000, 120),
        (128_256, 200),
        (262_144, 60),
        (262_145, 40),
    ] {
        let cases: Vec<(Case, Vec<f32>)> = (0..cases)
            .map(|_| {
                let length = dice.choose(&[0, 1, 30, 500]);
                let history = (0..length).map(|_| dice.below(vocab.min(120)) as i32).collect();
                let position = dice.next() >> dice.choose(&[1, 30, 50]);
                (Case::new(dice.options(vocab), history, position, None), dice.logits(vocab))
            })
            .collect();
        let requests: Vec<Request> = cases.iter().map(|(case, logits)| case.request(logits)).collect();
        assert_drawn_alike(&cuda, &requests);
        let mut scratch = Scratch::new(vocab).unwrap();
        let failed = |request: &&Request| expected(request, &mut scratch).is_none();
        none += requests.iter().filter(failed).count();
        drawn += requests.len();
    }
    println!("{drawn} draws, {none} of them without a token");
    assert!(none > 5 && none < drawn / 4);
}

pub fn context(flags: u32) -> Ctx {
    Ctx::new(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, flags)).unwrap()
}

/// Sampler options number `which`; one asks for more than the device takes.
pub fn sampler(which: u64, bias: &[segno_logit_bias]) -> segno_sampler_opts {
    let mut opts = common::sampler();
    (opts.seed, opts.flags) = (which, SEGNO_SAMPLER_IGNORE_EOG);
    match which % 9 {
        0 => opts.temperature = 0.0,
        1 => {}
        2 => (opts.repeat_penalty, opts.penalty_last_n) = (1.3, -1),
        3 => (opts.top_k, opts.top_p, opts.min_p) = (0, 1.0, 0.0),
        4 => (opts.top_k, opts.typical_p, opts.temperature) = (0, 0.7, 1.5),
        5 => (opts.bias, opts.bias_count) = (bias.as_ptr(), 3),
        6 => (opts.temperature, opts.presence_penalty, opts.frequency_penalty) = (0.0, 0.5, 0.25),
        7 => (opts.top_k, opts.temperature) = (300, 2.0),
        _ => (opts.bias, opts.bias_count) = (bias.as_ptr(), bias.len()),
    }
    opts
}

/// Tokens of sequences with all kinds of options that join, leave, fork and are cut; `crowded` has some that only the host can draw.
fn story(model: &Model, crowded: bool) -> Vec<Vec<i32>> {
    let bias: Vec<segno_logit_bias> =
        (0..2_100).map(|i| segno_logit_bias { token: 5 + i % 7, bias: if i % 3 == 0 { -0.5 } else { 0.25 } }).collect();
    let session = model.session(|opts| opts.max_seqs = 16).unwrap();
    let count = if crowded { 9 } else { 8 };
    let mut seqs: Vec<i32> = (0..count).map(|which| session.open(&sampler(which, &bias)).unwrap()).collect();
    seqs.iter().for_each(|&seq| _ = session.append(seq, &[seq % 50 + 4, 9, 7]).unwrap());
    let mut heard = Vec::new();
    for step in 0..100 {
        match step {
            30 => seqs.push(session.fork(seqs[4], None).unwrap()),
            40 => seqs.push(session.fork(seqs[2], Some(&sampler(12, &bias))).unwrap()),
            50 => _ = session.truncate(seqs[3], 6).unwrap(),
            60 => _ = session.close(seqs.remove(1)).unwrap(),
            _ => {}
        }
        let some: Vec<i32> = seqs.iter().copied().filter(|seq| (step + seq * 3) % 5 != 0).collect();
        let (tokens, _, result) = session.batch(&some);
        result.unwrap();
        heard.push(tokens);
    }
    heard
}

#[test]
fn sequences_say_the_same_whoever_draws() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let load = |flags| context(flags).load(&bundled_model()).unwrap();
    let (device, host) = (load(0), load(SEGNO_CTX_HOST_ARGMAX));
    for crowded in [false, true] {
        assert_eq!(story(&device, crowded), story(&host, crowded), "crowded: {crowded}");
    }
}

#[test]
fn a_ban_of_every_token_is_an_error_and_the_session_goes_on() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let model = context(0).load(&bundled_model()).unwrap();
    let vocab = model.info().vocab as i32;
    let bans: Vec<segno_logit_bias> =
        (0..vocab).map(|token| segno_logit_bias { token, bias: f32::NEG_INFINITY }).collect();
    let session = model.session(|_| ()).unwrap();
    for temperature in [0.0, 0.8] {
        let mut opts = common::sampler();
        (opts.temperature, opts.bias, opts.bias_count) = (temperature, bans.as_ptr(), bans.len());
        let (banned, other) = (session.open(&opts).unwrap(), session.open(&common::greedy()).unwrap());
        for seq in [banned, other] {
            session.append(seq, &[5]).unwrap();
        }
        let failed = session.step(banned).err().unwrap();
        assert!(failed.message.contains("bias and penalties leave no token to draw"), "{}", failed.message);
        let (tokens, _, result) = session.batch(&[other, banned]);
        assert!(tokens[0] >= 0 && tokens[1] == -1 && result.err().unwrap().item == 1);
        session.close(banned).unwrap();
    }
}

/// Microseconds of a step, the median of many.
fn step_us(model: &Model, opts: &segno_sampler_opts, seqs: usize) -> f64 {
    let session = model.session(|opts| opts.kv_tokens = 4096).unwrap();
    let seqs: Vec<i32> = (0..seqs).map(|_| session.open(opts).unwrap()).collect();
    seqs.iter().for_each(|&seq| _ = session.append(seq, &[5; 128]).unwrap());
    (0..20).for_each(|_| _ = session.batch(&seqs).2.unwrap());
    let step = |_| {
        let start = Instant::now();
        session.batch(&seqs).2.unwrap();
        start.elapsed().as_secs_f64() * 1e6
    };
    let mut times: Vec<f64> = (0..200).map(step).collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

type Change = fn(&mut segno_sampler_opts);

/// What drawing adds to a step, for the models that `SEGNO_CUDA_MODELS` names; printed, never judged.
#[test]
#[ignore = "a measurement"]
fn cost_of_drawing() {
    let files = std::env::var("SEGNO_CUDA_MODELS").unwrap_or_default();
    for path in files.split(':').filter(|path| !path.is_empty()) {
        let ctx = context(0);
        let model = ctx.load(Path::new(path)).unwrap();
        let hosted = context(SEGNO_CTX_HOST_ARGMAX).load(Path::new(path)).unwrap();
        for seqs in [1, 4] {
            let greedy = step_us(&model, &common::greedy(), seqs);
            println!("{path}, {seqs} sequences: greedy {greedy:.1} us, {} tokens", model.info().vocab);
            let kinds: [(&str, Change); 6] = [
                ("defaults", |_| ()),
                ("defaults and penalties", |opts| opts.repeat_penalty = 1.1),
                ("greedy and penalties", |opts| (opts.temperature, opts.repeat_penalty) = (0.0, 1.1)),
                ("top_k 100", |opts| opts.top_k = 100),
                ("top_k off", |opts| opts.top_k = 0),
                ("top_k off, typical", |opts| (opts.top_k, opts.typical_p) = (0, 0.9)),
            ];
            for (name, change) in kinds {
                let mut opts = common::sampler();
                (opts.seed, opts.flags) = (1, SEGNO_SAMPLER_IGNORE_EOG);
                change(&mut opts);
                let (us, host) = (step_us(&model, &opts, seqs), step_us(&hosted, &opts, seqs));
                println!("    {name}: {:.1} us more ({:.1} where the host draws)", us - greedy, host - greedy);
            }
        }
    }
}
