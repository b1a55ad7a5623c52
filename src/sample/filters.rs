//! The filters that decide which tokens may be drawn: top_k, typical_p, top_p and min_p.
//!
//! Each works on the softmax of the candidates that the one before has left, and leaves at least one. The order of the
//! candidates carries no meaning; ties always go to the lowest token.
//!
//! Probabilities are integers here: a candidate weighs e^(logit - highest logit) in units of 2^-40, rounded to nearest. Sums
//! of integers come out the same in any order, so a vectorised or parallel implementation needs no fixed order of sums to
//! agree with this one, and no probability is ever divided out.

use crate::elementary;

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its logit after bias and penalties: finite, and never minus zero.
    pub logit: f32,
    /// The token.
    pub id: i32,
}

/// Logits looked at together: a whole tile without a candidate costs one comparison a logit, vectorised.
const TILE: usize = 64;
const LANES: usize = 16;

/// Number of bins that [`top_p`] and [`typical_p`] work best with.
pub const BINS: usize = 2048;

/// Up to so many candidates are sorted at once.
const FEW: usize = 256;

/// Candidates farther than this from the best share the last bin; their weights are zero or close to it.
const BIN_RANGE: f64 = 64.0;

/// Weight of the highest logit, in units.
const WEIGHT_ONE: f64 = (1u64 << 40) as f64;

/// The most candidates whose weights have a sum below 2^63.
pub const MAX_CANDIDATES: usize = 1 << 23;

/// Adding it leaves a non-negative number rounded to an integer (ties to even) in the significand's bits.
const TO_INTEGER: f64 = (1u64 << 52) as f64;

impl Candidate {
    /// Ascends from the highest logit to the lowest, and among equal ones from the lowest token.
    fn order(&self) -> u64 {
        let bits = self.logit.to_bits();
        let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        u64::from(!ascending) << 32 | u64::from(self.id as u32)
    }

    /// Logit minus the highest one.
    fn below(&self, top: f32) -> f64 {
        f64::from(self.logit) - f64::from(top)
    }
}

/// Fills `kept` with the `top_k` highest logits (all for 0). NaN and minus infinity are no candidates. Where plus infinity
/// occurs, only its tokens are, all equally likely. `kept` needs room for every logit and is not grown.
pub fn top_k(logits: &[f32], top_k: usize, kept: &mut Vec<Candidate>) {
    kept.clear();
    let most = if top_k == 0 { logits.len() } else { top_k.min(logits.len()) };
    let room = most.saturating_mul(2).max(2 * TILE).min(logits.len());
    let mut floor = f32::NEG_INFINITY;
    for (tile_index, tile) in logits.chunks(TILE).enumerate() {
        if highest(tile) <= floor {
            continue;
        }
        for (offset, &logit) in tile.iter().enumerate() {
            // Ids ascend, so a later token as high as the floor loses the tie.
            if logit > floor {
                if kept.len() == room {
                    floor = cut(kept, most);
                }
                // Adding zero turns minus zero into zero.
                kept.push(Candidate { logit: logit + 0.0, id: (tile_index * TILE + offset) as i32 });
            }
        }
    }
    if kept.len() > most {
        cut(kept, most);
    }
    if top(kept) == f32::INFINITY {
        kept.retain(|candidate| candidate.logit == f32::INFINITY);
        kept.iter_mut().for_each(|candidate| candidate.logit = 0.0);
    }
}

/// The lowest of the tokens with the highest logit; none when every logit is NaN or minus infinity.
pub fn greedy(logits: &[f32]) -> Option<i32> {
    let mut best = (f32::NEG_INFINITY, 0);
    for (index, tile) in logits.chunks(TILE).enumerate() {
        let tile_best = highest(tile);
        if tile_best > best.0 {
            best = (tile_best, index);
        }
    }
    let start = best.1 * TILE;
    let offset = logits.get(start..)?.iter().position(|&logit| logit == best.0 && logit > f32::NEG_INFINITY)?;
    Some((start + offset) as i32)
}

/// Locally typical sampling (Meister, Pimentel, Wiher and Cotterell 2023): keeps the candidates whose surprisal is nearest to
/// the entropy, nearest first, until their probabilities reach `typical_p`. `bins` is scratch of any length but 0.
///
/// With x = logit - highest logit, surprisal minus entropy is the mean of x minus x, so neither needs a logarithm.
pub fn typical_p(candidates: &mut Vec<Candidate>, typical_p: f32, bins: &mut [u64]) {
    let top = top(candidates);
    let (mut weights, mut moments) = (0, 0);
    for candidate in candidates.iter() {
        let x = candidate.below(top);
        let probability = elementary::exp(x);
        weights += units(probability);
        moments += units(probability * -x);
    }
    let mean = -(moments as f64 / weights as f64);
    keep_mass(candidates, typical_p, |x| (mean - x).abs(), bins);
}

/// Nucleus sampling (Holtzman, Buys, Du, Forbes and Choi 2020): keeps the most likely candidates until their probabilities
/// reach `top_p`. `bins` is scratch of any length but 0.
pub fn top_p(candidates: &mut Vec<Candidate>, top_p: f32, bins: &mut [u64]) {
    keep_mass(candidates, top_p, |x| -x, bins);
}

/// Keeps the candidates at least `min_p` times as likely as the likeliest: those with logit - highest logit >= ln `min_p`.
pub fn min_p(candidates: &mut Vec<Candidate>, min_p: f32) {
    let top = top(candidates);
    let least = elementary::ln(f64::from(min_p));
    candidates.retain(|candidate| candidate.below(top) >= least);
}

/// Whether [`top_p`] keeps `token`, one of `candidates`, of these alone.
pub fn is_within(candidates: &[Candidate], token: i32, top_p: f32) -> bool {
    let top = top(candidates);
    let place = |candidate: &Candidate| (-candidate.below(top), candidate.id);
    let weight = |candidate: &Candidate| units(elementary::exp(candidate.below(top)));
    let Some(own) = candidates.iter().find(|candidate| candidate.id == token).map(place) else { return false };
    let before = candidates.iter().filter(|candidate| place(candidate) < own).map(weight).sum::<u64>();
    before < target(candidates.iter().map(weight).sum(), top_p)
}

/// Keeps the candidates of lowest rank until their probabilities reach `share`. `rank` of x = logit - highest logit is not
/// negative; ties go to the lowest token.
///
/// Sorting a whole vocabulary would cost more than all the rest of a step's sampling: the mass is collected in bins of
/// ascending rank, the bins below the one in which the share is reached stay as they are, and only that one is sorted.
fn keep_mass(candidates: &mut Vec<Candidate>, share: f32, rank: impl Fn(f64) -> f64, bins: &mut [u64]) {
    let top = top(candidates);
    // Adding zero turns minus zero into zero; the bits of what is left ascend as the ranks do.
    let rank = |candidate: &Candidate| rank(candidate.below(top)) + 0.0;
    let weight = |candidate: &Candidate| units(elementary::exp(candidate.below(top)));
    let (sure, edge, mut missing) = if candidates.len() <= FEW {
        (0, candidates.len(), target(candidates.iter().map(weight).sum(), share))
    } else {
        split(candidates, share, rank, weight, bins)
    };
    let edge = &mut candidates[sure..sure + edge];
    edge.sort_unstable_by_key(|candidate| (rank(candidate).to_bits(), candidate.id));
    let mut kept = sure;
    for candidate in edge.iter() {
        kept += 1;
        missing = missing.saturating_sub(weight(candidate));
        if missing == 0 {
            break;
        }
    }
    candidates.truncate(kept);
}

/// Moves the candidates of the bins that are kept whole to the front, and those of the bin in which `share` is reached behind
/// them. Returns how many of each there are, and the mass still missing after the whole bins.
fn split(
    candidates: &mut [Candidate],
    share: f32,
    rank: impl Fn(&Candidate) -> f64,
    weight: impl Fn(&Candidate) -> u64,
    bins: &mut [u64],
) -> (usize, usize, u64) {
    let highest = candidates.iter().map(&rank).fold(f64::MIN_POSITIVE, f64::max);
    // Rounded or not, the product ascends with the rank, so that a bin never holds what belongs before an earlier one.
    let last = bins.len() - 1;
    let scale = bins.len() as f64 / highest.min(BIN_RANGE);
    let bin = |candidate: &Candidate| ((rank(candidate) * scale) as usize).min(last);
    bins.fill(0);
    for tile in candidates.chunks(TILE) {
        // Weighed apart from the bins, whose scattered sums cannot be vectorised.
        let mut weights = [0; TILE];
        weights.iter_mut().zip(tile).for_each(|(slot, candidate)| *slot = weight(candidate));
        tile.iter().zip(weights).for_each(|(candidate, weight)| bins[bin(candidate)] += weight);
    }
    let mut missing = target(bins.iter().sum(), share);
    let mut crossing = 0;
    while bins[crossing] < missing {
        missing -= bins[crossing];
        crossing += 1;
    }
    let sure = gather(candidates, |candidate| bin(candidate) < crossing);
    let edge = gather(&mut candidates[sure..], |candidate| bin(candidate) == crossing);
    (sure, edge, missing)
}

/// Moves the candidates that pass to the front and counts them.
fn gather(candidates: &mut [Candidate], passes: impl Fn(&Candidate) -> bool) -> usize {
    let mut count = 0;
    for index in 0..candidates.len() {
        if passes(&candidates[index]) {
            candidates.swap(count, index);
            count += 1;
        }
    }
    count
}

/// The mass that reaches `share` of the total: at least 1, at most the total.
fn target(total: u64, share: f32) -> u64 {
    ((f64::from(share) * total as f64).ceil() as u64).clamp(1, total)
}

/// A non-negative number of at most 1 in units of weight.
fn units(value: f64) -> u64 {
    (value * WEIGHT_ONE + TO_INTEGER).to_bits() - TO_INTEGER.to_bits()
}

/// Cuts to the `most` best candidates; the logit of the last of them.
fn cut(candidates: &mut Vec<Candidate>, most: usize) -> f32 {
    candidates.select_nth_unstable_by_key(most - 1, Candidate::order);
    candidates.truncate(most);
    candidates[most - 1].logit
}

fn top(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
}

/// The highest number of a tile; NaN is passed over, minus infinity stands for none.
fn highest(tile: &[f32]) -> f32 {
    // The comparison that is false for NaN is one instruction a vector; `f32::max` is four.
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let (lanes, rest) = tile.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    for lane in lanes {
        for (best, &logit) in best.iter_mut().zip(lane) {
            *best = higher(*best, logit);
        }
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &logit| higher(best, logit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(logits: impl IntoIterator<Item = f32>) -> Vec<Candidate> {
        logits.into_iter().enumerate().map(|(id, logit)| Candidate { logit, id: id as i32 }).collect()
    }

    fn ids(candidates: &[Candidate]) -> Vec<i32> {
        let mut ids: Vec<i32> = candidates.iter().map(|candidate| candidate.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Numbers in -1 to 1 without order.
    fn noise(count: usize) -> impl Iterator<Item = f32> {
        (0..count as u32)
            .map(|index| (index.wrapping_mul(2_654_435_769) ^ 0x5bd1).wrapping_mul(0x85eb_ca6b) as i32 as f32 / 2e9)
    }

    /// What [`keep_mass`] keeps, by sorting everything.
    fn kept_by_sorting(all: &[Candidate], share: f32, rank: impl Fn(f64) -> f64) -> Vec<i32> {
        let top = top(all);
        let mut all: Vec<(f64, i32, u64)> =
            all.iter().map(|c| (rank(c.below(top)), c.id, units(elementary::exp(c.below(top))))).collect();
        all.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap().then(a.1.cmp(&b.1)));
        let mut missing = target(all.iter().map(|entry| entry.2).sum(), share);
        let mut kept = Vec::new();
        for (_, id, weight) in all {
            kept.push(id);
            missing = missing.saturating_sub(weight);
            if missing == 0 {
                break;
            }
        }
        kept.sort_unstable();
        kept
    }

    #[test]
    fn bins_keep_what_sorting_keeps() {
        let shapes: [fn(f32) -> f32; 7] = [
            |x| x * 4.0,
            |x| x * 0.001,
            |_| 2.5,
            |x| (x * 8.0).round(),
            |x| if x > 0.9999 { 90.0 } else { x },
            |x| x * 3e38,
            |x| x.powi(5) * 40.0,
        ];
        for shape in shapes {
            for count in [FEW, FEW + 1, 4_000, 30_000] {
                let all = candidates(noise(count).map(shape));
                for share in [1e-9, 0.3, 0.95, 0.999_99, 1.0 - f32::EPSILON / 2.0] {
                    assert_bins_agree(&all, share, |x| -x);
                    assert_bins_agree(&all, share, |x| (-1.5 - x).abs());
                }
            }
        }
    }

    fn assert_bins_agree(all: &[Candidate], share: f32, rank: fn(f64) -> f64) {
        let expected = kept_by_sorting(all, share, rank);
        for bin_count in [1, 37, BINS] {
            let mut kept = all.to_vec();
            keep_mass(&mut kept, share, rank, &mut vec![7; bin_count]);
            assert!(ids(&kept) == expected, "{bin_count} bins, {} candidates, share {share}", all.len());
        }
    }

    #[test]
    fn top_k_keeps_what_sorting_keeps() {
        for levels in [1e6, 12.0] {
            let logits: Vec<f32> = noise(10_000).map(|x| (x * levels).round() + 0.0).collect();
            let mut sorted = candidates(logits.iter().copied());
            sorted.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
            let mut kept = Vec::with_capacity(logits.len());
            for k in [1, 2, 40, 63, 64, 65, 1_000, 4_999, 5_000, 9_999, 10_000, 20_000, usize::MAX] {
                top_k(&logits, k, &mut kept);
                assert!(ids(&kept) == ids(&sorted[..k.min(logits.len())]), "top {k}");
            }
            top_k(&logits, 0, &mut kept);
            assert_eq!(kept, candidates(logits.iter().copied()));
            assert_eq!(kept.capacity(), logits.len());
        }
    }

    #[test]
    fn top_k_of_rising_logits_keeps_the_last() {
        let rising: Vec<f32> = (0..3_000).map(|id| id as f32).collect();
        let mut kept = Vec::with_capacity(rising.len());
        top_k(&rising, 3, &mut kept);
        assert_eq!(ids(&kept), [2_997, 2_998, 2_999]);
    }

    #[test]
    fn ties_go_to_the_lowest_ids_in_every_filter() {
        let mut kept = Vec::with_capacity(1_000);
        top_k(&[1.5; 1_000], 3, &mut kept);
        assert_eq!(ids(&kept), [0, 1, 2]);
        let mut bins = vec![0; BINS];
        let mut kept = candidates([-0.5; 1_000]);
        top_p(&mut kept, 0.0025, &mut bins);
        assert_eq!(ids(&kept), [0, 1, 2]);
        let mut kept = candidates([0.0; 10]);
        typical_p(&mut kept, 0.25, &mut bins);
        assert_eq!(ids(&kept), [0, 1, 2]);
        assert_eq!(greedy(&[1.0, 3.0, -0.0, 3.0]), Some(1));
        assert_eq!(greedy(&[-0.0, 0.0]), Some(0));
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        let mut kept = Vec::with_capacity(3);
        top_k(&[-0.0, 0.0, -0.0], 2, &mut kept);
        assert_eq!(ids(&kept), [0, 1]);
        assert!(kept.iter().all(|candidate| candidate.logit.is_sign_positive()));
    }

    #[test]
    fn a_share_of_the_mass_is_rounded_up() {
        let targets =
            [(10, 0.25), (10, 0.5), (10, 1e-9), (1 << 62, 1.0 - f32::EPSILON / 2.0)].map(|(t, s)| target(t, s));
        assert_eq!(targets, [3, 5, 1, (1 << 62) - (1 << 38)]);
    }

    #[test]
    fn min_p_of_one_keeps_the_equals_of_the_highest() {
        let mut kept = candidates([2.0, 5.0, 4.9999, 5.0]);
        min_p(&mut kept, 1.0);
        assert_eq!(ids(&kept), [1, 3]);
    }

    #[test]
    fn typical_p_may_leave_the_likeliest_out() {
        // 0.4 once and 0.01 sixty times: the surprisal of the many is nearer to the entropy.
        let mut kept = candidates(std::iter::once(0.4f32.ln()).chain([0.01f32.ln(); 60]));
        typical_p(&mut kept, 0.195, &mut vec![0; BINS]);
        assert_eq!(ids(&kept), (1..=20).collect::<Vec<i32>>());
    }

    #[test]
    fn a_share_that_whole_bins_reach_takes_nothing_further() {
        let logits: Vec<f32> = (0..700).map(|id| if id % 2 == 0 { 1.0 } else { -200.0 }).collect();
        let mut kept = Vec::with_capacity(logits.len());
        top_k(&logits, 0, &mut kept);
        top_p(&mut kept, 1.0, &mut [0; BINS]);
        assert!(kept.len() == 350 && kept.iter().all(|candidate| candidate.id % 2 == 0), "{}", kept.len());
    }

    #[test]
    fn greedy_takes_the_first_of_equals_in_any_tile() {
        for (first, second) in [(3, 4), (3, 70), (63, 64), (0, 299), (130, 256)] {
            let mut logits = vec![-1.0; 300];
            (logits[first], logits[second]) = (2.5, 2.5);
            assert_eq!(greedy(&logits), Some(first as i32), "{first} and {second}");
        }
    }

    #[test]
    fn greedy_passes_over_what_cannot_be_drawn() {
        let (nan, low, high) = (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
        assert_eq!(greedy(&[nan, low, -3e38, nan]), Some(2));
        assert_eq!(greedy(&[nan, 1.0, high, high]), Some(2));
        assert_eq!(greedy(&[nan, low]), None);
        assert_eq!(greedy(&[low; 200]), None);
        assert_eq!(greedy(&[]), None);
    }

    #[test]
    fn greedy_finds_the_highest_anywhere() {
        for length in [1, 15, 16, 17, 63, 64, 65, 1_000] {
            for at in 0..length {
                let mut logits = vec![-1.0; length];
                logits[at] = -0.5;
                assert_eq!(greedy(&logits), Some(at as i32), "{at} of {length}");
            }
        }
    }
}
