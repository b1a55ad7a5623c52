//! Parts of masks that a grammar keeps, because working them out takes long: within a string of JSON nearly all tokens may follow, but for a limit of
//! its length or a pattern, so that the engine has to look at each.
//!
//! Most tokens are plain text of a string: no byte of theirs ends it. Where the engine stands within one, its lexer alone decides about these, and so
//! its state tells which may follow, whatever the parser above it waits for. Of other tokens there are few, and the engine looks at them each time.
//!
//! States are numbered by the tables of a walk. The tables that walks begin with only ever grow, so that a number that was in them when a walk began
//! means the same to all walks that begin then or later; nothing is kept of the states that a walk has made for itself.

use super::Vocabulary;
use llguidance::HashMap;
use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use std::mem::discriminant;
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

/// Computes whole masks, for a walk that shares the numbers of states below `known`.
pub struct Computer<'a> {
    pub vocabulary: &'a Vocabulary,
    pub kept: &'a Mutex<Kept>,
    pub known: usize,
}

impl Computer<'_> {
    fn with<R>(&self, body: impl FnOnce(&mut Kept) -> R) -> R {
        body(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The mask by the engine's own computer.
    fn compute_anew(&self, recognizer: &mut ParserRecognizer<'_>) -> (SimpleVob, usize) {
        let before = recognizer.stats_mut().trie_nodes_walked;
        let set = self.vocabulary.factory.slicer().compute_bias(recognizer, &[]);
        (set, recognizer.stats_mut().trie_nodes_walked - before)
    }

    fn add_rest(&self, recognizer: &mut ParserRecognizer<'_>, mut plain: SimpleVob) -> SimpleVob {
        self.vocabulary.rest.add_bias(recognizer, &mut plain, &[]);
        plain
    }
}

impl BiasComputer for Computer<'_> {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, _start: &[u8]) -> SimpleVob {
        let state = recognizer.lexer_state();
        if state.as_usize() >= self.known {
            return self.compute_anew(recognizer).0;
        }
        let state = state.as_u32();
        match self.with(|kept| kept.states.get(&state).cloned()) {
            Some(Place::Plain(plain)) => self.add_rest(recognizer, (*plain).clone()),
            Some(Place::Open) => self.compute_anew(recognizer).0,
            Some(Place::Wide) => {
                let plain = plain_tokens(recognizer, self.trie());
                self.with(|kept| kept.insert(state, plain.clone()));
                match plain {
                    Some(plain) => self.add_rest(recognizer, plain),
                    None => self.compute_anew(recognizer).0,
                }
            }
            None => {
                let (set, walked) = self.compute_anew(recognizer);
                if walked > WORTH * self.vocabulary.rest.root().subtree_size() {
                    self.with(|kept| kept.note(state, Place::Wide));
                }
                set
            }
        }
    }

    fn trie(&self) -> &TokTrie {
        self.vocabulary.trie()
    }
}

/// The plain tokens that may follow; none where the parser is asked about some.
fn plain_tokens(recognizer: &mut ParserRecognizer<'_>, trie: &TokTrie) -> Option<SimpleVob> {
    // What the lexer says of a byte that leads nowhere. The type of that has no name out of the engine.
    let error = discriminant(&recognizer.lexer_mut().advance(StateID::DEAD, 0, false, &None));
    let leads_nowhere = |recognizer: &mut ParserRecognizer<'_>, byte| {
        let state = recognizer.lexer_state();
        discriminant(&recognizer.lexer_mut().advance(state, byte, false, &None)) == error
    };
    let mut set = trie.alloc_token_set();
    let mut lexer = PlainBytes { recognizer, leads_nowhere, has_asked: false };
    trie.add_bias(&mut lexer, &mut set, &[]);
    (!lexer.has_asked).then_some(set)
}

/// Lets plain bytes through, as long as the lexer decides about them alone.
struct PlainBytes<'a, 'b, F> {
    recognizer: &'a mut ParserRecognizer<'b>,
    leads_nowhere: F,
    /// Whether the parser was asked.
    has_asked: bool,
}

impl<F> PlainBytes<'_, '_, F> {
    /// Grows whenever the parser takes something.
    fn rows(&mut self) -> usize {
        let stats = self.recognizer.stats_mut();
        stats.rows + stats.cached_rows
    }
}

impl<F: Fn(&mut ParserRecognizer<'_>, u8) -> bool> Recognizer for PlainBytes<'_, '_, F> {
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
        let rows = self.rows();
        let is_pushed = self.recognizer.try_push_byte(byte);
        self.has_asked = self.rows() != rows || !is_pushed && !(self.leads_nowhere)(self.recognizer, byte);
        is_pushed
    }
}
