//! Drafts: guesses at the tokens that a sequence will have next, and whether evaluating them pays.
//!
//! A drafted token is evaluated in the same pass as the token before it. What is drawn from the logits of each place depends on seed, position and
//! logits alone, so the engine draws place by place and keeps what it draws, as long as the drafts agree: every token is the one that would have
//! come without drafts. Here are the guesses and the books about them. Nothing here knows a model, and nothing allocates but [`Drafter::new`],
//! [`Pool::new`] and [`Costs::new`].

mod costs;
mod ngram;
mod odds;
mod outlook;
mod pool;

pub use costs::Costs;
pub use outlook::{Asked, Outlook};

use crate::error::{Error, Result, reserve};
use ngram::Index;
pub use odds::Odds;
pub use pool::Pool;

/// Drafts of a sequence in a pass at most, and usually at most: with the token before them no more rows than kernels of small batches take.
pub const MAX_DRAFTS: usize = 15;
const DEFAULT_DRAFTS: usize = 7;
/// Drafts of all sequences in a pass at most, where each may have one: beyond so many rows a pass takes as long as its rows are many.
const MAX_DRAFTS_OF_PASS: usize = 56;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// There are none.
    Off,
    /// From repetitions, and from the draft model if there is one, or else from the model's own predictor.
    Auto,
    /// From repetitions in the sequence's own text.
    Repetitions,
    /// From a draft model.
    Model,
    /// From the model's own predictor.
    Predictor,
}

/// Which drafts a session makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where they come from.
    pub source: Source,
    /// Whether they are evaluated although they are not expected to pay.
    pub always: bool,
    /// Whether repetitions are looked for in the texts of all sequences.
    pub shares: bool,
    /// Most drafts of a sequence in a pass; 0 for as many as usual.
    pub most: usize,
}

impl Options {
    /// No drafts.
    pub const OFF: Options = Options { source: Source::Off, always: false, shares: false, most: 0 };

    /// Most drafts of a sequence in a pass of a session whose prompts have up to `max_prefill` rows.
    pub fn most_each(&self, max_prefill: usize) -> Result<usize> {
        let bad = |message: String| Err(Error::InvalidArgument(message));
        match (self.source, self.most) {
            (Source::Off, 0) => Ok(0),
            (Source::Off, _) => bad("max_drafts is set, and speculation is off".into()),
            (_, 0) => Ok(DEFAULT_DRAFTS),
            (_, most) if most > MAX_DRAFTS => bad(format!("max_drafts is {most}, {MAX_DRAFTS} are possible")),
            (_, most) => Ok(most),
        }
        .map(|most| most.min(max_prefill))
    }

    /// Most drafts of a pass over so many sequences, each of which has `most_each`.
    pub fn most_together(seqs: usize, most_each: usize) -> usize {
        seqs.saturating_mul(most_each).min(MAX_DRAFTS_OF_PASS.max(most_each))
    }

    /// Whether repetitions are looked for.
    pub fn looks_back(&self) -> bool {
        matches!(self.source, Source::Auto | Source::Repetitions)
    }
}

/// How drafts were found, as far as that tells how often they are right: by how many tokens before them were the same, in the sequence's own text
/// or in those of all, or by a model.
const CLASSES: usize = 2 * (BOUNDS.len() + 1) + 1;
/// The lengths of repetitions at which the next class begins.
const BOUNDS: [usize; 2] = [4, 8];
/// The first class of repetitions of what any sequence has said.
const SHARED: usize = BOUNDS.len() + 1;
/// The class of a model's drafts.
const MODEL: usize = CLASSES - 1;

/// How often drafts of each class are right.
pub type Experience = [Odds; CLASSES];

/// The drafts of one sequence.
pub struct Drafter {
    /// Its repetitions, where they are looked for.
    index: Option<Index>,
    /// Tokens of it that the session's pool has.
    pooled: usize,
    /// What may follow: found in this pass, all of it.
    drafts: Vec<i32>,
    /// What was found too, but not believed: its class, and the first token.
    other: Option<(usize, i32)>,
    /// How many of these the pass evaluates.
    evaluated: usize,
    class: usize,
    odds: Experience,
    /// When a model is asked although it is not expected to help.
    probes: odds::Probes,
    /// Drafts that were evaluated, and those of them that were right.
    pub drafted: u64,
    /// As above.
    pub accepted: u64,
}

impl Drafter {
    /// For a sequence of up to `capacity` tokens, and at most so many drafts in a pass; what others have seen is a beginning.
    pub fn new(options: &Options, capacity: usize, most: usize, others: &Experience) -> Result<Drafter> {
        Ok(Drafter {
            index: if options.looks_back() { Some(Index::new(capacity)?) } else { None },
            pooled: 0,
            drafts: reserve(most, "drafts")?,
            other: None,
            evaluated: 0,
            class: 0,
            odds: others.map(Odds::as_hearsay),
            probes: odds::Probes::default(),
            drafted: 0,
            accepted: 0,
        })
    }

    /// How often its drafts were right.
    pub fn experience(&self) -> &Experience {
        &self.odds
    }

    /// Has no drafts.
    pub fn clear(&mut self) {
        self.drafts.clear();
        (self.evaluated, self.other) = (0, None);
    }

    /// Forgets all but the first `length` of the `tokens` of its sequence.
    pub fn cut(&mut self, tokens: &[i32], length: usize) {
        self.index.iter_mut().for_each(|index| index.cut(tokens, length));
        self.pooled = self.pooled.min(length);
    }

    /// Looks for up to `room` tokens that may follow `tokens`, which is what the sequence says; in what all sequences say too where there is a pool,
    /// which learns what this one has said since. The likelier of both are taken.
    pub fn look(&mut self, tokens: &[i32], room: usize, pool: Option<&mut Pool>) {
        self.clear();
        let Some(index) = &mut self.index else { return };
        index.follow(tokens);
        let own = index.find(tokens).map(|(at, matched)| (at, class_of(matched)));
        let room = room.min(self.drafts.capacity());
        let shared = pool.and_then(|pool| {
            pool.enter(tokens, self.pooled);
            self.pooled = tokens.len();
            pool.follow(tokens, room, |token| self.drafts.push(token)).map(|matched| SHARED + class_of(matched))
        });
        // Where both were right as often, the longer repetition.
        let merit = |class: usize| (self.odds[class].chance(), class % SHARED);
        match (own, shared) {
            (Some((at, class)), Some(shared)) if merit(class) >= merit(shared) => {
                self.other = self.drafts.first().map(|&first| (shared, first));
                self.repeat(tokens, at, room, class);
            }
            (own, Some(shared)) => {
                self.other = own.map(|(at, class)| (class, tokens[at]));
                self.class = shared;
            }
            (Some((at, class)), None) => self.repeat(tokens, at, room, class),
            (None, None) => {}
        }
    }

    /// Drafts what stands from number `at` on.
    fn repeat(&mut self, tokens: &[i32], at: usize, room: usize, class: usize) {
        self.class = class;
        self.drafts.clear();
        for place in at..at + room {
            // What is found may reach into the drafts themselves: a text that repeats with a period.
            let draft = tokens.get(place).copied().unwrap_or_else(|| self.drafts[place - tokens.len()]);
            self.drafts.push(draft);
        }
    }

    /// The chance that the first draft is right.
    pub fn chance(&self) -> f64 {
        self.odds[self.class].chance()
    }

    /// How many of the drafts that [`Drafter::look`] has found are worth evaluating, and the speed that is expected with them.
    pub fn worth(&self, outlook: &Outlook, costs: &Costs) -> (usize, f64) {
        outlook.best(self.chance(), self.drafts.len(), costs, |_| 0.0)
    }

    /// How many drafts of a model are worth asking for, `room` at most, and the speed that is expected with them.
    pub fn worth_asking(&self, asked: &Asked, outlook: &Outlook, costs: &Costs, room: usize) -> (usize, f64) {
        let most = room.min(self.drafts.capacity());
        outlook.best(self.odds[MODEL].chance(), most, costs, |count| asked.expected_ns(count))
    }

    /// Whether it is time to find out how good a model's drafts are now, which takes `cost` where a pass without takes `pass`.
    pub fn is_time_to_probe(&mut self, cost: f64, pass: f64) -> bool {
        self.probes.is_due(cost, pass)
    }

    /// Has the drafts of a model, which come one by one, instead of those that were found.
    pub fn ask(&mut self) {
        self.clear();
        self.class = MODEL;
    }

    /// Takes a draft of a model in, to be evaluated.
    pub fn push(&mut self, draft: i32) {
        debug_assert!(self.drafts.len() < self.drafts.capacity());
        self.drafts.push(draft);
        self.evaluated = self.drafts.len();
    }

    /// Chooses how many of the drafts are evaluated.
    pub fn evaluate(&mut self, count: usize) {
        self.evaluated = count;
    }

    /// The drafts that the pass evaluates.
    pub fn evaluated(&self) -> &[i32] {
        &self.drafts[..self.evaluated]
    }

    /// What has been found.
    pub fn found(&self) -> &[i32] {
        &self.drafts
    }

    /// Learns from the tokens that came: the first says whether the first draft was right, evaluated or not; of those that were evaluated
    /// each that was reached counts. How many of those were right.
    pub fn learn(&mut self, came: &[i32]) -> u64 {
        let Some(&first) = self.drafts.first() else { return 0 };
        let right = came.iter().zip(&self.drafts).take_while(|(token, draft)| token == draft).count();
        let seen = came.len().min(self.evaluated.max(1)).min(self.drafts.len());
        (0..seen).for_each(|place| self.odds[self.class].observe(place < right));
        if let Some((class, token)) = self.other {
            self.odds[class].observe(came.first() == Some(&token));
        }
        if self.class == MODEL {
            self.probes.observe(came.first() == Some(&first));
        }
        let accepted = right.min(self.evaluated) as u64;
        self.drafted += self.evaluated as u64;
        self.accepted += accepted;
        self.clear();
        accepted
    }
}

/// The class of drafts behind so many tokens that were the same.
fn class_of(matched: usize) -> usize {
    BOUNDS.iter().filter(|&&bound| matched >= bound).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKING: Options = Options { source: Source::Auto, ..Options::OFF };

    fn drafter(most: usize) -> Drafter {
        Drafter::new(&LOOKING, 4096, most, &Experience::default()).unwrap()
    }

    #[test]
    fn drafts_are_what_followed_the_longest_repetition() {
        let found = |tokens: &[i32], room| {
            let mut drafter = drafter(4);
            drafter.look(tokens, room, None);
            drafter.found().to_vec()
        };
        assert_eq!(found(&[1, 2, 3, 4, 5, 9, 2, 3, 4, 7, 8, 1, 2, 3, 4], 4), [5, 9, 2, 3]);
        assert_eq!(found(&[1, 2, 3, 4, 5, 9, 2, 3, 4, 7, 8, 9, 2, 3, 4], 2), [7, 8]);
        assert!(found(&[1, 2, 3, 4, 5, 6], 4).is_empty());
    }

    #[test]
    fn a_period_goes_on_into_the_drafts() {
        let mut drafter = drafter(6);
        drafter.look(&[7, 7, 7, 7], 6, None);
        assert_eq!(drafter.found(), [7; 6]);
        drafter.cut(&[7, 7, 7, 7], 0);
        drafter.look(&[1, 2, 3, 1, 2, 3, 1], 6, None);
        assert_eq!(drafter.found(), [2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn of_what_is_found_the_likelier_is_taken_and_both_are_learnt_from() {
        let (mut pool, mut drafter) = (Pool::new().unwrap(), drafter(4));
        pool.enter(&[1, 2, 3, 4, 50, 51, 52], 0);
        let text = [1, 2, 3, 4, 60, 61, 62, 1, 2, 3, 4];
        // The pool learns what the sequence has said itself, so both say the same unless another one has spoken since.
        let mut look = |drafter: &mut Drafter, other: &[i32]| {
            drafter.look(&text, 3, Some(&mut pool));
            pool.enter(other, 0);
            drafter.look(&text, 3, Some(&mut pool));
            drafter.found().to_vec()
        };
        assert_eq!(look(&mut drafter, &[1, 2, 3, 4, 50, 51, 52]), [60, 61, 62]);
        for _ in 0..20 {
            drafter.learn(&[50]);
            look(&mut drafter, &[]);
        }
        assert_eq!(look(&mut drafter, &[]), [50, 51, 52]);
        for _ in 0..40 {
            drafter.learn(&[60]);
            look(&mut drafter, &[]);
        }
        assert_eq!(look(&mut drafter, &[]), [60, 61, 62]);
        drafter.cut(&text, 4);
        drafter.look(&text[..4], 3, Some(&mut pool));
        assert_eq!(drafter.found(), [50, 51, 52]);
    }

    #[test]
    fn drafts_that_lose_end_and_those_that_would_win_begin_again() {
        let (mut drafter, mut costs) = (drafter(4), Costs::new(8).unwrap());
        (1..=8).for_each(|rows| costs.note(rows, 1000 + 300 * rows as u64));
        let (text, outlook) = ([1, 2, 3, 4, 5, 1, 2, 3], Outlook::new(1, 4, false));
        let mut follow = |token: i32, evaluated: Option<usize>| {
            drafter.look(&text, 4, None);
            let worth = drafter.worth(&outlook, &costs).0;
            drafter.evaluate(evaluated.unwrap_or(worth));
            drafter.learn(&[token]);
            (worth, drafter.drafted, drafter.accepted)
        };
        assert!(follow(9, None).0 > 0);
        for _ in 0..10 {
            follow(9, None);
        }
        let (worth, drafted, accepted) = follow(9, None);
        assert!(worth == 0 && drafted < 12 && accepted == 0, "{worth} {drafted} {accepted}");
        for _ in 0..40 {
            follow(4, Some(0));
        }
        assert!(follow(4, None).0 > 1);
    }

    #[test]
    fn a_models_drafts_take_the_place_of_what_was_found() {
        let mut drafter = drafter(4);
        drafter.look(&[7, 7, 7, 7], 4, None);
        drafter.ask();
        for draft in [5, 6] {
            drafter.push(draft);
        }
        assert_eq!(drafter.evaluated(), [5, 6]);
        assert_eq!(drafter.learn(&[5, 8]), 1);
        assert_eq!((drafter.drafted, drafter.accepted, drafter.found().len()), (2, 1, 0));
    }

    #[test]
    fn numbers_of_drafts_are_checked() {
        let options = |source, most| Options { source, most, ..Options::OFF };
        assert_eq!(Options::OFF.most_each(512).unwrap(), 0);
        assert_eq!(options(Source::Auto, 0).most_each(512).unwrap(), DEFAULT_DRAFTS);
        assert_eq!(options(Source::Auto, 0).most_each(4).unwrap(), 4);
        assert!(options(Source::Off, 3).most_each(512).is_err());
        assert!(options(Source::Model, 16).most_each(512).is_err());
        assert_eq!(Options::most_together(4, 7), 28);
        assert_eq!(Options::most_together(256, 15), MAX_DRAFTS_OF_PASS);
    }
}
