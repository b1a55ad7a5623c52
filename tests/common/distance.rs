//! How far logits are from others of the same model.

/// How far one row of logits is from another of the same model.
pub struct Distance {
    pub relative_l2: f64,
    pub divergence: f64,
    /// Gap between the two highest logits of the reference row, where the highest token differs.
    pub lost_margin: Option<f32>,
}

pub fn distance(row: &[f32], reference: &[f32]) -> Distance {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let difference = squares(&mut row.iter().zip(reference).map(|(a, b)| a - b));
    let relative_l2 = (difference / squares(&mut reference.iter().copied())).sqrt();
    let (p, q) = (softmax(reference), softmax(row));
    let divergence = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
    let top = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let best = top(reference);
    let second = (0..reference.len()).filter(|&i| i != best).map(|i| reference[i]).fold(f32::MIN, f32::max);
    let lost_margin = (top(row) != best).then_some(reference[best] - second);
    Distance { relative_l2, divergence, lost_margin }
}

fn softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    let exps: Vec<f64> = row.iter().map(|&v| f64::from(v - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|v| v / sum).collect()
}
