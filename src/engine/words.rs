//! How a draft model's tokens are those of the model that it drafts for.

use super::model::Model;
use crate::error::{Error, Result};
use crate::text::tokenizer::Translation;

/// How its tokens are those of the model that it drafts for.
pub enum Words {
    /// They are the same.
    Same,
    /// The first ones are: one of the two has rows behind them that no text needs.
    First(usize),
    /// Special ones are others.
    Translated(Translation),
}

impl Words {
    /// Refuses a draft model whose tokens of text are others.
    pub fn of(model: &Model, draft: &Model) -> Result<Words> {
        let (rows, others) = (model.vocab(), draft.vocab());
        let translation = match (model.tokenizer(), draft.tokenizer()) {
            (Ok(a), Ok(b)) => a.translation(b)?,
            (Err(_), Err(_)) if rows == others => None,
            _ => {
                let problem = format!("the draft model has another vocabulary: {others} tokens, {rows} of the model");
                return Err(Error::Unsupported(problem));
            }
        };
        Ok(match translation {
            Some(translation) => Words::Translated(translation),
            None if rows == others => Words::Same,
            None => Words::First(rows.min(others)),
        })
    }

    /// The same for a draft that was made for the model: its tokens are the model's, whether it says what they are or not.
    pub fn of_made_for(model: &Model, draft: &Model) -> Result<Words> {
        if draft.tokenizer().is_err() && draft.vocab() == model.vocab() {
            return Ok(Words::Same);
        }
        match Words::of(model, draft)? {
            Words::Translated(_) => {
                let problem = "the draft model was made for a model with other special tokens";
                Err(Error::Unsupported(problem.into()))
            }
            words => Ok(words),
        }
    }

    /// The draft model's token for one of the model: its first one where it has none.
    pub fn there(&self, token: i32) -> i32 {
        match self {
            Words::Same => token,
            Words::First(count) => {
                if (token as usize) < *count {
                    token
                } else {
                    0
                }
            }
            Words::Translated(translation) => translation.there(token).unwrap_or(0),
        }
    }

    /// The model's token for one of the draft model, if it has it.
    pub fn back(&self, token: i32) -> Option<i32> {
        match self {
            Words::Same => Some(token),
            Words::First(count) => Some(token).filter(|&token| (token as usize) < *count),
            Words::Translated(translation) => translation.back(token),
        }
    }
}
