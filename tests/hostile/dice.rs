//! Choices of a seeded stream of random numbers: equal seeds make equal files on every machine.

use segno::quant::synthetic::Random;

/// Numbers at which sizes, counts and ids change their meaning.
const EDGES: [u64; 34] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    12,
    16,
    31,
    32,
    33,
    64,
    127,
    128,
    255,
    256,
    511,
    512,
    513,
    4095,
    65_535,
    65_536,
    (1 << 24) - 1,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

const FLOATS: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    1e-30,
    1e30,
    0.5,
    65_520.0,
    1e-9,
];

/// A stream of choices.
#[derive(Clone)]
pub struct Dice(Random);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Random::new(seed))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.0.bits() % bound as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn byte(&mut self) -> u8 {
        self.0.bits() as u8
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// A number at an edge, beside one, or of any magnitude.
    pub fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.0.bits() >> self.below(64),
            1 => self.pick(&EDGES).wrapping_add(self.below(5) as u64).wrapping_sub(2),
            _ => self.pick(&EDGES),
        }
    }

    pub fn float(&mut self) -> f32 {
        if self.one_in(3) { f32::from_bits(self.0.bits() as u32) } else { self.pick(&FLOATS) }
    }
}
