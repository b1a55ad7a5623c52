//! Compares a GPU's replayed steps with eager ones, buffer by buffer: which position is the first to differ, in which buffers, and after which
//! launch of the step. Before each step everything that a step computes is filled with NaN, so that a launch that is missing shows too.
//!
//! `cargo run --release --example diverge -- MODEL.gguf [FROM] [COUNT] [SEQUENCES] [--without LAUNCH]`
//!
//! Evaluates FROM positions in chunks, then compares COUNT steps of SEQUENCES sequences (0, 64 and 1 by default). `--without` leaves a launch out
//! of the replay, to see that the scan finds it. Exits with 1 when anything differs.

use segno::arch::{Arch, Hparams};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::testing::inspect::{Contents, Inspection};
use segno::backend::{Batch, Chooser, KvType, Limits, Row};
use segno::error::{Error, Result};
use segno::format::Gguf;
use segno::kv::{PAGE_TOKENS, Pages, Tables};
use segno::plan::{Program, build::build};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const CHUNK: usize = 256;

/// What the command line asks for.
struct Request {
    model: String,
    from: usize,
    count: usize,
    seqs: usize,
    without: Option<usize>,
}

fn request() -> Option<Request> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut without = None;
    if let Some(at) = words.iter().position(|word| word == "--without") {
        without = Some(words.get(at + 1)?.parse().ok()?);
        words.drain(at..at + 2);
    }
    let number = |index: usize, default| words.get(index).map_or(Some(default), |word| word.parse().ok());
    let (from, count, seqs) = (number(1, 0)?, number(2, 64)?, number(3, 1)?);
    Some(Request { model: words.first()?.clone(), from, count, seqs: Some(seqs).filter(|&seqs| seqs > 0)?, without })
}

/// Two sessions of one program, and the pages that both use.
struct Scan {
    eager: Inspection,
    replay: Inspection,
    tables: Tables,
    seqs: usize,
    vocab: usize,
}

impl Scan {
    fn new(request: &Request) -> Result<Scan> {
        let program = program(Path::new(&request.model))?;
        let each = (request.from + request.count).div_ceil(PAGE_TOKENS).max(1);
        let (seqs, vocab) = (request.seqs, program.vocab());
        let limits = Limits {
            rows: CHUNK + seqs,
            outputs: seqs,
            seqs,
            pages: seqs * each,
            context: 4096,
            kv_type: KvType::F16,
            windows: None,
            records: 0,
            ranks: 0,
            hidden: Default::default(),
            behind: 0,
        };
        let (mut pages, mut tables) = (Pages::new(limits.pages)?, Tables::new(seqs, each)?);
        (0..seqs).for_each(|slot| assert!(tables.grow(slot, each, &mut pages)));
        let loaded = Cuda::new(0, false)?.upload(program, &mut |_| Ok(()))?;
        let (eager, mut replay) = (loaded.inspect(&limits, true)?, loaded.inspect(&limits, false)?);
        if let Some(launch) = request.without {
            replay.leave_out(launch)?;
        }
        Ok(Scan { eager, replay, tables, seqs, vocab })
    }

    fn row(&self, slot: usize, position: usize) -> Row {
        let token = ((position * 7919 + slot * 104_729 + 13) % self.vocab) as u32;
        Row { token, position: position as u32, slot: slot as u32 }
    }

    /// Evaluates the positions before `end` in both sessions.
    fn fill(&mut self, end: usize) -> Result<()> {
        for slot in 0..self.seqs {
            for start in (0..end).step_by(CHUNK) {
                let rows: Vec<Row> = (start..end.min(start + CHUNK)).map(|at| self.row(slot, at)).collect();
                let outputs = [rows.len() as u32 - 1];
                let batch = Batch {
                    rows: &rows,
                    outputs: &outputs,
                    chooser: Chooser::Host,
                    tables: &self.tables,
                    window_tables: None,
                    moves: &[],
                };
                self.eager.run(&batch)?;
                self.replay.run(&batch)?;
            }
        }
        Ok(())
    }

    /// Compares a step; tells where it differs, and returns whether it does.
    fn step(&mut self, position: usize) -> Result<bool> {
        let rows: Vec<Row> = (0..self.seqs).map(|slot| self.row(slot, position)).collect();
        let outputs: Vec<u32> = (0..self.seqs as u32).collect();
        let batch = Batch {
            rows: &rows,
            outputs: &outputs,
            chooser: Chooser::Host,
            tables: &self.tables,
            window_tables: None,
            moves: &[],
        };
        let before = self.eager.read()?.pop().expect("a session has a cache");
        for session in [&mut self.eager, &mut self.replay] {
            session.poison()?;
            session.run(&batch)?;
        }
        let found = differences(&self.eager.read()?, &self.replay.read()?);
        if found.is_empty() {
            return Ok(false);
        }
        println!("position {position} differs:");
        found.iter().for_each(|line| println!("  {line}"));
        let launches = self.eager.launches(&batch);
        // The first launch after which anything differs: halve the range that holds it.
        let (mut equal, mut differs) = (0, launches.len());
        while differs - equal > 1 {
            let middle = (equal + differs) / 2;
            for session in [&mut self.eager, &mut self.replay] {
                session.poison()?;
                session.write_cache(&before)?;
                session.run_first(&batch, middle)?;
            }
            let same = differences(&self.eager.read()?, &self.replay.read()?).is_empty();
            if same { equal = middle } else { differs = middle }
        }
        println!("  first after launch {} of {}: {}", differs - 1, launches.len(), launches[differs - 1]);
        Ok(true)
    }
}

fn program(path: &Path) -> Result<Arc<Program>> {
    let gguf = Gguf::open(path, true, &mut |_| Ok(()))?;
    let (metadata, key) = (gguf.metadata(), "general.architecture");
    let arch = Arch::find(metadata.required(key, metadata.text(key)?)?)?;
    let hparams = Hparams::read(metadata, &arch)?;
    Ok(Arc::new(build(&gguf, &arch, &hparams)?))
}

/// A line for every part that differs.
fn differences(eager: &[Contents], replay: &[Contents]) -> Vec<String> {
    let pairs = eager.iter().zip(replay).enumerate();
    let differing = pairs.filter(|(_, (a, b))| a.name != "serial" && a.bytes != b.bytes);
    let say = |(index, (a, b)): (usize, (&Contents, &Contents))| {
        let count = a.bytes.iter().zip(&b.bytes).filter(|(a, b)| a != b).count();
        let first = a.bytes.iter().zip(&b.bytes).position(|(a, b)| a != b).unwrap_or(0);
        format!("part {index}, {}: {count} of {} bytes, the first at {first}", a.name, a.bytes.len())
    };
    differing.map(say).collect()
}

fn scan(request: &Request) -> Result<bool> {
    let mut scan = Scan::new(request)?;
    scan.fill(request.from)?;
    for position in request.from..request.from + request.count {
        if scan.step(position)? {
            return Ok(true);
        }
    }
    let (from, count, parts) = (request.from, request.count, scan.eager.read()?.len());
    println!("{count} positions from {from} on, {parts} parts each, {} sequences: replay equals eager", request.seqs);
    Ok(false)
}

fn main() -> ExitCode {
    let Some(request) = request() else {
        eprintln!("usage: diverge MODEL.gguf [FROM] [COUNT] [SEQUENCES] [--without LAUNCH]");
        return ExitCode::from(2);
    };
    match scan(&request) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(Error::Unsupported(reason) | Error::NotFound(reason)) => {
            println!("skipped: {reason}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
