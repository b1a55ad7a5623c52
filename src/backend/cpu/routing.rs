//! The choice of a row's experts from the logits of a router. The rule is [`Routing`]'s; it depends on the row alone.

use super::simd::Kernels;
use crate::plan::op::{Groups, MOST_CHOSEN as CHOSEN, MOST_EXPERTS as EXPERTS, Routing, Score};

/// Least sum by which weights are divided.
const LEAST_SUM: f32 = 1.0 / 16384.0;

/// Chooses experts by `logits`: their numbers, as bits, in the first half of `choice`, and their weights in the second, best first. `bias` is that of
/// `routing`.
pub fn choose(kernels: &Kernels, routing: &Routing, bias: Option<&[f32]>, logits: &[f32], choice: &mut [f32]) {
    let (mut scores, mut keys) = ([0.0; EXPERTS], [0; EXPERTS]);
    let (scores, keys) = (&mut scores[..logits.len()], &mut keys[..logits.len()]);
    scores.copy_from_slice(logits);
    match routing.score {
        Score::Softmax => softmax(kernels, scores),
        Score::Sigmoid => kernels.sigmoid(scores),
        Score::ChosenSoftmax => {}
    }
    let ranks = if bias.is_none() && routing.groups.is_none() { logits } else { &*scores };
    for (index, (key, rank)) in keys.iter_mut().zip(ranks).enumerate() {
        *key = key_of(bias.map_or(*rank, |bias| rank + bias[index]));
    }
    if let Some(groups) = routing.groups {
        keep_groups(groups, keys);
    }
    let (ids, weights) = choice.split_at_mut(choice.len() / 2);
    let mut found = [0; CHOSEN];
    let found = &mut found[..ids.len()];
    best(keys, found);
    for ((id, weight), &expert) in ids.iter_mut().zip(&mut *weights).zip(&*found) {
        (*id, *weight) = (f32::from_bits(expert), scores[expert as usize]);
    }
    if routing.score == Score::ChosenSoftmax {
        softmax(kernels, weights);
    }
    if routing.normalizes {
        let sum: f32 = weights.iter().sum();
        // A sum that is no number stays one.
        let sum = if sum < LEAST_SUM { LEAST_SUM } else { sum };
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    if routing.scale != 1.0 {
        kernels.scale(weights, routing.scale);
    }
}

fn softmax(kernels: &Kernels, x: &mut [f32]) {
    let max = kernels.max(x);
    let sum = kernels.exp_sum(x, max);
    x.iter_mut().for_each(|x| *x /= sum);
}

/// What is looked at by nobody, and the rank of what is no number: below all others.
const MASKED: u32 = 0;
const NO_NUMBER: u32 = 1;

/// Integers in the order of numbers.
fn key_of(x: f32) -> u32 {
    if x.is_nan() {
        return NO_NUMBER;
    }
    // Both zeros are one.
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The number of a key.
fn number_of(key: u32) -> f32 {
    match key {
        MASKED | NO_NUMBER => f32::NAN,
        key if key >> 31 == 1 => f32::from_bits(key & !(1 << 31)),
        key => f32::from_bits(!key),
    }
}

/// The indices of the largest of `keys`, as many as `found` holds, the largest first and of equal ones the first first.
fn best(keys: &[u32], found: &mut [u32]) {
    let mut count = 0;
    for (index, &key) in keys.iter().enumerate() {
        if count == found.len() && key <= keys[found[count - 1] as usize] {
            continue;
        }
        let mut at = count.min(found.len() - 1);
        while at > 0 && keys[found[at - 1] as usize] < key {
            found[at] = found[at - 1];
            at -= 1;
        }
        found[at] = index as u32;
        count = (count + 1).min(found.len());
    }
}

/// Masks the experts of all groups but those with the largest sums of their best.
fn keep_groups(Groups { count, kept, best: summed }: Groups, keys: &mut [u32]) {
    let size = keys.len() / count;
    let (mut sums, mut found) = ([0; EXPERTS], [0; EXPERTS]);
    for (sum, group) in sums.iter_mut().zip(keys.chunks_exact(size)) {
        let mut two = [0; 2];
        let two = &mut two[..size.min(summed)];
        best(group, two);
        *sum = key_of(two.iter().map(|&index| number_of(group[index as usize])).sum());
    }
    best(&sums[..count], &mut found[..kept]);
    for (index, group) in keys.chunks_exact_mut(size).enumerate() {
        if !found[..kept].contains(&(index as u32)) {
            group.fill(MASKED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::simd::{available, detect};
    use crate::quant::synthetic::Random;

    const PLAIN: Routing = Routing { score: Score::Softmax, bias: None, groups: None, normalizes: true, scale: 1.0 };

    fn chosen(routing: &Routing, bias: Option<&[f32]>, logits: &[f32], count: usize) -> (Vec<u32>, Vec<f32>) {
        let mut choice = vec![0.0; 2 * count];
        choose(detect(true), routing, bias, logits, &mut choice);
        (choice[..count].iter().map(|id| id.to_bits()).collect(), choice[count..].to_vec())
    }

    /// The same in double precision, by sorting.
    fn expected(routing: &Routing, bias: Option<&[f32]>, logits: &[f32], count: usize) -> (Vec<u32>, Vec<f64>) {
        let exponentials = |x: &[f64]| {
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            x.iter().map(|x| x.exp() / sum).collect::<Vec<f64>>()
        };
        let logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        let scores = match routing.score {
            Score::Softmax => exponentials(&logits),
            Score::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
            Score::ChosenSoftmax => logits,
        };
        let mut ranks: Vec<f64> = scores.clone();
        bias.into_iter().flatten().zip(&mut ranks).for_each(|(bias, rank)| *rank += f64::from(*bias));
        if let Some(Groups { count, kept, best }) = routing.groups {
            let size = ranks.len() / count;
            let sum = |group: &[f64]| {
                let mut sorted = group.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted[..size.min(best)].iter().sum::<f64>()
            };
            let sums: Vec<f64> = ranks.chunks(size).map(sum).collect();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]));
            order[kept..].iter().for_each(|&group| ranks[group * size..][..size].fill(f64::NEG_INFINITY));
        }
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
        order.truncate(count);
        let mut weights: Vec<f64> = order.iter().map(|&id| scores[id]).collect();
        if routing.score == Score::ChosenSoftmax {
            weights = exponentials(&weights);
        }
        let sum = if routing.normalizes { weights.iter().sum::<f64>().max(f64::from(LEAST_SUM)) } else { 1.0 };
        let weights = weights.iter().map(|weight| weight / sum * f64::from(routing.scale)).collect();
        (order.iter().map(|&id| id as u32).collect(), weights)
    }

    #[test]
    fn choices_are_those_of_sorting() {
        let mut random = Random::new(11);
        for turn in 0..3000 {
            let count = [1, 2, 6, 16, 60, 128, 512][turn % 7];
            let groups = [1, 2, 4][random.bits() as usize % 3];
            let has_groups = count % groups == 0 && groups > 1;
            let kept = 1 + random.bits() as usize % groups;
            let within = if has_groups { kept * (count / groups) } else { count };
            let chosen_count = 1 + random.bits() as usize % within.min(16);
            let logits: Vec<f32> = random.uniforms(count).iter().map(|x| 4.0 * x).collect();
            let bias: Vec<f32> = random.uniforms(count).iter().map(|x| 0.1 * x).collect();
            let routing = Routing {
                score: [Score::Softmax, Score::Sigmoid, Score::ChosenSoftmax][turn % 3],
                groups: has_groups.then_some(Groups { count: groups, kept, best: 1 + turn / 3 % 2 }),
                normalizes: random.bits().is_multiple_of(2),
                scale: [1.0, 2.5][random.bits() as usize % 2],
                ..PLAIN
            };
            let bias = (random.bits().is_multiple_of(2)).then_some(bias.as_slice());
            let found = chosen(&routing, bias, &logits, chosen_count);
            let wanted = expected(&routing, bias, &logits, chosen_count);
            assert_eq!(found.0, wanted.0, "turn {turn}");
            for (found, wanted) in found.1.iter().zip(wanted.1) {
                assert!((f64::from(*found) - wanted).abs() <= 1e-5 * wanted.abs(), "turn {turn}: {found} {wanted}");
            }
        }
    }

    #[test]
    fn of_equal_scores_the_lower_number_comes_first() {
        let (ids, weights) = chosen(&PLAIN, None, &[1.0, 3.0, 3.0, 0.0, 3.0], 2);
        assert_eq!((ids, weights), (vec![1, 2], vec![0.5, 0.5]));
        let routing = Routing { score: Score::ChosenSoftmax, normalizes: false, ..PLAIN };
        assert_eq!(chosen(&routing, None, &[-0.0, 0.0, -1.0], 3).0, [0, 1, 2]);
    }

    #[test]
    fn logits_rank_where_scores_are_rounded_to_equal_ones() {
        let logits = [0.0, 1e-9, 1.0];
        for score in [Score::Softmax, Score::Sigmoid] {
            assert_eq!(chosen(&Routing { score, ..PLAIN }, None, &logits, 2).0, [2, 1], "{score:?}");
            // With a bias the scores do.
            assert_eq!(chosen(&Routing { score, ..PLAIN }, Some(&[0.0; 3]), &logits, 2).0, [2, 0], "{score:?}");
        }
    }

    #[test]
    fn what_is_no_number_comes_last_and_is_still_an_expert() {
        let nan = f32::NAN;
        let routing = Routing { score: Score::Sigmoid, normalizes: false, ..PLAIN };
        let (ids, weights) = chosen(&routing, None, &[nan, f32::NEG_INFINITY, 0.0, nan], 3);
        assert_eq!(ids, [2, 1, 0]);
        assert!(weights[0] == 0.5 && weights[1] == 0.0 && weights[2].is_nan());
        let (ids, weights) = chosen(&PLAIN, None, &[nan; 6], 2);
        assert!(ids == [0, 1] && weights.iter().all(|weight| weight.is_nan()));
        let groups = Some(Groups { count: 2, kept: 1, best: 2 });
        let (ids, _) = chosen(&Routing { groups, ..routing }, None, &[nan, nan, nan, 1.0, 2.0, nan], 3);
        assert_eq!(ids, [4, 3, 5]);
        let (ids, _) = chosen(&Routing { groups, ..routing }, None, &[nan; 6], 3);
        assert_eq!(ids, [0, 1, 2]);
    }

    #[test]
    fn weights_of_nothing_are_divided_by_the_least_sum() {
        let routing = Routing { score: Score::Sigmoid, ..PLAIN };
        let (_, weights) = chosen(&routing, None, &[-20.0; 4], 2);
        let sigmoid = 1.0 / (1.0 + 20f64.exp());
        assert!(weights.iter().all(|&weight| (f64::from(weight) - sigmoid * 16384.0).abs() < 1e-9));
    }

    #[test]
    fn every_instruction_set_chooses_the_same_bits() {
        let mut random = Random::new(5);
        for score in [Score::Softmax, Score::Sigmoid, Score::ChosenSoftmax] {
            let logits = random.uniforms(77);
            let choices = available().into_iter().map(|kernels| {
                let mut choice = [0.0; 12];
                choose(kernels, &Routing { score, ..PLAIN }, None, &logits, &mut choice);
                choice.map(f32::to_bits)
            });
            let choices: Vec<_> = choices.collect();
            assert!(choices.iter().all(|choice| *choice == choices[0]), "{score:?}");
        }
    }
}
