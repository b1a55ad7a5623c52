//! The parts of a tokenizer from the metadata of a GGUF file.
//!
//! Which vocabularies there are and what their names mean is said here, in [`patterns`](super::patterns) and in [`normalizers`]; what the
//! parts must fulfil is checked where they are used.

use super::normalizers;
use super::parts::{
    Alphabet, BertRules, BytePair, Kind, Model, Named, Normalizer, Parts, PrefixSpace, SpaceRules, UnigramWords,
};
use super::patterns::Family;
use crate::error::{Error, Excerpt, Result, collected, reserve};
use crate::format::{Metadata, Value};
use std::borrow::Cow;

const ORIGIN: &str = "tokenizer.ggml.";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

const SUPPORTED: &str = "gpt2, gemma4, llama, t5 and bert";

/// Reads the parts; `None` for a file without a tokenizer. Beside them stands whether the file says how text is cut into words, if its kind
/// of vocabulary needs to know.
pub(super) fn read(meta: &Metadata) -> Result<Option<(Parts<'_>, bool)>> {
    let model = match meta.text("tokenizer.ggml.model")? {
        None | Some("no_vocab" | "none") => return Ok(None),
        Some(model) => model,
    };
    let name = meta.text("tokenizer.ggml.pre")?;
    let parts = match model {
        "llama" => sentencepiece(meta, read_tokens(meta)?)?,
        "t5" => unigram(meta, read_tokens(meta)?)?,
        "bert" => wordpiece(meta, read_tokens(meta)?)?,
        "gemma4" => byte_pair(meta, read_tokens(meta)?, Some("gemma4"))?,
        "gpt2" => byte_pair(meta, read_tokens(meta)?, name)?,
        other => {
            let other = Excerpt(other.as_bytes());
            return Err(Error::Unsupported(format!("tokenizer model `{other}`; {SUPPORTED} are supported")));
        }
    };
    Ok(Some((parts, model != "gpt2" || name.is_some())))
}

/// Token texts of a file.
type Tokens<'a> = Vec<&'a [u8]>;

fn read_tokens(meta: &Metadata) -> Result<Tokens<'_>> {
    let spans = meta.required(TOKENS, meta.strings(TOKENS)?)?;
    collected(spans.iter().map(|span| meta.bytes(span)), "token texts")
}

fn sentencepiece<'a>(meta: &'a Metadata, tokens: Tokens<'a>) -> Result<Parts<'a>> {
    let defaults = Named { unknown: Some(0), bos: Some(1), eos: Some(2), ..Named::default() };
    let model = Model::SentencePiece { scores: read_scores(meta)?, spaces: read_spaces(meta, true)? };
    assemble(meta, tokens, model, defaults, &Additions { bos: true, ..Additions::NONE })
}

fn unigram<'a>(meta: &'a Metadata, tokens: Tokens<'a>) -> Result<Parts<'a>> {
    let defaults = Named { unknown: Some(2), eos: Some(1), ..Named::default() };
    let normalizer = match meta.byte_array(CHARSMAP)? {
        Some(map) if !map.is_empty() => Normalizer::Charsmap(map),
        _ => Normalizer::None,
    };
    let mut spaces = read_spaces(meta, false)?;
    // Where runs of spaces become one, every word begins with one, the first too, whatever the file says (as in llama.cpp).
    spaces.prefix |= spaces.squeeze;
    let model = Model::Unigram { scores: read_scores(meta)?, words: UnigramWords::Text(spaces) };
    assemble(meta, tokens, model, defaults, &Additions { eos: true, normalizer, ..Additions::NONE })
}

fn wordpiece<'a>(meta: &'a Metadata, tokens: Tokens<'a>) -> Result<Parts<'a>> {
    let defaults = Named { unknown: Some(100), bos: Some(101), separator: Some(102), ..Named::default() };
    let lowercase = meta.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = meta.bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    let normalizer = Normalizer::Bert(BertRules { lowercase, strip_accents });
    let parts =
        assemble(meta, tokens, Model::WordPiece, defaults, &Additions { bos: true, normalizer, ..Additions::NONE })?;
    let suffix = added(meta, "sep", "seperator", true, parts.named.separator)?;
    Ok(Parts { suffix, ..parts })
}

fn read_spaces(meta: &Metadata, prefix: bool) -> Result<SpaceRules> {
    Ok(SpaceRules {
        prefix: meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(prefix),
        squeeze: meta.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    })
}

fn byte_pair<'a>(meta: &'a Metadata, tokens: Tokens<'a>, name: Option<&str>) -> Result<Parts<'a>> {
    let unknown = |name: &str| Error::Unsupported(format!("pre-tokenizer `{}` is not known", Excerpt(name.as_bytes())));
    let family = match name {
        Some(name) => Family::named(name).ok_or_else(|| unknown(name))?,
        None => Family::of_old_files(),
    };
    let model = Model::BytePair(BytePair {
        alphabet: family.alphabet,
        merges: read_merges(meta)?,
        words: Cow::Borrowed(family.rules),
        whole_words: family.whole_words,
        prefix_space: PrefixSpace::NEVER,
    });
    let additions = Additions {
        bos: family.add_bos,
        normalizer: name.map_or(Normalizer::None, normalizers::named),
        mask_strips: family.mask_strips,
        ..Additions::NONE
    };
    let parts = assemble(meta, tokens, model, Named::default(), &additions)?;
    // Byte-level files often name the end token as the unknown one; their tokenizers never produce it.
    let unknown = parts.named.unknown.filter(|_| family.alphabet == Alphabet::Escaped);
    Ok(Parts { named: Named { unknown, ..parts.named }, ..parts })
}

/// What the kind of a vocabulary says and the file does not.
struct Additions<'a> {
    /// Whether a begin token is added where the file does not say.
    bos: bool,
    /// Whether an end token is.
    eos: bool,
    normalizer: Normalizer<'a>,
    /// Whether `<mask>` swallows the white space before it.
    mask_strips: bool,
}

impl Additions<'_> {
    const NONE: Additions<'static> =
        Additions { bos: false, eos: false, normalizer: Normalizer::None, mask_strips: false };
}

fn assemble<'a>(
    meta: &'a Metadata,
    tokens: Tokens<'a>,
    model: Model<'a>,
    defaults: Named,
    additions: &Additions<'a>,
) -> Result<Parts<'a>> {
    let named = read_named(meta, tokens.len(), defaults)?;
    let pick = |wanted: &dyn Fn(&[u8]) -> bool| {
        let chosen = (0..).zip(&tokens).filter(|(_, text)| wanted(text)).map(|(token, _)| token);
        collected(chosen, "special tokens")
    };
    let is_phi3 = is_phi3(meta)?;
    Ok(Parts {
        origin: ORIGIN,
        model,
        kinds: read_kinds(meta)?,
        named,
        prefix: added(meta, "bos", "bos", additions.bos, named.bos)?,
        suffix: added(meta, "eos", "eos", additions.eos, named.eos)?,
        normalizer: additions.normalizer,
        strips_before: pick(&|text| additions.mask_strips && text == b"<mask>")?,
        strips_after: pick(&|text| is_phi3 && !KEEPING.contains(&text))?,
        tokens,
    })
}

/// The token that goes before or behind a text, if it is added: as `add_{flag}_token` says, else if `default` and there is such a token.
fn added(meta: &Metadata, flag: &str, name: &str, default: bool, token: Option<u32>) -> Result<Vec<u32>> {
    let key = format!("{ORIGIN}add_{flag}_token");
    let tokens = match meta.bool(&key)? {
        Some(true) if token.is_none() => {
            return Err(meta.bad(&key, &format!("is true, but {ORIGIN}{name}_token_id is missing")));
        }
        Some(wanted) => token.filter(|_| wanted),
        None => token.filter(|_| default),
    };
    Ok(tokens.into_iter().collect())
}

/// Special tokens of Phi-3 that leave the white space behind them; a GGUF file cannot say which do, so names stand for it.
const KEEPING: [&[u8]; 3] = [b"<s>", b"<unk>", b"<|endoftext|>"];

/// Whether the file is named after Phi-3.
fn is_phi3(meta: &Metadata) -> Result<bool> {
    let name = meta.text("general.name")?.unwrap_or_default().as_bytes();
    let holds = |part: &[u8]| name.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
    Ok(holds(b"phi-3") || holds(b"phi3"))
}

/// The ids that the file gives to the tokens with a part of their own; one that it does not mention is the default, if the vocabulary
/// reaches so far.
fn read_named(meta: &Metadata, count: usize, defaults: Named) -> Result<Named> {
    let read = |name: &str, default: Option<u32>| {
        let key = format!("{ORIGIN}{name}_token_id");
        let default = default.filter(|&token| (token as usize) < count);
        meta.get(&key).map_or(Ok(default), |value| token_id(meta, &key, value))
    };
    Ok(Named {
        unknown: read("unknown", defaults.unknown)?,
        bos: read("bos", defaults.bos)?,
        eos: read("eos", defaults.eos)?,
        eot: read("eot", defaults.eot)?,
        eom: read("eom", defaults.eom)?,
        // Spelt so by those who write the files.
        separator: read("seperator", defaults.separator)?,
    })
}

/// The token that `value` names; `None` when written as -1.
fn token_id(meta: &Metadata, key: &str, value: &Value) -> Result<Option<u32>> {
    match integer(value) {
        Some(-1) => Ok(None),
        Some(id) if id == i64::from(u32::MAX) => Ok(None),
        Some(id) => u32::try_from(id).map(Some).map_err(|_| meta.bad(key, &format!("is {id}, which is no token"))),
        None => Err(meta.bad(key, "is not an integer")),
    }
}

fn read_kinds(meta: &Metadata) -> Result<Option<Vec<Kind>>> {
    let Some(numbers) = meta.scalars(KINDS)? else { return Ok(None) };
    let mut kinds = reserve(numbers.len(), "token kinds")?;
    for number in numbers {
        let kind = integer(&number).and_then(Kind::of_number);
        kinds.push(kind.ok_or_else(|| meta.bad(KINDS, &format!("has the unknown kind {number:?}")))?);
    }
    Ok(Some(kinds))
}

fn integer(value: &Value) -> Option<i64> {
    match *value {
        Value::Unsigned(v) => i64::try_from(v).ok(),
        Value::Signed(v) => Some(v),
        _ => None,
    }
}

fn read_scores(meta: &Metadata) -> Result<Vec<f32>> {
    let values = meta.required(SCORES, meta.scalars(SCORES)?)?;
    let mut scores = reserve(values.len(), "token scores")?;
    for value in values {
        scores.push(match value {
            Value::F32(score) => score,
            Value::F64(score) => score as f32,
            Value::Signed(score) => score as f32,
            other => return Err(meta.bad(SCORES, &format!("has the score {other:?}"))),
        });
    }
    Ok(scores)
}

fn read_merges(meta: &Metadata) -> Result<Vec<(&[u8], &[u8])>> {
    let spans = meta.required(MERGES, meta.strings(MERGES)?)?;
    let mut merges = reserve(spans.len(), "merges")?;
    for (rank, span) in spans.iter().enumerate() {
        let merge = meta.bytes(span);
        let not_two = || meta.bad(MERGES, &format!("entry {rank} (`{}`) is not two tokens", Excerpt(merge)));
        merges.push(split_merge(merge).ok_or_else(not_two)?);
    }
    Ok(merges)
}

/// The two sides of a merge: the first space that is not its first byte parts them.
fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = 1 + merge.get(1..)?.iter().position(|&byte| byte == b' ')?;
    Some((&merge[..space], &merge[space + 1..]))
}

#[cfg(test)]
mod tests {
    use super::split_merge;

    #[test]
    fn a_merge_is_cut_at_the_first_space_that_is_not_its_first_byte() {
        let cut = |merge: &'static str| split_merge(merge.as_bytes());
        assert_eq!(cut("a b"), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(cut(" a b"), Some((&b" a"[..], &b"b"[..])));
        assert_eq!(cut("  b"), Some((&b" "[..], &b"b"[..])));
        assert_eq!(cut("a  b"), Some((&b"a"[..], &b" b"[..])));
        assert_eq!([cut(""), cut("a"), cut(" a")], [None; 3]);
    }
}
