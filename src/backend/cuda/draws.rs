//! How the device draws tokens: the options of every output, written by the host into mapped memory before a step, and masks, while it runs.
//!
//! What depends on the logits is the kernels' (`kernels/sample.cu`); what does not is computed here. Meaning and order are those of `sample`.

use super::args::{Adjustment, Draw, SampleArgs};
use super::driver::Primary;
use super::memory::Mapped;
use crate::backend::Drawn;
use crate::elementary;
use crate::error::{Result, filled, reserve};
use crate::sample::{self, Mask, Options, penalties};
use std::sync::Arc;

/// Logits of a block of the kernel.
pub const PART: usize = 4096;
/// Candidates that a block may leave to the last one.
pub const SLOTS: usize = 256;
/// Stretches of a part, of which a block tells the maxima.
pub const STRETCHES: usize = 32;
/// Bytes that the blocks of a row share: two counters, and three times 256 sums.
pub const GROUP_BYTES: usize = 8 + 3 * 256 * 8;
/// Words of the mask of a part, a bit for each token.
const MASK_WORDS: usize = PART / 32;
/// Words from the flag of a part's mask to the next: a line each, as many blocks look at them at once.
const FLAG_WORDS: usize = 32;
/// What changes logits, as the kernel has it.
const ADJUSTED: u32 = 1;
const MASKED: u32 = 2;
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
    let masks = parts(vocab) * MASK_WORDS * 4 + 4;
    let each = size_of::<Draw>() + (parts(vocab) + 1) * 4 + MOST_ADJUSTMENTS * size_of::<Adjustment>() + masks + 2;
    let shared = MOST_ADJUSTMENTS * size_of::<(u64, Adjustment)>();
    outputs.saturating_mul(each).saturating_add(shared).saturating_add(vocab.saturating_mul(4))
}

/// Options of the outputs of a step.
pub struct Draws {
    draws: Mapped<Draw>,
    /// Where the adjustments of each part start, and where those of the last one end.
    starts: Mapped<u32>,
    adjustments: Mapped<Adjustment>,
    /// Of every output, those that the kernel is told to wait for.
    masks: Mapped<u32>,
    /// The step whose mask each part of each output has.
    masked: Mapped<u32>,
    /// Which outputs wait for a mask.
    awaited: Vec<bool>,
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
            masks: Mapped::new(primary, outputs * parts(vocab) * MASK_WORDS)?,
            masked: Mapped::new(primary, outputs * parts(vocab) * FLAG_WORDS)?,
            awaited: filled(outputs, false, "sampler options")?,
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
        (args.host_masks, args.host_masked) = (self.masks.device(), self.masked.device());
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
    pub fn set(&mut self, output: usize, drawn: &Drawn) -> bool {
        let &Drawn { options, history, position, is_masked } = drawn;
        self.drawn[output] = is_masked || !sample::is_plain_greedy(options);
        self.awaited[output] = is_masked;
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
            changes: if self.sorted.is_empty() { 0 } else { ADJUSTED } | if is_masked { MASKED } else { 0 },
        };
        self.draws.write(output, draw);
        true
    }

    /// Has `work` tell the masks of outputs, for the step number `serial`, which may be running. Those that it does not tell allow nothing, so that
    /// the device waits for none in vain, whatever becomes of `work`.
    pub fn write_masks(&mut self, serial: u32, work: impl FnOnce(&mut dyn FnMut(usize, &Mask))) {
        struct Rest<'a>(&'a mut Draws, u32);
        impl Drop for Rest<'_> {
            fn drop(&mut self) {
                for output in 0..self.0.awaited.len() {
                    self.0.write_mask(output, &Mask { bits: Some(&[]), named: [&[], &[]] }, self.1);
                }
            }
        }
        let rest = Rest(self, serial);
        work(&mut |output, mask| rest.0.write_mask(output, mask, serial));
    }

    fn write_mask(&mut self, output: usize, mask: &Mask, serial: u32) {
        if !std::mem::take(&mut self.awaited[output]) {
            return;
        }
        let (count, vocab) = (parts(self.counts.len()) * MASK_WORDS, self.counts.len());
        let words = self.masks.slice_mut(output * count, count);
        match mask.bits {
            Some(bits) => {
                let (told, rest) = words.split_at_mut(bits.len().min(count));
                told.copy_from_slice(&bits[..told.len()]);
                rest.fill(0);
            }
            None => words.fill(u32::MAX),
        }
        for &token in mask.named.into_iter().flatten().filter(|&&token| (token as usize) < vocab) {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        let parts = parts(vocab);
        (output * parts..(output + 1) * parts).for_each(|part| self.masked.publish(part * FLAG_WORDS, serial));
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
