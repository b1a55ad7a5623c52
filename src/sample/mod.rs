//! From logits to a token: bias, penalties, filters, and a stateless draw.
//!
//! [`sample_masked`] is the whole of it: logits, the sequence's [`Options`], its history and a position in, a token out. Nothing is
//! kept between calls, so a token depends on these alone; [`Scratch`] is memory, not state. Whether a token ends generation is
//! the engine's to decide: [`Options::stop_tokens`] and [`Options::ignore_eog`] are only carried here.
//!
//! A [`Mask`] takes tokens out before anything else is done. Order and meaning of the rest are those of the C API: bias, penalties, top_k,
//! typical_p, top_p, min_p, temperature, draw. All arithmetic
//! is defined to the bit (see [`crate::elementary`], [`filters`], [`penalties`] and [`rng`]), so that backends agree where their logits
//! do. Logits that are not finite: NaN and minus infinity are never drawn, plus infinity wins over every finite logit.

pub mod chain;
pub mod filters;
pub mod penalties;
pub mod rng;
pub mod unmasked;

#[cfg(feature = "testing")]
pub use chain::sample;
pub use chain::{Mask, Scratch, sample_masked};
pub use rng::{SEED_RANDOM, resolve_seed};
pub use unmasked::sample_unmasked;

use crate::error::{Error, Result, copied};

/// How a sequence's tokens are drawn. The fields are those of `segno_sampler_opts`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only [`stop_tokens`](Self::stop_tokens) end generation, not the model's own end tokens.
    pub ignore_eog: bool,
    /// Divides the logits before the draw, 0 to 100; 0 takes the highest logit and applies no filter.
    pub temperature: f32,
    /// Keeps the likeliest tokens up to this share of probability, above 0 up to 1; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the likeliest, 0 to 1; 0 is off.
    pub min_p: f32,
    /// Keeps the tokens of most typical surprisal up to this share of probability, above 0 up to 1; 1 is off.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window, above 0 up to 10; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence in the window, -10 to 10; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once from each token in the window, -10 to 10; 0 is off.
    pub presence_penalty: f32,
    /// Keeps so many of the highest logits; 0 is off.
    pub top_k: i32,
    /// Window of the penalties: the last so many tokens of the history, the prompt included; 0 for none, -1 for all.
    pub penalty_last_n: i32,
    /// Key of the draw. The engine passes [`SEED_RANDOM`] through [`resolve_seed`] when a sequence is opened.
    pub seed: u64,
    /// Tokens and what is added to their logits: a finite number, or minus infinity for a token that must not be drawn.
    pub bias: Vec<(i32, f32)>,
    /// Tokens that end generation beside the model's own.
    pub stop_tokens: Vec<i32>,
}

impl Options {
    /// Temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, a random seed, all else off.
    pub fn defaults() -> Options {
        Options {
            ignore_eog: false,
            temperature: 0.8,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            top_k: 40,
            penalty_last_n: 64,
            seed: SEED_RANDOM,
            bias: Vec::new(),
            stop_tokens: Vec::new(),
        }
    }

    /// The same options; fails when their lists cannot be copied.
    pub fn copied(&self) -> Result<Options> {
        let (bias, stop_tokens) = (copied(&self.bias, "bias")?, copied(&self.stop_tokens, "stop tokens")?);
        Ok(Options { bias, stop_tokens, ..*self })
    }

    /// Whether a token ends generation of a sequence: one of its own, or of `eog`, those of the vocabulary.
    pub fn is_end(&self, token: i32, eog: &[i32]) -> bool {
        self.stop_tokens.contains(&token) || (!self.ignore_eog && eog.contains(&token))
    }

    /// Refuses values outside the ranges of the C API, NaN included, and tokens outside a vocabulary of `vocab`.
    pub fn validate(&self, vocab: usize) -> Result<()> {
        within("temperature", self.temperature, 0.0, 100.0)?;
        share("top_p", self.top_p)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        share("typical_p", self.typical_p)?;
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty <= 10.0) {
            return Err(outside("repeat_penalty", self.repeat_penalty, "above 0, at most 10"));
        }
        within("frequency_penalty", self.frequency_penalty, -10.0, 10.0)?;
        within("presence_penalty", self.presence_penalty, -10.0, 10.0)?;
        if self.top_k < 0 {
            return Err(outside("top_k", self.top_k, "0 (off) or more"));
        }
        if self.penalty_last_n < -1 {
            return Err(outside("penalty_last_n", self.penalty_last_n, "-1 (all), 0 (off) or more"));
        }
        for (index, &(token, bias)) in self.bias.iter().enumerate() {
            known_token("bias", index, token, vocab)?;
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(outside(&format!("bias[{index}]"), bias, "finite, or minus infinity to ban the token"));
            }
        }
        for (index, &token) in self.stop_tokens.iter().enumerate() {
            known_token("stop_tokens", index, token, vocab)?;
        }
        Ok(())
    }
}

/// Whether sampling is no more than finding the highest logit.
pub fn is_plain_greedy(options: &Options) -> bool {
    options.temperature == 0.0 && !penalties::changes_logits(options)
}

fn within(option: &str, value: f32, least: f32, most: f32) -> Result<()> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(outside(option, value, &format!("{least} to {most}"))) }
}

fn share(option: &str, value: f32) -> Result<()> {
    if value > 0.0 && value <= 1.0 { Ok(()) } else { Err(outside(option, value, "above 0, at most 1")) }
}

fn known_token(list: &str, index: usize, token: i32, vocab: usize) -> Result<()> {
    if usize::try_from(token).is_ok_and(|token| token < vocab) {
        return Ok(());
    }
    let problem = format!("{list}[{index}] names token {token}, outside the vocabulary of {vocab} tokens");
    Err(Error::InvalidArgument(problem))
}

fn outside(option: &str, value: impl std::fmt::Display, range: &str) -> Error {
    Error::InvalidArgument(format!("{option} is {value}, must be {range}"))
}
