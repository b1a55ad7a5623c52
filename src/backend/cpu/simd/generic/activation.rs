//! Activations of feed-forward blocks, and the smooth cap of scores and logits.

use super::exp::exp;
use super::{load_part, store_part};
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::plan::op::Activation;

/// `gate = activation(gate) * up`
pub(in super::super) struct Gate<'a> {
    pub kind: Activation,
    pub gate: &'a mut [f32],
    pub up: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Gate { kind, gate, up } = self;
        match kind {
            Activation::Silu => each(s, gate, up, Silu),
            Activation::GeluTanh => each(s, gate, up, GeluTanh),
            Activation::GeluErf => each(s, gate, up, GeluErf),
            Activation::SquaredRelu => each(s, gate, up, SquaredRelu),
            Activation::ClampedSilu { limit, slope } => each(s, gate, up, ClampedSilu { limit, slope }),
        }
    }
}

/// `x = activation(x)`: gates of ones.
pub(in super::super) struct Activate<'a> {
    pub kind: Activation,
    pub x: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const ONES: [f32; 256] = [1.0; 256];
        for gate in self.x.chunks_mut(ONES.len()) {
            let up = &ONES[..gate.len()];
            Gate { kind: self.kind, gate, up }.run(s);
        }
    }
}

/// Two operands to one result, lane by lane. A trait and not a closure: only what is inlined is compiled for the instruction set.
trait Lanes: Copy {
    fn apply<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F;
}

#[inline(always)]
fn each<S: Simd>(s: S, gate: &mut [f32], up: &[f32], lanes: impl Lanes) {
    let (gate, gate_tail) = gate.as_chunks_mut::<16>();
    let (up, up_tail) = up.as_chunks::<16>();
    for (gate, up) in gate.iter_mut().zip(up) {
        s.store(lanes.apply(s, s.load(gate), s.load(up)), gate);
    }
    let tail = lanes.apply(s, load_part(s, gate_tail), load_part(s, up_tail));
    store_part(s, tail, gate_tail);
}

#[derive(Clone, Copy)]
struct Silu;

impl Lanes for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        s.mul(times_sigmoid(s, gate, gate), up)
    }
}

/// `x / (1 + exp(-y))`
#[inline(always)]
fn times_sigmoid<S: Simd>(s: S, x: S::F, y: S::F) -> S::F {
    let negative = s.mul(y, s.splat(-1.0));
    s.div(x, s.add(s.splat(1.0), exp(s, negative)))
}

/// Since `(1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y))`, without the cancellation of the former.
#[derive(Clone, Copy)]
struct GeluTanh;

/// 2 sqrt(2 / pi), and that times 0.044715.
const GELU_LINEAR: f32 = 1.595_769;
const GELU_CUBIC: f32 = 0.071_354_814;

impl Lanes for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        let slope = s.fma(s.mul(gate, gate), s.splat(GELU_CUBIC), s.splat(GELU_LINEAR));
        s.mul(times_sigmoid(s, gate, s.mul(gate, slope)), up)
    }
}

#[derive(Clone, Copy)]
struct GeluErf;

/// Coefficients of `ln(erfc(z) / t) + z^2` as a polynomial in `t = 1 / (1 + z / 2)`, for z >= 0: relative error of erfc below 1.2e-7
/// (Press et al., "Numerical Recipes", section 6.2).
const ERFC: [f32; 10] = [
    -1.265_512_2,
    1.000_023_7,
    0.374_091_96,
    0.096_784_18,
    -0.186_288_06,
    0.278_868_07,
    -1.135_204,
    1.488_515_9,
    -0.822_152_23,
    0.170_872_77,
];

impl Lanes for GeluErf {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        let z = s.mul(magnitude(s, gate), s.splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.5), s.splat(1.0)));
        let mut p = s.splat(ERFC[9]);
        for coefficient in ERFC[..9].iter().rev() {
            p = s.fma(p, t, s.splat(*coefficient));
        }
        // Half of erfc(z) is the normal distribution's tail beyond |x|.
        let tail = s.mul(s.mul(s.splat(0.5), t), exp(s, s.fma(s.mul(z, s.splat(-1.0)), z, p)));
        let rest = s.fma(tail, s.splat(-1.0), s.splat(1.0));
        let is_negative = s.sar(s.as_int(gate), 31);
        s.mul(s.mul(gate, select(s, is_negative, tail, rest)), up)
    }
}

#[derive(Clone, Copy)]
struct SquaredRelu;

impl Lanes for SquaredRelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        // The operand order keeps NaN.
        let positive = s.max(s.splat(0.0), gate);
        s.mul(s.mul(positive, positive), up)
    }
}

#[derive(Clone, Copy)]
struct ClampedSilu {
    limit: f32,
    slope: f32,
}

impl Lanes for ClampedSilu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        let limit = s.splat(self.limit);
        let gate = s.min(limit, gate);
        let up = s.min(limit, s.max(s.splat(-self.limit), up));
        let silu = times_sigmoid(s, gate, s.mul(gate, s.splat(self.slope)));
        s.mul(silu, s.add(up, s.splat(1.0)))
    }
}

/// `x = 1 / (1 + exp(-x))`
pub(in super::super) struct Sigmoid<'a> {
    pub x: &'a mut [f32],
}

impl Kernel for Sigmoid<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_tail) = self.x.as_chunks_mut::<16>();
        for x in x {
            s.store(times_sigmoid(s, s.splat(1.0), s.load(x)), x);
        }
        let tail = times_sigmoid(s, s.splat(1.0), load_part(s, x_tail));
        store_part(s, tail, x_tail);
    }
}

/// `x = cap * tanh(x / cap)`
pub(in super::super) struct Softcap<'a> {
    pub x: &'a mut [f32],
    pub cap: f32,
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cap = s.splat(self.cap);
        let (x, x_tail) = self.x.as_chunks_mut::<16>();
        for x in x {
            s.store(s.mul(cap, tanh(s, s.div(s.load(x), cap))), x);
        }
        let tail = s.mul(cap, tanh(s, s.div(load_part(s, x_tail), cap)));
        store_part(s, tail, x_tail);
    }
}

/// Below this magnitude tanh is a polynomial: 1 - 2 / (exp(2 x) + 1) would lose digits.
const TANH_SMALL: f32 = 0.625;
/// Coefficients of x^3 to x^11: least relative error on [-0.625, 0.625] (Lawson's iteration), 9e-9 as rounded here.
const TANH: [f32; 5] = [-0.333_332_8, 0.133_314_42, -0.053_739_704, 0.020_639_053, -0.005_704_946_4];

/// tanh(x) to within 2 ulp; NaN for NaN.
#[inline(always)]
fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let square = s.mul(x, x);
    let mut p = s.splat(TANH[4]);
    for coefficient in TANH[..4].iter().rev() {
        p = s.fma(p, square, s.splat(*coefficient));
    }
    let small = s.fma(s.mul(x, square), p, x);
    let size = magnitude(s, x);
    let sum = s.add(exp(s, s.add(size, size)), s.splat(1.0));
    let large = s.fma(s.div(s.splat(-2.0), sum), s.splat(1.0), s.splat(1.0));
    let sign = s.and(s.as_int(x), s.splat_int(i32::MIN));
    let large = s.as_float(s.or(s.as_int(large), sign));
    let is_small = s.sar(s.add_int(s.as_int(size), s.splat_int(-(TANH_SMALL.to_bits() as i32))), 31);
    select(s, is_small, small, large)
}

#[inline(always)]
fn magnitude<S: Simd>(s: S, x: S::F) -> S::F {
    s.as_float(s.and(s.as_int(x), s.splat_int(i32::MAX)))
}

/// `a` where the lane of `mask` has all bits set, `b` where it has none.
#[inline(always)]
fn select<S: Simd>(s: S, mask: S::I, a: S::F, b: S::F) -> S::F {
    let others = s.add_int(s.mul_int(mask, s.splat_int(-1)), s.splat_int(-1));
    s.as_float(s.or(s.and(mask, s.as_int(a)), s.and(others, s.as_int(b))))
}
