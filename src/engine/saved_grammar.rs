//! The grammar of a saved sequence: what it was compiled of, and how far the sequence has walked. It is compiled again where the sequence is
//! restored, within the limits of any other, and walked through anew.

use super::model::{Chat, Model};
use super::saved::{Reader, Writer};
use super::saved_header::bad;
use crate::error::{Error, Result};
use crate::grammar::{self, CallChoice, Calls, Constraint, Form, Grammar, Kind, Source, Walk};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Texts of a grammar.
const TEXTS: usize = 5;
/// Longest of them.
const TEXT_BYTES: usize = 1 << 20;
/// Numbers before the texts: kind, flags, choice, start token, moves, and the lengths of texts; then the two places.
const NUMBERS: usize = 5 + TEXTS;
const HEAD_BYTES: usize = NUMBERS * 4 + 2 * 8;
/// Stands for no token and no place.
const NONE: u64 = u64::MAX;
/// Kind of grammars of calls; those of texts come before.
const CALLS: u32 = 4;
/// The only flag: JSON without white space, and for calls, that there may be several.
const FLAG: u32 = 1;

/// The grammar of a saved sequence, as it was read.
pub struct SavedGrammar {
    source: Source,
    walk: Walk,
}

impl SavedGrammar {
    /// Writes the grammar of a sequence.
    pub fn write(constraint: &Constraint, writer: &mut Writer) -> Result<()> {
        let walk = constraint.walk()?;
        let (kind, flag, choice, texts) = parts(constraint.grammar().source());
        if let Some(text) = texts.iter().find(|text| text.len() > TEXT_BYTES) {
            let (bytes, most) = (text.len(), TEXT_BYTES);
            let problem = format!("a text of the sequence's grammar has {bytes} bytes, {most} can be saved");
            return Err(Error::Unsupported(problem));
        }
        let trigger = walk.trigger.map_or(NONE as u32, |token| token as u32);
        let mut head = [0u8; HEAD_BYTES];
        let lengths = texts.map(|text| text.len() as u32);
        let numbers =
            [kind, u32::from(flag) * FLAG, choice, trigger, walk.moves.len() as u32].into_iter().chain(lengths);
        let (before, places) = head.split_at_mut(NUMBERS * 4);
        before.chunks_mut(4).zip(numbers).for_each(|(field, number)| field.copy_from_slice(&number.to_le_bytes()));
        for (field, place) in places.chunks_mut(8).zip([walk.begun, walk.ended]) {
            field.copy_from_slice(&place.map_or(NONE, |place| place as u64).to_le_bytes());
        }
        writer.put(&head)?;
        texts.into_iter().try_for_each(|text| writer.put(text))?;
        writer.put_all(&walk.moves, |&place| (place as u32).to_le_bytes())
    }

    /// Reads what [`SavedGrammar::write`] has written, of a sequence of so many tokens.
    pub fn read(tokens: usize, reader: &mut Reader) -> Result<SavedGrammar> {
        let mut head = [0; HEAD_BYTES];
        reader.fill(&mut head)?;
        let (before, places) = head.split_at(NUMBERS * 4);
        let number = |index: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&before[index * 4..][..4]);
            u32::from_le_bytes(bytes)
        };
        let place = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&places[index * 8..][..8]);
            Some(u64::from_le_bytes(bytes)).filter(|&place| place != NONE).map(|place| place as usize)
        };
        let lengths: [usize; TEXTS] = std::array::from_fn(|text| number(5 + text) as usize);
        let moves = number(4) as usize;
        if lengths.iter().any(|&length| length > TEXT_BYTES) || moves > tokens {
            return Err(bad("its grammar is larger than any"));
        }
        let mut texts = [const { Vec::new() }; TEXTS];
        for (text, length) in texts.iter_mut().zip(lengths) {
            *text = reader.take_all(length, |[byte]: [u8; 1]| byte)?;
        }
        let source = source(number(0), number(1), number(2), texts)?;
        let moves = reader.take_all(moves, |bytes| u32::from_le_bytes(bytes) as usize)?;
        let trigger = Some(number(3)).filter(|&token| token != NONE as u32).map(|token| token as i32);
        Ok(SavedGrammar { source, walk: Walk { trigger, begun: place(0), ended: place(1), moves } })
    }

    /// Compiles it for `model`, and walks to where the sequence with these `tokens` was.
    pub fn resume(self, model: &Model, tokens: &[i32], cancel: &AtomicBool) -> Result<Constraint> {
        let vocab = model.vocab();
        if self.walk.trigger.is_some_and(|token| token < 0 || token as usize >= vocab) {
            return Err(bad("the start token of its grammar is not in the vocabulary"));
        }
        let blame = |error| match error {
            Error::Grammar(cause) | Error::InvalidArgument(cause) => bad(&format!("its grammar: {cause}")),
            error => error,
        };
        let grammar = Arc::new(compile(model, &self.source).map_err(blame)?);
        let mut go_on = || if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) };
        Constraint::resume(&grammar, self.walk, tokens, &mut go_on).map_err(blame)
    }
}

/// What is written of a source: kind, flag, choice, texts.
fn parts(source: &Source) -> (u32, bool, u32, [&[u8]; TEXTS]) {
    match source {
        Source::Text { kind, text, compact } => (number_of(*kind), *compact, 0, [text, b"", b"", b"", b""]),
        Source::Calls(calls) => {
            let Calls { tools_json, name, format, template, prompt, .. } = calls;
            let choice = match calls.choice {
                CallChoice::Auto => 0,
                CallChoice::Required => 1,
                CallChoice::None => 2,
                CallChoice::Named => 3,
            };
            let texts: [&[u8]; TEXTS] =
                [tools_json, name.as_bytes(), format.as_bytes(), template.as_bytes(), prompt.as_bytes()];
            (CALLS, calls.parallel, choice, texts)
        }
    }
}

fn number_of(kind: Kind) -> u32 {
    match kind {
        Kind::JsonSchema => 0,
        Kind::Regex => 1,
        Kind::Lark => 2,
        Kind::Gbnf => 3,
    }
}

/// The other way round.
fn source(kind: u32, flags: u32, choice: u32, texts: [Vec<u8>; TEXTS]) -> Result<Source> {
    let flag = flags == FLAG;
    if flags > FLAG {
        return Err(bad(&format!("its grammar has unknown flags {flags:#x}")));
    }
    let [text, name, format, template, prompt] = texts;
    let kinds = [Kind::JsonSchema, Kind::Regex, Kind::Lark, Kind::Gbnf];
    if let Some(&kind) = kinds.iter().find(|&&known| number_of(known) == kind) {
        return Ok(Source::Text { kind, text, compact: flag });
    }
    if kind != CALLS {
        return Err(bad(&format!("it has the unknown kind {kind} of grammar")));
    }
    let choice = match choice {
        0 => CallChoice::Auto,
        1 => CallChoice::Required,
        2 => CallChoice::None,
        3 => CallChoice::Named,
        other => return Err(bad(&format!("its grammar has the unknown choice {other} of tools"))),
    };
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| bad("a text of its grammar is not utf-8"));
    let (name, format, template, prompt) = (utf8(name)?, utf8(format)?, utf8(template)?, utf8(prompt)?);
    Ok(Source::Calls(Calls { tools_json: text, choice, name, parallel: flag, format, template, prompt }))
}

fn compile(model: &Model, source: &Source) -> Result<Grammar> {
    let calls = match source {
        Source::Text { kind, text, compact } => {
            return model.compile(&Form { kind: *kind, text, compact: *compact });
        }
        Source::Calls(calls) => calls,
    };
    let given = |text: &'_ [u8]| !text.is_empty();
    let chat = Chat {
        template: Some(&calls.template),
        tools_json: Some(&*calls.tools_json).filter(|tools| given(tools)),
        ..Chat::default()
    };
    let format = Some(&*calls.format).filter(|format| given(format.as_bytes()));
    let made =
        model.compile_calls(&chat, format, Some(&calls.prompt), (calls.choice.named(&calls.name), calls.parallel));
    made.map(|(grammar, _): (grammar::Grammar, _)| grammar)
}
