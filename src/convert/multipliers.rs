//! Factors of Falcon H1, by which folders multiply what matrices give, and files the matrices.

use super::config::Config;
use super::hybrid::Space;
use crate::arch::hybrids::FALCON_H1;
use crate::arch::names::{global, layer};
use crate::error::{Result, push};

/// The factor on embeddings.
pub const EMBEDDING: &str = "embedding_multiplier";
/// The factor on what enters attention.
const ENTERING: &str = "attention_in_multiplier";
/// Those on the parts of what enters a state space: its gate, values, keys, queries and steps.
const PARTS: &str = "ssm_multipliers";
/// Those on the gate of a feed-forward block, and on its result.
const HALVES: &str = "mlp_multipliers";
/// What the memory is for.
const FACTORS: &str = "the factors of a model";

/// What the rows of a matrix are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multiplier {
    /// All of them.
    whole: f32,
    /// Then those up to each of these ends.
    parts: Option<[(u64, f32); 5]>,
}

impl Multiplier {
    /// Multiplies the elements of row `row`.
    pub fn apply(&self, row: u64, values: &mut [f32]) {
        let part = self.parts.iter().flatten().find(|(end, _)| row < *end).map_or(1.0, |(_, factor)| *factor);
        values.iter_mut().for_each(|value| *value = *value * self.whole * part);
    }

    fn is_idle(&self) -> bool {
        self.whole == 1.0 && self.parts.is_none_or(|parts| parts.iter().all(|(_, factor)| *factor == 1.0))
    }
}

/// The factors of a model, by the names of tensors, which are those within a layer where there are layers.
#[derive(Debug, Default)]
pub struct Multipliers(Vec<(&'static str, Multiplier)>);

impl Multipliers {
    /// Reads the factors of a model with state spaces of such sizes.
    pub fn read(config: &Config, space: Option<&Space>) -> Result<Multipliers> {
        let mut found = Multipliers::default();
        let Some(space) = space.filter(|_| config.family.arch.name == FALCON_H1.name) else { return Ok(found) };
        let (entering, [gate, down, ..]) = (factor(config, ENTERING)?, list(config, HALVES, 2)?);
        for (name, own, more) in [
            ("token_embd", EMBEDDING, 1.0),
            (global::HEAD_PROJECTION, "lm_head_multiplier", 1.0),
            (layer::Q, ENTERING, 1.0),
            (layer::K, "key_multiplier", entering),
            (layer::V, ENTERING, 1.0),
            (layer::ATTENTION_OUTPUT, "attention_out_multiplier", 1.0),
            (layer::SCAN_OUT, "ssm_out_multiplier", 1.0),
        ] {
            found.add(name, Multiplier { whole: (factor(config, own)? * more) as f32, parts: None })?;
        }
        for (name, factor) in [(layer::GATE, gate), (layer::DOWN, down)] {
            found.add(name, Multiplier { whole: factor as f32, parts: None })?;
        }
        let Space { inner, keys, .. } = *space;
        let ends = [inner, 2 * inner, 2 * inner + keys, 2 * inner + 2 * keys, u64::MAX];
        let factors = list(config, PARTS, 5)?;
        let parts = std::array::from_fn(|part| (ends[part], factors[part] as f32));
        let whole = factor(config, "ssm_in_multiplier")? as f32;
        found.add(layer::SPACE_IN, Multiplier { whole, parts: Some(parts) })?;
        Ok(found)
    }

    fn add(&mut self, name: &'static str, multiplier: Multiplier) -> Result<()> {
        if multiplier.is_idle() { Ok(()) } else { push(&mut self.0, (name, multiplier), FACTORS) }
    }

    /// What the matrix `name` of a file is multiplied by.
    pub fn of(&self, name: &str) -> Option<Multiplier> {
        let part = name.strip_suffix(".weight")?;
        let part = part.strip_prefix("blk.").and_then(|part| part.split_once('.')).map_or(part, |(_, part)| part);
        self.0.iter().find(|(name, _)| *name == part).map(|(_, multiplier)| *multiplier)
    }

    /// Whether the embedding cannot stand for the output head where both are one matrix in a folder.
    pub fn parts_head(&self) -> bool {
        self.of(global::EMBEDDING) != self.of(global::HEAD)
    }
}

/// A factor, which is 1 where nothing is said.
fn factor(config: &Config, name: &str) -> Result<f64> {
    config.get(name).map_or(Ok(1.0), |value| config.positive(name, value))
}

/// So many factors, of which each is 1 where there is no list.
fn list(config: &Config, name: &str, count: usize) -> Result<[f64; 5]> {
    let mut factors = [1.0; 5];
    let Some(listed) = config.get(name) else { return Ok(factors) };
    if listed.elements().map(Iterator::count) != Some(count) {
        return Err(config.bad(name, &format!("does not list {count} numbers")));
    }
    for (factor, value) in factors.iter_mut().zip(listed.elements().into_iter().flatten()) {
        *factor = config.positive(name, value)?;
    }
    Ok(factors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_matrix_have_factors_of_their_own_and_names_are_whole() {
        let parts = Some([(1, 2.0), (2, 3.0), (3, 4.0), (4, 5.0), (u64::MAX, 6.0)]);
        let of_parts = Multiplier { whole: 0.5, parts };
        let found: Vec<f32> = (0..6)
            .map(|row| {
                let mut values = [1.0];
                of_parts.apply(row, &mut values);
                values[0]
            })
            .collect();
        assert_eq!(found, [1.0, 1.5, 2.0, 2.5, 3.0, 3.0]);
        let mut all = Multipliers::default();
        all.add(layer::SPACE_IN, of_parts).unwrap();
        all.add(layer::Q, Multiplier { whole: 1.0, parts: None }).unwrap();
        assert_eq!(all.of("blk.3.ssm_in.weight"), Some(of_parts));
        for name in ["blk.3.ssm_in.bias", "blk.3.attn_q.weight", "blk.3.more.ssm_in.weight", "ssm_in"] {
            assert_eq!(all.of(name), None, "{name}");
        }
    }
}
