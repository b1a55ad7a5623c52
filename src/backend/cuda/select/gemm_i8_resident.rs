//! The kernel of `gemm_i8_resident.cu`, which keeps the activations of up to eight rows in shared memory: when they fit, and its sizes.

use super::super::args::TensorArgs;
use super::super::catalogue::Kernel;
use super::{Choice, Device};

/// Most rows of activations.
pub(super) const MOST_ROWS: u32 = 8;
/// Columns from which on it is quicker than tiles that all blocks bring activations for, and what they are a multiple of.
const LEAST_COLUMNS: u32 = 4096;
pub(super) const COLUMNS: u32 = 128;
/// Weight rows of a tile, and outputs of a gated unit.
pub(super) const TILE: u32 = 16;
const GATED: u32 = 32;
/// Teams of a block, each of eight warps and one that copies.
const TEAMS: u32 = 2;
const THREADS: u32 = TEAMS * 9 * 32;
/// Most slices of a stage, stages that are enough, and most stages.
const MOST_SLICES: u32 = 4;
const ENOUGH_STAGES: u32 = 2;
const MOST_STAGES: u32 = 8;
/// Shared memory that a block has whatever it is given.
const OWN: u32 = 13 << 10;
/// Bytes beyond a row of activations, which keep banks apart.
const PAD: u32 = 16;

/// The kernel, if it takes these products.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Option<Choice> {
    let shared = shared_bytes(args, rows, device)?;
    let units = match args.is_gated() {
        false => tiles(args),
        true => args.segments[0].matrix.rows / GATED,
    };
    Some(Choice::of_products(Kernel::GemmI8Resident.only(), units.min(device.sms), THREADS, shared))
}

/// Tiles of products whose matrices stand one behind the other.
pub(super) fn tiles(args: &TensorArgs) -> u32 {
    args.segments().iter().map(|segment| segment.matrix.rows.div_ceil(TILE)).sum()
}

/// Shared memory of the activations of a tile.
pub(super) fn activation_bytes(args: &TensorArgs, rows: u32) -> u32 {
    let row = args.cols.next_multiple_of(128) + PAD + (args.cols / 4).next_multiple_of(128) + PAD;
    (rows * row).next_multiple_of(128)
}

/// Shared memory of a block: the activations, and two rings of as many stages as fit.
fn shared_bytes(args: &TensorArgs, rows: u32, device: &Device) -> Option<u32> {
    let fits = rows <= MOST_ROWS && args.cols >= LEAST_COLUMNS && args.cols.is_multiple_of(COLUMNS);
    if !fits || !device.bulk_copies {
        return None;
    }
    let activations = activation_bytes(args, rows);
    let room = device.most_shared.checked_sub(OWN + activations)?;
    let most = args.segments().iter().map(|segment| segment.matrix.slice_bytes).max()?;
    let rings = |slices: u32| {
        let stage = TEAMS * TILE * ((slices * most / 16) | 1) * 16;
        (stage, (room / stage).min(MOST_STAGES))
    };
    let (stage, stages) =
        (1..=MOST_SLICES).rev().map(rings).find(|&(_, stages)| stages >= ENOUGH_STAGES).unwrap_or(rings(1));
    (stages >= 2).then_some(activations + stage * stages)
}
