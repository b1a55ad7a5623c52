//! A reply around its calls: reasoning before them, free text, sections of calls, and where the grammar begins.

use super::rules::{Marks, Piece, Rules, any_of, joined, literal, maybe, written};
use super::{Choice, Format, Layout, Part, Start, Writing};
use crate::error::Result;
use crate::text::reply::formats::Mark;

/// A reply whose tools and arguments are rules already.
pub(super) struct Reply<'a> {
    pub(super) rules: Rules,
    pub(super) marks: &'a Marks<'a>,
    pub(super) format: &'static Format,
    pub(super) writing: &'static Writing,
    /// Names and arguments.
    pub(super) tools: Vec<(&'a str, String)>,
    pub(super) start: Start,
    pub(super) choice: Choice<'a>,
    /// Whether there may be several calls.
    pub(super) several: bool,
}

/// Calls, and what stands around them.
struct Sections {
    /// From the first marker on.
    whole: String,
    /// From behind the first piece of that marker on.
    behind: String,
    /// The marker.
    marker: Vec<Piece>,
}

/// White space between reasoning and what follows.
const SPACE: &str = "/[ \\n]{0,3}/";

impl Reply<'_> {
    /// The grammar, and the token behind which it begins.
    pub(super) fn grammar(mut self) -> Result<(String, Option<i32>)> {
        let (start, trigger) = match self.format.layout {
            Layout::Harmony => (self.harmony()?, None),
            Layout::Recipient => (self.recipients()?, None),
            Layout::Bare => (self.bare()?, None),
            _ => self.marked()?,
        };
        Ok((self.rules.finish(&start), trigger))
    }

    fn must_call(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// A reply whose calls begin with a marker.
    fn marked(&mut self) -> Result<(String, Option<i32>)> {
        let sections = if self.tools.is_empty() { None } else { Some(self.sections()?) };
        if self.must_call() {
            let lead = self.lead()?;
            let calls = sections.map_or(String::new(), |sections| sections.whole);
            let idle = self.idle()?;
            return Ok((joined(&[&lead, &calls, &maybe(&idle)]), None));
        }
        let trigger = match &sections {
            Some(Sections { marker, .. }) => match marker[..] {
                [Piece::Token(token), ..] => Some(token),
                _ => None,
            },
            None => None,
        };
        if let Some((token, sections)) = trigger.zip(sections.as_ref())
            && self.begins_calls_alone(token)?
        {
            let after = self.after(sections)?;
            return Ok((joined(&[&sections.behind, &after]), Some(token)));
        }
        let free = match &sections {
            Some(sections) => {
                let (before, call) = (self.free(None)?, self.call_in_text(sections)?);
                joined(&[&before, &maybe(&joined(&[&call, &self.after(sections)?]))])
            }
            None => self.free(None)?,
        };
        let thinks = self.start == Start::Reasoning && !self.format.call_ends_thinking;
        let start = match self.marks.text(Mark::ThinkEnd).filter(|_| thinks) {
            Some(end) => {
                let (ended, open) = (self.up_to(end)?, self.open_text(end)?);
                format!("({} | {})", joined(&[&ended, &free]), maybe(&open))
            }
            None => free,
        };
        Ok((start, None))
    }

    /// What may follow calls: text where a marker has ended them, others where there may be several.
    fn after(&mut self, sections: &Sections) -> Result<String> {
        let last = self.writing.close.last().or(self.writing.call.last());
        let is_closed = matches!(last, Some(Part::Mark(_)));
        match (is_closed, self.several) {
            (true, several) => self.free(Some(sections).filter(|_| several)),
            (false, true) => Ok(format!("({})*", sections.whole)),
            (false, false) => Ok(String::new()),
        }
    }

    /// Whether no other marker that may stand in a reply begins with `token`.
    fn begins_calls_alone(&self, token: i32) -> Result<bool> {
        let role = |part: &Part| if let Part::Mark(role) = part { Some(*role) } else { None };
        let first = self.writing.open.first().or(self.writing.call.first()).and_then(role);
        // Markers within calls may be the same.
        let roles = [Mark::Think, Mark::ThinkEnd, Mark::Idle];
        for (mark, text) in self.format.marks {
            if roles.contains(mark) && Some(*mark) != first && self.marks.first_token(text)? == Some(token) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What precedes a call that must come: reasoning, where the family reasons.
    fn lead(&mut self) -> Result<String> {
        let (think, end) = (self.marks.text(Mark::Think), self.marks.text(Mark::ThinkEnd));
        let Some((think, end)) = think.zip(end) else { return self.idle_twice() };
        let idle = self.idle_twice()?;
        let reasoning = self.up_to(end)?;
        Ok(match self.start {
            Start::Reasoning => joined(&[&reasoning, SPACE, &idle]),
            Start::Thought => joined(&[SPACE, &idle]),
            _ => {
                let whole = joined(&[&self.marks.expression(think)?, &reasoning]);
                joined(&[&maybe(&whole), SPACE, &idle])
            }
        })
    }

    fn idle_twice(&mut self) -> Result<String> {
        let idle = self.idle()?;
        Ok(if idle.is_empty() { idle } else { format!("({idle}){{0,2}}") })
    }

    /// Markers that mean nothing.
    fn idle(&mut self) -> Result<String> {
        let texts = self.marks.texts(Mark::Idle);
        let texts: Result<Vec<String>> = texts.into_iter().map(|text| self.marks.expression(text)).collect();
        Ok(any_of_or_none(&texts?))
    }

    /// Any text up to `marker` and with it.
    fn up_to(&mut self, marker: &str) -> Result<String> {
        let pieces = self.marks.pieces(marker)?;
        let before = self.before(&pieces);
        Ok(joined(&[&before, &written(pieces.get(1..).unwrap_or_default())]))
    }

    /// Any text up to a marker, and with the first of its pieces.
    fn before(&mut self, marker: &[Piece]) -> String {
        match marker {
            [Piece::Text(text)] => self.rules.up_to(text),
            // A token tells where the text ends, which may hold the characters before it.
            [Piece::Text(text), ..] => self.rules.terminal(&format!("/(?s:.*)/ {}", literal(text))),
            pieces => {
                let text = self.rules.text_without(&[]);
                joined(&[&maybe(&text), &written(&pieces[..pieces.len().min(1)])])
            }
        }
    }

    /// Text that goes on to the end, without `marker`.
    fn open_text(&mut self, marker: &str) -> Result<String> {
        let pieces = self.marks.pieces(marker)?;
        Ok(match &pieces[..] {
            [Piece::Text(text)] => self.rules.text_without(&[text]),
            _ => self.rules.text_without(&[]),
        })
    }

    /// Text and markers that are no calls, and calls if `calls`, in any order.
    fn free(&mut self, calls: Option<&Sections>) -> Result<String> {
        let mut items = self.text_items()?;
        if let Some(calls) = calls {
            items = format!("{items} | {}", self.call_in_text(calls)?);
        }
        Ok(format!("({items})*"))
    }

    /// Calls behind any text.
    fn call_in_text(&mut self, calls: &Sections) -> Result<String> {
        Ok(match calls.marker.first() {
            Some(Piece::Text(_)) => joined(&[&self.before(&calls.marker), &calls.behind]),
            _ => calls.whole.clone(),
        })
    }

    /// A stretch of text without a call, or a marker that is no call's.
    fn text_items(&mut self) -> Result<String> {
        let mut without = Vec::new();
        for text in self.entries() {
            if let [Piece::Text(text)] = &self.marks.pieces(text)?[..] {
                without.push(text.clone());
            }
        }
        let without: Vec<&str> = without.iter().map(String::as_str).collect();
        let mut items = vec![self.rules.text_without(&without)];
        for role in [Mark::Think, Mark::ThinkEnd, Mark::Idle] {
            for text in self.marks.texts(role) {
                // Markers of characters are text already.
                if self.marks.first_token(text)?.is_some() {
                    items.push(self.marks.expression(text)?);
                }
            }
        }
        Ok(items.join(" | "))
    }

    /// The markers by which the reader sees calls begin.
    fn entries(&self) -> Vec<&'static str> {
        [Mark::Section, Mark::Call, Mark::Name].into_iter().flat_map(|role| self.marks.texts(role)).collect()
    }

    /// One section of calls after the other.
    fn sections(&mut self) -> Result<Sections> {
        let writing = self.writing;
        let close = self.parts(writing.close, "", "")?;
        let between = self.parts(writing.between, "", "")?;
        let calls = self.each(writing.call)?;
        let more = if self.several { format!("({})*", joined(&[&between, &calls])) } else { String::new() };
        let head = if writing.open.is_empty() { writing.call } else { writing.open };
        let first_text = head.first().map_or("", |part| self.marks.part(part));
        let marker = self.marks.pieces(first_text)?;
        let rest = written(marker.get(1..).unwrap_or_default());
        let (whole, behind) = if writing.open.is_empty() {
            let behind = self.each(&writing.call[1..])?;
            (calls, joined(&[&rest, &behind]))
        } else {
            let (open, behind) = (self.parts(writing.open, "", "")?, self.parts(&writing.open[1..], "", "")?);
            (joined(&[&open, &calls]), joined(&[&rest, &behind, &calls]))
        };
        let whole = self.rules.rule(&joined(&[&whole, &more, &close]));
        let behind = self.rules.rule(&joined(&[&behind, &more, &close]));
        Ok(Sections { whole, behind, marker })
    }

    /// A call of any of the tools.
    fn each(&mut self, parts: &[Part]) -> Result<String> {
        let tools = self.tools.clone();
        let calls: Result<Vec<String>> =
            tools.iter().map(|(name, arguments)| self.parts(parts, name, arguments)).collect();
        Ok(self.rules.rule(&any_of(&calls?)))
    }

    /// Parts of a call of `name`.
    fn parts(&mut self, parts: &[Part], name: &str, arguments: &str) -> Result<String> {
        let (mut out, mut text) = (Vec::new(), String::new());
        for part in parts {
            let expression = match part {
                Part::Name => {
                    text.push_str(name);
                    continue;
                }
                Part::Quoted => {
                    text.push_str(&serde_json::Value::from(name).to_string());
                    continue;
                }
                Part::Arguments => arguments.to_string(),
                Part::Number => self.rules.terminal("/[0-9]{1,4}/"),
                Part::Id => self.rules.terminal("/[a-zA-Z0-9]{9}/"),
                Part::May(text) => maybe(&self.marks.expression(text)?),
                Part::MayMark(_) => {
                    // Written out it would be text.
                    let pieces = self.marks.pieces(self.marks.part(part))?;
                    let is_token = matches!(pieces[..], [Piece::Token(_)]);
                    if is_token { maybe(&written(&pieces)) } else { String::new() }
                }
                part => {
                    text.push_str(self.marks.part(part));
                    continue;
                }
            };
            out.push(self.marks.expression(&text)?);
            text.clear();
            out.push(expression);
        }
        out.push(self.marks.expression(&text)?);
        Ok(joined(&out.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// A reply that is a call if it begins with a brace.
    fn bare(&mut self) -> Result<String> {
        let text = "/\\s*([^\\s{](?s:.*))?/";
        if self.tools.is_empty() {
            return Ok(self.rules.terminal(text));
        }
        let call = self.each(self.writing.call)?;
        Ok(if self.must_call() { call } else { format!("({call} | {})", self.rules.terminal(text)) })
    }

    /// A reply in messages whose first line is the recipient.
    fn recipients(&mut self) -> Result<String> {
        let marker = self.marks.text(Mark::Message).unwrap_or_default();
        let (mark, call) = (self.marks.expression(marker)?, self.rules.name("r"));
        let next = if self.several { maybe(&joined(&[&mark, &call])) } else { String::new() };
        let calls = if self.tools.is_empty() { "\"all\\n\"".into() } else { self.each(self.writing.call)? };
        let (before, open) = (self.up_to(marker)?, self.open_text(marker)?);
        let is_first = self.start == Start::Recipient;
        if self.must_call() {
            self.rules.define(&call, &joined(&[&calls, &next]));
            return Ok(joined(&[if is_first { "" } else { &mark }, &call]));
        }
        let more = joined(&[&before, &call]);
        let said = format!("{} ({} | {more})", literal("all\n"), maybe(&open));
        let body = if self.tools.is_empty() { said } else { format!("{} | {said}", joined(&[&calls, &next])) };
        self.rules.define(&call, &body);
        Ok(if is_first { call } else { format!("({} | {more})", maybe(&open)) })
    }

    /// A reply in messages with headers.
    fn harmony(&mut self) -> Result<String> {
        let mark = |role| self.marks.expression(self.marks.text(role).unwrap_or_default());
        let (channel, constrain, body) = (mark(Mark::Channel)?, mark(Mark::Constrain)?, mark(Mark::Body)?);
        let (begin, call_end) = (mark(Mark::Message)?, mark(Mark::CallEnd)?);
        let text = self.rules.text_without(&[]);
        let text = maybe(&text);
        let ended = self.up_to(self.marks.text(Mark::MessageEnd).unwrap_or_default())?;
        let next = format!("{ended} {begin} \"assistant\"");
        let said = self.rules.rule(&format!("{channel} (\"analysis\" | \"commentary\") {body} {next}"));
        let last = self.rules.rule(&format!("{channel} \"final\" {body} {text}"));
        let kind = format!("(\" json\" | (\" \")? {constrain} \"json\")?");
        let mut calls = Vec::new();
        for (name, arguments) in &self.tools {
            let to = literal(&format!("to=functions.{name}"));
            let header = format!("({channel} \"commentary \" {to} | \" \" {to} {channel} \"commentary\")");
            calls.push(format!("{header} {kind} {body} {arguments} {call_end}"));
        }
        let call = self.rules.rule(&any_of_or_none(&calls));
        let first = match self.start {
            Start::Reasoning | Start::Content => next.as_str(),
            _ => "",
        };
        if self.must_call() {
            return Ok(joined(&[first, &format!("({said}){{0,2}}"), &call]));
        }
        let end = if calls.is_empty() { last } else { format!("({last} | {call})") };
        let rest = format!("({said})* ({end})?");
        Ok(if first.is_empty() { rest } else { format!("({text} | {first} {rest})") })
    }
}

fn any_of_or_none(list: &[String]) -> String {
    if list.is_empty() { String::new() } else { any_of(list) }
}
