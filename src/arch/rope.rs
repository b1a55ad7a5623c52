//! Rotary position embedding: layouts, and the inverse frequencies that a file's scaling gives.
//!
//! Sources: Su et al., "RoFormer" (2021); Peng et al., "YaRN" (2023), sections 3.2 to 3.4. Llama 3 files carry their scaling as
//! a tensor of divisors, one a frequency.

use super::hparams::Keys;
use crate::error::{Error, Excerpt, Result};
use crate::format::Metadata;

/// Which two elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Elements `2i` and `2i + 1`.
    Pairs,
    /// Elements `i` and `i + dims / 2`.
    Halves,
}

/// Everything that turns a position into angles.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pairing of elements.
    pub layout: RopeLayout,
    /// Angle a position, in radians, for each rotated pair: `dims / 2` values.
    pub frequencies: Vec<f32>,
    /// Factor on cosine and sine (YaRN's attention factor); 1 otherwise.
    pub magnitude: f32,
}

/// Scaling of the positions beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f32 },
    Yarn(Yarn),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Yarn {
    factor: f32,
    original_context: f32,
    attention_factor: f32,
    beta_fast: f32,
    beta_slow: f32,
}

impl Rope {
    /// Reads base, scaling and rotated dimensions of a head of `head_dim` elements; `divisors` is the file's tensor of
    /// per-frequency factors, if any.
    pub fn read(
        meta: &Metadata,
        keys: &Keys,
        layout: RopeLayout,
        dims: usize,
        divisors: Option<&[f32]>,
    ) -> Result<Rope> {
        let base_key = keys.of("rope.freq_base");
        let base = meta.f32(&base_key)?.unwrap_or(10_000.0);
        if base <= 0.0 {
            return Err(meta.bad(&base_key, &format!("is {base}, it must be positive")));
        }
        let mut frequencies = plain_frequencies(base, dims);
        let mut magnitude = 1.0;
        match Scaling::read(meta, keys)? {
            Scaling::None => {}
            Scaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= f64::from(factor)),
            Scaling::Yarn(yarn) => {
                yarn.scale(&mut frequencies, base, dims);
                magnitude = yarn.magnitude();
            }
        }
        if let Some(divisors) = divisors {
            divide(&mut frequencies, divisors)?;
        }
        let frequencies = frequencies.into_iter().map(|f| f as f32).collect();
        Ok(Rope { layout, frequencies, magnitude })
    }

    /// Number of leading elements of a head that rotate.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Writes cosine and sine of every rotated pair at `position`; both slices have `dims / 2` elements.
    pub fn angles(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            // Products of a large position and a small frequency lose too much in 32 bits.
            let (s, c) = (f64::from(position) * f64::from(*frequency)).sin_cos();
            *cos = c as f32 * self.magnitude;
            *sin = s as f32 * self.magnitude;
        }
    }
}

fn plain_frequencies(base: f32, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| f64::from(base).powf(-2.0 * i as f64 / dims as f64)).collect()
}

fn divide(frequencies: &mut [f64], divisors: &[f32]) -> Result<()> {
    if divisors.len() != frequencies.len() || divisors.iter().any(|d| !d.is_finite() || *d <= 0.0) {
        let problem = format!("tensor `rope_freqs.weight` must hold {} positive numbers", frequencies.len());
        return Err(Error::Format(problem));
    }
    frequencies.iter_mut().zip(divisors).for_each(|(f, d)| *f /= f64::from(*d));
    Ok(())
}

impl Scaling {
    fn read(meta: &Metadata, keys: &Keys) -> Result<Scaling> {
        let type_key = keys.of("rope.scaling.type");
        let factor = scale_factor(meta, keys)?;
        match meta.text(&type_key)? {
            None | Some("linear") => {
                Ok(factor.filter(|&f| f != 1.0).map_or(Scaling::None, |factor| Scaling::Linear { factor }))
            }
            Some("none") => Ok(Scaling::None),
            Some("yarn") => Ok(Scaling::Yarn(Yarn::read(meta, keys, factor)?)),
            Some(other) => {
                let other = Excerpt(other.as_bytes());
                Err(Error::Unsupported(format!("rope scaling `{other}` is not supported")))
            }
        }
    }
}

fn scale_factor(meta: &Metadata, keys: &Keys) -> Result<Option<f32>> {
    for key in [keys.of("rope.scaling.factor"), keys.of("rope.scale_linear")] {
        if let Some(factor) = meta.f32(&key)? {
            if factor < 0.0 {
                return Err(meta.bad(&key, &format!("is {factor}, it must be positive")));
            }
            // Converters write 0 for "not scaled".
            return Ok((factor > 0.0).then_some(factor));
        }
    }
    Ok(None)
}

impl Yarn {
    fn read(meta: &Metadata, keys: &Keys, factor: Option<f32>) -> Result<Yarn> {
        let factor = meta.required(&keys.of("rope.scaling.factor"), factor)?;
        let context_key = keys.of("rope.scaling.original_context_length");
        let original_context = meta.required(&context_key, meta.u32(&context_key)?.filter(|&v| v > 0))? as f32;
        let read = |name: &str, default: f32| Ok::<_, Error>(meta.f32(&keys.of(name))?.unwrap_or(default));
        Ok(Yarn {
            factor,
            original_context,
            attention_factor: read("rope.scaling.attn_factor", 1.0)?,
            beta_fast: read("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: read("rope.scaling.yarn_beta_slow", 1.0)?,
        })
    }

    /// Blends interpolated and plain frequencies by how often each turns within the original context.
    fn scale(&self, frequencies: &mut [f64], base: f32, dims: usize) {
        let turns_at = |beta: f32| {
            let wavelength = f64::from(self.original_context) / (f64::from(beta) * 2.0 * std::f64::consts::PI);
            dims as f64 * wavelength.ln() / (2.0 * f64::from(base).ln())
        };
        let low = turns_at(self.beta_fast).floor().max(0.0);
        let high = turns_at(self.beta_slow).ceil().min(dims as f64 - 1.0);
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            *frequency = *frequency / f64::from(self.factor) * ramp + *frequency * (1.0 - ramp);
        }
    }

    fn magnitude(&self) -> f32 {
        self.attention_factor * if self.factor > 1.0 { 1.0 + 0.1 * self.factor.ln() } else { 1.0 }
    }
}
