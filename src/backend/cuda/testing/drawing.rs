//! The kernel that draws tokens, alone: on logits of the caller's, for tests and measurements. A session has it at the end of a step.

use crate::backend::Drawn;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::args::{Args, SampleArgs, Shape};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::draws::{self, Draws};
use crate::backend::cuda::launch::{Extent, Launch};
use crate::backend::cuda::memory::{Block, Mapped, Places};
use crate::backend::cuda::module::Stream;
use crate::error::{Error, Result};
use crate::sample::Mask;

use std::time::Duration;

/// Draws for up to a number of rows at a time.
pub struct Drawing {
    stream: Stream,
    draws: Draws,
    logits: Mapped<f32>,
    /// In the lower half, below the number of a step.
    tokens: Mapped<u64>,
    /// Holds what the blocks of a row share.
    _block: Block,
    launch: Launch,
    vocab: usize,
    /// Number of the last launch, and where the kernel reads it.
    serial: u32,
    serial_at: u64,
}

/// One token to draw.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// How.
    pub drawn: Drawn<'a>,
    /// From what.
    pub logits: &'a [f32],
    /// From which of them, where it is masked.
    pub mask: Mask<'a>,
}

impl Drawing {
    /// For vocabularies of `vocab` tokens.
    pub fn new(cuda: &Cuda, rows: usize, vocab: usize) -> Result<Drawing> {
        let Cuda { primary, kernels, .. } = cuda;
        let _current = primary.enter()?;
        let arrange = |base| {
            let mut places = Places::new(base);
            let args = SampleArgs {
                kept: places.take(rows * draws::parts(vocab) * draws::SLOTS * 8),
                groups: places.take(rows * draws::GROUP_BYTES),
                maxima: places.take(rows * draws::parts(vocab) * draws::STRETCHES * 4),
                counters: places.take(8),
                serial: places.take(4),
                vocab: vocab as u32,
                parts: draws::parts(vocab) as u32,
                ..SampleArgs::default()
            };
            (args, places.bytes())
        };
        let block = Block::new(primary, arrange(0).1)?;
        let draws = Draws::new(primary, rows, vocab, kernels.resident_draws()?)?;
        let (logits, tokens) = (Mapped::new(primary, rows * vocab)?, Mapped::new(primary, rows)?);
        let (mut args, _) = arrange(block.address());
        draws.tell(&mut args);
        (args.logits, args.draws) = (logits.device(), draws.device());
        args.host_tokens = tokens.device();
        let grid = [Extent::Fixed(args.parts), Extent::Outputs, Extent::Fixed(1)];
        let (block_threads, args) = (draws::THREADS as u32, Args::Sample(args));
        let launch = Launch {
            function: Kernel::Sample.only(),
            grid,
            threads: block_threads,
            shared_bytes: 0,
            spread_bytes: 0,
            args,
            covers: Vec::new(),
            device: kernels.device()?,
        };
        let stream = Stream::new(kernels)?;
        let serial_at = arrange(block.address()).0.serial;
        Ok(Drawing { stream, draws, logits, tokens, _block: block, launch, vocab, serial: 0, serial_at })
    }

    /// Draws a token for each request; none where no logit is usable. `Unsupported` for what the device leaves to the host. Masks are written
    /// when the kernel has been started, `late` after that.
    pub fn draw(&mut self, cuda: &Cuda, requests: &[Request], late: Duration) -> Result<Vec<Option<i32>>> {
        let _current = cuda.primary.enter()?;
        self.serial += 1;
        self.stream.upload(self.serial_at, (&raw const self.serial).cast(), size_of::<u32>())?;
        self.stream.wait()?;
        for (row, request) in requests.iter().enumerate() {
            if !self.draws.set(row, &request.drawn) {
                return Err(Error::Unsupported("the host draws here".into()));
            }
            assert_eq!(request.logits.len(), self.vocab);
            request.logits.iter().enumerate().for_each(|(i, &logit)| self.logits.write(row * self.vocab + i, logit));
            // No token: a row that is left out shows.
            self.tokens.write(row, i32::MAX as u64);
        }
        let rows = requests.len() as u32;
        self.stream.launch(&self.launch, &Shape { rows, outputs: rows, splits: 1, draws: 1 })?;
        self.draws.write_masks(self.serial, |tell| {
            std::thread::sleep(late);
            requests.iter().enumerate().for_each(|(row, request)| tell(row, &request.mask));
        });
        self.stream.wait()?;
        Ok((0..requests.len()).map(|row| i32::try_from(self.tokens.read(row) as u32).ok()).collect())
    }
}
