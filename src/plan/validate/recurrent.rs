//! The checks of ops with a state.

use super::Checker;
use crate::error::Result;
use crate::kv::state::Shape;
use crate::plan::op::{Convolution, MOST_TAPS, Rows, Scan, StateId, Strength, Value};

impl Checker<'_> {
    /// Every state belongs to one op, which alone says what is in it; those without elements are of the other half of a program.
    pub(super) fn states(&self) -> Result<()> {
        let used =
            |id: usize| self.program.ops.iter().filter(|op| op.state().is_some_and(|state| state.0 == id)).count();
        let wanted = |state: &Shape| usize::from(state.elements() > 0);
        let all = self.program.states.iter().enumerate().all(|(id, state)| used(id) == wanted(state));
        self.require(all, "a state does not belong to one op")
    }

    pub(super) fn convolution(&self, convolution: Convolution) -> Result<()> {
        let Convolution { state, x, taps, weight, bias, out } = convolution;
        let (from, to) = (self.value(x)?, self.value(out)?);
        self.same(to, Value::floats(from.width, Rows::Batch))?;
        self.same(from, to)?;
        self.require(x != out, "a convolution cannot write what it reads")?;
        self.require((2..=MOST_TAPS).contains(&taps), "so many taps are not supported")?;
        self.state(state, Shape::Rows { count: taps - 1, width: from.width })?;
        self.vector(weight, taps * from.width)?;
        bias.map_or(Ok(()), |bias| self.vector(bias, from.width))
    }

    pub(super) fn scan(&self, scan: Scan) -> Result<()> {
        let Scan { state, queries, keys, values, decay, strength, bias, rate, skip, key_heads, out, .. } = scan;
        let shape = self.program.states.get(state.0).copied();
        let Some(Shape::Matrices { heads, rows, cols }) = shape else {
            return self.require(false, "its state does not hold matrices");
        };
        let fits = heads > 0 && rows > 0 && cols > 0 && key_heads > 0 && heads.is_multiple_of(key_heads);
        self.require(fits, "the heads of its state do not fit")?;
        for id in [queries, keys] {
            self.same(self.value(id)?, Value::floats(key_heads * rows, Rows::Batch))?;
        }
        for id in [values, out] {
            self.same(self.value(id)?, Value::floats(heads * cols, Rows::Batch))?;
        }
        let weights = if let Strength::Delta(strength) = strength { [decay, strength] } else { [decay; 2] };
        for id in weights {
            self.same(self.value(id)?, Value::floats(heads, Rows::Batch))?;
        }
        self.require(scan.reads().into_iter().flatten().all(|id| id != out), "a scan cannot write what it reads")?;
        self.vector(bias, heads)?;
        self.vector(rate, heads)?;
        let decays = self.program.vectors[rate.0].iter().all(|&rate| rate <= 0.0 && rate.is_finite());
        self.require(decays, "a rate is positive, so its state would grow")?;
        skip.map_or(Ok(()), |skip| self.vector(skip, heads))
    }

    fn state(&self, id: StateId, shape: Shape) -> Result<()> {
        self.require(self.program.states.get(id.0) == Some(&shape), "its state has another shape")
    }
}
