//! One reply of a conversation: what it follows, the tokens so far, what they mean.

use super::watch::Rule;
use super::{CONVERSATION, Conversation, End, Figures, Outcome, Setup};
use crate::engine::Model;
use crate::engine::session::{Failure, Session};
use crate::error::{Error, Result, copied, copied_text, grow, push, reserve};
use crate::text::chat::message::{Message, Role};
use crate::text::reply::Draft;
use crate::text::{Reply, ReplyOptions, Tokenizer};
use std::sync::Arc;

/// Bytes of a rendered conversation's end that tell how a reply begins.
const TAIL_BYTES: usize = 1024;

/// How far a reply has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// More tokens come.
    Open,
    /// No more come, and its end has not been read.
    Closing(End),
    /// It is a message.
    Over,
}

/// A reply.
pub(super) struct Turn {
    pub(super) reply: Reply,
    pub(super) phase: Phase,
    /// What the host has not taken.
    pub(super) outcome: Option<Outcome>,
    draft: Draft,
    /// What it follows ends so.
    tail: String,
    /// Number of its first call.
    first_call: usize,
    /// Tokens of the sequence before it.
    prompt: usize,
    /// Its tokens that `reply` and `draft` have seen; the sequence may have more.
    said: Vec<i32>,
    /// What it follows.
    rule: Option<Rule>,
    /// Where in it that begins, and behind which token; `None` while it waits for the end of reasoning.
    ruled: Option<(usize, Option<i32>)>,
    /// Whether `reply` and `draft` are what `said` made of them: refused memory stops them half way.
    is_intact: bool,
}

/// A reader of replies that follow a text with this end.
pub(super) fn open_reply(
    model: &Model,
    tokenizer: &Arc<Tokenizer>,
    setup: &Setup,
    tail: &str,
    calls_before: usize,
) -> Result<Reply> {
    let options = ReplyOptions {
        format: setup.format.as_deref(),
        template: model.template(&setup.chat())?.unwrap_or_default(),
        prompt: tail,
        tools_json: setup.tools_json.as_deref(),
        calls_before,
    };
    let mut stops = reserve(setup.stops.len(), CONVERSATION)?;
    for stop in &setup.stops {
        stops.push(copied(stop, CONVERSATION)?);
    }
    Reply::new(Arc::clone(tokenizer), &options, stops)
}

impl Turn {
    /// The same reply as `reply` and `draft` anew, of the tokens that it has.
    fn renewed(&self, conversation: &Conversation) -> Result<(Reply, Draft)> {
        let Conversation { model, setup, .. } = conversation;
        let mut reply = open_reply(model, model.tokenizer()?, setup, &self.tail, self.first_call)?;
        let mut draft = Draft::default();
        for &token in &self.said {
            reply.push(token)?;
            draft.take(reply.events())?;
        }
        Ok((reply, draft))
    }

    /// A copy for a fork of `conversation`, in which events wait that wait here.
    pub(super) fn fork(&self, conversation: &Conversation) -> Result<Turn> {
        let (reply, draft) = self.renewed(conversation)?;
        let (tail, said) = (copied_text(&self.tail, CONVERSATION)?, copied(&self.said, CONVERSATION)?);
        let rule = self.rule.as_ref().map(Rule::copied);
        Ok(Turn { reply, draft, tail, said, rule, is_intact: true, ..*self })
    }
}

impl Conversation {
    /// The reply that is being written.
    pub(super) fn open_turn(&mut self) -> Option<&mut Turn> {
        self.turn.as_mut().filter(|turn| turn.phase != Phase::Over)
    }

    /// Begins the next reply: brings the sequence to the conversation as it is now.
    pub(super) fn begin(&mut self, session: &mut Session) -> Result<(), Failure> {
        match self.messages.last().map(|message| message.role) {
            None => return Err(invalid("the conversation is empty; add a message to answer first")),
            Some(Role::Assistant) => {
                return Err(invalid("the last message is the assistant's; add one to answer first"));
            }
            _ => {}
        }
        let capacity = self.capacity(session);
        let fitting = self.fit(capacity, 0, self.forgotten)?;
        let text = &fitting.prompt.text;
        let start = (text.len().saturating_sub(TAIL_BYTES)..text.len()).find(|&at| text.is_char_boundary(at));
        let tail = copied_text(&text[start.unwrap_or(0)..], CONVERSATION)?;
        let reply = open_reply(&self.model, self.model.tokenizer()?, &self.setup, &tail, self.calls)?;
        let rule = self.next_rule(&tail)?;
        let prompt = self.bring(session, &fitting.prompt.tokens, &[])?;
        self.forgotten = fitting.forgotten;
        let mut turn = Turn {
            reply,
            phase: Phase::Open,
            outcome: None,
            draft: Draft::default(),
            tail,
            first_call: self.calls,
            prompt,
            said: Vec::new(),
            rule,
            ruled: None,
            is_intact: true,
        };
        if turn.rule.is_some() {
            turn.begin_rule(session, self.seq, 0, None)?;
        } else if std::mem::take(&mut self.has_ruled) {
            session.set_grammar(self.seq, None, None)?;
        }
        self.has_ruled = turn.rule.is_some();
        self.turn = Some(turn);
        Ok(())
    }

    /// Most tokens of the sequence.
    pub(super) fn capacity(&self, session: &Session) -> usize {
        match self.setup.context_tokens {
            0 => session.capacity(),
            tokens => tokens.min(session.capacity()),
        }
    }

    /// Makes the sequence say what `wanted` and then `said` do, and keeps what it has in common with `wanted`. Gives the tokens before `said`.
    fn bring(&mut self, session: &mut Session, wanted: &[i32], said: &[i32]) -> Result<usize, Failure> {
        let held = session.tokens(self.seq)?;
        let (mut kept, mut same) = self.model.tokenizer()?.agreement(held, wanted)?;
        if kept + (wanted.len() - same) + said.len() >= self.capacity(session) {
            // Sampled tokens may be more than those of the same text need to be.
            let equal = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            (kept, same) = (equal, equal);
        }
        session.truncate(self.seq, kept)?;
        session.append(self.seq, &wanted[same..])?;
        session.append(self.seq, said)?;
        let prompt = kept + wanted.len() - same;
        let evaluated = session.lacking(self.seq)?;
        let (reply, reasoning) = if said.is_empty() { (0, 0) } else { (self.figures.reply, self.figures.reasoning) };
        self.figures = Figures { prompt, kept, evaluated, reply, reasoning, end: End::None };
        Ok(prompt)
    }

    /// Forgets one more turn at least, and goes on with the reply. An error where there is none to forget, or the host wants none forgotten.
    pub(super) fn forget(&mut self, session: &mut Session, full: Error) -> Result<(), Failure> {
        let next = self.next_to_forget().filter(|_| self.setup.forgets);
        let (Some(at_least), Some(turn)) = (next, &self.turn) else { return Err(full.into()) };
        let capacity = self.capacity(session);
        // Tokens that nobody has read yet are a part of the reply too.
        let tokens = session.tokens(self.seq)?;
        let said = copied(tokens.get(turn.prompt..).unwrap_or_default(), CONVERSATION)?;
        let fitting = self.fit(capacity, said.len(), at_least)?;
        let evaluated = self.figures.evaluated;
        let prompt = self.bring(session, &fitting.prompt.tokens, &said)?;
        self.figures.evaluated += evaluated;
        self.forgotten = fitting.forgotten;
        let Some(turn) = &mut self.turn else { return Ok(()) };
        turn.prompt = prompt;
        if let (Some(rule), Some((from, start))) = (&turn.rule, turn.ruled) {
            session.set_grammar(self.seq, Some(&rule.grammar), start)?;
            session.replay(self.seq, prompt + from)?;
        }
        Ok(())
    }

    /// A token of the sequence that has not been read, if there is one.
    pub(super) fn unread(&self, session: &Session) -> Result<Option<i32>> {
        let Some(turn) = &self.turn else { return Ok(None) };
        Ok(session.tokens(self.seq)?.get(turn.prompt + turn.said.len()).copied())
    }

    /// Makes good what a call that was refused memory has left.
    pub(super) fn mend(&mut self) -> Result<()> {
        if let Some(turn) = self.turn.as_ref().filter(|turn| !turn.is_intact) {
            let (reply, draft) = turn.renewed(self)?;
            if let Some(turn) = &mut self.turn {
                (turn.reply, turn.draft, turn.is_intact) = (reply, draft, true);
            }
        }
        Ok(())
    }

    /// Has spent what it may on reasoning, and still reasons.
    pub(super) fn must_stop_reasoning(&self) -> bool {
        let spent = self.setup.reasoning_tokens.is_some_and(|most| self.figures.reasoning >= most);
        spent && self.turn.as_ref().is_some_and(|turn| turn.phase == Phase::Open && turn.reply.is_reasoning())
    }

    /// Lets the reply end its reasoning. False where it cannot be ended.
    pub(super) fn stop_reasoning(&mut self, session: &mut Session) -> Result<bool, Failure> {
        let Some(turn) = &self.turn else { return Ok(false) };
        let end = turn.reply.reasoning_end()?;
        if session.tokens(self.seq)?.len() + end.len() >= self.capacity(session) {
            return Err(self.full(session)?.into());
        }
        Ok(!end.is_empty() && session.force(self.seq, &end)?)
    }

    /// The error that the sequence has no room for another token.
    pub(super) fn full(&self, session: &Session) -> Result<Error> {
        let needed = session.tokens(self.seq)?.len() + 1;
        Ok(Error::ConversationFull { needed, limit: self.capacity(session) })
    }

    /// Reads a token that the sequence has. Its events wait for the host.
    pub(super) fn read(&mut self, session: &mut Session, token: i32) -> Result<()> {
        let ends = session.ends(self.seq, token)?;
        let Some(turn) = self.turn.as_mut() else { return Ok(()) };
        grow(&mut turn.said, 1, CONVERSATION)?;
        let was_reasoning = turn.reply.is_reasoning();
        turn.is_intact = false;
        turn.reply.push(token)?;
        turn.draft.take(turn.reply.events())?;
        turn.begin_rule(session, self.seq, turn.said.len() + 1, Some(token))?;
        turn.is_intact = true;
        turn.said.push(token);
        let said = turn.said.len();
        self.figures.reply = said;
        self.figures.reasoning += usize::from(was_reasoning);
        if ends {
            turn.phase = Phase::Closing(End::Token);
        } else if self.setup.max_tokens > 0 && said >= self.setup.max_tokens {
            turn.phase = Phase::Closing(End::Length);
        }
        self.end_if_over()?;
        self.turn.as_mut().into_iter().for_each(|turn| {
            turn.outcome.get_or_insert(Outcome::Events);
        });
        Ok(())
    }

    /// Makes the reply a message if its last token has ended it.
    pub(super) fn end_if_over(&mut self) -> Result<()> {
        let Some(turn) = self.open_turn().filter(|turn| turn.reply.is_over()) else { return Ok(()) };
        let last = turn.said.last().copied();
        let tokenizer = self.model.tokenizer()?;
        self.settle(if last.is_some_and(|token| tokenizer.is_eog(token)) { End::Token } else { End::Stop })
    }

    /// Ends the reply where its tokens end.
    pub(super) fn close(&mut self, end: End) -> Result<()> {
        let Some(turn) = self.turn.as_mut() else { return Ok(()) };
        turn.is_intact = false;
        turn.reply.flush()?;
        turn.draft.take(turn.reply.events())?;
        self.settle(end)?;
        Ok(())
    }

    /// Makes the reply a message.
    fn settle(&mut self, end: End) -> Result<()> {
        let Some(turn) = self.turn.as_mut() else { return Ok(()) };
        turn.is_intact = false;
        let json = turn.draft.message()?;
        let read = Message::read(json.as_bytes())?;
        for message in read {
            self.calls = self.calls.max(message.calls);
            push(&mut self.messages, message, CONVERSATION)?;
        }
        turn.is_intact = true;
        (turn.phase, turn.outcome) = (Phase::Over, Some(Outcome::Done));
        self.figures.end = end;
        Ok(())
    }

    /// Ends a reply that is being written, because a message is added: what there is of it is a message too.
    pub(super) fn interrupt(&mut self) -> Result<()> {
        let Some(turn) = self.open_turn() else { return Ok(()) };
        if turn.said.is_empty() {
            return Ok(());
        }
        let end = if let Phase::Closing(end) = turn.phase { end } else { End::Interrupted };
        self.mend()?;
        self.close(end)
    }
}

impl Turn {
    /// Lets the rule of the reply begin, once it is behind its reasoning or the rule is of that too. `from`: the number of its tokens, with the one
    /// that is being read, which is `last`.
    fn begin_rule(&mut self, session: &mut Session, seq: i32, from: usize, last: Option<i32>) -> Result<()> {
        let Some(rule) = self.rule.as_ref().filter(|_| self.ruled.is_none()) else { return Ok(()) };
        if rule.after_reasoning && self.reply.is_reasoning() {
            return session.set_grammar(seq, None, None);
        }
        // What begins a call may have ended the reasoning.
        let start = rule.start.filter(|_| rule.start != last);
        session.set_grammar(seq, Some(&rule.grammar), start)?;
        self.ruled = Some((from, start));
        Ok(())
    }
}

fn invalid(message: &str) -> Failure {
    Error::InvalidArgument(message.into()).into()
}
