//! Events of a reply: what a push gives out, in order, its text in one block of memory.

use super::literal::escape;
use super::{REPLY, write};
use crate::error::{Result, push};
use crate::text::stream::Stops;
use std::ops::Range;

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A stretch of reasoning.
    Reasoning,
    /// A stretch of content.
    Content,
    /// A call begins; the text is the name of its function.
    CallBegin,
    /// A stretch of a call's arguments, which together are an object of JSON.
    CallArguments,
    /// A call is whole; the id is final.
    CallEnd,
    /// The reply is over.
    End,
}

/// Something that happened in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// What it tells.
    pub kind: Kind,
    /// Number of the call in the reply, from 0; of other events 0.
    pub index: usize,
    /// Whole characters.
    pub text: &'a str,
    /// Of a call: what answers to it refer to; empty at its beginning where the model may still write one.
    pub id: &'a str,
}

struct Entry {
    kind: Kind,
    index: usize,
    text: Range<usize>,
    id: Range<usize>,
}

/// Events that have not been given out.
pub(super) struct Events {
    list: Vec<Entry>,
    text: String,
    stops: Stops,
    /// White space that is content only if more follows.
    space: String,
    /// Whether white space at the beginning of what follows is left out.
    skips_space: bool,
    /// Calls that have begun.
    calls: usize,
    /// Calls of earlier replies, for the ids of these.
    calls_before: usize,
    /// Whether any content has been seen that is no white space.
    pub(super) has_content: bool,
    /// The id of the call that is open.
    id: String,
    opened: bool,
}

/// Bytes of white space that are held back at most.
const MAX_SPACE: usize = 1024;

impl Events {
    pub(super) fn new(stops: Stops, calls_before: usize) -> Events {
        Events {
            list: Vec::new(),
            text: String::new(),
            stops,
            space: String::new(),
            skips_space: false,
            calls: 0,
            calls_before,
            has_content: false,
            id: String::new(),
            opened: false,
        }
    }

    /// Forgets what has been given out.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.text.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Event<'_>> {
        self.list.iter().map(|entry| Event {
            kind: entry.kind,
            index: entry.index,
            text: &self.text[entry.text.clone()],
            id: &self.text[entry.id.clone()],
        })
    }

    /// Adds an event whose text is what stands in the block from `start` on.
    fn add(&mut self, kind: Kind, index: usize, start: usize) -> Result<()> {
        let end = self.text.len();
        if let Some(last) = self.list.last_mut()
            && (last.kind, last.index, last.text.end, last.id.len()) == (kind, index, start, 0)
            && matches!(kind, Kind::Reasoning | Kind::Content | Kind::CallArguments)
        {
            last.text.end = end;
            return Ok(());
        }
        if start == end && matches!(kind, Kind::Reasoning | Kind::Content | Kind::CallArguments) {
            return Ok(());
        }
        push(&mut self.list, Entry { kind, index, text: start..end, id: 0..0 }, REPLY)
    }

    /// Adds a character of reasoning or content. White space at its ends is left out where a marker stands there.
    pub(super) fn say(&mut self, kind: Kind, c: char) -> Result<()> {
        if c.is_whitespace() {
            if self.skips_space {
                return Ok(());
            }
            write(&mut self.space, c.encode_utf8(&mut [0; 4]))?;
            return if self.space.len() > MAX_SPACE { self.say_space(kind) } else { Ok(()) };
        }
        self.skips_space = false;
        self.has_content |= kind == Kind::Content;
        self.say_space(kind)?;
        self.put(kind, c)
    }

    fn say_space(&mut self, kind: Kind) -> Result<()> {
        let space = std::mem::take(&mut self.space);
        space.chars().try_for_each(|c| self.put(kind, c))?;
        self.space = space;
        self.space.clear();
        Ok(())
    }

    fn put(&mut self, kind: Kind, c: char) -> Result<()> {
        let start = self.text.len();
        match kind {
            Kind::Content => self.stops.push(c, &mut self.text)?,
            _ => write(&mut self.text, c.encode_utf8(&mut [0; 4]))?,
        }
        self.add(kind, 0, start)
    }

    /// Whether a stop string has ended the content.
    pub(super) fn is_stopped(&self) -> bool {
        self.stops.is_done()
    }

    /// Leaves out white space at the beginning of what follows.
    pub(super) fn skip_space(&mut self) {
        self.skips_space = true;
    }

    /// A marker ends what was said: white space before it is left out, and some behind it.
    pub(super) fn pause(&mut self) -> Result<()> {
        self.space.clear();
        self.skips_space = true;
        self.release()
    }

    /// Gives out content that might have been the beginning of a stop string.
    fn release(&mut self) -> Result<()> {
        let start = self.text.len();
        self.stops.release(&mut self.text)?;
        self.add(Kind::Content, 0, start)
    }

    /// A call begins. `id` is empty where the model has not written one.
    pub(super) fn begin(&mut self, name: &str, id: &str, is_final: bool) -> Result<()> {
        self.pause()?;
        self.opened = false;
        self.id.clear();
        if id.is_empty() && is_final {
            let number = self.calls_before.saturating_add(self.calls);
            write(&mut self.id, &format!("call{number:05}"))?;
        } else {
            write(&mut self.id, id)?;
        }
        self.calls += 1;
        let start = self.text.len();
        write(&mut self.text, name)?;
        self.add(Kind::CallBegin, self.calls - 1, start)?;
        self.add_id()
    }

    fn add_id(&mut self) -> Result<()> {
        let start = self.text.len();
        write(&mut self.text, &self.id)?;
        if let Some(last) = self.list.last_mut() {
            last.id = start..self.text.len();
        }
        Ok(())
    }

    /// The model wrote the id behind the arguments.
    pub(super) fn identify(&mut self, id: &str) -> Result<()> {
        self.id.clear();
        write(&mut self.id, id)
    }

    /// Lets `write` add to the arguments.
    pub(super) fn arguments<T>(&mut self, add: impl FnOnce(&mut String) -> Result<T>) -> Result<T> {
        let start = self.text.len();
        let result = add(&mut self.text)?;
        self.add(Kind::CallArguments, self.calls.saturating_sub(1), start)?;
        Ok(result)
    }

    /// Begins an argument of a call whose arguments come one by one.
    pub(super) fn key(&mut self, key: &str) -> Result<()> {
        let first = !std::mem::replace(&mut self.opened, true);
        self.arguments(|out| {
            write(out, if first { "{\"" } else { ",\"" })?;
            key.chars().try_for_each(|c| escape(c, out))?;
            write(out, "\":")
        })
    }

    /// Closes the arguments that came one by one, and the call.
    pub(super) fn close(&mut self) -> Result<()> {
        let empty = !self.opened;
        self.arguments(|out| write(out, if empty { "{}" } else { "}" }))?;
        self.end()
    }

    /// The call is whole.
    pub(super) fn end(&mut self) -> Result<()> {
        if self.id.is_empty() {
            let number = self.calls_before.saturating_add(self.calls - 1);
            write(&mut self.id, &format!("call{number:05}"))?;
        }
        let start = self.text.len();
        self.add(Kind::CallEnd, self.calls - 1, start)?;
        self.add_id()
    }

    /// The reply is over. `kind` is what was said last, if anything was.
    pub(super) fn finish(&mut self, kind: Option<Kind>) -> Result<()> {
        match kind {
            Some(Kind::Content) => self.say_space(Kind::Content)?,
            _ => self.space.clear(),
        }
        self.release()?;
        let start = self.text.len();
        self.add(Kind::End, 0, start)
    }

    /// Readies the object for another reply.
    pub(super) fn reset(&mut self) {
        self.calls_before = self.calls_before.saturating_add(self.calls);
        (self.calls, self.has_content, self.skips_space) = (0, false, false);
        self.space.clear();
        self.stops.reset();
    }
}
