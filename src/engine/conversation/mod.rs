//! Conversations: messages, the sequence that holds what the model has seen of them, and the reply that is being written.
//!
//! A conversation belongs to a session and is advanced by it ([`next`]). Each turn renders all of its messages; what the sequence has in common with
//! the result, as text, stays in the cache, so that sampled tokens stay as they were sampled. `turn` is one reply, `fitting` finds what fits into
//! the context, `adopted` what a session does for the sequences of conversations.
//!
//! The messages are what counts: tokens in the sequence are a cache of them, and every turn brings it up to date.

mod adopted;
mod fitting;
mod step;
mod turn;
mod watch;

use super::model::{Chat, Model};
use super::session::{Failure, Session};
use crate::error::{Error, Result, copied, copied_text, push};
use crate::grammar::Grammar;
use crate::sample;
use crate::text::chat::message::{self, Message, Role};
use crate::text::reply::Event;
use std::sync::Arc;
use std::time::SystemTime;
pub use step::{Outcome, next};
use turn::{Phase, Turn};
use watch::Watch;

/// What the memory of a conversation is for.
const CONVERSATION: &str = "a conversation";

/// How a conversation is held; its own from the beginning, shared by its forks.
#[derive(Default)]
pub struct Setup {
    /// In place of the model's own template.
    pub template: Option<String>,
    /// A JSON array of tools.
    pub tools_json: Option<Vec<u8>>,
    /// A JSON object of further variables of the template.
    pub vars_json: Option<Vec<u8>>,
    /// Unix seconds that the template sees as the present, in every turn; 0 is the clock at the beginning.
    pub now: i64,
    /// Name of the format of replies; without one the template tells.
    pub format: Option<String>,
    /// Texts that end the content of a reply.
    pub stops: Vec<Vec<u8>>,
    /// What each reply follows: its content, or what comes behind the token `grammar_start`.
    pub grammar: Option<Arc<Grammar>>,
    /// The token behind which the grammar begins.
    pub grammar_start: Option<i32>,
    /// Whether the oldest turns are forgotten when the context is full.
    pub forgets: bool,
    /// Most tokens of a reply; 0: as many as fit.
    pub max_tokens: usize,
    /// Most tokens of a reply's reasoning.
    pub reasoning_tokens: Option<usize>,
    /// Most tokens of the sequence; 0: as many as the session allows.
    pub context_tokens: usize,
}

impl Setup {
    fn chat(&self) -> Chat<'_> {
        Chat {
            template: self.template.as_deref(),
            add_generation_prompt: true,
            tools_json: self.tools_json.as_deref(),
            vars_json: self.vars_json.as_deref(),
            now: self.now,
        }
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// It has not, or there is none.
    #[default]
    None,
    /// The model ended it by a token.
    Token,
    /// A stop string was complete.
    Stop,
    /// It had as many tokens as a reply may have.
    Length,
    /// Its grammar let nothing follow.
    Grammar,
    /// A message was added meanwhile.
    Interrupted,
}

/// Figures of the last turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Tokens of the rendered conversation that the reply followed.
    pub prompt: usize,
    /// Those of them that the sequence had already.
    pub kept: usize,
    /// Tokens that had to be evaluated before the first could be sampled.
    pub evaluated: usize,
    /// Tokens of the reply, forced ones included.
    pub reply: usize,
    /// Those of them that were reasoning.
    pub reasoning: usize,
    /// Why the reply ended.
    pub end: End,
}

/// Messages, and where their tokens are.
pub struct Conversation {
    model: Arc<Model>,
    setup: Arc<Setup>,
    seq: i32,
    /// The session closes the sequence once this is gone.
    _owner: Arc<()>,
    messages: Vec<Message>,
    /// Messages behind the leading ones of the system that are no longer shown to the model.
    forgotten: usize,
    /// Number of the next call of a tool.
    calls: usize,
    /// Which tools replies may call, where their calls are watched.
    watch: Option<Watch>,
    /// Whether the sequence has been given a grammar by the last reply.
    has_ruled: bool,
    /// The reply that is being written, or the last one, whose events may still be in use.
    turn: Option<Turn>,
    figures: Figures,
}

impl Conversation {
    /// A conversation in a sequence of its own. `system` is its first message.
    pub fn create(
        session: &mut Session,
        mut setup: Setup,
        system: Option<&str>,
        sampler: sample::Options,
    ) -> Result<Conversation> {
        let model = Arc::clone(session.model());
        let tokenizer = Arc::clone(model.tokenizer()?);
        if model.template(&setup.chat())?.is_none() {
            return Err(Error::NotFound("the model has no chat template; give one in `template_text`".into()));
        }
        if setup.now == 0 {
            setup.now =
                SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        }
        drop(turn::open_reply(&model, &tokenizer, &setup, "", 0)?);
        let mut messages = Vec::new();
        if let Some(text) = system {
            push(&mut messages, Message::of_text("system", text)?, CONVERSATION)?;
        }
        let seq = session.open(sampler)?;
        if let Err(error) = session.set_grammar(seq, setup.grammar.as_ref(), setup.grammar_start) {
            session.close(seq)?;
            return Err(error);
        }
        Ok(Conversation {
            model,
            _owner: session.adopt(seq)?,
            setup: Arc::new(setup),
            seq,
            messages,
            forgotten: 0,
            calls: 0,
            watch: None,
            has_ruled: false,
            turn: None,
            figures: Figures::default(),
        })
    }

    /// A conversation with the same messages and the same reply, which goes on apart; its tokens are shared, not copied.
    pub fn fork(&self, session: &mut Session, sampler: Option<sample::Options>) -> Result<Conversation> {
        let mut messages = Vec::new();
        for message in &self.messages {
            push(&mut messages, message.copied()?, CONVERSATION)?;
        }
        let turn = match &self.turn {
            Some(turn) if turn.phase != Phase::Over => Some(turn.fork(self)?),
            _ => None,
        };
        let watch = self.watch.as_ref().map(Watch::copied).transpose()?;
        let seq = session.fork(self.seq, sampler)?;
        Ok(Conversation {
            model: Arc::clone(&self.model),
            setup: Arc::clone(&self.setup),
            seq,
            _owner: session.adopt(seq)?,
            messages,
            watch,
            turn,
            ..*self
        })
    }

    /// Its sequence.
    pub fn seq(&self) -> i32 {
        self.seq
    }

    /// Adds what `role` says.
    pub fn say(&mut self, role: &str, text: &str) -> Result<()> {
        let mut one = Vec::new();
        push(&mut one, Message::of_text(role, text)?, CONVERSATION)?;
        self.add_all(one)
    }

    /// Adds a message, or an array of messages.
    pub fn add(&mut self, json: &[u8]) -> Result<()> {
        self.add_all(Message::read(json)?)
    }

    /// A reply that is being written ends here.
    fn add_all(&mut self, mut more: Vec<Message>) -> Result<()> {
        crate::error::grow(&mut self.messages, more.len() + 1, CONVERSATION)?;
        if more.is_empty() {
            return Ok(());
        }
        self.interrupt()?;
        self.calls = more.iter().map(|message| message.calls).fold(self.calls, usize::max);
        self.messages.append(&mut more);
        self.turn = None;
        Ok(())
    }

    /// Keeps the first `count` messages, and no reply that is being written.
    pub fn truncate(&mut self, count: usize) -> Result<()> {
        let there = self.messages.len();
        if count > there {
            return Err(Error::InvalidArgument(format!("cannot keep {count} messages of a conversation of {there}")));
        }
        self.turn = None;
        self.messages.truncate(count);
        if self.system() + self.forgotten >= count {
            self.forgotten = 0;
        }
        Ok(())
    }

    /// All messages as a JSON array, those that the model no longer sees included.
    pub fn messages_json(&self) -> Result<String> {
        message::array(self.messages.iter())
    }

    /// Number of messages.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// Messages that the model no longer sees.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Where turns begin: with the first message that is not the system's, and with each user's that follows another's.
    pub fn turns(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let first = self.system();
        let begins = move |&at: &usize| {
            let is_user = |at: usize| self.messages[at].role == Role::User;
            at == first || is_user(at) && !is_user(at - 1)
        };
        (first..self.messages.len()).filter(begins)
    }

    /// Leading messages of the system.
    fn system(&self) -> usize {
        self.messages.iter().take_while(|message| message.role == Role::System).count()
    }

    /// Figures of the last turn.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// What the last step has left for the host to take, if it has not been taken.
    pub fn outcome(&self) -> Option<Outcome> {
        self.turn.as_ref().and_then(|turn| turn.outcome)
    }

    /// The events that go with it.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.turn.iter().flat_map(|turn| turn.reply.events())
    }

    /// Number of these events.
    pub fn event_count(&self) -> usize {
        self.turn.as_ref().map_or(0, |turn| turn.reply.event_count())
    }

    /// The host has taken them.
    pub fn taken(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.outcome = None;
        }
    }
}

/// A copy of an optional text.
pub fn owned_text(text: Option<&str>) -> Result<Option<String>> {
    text.map(|text| copied_text(text, CONVERSATION)).transpose()
}

/// A copy of optional bytes.
pub fn owned_bytes(bytes: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    bytes.map(|bytes| copied(bytes, CONVERSATION)).transpose()
}
