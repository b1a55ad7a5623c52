//! The one form in which integer weights are multiplied, and that multiplication.
//!
//! A panel is 16 weight rows x up to 256 columns, with the rows in the lanes of a vector. Weights are unsigned bytes;
//! four consecutive columns of a row share a lane, so that one instruction takes 16 rows x 4 columns. A storage type
//! ([`Format`]) differs from others only in how it takes weights from memory to a [`Sink`]. Filling a panel costs about as much as
//! multiplying with one activation row, so it is filled once and used for all of them; a lone row does without (`lone`).

use super::rows::{ROWS, Rows};
use crate::backend::cpu::simd::operand::Q8Block;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use std::marker::PhantomData;

/// Blocks of 32 columns in a panel.
pub(super) const BLOCKS: usize = 8;
/// Fours of columns in a block.
pub(super) const QUADS: usize = 8;

/// 16 lanes of 32 bits in memory.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Lanes(pub [u8; 64]);

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0; 64]);
}

/// Weights of 16 rows x 8 blocks, and what makes values of them; see the canonical sums of the parent module.
pub(super) struct Panel {
    weights: [[Lanes; QUADS]; BLOCKS],
    /// `d`
    scale: [Lanes; BLOCKS],
    /// `m`, or `-dmin`
    min: [Lanes; BLOCKS],
    /// 16-bit factors of the two sums of the activations: what centres the weights, or the integer minimums.
    pair: [Lanes; BLOCKS],
    /// Integer scales of the two halves of a block, recoded.
    halves: [[Lanes; 2]; BLOCKS],
}

impl Panel {
    pub(super) const fn new() -> Self {
        Panel {
            weights: [[Lanes::ZERO; QUADS]; BLOCKS],
            scale: [Lanes::ZERO; BLOCKS],
            min: [Lanes::ZERO; BLOCKS],
            pair: [Lanes::ZERO; BLOCKS],
            halves: [[Lanes::ZERO; 2]; BLOCKS],
        }
    }
}

/// What takes the weights of 16 rows as they are unpacked: 32 columns are a block, in halves of four times four columns.
pub(super) trait Sink<S: Simd> {
    /// 16 bytes of each row as this sink takes them in [`Sink::set_half`]; what is unpacked of them stays in its byte. `fetched` is as in
    /// [`Rows::blocks_fetching`].
    fn weights(&self, s: S, rows: &Rows, at: usize, fetched: usize) -> [S::I; 4];
    /// The same from their transposed form, as of [`Rows::blocks`].
    fn arrange(&self, s: S, transposed: [S::I; 4]) -> [S::I; 4];
    /// Four times four columns of a block: the first half before the second, and the scales of both before either.
    fn set_half(&mut self, s: S, block: usize, half: usize, weights: [S::I; 4]);
    /// `d`
    fn set_scale(&mut self, s: S, block: usize, scale: S::F);
    /// `m`, or `-dmin`
    fn set_min(&mut self, s: S, block: usize, min: S::F);
    /// 16-bit factors of the two sums of the activations: what centres the weights, or the integer minimums.
    fn set_pair(&mut self, s: S, block: usize, pair: S::I);
    /// Integer scales of the two halves.
    fn set_halves(&mut self, s: S, block: usize, halves: [S::I; 2]);

    /// Without minimums: the weights are unsigned by as much.
    #[inline(always)]
    fn set_centre(&mut self, s: S, block: usize, centre: i16) {
        let pair = (-centre) as u16 as u32 * 0x0001_0001;
        self.set_pair(s, block, s.splat_int(pair as i32));
    }
}

impl<S: Simd> Sink<S> for Panel {
    #[inline(always)]
    fn weights(&self, s: S, rows: &Rows, at: usize, fetched: usize) -> [S::I; 4] {
        if S::BY_PAIR { rows.in_pairs(s, at, fetched) } else { rows.blocks_fetching(s, at, fetched) }
    }

    #[inline(always)]
    fn arrange(&self, s: S, transposed: [S::I; 4]) -> [S::I; 4] {
        if S::BY_PAIR { s.arrange_pairs(transposed) } else { transposed }
    }

    #[inline(always)]
    fn set_half(&mut self, s: S, block: usize, half: usize, weights: [S::I; 4]) {
        for quad in 0..4 {
            s.store_bytes(weights[quad], &mut self.weights[block][4 * half + quad].0);
        }
    }

    #[inline(always)]
    fn set_scale(&mut self, s: S, block: usize, scale: S::F) {
        s.store_bytes(s.as_int(scale), &mut self.scale[block].0);
    }

    #[inline(always)]
    fn set_min(&mut self, s: S, block: usize, min: S::F) {
        s.store_bytes(s.as_int(min), &mut self.min[block].0);
    }

    #[inline(always)]
    fn set_pair(&mut self, s: S, block: usize, pair: S::I) {
        s.store_bytes(pair, &mut self.pair[block].0);
    }

    #[inline(always)]
    fn set_halves(&mut self, s: S, block: usize, halves: [S::I; 2]) {
        for half in 0..2 {
            let scale = if S::BY_PAIR { halves[half] } else { s.recode_scale(halves[half]) };
            s.store_bytes(scale, &mut self.halves[block][half].0);
        }
    }
}

/// A storage type with integer weights.
pub(super) trait Format {
    /// Bytes of a storage block.
    const BLOCK_BYTES: usize;
    /// Activation blocks that a storage block covers.
    const BLOCK_SPAN: usize;
    /// Whether the halves of a block of 32 columns have integer scales of their own.
    const HALVES: bool = false;
    /// Whether there are minimums; if not, `pair` centres the weights.
    const MINS: bool = false;
    /// Largest weight; above 127 for signed bytes, which are recoded.
    const LARGEST: u8;

    /// Gives `sink` the storage block at byte `at` of each row, its first activation block being `block`.
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize);
}

/// Gives `sink` the whole range of `rows`, at most eight activation blocks.
#[inline(always)]
pub(super) fn unpack_all<S: Simd, F: Format>(s: S, rows: &Rows, sink: &mut impl Sink<S>) {
    for i in 0..(rows.len() / F::BLOCK_BYTES).min(BLOCKS / F::BLOCK_SPAN) {
        F::unpack(s, rows, i * F::BLOCK_BYTES, sink, i * F::BLOCK_SPAN);
    }
}

/// Fills a panel with the whole range of `rows`.
pub(super) struct Unpack<'a, F> {
    pub rows: Rows<'a>,
    pub panel: &'a mut Panel,
    pub format: PhantomData<F>,
}

impl<F: Format> Kernel for Unpack<'_, F> {
    type Output = ();
    const BYTE_PRODUCTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        unpack_all::<S, F>(s, &self.rows, self.panel);
    }
}

/// A part of each activation row: `count` blocks, `stride` blocks from one row to the next.
pub(super) struct Activations<'a> {
    pub blocks: &'a [Q8Block],
    pub stride: usize,
    pub count: usize,
}

/// The outputs of a group of panels: 16 columns for each panel, in some rows.
pub(super) struct Outputs<'a> {
    first: *mut f32,
    stride: usize,
    rows: usize,
    floats: PhantomData<&'a mut f32>,
}

impl Outputs<'_> {
    /// # Safety
    /// While the value lives, nobody else touches the columns of each row `t < rows`, which begin at
    /// `first + t * stride`.
    pub(super) unsafe fn new(first: *mut f32, stride: usize, rows: usize) -> Self {
        Outputs { first, stride, rows, floats: PhantomData }
    }

    #[inline(always)]
    fn panel(&mut self, row: usize, panel: usize) -> &mut [f32; ROWS] {
        assert!(row < self.rows);
        // SAFETY: the row exists, and by the promise made to `new` it has 16 columns for each panel.
        unsafe { &mut *self.first.add(row * self.stride + panel * ROWS).cast() }
    }
}

/// Adds the products of `G` panels and activation rows to outputs, `T` rows at a time.
pub(super) struct Multiply<'a, F, const G: usize, const T: usize> {
    pub panels: &'a [Panel; G],
    pub x: Activations<'a>,
    /// As many rows as there are activations, a multiple of `T`.
    pub out: Outputs<'a>,
    /// Whether outputs begin at zero, whatever they hold.
    pub begin: bool,
    pub format: PhantomData<F>,
}

impl<F: Format, const G: usize, const T: usize> Kernel for Multiply<'_, F, G, T> {
    type Output = ();
    const BYTE_PRODUCTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let blocks = self.x.count.min(BLOCKS);
        for row in (0..self.out.rows).step_by(T) {
            let mut x: [&[Q8Block]; T] = [&[]; T];
            let mut acc = [[s.splat(0.0); G]; T];
            for t in 0..T {
                x[t] = &self.x.blocks[(row + t) * self.x.stride..][..blocks];
                for g in 0..G {
                    if !self.begin {
                        acc[t][g] = s.load(self.out.panel(row + t, g));
                    }
                }
            }
            for block in 0..blocks {
                let sums = dot_block::<S, F, G, T>(s, self.panels, x, block);
                for t in 0..T {
                    let x = &x[t][block];
                    let value = values::<S, F, G>(s, self.panels, block, sums[t], x);
                    for g in 0..G {
                        acc[t][g] = s.fma(s.splat(x.scale), value[g], acc[t][g]);
                    }
                }
            }
            for t in 0..T {
                for g in 0..G {
                    s.store(acc[t][g], self.out.panel(row + t, g));
                }
            }
        }
    }
}

/// The integer dot products of one block of 32 columns, halves already scaled.
#[inline(always)]
fn dot_block<S: Simd, F: Format, const G: usize, const T: usize>(
    s: S,
    panels: &[Panel; G],
    x: [&[Q8Block]; T],
    block: usize,
) -> [[S::I; G]; T] {
    let mut sums = [[s.splat_int(0); G]; T];
    if S::BY_PAIR {
        for t in (0..T).step_by(2) {
            dot_pairs::<S, F, G, T>(s, panels, x, block, t, &mut sums);
        }
    } else if F::HALVES {
        dot_quads::<S, F, G, T, { QUADS / 2 }>(s, panels, x, block, 0, &mut sums);
        dot_quads::<S, F, G, T, { QUADS / 2 }>(s, panels, x, block, QUADS / 2, &mut sums);
    } else {
        dot_quads::<S, F, G, T, QUADS>(s, panels, x, block, 0, &mut sums);
    }
    sums
}

/// Adds the products of `N` fours of columns, a power of two. As many follow each other as the instruction set can add
/// before it must widen the sums.
#[inline(always)]
fn dot_quads<S: Simd, F: Format, const G: usize, const T: usize, const N: usize>(
    s: S,
    panels: &[Panel; G],
    x: [&[Q8Block]; T],
    block: usize,
    first: usize,
    sums: &mut [[S::I; G]; T],
) {
    let run = S::dots_in_a_row(F::LARGEST);
    let mut dots = [[s.no_dots(); G]; T];
    for i in 0..N {
        let quad = first + i;
        let mut weights = [s.splat_int(0); G];
        for g in 0..G {
            weights[g] = s.load_bytes(&panels[g].weights[block][quad].0);
        }
        for t in 0..T {
            let x = s.splat_bytes(&x[t][block].q.as_chunks().0[quad]);
            for g in 0..G {
                if F::LARGEST > 127 {
                    sums[t][g] = s.dot4_q8(sums[t][g], weights[g], x);
                } else {
                    dots[t][g] = s.dot4(dots[t][g], weights[g], x);
                }
            }
        }
        if F::LARGEST <= 127 && (i + 1 == N || run < N && (i + 1) % run == 0) {
            drain::<S, F, G, T>(s, panels, block, first / N, sums, dots);
            dots = [[s.no_dots(); G]; T];
        }
    }
}

/// The products of the activation rows `t` and `t + 1`, or of the last alone.
#[inline(always)]
fn dot_pairs<S: Simd, F: Format, const G: usize, const T: usize>(
    s: S,
    panels: &[Panel; G],
    x: [&[Q8Block]; T],
    block: usize,
    t: usize,
    sums: &mut [[S::I; G]; T],
) {
    let second = (t + 1).min(T - 1);
    for g in 0..G {
        let (mut dots, mut scaled) = ([s.splat_int(0); 2], [s.splat_int(0); 2]);
        for half in 0..2 {
            let mut weights = [s.splat_int(0); QUADS / 2];
            for quad in 0..QUADS / 2 {
                weights[quad] = s.load_bytes(&panels[g].weights[block][half * QUADS / 2 + quad].0);
            }
            let x = [&x[t][block].q.as_chunks().0[half], &x[second][block].q.as_chunks().0[half]];
            dots = s.dot_pair(dots, weights, x);
            if F::HALVES {
                let (scale, sum) = (s.load_bytes(&panels[g].halves[block][half].0), s.sum_pair(dots));
                scaled =
                    [s.add_int(scaled[0], s.mul_int(sum[0], scale)), s.add_int(scaled[1], s.mul_int(sum[1], scale))];
                dots = [s.splat_int(0); 2];
            }
        }
        let both = if F::HALVES { scaled } else { s.sum_pair(dots) };
        sums[second][g] = both[1];
        sums[t][g] = both[0];
    }
}

/// Adds products to the sums, scaled if the halves of a block are.
#[inline(always)]
fn drain<S: Simd, F: Format, const G: usize, const T: usize>(
    s: S,
    panels: &[Panel; G],
    block: usize,
    half: usize,
    sums: &mut [[S::I; G]; T],
    dots: [[S::Dots; G]; T],
) {
    for g in 0..G {
        let scale = s.load_bytes(&panels[g].halves[block][half].0);
        for t in 0..T {
            sums[t][g] = match F::HALVES {
                true => s.drain_scaled(sums[t][g], dots[t][g], scale),
                false => s.add_int(sums[t][g], s.drain(dots[t][g])),
            };
        }
    }
}

/// What makes a value of the integer dot product of a block; see the canonical sums of the parent module.
#[derive(Clone, Copy)]
pub(super) struct Factors<S: Simd> {
    pub scale: S::F,
    pub min: S::F,
    pub pair: S::I,
}

/// The sums of a block of activations: of its halves, as 16-bit numbers in every lane, and of all, as floats.
pub(super) struct XSums<S: Simd> {
    halves: S::I,
    all: S::F,
}

impl<S: Simd> XSums<S> {
    #[inline(always)]
    pub(super) fn new(s: S, x: &Q8Block) -> Self {
        let halves = s.splat_int(i32::from(x.sums[0]) & 0xffff | i32::from(x.sums[1]) << 16);
        let all = s.to_float(s.dot2(s.splat_int(0), halves, s.splat_int(0x0001_0001)));
        XSums { halves, all }
    }
}

/// `v` of the canonical sums.
#[inline(always)]
pub(super) fn value<S: Simd, F: Format>(s: S, factors: &Factors<S>, sum: S::I, x: &XSums<S>) -> S::F {
    if !F::MINS {
        // Bytes that are signed as they stand are centred.
        let centred = F::LARGEST > 127 && S::Q8_BIAS == 0;
        let sum = if centred { sum } else { s.dot2(sum, factors.pair, x.halves) };
        return s.mul(factors.scale, s.to_float(sum));
    }
    let x_sum = if F::HALVES { s.to_float(s.dot2(s.splat_int(0), factors.pair, x.halves)) } else { x.all };
    s.fma(factors.min, x_sum, s.mul(factors.scale, s.to_float(sum)))
}

/// The values of one activation row.
#[inline(always)]
fn values<S: Simd, F: Format, const G: usize>(
    s: S,
    panels: &[Panel; G],
    block: usize,
    sums: [S::I; G],
    x: &Q8Block,
) -> [S::F; G] {
    let x = XSums::new(s, x);
    let mut values = [s.splat(0.0); G];
    for g in 0..G {
        let panel = &panels[g];
        let factors = Factors {
            scale: s.as_float(s.load_bytes(&panel.scale[block].0)),
            min: s.as_float(s.load_bytes(&panel.min[block].0)),
            pair: s.load_bytes(&panel.pair[block].0),
        };
        values[g] = value::<S, F>(s, &factors, sums[g], &x);
    }
    values
}
