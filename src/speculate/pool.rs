//! What has followed where, in the texts of all sequences of a session: a table by the hash of the tokens before, as prompt lookup with a rolling
//! hash has it (the n-gram pools of llama.cpp). It forgets by chance: a place gets what came last. Different tokens whose hashes are the same make
//! drafts that are wrong, and no more.

use super::ngram::mix;
use crate::error::{Result, filled};

/// Tokens before a place that must be the same: one entry for each number of them, the larger is believed first.
const GRAMS: [usize; 2] = [8, 4];
/// Room for what about 250,000 tokens have said.
const ENTRIES: usize = 1 << 19;

#[derive(Clone, Copy)]
struct Entry {
    /// The other half of the hash that chose the place.
    tag: u32,
    /// The token that followed; negative where none has.
    next: i32,
}

/// What has followed where.
pub struct Pool {
    entries: Vec<Entry>,
}

impl Pool {
    /// Bytes that one takes.
    pub const BYTES: u64 = (ENTRIES * size_of::<Entry>()) as u64;

    /// One that knows nothing yet.
    pub fn new() -> Result<Pool> {
        Ok(Pool { entries: filled(ENTRIES, Entry { tag: 0, next: -1 }, "a pool of drafts")? })
    }

    /// Enters the `tokens` from number `first` on.
    pub fn enter(&mut self, tokens: &[i32], first: usize) {
        for (at, &next) in tokens.iter().enumerate().skip(first) {
            for gram in GRAMS.into_iter().filter(|&gram| gram <= at) {
                let (place, tag) = place_of(&tokens[at - gram..at]);
                self.entries[place] = Entry { tag, next };
            }
        }
    }

    /// Looks for up to `room` tokens that may follow `tokens`, one behind the other, and gives them to `found`; by how many tokens the first was
    /// found, none where there is none.
    pub fn follow(&self, tokens: &[i32], room: usize, mut found: impl FnMut(i32)) -> Option<usize> {
        let mut last = [0; GRAMS[0]];
        let mut known = tokens.len().min(last.len());
        let start = last.len() - known;
        last[start..].copy_from_slice(&tokens[tokens.len() - known..]);
        let mut first = None;
        for _ in 0..room {
            let entry = GRAMS.into_iter().filter(|&gram| gram <= known).find_map(|gram| {
                let (place, tag) = place_of(&last[last.len() - gram..]);
                let entry = self.entries[place];
                (entry.next >= 0 && entry.tag == tag).then_some((gram, entry.next))
            });
            let Some((gram, next)) = entry else { break };
            first = first.or(Some(gram));
            found(next);
            last.rotate_left(1);
            last[GRAMS[0] - 1] = next;
            known = (known + 1).min(last.len());
        }
        first
    }
}

fn place_of(gram: &[i32]) -> (usize, u32) {
    let hash = mix(gram);
    ((hash >> 32) as usize & (ENTRIES - 1), hash as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(pool: &Pool, tokens: &[i32], room: usize) -> (Vec<i32>, Option<usize>) {
        let mut drafts = Vec::new();
        let gram = pool.follow(tokens, room, |token| drafts.push(token));
        (drafts, gram)
    }

    #[test]
    fn what_one_sequence_has_said_another_is_thought_to_say() {
        let mut pool = Pool::new().unwrap();
        let text: Vec<i32> = (0..40).map(|at| at * at % 97).collect();
        pool.enter(&text, 0);
        assert_eq!(following(&pool, &text[..20], 5), (text[20..25].to_vec(), Some(8)));
        assert_eq!(following(&pool, &text[16..20], 5), (text[20..25].to_vec(), Some(4)));
        assert_eq!(following(&pool, &text[30..40], 5), (vec![], None));
        assert_eq!(following(&pool, &text[17..20], 5), (vec![], None));
        assert_eq!(following(&pool, &text[32..38], 5), (text[38..].to_vec(), Some(4)));
        assert_eq!(following(&pool, &[], 5), (vec![], None));
        assert_eq!(following(&pool, &text[..20], 0), (vec![], None));
    }

    #[test]
    fn the_longer_repetition_is_believed_and_of_equals_the_later() {
        let mut pool = Pool::new().unwrap();
        pool.enter(&[1, 2, 3, 4, 5, 6, 7, 8, 50], 0);
        pool.enter(&[9, 9, 9, 9, 5, 6, 7, 8, 60], 0);
        assert_eq!(following(&pool, &[1, 2, 3, 4, 5, 6, 7, 8], 1), (vec![50], Some(8)));
        assert_eq!(following(&pool, &[0, 2, 3, 4, 5, 6, 7, 8], 1), (vec![60], Some(4)));
        pool.enter(&[1, 2, 3, 4, 5, 6, 7, 8, 70], 8);
        assert_eq!(following(&pool, &[1, 2, 3, 4, 5, 6, 7, 8], 1), (vec![70], Some(8)));
    }

    #[test]
    fn what_a_pool_keeps_is_much_of_what_was_said_last() {
        let mut pool = Pool::new().unwrap();
        let said = |seed: u64| -> Vec<i32> {
            (0..1000).map(|at: u64| (mix(&[seed as i32, at as i32]) >> 45) as i32).collect()
        };
        (0..1000).for_each(|seed| pool.enter(&said(seed), 0));
        let known = |seed| {
            let text = said(seed);
            (8..1000).filter(|&at| following(&pool, &text[..at], 1).0 == [text[at]]).count()
        };
        assert!(known(999) > 980 && known(900) > 700 && known(0) < 200, "{} {} {}", known(999), known(900), known(0));
    }
}
