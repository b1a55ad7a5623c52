//! Attention of steps: which kernel takes the splits of a shape's positions, and when its blocks get an SM each.

use super::super::args::{AttentionArgs, Shape};
use super::super::catalogue::{Function, Kernel};
use super::super::launch::Launch;
use super::Choice;

/// Sizes of heads that have matrix instructions and staged pages; all others take the plain kernel.
pub fn is_staged(head_dim: usize) -> bool {
    of_heads(Kernel::AttentionDecode, head_dim).is_some()
}

/// The kernel of a family for heads of so many elements.
pub fn of_heads(kernel: Kernel, head_dim: usize) -> Option<Function> {
    kernel.of_numbers(&[head_dim as u32])
}

/// Splits of the positions, as in the kernels: short ones first, then long ones.
const SHORT_SPLIT: usize = 256;
const SHORT_SPLITS: usize = 8;
const LONG_SPLIT: usize = 512;

/// Splits of attention over so many keys.
pub fn splits(keys: usize) -> usize {
    let short = keys.min(SHORT_SPLITS * SHORT_SPLIT);
    short.div_ceil(SHORT_SPLIT) + (keys - short).div_ceil(LONG_SPLIT)
}

/// What becomes of a launch of attention: where each of a row's splits has a block, and all of them are short, a kernel that takes a split at once,
/// or one for rows with a single split. Where blocks of those are few, they ask for so much shared memory that each gets an SM: in batches for half
/// as many, since the next kernel then starts early on SMs that pairs of blocks leave alone.
pub fn choose(launch: &Launch, args: &AttentionArgs, shape: &Shape) -> Choice {
    let plain = launch.plain_choice(shape);
    let (any, of_plain_heads, most_spread) = match launch.function.kernel {
        Kernel::AttentionDecode => (Kernel::AttentionDecodeSplit, Kernel::AttentionDecodeSplitPlain, launch.device.sms),
        Kernel::AttentionDecodeBatch => {
            (Kernel::AttentionDecodeSplitBatch, Kernel::AttentionDecodeSplitBatchPlain, launch.device.sms / 2)
        }
        _ => return plain,
    };
    if shape.splits as usize > SHORT_SPLITS || plain.blocks[0] != shape.splits {
        return plain;
    }
    let is_spread = |blocks: [u32; 3]| launch.spread_bytes != 0 && blocks.iter().product::<u32>() <= most_spread;
    let choice = |function: Function, blocks: [u32; 3]| {
        let shared_bytes = if is_spread(blocks) { launch.spread_bytes } else { launch.shared_bytes };
        Choice { function, blocks, shared_bytes, ..plain }
    };
    if any == Kernel::AttentionDecodeSplit {
        let cluster = || cluster(args, plain.blocks, launch.device.sms);
        if let Some((function, blocks)) = single_split(args, plain.blocks).or_else(cluster) {
            return choice(function, blocks);
        }
    }
    let of_plain_heads = || of_heads(of_plain_heads, args.heads.head_dim as usize).filter(|_| has_plain_heads(args));
    let function = of_plain_heads().unwrap_or(Function { kernel: any, ..launch.function });
    choice(function, plain.blocks)
}

/// Whether rows bring their keys and values, follow none, have no sinks, and see so many positions at least.
fn sees(args: &AttentionArgs, positions: usize) -> bool {
    args.window >= positions as u32 && args.follows == 0 && args.heads.k != 0 && args.sinks == 0
}

fn has_norms(args: &AttentionArgs) -> bool {
    [args.heads.q_norm, args.heads.k_norm, args.heads.v_norm] != [0; 3]
}

/// Whether kernels of short splits need no code for norms, sinks and windows.
fn has_plain_heads(args: &AttentionArgs) -> bool {
    sees(args, SHORT_SPLITS * SHORT_SPLIT) && !has_norms(args)
}

/// The kernel for rows of one split, where the result is for products, and a block has all heads of a key-value head: with norms and floats only
/// where there are some.
fn single_split(args: &AttentionArgs, blocks: [u32; 3]) -> Option<(Function, [u32; 3])> {
    let is_whole = sees(args, SHORT_SPLIT) && args.out.q != 0 && blocks[0] == 1 && blocks[1] == args.heads.kv_heads;
    let is_plain = !has_norms(args) && args.floats == 0;
    let kernel = || Kernel::AttentionSingleSplit.of_numbers(&[args.heads.head_dim, is_plain.into()]);
    is_whole.then(kernel).flatten().map(|function| (function, blocks))
}

/// The kernel for several splits of a row that are a cluster, which always has as many blocks, where all clusters have an SM for each of them.
fn cluster(args: &AttentionArgs, blocks: [u32; 3], sms: u32) -> Option<(Function, [u32; 3])> {
    let all = [SHORT_SPLITS as u32, blocks[1], blocks[2]];
    let fits = blocks[0] > 1 && all.iter().product::<u32>() <= sms;
    let of_heads = |kernel: Kernel| of_heads(kernel, args.heads.head_dim as usize);
    let plain = || of_heads(Kernel::AttentionDecodeClusterPlain).filter(|_| has_plain_heads(args));
    let function = || plain().or_else(|| of_heads(Kernel::AttentionDecodeCluster));
    fits.then(function).flatten().map(|function| (function, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_begin_short_and_end_long() {
        let counts = [1, 256, 257, 2048, 2049, 2560, 2561, 16_384, 65_536].map(splits);
        assert_eq!(counts, [1, 1, 2, 8, 9, 9, 10, 36, 132]);
    }
}
