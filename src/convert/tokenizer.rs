//! The files of a folder that tell of text: the tokenizer's, chat templates, and which tokens end generation.

use super::config::CONFIG;
use crate::error::{Error, Result, push};
use crate::format::{Builder, Document, Item, limits, read_small};
use std::path::Path;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";
const TEMPLATE: &str = "chat_template.jinja";
/// The metadata key of the chat template.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";
/// Most tokens of a list that end generation.
const MOST_ENDS: usize = 64;

/// What tells of a tokenizer.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// `tokenizer.json`
    pub tokenizer: Document,
    /// `tokenizer_config.json`
    pub config: Option<Document>,
    /// Tokens that end generation, in the order of the file that lists them.
    pub ends: Vec<u32>,
}

/// Reads the files; the chat template becomes metadata. None for a folder without a tokenizer.
pub fn read(folder: &Path, model: &Document, metadata: &mut Builder) -> Result<Option<TokenizerFiles>> {
    let config = optional(folder, TOKENIZER_CONFIG, limits::CONFIG_BYTES)?;
    read_templates(folder, config.as_ref().map(Document::root), metadata)?;
    let generation = optional(folder, GENERATION, limits::CONFIG_BYTES)?;
    let Some(tokenizer) = optional(folder, TOKENIZER, limits::TOKENIZER_BYTES)? else { return Ok(None) };
    let listed = generation.as_ref().and_then(|file| Some((file.root().get("eos_token_id")?, GENERATION)));
    let listed = listed.or_else(|| Some((model.root().get("eos_token_id")?, CONFIG)));
    let ends = listed.map_or(Ok(Vec::new()), |(ids, file)| read_ends(ids, file))?;
    Ok(Some(TokenizerFiles { tokenizer, config, ends }))
}

/// The file called `name`, if it is there.
fn optional(folder: &Path, name: &str, most: usize) -> Result<Option<Document>> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    Document::read(&read_small(&path, most)?, name).map(Some)
}

/// One token, or a list of them.
fn read_ends(ids: Item, file: &str) -> Result<Vec<u32>> {
    let mut ends = Vec::new();
    let bad =
        || Error::Format(format!("{file}: `eos_token_id` is {ids}, expected a token or at most {MOST_ENDS} of them"));
    let mut add = |id: Item| {
        let id = id.unsigned().and_then(|id| u32::try_from(id).ok()).filter(|_| ends.len() < MOST_ENDS);
        push(&mut ends, id.ok_or_else(bad)?, "tokens that end generation")
    };
    match ids.elements() {
        Some(mut ids) => ids.try_for_each(&mut add)?,
        None => add(ids)?,
    }
    Ok(ends)
}

/// Chat templates: a file of its own, or else one or several with names in the tokenizer's configuration.
fn read_templates(folder: &Path, config: Option<Item>, metadata: &mut Builder) -> Result<()> {
    let file = folder.join(TEMPLATE);
    let listed = config.and_then(|config| config.get("chat_template"));
    for template in listed.and_then(Item::elements).into_iter().flatten() {
        let text = |name: &str| template.get(name).and_then(Item::text);
        let (Some(name), Some(text)) = (text("name"), text("template")) else {
            return Err(Error::Format(format!("{TOKENIZER_CONFIG}: a chat template has no name or no text")));
        };
        let key = if name == "default" { TEMPLATE_KEY.into() } else { format!("{TEMPLATE_KEY}.{name}") };
        metadata.set_text(&key, text)?;
    }
    if let Some(text) = listed.and_then(Item::text) {
        metadata.set_text(TEMPLATE_KEY, text)?;
    }
    if file.exists() {
        let bytes = read_small(&file, limits::CONFIG_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Error::Format(format!("{TEMPLATE}: it is not utf-8")))?;
        metadata.set_text(TEMPLATE_KEY, text)?;
    }
    Ok(())
}
