//! Calls of tools in the replies of a conversation: which may be written, and the grammar that sees to it.

use super::{CONVERSATION, Conversation, Setup};
use crate::engine::Model;
use crate::error::{Error, Result, copied_text};
use crate::grammar::{CallChoice, Grammar};
use crate::text::reply::{Choice, Start};
use std::sync::Arc;

/// What a reply follows.
pub(super) struct Rule {
    pub(super) grammar: Arc<Grammar>,
    /// The token behind which it begins.
    pub(super) start: Option<i32>,
    /// Whether it is of what comes behind reasoning alone.
    pub(super) after_reasoning: bool,
}

impl Rule {
    /// The same.
    pub(super) fn copied(&self) -> Rule {
        Rule { grammar: Arc::clone(&self.grammar), ..*self }
    }
}

/// Which tools replies may call, and the grammar of that for replies that begin alike.
pub(super) struct Watch {
    choice: CallChoice,
    name: String,
    parallel: bool,
    begin: Start,
    grammar: Arc<Grammar>,
    trigger: Option<i32>,
}

impl Watch {
    /// For replies to a short message.
    fn new(model: &Model, setup: &Setup, choice: Choice, parallel: bool) -> Result<Watch> {
        let (kind, name) = CallChoice::of(choice);
        let (chat, format) = (setup.chat(), setup.format.as_deref());
        let begin = model.reply_start(&chat, format, None)?;
        let (grammar, trigger) = model.compile_calls(&chat, format, None, (choice, parallel))?;
        let name = copied_text(name, CONVERSATION)?;
        Ok(Watch { choice: kind, name, parallel, begin, grammar: Arc::new(grammar), trigger })
    }

    /// The same for a fork.
    pub(super) fn copied(&self) -> Result<Watch> {
        Ok(Watch { name: copied_text(&self.name, CONVERSATION)?, grammar: Arc::clone(&self.grammar), ..*self })
    }

    /// The rule of a reply that follows a text which ends with `tail`.
    fn rule(&mut self, model: &Model, setup: &Setup, tail: &str) -> Result<Rule> {
        let (chat, format) = (setup.chat(), setup.format.as_deref());
        let begin = model.reply_start(&chat, format, Some(tail))?;
        if begin != self.begin {
            let choice = self.choice.named(&self.name);
            let (grammar, trigger) = model.compile_calls(&chat, format, Some(tail), (choice, self.parallel))?;
            (self.begin, self.grammar, self.trigger) = (begin, Arc::new(grammar), trigger);
        }
        // A grammar that begins at once has the reasoning in it; what begins a call within reasoning is none of its.
        let after_reasoning = self.trigger.is_some();
        Ok(Rule { grammar: Arc::clone(&self.grammar), start: self.trigger, after_reasoning })
    }
}

impl Conversation {
    /// Lets the replies that begin from now on call tools as `choice` says, several if `parallel`; `None` lets them write what they like.
    pub fn watch_calls(&mut self, choice: Option<Choice>, parallel: bool) -> Result<()> {
        if self.setup.grammar.is_some() {
            let problem =
                "the replies of this conversation follow a grammar of the host's; calls are not watched beside it";
            return Err(Error::InvalidArgument(problem.into()));
        }
        self.watch = choice.map(|choice| Watch::new(&self.model, &self.setup, choice, parallel)).transpose()?;
        Ok(())
    }

    /// What the next reply follows, behind a text which ends with `tail`.
    pub(super) fn next_rule(&mut self, tail: &str) -> Result<Option<Rule>> {
        let Conversation { model, setup, watch, .. } = self;
        if let Some(grammar) = &setup.grammar {
            let (grammar, start) = (Arc::clone(grammar), setup.grammar_start);
            return Ok(Some(Rule { grammar, start, after_reasoning: start.is_none() }));
        }
        watch.as_mut().map(|watch| watch.rule(model, setup, tail)).transpose()
    }
}
