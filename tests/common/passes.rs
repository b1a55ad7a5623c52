//! Whole models for tests of GPUs: passes over their sequences on any device, and how far the logits may be from the precise mode's.

use super::distance::distance;
use super::gguf::{File, parsed};
use segno::arch::{Arch, Hparams};
use segno::backend::{Backend, Batch, Chooser, Hidden, KvType, Limits, Prepared, Row, Runner, Stage, cpu};
use segno::format::Gguf;
use segno::kv::layout::pages_of_window;
use segno::kv::state::{States, records};
use segno::kv::{Pages, Tables, WindowLimits, paging::Paging};
use segno::plan::{Program, build::build};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How far from the precise mode a model may be: relative distance of every row of logits, mean divergence, and the margin from which on
/// the highest token must be the same. Random weights amplify rounding, more so in more layers.
#[derive(Clone, Copy)]
pub struct Bar {
    pub distance: f64,
    pub divergence: f64,
    pub margin: f32,
}

pub const TRAINED: Bar = Bar { distance: 3e-2, divergence: 1e-3, margin: 0.2 };
pub const RANDOM_TWO_LAYERS: Bar = Bar { distance: 4e-2, divergence: 1e-3, margin: 0.5 };
pub const RANDOM: Bar = Bar { distance: 0.10, divergence: 1.5e-2, margin: 0.5 };

impl Bar {
    /// The same over a cache of such a type: one of 8 bits rounds once more what the rounding of activations has changed.
    pub fn over(self, kv_type: KvType) -> Bar {
        let factor = if kv_type == KvType::Q8 { 2.0 } else { 1.0 };
        Bar { distance: factor * self.distance, ..self }
    }
}

/// A model and what is asked of it.
pub struct Case {
    pub name: String,
    pub program: Arc<Program>,
    pub bar: Bar,
}

pub fn case(name: &str, gguf: &Gguf, trained: bool) -> Case {
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    let bar = match () {
        () if trained => TRAINED,
        () if hparams.layers <= 2 => RANDOM_TWO_LAYERS,
        () => RANDOM,
    };
    Case { name: name.into(), program: Arc::new(build(gguf, &arch, &hparams).unwrap()), bar }
}

pub fn file(path: &Path, trained: bool) -> Case {
    let name = path.file_name().unwrap().to_string_lossy();
    case(&name, &Gguf::open(path, true, &mut |_| Ok(())).unwrap(), trained)
}

/// Two layers of random weights.
pub fn random(name: &str, file: &File) -> Case {
    case(name, &parsed(&file.bytes()), false)
}

pub fn precise() -> cpu::Cpu {
    cpu::Cpu::new(&cpu::Options { threads: 0, precise: true, allow_avx512: true, gives_way: false }).unwrap()
}

/// A runner with page tables for all its slots.
pub struct Run {
    pub runner: Box<dyn Runner>,
    pub tables: Tables,
    pub tokens: Vec<u32>,
    /// The tables of layers that keep a window and a pass alone, where they do.
    windows: Option<Paging>,
    /// The records of states, in programs that have such.
    states: Option<States>,
}

/// Marks of a run.
const MARKS: usize = 6;

/// Limits of a run over caches of 16-bit floats.
pub fn limits(program: &Program, positions: usize, seqs: usize) -> Limits {
    Limits {
        rows: 512 + seqs,
        outputs: seqs,
        seqs,
        pages: seqs * positions.div_ceil(32),
        context: 4096,
        kv_type: KvType::F16,
        windows: None,
        records: if program.states.is_empty() { 0 } else { records(seqs, MARKS, false) },
        ranks: 0,
        hidden: Hidden::None,
        behind: 0,
    }
}

impl Run {
    /// For `seqs` sequences of `positions` each; tokens follow a fixed pattern.
    pub fn new(backend: &dyn Backend, program: &Arc<Program>, kv_type: KvType, positions: usize, seqs: usize) -> Run {
        Run::with_windows(backend, program, kv_type, positions, seqs, None)
    }

    /// The same, where the layers that see a window keep that and 512 more positions alone.
    pub fn with_windows(
        backend: &dyn Backend,
        program: &Arc<Program>,
        kv_type: KvType,
        positions: usize,
        seqs: usize,
        window: Option<usize>,
    ) -> Run {
        let windows = window.map(|window| WindowLimits { window, pages_each: pages_of_window(window, 512) });
        let limits = Limits { kv_type, windows, ..limits(program, positions, seqs) };
        Run::open(&*backend.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap(), program, &limits)
    }

    /// The same, where passes leave vectors of some rows beside logits.
    pub fn leaving(
        backend: &dyn Backend,
        program: &Arc<Program>,
        kv_type: KvType,
        positions: usize,
        seqs: usize,
        hidden: Hidden,
    ) -> Run {
        // A predictor has missed some tokens as a rule.
        let behind = if hidden == Hidden::Outputs { 8 } else { 0 };
        let limits = Limits { kv_type, hidden, behind, ..limits(program, positions, seqs) };
        Run::open(&*backend.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap(), program, &limits)
    }

    /// A runner of a program that is on its device, each of whose sequences has as many pages.
    pub fn open(prepared: &dyn Prepared, program: &Arc<Program>, limits: &Limits) -> Run {
        let Limits { seqs, windows, .. } = *limits;
        let each = limits.pages / seqs;
        let mut pages = Pages::new(limits.pages).unwrap();
        let mut tables = Tables::new(seqs, each).unwrap();
        (0..seqs).for_each(|slot| assert!(tables.grow(slot, each, &mut pages)));
        let runner = prepared.open(limits).unwrap();
        let tokens = (0..32 * each).map(|position| ((position * 7919 + 13) % program.vocab()) as u32).collect();
        let windows = windows.map(|windows| Paging::new(seqs, seqs * each, each, Some(windows)).unwrap());
        let states = (limits.records > 0).then(|| States::new(seqs, MARKS, false).unwrap());
        Run { runner, tables, tokens, windows, states }
    }

    /// Makes room for the rows of a pass where windows are kept; a sequence that begins anew gives up its pages.
    fn slide(&mut self, rows: &[Row]) {
        let Some(paging) = &mut self.windows else { return };
        for rows in rows.chunk_by(|a, b| a.slot == b.slot) {
            let (slot, start) = (rows[0].slot as usize, rows[0].position as usize);
            if start == 0 {
                paging.shrink(slot, 0);
            }
            paging.grow(slot, start + rows.len()).unwrap();
            paging.slide(slot, start, start + rows.len());
        }
    }

    /// Chooses the records of a pass; a sequence that begins further back goes back to a state that was kept there.
    fn plan_states(&mut self, rows: &[Row]) {
        let Some(states) = &mut self.states else { return };
        for rows in rows.chunk_by(|a, b| a.slot == b.slot) {
            let (slot, start) = (rows[0].slot as usize, rows[0].position as usize);
            assert_eq!(states.cut(slot, start), start, "there is no state to go back to");
            states.plan(slot, rows.len(), true);
        }
    }

    fn commit_states(&mut self, rows: &[Row]) {
        let Some(states) = &mut self.states else { return };
        rows.chunk_by(|a, b| a.slot == b.slot).for_each(|rows| {
            states.commit(rows[0].slot as usize, rows[rows.len() - 1].position as usize + 1);
        });
    }

    pub fn pass(&mut self, rows: &[Row], outputs: &[u32], chooser: Chooser) -> Vec<Vec<f32>> {
        self.slide(rows);
        self.plan_states(rows);
        let moves = self.states.as_ref().map_or(&[][..], |states| states.moves());
        let tables = self.windows.as_ref().map_or(&self.tables, Paging::tables);
        let window_tables = self.windows.as_ref().and_then(Paging::window_tables);
        let batch = Batch { rows, outputs, chooser, tables, window_tables, moves };
        self.runner.run(&batch, &AtomicBool::new(false)).unwrap();
        self.commit_states(rows);
        if chooser == Chooser::Device {
            return Vec::new();
        }
        (0..outputs.len()).map(|index| self.runner.logits(index).to_vec()).collect()
    }

    /// The vectors of some rows of a pass over whole texts, or over parts that go on with what is in the cache.
    pub fn embed(&mut self, rows: &[Row], outputs: &[u32], stage: Stage) -> Vec<Vec<f32>> {
        self.slide(rows);
        self.plan_states(rows);
        let moves = self.states.as_ref().map_or(&[][..], |states| states.moves());
        let tables = self.windows.as_ref().map_or(&self.tables, Paging::tables);
        let window_tables = self.windows.as_ref().and_then(Paging::window_tables);
        let batch = Batch { rows, outputs, chooser: Chooser::Host, tables, window_tables, moves };
        let mut vectors = Vec::new();
        let mut give = |output: usize, vector: &[f32]| {
            assert_eq!(output, vectors.len(), "vectors come in order");
            vectors.push(vector.to_vec());
        };
        self.runner.embed(&batch, stage, &AtomicBool::new(false), &mut give).unwrap();
        assert_eq!(vectors.len(), outputs.len());
        self.commit_states(rows);
        vectors
    }

    /// Logits of some positions, a step each, `seqs` equal sequences at once; those of the last sequence.
    pub fn steps(&mut self, positions: std::ops::Range<usize>, seqs: usize) -> Vec<Vec<f32>> {
        let step = |position: usize| {
            let row = |slot| Row { token: self.tokens[position], position: position as u32, slot: slot as u32 };
            let rows: Vec<Row> = (0..seqs).map(row).collect();
            let outputs: Vec<u32> = (0..seqs as u32).collect();
            self.pass(&rows, &outputs, Chooser::Host).pop().unwrap()
        };
        positions.map(step).collect()
    }

    /// Logits of the last of `count` positions of a slot, evaluated in chunks.
    pub fn chunks(&mut self, slot: u32, count: usize, chunk: usize) -> Vec<f32> {
        let mut last = Vec::new();
        for start in (0..count).step_by(chunk) {
            let end = count.min(start + chunk);
            let rows: Vec<Row> =
                (start..end).map(|p| Row { token: self.tokens[p], position: p as u32, slot }).collect();
            last = self.pass(&rows, &[(end - start - 1) as u32], Chooser::Host).pop().unwrap();
        }
        last
    }

    /// One pass over stretches of several slots; the logits of the last position of each.
    pub fn stretches(&mut self, stretches: &[(u32, std::ops::Range<usize>)]) -> Vec<Vec<f32>> {
        let (mut rows, mut outputs) = (Vec::new(), Vec::new());
        for (slot, positions) in stretches {
            let row = |p: usize| Row { token: self.tokens[p], position: p as u32, slot: *slot };
            rows.extend(positions.clone().map(row));
            outputs.push(rows.len() as u32 - 1);
        }
        self.pass(&rows, &outputs, Chooser::Host)
    }

    /// Takes for tokens what the model itself finds likeliest, and returns the logits of every position.
    pub fn own_text(&mut self) -> Vec<Vec<f32>> {
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for position in 0..self.tokens.len() {
            let best = rows.last().map(|row| segno::sample::filters::greedy(row).unwrap() as u32);
            self.tokens[position] = best.unwrap_or(1);
            rows.extend(self.steps(position..position + 1, 1));
        }
        rows
    }
}

pub fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|v| v.to_bits()).collect()).collect()
}

pub fn assert_near(case: &Case, how: &str, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    let rows: Vec<_> = found.iter().zip(expected).map(|(a, b)| distance(a, b)).collect();
    let worst = rows.iter().map(|row| row.relative_l2).fold(0.0, f64::max);
    let divergence = rows.iter().map(|row| row.divergence).sum::<f64>() / rows.len() as f64;
    let lost = rows.iter().filter_map(|row| row.lost_margin).fold(0.0, f32::max);
    println!("{} {how}: distance {worst:.2e}, divergence {divergence:.2e}, lost margin {lost:.3}", case.name);
    let Bar { distance, divergence: most, margin } = case.bar;
    assert!(worst <= distance && divergence <= most && lost <= margin, "{} {how}", case.name);
}
