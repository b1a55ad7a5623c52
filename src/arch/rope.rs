//! Rotary position embedding: layouts, and the inverse frequencies that a file's scaling gives.
//!
//! Sources: Su et al., "RoFormer" (2021); Peng et al., "YaRN" (2023), sections 3.2 to 3.4. Llama 3 files carry their scaling as
//! a tensor of divisors, one a frequency.

use super::hparams::Keys;
use super::spec::{Arch, RopeRule};
use crate::elementary;
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
    /// Other frequencies for long sequences.
    pub long: Option<Long>,
}

/// Frequencies of sequences beyond the context that a model was first trained for (Ding et al., "LongRoPE", 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Long {
    /// Longest sequence, in tokens, to which they do not apply.
    pub beyond: usize,
    /// As many as the others.
    pub frequencies: Vec<f32>,
}

/// A file's factors by which frequencies are divided, `dims / 2` of each.
#[derive(Clone, Debug, Default)]
pub struct Divisors {
    /// For all sequences, or for short ones where `long` is there.
    pub all: Option<Vec<f32>>,
    /// For long sequences.
    pub long: Option<Vec<f32>>,
}

/// Keys of the base of all layers, and of local ones where theirs differs.
const BASE: &str = "rope.freq_base";
const LOCAL_BASE: &str = "rope.freq_base_swa";
/// Key of a factor on cosine and sine, beside what the scaling gives.
const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";
/// Key of the multiplier of the logarithm in YaRN's factor that the weights have taken in.
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

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
    /// How much of the usual factor on cosine and sine the weights have taken in.
    log_multiplier: f32,
    beta_fast: f32,
    beta_slow: f32,
}

impl Rope {
    /// Reads base and scaling of heads of which `dims` elements rotate; `divisors` are the file's tensors of factors, if any.
    pub fn read(meta: &Metadata, arch: &Arch, dims: usize, divisors: &Divisors) -> Result<Rope> {
        let (keys, layout) = (&Keys::new(arch), arch.rope);
        let base = base(meta, keys, BASE, dims)?;
        let mut frequencies = plain_frequencies(base, dims);
        let mut magnitude = meta.f32(&keys.of(ATTENTION_FACTOR))?.filter(|&factor| factor != 0.0).unwrap_or(1.0);
        match Scaling::read(meta, arch, divisors.long.is_some())? {
            Scaling::None => {}
            Scaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= f64::from(factor)),
            Scaling::Yarn(yarn) => {
                yarn.scale(&mut frequencies, base, dims, arch.rope_rule != RopeRule::Unrounded);
                magnitude *= if arch.is_latent { yarn.rest_of_latent() } else { yarn.magnitude() };
            }
        }
        let long = divisors.long.as_ref().map(|divisors| Long::read(meta, keys, &frequencies, divisors)).transpose()?;
        let frequencies = divided(&frequencies, divisors.all.as_deref())?;
        Ok(Rope { layout, frequencies, magnitude, long })
    }

    /// The rotation of local layers: without scaling, by the base under their own key or by the common one.
    pub fn read_local(meta: &Metadata, keys: &Keys, layout: RopeLayout, dims: usize, own_base: bool) -> Result<Rope> {
        let base = base(meta, keys, if own_base { LOCAL_BASE } else { BASE }, dims)?;
        let frequencies = plain_frequencies(base, dims).into_iter().map(|f| f as f32).collect();
        Ok(Rope { layout, frequencies, magnitude: 1.0, long: None })
    }

    /// Number of leading elements of a head that rotate.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Whether sequences that may grow to `context` tokens take the other frequencies.
    pub fn is_long(&self, context: usize) -> bool {
        self.long.as_ref().is_some_and(|long| context > long.beyond)
    }

    /// Writes cosine and sine of every rotated pair at `position`, where sequences may grow to `context` tokens; both slices have
    /// `dims / 2` elements.
    pub fn angles(&self, position: u32, context: usize, cos: &mut [f32], sin: &mut [f32]) {
        let long = self.long.as_ref().filter(|_| self.is_long(context));
        let frequencies = long.map_or(&self.frequencies, |long| &long.frequencies);
        for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
            // Products of a large position and a small frequency lose too much in 32 bits.
            let (s, c) = elementary::sin_cos(f64::from(position) * f64::from(*frequency));
            *cos = c as f32 * self.magnitude;
            *sin = s as f32 * self.magnitude;
        }
    }
}

impl Long {
    fn read(meta: &Metadata, keys: &Keys, frequencies: &[f64], divisors: &[f32]) -> Result<Long> {
        let beyond = original_context(meta, keys)? as usize;
        Ok(Long { beyond, frequencies: divided(frequencies, Some(divisors))? })
    }
}

/// The base of a file, raised for longer contexts where it has a factor for that (dynamic NTK scaling with a fixed `alpha`).
fn base(meta: &Metadata, keys: &Keys, name: &str, dims: usize) -> Result<f32> {
    let key = keys.of(name);
    let base = meta.f32(&key)?.unwrap_or(10_000.0);
    if base <= 0.0 || base.is_nan() {
        return Err(meta.bad(&key, &format!("is {base}, it must be positive")));
    }
    let key = keys.of("rope.scaling.alpha");
    match meta.f32(&key)?.filter(|&alpha| alpha != 0.0) {
        Some(alpha) if alpha > 0.0 && dims > 2 => {
            Ok((f64::from(base) * elementary::pow(f64::from(alpha), dims as f64 / (dims - 2) as f64)) as f32)
        }
        Some(alpha) => Err(meta.bad(&key, &format!("is {alpha} for {dims} rotated elements"))),
        None => Ok(base),
    }
}

/// The factor on queries and on keys of latent attention that the scaling of the rotation gives.
pub(super) fn latent_magnitude(meta: &Metadata, arch: &Arch) -> Result<f32> {
    match Scaling::read(meta, arch, false)? {
        Scaling::Yarn(yarn) => Ok(yarn.magnitude_of_latent()),
        _ => Ok(1.0),
    }
}

/// Tokens of the context that a model was first trained for.
pub(super) fn original_context(meta: &Metadata, keys: &Keys) -> Result<u32> {
    let key = keys.of("rope.scaling.original_context_length");
    meta.required(&key, meta.u32(&key)?.filter(|&tokens| tokens > 0))
}

fn plain_frequencies(base: f32, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| elementary::pow(f64::from(base), -2.0 * i as f64 / dims as f64)).collect()
}

/// The logarithm of whatever a file's numbers give: [`elementary::ln`] is for positive normal ones.
fn ln(x: f64) -> f64 {
    match x {
        x if x.is_normal() && x > 0.0 => elementary::ln(x),
        f64::INFINITY => x,
        x if x.abs() < f64::MIN_POSITIVE => f64::NEG_INFINITY,
        _ => f64::NAN,
    }
}

fn divided(frequencies: &[f64], divisors: Option<&[f32]>) -> Result<Vec<f32>> {
    let Some(divisors) = divisors else { return Ok(frequencies.iter().map(|&f| f as f32).collect()) };
    if divisors.len() != frequencies.len() || divisors.iter().any(|d| !d.is_finite() || *d <= 0.0) {
        let problem = format!("the tensor of rope factors must hold {} positive numbers", frequencies.len());
        return Err(Error::Format(problem));
    }
    Ok(frequencies.iter().zip(divisors).map(|(f, d)| (f / f64::from(*d)) as f32).collect())
}

impl Scaling {
    fn read(meta: &Metadata, arch: &Arch, has_long: bool) -> Result<Scaling> {
        let keys = &Keys::new(arch);
        let type_key = keys.of("rope.scaling.type");
        let factor = scale_factor(meta, keys)?;
        match meta.text(&type_key)? {
            None | Some("linear") => {
                Ok(factor.filter(|&f| f != 1.0).map_or(Scaling::None, |factor| Scaling::Linear { factor }))
            }
            Some("none") => Ok(Scaling::None),
            // All of it is in the file's factors.
            Some("longrope") if has_long => Ok(Scaling::None),
            Some("longrope") => {
                Err(Error::Unsupported("rope scaling `longrope` needs the tensor `rope_factors_long.weight`".into()))
            }
            Some("yarn") => Ok(Scaling::Yarn(Yarn::read(meta, arch, factor)?)),
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
    fn read(meta: &Metadata, arch: &Arch, factor: Option<f32>) -> Result<Yarn> {
        let keys = &Keys::new(arch);
        let factor = meta.required(&keys.of("rope.scaling.factor"), factor)?;
        let read = |name: &str, default: f32| Ok::<_, Error>(meta.f32(&keys.of(name))?.unwrap_or(default));
        Ok(Yarn {
            factor,
            original_context: original_context(meta, keys)? as f32,
            // Files of latent attention hold a tenth of it.
            log_multiplier: read(LOG_MULTIPLIER, 0.0)? * if arch.is_latent { 10.0 } else { 1.0 },
            beta_fast: read("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: read("rope.scaling.yarn_beta_slow", 1.0)?,
        })
    }

    /// Blends interpolated and plain frequencies by how often each turns within the original context. Where it `rounds`, the blend begins and ends at
    /// whole pairs.
    fn scale(&self, frequencies: &mut [f64], base: f32, dims: usize, rounds: bool) {
        let turns_at = |beta: f32| {
            let wavelength = f64::from(self.original_context) / (f64::from(beta) * 2.0 * std::f64::consts::PI);
            dims as f64 * ln(wavelength) / (2.0 * ln(f64::from(base)))
        };
        let (low, high) = (turns_at(self.beta_fast), turns_at(self.beta_slow));
        let (low, high) = if rounds { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            *frequency = *frequency / f64::from(self.factor) * ramp + *frequency * (1.0 - ramp);
        }
    }

    fn growth(&self) -> f32 {
        if self.factor > 1.0 { 0.1 * ln(f64::from(self.factor)) as f32 } else { 0.0 }
    }

    fn magnitude(&self) -> f32 {
        (1.0 + self.growth()) / (1.0 + self.log_multiplier * self.growth())
    }

    /// The factor on queries and on keys of latent attention, whether they rotate or not.
    fn magnitude_of_latent(&self) -> f32 {
        1.0 + self.log_multiplier * self.growth()
    }

    /// What of it is left for cosine and sine.
    fn rest_of_latent(&self) -> f32 {
        if self.log_multiplier == 0.0 { self.magnitude() } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_positive_numbers_one_for_each_frequency() {
        assert_eq!(divided(&[1.0, 0.5], Some(&[2.0, 1.0])).unwrap(), [0.5, 0.5]);
        for divisors in [&[1.0][..], &[1.0, 0.0], &[1.0, -2.0], &[f32::NAN, 1.0], &[1.0, f32::INFINITY]] {
            let error = divided(&[1.0, 0.5], Some(divisors)).unwrap_err().to_string();
            assert!(error.contains("must hold 2 positive numbers"), "{divisors:?}: {error}");
        }
    }
}
