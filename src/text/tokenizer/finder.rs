//! Finding tokens in a text: at the first place where one begins, the longest wins.
//!
//! The tokens stand in a radix tree (Morrison, "PATRICIA", 1968), which is made from their sorted list in one walk and takes
//! at most two nodes a token. A text costs a step a byte, and at each place where a token begins as many as the longest has bytes.

use super::vocabulary::Vocabulary;
use crate::error::{Error, Result, collected, push};
use std::ops::Range;

/// Longest token: at every place of a text as many bytes may be read before another, shorter one is found to win.
const MAX_TOKEN_BYTES: usize = 1024;

/// A set of tokens.
pub(super) struct Finder {
    nodes: Vec<Node>,
    /// Bytes that a token begins with.
    first: [bool; 256],
}

/// The tokens that begin with the same bytes.
struct Node {
    /// A token whose bytes `label` are those by which this node follows its parent.
    sample: u32,
    label: Range<u32>,
    /// The first byte of the label.
    byte: u8,
    /// The token that ends with the label.
    token: Option<u32>,
    /// Nodes that go on, in order of their first bytes.
    children: Range<u32>,
    /// The node's tokens in the sorted list.
    tokens: Range<usize>,
}

impl Finder {
    /// Collects those of `tokens`, called `name` in errors, that a text can hold. Of tokens with equal bytes the lowest is found.
    pub(super) fn of(vocabulary: &Vocabulary, tokens: impl Iterator<Item = u32>, name: &'static str) -> Result<Finder> {
        // Text is UTF-8, so a token that is not could only match inside a character.
        let possible = |&token: &u32| {
            let bytes = vocabulary.bytes(token);
            !bytes.is_empty() && std::str::from_utf8(bytes).is_ok()
        };
        let tokens = collected(tokens.filter(possible), name)?;
        let longest = tokens.iter().map(|&token| vocabulary.bytes(token).len()).max().unwrap_or(0);
        if longest > MAX_TOKEN_BYTES {
            let message = format!("{name} of {longest} bytes, at most {MAX_TOKEN_BYTES} are supported");
            return Err(Error::Unsupported(message));
        }
        Finder::build(vocabulary, tokens)
    }

    fn build(vocabulary: &Vocabulary, mut tokens: Vec<u32>) -> Result<Finder> {
        let bytes = |token: u32| vocabulary.bytes(token);
        tokens.sort_unstable_by(|&a, &b| bytes(a).cmp(bytes(b)).then(a.cmp(&b)));
        tokens.dedup_by(|&mut later, &mut kept| bytes(later) == bytes(kept));
        let mut finder = Finder { nodes: Vec::new(), first: [false; 256] };
        if !tokens.is_empty() {
            finder.add(0, 0..tokens.len(), &tokens, vocabulary)?;
        }
        let mut at = 0;
        while at < finder.nodes.len() {
            finder.branch(at, &tokens, vocabulary)?;
            at += 1;
        }
        tokens.iter().for_each(|&token| finder.first[bytes(token)[0] as usize] = true);
        Ok(finder)
    }

    /// Adds the node of the tokens in `range`, which have their first `depth` bytes in common and are longer.
    fn add(&mut self, depth: usize, range: Range<usize>, tokens: &[u32], vocabulary: &Vocabulary) -> Result<()> {
        let (sample, last) = (tokens[range.start], tokens[range.end - 1]);
        let (bytes, last) = (vocabulary.bytes(sample), vocabulary.bytes(last));
        let common = bytes[depth..].iter().zip(&last[depth..]).take_while(|(a, b)| a == b).count();
        let end = depth + common;
        let node = Node {
            sample,
            label: depth as u32..end as u32,
            byte: bytes[depth],
            // The shortest of them sorts first.
            token: (bytes.len() == end).then_some(sample),
            children: 0..0,
            tokens: range,
        };
        push(&mut self.nodes, node, "special tokens")
    }

    /// Adds the children of a node.
    fn branch(&mut self, at: usize, tokens: &[u32], vocabulary: &Vocabulary) -> Result<()> {
        let Node { label, token, tokens: range, .. } = &self.nodes[at];
        let (depth, start, end) = (label.end as usize, range.start + usize::from(token.is_some()), range.end);
        let byte_of = |token: u32| vocabulary.bytes(token)[depth];
        let (first, mut low) = (self.nodes.len() as u32, start);
        while low < end {
            let byte = byte_of(tokens[low]);
            let high = low + tokens[low..end].partition_point(|&token| byte_of(token) == byte);
            self.add(depth, low..high, tokens, vocabulary)?;
            low = high;
        }
        self.nodes[at].children = first..self.nodes.len() as u32;
        Ok(())
    }

    /// The places of the tokens in `text`, from left to right: begin, end, token.
    pub(super) fn matches<'a>(
        &'a self,
        text: &'a [u8],
        vocabulary: &'a Vocabulary,
    ) -> impl Iterator<Item = (usize, usize, u32)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                at += text[at..].iter().position(|&byte| self.first[byte as usize])?;
                if let Some((end, token)) = self.prefixes(text, at, vocabulary).last() {
                    let start = std::mem::replace(&mut at, end);
                    return Some((start, end, token));
                }
                at += 1;
            }
        })
    }

    /// The tokens that `text` has at `start`, from the shortest to the longest, and where each ends.
    pub(super) fn prefixes<'a>(
        &'a self,
        text: &'a [u8],
        start: usize,
        vocabulary: &'a Vocabulary,
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let (mut next, mut at) = (self.nodes.first(), start);
        std::iter::from_fn(move || {
            loop {
                let node = next?;
                let label = &vocabulary.bytes(node.sample)[node.label.start as usize..node.label.end as usize];
                if !text[at..].starts_with(label) {
                    return None;
                }
                at += label.len();
                let children = &self.nodes[node.children.start as usize..node.children.end as usize];
                next = text.get(at).and_then(|&byte| {
                    let child = children.binary_search_by_key(&byte, |child| child.byte).ok()?;
                    Some(&children[child])
                });
                if let Some(token) = node.token {
                    return Some((at, token));
                }
            }
        })
    }
}
