//! What a pass takes by the number of its rows, as measured.

use crate::error::{Result, filled};

/// Weight of one measurement.
const WEIGHT: f64 = 0.25;
/// Passes after which a first measurement is too old to be believed; twice as many for every further one, up to a most.
const FIRST_LIFE: u64 = 64;
const LONGEST_LIFE: u64 = 4096;
/// Passes after which a number of rows that took too long is tried again: it may have been held up, and would not be measured otherwise.
const RETRY: u64 = 16;

/// What passes with so many rows take.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    /// Nanoseconds; 0 where nothing was measured.
    ns: f64,
    /// The pass that told last.
    pass: u64,
    /// Passes for which it is believed.
    life: u64,
}

/// Times of passes by rows.
#[derive(Debug)]
pub struct Costs {
    /// Of passes without rows first.
    times: Vec<Time>,
    passes: u64,
}

impl Costs {
    /// For passes of up to `rows` rows.
    pub fn new(rows: usize) -> Result<Costs> {
        Ok(Costs { times: filled(rows.saturating_add(1), Time::default(), "times of passes")?, passes: 0 })
    }

    /// Bytes that [`Costs::new`] reserves.
    pub fn bytes(rows: usize) -> usize {
        rows.saturating_add(1).saturating_mul(size_of::<Time>())
    }

    /// Notes what a pass took. One that the system held up counts as twice what was known; without rows there was none.
    pub fn note(&mut self, rows: usize, ns: u64) {
        if rows == 0 {
            return;
        }
        self.passes += 1;
        let (known, pass) = (self.known(rows), self.passes);
        let Some(time) = self.times.get_mut(rows) else { return };
        let ns = ns.max(1) as f64;
        *time = match known {
            Some(known) => {
                let life = (2 * time.life).min(LONGEST_LIFE);
                Time { ns: known + (ns.min(2.0 * known) - known) * WEIGHT, pass, life }
            }
            None => Time { ns, pass, life: FIRST_LIFE },
        };
    }

    /// What a pass of `rows` rows is expected to take: between what neighbours took. What lies beyond all that is known is thought too cheap, so
    /// that it is tried: no dearer than the largest pass that is known, or rows of the smallest.
    pub fn of(&self, rows: usize) -> f64 {
        let below = (1..=rows).rev().find_map(|rows| Some((rows, self.known(rows)?)));
        let above = (rows..self.times.len()).find_map(|rows| Some((rows, self.known(rows)?)));
        match (below, above) {
            (Some((low, a)), Some((high, b))) if low < high => a + (b - a) * (rows - low) as f64 / (high - low) as f64,
            (Some((_, time)), _) => time,
            (None, Some((high, time))) => time * rows as f64 / high as f64,
            (None, None) => 1.0,
        }
    }

    /// Most rows, `most` at the most, of a pass that is expected to end within `ns`, and at least one. What lies beyond all that is known is thought
    /// as dear, row by row, as what is known; what lies below it is not known to be cheaper. What was too long is believed for a while only.
    pub fn rows_within(&self, ns: f64, most: usize) -> usize {
        let known = |rows: &usize| self.known(*rows).is_some() && self.passes - self.times[*rows].pass < RETRY;
        let fits = |rows: &usize| self.known(*rows).is_some_and(|time| time <= ns);
        let Some(low) = (1..self.times.len()).rev().find(fits) else { return 1 };
        let high = (low + 1..self.times.len()).find(known);
        let (time, beyond) = (self.of(low), high.map(|high| (high, self.of(high))));
        let more = match beyond {
            Some((high, dear)) => (ns - time) / (dear - time) * (high - low) as f64,
            None => (ns / time - 1.0) * low as f64,
        };
        // A number that is too large for the type becomes its largest.
        low.saturating_add(more as usize).clamp(1, most.max(1))
    }

    fn known(&self, rows: usize) -> Option<f64> {
        let time = self.times.get(rows)?;
        (time.ns > 0.0 && self.passes - time.pass < time.life).then_some(time.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_expected_between_their_neighbours() {
        let mut costs = Costs::new(8).unwrap();
        assert_eq!(costs.of(3), 1.0);
        costs.note(2, 100);
        assert_eq!((costs.of(1), costs.of(2), costs.of(5)), (50.0, 100.0, 100.0));
        costs.note(6, 300);
        assert_eq!((costs.of(4), costs.of(8)), (200.0, 300.0));
        costs.note(6, 100_000);
        assert_eq!(costs.of(6), 375.0);
        costs.note(99, 1);
        costs.note(0, 1);
        assert_eq!((costs.of(2), costs.of(99)), (100.0, 375.0));
    }

    #[test]
    fn rows_are_given_only_as_far_as_their_time_is_known() {
        let mut costs = Costs::new(100).unwrap();
        assert_eq!(costs.rows_within(1e9, 100), 1);
        costs.note(4, 400);
        // Beyond, each row is as dear as those that are known; below, nothing is known to be cheaper.
        assert_eq!([399.0, 400.0, 999.0, 1e9, f64::INFINITY].map(|ns| costs.rows_within(ns, 50)), [1, 4, 9, 50, 50]);
        costs.note(20, 600);
        assert_eq!([400.0, 500.0, 599.0, 600.0, 900.0].map(|ns| costs.rows_within(ns, 50)), [4, 12, 19, 20, 30]);
        // A pass that was held up stands for itself alone.
        costs.note(10, 100_000);
        assert_eq!([500.0, 600.0].map(|ns| costs.rows_within(ns, 50)), [4, 20]);
        assert_eq!([costs.rows_within(600.0, 7), costs.rows_within(600.0, 0)], [7, 1]);
        // Rows that took too long are tried again after a while, however often they were measured.
        (0..50).for_each(|_| costs.note(21, 700));
        assert_eq!(costs.rows_within(650.0, 50), 20);
        (0..RETRY).for_each(|_| costs.note(20, 600));
        assert_eq!(costs.rows_within(650.0, 50), 21);
    }

    #[test]
    fn times_are_forgotten_the_sooner_the_less_often_they_were_measured() {
        let life = |measurements: u64| {
            let mut costs = Costs::new(8).unwrap();
            (0..measurements).for_each(|_| costs.note(5, 300));
            (0..).find(|_| {
                costs.note(1, 100);
                costs.of(5) == 100.0
            })
        };
        assert_eq!([1, 2, 20].map(life), [Some(63), Some(127), Some(4095)]);
    }
}
