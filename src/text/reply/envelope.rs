//! A call as an object of JSON: its name, its id and its arguments, in any order.

use super::events::Events;
use super::literal::{BareKeys, Literal, Progress, unescaped};
use super::{MAX_BUFFER, write};
use crate::error::Result;

/// An object that is being read.
pub(super) struct Envelope {
    state: State,
    /// Objects that are open: a call may stand in the member `function` of another.
    depth: usize,
    value: Literal,
    /// JSON of a member that is read whole: a key, a name, an id, or arguments that come before the name.
    member: String,
    name: String,
    id: String,
    /// Arguments that came before the name.
    early: String,
    begun: bool,
    has_arguments: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the opening brace.
    Open,
    /// Before a key, or the end.
    BeforeKey,
    Key,
    Colon(Member),
    /// Before a value.
    Before(Member),
    Value(Member),
    Next,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Id,
    Arguments,
    /// A function, by its name or as an object.
    Function,
    Other,
}

impl Member {
    fn of(key: &str) -> Member {
        match key {
            "name" | "tool_name" => Member::Name,
            "id" | "tool_call_id" | "call_id" => Member::Id,
            "arguments" | "parameters" | "args" => Member::Arguments,
            "function" => Member::Function,
            _ => Member::Other,
        }
    }
}

impl Envelope {
    pub(super) fn new() -> Envelope {
        Envelope {
            state: State::Open,
            depth: 0,
            value: Literal::new(BareKeys::Never),
            member: String::new(),
            name: String::new(),
            id: String::new(),
            early: String::new(),
            begun: false,
            has_arguments: false,
        }
    }

    /// Whether the place is inside a string, where markers are text.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.state, State::Key | State::Value(_)) && self.value.is_text()
    }

    /// Whether the call has been told.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// The name, once it is there.
    pub(super) fn name(&self) -> Option<&str> {
        (!self.name.is_empty()).then_some(&*self.name)
    }

    /// Takes one character. `known`: whether a function of the name may be called.
    pub(super) fn push(&mut self, c: char, events: &mut Events, known: &dyn Fn(&str) -> bool) -> Result<Progress> {
        match self.state {
            State::Key => self.push_key(c),
            State::Value(member) => self.push_value(c, member, events, known),
            _ if c.is_ascii_whitespace() => Ok(Progress::More),
            State::Open if c == '{' => self.enter(),
            State::BeforeKey if c == '"' => {
                self.state = State::Key;
                self.read_whole();
                self.push_key(c)
            }
            State::BeforeKey | State::Next if c == '}' => self.leave(events, known),
            State::Next if c == ',' => self.go(State::BeforeKey),
            State::Colon(member) if c == ':' => self.go(State::Before(member)),
            State::Before(Member::Function) if c == '{' => self.enter(),
            State::Before(member) => {
                self.read_whole();
                if member == Member::Arguments && c == '{' && self.has_name(events, known)? {
                    self.has_arguments = true;
                }
                self.state = State::Value(if member == Member::Function { Member::Name } else { member });
                self.push_value(c, member, events, known)
            }
            _ => Ok(Progress::Broken),
        }
    }

    fn go(&mut self, state: State) -> Result<Progress> {
        self.state = state;
        Ok(Progress::More)
    }

    fn read_whole(&mut self) {
        self.value = Literal::new(BareKeys::Never);
        self.member.clear();
    }

    fn enter(&mut self) -> Result<Progress> {
        self.depth += 1;
        // Deeper than a call in a function nothing is a call.
        if self.depth > 2 { Ok(Progress::Broken) } else { self.go(State::BeforeKey) }
    }

    fn push_key(&mut self, c: char) -> Result<Progress> {
        match self.value.push(c, &mut self.member)? {
            Progress::More if self.member.len() <= MAX_BUFFER => Ok(Progress::More),
            Progress::Done => {
                self.state = State::Colon(Member::of(&unescaped(&self.member)?));
                Ok(Progress::More)
            }
            _ => Ok(Progress::Broken),
        }
    }

    /// Begins the call if its name is known by now; whether it has begun.
    fn has_name(&mut self, events: &mut Events, known: &dyn Fn(&str) -> bool) -> Result<bool> {
        if !self.begun && !self.name.is_empty() && known(&self.name) {
            events.begin(&self.name, &self.id, false)?;
            self.begun = true;
        }
        Ok(self.begun)
    }

    fn push_value(
        &mut self,
        c: char,
        member: Member,
        events: &mut Events,
        known: &dyn Fn(&str) -> bool,
    ) -> Result<Progress> {
        let streams = member == Member::Arguments && self.has_arguments;
        let progress = if streams {
            events.arguments(|out| self.value.push(c, out))?
        } else {
            self.value.push(c, &mut self.member)?
        };
        match progress {
            Progress::More if self.member.len() <= MAX_BUFFER => return Ok(Progress::More),
            Progress::Done | Progress::Before => {}
            _ => return Ok(Progress::Broken),
        }
        self.state = State::Next;
        if !streams && !self.keep(member)? {
            return Ok(Progress::Broken);
        }
        if progress == Progress::Before { self.push(c, events, known) } else { Ok(Progress::More) }
    }

    /// Keeps a member that was read whole; whether it can be what it is meant to be.
    fn keep(&mut self, member: Member) -> Result<bool> {
        let is_text = self.member.starts_with('"');
        match member {
            Member::Name | Member::Function if is_text => self.name = unescaped(&self.member)?,
            Member::Name | Member::Function => return Ok(false),
            Member::Id if is_text => self.id = unescaped(&self.member)?,
            Member::Id => {
                self.id.clear();
                write(&mut self.id, &self.member)?;
            }
            Member::Arguments if is_text => {
                // Some models write the arguments as a text that holds JSON.
                let text = unescaped(&self.member)?;
                let mut value = Literal::new(BareKeys::Never);
                self.early.clear();
                return whole(&mut value, &text, &mut self.early);
            }
            Member::Arguments => std::mem::swap(&mut self.early, &mut self.member),
            Member::Other => {}
        }
        Ok(true)
    }

    fn leave(&mut self, events: &mut Events, known: &dyn Fn(&str) -> bool) -> Result<Progress> {
        self.depth -= 1;
        if self.depth > 0 {
            return self.go(State::Next);
        }
        if !self.has_name(events, known)? {
            return Ok(Progress::Broken);
        }
        if !self.has_arguments {
            let early = std::mem::take(&mut self.early);
            let early = match &*early {
                "" | "null" => "{}",
                object if object.starts_with('{') => object,
                _ => return Ok(Progress::Broken),
            };
            events.arguments(|out| write(out, early))?;
        }
        if !self.id.is_empty() {
            events.identify(&self.id)?;
        }
        events.end()?;
        Ok(Progress::Done)
    }
}

/// Reads all of `text` as one value; whether it is one.
pub(super) fn whole(value: &mut Literal, text: &str, out: &mut String) -> Result<bool> {
    let mut done = false;
    for c in text.chars() {
        if done {
            if !c.is_ascii_whitespace() {
                return Ok(false);
            }
            continue;
        }
        match value.push(c, out)? {
            Progress::More => {}
            Progress::Done => done = true,
            Progress::Before if c.is_ascii_whitespace() => done = true,
            _ => return Ok(false),
        }
    }
    Ok(done || value.finish(out)? == Progress::Done)
}
