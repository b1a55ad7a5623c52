//! How families of models write what they reason, say and call: what a format is, and how one is chosen.
//!
//! A format is a list of markers, each with its role, and a layout, which tells what stands between them. It is chosen by what a chat template
//! contains, or by its name. A marker is a run of special tokens and characters as the model's vocabulary has it. Replies are read by markers and
//! layout alone, so that spaces and the order of members do not matter; a grammar of calls also needs the [`Writing`], one way to put them.

use super::families::FORMATS;
use crate::error::{Error, Result};

/// What a marker means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Reasoning begins.
    Think,
    /// Reasoning ends.
    ThinkEnd,
    /// Nothing: it stands before or behind content.
    Idle,
    /// Calls begin.
    Section,
    /// Calls end.
    SectionEnd,
    /// A call begins.
    Call,
    /// A call ends.
    CallEnd,
    /// The name of a function begins, and with it a call.
    Name,
    /// The name ends.
    NameEnd,
    /// The arguments begin, or what is said in a message.
    Body,
    /// The id of a call begins.
    Id,
    /// The name of an argument begins.
    Key,
    /// It ends.
    KeyEnd,
    /// The value of an argument begins; without such a marker it does where the name ends.
    Value,
    /// The value ends.
    ValueEnd,
    /// A string begins or ends.
    Quote,
    /// The channel of a message follows.
    Channel,
    /// A message begins.
    Message,
    /// A message ends.
    MessageEnd,
    /// The type of the content follows.
    Constrain,
}

/// How a call is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// There are no calls.
    None,
    /// An object of JSON with name and arguments, or a list of such; also `name[ARGS]{...}` where there is a marker [`Mark::Body`].
    Object,
    /// The same without a marker before it, where the reply begins with it and tools were given.
    Bare,
    /// The name up to [`Mark::Body`], then the arguments as JSON.
    Headed,
    /// Each argument by itself: text as it is, everything else as JSON.
    Tagged,
    /// Calls of Python in a list.
    Python,
    /// `call:NAME` and Gemma's notation of values.
    Gemma,
    /// Messages with a header, which tells channel and recipient.
    Harmony,
    /// The recipient on a line of its own, `all` for content.
    Recipient,
}

/// A way to write replies.
#[derive(Debug)]
pub(super) struct Format {
    /// What hosts call it.
    pub(super) name: &'static str,
    /// What a template of it contains: all of one of these.
    pub(super) signs: &'static [&'static [&'static str]],
    pub(super) layout: Layout,
    pub(super) marks: &'static [(Mark, &'static str)],
    /// Whether a line feed stands before and behind each value.
    pub(super) lines: bool,
    /// Whether a call ends reasoning that has not been ended.
    pub(super) call_ends_thinking: bool,
    /// Whether there may be reasoning behind content.
    pub(super) rethinks: bool,
    /// Ways to write calls, each with what a template of it contains; the last is that of all others.
    pub(super) writings: &'static [(&'static str, Writing)],
}

/// A piece of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A marker, the first of its role that the template has.
    Mark(Mark),
    /// The second marker of its role.
    Other(Mark),
    /// These characters.
    Text(&'static str),
    /// These characters or nothing.
    May(&'static str),
    /// A marker or nothing.
    MayMark(Mark),
    /// The name of the function, as it is.
    Name,
    /// The name in quotation marks.
    Quoted,
    /// The arguments in the writing's notation.
    Arguments,
    /// A decimal number.
    Number,
    /// Nine letters and digits.
    Id,
    /// The name of an argument.
    Key,
    /// The type of its value, as JavaScript has it.
    Type,
    /// Its value.
    Value,
}

/// How arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notation {
    /// An object of JSON.
    Json,
    /// Each by itself: text as it is, everything else as JSON.
    Tagged,
    /// Each by itself: text as it is, everything else as Python does.
    TaggedPython,
    /// `name=value` as Python does.
    Python,
    /// An object with bare keys, sorted, its strings between markers.
    Gemma,
}

/// One way to write calls.
#[derive(Debug)]
pub(super) struct Writing {
    /// Before the first call.
    pub(super) open: &'static [Part],
    pub(super) call: &'static [Part],
    pub(super) between: &'static [Part],
    /// Behind the last call.
    pub(super) close: &'static [Part],
    pub(super) notation: Notation,
    /// Forms of an argument that is text, where each stands by itself.
    pub(super) texts: &'static [&'static [Part]],
    /// The form of any other argument.
    pub(super) value: &'static [Part],
    /// Whether a reply may have several calls.
    pub(super) several: bool,
}

impl Writing {
    /// Of calls alone, as JSON.
    pub(super) const JSON: Writing = Writing {
        open: &[],
        call: &[],
        between: &[],
        close: &[],
        notation: Notation::Json,
        texts: &[],
        value: &[],
        several: true,
    };
}

impl Format {
    /// The format of a chat template, by what the template contains.
    pub(super) fn of_template(template: &str) -> &'static Format {
        let has = |signs: &&'static [&'static str]| signs.iter().all(|sign| template.contains(sign));
        FORMATS.iter().find(|format| format.signs.iter().any(has)).unwrap_or(&FORMATS[FORMATS.len() - 1])
    }

    /// The way to write calls that a template has; none where the format has no calls.
    pub(super) fn writing(&self, template: &str) -> Option<&'static Writing> {
        let found = self.writings.iter().find(|(sign, _)| !sign.is_empty() && template.contains(sign));
        found.or(self.writings.last()).map(|(_, writing)| writing)
    }

    /// What a reply writes where it stops reasoning, for content to follow.
    pub(super) fn reasoning_end(&self) -> Option<&'static str> {
        match self.layout {
            Layout::Harmony => Some("<|end|><|start|>assistant<|channel|>final<|message|>"),
            _ => self.marks.iter().find(|(mark, _)| *mark == Mark::ThinkEnd).map(|(_, text)| *text),
        }
    }

    /// The format that hosts call `name`.
    pub(super) fn named(name: &str) -> Result<&'static Format> {
        FORMATS.iter().find(|format| format.name == name).ok_or_else(|| {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let name = crate::error::Excerpt(name.as_bytes());
            Error::NotFound(format!("there is no reply format `{name}`; choose one of {}", names.join(", ")))
        })
    }
}
