//! What a pass is expected to give and to take while its drafts are chosen, sequence by sequence.

use super::Costs;

/// Drafts between which the time is divided that a draft model takes to evaluate what it has missed of a text.
const AMORTIZED: f64 = 64.0;

/// How much faster drafts must let a pass be: less is within what is wrong about the estimates.
const LEAST_GAIN: f64 = 1.05;

/// A pass as it is planned so far.
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    /// Tokens that it gives, as expected.
    tokens: f64,
    items: usize,
    rows: usize,
    /// Nanoseconds that its drafts take before it.
    drafting: f64,
    /// Drafts that there is still room for.
    room: usize,
    /// Whether what was right before a wrong draft is evaluated again, unless that was the last one.
    goes_back: bool,
}

impl Outlook {
    /// A pass of `items` sequences with a row each, and room for so many drafts, of layers whose states go back or that have none.
    pub fn new(items: usize, room: usize, goes_back: bool) -> Outlook {
        Outlook { tokens: items as f64, items, rows: items, drafting: 0.0, room, goes_back }
    }

    /// Drafts that there is still room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// What a sequence's share of it is expected to take as it is.
    pub fn share_ns(&self, costs: &Costs) -> f64 {
        costs.of(self.rows) / self.items.max(1) as f64
    }

    /// What `count` more rows take.
    pub fn rows_ns(&self, costs: &Costs, count: usize) -> f64 {
        (costs.of(self.rows + count) - costs.of(self.rows)).max(0.0)
    }

    /// How many more drafts, `most` at most, each right with this chance where those before it are, let the pass give the most tokens a
    /// nanosecond, and how many that is; to make so many takes `drafting_ns`.
    pub fn best(&self, chance: f64, most: usize, costs: &Costs, drafting_ns: impl Fn(usize) -> f64) -> (usize, f64) {
        let plain = self.tokens / (costs.of(self.rows) + self.drafting);
        let mut best = (0, LEAST_GAIN * plain);
        let (mut tokens, mut reached, mut before, mut again) = (self.tokens, 1.0, 0.0, 0.0);
        for count in 1..=most.min(self.room) {
            // As many rows as there are right ones, the token before the drafts included, where the one but last or an earlier draft is wrong.
            again += before * (1.0 - chance) * (count - 1) as f64;
            (before, reached) = (reached, reached * chance);
            tokens += reached;
            let rows_ns = if self.goes_back { again * self.rows_ns(costs, count) / count as f64 } else { 0.0 };
            let speed = tokens / (costs.of(self.rows + count) + self.drafting + drafting_ns(count) + rows_ns);
            if speed > best.1 {
                best = (count, speed);
            }
        }
        if best.0 > 0 { best } else { (0, plain) }
    }

    /// Plans `count` more drafts of such a chance, which take `drafting` to make.
    pub fn add(&mut self, count: usize, chance: f64, drafting: f64) {
        self.rows += count;
        self.room -= count;
        self.tokens += (1..=count as i32).map(|place| chance.powi(place)).sum::<f64>();
        self.drafting += drafting;
    }
}

/// What a draft model is asked for so far in a pass, and what one more sequence adds to that.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What its passes take.
    pub costs: &'a Costs,
    /// Sequences that it drafts for.
    pub items: usize,
    /// Rows of its first pass.
    pub rows: usize,
    /// Rows of the next sequence in that: what the model lacks of its text.
    pub behind: usize,
}

impl Asked<'_> {
    /// What `count` drafts for the next sequence take.
    pub fn ns(&self, count: usize) -> f64 {
        self.more(self.rows, self.behind) + self.later(count)
    }

    /// The same with what the model has missed counted as an outlay for drafts to come.
    pub fn expected_ns(&self, count: usize) -> f64 {
        let (missed, step) = (self.more(self.rows, self.behind), self.more(self.items, 1));
        step + (missed - step).max(0.0) / AMORTIZED + self.later(count)
    }

    /// All drafts but the first.
    fn later(&self, count: usize) -> f64 {
        count.saturating_sub(1) as f64 * self.more(self.items, 1)
    }

    fn more(&self, rows: usize, more: usize) -> f64 {
        let without = if rows == 0 { 0.0 } else { self.costs.of(rows) };
        (self.costs.of(rows + more) - without).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(first: u64, each: u64) -> Costs {
        let mut costs = Costs::new(64).unwrap();
        (1..=64).for_each(|rows| costs.note(rows, first + each * rows as u64));
        costs
    }

    #[test]
    fn as_many_drafts_as_pay() {
        let (free, dear) = (costs(1000, 0), costs(0, 1000));
        let outlook = Outlook::new(1, 7, false);
        assert_eq!(outlook.best(0.5, 15, &free, |_| 0.0).0, 7);
        assert_eq!(outlook.best(0.5, 3, &free, |_| 0.0).0, 3);
        assert_eq!(outlook.best(0.98, 7, &dear, |_| 0.0).0, 0);
        assert_eq!(outlook.best(0.7, 7, &costs(900, 100), |_| 0.0).0, 4);
        // Rows that may be evaluated again count.
        assert_eq!(Outlook::new(1, 7, true).best(0.7, 7, &costs(900, 100), |_| 0.0).0, 3);
        assert_eq!(Outlook::new(1, 7, true).best(0.7, 7, &costs(1000, 0), |_| 0.0).0, 7);
        // A pass of many sequences has to give more for the time that drafts of one take of all.
        let batch = Outlook::new(32, 7, false);
        assert_eq!(batch.best(0.7, 7, &costs(900, 100), |_| 0.0).0, 0);
    }

    #[test]
    fn drafts_that_are_planned_count() {
        let costs = costs(1000, 100);
        let mut outlook = Outlook::new(2, 7, false);
        outlook.add(4, 0.5, 50.0);
        assert_eq!((outlook.rows, outlook.room, outlook.drafting), (6, 3, 50.0));
        assert!((outlook.tokens - 2.9375).abs() < 1e-9);
        assert_eq!((outlook.share_ns(&costs), outlook.rows_ns(&costs, 2)), (800.0, 200.0));
    }

    #[test]
    fn a_models_passes_are_shared_and_what_it_missed_is_an_outlay() {
        let costs = costs(100, 10);
        let first = Asked { costs: &costs, items: 0, rows: 0, behind: 1 };
        assert_eq!((first.ns(3), first.expected_ns(3)), (330.0, 330.0));
        let second = Asked { costs: &costs, items: 1, rows: 1, behind: 1 };
        assert_eq!(second.ns(3), 30.0);
        let late = Asked { costs: &costs, items: 0, rows: 0, behind: 33 };
        assert_eq!((late.ns(1), late.expected_ns(1)), (430.0, 115.0));
    }
}
