//! Speed on the first GPU through the C API: prompts to their first token, greedy decoding at several contexts and in batches, the default sampler
//! beside greedy, and how long a stream waits beside a prompt.
//!
//! `cargo bench --bench cuda -- [--prompts 512,4096] [--contexts 128,2048,16384] [--batches 2,8] [--beside 4096]
//! [--launches 1,8] [--kv f16,q8] [--no-sampler] [--fast] [--steps N] [--runs N] [--prefill TOKENS]
//! [--device-memory MIB] [--bandwidth GB/S] MODEL.gguf...` prints one table a model; a list may be empty (`--batches ""`).
//! `--prefill` sets the tokens of a pass beside streams. Figures are medians of the runs, each of `--steps` tokens; over several types of the cache
//! these take turns. The floor of a step is the time in which the card reads, at its measured bandwidth, the weights once and the keys and values
//! of every sequence; what a step takes beyond that is also shown as microseconds for each of its kernels. Long contexts come from real prompts.
//! `--launches` adds the times of the single launches of such batches, which `SEGNO_CTX_TIMING` measures.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Ctx, Model, Session, Watch, greedy, launches::lists, model_opts, sampler};
use segno::arch::{Arch, Hparams};
use segno::backend::cuda::args::Shape;
use segno::backend::{KvType, cuda};
use segno::ffi::ctx::{SEGNO_CTX_FAST_BATCHES, SEGNO_CTX_TIMING};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::model::segno_model_opts;
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, segno_sampler_opts};
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8, segno_session_opts};
use segno::ffi::status::SEGNO_OK;
use segno::format::Gguf;
use segno::plan::{Op, Program, build::build};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Tokens of the prompts of batches, and context at which the sampler is compared.
const SHORT: usize = 128;
/// Steps before the clock starts.
const WARM: usize = 4;

/// The types of a cache: their names, and their numbers for the C API.
const CACHES: [(&str, i32, KvType); 3] =
    [("f16", SEGNO_KV_F16, KvType::F16), ("f32", SEGNO_KV_F32, KvType::F32), ("q8", SEGNO_KV_Q8, KvType::Q8)];

struct Options {
    /// Of [`CACHES`].
    caches: Vec<usize>,
    prompts: Vec<usize>,
    contexts: Vec<usize>,
    batches: Vec<usize>,
    /// Tokens of the prompts that come beside a stream.
    beside: Vec<usize>,
    /// Batches whose launches are measured one by one.
    launches: Vec<usize>,
    samples: bool,
    /// Whether batches may round what they multiply.
    fast: bool,
    steps: usize,
    runs: usize,
    /// Tokens of prompts in a pass, if not as many as usual.
    prefill: Option<usize>,
    /// Bytes of the card that a model may take; the host does what does not fit.
    device_memory: u64,
    /// Bytes a second that the card reads.
    bandwidth: f64,
    models: Vec<PathBuf>,
}

/// What a step must read, and how many kernels it runs.
struct Floor {
    weight_bytes: f64,
    /// Of one position of one sequence, by the type of the cache.
    kv_bytes: [f64; CACHES.len()],
    single_kernels: usize,
    batch_kernels: usize,
}

fn main() {
    let options = parse();
    let Ok(gpu) = cuda::info(0) else {
        println!("skipped: no cuda device");
        return;
    };
    println!("{}, driver {}, read bandwidth {:.0} GB/s", gpu.name, gpu.driver, options.bandwidth / 1e9);
    for path in &options.models {
        report(path, &options);
    }
}

fn parse() -> Options {
    let mut options = Options {
        caches: vec![0],
        prompts: vec![512],
        contexts: vec![SHORT],
        batches: vec![2, 4, 8, 16, 32, 64],
        beside: vec![4096],
        launches: Vec::new(),
        samples: true,
        fast: false,
        steps: 128,
        runs: 3,
        prefill: None,
        device_memory: 0,
        bandwidth: 4541e9,
        models: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut text = || args.next().expect("a list follows the option");
        let mut list = || -> Vec<usize> {
            text().split(',').filter(|part| !part.is_empty()).map(|part| part.parse().expect("a number")).collect()
        };
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--prompts" => options.prompts = list(),
            "--contexts" => options.contexts = list(),
            "--batches" => options.batches = list(),
            "--beside" => options.beside = list(),
            "--launches" => options.launches = list(),
            "--kv" => options.caches = text().split(',').map(cache).collect(),
            "--no-sampler" => options.samples = false,
            "--fast" => options.fast = true,
            "--steps" => options.steps = list()[0],
            "--runs" => options.runs = list()[0],
            "--prefill" => options.prefill = Some(list()[0]),
            "--device-memory" => options.device_memory = (list()[0] as u64) << 20,
            "--bandwidth" => options.bandwidth = list()[0] as f64 * 1e9,
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

fn cache(name: &str) -> usize {
    CACHES.iter().position(|cache| cache.0 == name).expect("f16, f32 or q8")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn tokens(count: usize) -> Vec<i32> {
    (0..count).map(|i| (i * 37 % 1000 + 5) as i32).collect()
}

fn program(path: &Path) -> Program {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    build(&gguf, &arch, &Hparams::read(gguf.metadata(), &arch).unwrap()).unwrap()
}

impl Floor {
    fn new(program: &Program) -> Floor {
        // An embedding is read whole only where it is the head too.
        let bytes = |op: &Op| match op {
            Op::MatMul { matrix, .. } => {
                let weight = &program.matrices[matrix.0];
                weight.rows as u64 * weight.dtype.row_bytes(weight.cols as u64).unwrap()
            }
            _ => 0,
        };
        let lists = lists(program);
        let position_bytes = |kv_type: KvType| {
            let elements = program.kv.all().map(|sizes| kv_type.stored(sizes).position_elements());
            (elements.sum::<usize>() * kv_type.bytes()) as f64
        };
        let kernels = |rows| {
            let shape = Shape { rows, outputs: rows, splits: 1, draws: 0 };
            lists.of(&shape).iter().filter(|launch| launch.runs(&shape)).count()
        };
        Floor {
            weight_bytes: program.ops.iter().map(bytes).sum::<u64>() as f64,
            kv_bytes: CACHES.map(|(.., kv_type)| position_bytes(kv_type)),
            single_kernels: kernels(1),
            batch_kernels: kernels(2),
        }
    }

    /// Share of the bandwidth in percent, and microseconds a kernel above the floor, of a step of `seconds`.
    fn judge(&self, seconds: f64, cache: usize, batch: usize, context: usize, bandwidth: f64) -> (f64, f64) {
        let floor = (self.weight_bytes + self.kv_bytes[cache] * (batch * context) as f64) / bandwidth;
        let kernels = if batch == 1 { self.single_kernels } else { self.batch_kernels };
        (100.0 * floor / seconds, 1e6 * (seconds - floor) / kernels as f64)
    }
}

fn report(path: &Path, options: &Options) {
    let floor = Floor::new(&program(path));
    let start = Instant::now();
    let flags = if options.fast { SEGNO_CTX_FAST_BATCHES } else { 0 };
    let ctx = Ctx::new(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, flags)).unwrap();
    let mut watch = Watch::default();
    let opts = segno_model_opts { device_memory: options.device_memory, ..model_opts(0, &mut watch) };
    let model = ctx.load_with(path, &opts).unwrap().1;
    let plan = ctx.plan(path, &opts).unwrap();
    let (name, how) = (path.file_name().unwrap_or_default(), if options.fast { ", fast batches" } else { "" });
    println!("\n{}{how}: load {:.2} s", name.to_string_lossy(), start.elapsed().as_secs_f64());
    if plan.host_layers + plan.host_expert_layers > 0 {
        let (layers, experts) = (plan.host_layers, plan.host_expert_layers);
        println!("  the host does {layers} layers, and the experts of {experts}");
    }
    let Floor { weight_bytes, single_kernels, batch_kernels, .. } = floor;
    println!("  {:.3} GB of weights a step; kernels: {single_kernels}, in batches {batch_kernels}", weight_bytes / 1e9);
    alone(&model, &floor, options);
    together(&model, &floor, options);
    options.beside.iter().for_each(|&count| beside(&model, count));
    drop((model, ctx));
    options.launches.iter().for_each(|&batch| print_launches(path, batch, flags));
}

/// Medians of the runs of each type of the cache, which take turns.
fn repeat(options: &Options, mut f: impl FnMut(usize) -> f64) -> Vec<f64> {
    let mut seconds = vec![Vec::new(); options.caches.len()];
    for _ in 0..options.runs {
        seconds.iter_mut().enumerate().for_each(|(index, seconds)| seconds.push(f(index)));
    }
    seconds.into_iter().map(median).collect()
}

/// A session over each type of the cache.
fn sessions(model: &Model, options: &Options, seqs: usize, room: usize) -> Vec<Session> {
    let open = |&cache: &usize| {
        let set = |opts: &mut segno_session_opts| {
            (opts.max_seqs, opts.kv_tokens, opts.kv_type) = (seqs as u32, room as u64, CACHES[cache].1);
            opts.max_prefill = options.prefill.map_or(opts.max_prefill, |rows| rows as u32);
        };
        model.session(set).unwrap()
    };
    options.caches.iter().map(open).collect()
}

/// Prompts, contexts and the sampler, with one sequence.
fn alone(model: &Model, floor: &Floor, options: &Options) {
    let mut contexts = options.contexts.clone();
    if options.samples && !contexts.contains(&SHORT) {
        contexts.push(SHORT);
    }
    let room = contexts.iter().map(|context| context + WARM + options.steps + 1).chain(options.prompts.clone()).max();
    let Some(room) = room else { return };
    let sessions = sessions(model, options, 1, room + 32);
    for &count in &options.prompts {
        sessions.iter().for_each(|session| _ = first_token_seconds(session, count));
        let seconds = repeat(options, |index| first_token_seconds(&sessions[index], count));
        for (&cache, seconds) in options.caches.iter().zip(seconds) {
            let (name, rate) = (CACHES[cache].0, count as f64 / seconds);
            println!("  {name} prompt {count:>6}: {rate:>8.0} tok/s, first token after {:.2} ms", seconds * 1e3);
        }
    }
    for &context in &contexts {
        let all = step_seconds(&sessions, &greedy(), context, options);
        for (&cache, &seconds) in options.caches.iter().zip(&all) {
            let (share, above) = floor.judge(seconds, cache, 1, context, options.bandwidth);
            let (name, rate) = (CACHES[cache].0, 1.0 / seconds);
            println!(
                "  {name} context {context:>5}: {rate:>8.0} tok/s, {share:.0} % of the bandwidth, {above:.2} us a kernel above the floor"
            );
        }
        if options.samples && context == SHORT {
            let endless = segno_sampler_opts { flags: SEGNO_SAMPLER_IGNORE_EOG, ..sampler() };
            let sampled = step_seconds(&sessions, &endless, context, options)[0];
            let more = 1e6 * (sampled - all[0]);
            println!("  default sampler: {:>6.0} tok/s, {more:.1} us a token more than greedy", 1.0 / sampled);
        }
    }
}

fn first_token_seconds(session: &Session, count: usize) -> f64 {
    let seq = session.open(&greedy()).unwrap();
    let start = Instant::now();
    session.append(seq, &tokens(count)).unwrap();
    session.generate(seq, 1).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    session.close(seq).unwrap();
    seconds
}

/// Seconds of a step of one sequence of each session with so many tokens behind it.
fn step_seconds(sessions: &[Session], chooser: &segno_sampler_opts, context: usize, options: &Options) -> Vec<f64> {
    let opened = |session: &Session| {
        let seq = session.open(chooser).unwrap();
        session.prefill(seq, &tokens(context)).unwrap();
        seq
    };
    let seqs: Vec<i32> = sessions.iter().map(opened).collect();
    let seconds = repeat(options, |index| {
        let (session, seq) = (&sessions[index], seqs[index]);
        session.truncate(seq, context).unwrap();
        advance(session, &[seq], WARM);
        advance(session, &[seq], options.steps)
    });
    sessions.iter().zip(seqs).for_each(|(session, seq)| _ = session.close(seq).unwrap());
    seconds
}

/// Gives each sequence a prompt of its own, so that their rows differ, and choose different experts.
fn prefill_apart(session: &Session, seqs: &[i32]) {
    for (index, &seq) in seqs.iter().enumerate() {
        session.prefill(seq, &tokens(SHORT + index)[index..]).unwrap();
    }
}

/// Steps of several sequences; seconds of one.
fn advance(session: &Session, seqs: &[i32], steps: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..steps {
        let (_, statuses, result) = session.batch(seqs);
        assert!(result == Ok(SEGNO_OK) && statuses.iter().all(|&status| status >= 0), "{result:?} {statuses:?}");
    }
    start.elapsed().as_secs_f64() / steps as f64
}

fn together(model: &Model, floor: &Floor, options: &Options) {
    let Some(&most) = options.batches.iter().max() else { return };
    let room = most * (SHORT + WARM + options.steps).next_multiple_of(32);
    let sessions = sessions(model, options, most, room);
    for &batch in &options.batches {
        let seconds = repeat(options, |index| {
            let session = &sessions[index];
            let seqs: Vec<i32> = (0..batch).map(|_| session.open(&greedy()).unwrap()).collect();
            prefill_apart(session, &seqs);
            advance(session, &seqs, WARM);
            let seconds = advance(session, &seqs, options.steps);
            seqs.iter().for_each(|&seq| _ = session.close(seq).unwrap());
            seconds
        });
        for (&cache, seconds) in options.caches.iter().zip(seconds) {
            let (share, above) = floor.judge(seconds, cache, batch, SHORT, options.bandwidth);
            let (name, rate) = (CACHES[cache].0, batch as f64 / seconds);
            println!(
                "  {name} batch {batch:>7}: {rate:>8.0} tok/s, {share:.0} % of the bandwidth, {above:.2} us a kernel above the floor"
            );
        }
    }
}

/// The table of launches of steps of so many sequences.
fn print_launches(path: &Path, batch: usize, flags: u32) {
    let ctx = Ctx::new(|opts| {
        (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, flags | SEGNO_CTX_TIMING);
        opts.log = Some(print_line);
    });
    let model = ctx.unwrap().load(path).unwrap();
    let room = batch as u64 * 256;
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (batch as u32, room)).unwrap();
    let seqs: Vec<i32> = (0..batch).map(|_| session.open(&greedy()).unwrap()).collect();
    prefill_apart(&session, &seqs);
    advance(&session, &seqs, 64);
}

/// # Safety
/// As `segno_log_fn` is called.
unsafe extern "C" fn print_line(_user: *mut c_void, _level: i32, line: *const c_char) {
    // SAFETY: the line ends with NUL and lives as long as the call.
    println!("{}", unsafe { CStr::from_ptr(line) }.to_string_lossy());
}

/// The longest that a stream waits for a token while another sequence of its session takes a prompt.
fn beside(model: &Model, count: usize) {
    let room = (count + SHORT + 1024).next_multiple_of(32) as u64;
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, room)).unwrap();
    let (stream, other) = (session.open(&greedy()).unwrap(), session.open(&greedy()).unwrap());
    session.prefill(stream, &tokens(SHORT)).unwrap();
    advance(&session, &[stream], WARM);
    let alone = advance(&session, &[stream], SHORT);
    session.append(other, &tokens(count)).unwrap();
    let (start, mut longest, mut passes) = (Instant::now(), 0.0f64, 0);
    loop {
        let began = Instant::now();
        let (_, statuses, result) = session.batch(&[stream, other]);
        result.unwrap();
        longest = longest.max(began.elapsed().as_secs_f64());
        passes += 1;
        if statuses[1] == SEGNO_OK {
            break;
        }
    }
    println!(
        "  beside a prompt of {count}: a stream waits {:.2} ms at most, {:.2} ms alone; first token of the prompt after {:.1} ms, {passes} passes",
        longest * 1e3,
        alone * 1e3,
        start.elapsed().as_secs_f64() * 1e3
    );
}
