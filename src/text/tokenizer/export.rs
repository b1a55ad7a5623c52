//! A tokenizer as the metadata of a GGUF file: what a converter would write of a folder's.
//!
//! Everything but the name of the pre-tokenizer follows from the parts ([`describe`]). That name stands for rules that the file does not hold, so it
//! is found by comparing how texts are cut ([`Tokenizer::describe_words`]), as llama.cpp's converter does.

use super::normalizers;
use super::parts::{Alphabet, BytePair, Kind, Model, Normalizer, Parts, PrefixScope, Runs, UnigramWords, WholeWords};
use super::patterns::Family;
use super::pretokenizer::Pretokenizer;
use super::{Algorithm, Normal, Tokenizer};
use crate::error::{Error, Result, extend, push, reserve, room};
use crate::format::{Builder, Metadata, ScalarKind};
use hashbrown::HashMap;

/// What memory is for.
const METADATA: &str = "metadata of the tokenizer";
/// Name of the rules that cut text into words.
const PRE: &str = "tokenizer.ggml.pre";
/// What rows of the embedding that no token has are called.
const PAD: &str = "[PAD";

/// What files call the token between texts.
const SEPARATOR: &str = "seperator";

/// What stands for no token.
const NO_TOKEN: u32 = u32::MAX;

/// Text on which pre-tokenizers differ: spaces, line ends, digits, contractions, capitals, marks, scripts and symbols in many neighbourhoods.
const PROBE: &str = "Hello, world!  I'm here;   you'RE there, WE'LL see: it's 3 or 33 or 333 or 3333 or 33333.5% (1,234,567)\n\n\n   \
    \tfn main() { let x_y = a[0] != \"b\"; } // ok...\r\n \u{a0}\u{3000}caf\u{e9} cafe\u{301} na\u{ef}ve Stra\u{df}e camelCaseWords HTTPServer \
    \u{43f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{43c}\u{438}\u{440} \u{4f60}\u{597d}\u{4e16}\u{754c}\u{3002}\u{3053}\u{3093}\u{306b}\u{3061}\u{306f}\u{30ab}\u{30ca} \
    \u{645}\u{631}\u{62d}\u{628}\u{627} \u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940} \u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35} \u{d55c}\u{ad6d}\u{c5b4} \u{1f600}\u{1f44d}\u{1f3fd} \u{2460}\u{bd}\u{b2} \
    ---___===+++ <|tag|> a/b\\c $5 #6 @7 ^8 &9 *0 'quoted' \u{201c}Quoted\u{201d}\u{2014}dash\u{2026}\n x\n\ny \n z    end  ";

/// All of it that follows from `parts`; `rows` is how many rows the embedding has, which may be more than there are tokens.
pub(super) fn describe(parts: &Parts, rows: usize) -> Result<Metadata> {
    let (mut out, rows) = (Builder::default(), rows.max(parts.tokens.len()));
    match &parts.model {
        Model::BytePair(model) => write_byte_pair(parts, model, rows, &mut out)?,
        Model::Unigram { scores, words } => write_unigram(parts, scores, words, rows, &mut out)?,
        Model::WordPiece => write_wordpiece(parts, &mut out)?,
        // No folder has one.
        Model::SentencePiece { .. } => {}
    }
    write_tokens(parts, rows, &mut out)?;
    let is_byte_level = matches!(&parts.model, Model::BytePair(model) if model.alphabet == Alphabet::ByteLevel);
    for (name, token) in parts.named.all() {
        // Files of other kinds that do not mention one of these have it all the same.
        let is_told = token.is_some() || !is_byte_level && matches!(name, "unknown" | "bos" | "eos" | SEPARATOR);
        if is_told {
            out.set_unsigned(&key(&format!("{name}_token_id")), token.unwrap_or(NO_TOKEN).into())?;
        }
    }
    out.set_bool(&key("add_bos_token"), !parts.prefix.is_empty())?;
    // What stands behind a text of BERT's separates it from others.
    let is_bert = matches!(parts.model, Model::WordPiece);
    out.set_bool(&key("add_eos_token"), !is_bert && !parts.suffix.is_empty())?;
    Ok(out.build())
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn write_byte_pair(parts: &Parts, model: &BytePair, rows: usize, out: &mut Builder) -> Result<()> {
    if model.alphabet == Alphabet::ByteLevel {
        out.set_text(&key("model"), "gpt2")?;
        return write_merges(model, out);
    }
    out.set_text(&key("model"), "llama")?;
    out.set_text(PRE, "default")?;
    out.set_bool(&key("add_space_prefix"), model.prefix_space.scope != PrefixScope::Never)?;
    write_ranks(parts, model, rows, out)
}

fn write_unigram(parts: &Parts, scores: &[f32], words: &UnigramWords, rows: usize, out: &mut Builder) -> Result<()> {
    let (prefix, squeeze) = match words {
        UnigramWords::Text(rules) => (rules.prefix, rules.squeeze),
        UnigramWords::Steps { spaces, .. } => {
            (spaces.prefix_space.scope != PrefixScope::Never, spaces.runs != Runs::Kept)
        }
    };
    out.set_text(&key("model"), "t5")?;
    out.set_text(PRE, "default")?;
    out.set_bool(&key("add_space_prefix"), prefix)?;
    out.set_bool(&key("remove_extra_whitespaces"), squeeze)?;
    if let Normalizer::Charsmap(map) = parts.normalizer {
        out.set_scalars(&key("precompiled_charsmap"), ScalarKind::U8, map)?;
    }
    write_scores(scores.iter().copied(), rows, out)
}

fn write_wordpiece(parts: &Parts, out: &mut Builder) -> Result<()> {
    out.set_text(&key("model"), "bert")?;
    out.set_text(PRE, "default")?;
    if let Normalizer::Bert(rules) = parts.normalizer {
        out.set_bool(&key("normalizer.lowercase"), rules.lowercase)?;
        out.set_bool(&key("normalizer.strip_accents"), rules.strip_accents)?;
    }
    out.set_bool(&key("add_sep_token"), !parts.suffix.is_empty())
}

/// Both sides of each merge with a space between.
fn write_merges(model: &BytePair, out: &mut Builder) -> Result<()> {
    let (mut joined, mut ends) = (Vec::new(), reserve(model.merges.len(), METADATA)?);
    for (left, right) in &model.merges {
        for part in [left, &b" "[..], right] {
            extend(&mut joined, part, METADATA)?;
        }
        ends.push(joined.len());
    }
    let mut start = 0;
    let texts = ends.iter().map(|&end| &joined[std::mem::replace(&mut start, end)..end]);
    out.set_texts(&key("merges"), texts)
}

/// Scores with which the pair whose token scores highest is the merge that comes first. Tokens that no merge makes come last.
fn write_ranks(parts: &Parts, model: &BytePair, rows: usize, out: &mut Builder) -> Result<()> {
    let mut ids = HashMap::new();
    room(parts.tokens.len() * size_of::<(&[u8], usize)>(), METADATA, || ids.try_reserve(parts.tokens.len()))?;
    ids.extend(parts.tokens.iter().enumerate().map(|(id, &text)| (text, id)));
    let mut ranks = reserve(rows, METADATA)?;
    ranks.resize(rows, model.merges.len());
    let mut text = Vec::new();
    for (rank, (left, right)) in model.merges.iter().enumerate() {
        text.clear();
        extend(&mut text, left, METADATA)?;
        extend(&mut text, right, METADATA)?;
        if let Some(&id) = ids.get(text.as_slice()) {
            ranks[id] = ranks[id].min(rank);
        }
    }
    write_scores(ranks.iter().map(|&rank| -(rank as f32) - 1.0), rows, out)
}

/// `scores`, and zeros for the rows of the embedding that no token has.
fn write_scores(scores: impl Iterator<Item = f32>, rows: usize, out: &mut Builder) -> Result<()> {
    let mut bytes = reserve(rows * size_of::<f32>(), METADATA)?;
    scores.chain(std::iter::repeat(0.0)).take(rows).for_each(|score| bytes.extend(score.to_le_bytes()));
    out.set_scalars(&key("scores"), ScalarKind::F32, &bytes)
}

/// Texts and kinds, one for each row of the embedding.
fn write_tokens(parts: &Parts, rows: usize, out: &mut Builder) -> Result<()> {
    let mut pads = Vec::new();
    for id in parts.tokens.len()..rows {
        push(&mut pads, format!("{PAD}{id}]"), METADATA)?;
    }
    // Holes have no text, which no two tokens may share.
    let mut holes = HashMap::new();
    for (id, _) in parts.tokens.iter().enumerate().filter(|(_, text)| text.is_empty()) {
        room(size_of::<(usize, String)>(), METADATA, || holes.try_reserve(1))?;
        holes.insert(id, format!("{PAD}{id}]"));
    }
    let texts = parts.tokens.iter().enumerate();
    let texts = texts.map(|(id, &text)| holes.get(&id).map_or(text, |name: &String| name.as_bytes()));
    let texts = texts.chain(pads.iter().map(String::as_bytes));
    out.set_texts(&key("tokens"), texts)?;
    let Some(kinds) = &parts.kinds else { return Ok(()) };
    let mut bytes = reserve(rows * size_of::<i32>(), METADATA)?;
    let padding = pads.iter().map(|_| Kind::Unused);
    kinds.iter().copied().chain(padding).for_each(|kind| bytes.extend((kind as i32).to_le_bytes()));
    out.set_scalars(&key("token_type"), ScalarKind::I32, &bytes)
}

impl Tokenizer {
    /// Adds what `described`, the metadata of this tokenizer, lacks: the name of the pre-tokenizer. What a GGUF file cannot tell is
    /// [`Error::Unsupported`].
    pub fn describe_words(&self, described: &Metadata, out: &mut Builder) -> Result<()> {
        let around =
            |added: &[u32], token: Option<u32>| added.is_empty() || token.is_some_and(|token| added == [token]);
        let end = if matches!(self.algorithm, Algorithm::WordPiece(_)) { self.separator } else { self.eos };
        if !around(&self.prefix, self.bos) || !around(&self.suffix, end) {
            return Err(cannot_tell("tokens around a text that are not those that begin and end one"));
        }
        match &self.algorithm {
            Algorithm::BytePair { words, bpe } if bpe.alphabet() == Alphabet::ByteLevel => {
                let name = self.name_of(words, bpe.whole_words())?;
                out.set_text(PRE, name.ok_or_else(|| cannot_tell("a way to cut text into words that has no name"))?)
            }
            _ => {
                let same = Tokenizer::from_metadata(described)?;
                let same = same.map(|same| same.encode(PROBE.as_bytes(), true, false)).transpose()?;
                match same == Some(self.encode(PROBE.as_bytes(), true, false)?) {
                    true => Ok(()),
                    false => Err(cannot_tell("merges or spaces that scores cannot stand for")),
                }
            }
        }
    }

    /// The pre-tokenizer that cuts the probe as `words` does, and does the same to text first.
    fn name_of(&self, words: &Pretokenizer, whole_words: WholeWords) -> Result<Option<&'static str>> {
        let cuts = words.split(PROBE)?;
        for family in Family::all() {
            if family.alphabet != Alphabet::ByteLevel || family.whole_words != whole_words || family.mask_strips {
                continue;
            }
            let name = family.own_names().iter().find(|name| self.normalizes_as(normalizers::named(name)));
            if let Some(name) = name
                && Pretokenizer::new(family.rules)?.split(PROBE)? == cuts
            {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn normalizes_as(&self, normalizer: Normalizer) -> bool {
        matches!((&self.normal, normalizer), (Normal::None, Normalizer::None) | (Normal::Nfc, Normalizer::Nfc))
    }
}

fn cannot_tell(what: &str) -> Error {
    Error::Unsupported(format!("the tokenizer of the folder has {what}, which a gguf file cannot tell"))
}
