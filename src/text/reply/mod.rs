//! Replies: the tokens that a model answers with, as events: reasoning, content, calls of tools.
//!
//! How a family writes them is data (`formats`). A marker is recognised by the ids of special tokens wherever the vocabulary has them, so what
//! a model writes out as text never is one; by its characters only where it has not. Markers mean something at certain places alone: inside the
//! strings of a call's arguments none does, in reasoning the one that ends it. Once reasoning has ended it does not begin anew, but in formats that
//! mark every stretch of it. Which events come, and their text once joined, does not depend on how the text is cut into tokens.
//!
//! Memory is bounded: what is held back are one marker, names and headers of 4 KiB, and of a value whose type is not known 64 KiB.

mod calls;
mod draft;
mod envelope;
mod events;
mod families;
mod formats;
mod literal;
mod machine;
mod schema;
mod value;
mod writings;

use super::stream::{Partial, Stops};
use super::tokenizer::{Stretch, Tokenizer};
use crate::error::{Result, grow_text, push};
pub use calls::{CallOptions, Choice, calls};
pub use draft::Draft;
use events::Events;
pub use events::{Event, Kind};
use formats::{Format, Layout, Mark};
pub(super) use literal::escape_all;
use machine::{Machine, State};
use schema::Tools;
use std::sync::Arc;

/// What the memory of a reply is for.
const REPLY: &str = "a reply";

/// Bytes that are held back at most until it is known what they are.
const MAX_BUFFER: usize = 1 << 16;

/// Appends `text` to `out`.
fn write(out: &mut String, text: &str) -> Result<()> {
    grow_text(out, text.len(), REPLY)?;
    out.push_str(text);
    Ok(())
}

/// How a reply is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyOptions<'a> {
    /// Name of the format; without one the template tells.
    pub format: Option<&'a str>,
    /// The chat template.
    pub template: &'a str,
    /// The text that the reply follows, or its end: reasoning may have begun there.
    pub prompt: &'a str,
    /// The tools of the conversation, a JSON array.
    pub tools_json: Option<&'a [u8]>,
    /// Calls of earlier replies, for the ids of these where the model writes none.
    pub calls_before: usize,
}

/// A part of a text as markers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Character(char),
    Special(i32),
}

/// The tokens of one reply after the other, as events.
pub struct Reply {
    tokenizer: Arc<Tokenizer>,
    marks: Vec<(Mark, Vec<Unit>)>,
    machine: Machine,
    /// Units that may be the beginning of a marker.
    held: Vec<Unit>,
    partial: Partial,
    /// Where a reply begins.
    start: Start,
    /// Whether the reply has ended, or could not go on.
    is_over: bool,
}

/// Where in a format a reply begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With its content.
    Content,
    /// Within reasoning.
    Reasoning,
    /// Behind reasoning.
    Thought,
    /// Within the header of a message.
    Header,
    /// With whom it is for.
    Recipient,
}

impl ReplyOptions<'_> {
    /// The format of the reply.
    fn format(&self) -> Result<&'static Format> {
        match self.format {
            Some(name) => Format::named(name),
            None => Ok(Format::of_template(self.template)),
        }
    }

    /// Where in it the reply begins.
    pub fn start(&self) -> Result<Start> {
        Ok(start(self.format()?, self.prompt))
    }
}

impl Reply {
    /// A reply at its beginning. `stops` are texts that end its content; each is UTF-8 and not empty.
    pub fn new(tokenizer: Arc<Tokenizer>, options: &ReplyOptions, stops: Vec<Vec<u8>>) -> Result<Reply> {
        let format = options.format()?;
        let mut marks = Vec::new();
        for &(mark, text) in format.marks {
            push(&mut marks, (mark, units(&tokenizer, text)?), REPLY)?;
        }
        let events = Events::new(Stops::new(stops)?, options.calls_before);
        let machine = Machine::new(format, Tools::read(options.tools_json)?, events);
        let start = start(format, options.prompt);
        let (held, partial) = (Vec::new(), Partial::default());
        let mut reply = Reply { tokenizer, marks, machine, held, partial, start, is_over: false };
        reply.begin();
        Ok(reply)
    }

    /// The name of the format.
    pub fn format(&self) -> &'static str {
        self.machine.format.name
    }

    /// Whether what comes next is reasoning.
    pub fn is_reasoning(&self) -> bool {
        !self.is_over && matches!(self.machine.state, State::Reasoning)
    }

    /// The tokens that end reasoning and begin what follows it; none where the format knows no end.
    pub fn reasoning_end(&self) -> Result<Vec<i32>> {
        let end = self.machine.format.reasoning_end();
        end.map_or(Ok(Vec::new()), |end| self.tokenizer.encode(end.as_bytes(), false, true))
    }

    fn begin(&mut self) {
        self.machine.restart(self.start == Start::Thought);
        if matches!(self.start, Start::Reasoning | Start::Thought) {
            self.machine.events.skip_space();
        }
        self.machine.state = match self.start {
            Start::Content | Start::Thought => State::Content,
            Start::Reasoning => State::Reasoning,
            Start::Header => State::Header(String::new(), None),
            Start::Recipient => State::Head(String::new()),
        };
    }

    /// Events of the last push or flush, in order.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.machine.events.iter()
    }

    /// Number of these events.
    pub fn event_count(&self) -> usize {
        self.machine.events.len()
    }

    /// Whether the reply has ended: by a token that ends generation, or by a stop string.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes a token; once the reply is over it adds nothing.
    ///
    /// A token outside the vocabulary is [`InvalidArgument`](crate::error::Error::InvalidArgument). Where memory is refused the reply is over,
    /// without an end.
    pub fn push(&mut self, token: i32) -> Result<()> {
        let piece = self.tokenizer.piece(token, true)?.len();
        self.machine.events.clear();
        if self.is_over {
            return Ok(());
        }
        let result = self.take(token, piece);
        self.is_over |= result.is_err();
        result
    }

    fn take(&mut self, token: i32, bytes: usize) -> Result<()> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let ends = tokenizer.is_eog(token);
        if ends || tokenizer.is_special(token) {
            self.end_character()?;
            self.feed(Unit::Special(token))?;
        } else {
            let mut text = crate::error::reserve(3 * (bytes + 4), REPLY)?;
            tokenizer.piece(token, false)?.iter().for_each(|&byte| self.partial.push(byte, &mut text));
            self.feed_text(&text)?;
        }
        if ends || matches!(self.machine.state, State::Over) { self.finish() } else { Ok(()) }
    }

    /// Ends the reply where its tokens end, and readies the object for another that follows the same kind of prompt.
    pub fn flush(&mut self) -> Result<()> {
        self.machine.events.clear();
        let result = if self.is_over { Ok(()) } else { self.finish() };
        self.machine.events.reset();
        self.held.clear();
        self.partial = Partial::default();
        self.is_over = false;
        self.begin();
        result
    }

    fn finish(&mut self) -> Result<()> {
        self.is_over = true;
        self.end_character()?;
        self.settle(true)?;
        self.machine.finish()
    }

    /// Replaces a character that is not whole.
    fn end_character(&mut self) -> Result<()> {
        let mut text = crate::error::reserve(16, REPLY)?;
        self.partial.finish(&mut text);
        self.feed_text(&text)
    }

    fn feed_text(&mut self, text: &[u8]) -> Result<()> {
        // Characters come whole, so this is all of it.
        let text = std::str::from_utf8(text).unwrap_or_default();
        text.chars().try_for_each(|c| self.feed(Unit::Character(c)))
    }

    fn feed(&mut self, unit: Unit) -> Result<()> {
        push(&mut self.held, unit, REPLY)?;
        self.settle(false)
    }

    /// Decides what it can of the units that are held: markers that are expected, and what can be none. `ends`: nothing follows.
    fn settle(&mut self, ends: bool) -> Result<()> {
        while let Some(&first) = self.held.first() {
            let is_quoted = self.machine.is_quoted();
            let is_text = |units: &[Unit]| units.iter().all(|unit| matches!(unit, Unit::Character(_)));
            let expected =
                self.marks.iter().filter(|(mark, units)| self.machine.expects(*mark) && !(is_quoted && is_text(units)));
            // The longest counts, so that what may become a longer one waits.
            let (mut may_follow, mut found) = (false, None);
            for (mark, units) in expected {
                if self.held.starts_with(units) && found.is_none_or(|(_, len)| units.len() > len) {
                    found = Some((*mark, units.len()));
                }
                may_follow |= units.len() > self.held.len() && units.starts_with(&self.held);
            }
            match found {
                _ if may_follow && !ends => return Ok(()),
                Some((mark, len)) => {
                    self.held.drain(..len);
                    self.machine.mark(mark)?;
                }
                None => {
                    self.held.remove(0);
                    self.say(first)?;
                }
            }
        }
        Ok(())
    }

    /// Takes a unit that is no part of a marker here. A marker in the wrong place is nothing, but in a value every token is text.
    fn say(&mut self, unit: Unit) -> Result<()> {
        let token = match unit {
            Unit::Character(c) => return self.machine.push(c),
            Unit::Special(token) => token,
        };
        let is_mark = self.marks.iter().any(|(_, units)| units.contains(&unit));
        let is_value = self.machine.is_value();
        if self.tokenizer.is_eog(token) || is_mark && !is_value {
            return Ok(());
        }
        let tokenizer = Arc::clone(&self.tokenizer);
        let text = String::from_utf8_lossy(tokenizer.piece(token, is_mark)?);
        text.chars().try_for_each(|c| self.machine.push(c))
    }
}

/// The special tokens and characters of `text`.
fn units(tokenizer: &Tokenizer, text: &str) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    tokenizer.stretches(text, |stretch| match stretch {
        Stretch::Special(token) => push(&mut units, Unit::Special(token), REPLY),
        Stretch::Text(text) => text.chars().try_for_each(|c| push(&mut units, Unit::Character(c), REPLY)),
    })?;
    Ok(units)
}

/// Where a reply begins that follows `prompt`.
fn start(format: &Format, prompt: &str) -> Start {
    let prompt = prompt.trim_end();
    let ends_with =
        |wanted: Mark| format.marks.iter().any(|(mark, text)| *mark == wanted && prompt.ends_with(text.trim_end()));
    match format.layout {
        Layout::Harmony => match prompt.rfind("<|start|>").map(|at| &prompt[at..]) {
            Some(message) if message.ends_with("<|message|>") => {
                if message.contains("analysis") {
                    Start::Reasoning
                } else {
                    Start::Content
                }
            }
            _ => Start::Header,
        },
        Layout::Recipient if prompt.ends_with(">>>") => Start::Recipient,
        _ if ends_with(Mark::Think) => Start::Reasoning,
        _ if ends_with(Mark::ThinkEnd) => Start::Thought,
        _ => Start::Content,
    }
}
