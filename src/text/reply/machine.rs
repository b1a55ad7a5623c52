//! What the markers and characters of a reply mean, one by one, in any format.

use super::envelope::Envelope;
use super::events::{Events, Kind};
use super::formats::{Format, Layout, Mark};
use super::literal::{BareKeys, Literal, Progress};
use super::schema::Tools;
use super::value::Value;
use super::{MAX_BUFFER, write};
use crate::error::Result;

/// The place in a reply.
pub(super) enum State {
    Content,
    Reasoning,
    /// Between calls.
    Between,
    /// In the name of a function, or whatever stands before the arguments.
    Head(String),
    /// In the id of a call, which follows the name.
    Id(String, String),
    /// Behind the head: before the opening brace.
    Body(String, String),
    /// In objects with name and arguments, or between them.
    Objects(Option<Box<Envelope>>),
    /// In arguments that are one value.
    Arguments(Literal),
    /// Between arguments that come one by one.
    Params,
    Key(String),
    /// Behind a key, what is said of the value, and the value.
    Attribute(String, String),
    Value(Value),
    /// Behind the arguments of a call.
    Behind,
    /// In the header of a message: what stands before the channel, and the channel.
    Header(String, Option<String>),
    /// In an object that may be a call, and its text so far.
    Maybe(Box<Envelope>, String),
    /// Behind the end.
    Over,
}

/// A reply that is being read.
pub(super) struct Machine {
    pub(super) format: &'static Format,
    pub(super) tools: Tools,
    pub(super) events: Events,
    pub(super) state: State,
    /// Whether reasoning is over.
    has_thought: bool,
    /// The name of the function that is called.
    name: String,
    /// Whether a marker has opened a list of calls that another will close.
    in_section: bool,
}

/// Bytes of the longest name, key or header.
const MAX_HEAD: usize = 4096;

impl Machine {
    pub(super) fn new(format: &'static Format, tools: Tools, events: Events) -> Machine {
        Machine {
            format,
            tools,
            events,
            state: State::Content,
            has_thought: false,
            name: String::new(),
            in_section: false,
        }
    }

    /// Forgets an earlier reply. `has_thought`: the prompt has ended reasoning.
    pub(super) fn restart(&mut self, has_thought: bool) {
        (self.has_thought, self.in_section) = (has_thought, false);
    }

    /// Whether a marker means something at this place.
    pub(super) fn expects(&self, mark: Mark) -> bool {
        use Mark::*;
        match &self.state {
            State::Content => match mark {
                Think => self.may_think(),
                ThinkEnd => !self.has_thought && !self.events.has_content,
                Idle | Section | Call | Name | Message | MessageEnd | Channel => true,
                _ => false,
            },
            State::Reasoning => match mark {
                ThinkEnd | Message | MessageEnd => true,
                Section | Call | Name => self.format.call_ends_thinking,
                _ => false,
            },
            State::Between => matches!(mark, Call | Name | SectionEnd),
            State::Head(_) => matches!(mark, NameEnd | Key | Body | Id | CallEnd | SectionEnd),
            State::Id(..) => mark == Body,
            State::Body(..) => matches!(mark, CallEnd | SectionEnd),
            State::Objects(Some(envelope)) => !envelope.is_text() && self.ends_call(mark),
            State::Objects(None) => self.ends_call(mark),
            State::Arguments(value) => {
                mark == Quote || !value.is_text() && (self.ends_call(mark) || matches!(mark, Message | MessageEnd))
            }
            State::Params => matches!(mark, Key | Name | CallEnd | SectionEnd),
            State::Key(_) => matches!(mark, KeyEnd | CallEnd | SectionEnd),
            State::Attribute(..) => matches!(mark, Value | CallEnd | SectionEnd),
            State::Value(_) => mark == ValueEnd,
            State::Behind => self.ends_call(mark) || matches!(mark, Name | Section | Message | MessageEnd),
            State::Header(..) => matches!(mark, Channel | Constrain | Body | Message | MessageEnd | CallEnd),
            State::Maybe(..) | State::Over => false,
        }
    }

    fn ends_call(&self, mark: Mark) -> bool {
        matches!(mark, Mark::Call | Mark::CallEnd | Mark::SectionEnd)
    }

    fn may_think(&self) -> bool {
        self.format.rethinks || !self.has_thought && !self.events.has_content
    }

    /// Whether characters that look like a marker are none, since they stand in a string of a value.
    pub(super) fn is_quoted(&self) -> bool {
        matches!(&self.state, State::Value(value) if value.is_quoted())
    }

    /// Whether what is no marker here is text of a value, where every token is shown.
    pub(super) fn is_value(&self) -> bool {
        matches!(self.state, State::Value(_) | State::Arguments(_) | State::Objects(_))
    }

    /// Takes a marker that is expected.
    pub(super) fn mark(&mut self, mark: Mark) -> Result<()> {
        match (std::mem::replace(&mut self.state, State::Behind), mark) {
            (State::Arguments(mut value), Mark::Quote) => {
                let progress = self.events.arguments(|out| value.quote(out))?;
                self.after(value, progress)
            }
            (State::Value(value), Mark::ValueEnd) => {
                value.end(&mut self.events)?;
                self.state = State::Params;
                Ok(())
            }
            (State::Head(head), mark) => self.mark_head(head, mark),
            (State::Id(name, id), _) => {
                self.state = State::Body(name, id);
                Ok(())
            }
            (State::Key(key), Mark::KeyEnd) => {
                let has_value = self.format.marks.iter().any(|(mark, _)| *mark == Mark::Value);
                if has_value {
                    self.state = State::Attribute(key, String::new());
                    return Ok(());
                }
                self.begin_value(&key, "")
            }
            (State::Attribute(key, attribute), Mark::Value) => self.begin_value(&key, &attribute),
            (State::Params, Mark::CallEnd | Mark::SectionEnd) => {
                self.events.close()?;
                self.mark_plain(mark)
            }
            (State::Header(head, channel), mark) => self.mark_header(head, channel, mark),
            (State::Content, Mark::Message) if self.format.layout == Layout::Recipient => self.mark_plain(mark),
            (State::Content | State::Reasoning, mark) => {
                self.events.pause()?;
                self.has_thought |= mark != Mark::Think && mark != Mark::Idle;
                self.mark_plain(mark)
            }
            (_, mark) => self.mark_plain(mark),
        }
    }

    /// What follows a marker, whatever stood before.
    fn mark_plain(&mut self, mark: Mark) -> Result<()> {
        self.in_section = mark == Mark::Section || self.in_section && mark != Mark::SectionEnd;
        self.state = match mark {
            Mark::Think => State::Reasoning,
            Mark::Section => State::Between,
            Mark::Call => match self.format.layout {
                Layout::Object => State::Objects(None),
                _ => State::Head(String::new()),
            },
            Mark::Name => State::Head(String::new()),
            Mark::Key => State::Key(String::new()),
            Mark::CallEnd if self.in_section => State::Between,
            Mark::Message if self.format.layout == Layout::Recipient => State::Head(String::new()),
            Mark::CallEnd | Mark::MessageEnd | Mark::Message if self.format.layout == Layout::Harmony => {
                State::Header(String::new(), None)
            }
            Mark::Channel => State::Header(String::new(), Some(String::new())),
            _ => State::Content,
        };
        if matches!(self.state, State::Content) {
            self.events.pause()?;
        }
        Ok(())
    }

    fn has(&self, mark: Mark) -> bool {
        self.format.marks.iter().any(|(other, _)| *other == mark)
    }

    fn mark_head(&mut self, head: String, mark: Mark) -> Result<()> {
        match (self.format.layout, mark) {
            (Layout::Tagged, Mark::NameEnd | Mark::Key | Mark::CallEnd) => {
                if head.trim().is_empty() {
                    // A line feed before the name does not end it.
                    self.state = if mark == Mark::NameEnd { State::Head(String::new()) } else { State::Behind };
                    return Ok(());
                }
                self.begin(head.trim(), "")?;
                self.state = State::Params;
                if mark == Mark::NameEnd { Ok(()) } else { self.mark(mark) }
            }
            (_, Mark::Id) => {
                self.state = State::Id(head, String::new());
                Ok(())
            }
            (_, Mark::Body) => {
                // What stands behind the marker is on a line of its own.
                self.state = State::Body(head + "\n", String::new());
                Ok(())
            }
            (_, mark) => self.mark_plain(mark),
        }
    }

    fn mark_header(&mut self, head: String, channel: Option<String>, mark: Mark) -> Result<()> {
        match mark {
            Mark::Channel => self.state = State::Header(head, Some(String::new())),
            Mark::Constrain => self.state = State::Header(head, channel.map(|channel| channel + " ")),
            Mark::Body => {
                let channel = channel.unwrap_or_default();
                let recipient = [&head, &channel].into_iter().find_map(|text| text.split("to=").nth(1));
                let recipient = recipient.and_then(|text| text.split_whitespace().next());
                if let Some(recipient) = recipient.filter(|&recipient| recipient != "user") {
                    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
                    self.begin(name, "")?;
                    self.state = State::Arguments(Literal::object(BareKeys::Never));
                    return Ok(());
                }
                self.events.pause()?;
                self.state =
                    if channel.trim_start().starts_with("analysis") { State::Reasoning } else { State::Content };
            }
            _ => self.state = State::Header(String::new(), None),
        }
        Ok(())
    }

    /// Begins a call whose id is final.
    fn begin(&mut self, name: &str, id: &str) -> Result<()> {
        self.name.clear();
        write(&mut self.name, name)?;
        self.has_thought = true;
        self.events.begin(name, id, true)
    }

    fn begin_value(&mut self, key: &str, attribute: &str) -> Result<()> {
        let types = self.tools.types(&self.name, key.trim());
        let value = Value::begin(key.trim(), attribute.trim(), types, self.format.lines, &mut self.events)?;
        self.state = State::Value(value);
        Ok(())
    }

    /// Goes on behind a character or quote of arguments.
    fn after(&mut self, value: Literal, progress: Progress) -> Result<()> {
        match progress {
            Progress::More => self.state = State::Arguments(value),
            Progress::Done => {
                self.events.end()?;
                self.state = match self.format.layout {
                    Layout::Python => State::Head(String::new()),
                    _ if self.closes_calls() => State::Behind,
                    _ => State::Content,
                };
            }
            _ => self.state = State::Behind,
        }
        Ok(())
    }

    /// Whether a marker tells where a call ends.
    fn closes_calls(&self) -> bool {
        self.has(Mark::CallEnd) || self.format.layout == Layout::Recipient
    }

    /// Takes a character that is no part of a marker.
    pub(super) fn push(&mut self, c: char) -> Result<()> {
        match &mut self.state {
            State::Content => {
                let opens = self.format.layout == Layout::Bare && c == '{' && !self.events.has_content;
                if opens && !self.tools.is_empty() {
                    self.state = State::Maybe(Box::new(Envelope::new()), String::new());
                    return self.push(c);
                }
                self.events.say(Kind::Content, c)?;
                if self.events.is_stopped() {
                    self.state = State::Over;
                }
                Ok(())
            }
            State::Reasoning => self.events.say(Kind::Reasoning, c),
            State::Between | State::Params | State::Behind | State::Over => Ok(()),
            State::Id(_, text) | State::Key(text) | State::Attribute(_, text) => {
                let fits = text.len() < MAX_HEAD;
                write(text, c.encode_utf8(&mut [0; 4]))?;
                if !fits {
                    self.state = State::Behind;
                }
                Ok(())
            }
            State::Header(head, channel) => {
                let text = channel.as_mut().unwrap_or(head);
                if text.len() < MAX_HEAD { write(text, c.encode_utf8(&mut [0; 4])) } else { Ok(()) }
            }
            State::Value(value) => value.push(c, &mut self.events),
            _ => self.push_taken(c),
        }
    }

    fn push_taken(&mut self, c: char) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Behind) {
            State::Head(head) => self.push_head(head, c),
            State::Body(name, id) => self.push_body(name, id, c),
            State::Objects(envelope) => self.push_object(envelope, c),
            State::Maybe(envelope, text) => self.push_maybe(envelope, text, c),
            State::Arguments(mut value) => {
                let progress = self.events.arguments(|out| value.push(c, out))?;
                self.after(value, progress)
            }
            state => {
                self.state = state;
                Ok(())
            }
        }
    }

    fn push_head(&mut self, mut head: String, c: char) -> Result<()> {
        let layout = self.format.layout;
        let is_python = matches!(layout, Layout::Python | Layout::Bare);
        match c {
            '(' if is_python => {
                let name = head.trim().trim_end_matches(".call");
                if name.is_empty() {
                    return Ok(());
                }
                self.begin(name, "")?;
                let value = self.events.arguments(Literal::call)?;
                self.state = State::Arguments(value);
                return Ok(());
            }
            '{' if layout == Layout::Bare && head.trim().is_empty() => {
                self.state = State::Objects(None);
                return self.push(c);
            }
            '{' if layout == Layout::Gemma => {
                let name = head.trim().trim_start_matches("call:");
                self.begin(name, "")?;
                self.state = State::Arguments(Literal::object(BareKeys::Colon));
                return self.push(c);
            }
            '{' if layout == Layout::Object => return self.push_body(head, String::new(), c),
            '\n' if layout == Layout::Recipient => return self.open_recipient(head),
            '[' | ',' | ']' | ';' if is_python => head.clear(),
            _ => write(&mut head, c.encode_utf8(&mut [0; 4]))?,
        }
        let lost = layout == Layout::Recipient && c.is_whitespace();
        if lost {
            return self.say_recipient(&head);
        }
        self.state = if head.len() > MAX_HEAD { State::Behind } else { State::Head(head) };
        Ok(())
    }

    fn open_recipient(&mut self, head: String) -> Result<()> {
        if head == "all" {
            self.events.pause()?;
            self.state = State::Content;
        } else if self.tools.is_empty() || self.tools.has(&head) {
            self.state = State::Body(head, String::new());
        } else {
            return self.say_recipient(&(head + "\n"));
        }
        Ok(())
    }

    /// What looked like a recipient is content.
    fn say_recipient(&mut self, head: &str) -> Result<()> {
        self.state = State::Content;
        ">>>".chars().chain(head.chars()).try_for_each(|c| self.push(c))
    }

    /// Behind the head of a call: older DeepSeek models have the name here, in a fence of Markdown.
    fn push_body(&mut self, mut head: String, id: String, c: char) -> Result<()> {
        if c != '{' {
            let stays = head.len() < MAX_HEAD;
            write(&mut head, c.encode_utf8(&mut [0; 4]))?;
            self.state = if stays { State::Body(head, id) } else { State::Behind };
            return Ok(());
        }
        let mut lines = head.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("```"));
        let name = lines.next().unwrap_or_default();
        let name = if name == "function" { lines.next().unwrap_or(name) } else { name };
        let (name, id) = if id.is_empty() { numbered(name) } else { (name, id.trim()) };
        self.begin(name, id)?;
        self.state = State::Arguments(Literal::object(BareKeys::Never));
        self.push(c)
    }

    fn push_object(&mut self, envelope: Option<Box<Envelope>>, c: char) -> Result<()> {
        let mut envelope = match envelope {
            Some(envelope) => envelope,
            None if c == '{' => Box::new(Envelope::new()),
            None if c.is_whitespace() || "[],;".contains(c) => {
                self.state = State::Objects(None);
                return Ok(());
            }
            None if self.has(Mark::Body) => return self.push_head(String::new(), c),
            None if self.closes_calls() => {
                self.state = State::Objects(None);
                return Ok(());
            }
            None => {
                self.state = State::Content;
                return self.push(c);
            }
        };
        self.state = match envelope.push(c, &mut self.events, &|_| true)? {
            Progress::More => State::Objects(Some(envelope)),
            Progress::Done => State::Objects(None),
            _ => State::Behind,
        };
        Ok(())
    }

    /// In an object at the beginning of a reply: it is a call if a tool has its name, and content otherwise.
    fn push_maybe(&mut self, mut envelope: Box<Envelope>, mut text: String, c: char) -> Result<()> {
        write(&mut text, c.encode_utf8(&mut [0; 4]))?;
        let tools = &self.tools;
        let progress = envelope.push(c, &mut self.events, &|name| tools.has(name))?;
        let is_call = envelope.has_begun();
        let is_none = envelope.name().is_some_and(|name| !self.tools.has(name));
        match progress {
            Progress::Done if is_call => self.state = State::Objects(None),
            Progress::More if is_call => self.state = State::Objects(Some(envelope)),
            Progress::More if !is_none && text.len() < MAX_BUFFER => self.state = State::Maybe(envelope, text),
            _ => return self.say_maybe(&text),
        }
        Ok(())
    }

    fn say_maybe(&mut self, text: &str) -> Result<()> {
        // Content from its first character on, so that it is not looked at again.
        self.events.has_content = true;
        self.state = State::Content;
        text.chars().try_for_each(|c| self.push(c))
    }

    /// Ends the reply.
    pub(super) fn finish(&mut self) -> Result<()> {
        let state = std::mem::replace(&mut self.state, State::Over);
        let said = match state {
            State::Maybe(_, text) => {
                self.say_maybe(&text)?;
                Some(Kind::Content)
            }
            State::Content => Some(Kind::Content),
            State::Reasoning => Some(Kind::Reasoning),
            _ => None,
        };
        self.state = State::Over;
        self.events.finish(said)
    }
}

/// The name and id of a header: `functions.NAME:NUMBER` is both.
fn numbered(head: &str) -> (&str, &str) {
    match head.strip_prefix("functions.").and_then(|rest| rest.rsplit_once(':')) {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => (name, head),
        _ => (head, ""),
    }
}
