//! What a grammar was compiled of, as it is kept: enough to compile it again elsewhere.

use super::{Form, Kind, WHAT};
use crate::error::{Result, copied};
use crate::text::reply::{CallOptions, Choice};

/// Bytes of a prompt's end that are kept: where a reply begins is told by the last of its markers.
const PROMPT_BYTES: usize = 4 << 10;

/// What a grammar was compiled of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A text in one of the languages.
    Text {
        /// Its language.
        kind: Kind,
        /// UTF-8.
        text: Vec<u8>,
        /// As in [`Form`].
        compact: bool,
    },
    /// Calls of tools.
    Calls(Calls),
}

/// Calls of tools, as [`CallOptions`] has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The tools, a JSON array; empty for none.
    pub tools_json: Vec<u8>,
    /// Which may be called.
    pub choice: CallChoice,
    /// The tool that must be, where one is named.
    pub name: String,
    /// Whether there may be several.
    pub parallel: bool,
    /// Name of the format; empty where the template tells.
    pub format: String,
    /// The chat template.
    pub template: String,
    /// The end of the text that the reply follows.
    pub prompt: String,
}

/// [`Choice`], without the name.
#[allow(missing_docs)] // Named as there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallChoice {
    #[default]
    Auto,
    Required,
    None,
    Named,
}

impl Source {
    /// That of `form`.
    pub fn of_text(form: &Form) -> Result<Source> {
        Ok(Source::Text { kind: form.kind, text: copied(form.text, WHAT)?, compact: form.compact })
    }

    /// That of `options`.
    pub fn of_calls(options: &CallOptions) -> Result<Source> {
        let (choice, name) = CallChoice::of(options.choice);
        let (reply, parallel) = (&options.reply, options.parallel);
        let begin = reply.prompt.ceil_char_boundary(reply.prompt.len().saturating_sub(PROMPT_BYTES));
        let text = |text: &str| copied(text.as_bytes(), WHAT).map(|bytes| String::from_utf8(bytes).unwrap_or_default());
        Ok(Source::Calls(Calls {
            tools_json: copied(reply.tools_json.unwrap_or_default(), WHAT)?,
            choice,
            name: text(name)?,
            parallel,
            format: text(reply.format.unwrap_or_default())?,
            template: text(reply.template)?,
            prompt: text(&reply.prompt[begin..])?,
        }))
    }
}

impl CallChoice {
    /// A choice, and the name in it, or "".
    pub fn of(choice: Choice<'_>) -> (CallChoice, &str) {
        match choice {
            Choice::Auto => (CallChoice::Auto, ""),
            Choice::Required => (CallChoice::Required, ""),
            Choice::None => (CallChoice::None, ""),
            Choice::Named(name) => (CallChoice::Named, name),
        }
    }

    /// The choice with the name of a tool.
    pub fn named(self, name: &str) -> Choice<'_> {
        match self {
            CallChoice::Auto => Choice::Auto,
            CallChoice::Required => Choice::Required,
            CallChoice::None => Choice::None,
            CallChoice::Named => Choice::Named(name),
        }
    }
}
