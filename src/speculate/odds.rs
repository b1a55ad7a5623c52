//! How often drafts are right, as seen, and when to look again at a drafter that was not.

/// What is thought of drafts that have not been seen yet.
const FIRST_CHANCE: f32 = 0.6;
/// Chances never become certain, so that one wrong draft does not count for nothing.
const MOST_CHANCE: f32 = 0.98;
/// Observations after which older ones begin to fade.
const MEMORY: u32 = 32;
/// Observations as many as which what another sequence has seen weighs for a new one.
const HEARSAY: u32 = 3;

/// How often drafts of a kind are right.
#[derive(Clone, Copy, Debug)]
pub struct Odds {
    chance: f32,
    seen: u32,
}

impl Default for Odds {
    fn default() -> Odds {
        Odds { chance: FIRST_CHANCE, seen: 0 }
    }
}

impl Odds {
    /// The chance that the next draft is right.
    pub fn chance(&self) -> f64 {
        self.chance.into()
    }

    /// What a new sequence makes of them.
    pub fn as_hearsay(self) -> Odds {
        Odds { seen: self.seen.min(HEARSAY), ..self }
    }

    /// Learns from a draft. What is thought at first weighs as much as one observation.
    pub fn observe(&mut self, is_right: bool) {
        self.seen = (self.seen + 1).min(MEMORY - 1);
        let hit = if is_right { 1.0 } else { 0.0 };
        self.chance = (self.chance + (hit - self.chance) / (self.seen + 1) as f32).min(MOST_CHANCE);
    }
}

/// A probe may take a share of the time since the last one: a hundredth at first, more the more of them were right in a row, and less the more were
/// wrong.
const PATIENCE: f64 = 100.0;
const MOST_PATIENCE: f64 = 4.0 * PATIENCE;

/// When to ask a drafter that costs time, and has been wrong, for one more draft.
#[derive(Clone, Copy, Debug)]
pub struct Probes {
    /// Nanoseconds of passes since the last one.
    waited: f64,
    patience: f64,
}

impl Default for Probes {
    fn default() -> Probes {
        Probes { waited: 0.0, patience: PATIENCE }
    }
}

impl Probes {
    /// Notes a pass that took `pass`, and tells whether a probe that takes `cost` is due.
    pub fn is_due(&mut self, cost: f64, pass: f64) -> bool {
        self.waited += pass;
        self.waited >= cost * self.patience
    }

    /// The patience behind a probe that was wrong.
    fn longer(&self) -> f64 {
        (2.0 * self.patience).clamp(PATIENCE, MOST_PATIENCE)
    }

    /// Learns from the first of a pass's drafts.
    pub fn observe(&mut self, is_right: bool) {
        self.waited = 0.0;
        self.patience = if is_right { (self.patience.min(PATIENCE) / 2.0).max(1.0) } else { self.longer() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_observations_outweigh_what_was_thought_at_first() {
        let mut odds = Odds::default();
        (0..4).for_each(|_| odds.observe(false));
        assert!(odds.chance() < 0.15, "{}", odds.chance());
        let mut other = odds.as_hearsay();
        (0..3).for_each(|_| other.observe(true));
        assert!(other.chance() > 0.4, "{}", other.chance());
        (0..200).for_each(|_| odds.observe(true));
        assert!(odds.chance() > 0.97 && odds.chance() <= f64::from(MOST_CHANCE));
        (0..1000).for_each(|round| odds.observe(round % 4 > 0));
        assert!((odds.chance() - 0.75).abs() < 0.1, "{}", odds.chance());
    }

    #[test]
    fn probes_that_are_wrong_take_a_hundredth_of_the_time_and_then_a_quarter_of_that() {
        let mut probes = Probes::default();
        let due: Vec<usize> = (1..=10_000)
            .filter(|_| {
                let is_due = probes.is_due(3.0, 1.0);
                if is_due {
                    probes.observe(false);
                }
                is_due
            })
            .collect();
        assert_eq!(due, [300, 900, 2100, 3300, 4500, 5700, 6900, 8100, 9300]);
        probes.observe(true);
        assert!((1..=150).all(|wait| probes.is_due(3.0, 1.0) == (wait == 150)));
    }

    #[test]
    fn probes_that_are_right_come_soon_again() {
        let mut probes = Probes::default();
        let waits: Vec<usize> = (0..6)
            .map(|_| {
                let wait = (1..).find(|_| probes.is_due(1.0, 1.0)).unwrap();
                probes.observe(true);
                wait
            })
            .collect();
        assert_eq!(waits, [100, 50, 25, 13, 7, 4]);
    }
}
