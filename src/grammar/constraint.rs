//! A sequence's walk through a grammar: which tokens may come next, and what the tokens that came have left to be said.
//!
//! Only sampled tokens move it. Where it stands follows from the tokens that moved it, so that a sequence that was forked or cut has the masks
//! of one that was there from the beginning. Tokens that end generation are not the grammar's: the caller lets them through where
//! [`Next::Choice`] or [`Next::End`] says that the text may end.

use super::kept::Computer;
use super::{Grammar, STEP_BYTES, Tables, WHAT, copied};
use crate::error::{Error, Result, backed, checked, push};
use llguidance::TokenParser;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use std::cmp::Reverse;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Most tokens that are looked at for whether they are beginnings of one.
const MOST_BEGINNINGS: usize = 64;

/// What a computer of masks of our own is told to begin with, and does not heed: the engine keeps masks that have no beginning for later.
const NOT_KEPT: &[u8] = b" ";

/// Where a sequence stands in its grammar.
pub struct Constraint {
    grammar: Arc<Grammar>,
    parser: TokenParser,
    /// Which of the grammar's the parser's tables are a copy of.
    tables: Tables,
    /// The token behind which the grammar begins; none where it began at once.
    trigger: Option<i32>,
    /// Where in the sequence the trigger was.
    begun: Option<usize>,
    /// Where in the sequence a token ended the text.
    ended: Option<usize>,
    /// Where in the sequence the tokens are that moved the parser.
    moves: Vec<usize>,
    /// The token of the last of them, where the parser is still to make this move.
    due: Option<u32>,
    /// The tokens that may come next, once worked out.
    mask: Option<Mask>,
    /// Why it cannot go on.
    broken: Option<String>,
}

/// The tokens that a grammar lets through.
struct Mask {
    tokens: SimpleVob,
    /// Whether the text may end here.
    may_end: bool,
    /// The only one, but for tokens that are beginnings of it.
    forced: Option<i32>,
}

/// What a grammar says of the next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Any token: the grammar has not begun.
    Free,
    /// This one.
    Forced(i32),
    /// One of the mask's.
    Choice,
    /// None but one that ends generation.
    End,
    /// None: the text has ended.
    Nothing,
}

/// How far a sequence has walked: all places are indices of its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The token behind which the grammar begins.
    pub trigger: Option<i32>,
    /// Where that was.
    pub begun: Option<usize>,
    /// Where a token ended the text.
    pub ended: Option<usize>,
    /// Where the tokens are that are the text, ascending.
    pub moves: Vec<usize>,
}

impl Constraint {
    /// At the beginning of `grammar`, behind the next token `trigger` if there is one.
    pub fn new(grammar: &Arc<Grammar>, trigger: Option<i32>) -> Result<Constraint> {
        let (parser, tables) = grammar.begin()?;
        Ok(Constraint {
            grammar: Arc::clone(grammar),
            parser,
            tables,
            trigger,
            begun: None,
            ended: None,
            moves: Vec::new(),
            due: None,
            mask: None,
            broken: None,
        })
    }

    /// The grammar that it walks through.
    pub fn grammar(&self) -> &Arc<Grammar> {
        &self.grammar
    }

    /// How far it has come; the error of a walk that cannot go on.
    pub fn walk(&self) -> Result<Walk> {
        if let Some(cause) = &self.broken {
            return Err(Error::Grammar(cause.clone()));
        }
        let &Constraint { trigger, begun, ended, .. } = self;
        Ok(Walk { trigger, begun, ended, moves: crate::error::copied(&self.moves, WHAT)? })
    }

    /// Walks as far as another has in a sequence of `tokens`; each step first asks `go_on`. [`Error::Grammar`] where the grammar does not lead there.
    pub fn resume(
        grammar: &Arc<Grammar>,
        walk: Walk,
        tokens: &[i32],
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Constraint> {
        let Walk { trigger, begun, ended, moves } = walk;
        let is_ascending = moves.is_sorted_by(|a, b| a < b);
        let last = moves.last().copied().max(ended);
        let is_begun = begun.is_some_and(|begun| moves.first().copied().or(ended).is_none_or(|first| begun < first));
        let token_of = |place: Option<usize>| place.and_then(|place| tokens.get(place).copied());
        let fits = match trigger {
            None => begun.is_none(),
            Some(_) if begun.is_none() => last.is_none(),
            Some(_) => is_begun && token_of(begun) == trigger,
        };
        let ends_last = ended.is_none() || last == ended && moves.last() != ended.as_ref();
        if !fits || !is_ascending || !ends_last || last.is_some_and(|last| last >= tokens.len()) {
            return Err(Error::Grammar("its places are not those of a walk".into()));
        }
        let mut walk = Constraint::new(grammar, trigger)?;
        (walk.begun, walk.ended) = (begun, ended);
        for &position in &moves {
            go_on()?;
            walk.step(tokens[position])?;
        }
        walk.moves = moves;
        Ok(walk)
    }

    /// Moves the parser on by a token of which no mask is known.
    fn step(&mut self, token: i32) -> Result<()> {
        let grammar = Arc::clone(&self.grammar);
        // The engine works within what is left of the limits of the mask before.
        self.compute(&Asked { trie: grammar.vocabulary.trie(), tokens: &[] }, NOT_KEPT)?;
        self.consume(token as u32)
    }

    /// Another walk from the same place.
    pub fn fork(&self) -> Result<Constraint> {
        let copy = Constraint {
            grammar: Arc::clone(&self.grammar),
            parser: copied(&self.parser)?,
            tables: self.tables,
            trigger: self.trigger,
            begun: self.begun,
            ended: self.ended,
            moves: crate::error::copied(&self.moves, WHAT)?,
            due: self.due,
            mask: None,
            broken: self.broken.clone(),
        };
        checked(WHAT)?;
        Ok(copy)
    }

    /// Whether it chooses the tokens, and does not wait for the one behind which it begins.
    pub fn has_begun(&self) -> bool {
        self.trigger.is_none() || self.begun.is_some()
    }

    /// What may come next; for most places without the work of a mask.
    pub fn peek(&mut self) -> Result<Next> {
        if self.ended.is_some() {
            return Ok(Next::Nothing);
        }
        if !self.has_begun() {
            return Ok(Next::Free);
        }
        if let Some(cause) = &self.broken {
            return Err(Error::Grammar(cause.clone()));
        }
        self.catch_up()?;
        if self.parser.stopped() {
            return Ok(Next::End);
        }
        // Most masks can wait until the pass runs: those of places where more than one byte may follow.
        if self.mask.is_none() && self.work(|parser| Ok(has_one_byte(parser)))? {
            self.prepare_narrow();
            self.prepare();
        }
        let forced = self.mask.as_ref().and_then(|mask| mask.forced);
        Ok(forced.map_or(Next::Choice, Next::Forced))
    }

    /// Works out the mask of the next token; for [`Next::Choice`] alone. What goes wrong is told by [`Constraint::mask`].
    pub fn prepare(&mut self) {
        let grammar = Arc::clone(&self.grammar);
        let computer = Computer::new(&grammar.vocabulary, &grammar.kept, self.tables);
        self.prepare_by(&computer, &[]);
        if self.broken.is_none() {
            computer.keep();
        }
        self.prepare_slowly();
    }

    /// The same by the engine alone, which knows what no token at all means.
    fn prepare_slowly(&mut self) {
        if self.mask.is_some() || self.broken.is_some() {
            return;
        }
        let may_end = self.work(|parser| Ok(parser.is_accepting())).unwrap_or(false);
        // No token at all is an error to the engine, and an answer here.
        let tokens = self.work(|parser| match parser.compute_mask() {
            Err(_) if parser.stop_reason().is_ok() => Ok(None),
            mask => mask.map(Some),
        });
        let Ok(tokens) = tokens else { return };
        self.keep(tokens.unwrap_or_else(|| SimpleVob::alloc(self.grammar.vocabulary.len())), may_end);
    }

    /// The same where a single byte may follow, if tokens of text begin with it: one walk through the vocabulary is all, where the engine would first
    /// ask which of its slices fit.
    fn prepare_narrow(&mut self) {
        let grammar = Arc::clone(&self.grammar);
        self.prepare_by(&All(grammar.vocabulary.trie()), NOT_KEPT);
    }

    /// Works out the mask by `computer`, if that finds a token.
    fn prepare_by(&mut self, computer: &dyn BiasComputer, start: &[u8]) {
        if self.mask.is_some() || self.broken.is_some() {
            return;
        }
        let may_end = self.work(|parser| Ok(parser.is_accepting()));
        let tokens = may_end.and_then(|may_end| Ok((self.compute(computer, start)?, may_end)));
        if let Some((tokens, may_end)) = tokens.ok().filter(|(tokens, _)| !tokens.is_zero()) {
            self.keep(tokens, may_end);
        }
    }

    /// Keeps what was worked out of the next token.
    fn keep(&mut self, tokens: SimpleVob, may_end: bool) {
        let forced = if may_end { None } else { only_one(&tokens, self.grammar.vocabulary.trie()) };
        self.mask = Some(Mask { tokens, may_end, forced });
    }

    /// Whether all of `tokens` may come next, for [`Next::Choice`] alone. Says no, too, of tokens that the mask alone tells of: those that are no
    /// text.
    pub fn allows(&mut self, tokens: &[i32]) -> Result<bool> {
        if let Some(cause) = &self.broken {
            return Err(Error::Grammar(cause.clone()));
        }
        let are_in = |set: &SimpleVob| tokens.iter().all(|&token| set.is_allowed(token as u32));
        if let Some(mask) = &self.mask {
            return Ok(are_in(&mask.tokens));
        }
        let grammar = Arc::clone(&self.grammar);
        self.compute(&Asked { trie: grammar.vocabulary.trie(), tokens }, NOT_KEPT).map(|found| are_in(&found))
    }

    /// Has the engine compute a set of tokens by `computer`, within the limits of a mask; `start` is empty where that is the whole mask.
    fn compute(&mut self, computer: &dyn BiasComputer, start: &[u8]) -> Result<SimpleVob> {
        self.work(|parser| {
            let found = parser.parser.compute_bias(computer, start);
            parser.parser.get_error().map_or(Ok(found), |error| Err(anyhow::anyhow!(error.message())))
        })
    }

    /// Whether the tokens that may come next have been worked out.
    pub fn is_prepared(&self) -> bool {
        self.mask.is_some()
    }

    /// The tokens that may come next, a bit each, the lowest first, and whether the text may end here; once [`Constraint::prepare`] has run.
    pub fn mask(&self) -> Result<(&[u32], bool)> {
        let mask = self.mask.as_ref().map(|mask| (mask.tokens.as_slice(), mask.may_end));
        mask.ok_or_else(|| Error::Grammar(self.broken.clone().unwrap_or_default()))
    }

    /// Moves on by `token`, which will have the index `position` in its sequence. `ends` says whether it ends generation.
    pub fn advance(&mut self, token: i32, position: usize, ends: bool) -> Result<()> {
        self.note(token, position, ends)?;
        self.catch_up()
    }

    /// The same for a token that is let through, without the work of the parser: it makes the move when it is next needed, and a move that fails is
    /// told then.
    pub fn note(&mut self, token: i32, position: usize, ends: bool) -> Result<()> {
        if let Some(trigger) = self.trigger.filter(|_| self.begun.is_none()) {
            if token == trigger {
                self.begun = Some(position);
            }
            return Ok(());
        }
        let is_text = self.mask.as_ref().is_some_and(|mask| mask.tokens.is_allowed(token as u32));
        if !is_text && ends {
            self.ended = Some(position);
            return Ok(());
        }
        self.catch_up()?;
        push(&mut self.moves, position, WHAT)?;
        self.mask = None;
        self.due = Some(token as u32);
        Ok(())
    }

    /// Has the parser make the move that was only noted. [`Error::Grammar`] where it cannot.
    pub fn catch_up(&mut self) -> Result<()> {
        let Some(token) = self.due.take() else { return Ok(()) };
        self.consume(token)
    }

    fn consume(&mut self, token: u32) -> Result<()> {
        self.guard(|parser| {
            parser.consume_token(token)?;
            parser.check_stop()
        })?;
        Ok(())
    }

    /// Goes back to where the first `length` tokens of the sequence have led.
    pub fn cut(&mut self, length: usize) {
        self.begun = self.begun.filter(|&position| position < length);
        self.ended = self.ended.filter(|&position| position < length);
        let kept = self.moves.partition_point(|&position| position < length);
        let gone = self.moves.len() - kept;
        if gone == 0 {
            return;
        }
        self.moves.truncate(kept);
        self.mask = None;
        let undone = gone - usize::from(self.due.take().is_some());
        if undone == 0 {
            return;
        }
        // What fails here has broken the walk, and the next step tells.
        let _ = self.work(|parser| parser.rollback(undone));
    }

    /// Whether any of the tokens at these places have moved it.
    pub fn has_followed(&self, places: Range<usize>) -> bool {
        let ends = self.begun.iter().chain(&self.ended);
        ends.chain(&self.moves).any(|place| places.contains(place))
    }

    /// Notes that the tokens at these places, none of which has moved it, are gone from the sequence.
    pub fn close_gap(&mut self, places: Range<usize>) {
        let ends = self.begun.iter_mut().chain(&mut self.ended);
        let behind = ends.chain(&mut self.moves).filter(|place| **place >= places.end);
        behind.for_each(|place| *place -= places.len());
    }

    /// Runs a piece of the engine's work where the walk has come to.
    fn work<T>(&mut self, body: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Result<T> {
        self.catch_up()?;
        self.guard(body)
    }

    /// Runs a piece of the engine's work. Whatever it fails from, this walk alone is broken.
    fn guard<T>(&mut self, body: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Result<T> {
        let backing = backed(STEP_BYTES, WHAT)?;
        let result = catch_unwind(AssertUnwindSafe(|| body(&mut self.parser)));
        drop(backing);
        if let Err(refused) = checked(WHAT) {
            self.broken = Some("an earlier step of this grammar was refused memory".into());
            return Err(refused);
        }
        let cause = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => format!("the grammar takes too much at this text: {error}"),
            Err(_) => "the grammar breaks the engine at this text".into(),
        };
        self.broken = Some(cause.clone());
        Err(Error::Grammar(cause))
    }
}

impl Drop for Constraint {
    fn drop(&mut self) {
        if self.broken.is_none() {
            self.grammar.learn(&mut self.parser, self.tables);
        }
    }
}

/// Whether a single byte may follow.
fn has_one_byte(parser: &mut TokenParser) -> bool {
    parser.parser.with_recognizer(|recognizer| {
        recognizer.trie_started("one byte");
        // Those first that most texts have.
        let bytes = (b' '..=u8::MAX).chain(0..b' ');
        let count = bytes.filter(|&byte| recognizer.byte_allowed(byte)).take(2).count();
        recognizer.trie_finished();
        count == 1
    })
}

/// The longest of `tokens`, if all others are beginnings of it: what they lead to is the same text, which the longest says in the fewest passes.
fn only_one(tokens: &SimpleVob, trie: &TokTrie) -> Option<i32> {
    let mut found = [0; MOST_BEGINNINGS];
    let mut count = 0;
    for (index, &word) in tokens.as_slice().iter().enumerate().filter(|(_, word)| **word != 0) {
        let mut rest = word;
        while rest != 0 {
            *found.get_mut(count)? = index as u32 * u32::BITS + rest.trailing_zeros();
            rest &= rest - 1;
            count += 1;
        }
    }
    let found = &found[..count];
    // Of tokens with the same bytes the first, as `max_by_key` takes the last.
    let longest = *found.iter().max_by_key(|&&token| (trie.token(token).len(), Reverse(token)))?;
    found.iter().all(|&token| trie.token(longest).starts_with(trie.token(token))).then_some(longest as i32)
}

/// All tokens of text, in one go.
struct All<'a>(&'a TokTrie);

impl BiasComputer for All<'_> {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, _start: &[u8]) -> SimpleVob {
        let mut set = self.0.alloc_token_set();
        self.0.add_bias(recognizer, &mut set, &[]);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}

/// Some tokens, each by itself.
struct Asked<'a> {
    trie: &'a TokTrie,
    tokens: &'a [i32],
}

impl BiasComputer for Asked<'_> {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, _start: &[u8]) -> SimpleVob {
        let mut set = self.trie.alloc_token_set();
        recognizer.trie_started("asked");
        for &token in self.tokens {
            let bytes = self.trie.token(token as u32);
            let pushed = bytes.iter().take_while(|&&byte| recognizer.try_push_byte(byte)).count();
            recognizer.pop_bytes(pushed);
            let is_text = bytes.first().is_some_and(|&first| first != TokTrie::SPECIAL_TOKEN_MARKER);
            if is_text && pushed == bytes.len() {
                set.allow_token(token as u32);
            }
        }
        recognizer.trie_finished();
        set
    }

    fn trie(&self) -> &TokTrie {
        self.trie
    }
}
