//! What of a conversation fits into the context: the oldest turns are the first to go, those of the system and the newest never.

use super::{CONVERSATION, Conversation};
use crate::engine::model::Prompt;
use crate::error::{Error, Result, collected};
use crate::text::chat::message;

/// A conversation that fits.
pub(super) struct Fitting {
    pub(super) prompt: Prompt,
    /// Messages that are not in it.
    pub(super) forgotten: usize,
}

impl Conversation {
    /// Renders what fits into `capacity` tokens together with `said` tokens of a reply and some that it may still have. `at_least` messages are
    /// left out.
    ///
    /// When turns must go, more of them go than must: a quarter of the context is free afterwards, so that not every turn changes the beginning of
    /// what the model sees, and evaluates all of it.
    pub(super) fn fit(&self, capacity: usize, said: usize, at_least: usize) -> Result<Fitting> {
        let wanted = match self.setup.max_tokens {
            0 => capacity / 4,
            tokens => tokens.saturating_sub(said),
        };
        let needed = said + wanted.min(capacity / 2);
        let prompt = self.render(at_least)?;
        let whole = Fitting { prompt, forgotten: at_least };
        if !self.setup.forgets || whole.prompt.tokens.len() + needed <= capacity {
            return require(whole, capacity, said);
        }
        let first = self.system();
        let steps = self.turns().map(|start| start - first).filter(|&forgotten| forgotten > at_least);
        let steps = collected(steps, CONVERSATION)?;
        // The newest turn is the last resort; before it, the fewest turns that leave enough.
        let Some((&last, others)) = steps.split_last() else { return require(whole, capacity, said) };
        let (mut low, mut high) = (0, others.len());
        let mut best = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let prompt = self.render(others[middle])?;
            if prompt.tokens.len() + needed + capacity / 4 <= capacity {
                best = Some(Fitting { prompt, forgotten: others[middle] });
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let fitting = match best {
            Some(fitting) => fitting,
            None => Fitting { prompt: self.render(last)?, forgotten: last },
        };
        require(fitting, capacity, said)
    }

    /// The fewest messages that go when one more turn is forgotten; none where only the newest is left.
    pub(super) fn next_to_forget(&self) -> Option<usize> {
        let first = self.system();
        self.turns().map(|start| start - first).find(|&forgotten| forgotten > self.forgotten)
    }

    fn render(&self, forgotten: usize) -> Result<Prompt> {
        let first = self.system();
        let shown = self.messages[..first].iter().chain(&self.messages[first + forgotten..]);
        let json = message::array(shown)?;
        self.model.tokenize_chat(json.as_bytes(), &self.setup.chat())
    }
}

/// At least one token must fit behind the prompt.
fn require(fitting: Fitting, capacity: usize, said: usize) -> Result<Fitting> {
    let needed = fitting.prompt.tokens.len() + said + 1;
    if needed > capacity { Err(Error::ConversationFull { needed, limit: capacity }) } else { Ok(fitting) }
}
