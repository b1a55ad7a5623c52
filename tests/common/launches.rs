//! The launches of a program without a GPU: lowered with addresses that stand for the device's. And which of the small models of all families
//! the CUDA backend runs.

use segno::arch::{Arch, Hparams};
use segno::backend::KvType;
use segno::backend::cuda::args::{Matrix, StepArgs};
use segno::backend::cuda::catalogue::DeviceType;
use segno::backend::cuda::lower::adapters::AdapterPlaces;
use segno::backend::cuda::lower::lists::Lists;
use segno::backend::cuda::lower::{Addresses, FormPlace, LayerCache, lower, lower_drafts, supported};
use segno::backend::cuda::select::Device;
use segno::error::Result;
use segno::format::Gguf;
use segno::plan::memory::{Placement, place};
use segno::plan::{Program, build::build, program::Weight};
use std::path::PathBuf;

/// The small models of all families with their programs, and whether the CUDA backend runs them.
pub fn goldens() -> Vec<(PathBuf, Program, Result<()>)> {
    let folder = std::fs::read_dir(super::root().join("tests/golden/hf")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = folder.filter(|path| path.extension().is_some_and(|ext| ext == "gguf")).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let program = program(&Gguf::open(&path, true, &mut |_| Ok(())).unwrap());
        let runs = supported::check(&program);
        (path, program, runs)
    };
    paths.into_iter().map(read).collect()
}

/// Those that it runs.
pub fn cuda_goldens() -> impl Iterator<Item = PathBuf> {
    goldens().into_iter().filter(|(_, _, runs)| runs.is_ok()).map(|(path, ..)| path)
}

/// The program of a model.
pub fn program(gguf: &Gguf) -> Program {
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    build(gguf, &arch, &hparams).unwrap()
}

/// What a session was opened for, as far as launches show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Exact products over a cache of 16-bit floats.
    Exact,
    /// With fast batches.
    Fast,
    /// Over a cache of f32.
    F32Cache,
    /// Over a cache of 8 bits.
    Q8Cache,
}

impl Sort {
    /// Exact products over such a cache.
    pub fn over(kv_type: KvType) -> Sort {
        match kv_type {
            KvType::F16 => Sort::Exact,
            KvType::F32 => Sort::F32Cache,
            KvType::Q8 => Sort::Q8Cache,
        }
    }
}

/// The lists of a program.
pub fn lists(program: &Program) -> Lists {
    lists_of(program, Sort::Exact)
}

/// The lists of a program, with fast batches.
pub fn fast_lists(program: &Program) -> Lists {
    lists_of(program, Sort::Fast)
}

/// The lists of a program in such a session.
pub fn lists_of(program: &Program, sort: Sort) -> Lists {
    adapted_lists(program, sort, Vec::new())
}

/// The same where adapters change the matrices for which `changed` says so.
pub fn adapted_lists(program: &Program, sort: Sort, changed: Vec<bool>) -> Lists {
    made_lists(program, sort, changed, 0)
}

/// Where vectors that rows bring along are, and those that passes leave.
pub const GIVEN: u64 = 1 << 54;
pub const HIDDEN: u64 = 1 << 55;

/// The lists of a program whose passes leave what the last norm gives of all rows.
pub fn leaving_lists(program: &Program, sort: Sort) -> Lists {
    made_lists(program, sort, Vec::new(), HIDDEN)
}

/// The lists of a program for steps whose rows may follow each other.
pub fn drafted_lists(program: &Program, sort: Sort) -> Lists {
    let (placement, addresses) = places(program, sort, Vec::new(), 0);
    lower_drafts(program, &placement, &addresses).unwrap()
}

fn made_lists(program: &Program, sort: Sort, changed: Vec<bool>, hidden: u64) -> Lists {
    let (placement, addresses) = places(program, sort, changed, hidden);
    lower(program, &placement, &addresses).unwrap()
}

fn places(program: &Program, sort: Sort, changed: Vec<bool>, hidden: u64) -> (Placement, Addresses) {
    let placement = place(program).unwrap();
    let numbers = |count: usize, from: u64| (0..count as u64).map(|index| from + 256 * index).collect::<Vec<u64>>();
    let matrix = |weight: &Weight| {
        let dtype = DeviceType::of(weight.dtype);
        Matrix {
            data: 1 << 40,
            row_bytes: dtype.row_bytes(weight.cols) as u32,
            slice_bytes: dtype.slice_bytes() as u32,
            dtype,
            rows: weight.rows as u32,
            cols: weight.cols as u32,
            ..Matrix::default()
        }
    };
    let addresses = Addresses {
        buffers: numbers(placement.buffers.len(), 1 << 32),
        matrices: program.matrices.iter().map(matrix).collect(),
        vectors: numbers(program.vectors.len(), 1 << 36),
        step: StepArgs { outputs: 1 << 53, best: 1 << 44, most_stretches: 64, ..StepArgs::default() },
        state_starts: numbers(program.states.len(), 0),
        forms: (0..8)
            .map(|place| FormPlace {
                q: place + (1 << 45),
                meta: place + (1 << 46),
                f16: if sort == Sort::Fast { place + (1 << 49) } else { 0 },
            })
            .collect(),
        factors: 1 << 43,
        told: 1 << 48,
        given: GIVEN,
        hidden,
        adapters: AdapterPlaces { changed, entries: 1 << 51, sums: 1 << 52, ranks: 24 },
        layers: vec![LayerCache::default(); program.kv.count()],
        kv_type: match sort {
            Sort::Exact | Sort::Fast => KvType::F16,
            Sort::F32Cache => KvType::F32,
            Sort::Q8Cache => KvType::Q8,
        },
        device: Device { sms: 132, most_shared: 227 << 10, bulk_copies: true },
        ..Addresses::default()
    };
    (placement, addresses)
}
