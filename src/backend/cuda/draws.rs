//! How the device draws tokens: the options of every output, written by the host into mapped memory before a step.
//!
//! What depends on the logits is the kernels' (`kernels/sample.cu`); what does not is computed here. Meaning and order are those of `sample`.

use super::args::{Adjustment, Draw, SampleArgs};
use super::driver::Primary;
use super::memory::Mapped;
use crate::elementary;
use crate::error::{Result, filled, reserve};
use crate::sample::{self, Options, penalties};
use std::sync::Arc;

/// Logits of a block of the kernel.
pub const PART: usize = 4096;
/// Candidates that a block may leave to the last one.
pub const SLOTS: usize = 256;
/// Stretches of a part, of which a block tells the maxima.
pub const STRETCHES: usize = 32;
/// Bytes that the blocks of a row share: two counters, and three times 256 sums.
pub const GROUP_BYTES: usize = 8 + 3 * 256 * 8;
/// Threads of a block.
pub const THREADS: usize = 256;
/// Most candidates of the short way, in which no block waits for another.
const FEW: i32 = 128;
/// Most biases and penalized tokens of an output; where there are more, the host draws.
const MOST_ADJUSTMENTS: usize = 2048;

/// Sessions whose blocks may wait at the same time without taking each other's room.
const SHARERS: usize = 4;

/// Parts of a vocabulary.
pub fn parts(vocab: usize) -> usize {
    vocab.div_ceil(PART)
}

/// Bytes of the host's memory that [`Draws::new`] takes.
pub fn bytes(outputs: usize, vocab: usize) -> usize {
    let each = size_of::<Draw>() + (parts(vocab) + 1) * 4 + MOST_ADJUSTMENTS * size_of::<Adjustment>() + 1;
    let shared = MOST_ADJUSTMENTS * size_of::<(u64, Adjustment)>();
    outputs.saturating_mul(each).saturating_add(shared).saturating_add(vocab.saturating_mul(4))
}

/// Options of the outputs of a step.
pub struct Draws {
    draws: Mapped<Draw>,
    /// Where the adjustments of each part start, and where those of the last one end.
    starts: Mapped<u32>,
    adjustments: Mapped<Adjustment>,
    /// Which outputs ask for more than the highest logit.
    drawn: Vec<bool>,
    /// Adjustments of one output in the order of tokens, then of their own, which the first number tells.
    sorted: Vec<(u64, Adjustment)>,
    counts: Vec<u32>,
    /// Whether all blocks of an output run at once, beside those of other sessions, so that they can wait for each other.
    whole: bool,
}

impl Draws {
    /// For `outputs` at a time; `resident` blocks of the kernel run at once. The context must be current.
    pub fn new(primary: &Arc<Primary>, outputs: usize, vocab: usize, resident: usize) -> Result<Draws> {
        Ok(Draws {
            draws: Mapped::new(primary, outputs)?,
            starts: Mapped::new(primary, outputs * (parts(vocab) + 1))?,
            adjustments: Mapped::new(primary, outputs * MOST_ADJUSTMENTS)?,
            drawn: filled(outputs, false, "sampler options")?,
            sorted: reserve(MOST_ADJUSTMENTS, "sampler options")?,
            counts: filled(vocab, 0, "sampler token counts")?,
            whole: parts(vocab).saturating_mul(SHARERS) <= resident,
        })
    }

    /// Where the device finds the options.
    pub fn device(&self) -> u64 {
        self.draws.device()
    }

    /// Tells the kernel where it finds the rest.
    pub fn tell(&self, args: &mut SampleArgs) {
        args.host_starts = self.starts.device();
        args.host_adjustments = self.adjustments.device();
        args.most_adjustments = MOST_ADJUSTMENTS as u32;
    }

    /// Whether any of the first `outputs` asks for more than the highest logit.
    pub fn any(&self, outputs: usize) -> bool {
        self.drawn[..outputs].contains(&true)
    }

    /// An output that nobody reads.
    pub fn pad(&mut self, output: usize) {
        self.draws.write(output, Draw::default());
    }

    /// Writes how the token of an output is drawn; false where the device cannot, and the host must.
    pub fn set(&mut self, output: usize, options: &Options, history: &[i32], position: u64) -> bool {
        self.drawn[output] = !sample::is_plain_greedy(options);
        let is_whole = options.temperature > 0.0 && !(1..=FEW).contains(&options.top_k);
        if (is_whole && !self.whole) || !self.adjust(output, options, history) {
            return false;
        }
        let least = if options.min_p > 0.0 { elementary::ln(f64::from(options.min_p)) } else { f64::NEG_INFINITY };
        let draw = Draw {
            seed: options.seed,
            position,
            least,
            temperature: options.temperature,
            top_p: options.top_p,
            typical_p: options.typical_p,
            repeat: options.repeat_penalty,
            frequency: options.frequency_penalty,
            presence: options.presence_penalty,
            top_k: options.top_k.max(0) as u32,
            adjusted: (!self.sorted.is_empty()).into(),
        };
        self.draws.write(output, draw);
        true
    }

    /// Writes the output's biases and penalties; false where there are too many, or a token that no vocabulary has.
    fn adjust(&mut self, output: usize, options: &Options, history: &[i32]) -> bool {
        let Draws { sorted, counts, .. } = self;
        sorted.clear();
        if options.bias.len() > MOST_ADJUSTMENTS {
            return false;
        }
        for (order, &(token, bias)) in options.bias.iter().enumerate() {
            let token = token as u32;
            sorted.push((u64::from(token) << 32 | order as u64, Adjustment { token, count: 0, bias }));
        }
        let mut fits = true;
        let counted = penalties::occurrences(options, history, counts, |token, count| {
            fits &= sorted.len() < MOST_ADJUSTMENTS;
            if fits {
                // Penalties come after every bias.
                let key = (token as u64) << 32 | u64::from(u32::MAX);
                sorted.push((key, Adjustment { token: token as u32, count, bias: 0.0 }));
            }
        });
        if !fits || counted.is_err() {
            return false;
        }
        sorted.sort_unstable_by_key(|&(key, _)| key);
        if !sorted.is_empty() {
            self.write_adjustments(output);
        }
        true
    }

    fn write_adjustments(&mut self, output: usize) {
        let parts = parts(self.counts.len());
        let mut written = 0;
        for part in 0..parts {
            self.starts.write(output * (parts + 1) + part, written as u32);
            while let Some((_, entry)) =
                self.sorted.get(written).filter(|(_, entry)| entry.token as usize / PART == part)
            {
                self.adjustments.write(output * MOST_ADJUSTMENTS + written, *entry);
                written += 1;
            }
        }
        self.starts.write(output * (parts + 1) + parts, written as u32);
    }
}
