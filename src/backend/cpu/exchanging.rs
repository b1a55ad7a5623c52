//! Rows of values that half a program gives to the other half, and takes from there.

use super::runner::Pass;
use crate::error::Result;
use crate::plan::ValueId;
use crate::plan::op::Exchanged;

impl Pass<'_> {
    /// Gives all rows of a value away; nothing where there is no other half.
    pub(super) fn send(&mut self, x: ValueId, by: Exchanged) {
        let Some(exchange) = &mut self.exchange else { return };
        let (rows, width) = (self.batch.rows.len(), self.runner.program.values[x.0].width);
        exchange.sent(by, rows, width).copy_from_slice(self.runner.rows(x, 0, rows));
    }

    /// Takes all rows of a value.
    pub(super) fn receive(&mut self, out: ValueId, by: Exchanged) -> Result<()> {
        let Some(exchange) = self.exchange.take() else { return Ok(()) };
        let (rows, width) = (self.batch.rows.len(), self.runner.program.values[out.0].width);
        let received = exchange.received(by, rows, width);
        let result = self.write_rows(out, |_, row, out| out.copy_from_slice(&received[row * width..][..width]));
        self.runner.sorted.forget();
        self.exchange = Some(exchange);
        result
    }
}
