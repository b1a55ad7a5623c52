//! Which tokens end generation: those that the file names, and those with a name known to mean it.

use super::index::Index;
use super::parts::{Kind, Named};
use super::vocabulary::Vocabulary;
use crate::error::{Result, collected};

/// Names that no text has by chance: they end generation, and are control tokens, whatever the file says of their kind.
const UNMISTAKABLE: [&str; 19] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|tool_response>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<turn|>",
    "[e~[",
];

/// Names that also occur as plain text: they end generation where the file does not call them normal.
const PLAIN: [&str; 6] = ["</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"];

/// The tokens that end generation, in ascending order. Unmistakable ones become control tokens.
pub(super) fn find(vocabulary: &mut Vocabulary, Named { eos, eot, eom, .. }: Named) -> Result<Vec<i32>> {
    let named = Names::of(vocabulary)?;
    let mut tokens: Vec<u32> = [eos, eot, eom].into_iter().flatten().collect();
    for name in UNMISTAKABLE {
        if let Some(token) = named.find(vocabulary, name) {
            vocabulary.set_control(token);
            tokens.push(token);
        }
    }
    let plain = PLAIN.iter().filter_map(|name| named.find(vocabulary, name));
    tokens.extend(plain.filter(|&token| vocabulary.is_typed() && vocabulary.kind(token) != Kind::Normal));
    for (exception, signs) in EXCEPTIONS {
        if signs.iter().all(|sign| named.find(vocabulary, sign).is_some()) {
            let exempt = named.find(vocabulary, exception);
            tokens.retain(|&token| Some(token) != exempt || Some(token) == eos);
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens.into_iter().map(|token| token as i32).collect())
}

/// Names that do not end generation in vocabularies with all of these signs: a message of Harmony or Solar ends inside
/// a turn, and Gemma 4 keeps `</s>` as text.
const EXCEPTIONS: [(&str, &[&str]); 3] = [
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|flush|>", "<|calls|>"]),
    ("</s>", &["<|tool_response>"]),
];

/// The tokens that may carry one of the names.
struct Names(Index);

impl Names {
    fn of(vocabulary: &Vocabulary) -> Result<Names> {
        let longest = UNMISTAKABLE.iter().chain(&PLAIN).map(|name| name.len()).max().unwrap_or(0);
        let candidate = |token: &u32| {
            let bytes = vocabulary.bytes(*token);
            bytes.len() <= longest && matches!(bytes.first(), Some(b'<' | b'[' | b'_'))
        };
        let tokens = collected((0..vocabulary.len() as u32).filter(candidate), "token names")?;
        Index::build(tokens.into_iter(), |token| vocabulary.bytes(token)).map(Names)
    }

    fn find(&self, vocabulary: &Vocabulary, name: &str) -> Option<u32> {
        self.0.find(name.as_bytes(), |token| vocabulary.bytes(token))
    }
}
