//! Parts of masks that a grammar keeps, because working them out takes long: within a string of JSON nearly all tokens may follow, but for a limit of
//! its length or a pattern, so that the engine has to look at each.
//!
//! Most tokens are plain text of a string: no byte of theirs ends it. Where the engine stands within one, its lexer alone decides about these, and so
//! its state tells which may follow, whatever the parser above it waits for. Of other tokens there are few, and the engine looks at them each time.
//! Plain tokens are looked for by the classes of their bytes first, and each by itself only where that fails and takes long.
//!
//! States are numbered by the tables of a walk. The tables that walks begin with only ever grow, so that a number that was in them when a walk began
//! means the same to all walks that begin then or later; nothing is kept of the states that a walk has made for itself.

use super::byte_classes::leads_nowhere;
use super::{Tables, Vocabulary};
use llguidance::HashMap;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of what a grammar keeps, at most.
const MOST_BYTES: usize = 4 << 20;
/// States of which something is noted, at most.
const MOST_STATES: usize = 10_000;
/// A mask is worth keeping for which so many times more of the tree was walked than its tokens that are not plain.
const WORTH: usize = 3;

/// What is known of the states of a grammar's lexer.
#[derive(Default)]
pub struct Kept {
    states: HashMap<u32, Place>,
    /// The sets that states share, each once.
    sets: Vec<Arc<SimpleVob>>,
    bytes: usize,
}

/// What is known of one.
#[derive(Clone)]
enum Place {
    /// A mask was worked out the long way.
    Wide,
    /// These plain tokens may follow.
    Plain(Arc<SimpleVob>),
    /// Plain tokens end what the lexer reads, so that it does not decide alone.
    Open,
}

impl Kept {
    /// States of which plain tokens are known.
    #[cfg(feature = "testing")]
    pub fn count(&self) -> usize {
        self.states.values().filter(|place| matches!(place, Place::Plain(_))).count()
    }

    fn insert(&mut self, state: u32, plain: Option<SimpleVob>) {
        let Some(set) = plain else {
            self.note(state, Place::Open);
            return;
        };
        let equal = self.sets.iter().find(|kept| ***kept == set).map(Arc::clone);
        let bytes = size_of_val(set.as_slice());
        let set = match equal {
            Some(set) => set,
            None if self.bytes + bytes > MOST_BYTES => return,
            None => {
                let set = Arc::new(set);
                self.sets.push(Arc::clone(&set));
                self.bytes += bytes;
                set
            }
        };
        self.note(state, Place::Plain(set));
    }

    fn note(&mut self, state: u32, place: Place) {
        if self.states.len() < MOST_STATES {
            self.states.insert(state, place);
        }
    }
}

/// Whether a byte is one of those that neither end a string of JSON nor begin an escape in it.
pub fn is_plain(byte: u8) -> bool {
    !matches!(byte, b'"' | b'\\' | 0..b' ' | 0x7f | TokTrie::SPECIAL_TOKEN_MARKER)
}

/// Computes whole masks, for a walk that began with these tables.
pub struct Computer<'a> {
    vocabulary: &'a Vocabulary,
    kept: &'a Mutex<Kept>,
    tables: Tables,
    /// What was found out of a state.
    found: Mutex<Option<(u32, Found)>>,
}

/// What a computation tells of a state.
enum Found {
    /// The plain tokens that may follow; none where the lexer does not decide about them alone.
    Plain(Option<SimpleVob>),
    /// A mask was worked out the long way.
    Wide,
}

impl<'a> Computer<'a> {
    pub fn new(vocabulary: &'a Vocabulary, kept: &'a Mutex<Kept>, tables: Tables) -> Computer<'a> {
        Computer { vocabulary, kept, tables, found: Mutex::default() }
    }

    /// Keeps what was found out, once it is known that the engine had no error meanwhile.
    pub fn keep(self) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((state, found)) = found.filter(|(state, _)| self.is_shared(*state)) else { return };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Found::Plain(plain) => kept.insert(state, plain),
            Found::Wide => kept.note(state, Place::Wide),
        }
    }

    fn note(&self, state: u32, found: Found) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some((state, found));
    }

    /// What is kept of a state.
    fn place(&self, state: u32) -> Option<Place> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.states.get(&state).filter(|_| self.is_shared(state)).cloned()
    }

    /// Whether a state has the same number in all walks from now on.
    fn is_shared(&self, state: u32) -> bool {
        (state as usize) < self.tables.states
    }

    /// The plain tokens by classes of bytes. They are not tried where no walk has left its tables yet: most steps of the lexer would be new ones.
    fn by_classes(&self, recognizer: &mut ParserRecognizer<'_>) -> Option<SimpleVob> {
        let has_tables = self.tables.generation > 0;
        has_tables.then(|| self.vocabulary.classes.tokens(recognizer, self.trie())).flatten()
    }

    /// The mask by the engine's own computer, and how much of the tree that walked.
    fn compute_anew(&self, recognizer: &mut ParserRecognizer<'_>) -> (SimpleVob, usize) {
        let before = recognizer.stats_mut().trie_nodes_walked;
        let set = self.vocabulary.factory.slicer().compute_bias(recognizer, &[]);
        (set, recognizer.stats_mut().trie_nodes_walked - before)
    }

    /// The mask that has these plain tokens.
    fn with_rest(&self, recognizer: &mut ParserRecognizer<'_>, mut plain: SimpleVob) -> SimpleVob {
        self.vocabulary.rest.add_bias(recognizer, &mut plain, &[]);
        plain
    }
}

impl BiasComputer for Computer<'_> {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, _start: &[u8]) -> SimpleVob {
        let state = recognizer.lexer_state().as_u32();
        let place = self.place(state);
        let plain = match &place {
            Some(Place::Plain(plain)) => return self.with_rest(recognizer, (**plain).clone()),
            Some(Place::Open) => return self.compute_anew(recognizer).0,
            Some(Place::Wide) => Found::Plain(plain_tokens(recognizer, self.trie())),
            None => match self.by_classes(recognizer) {
                None => Found::Wide,
                plain => Found::Plain(plain),
            },
        };
        if let Found::Plain(Some(plain)) = plain {
            self.note(state, Found::Plain(Some(plain.clone())));
            return self.with_rest(recognizer, plain);
        }
        let (set, walked) = self.compute_anew(recognizer);
        if place.is_some() || walked > WORTH * self.vocabulary.rest.root().subtree_size() {
            self.note(state, plain);
        }
        set
    }

    fn trie(&self) -> &TokTrie {
        self.vocabulary.trie()
    }
}

/// The plain tokens that may follow, each looked at; none where the parser is asked about some.
fn plain_tokens(recognizer: &mut ParserRecognizer<'_>, trie: &TokTrie) -> Option<SimpleVob> {
    let mut set = trie.alloc_token_set();
    let mut lexer = PlainBytes { recognizer, has_asked: false };
    trie.add_bias(&mut lexer, &mut set, &[]);
    (!lexer.has_asked).then_some(set)
}

/// Lets plain bytes through, as long as the lexer decides about them alone.
struct PlainBytes<'a, 'b> {
    recognizer: &'a mut ParserRecognizer<'b>,
    /// Whether the parser was asked.
    has_asked: bool,
}

impl PlainBytes<'_, '_> {
    /// Grows whenever the parser takes something.
    fn rows(&mut self) -> usize {
        let stats = self.recognizer.stats_mut();
        stats.rows + stats.cached_rows
    }
}

impl Recognizer for PlainBytes<'_, '_> {
    fn pop_bytes(&mut self, count: usize) {
        self.recognizer.pop_bytes(count);
    }

    fn collapse(&mut self) {
        self.recognizer.collapse();
    }

    fn trie_started(&mut self, label: &str) {
        self.recognizer.trie_started(label);
    }

    fn trie_finished(&mut self) {
        self.recognizer.trie_finished();
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        if self.has_asked || !is_plain(byte) {
            return false;
        }
        let (rows, state) = (self.rows(), self.recognizer.lexer_state());
        let is_pushed = self.recognizer.try_push_byte(byte);
        self.has_asked = self.rows() != rows || !is_pushed && !leads_nowhere(self.recognizer, state, byte);
        is_pushed
    }
}
