//! Tokens that no merge makes: those that are cut out of text whole, and those that go around a text.

use super::{TOKENS, Tokens, bad, collected, filled, unsupported};
use crate::error::{Error, Excerpt, Result, push};
use crate::format::Item;
use crate::format::limits::VOCAB;
use crate::text::tokenizer::parts::Kind;

/// Tokens that swallow white space.
#[derive(Default)]
pub(super) struct Strips {
    /// Before them.
    pub(super) before: Vec<u32>,
    /// Behind them.
    pub(super) after: Vec<u32>,
}

/// Reads `added_tokens`: special ones are structure, others text that is cut out whole.
pub(super) fn read<'a>(root: Item<'a>, tokens: &mut Tokens<'a>) -> Result<Strips> {
    let mut strips = Strips::default();
    let Some(listed) = root.get("added_tokens") else { return Ok(strips) };
    for token in listed.elements().ok_or_else(|| bad("`added_tokens` is no list"))? {
        let text = token.get("content").and_then(Item::text);
        let id = token.get("id").and_then(Item::unsigned).filter(|&id| id < VOCAB as u64);
        let (Some(text), Some(id)) = (text, id) else {
            return Err(bad("an added token has no usable `content` or `id`"));
        };
        let id = id as u32;
        let is = |name: &str| token.get(name).and_then(Item::flag) == Some(true);
        if is("single_word") {
            let text = Excerpt(text.as_bytes());
            return Err(Error::Unsupported(format!(
                "{}: `single_word` of token `{text}` is not supported",
                super::FILE
            )));
        }
        let is_unknown = tokens.kinds.get(id as usize) == Some(&Kind::Unknown);
        let kind = match is("special") {
            true if is_unknown => Kind::Unknown,
            true => Kind::Control,
            false => Kind::UserDefined,
        };
        tokens.set(text, id, kind)?;
        if is("lstrip") {
            push(&mut strips.before, id, TOKENS)?;
        }
        if is("rstrip") {
            push(&mut strips.after, id, TOKENS)?;
        }
    }
    Ok(strips)
}

/// Classes that put their begin and end tokens around a text as `tokenizer_config.json` says, whatever `tokenizer.json` does.
const FLAGGED: [&str; 5] =
    ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", "CodeLlamaTokenizer"];

/// The tokens before and behind a text.
pub(super) fn around(root: Item, config: Option<Item>, tokens: &Tokens) -> Result<(Vec<u32>, Vec<u32>)> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    if let Some(processor) = root.get("post_processor") {
        read_processor(processor, tokens, &mut prefix, &mut suffix)?;
    }
    let Some(config) = config else { return Ok((prefix, suffix)) };
    let is_flagged = config.get("tokenizer_class").and_then(Item::text).is_some_and(|class| FLAGGED.contains(&class));
    for (flag, name, added) in
        [("add_bos_token", "bos_token", &mut prefix), ("add_eos_token", "eos_token", &mut suffix)]
    {
        let Some(wanted) = config.get(flag).and_then(Item::flag).filter(|_| is_flagged) else { continue };
        let token = config.get(name).and_then(|token| token.text().or_else(|| token.get("content")?.text()));
        let token = token.and_then(|text| tokens.find(text)).filter(|_| wanted);
        if wanted && token.is_none() {
            return Err(bad(&format!("`{flag}` of tokenizer_config.json is true, but `{name}` is no token")));
        }
        *added = collected(token, TOKENS)?;
    }
    Ok((prefix, suffix))
}

fn read_processor(processor: Item, tokens: &Tokens, prefix: &mut Vec<u32>, suffix: &mut Vec<u32>) -> Result<()> {
    match processor.get("type").and_then(Item::text) {
        Some("ByteLevel") => Ok(()),
        Some("Sequence") => {
            let steps = processor.get("processors").and_then(Item::elements);
            let mut steps = steps.ok_or_else(|| bad("a sequence of `post_processor` has no `processors`"))?;
            steps.try_for_each(|step| match step.get("type").and_then(Item::text) {
                // One within another would nest without end.
                Some("Sequence") => Err(unsupported("a sequence within a sequence of", step)),
                _ => read_processor(step, tokens, prefix, suffix),
            })
        }
        Some("TemplateProcessing") => read_template(processor, tokens, prefix, suffix),
        Some("RobertaProcessing" | "BertProcessing") => {
            let id = |name: &str| {
                let id = processor.get(name)?.elements()?.nth(1)?.unsigned()?;
                u32::try_from(id).ok()
            };
            let (Some(cls), Some(sep)) = (id("cls"), id("sep")) else { return Err(bad("`cls` or `sep` is no token")) };
            (*prefix, *suffix) = (collected([cls], TOKENS)?, collected([sep], TOKENS)?);
            Ok(())
        }
        _ => Err(unsupported("the `post_processor`", processor.get("type").unwrap_or(processor))),
    }
}

/// What a template puts around a single text.
fn read_template(template: Item, tokens: &Tokens, prefix: &mut Vec<u32>, suffix: &mut Vec<u32>) -> Result<()> {
    let pieces = template.get("single").and_then(Item::elements);
    let mut is_behind = false;
    for piece in pieces.ok_or_else(|| bad("`single` of the `post_processor` is no list"))? {
        if piece.get("Sequence").is_some() {
            if is_behind {
                return Err(unsupported("a `post_processor` that repeats", piece));
            }
            is_behind = true;
            continue;
        }
        let name = piece.get("SpecialToken").and_then(|token| token.get("id")?.text());
        let name = name.ok_or_else(|| bad("`single` of the `post_processor` holds neither token nor text"))?;
        for id in ids_of(template, name, tokens)? {
            push(if is_behind { &mut *suffix } else { &mut *prefix }, id, TOKENS)?;
        }
    }
    if is_behind { Ok(()) } else { Err(bad("the `post_processor` leaves out the text")) }
}

/// The tokens that a template calls `name`.
fn ids_of(template: Item, name: &str, tokens: &Tokens) -> Result<Vec<u32>> {
    let listed = template.get("special_tokens").and_then(|all| all.get(name)).and_then(|token| token.get("ids"));
    let Some(listed) = listed.and_then(Item::elements) else {
        let id = tokens.find(name).ok_or_else(|| {
            let name = Excerpt(name.as_bytes());
            bad(&format!("the `post_processor` names the token `{name}`, which is not there"))
        })?;
        return filled(1, id, TOKENS);
    };
    let mut ids = Vec::new();
    for id in listed {
        let id = id.unsigned().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| bad("`ids` holds no token"))?;
        push(&mut ids, id, TOKENS)?;
    }
    Ok(ids)
}
