//! Plain tokens of a vocabulary by the classes of their bytes.
//!
//! Within most strings of JSON a lexer does not tell one letter from another: it counts characters, and follows the bytes of a character in UTF-8. So
//! all tokens whose bytes are of the same classes in the same order lead it to the same state. There are a few thousand such orders where there are
//! 128,000 tokens, and a tree of them is walked in a fraction of the time. Nothing is taken for granted: at each state that the walk comes to, all
//! bytes of a class must lead to one state, and where they do not, the walk gives up.

use super::kept::is_plain;
use llguidance::HashMap;
use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::{SimpleVob, TokTrie};
use std::array;
use std::collections::BTreeMap;
use std::mem::discriminant;

/// Classes of bytes: those of ASCII that are plain, and the first and later ones of longer characters as UTF-8 tells them apart.
const CLASSES: usize = 12;
/// Tokens that are added sooner as a set than one by one.
const MANY: usize = 500;

/// The class of a plain byte.
fn class(byte: u8) -> usize {
    match byte {
        0..0x80 => 0,
        0x80..=0x8f => 1,
        0x90..=0x9f => 2,
        0xa0..=0xbf => 3,
        0xc2..=0xdf => 4,
        0xe0 => 5,
        0xe1..=0xec | 0xee | 0xef => 6,
        0xed => 7,
        0xf0 => 8,
        0xf1..=0xf3 => 9,
        0xf4 => 10,
        0xc0 | 0xc1 | 0xf5.. => 11,
    }
}

/// A tree of the classes of plain tokens' bytes.
pub struct ByteClasses {
    /// The plain bytes of each class.
    bytes: [Vec<u8>; CLASSES],
    /// All but the root; each comes before those below it, and these before the next that is not.
    nodes: Vec<Node>,
    /// Tokens of nodes that have few, one node's behind the other's.
    tokens: Vec<u32>,
    /// Tokens of nodes that have many.
    sets: Vec<SimpleVob>,
}

/// Where a row of classes has led.
struct Node {
    class: u8,
    /// Nodes above it, but for the root.
    depth: u16,
    /// The first node behind it that is not below it.
    next: u32,
    tokens: Tokens,
}

/// The tokens that end at a node.
enum Tokens {
    /// From here to there in the list.
    Few(u32, u32),
    Many(u32),
}

impl ByteClasses {
    /// The tree of those of `words` that are plain; the index of a word is its token.
    pub fn new(words: &[Vec<u8>], trie: &TokTrie) -> ByteClasses {
        let bytes = array::from_fn(|of| (0..=u8::MAX).filter(|&byte| is_plain(byte) && class(byte) == of).collect());
        let mut tree = ByteClasses { bytes, nodes: Vec::new(), tokens: Vec::new(), sets: Vec::new() };
        let mut rows: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
        for (token, word) in words.iter().enumerate() {
            if !word.is_empty() && word.iter().copied().all(is_plain) {
                let row = word.iter().map(|&byte| class(byte) as u8).collect();
                rows.entry(row).or_default().push(token as u32);
            }
        }
        // The nodes that the last row went through.
        let mut path: Vec<(u8, usize)> = Vec::new();
        for (row, tokens) in rows {
            let common = path.iter().zip(&row).take_while(|((class, _), other)| class == *other).count();
            tree.close(&mut path, common);
            for &class in &row[common..] {
                path.push((class, tree.nodes.len()));
                let tokens = Tokens::Few(0, 0);
                tree.nodes.push(Node { class, depth: path.len() as u16 - 1, next: 0, tokens });
            }
            // No two rows are equal, and a row comes behind its beginnings: the last node is new.
            let tokens = tree.listed(&tokens, trie);
            tree.nodes.last_mut().expect("no word is empty").tokens = tokens;
        }
        tree.close(&mut path, 0);
        tree
    }

    /// Leaves the nodes of a path but for the first `kept`.
    fn close(&mut self, path: &mut Vec<(u8, usize)>, kept: usize) {
        let next = self.nodes.len() as u32;
        for (_, node) in path.drain(kept..) {
            self.nodes[node].next = next;
        }
    }

    fn listed(&mut self, tokens: &[u32], trie: &TokTrie) -> Tokens {
        if tokens.len() < MANY {
            let start = self.tokens.len() as u32;
            self.tokens.extend_from_slice(tokens);
            return Tokens::Few(start, self.tokens.len() as u32);
        }
        let mut set = trie.alloc_token_set();
        tokens.iter().for_each(|&token| set.allow_token(token));
        self.sets.push(set);
        Tokens::Many(self.sets.len() as u32 - 1)
    }

    /// The plain tokens that may follow where `recognizer` stands; none where its lexer tells bytes of a class apart, or does not decide alone.
    pub fn tokens(&self, recognizer: &mut ParserRecognizer<'_>, trie: &TokTrie) -> Option<SimpleVob> {
        let start = recognizer.lexer_state();
        let mut steps = Steps { tree: self, recognizer, states: Vec::new(), numbers: HashMap::default() };
        let mut found = trie.alloc_token_set();
        // The states that the bytes of a path lead to, from the root on.
        let mut path = vec![steps.number(start)];
        let mut index = 0;
        while let Some(node) = self.nodes.get(index) {
            let Some(next) = steps.step(path[node.depth as usize], node.class as usize)? else {
                index = node.next as usize;
                continue;
            };
            path.truncate(node.depth as usize + 1);
            path.push(next);
            match node.tokens {
                Tokens::Few(start, end) => {
                    self.tokens[start as usize..end as usize].iter().for_each(|&token| found.allow_token(token));
                }
                Tokens::Many(set) => found.or(&self.sets[set as usize]),
            }
            index += 1;
        }
        Some(found)
    }
}

/// Steps of a lexer by classes of bytes.
struct Steps<'a, 'b> {
    tree: &'a ByteClasses,
    recognizer: &'a mut ParserRecognizer<'b>,
    /// States by numbers that are given as the walk comes to them.
    states: Vec<(StateID, [Step; CLASSES])>,
    numbers: HashMap<u32, usize>,
}

/// What all bytes of a class do in a state.
#[derive(Clone, Copy)]
enum Step {
    Unknown,
    Nowhere,
    /// They lead to the state of this number.
    To(usize),
}

impl Steps<'_, '_> {
    fn number(&mut self, state: StateID) -> usize {
        *self.numbers.entry(state.as_u32()).or_insert_with(|| {
            self.states.push((state, [Step::Unknown; CLASSES]));
            self.states.len() - 1
        })
    }

    /// The number of the state that all bytes of a class lead to, if to any; none where there are several, or where the parser is asked.
    fn step(&mut self, number: usize, class: usize) -> Option<Option<usize>> {
        let (state, known) = &self.states[number];
        match known[class] {
            Step::To(next) => return Some(Some(next)),
            Step::Nowhere => return Some(None),
            Step::Unknown => {}
        }
        let (state, mut bytes) = (*state, self.tree.bytes[class].iter());
        let next = self.advance(state, *bytes.next()?)?;
        for &byte in bytes {
            if self.advance(state, byte)? != next {
                return None;
            }
        }
        let next = (!next.is_dead()).then(|| self.number(next));
        self.states[number].1[class] = next.map_or(Step::Nowhere, Step::To);
        Some(next)
    }

    /// The state that a byte leads to; none where the parser is asked.
    fn advance(&mut self, state: StateID, byte: u8) -> Option<StateID> {
        let next = self.recognizer.lexer_mut().transition_start_state(state, Some(byte), &None);
        let asks = if next.is_dead() { !leads_nowhere(self.recognizer, state, byte) } else { next.has_lowest_match() };
        (!asks).then_some(next)
    }
}

/// Whether the lexer refuses a byte in a state, and does not end there what it has read.
pub fn leads_nowhere(recognizer: &mut ParserRecognizer<'_>, state: StateID, byte: u8) -> bool {
    // What the lexer says of a byte that leads nowhere. The type of that has no name out of the engine.
    let error = discriminant(&recognizer.lexer_mut().advance(StateID::DEAD, 0, false, &None));
    discriminant(&recognizer.lexer_mut().advance(state, byte, false, &None)) == error
}
