//! Streaming detokenization: tokens in, whole characters out, stop strings held back.
//!
//! A push is two steps, so that a caller whose buffer is too small loses nothing: [`TextStream::push`] computes the text
//! that the next token releases, [`Pending::commit`] makes it final; a pending text that is dropped was never asked for.
//! Before the commit nothing changes that an earlier commit has left: the step works on a copy of the state and only adds
//! to the text. Bytes that are not UTF-8 become U+FFFD exactly as `String::from_utf8_lossy` does for the whole stream.

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result, filled, grow, grow_text, reserve};
use std::sync::Arc;

/// How a stream shows its tokens and where it stops.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// Show special tokens.
    pub special: bool,
    /// Texts that end the stream; each is UTF-8 and not empty.
    pub stops: Vec<Vec<u8>>,
}

/// Text of one token stream.
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    special: bool,
    stops: Vec<Stop>,
    committed: State,
    /// Scratch of the step that is pending.
    next: State,
    /// Text not given out yet: first the `committed.held` bytes that are held back, then those of the step that is pending.
    text: Vec<u8>,
}

/// What a step changes, kept twice: as it is, and as it would be.
#[derive(Default)]
struct State {
    /// Bytes of a character that is not whole yet.
    partial: Partial,
    /// Bytes of text that are held back.
    held: usize,
    /// For each stop string, how many of its bytes the text ends with.
    matched: Vec<usize>,
    done: bool,
}

/// The search for stop strings in characters that come one by one.
#[derive(Default)]
pub(super) struct Stops {
    stops: Vec<Stop>,
    matched: Vec<usize>,
    /// What may be the beginning of one.
    held: String,
    done: bool,
}

impl Stops {
    /// Each of `texts` is UTF-8 and not empty.
    pub(super) fn new(texts: Vec<Vec<u8>>) -> Result<Stops> {
        let mut stops = reserve(texts.len(), STOPS)?;
        for text in texts {
            stops.push(Stop::new(text)?);
        }
        Ok(Stops { matched: filled(stops.len(), 0, STOPS)?, stops, ..Stops::default() })
    }

    /// Takes a character, and appends to `out` what is decided by it; nothing once a stop string is complete.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> Result<()> {
        if self.done {
            return Ok(());
        }
        grow_text(&mut self.held, c.len_utf8(), STOPS)?;
        self.held.push(c);
        // Stop strings are UTF-8, so one is complete with the last byte of a character.
        let complete = c
            .encode_utf8(&mut [0; 4])
            .bytes()
            .fold(None, |complete, byte| advance(&self.stops, &mut self.matched, byte).or(complete));
        let (ready, kept) = match complete {
            Some(stop) => {
                self.done = true;
                (self.held.len() - stop, 0)
            }
            None => {
                let kept = self.matched.iter().copied().max().unwrap_or(0);
                (self.held.len() - kept, kept)
            }
        };
        grow_text(out, ready, STOPS)?;
        out.push_str(&self.held[..ready]);
        self.held.drain(..self.held.len() - kept);
        Ok(())
    }

    /// Appends what was held back: the text ends here, or something else stands between it and what follows.
    pub(super) fn release(&mut self, out: &mut String) -> Result<()> {
        grow_text(out, self.held.len(), STOPS)?;
        out.push_str(&self.held);
        self.held.clear();
        self.matched.fill(0);
        Ok(())
    }

    /// Whether a stop string is complete.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Readies the search for another text.
    pub(super) fn reset(&mut self) {
        self.held.clear();
        self.matched.fill(0);
        self.done = false;
    }
}

/// Text that a step releases. Final once committed.
#[must_use = "nothing has happened before `commit`"]
pub struct Pending<'a> {
    stream: &'a mut TextStream,
    /// Bytes of the stream's text that go out; the `next.held` behind them are kept, the rest is dropped.
    ready: usize,
    done: bool,
}

impl TextStream {
    /// A stream at its beginning.
    pub fn new(tokenizer: Arc<Tokenizer>, options: StreamOptions) -> Result<TextStream> {
        let mut stops = reserve(options.stops.len(), STOPS)?;
        for text in options.stops {
            stops.push(Stop::new(text)?);
        }
        let state = || Ok::<_, Error>(State { matched: filled(stops.len(), 0, STOPS)?, ..State::default() });
        let (committed, next) = (state()?, state()?);
        let longest = stops.iter().map(|stop: &Stop| stop.text.len()).max().unwrap_or(0);
        Ok(TextStream {
            tokenizer,
            special: options.special,
            stops,
            committed,
            next,
            text: reserve(longest + ROOM, STOPS)?,
        })
    }

    /// The text that `token` releases. Once a stop string is complete there is no more, whatever the token.
    pub fn push(&mut self, token: i32) -> Result<Pending<'_>> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let piece = tokenizer.piece(token, self.special)?;
        self.begin_step();
        // A byte that is no character becomes three.
        grow(&mut self.text, 3 * (piece.len() + size_of::<Partial>()), "the text of a token")?;
        for &byte in piece {
            self.next.partial.push(byte, &mut self.text);
        }
        let ready = self.find_ready(false);
        let done = self.next.done;
        Ok(Pending { stream: self, ready, done })
    }

    /// The text that is left, with which the stream ends; after the commit it is at the beginning of another.
    pub fn flush(&mut self) -> Pending<'_> {
        self.begin_step();
        self.next.partial.finish(&mut self.text);
        let ready = self.find_ready(true);
        let done = std::mem::take(&mut self.next.done);
        self.next.matched.fill(0);
        Pending { stream: self, ready, done }
    }

    /// Forgets a step that was not committed.
    fn begin_step(&mut self) {
        self.text.truncate(self.committed.held);
        self.next.copy_from(&self.committed);
    }

    /// Looks for stop strings in the new text; the number of bytes of all the text that can go out.
    fn find_ready(&mut self, ends: bool) -> usize {
        let state = &mut self.next;
        if state.done {
            return 0;
        }
        for at in self.committed.held..self.text.len() {
            if let Some(stop) = advance(&self.stops, &mut state.matched, self.text[at]) {
                (state.done, state.held) = (true, 0);
                return at + 1 - stop;
            }
        }
        // Text and stop strings are UTF-8, so a held-back beginning of one begins with a whole character.
        state.held = if ends { 0 } else { state.matched.iter().copied().max().unwrap_or(0) };
        self.text.len() - state.held
    }
}

impl Pending<'_> {
    /// The text, whole characters only.
    pub fn text(&self) -> &[u8] {
        &self.stream.text[..self.ready]
    }

    /// Whether a stop string is complete: nothing follows this text.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Takes the step.
    pub fn commit(self) {
        let TextStream { committed, next, text, .. } = self.stream;
        text.drain(..self.ready);
        text.truncate(next.held);
        std::mem::swap(committed, next);
    }
}

impl State {
    /// Copies `other`, which has the same stop strings, without allocating.
    fn copy_from(&mut self, other: &State) {
        self.matched.copy_from_slice(&other.matched);
        (self.partial, self.held, self.done) = (other.partial, other.held, other.done);
    }
}

/// What the memory of a new stream is for.
const STOPS: &str = "stop strings";

/// Room in the text buffer for the pieces of a step, so that pushing does not allocate.
const ROOM: usize = 256;

/// A stop string, ready for the search of Knuth, Morris and Pratt.
struct Stop {
    text: Vec<u8>,
    /// For each length, that of the longest shorter beginning that it ends with.
    fallback: Vec<usize>,
}

impl Stop {
    fn new(text: Vec<u8>) -> Result<Stop> {
        if text.is_empty() {
            return Err(Error::InvalidArgument("a stop string must not be empty".into()));
        }
        if let Err(error) = std::str::from_utf8(&text) {
            let at = error.valid_up_to();
            return Err(Error::InvalidArgument(format!("a stop string is not utf-8 at byte {at}")));
        }
        let mut stop = Stop { fallback: filled(text.len() + 1, 0, STOPS)?, text };
        for len in 1..stop.text.len() {
            let matched = stop.advance(stop.fallback[len], stop.text[len]);
            stop.fallback[len + 1] = matched;
        }
        Ok(stop)
    }

    /// How many bytes are matched after `byte`, when `matched` were before.
    fn advance(&self, mut matched: usize, byte: u8) -> usize {
        while self.text.get(matched) != Some(&byte) {
            if matched == 0 {
                return 0;
            }
            matched = self.fallback[matched];
        }
        matched + 1
    }
}

/// Moves every stop string on by `byte`; the length of the longest that is complete with it.
fn advance(stops: &[Stop], matched: &mut [usize], byte: u8) -> Option<usize> {
    let mut complete = None;
    for (stop, matched) in stops.iter().zip(matched) {
        *matched = stop.advance(*matched, byte);
        if *matched == stop.text.len() {
            complete = complete.max(Some(*matched));
        }
    }
    complete
}

/// The bytes of a character that is not whole yet.
#[derive(Clone, Copy, Default)]
pub(super) struct Partial {
    bytes: [u8; 4],
    len: usize,
}

impl Partial {
    /// Takes one more byte and appends what is decided by it: a character, replacements, or nothing yet.
    pub(super) fn push(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.bytes[self.len] = byte;
        self.len += 1;
        while self.len > 0 {
            let invalid = match std::str::from_utf8(&self.bytes[..self.len]) {
                Ok(character) => {
                    out.extend_from_slice(character.as_bytes());
                    self.len = 0;
                    return;
                }
                Err(error) => error.error_len(),
            };
            // Without a length the bytes are the beginning of a character.
            let Some(invalid) = invalid else { return };
            self.replace(invalid, out);
        }
    }

    /// Replaces what has no end.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.len > 0 {
            self.replace(self.len, out);
        }
    }

    fn replace(&mut self, count: usize, out: &mut Vec<u8>) {
        out.extend_from_slice("\u{fffd}".as_bytes());
        self.bytes.copy_within(count..self.len, 0);
        self.len -= count;
    }
}
