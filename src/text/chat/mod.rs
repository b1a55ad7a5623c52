//! Chat templates: a conversation as JSON becomes the text that a model was trained on.
//!
//! A template is a Jinja program that came with a model file, so it is a stranger's: it runs on a thread of its own with
//! a large stack, and within the limits of `budget`. Its language is that of Hugging Face's sandbox: Jinja2 with
//! `trim_blocks` and `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a `tojson` that writes as Python's
//! `json.dumps` does, and `{% generation %}` ignored.

mod arguments;
mod budget;
mod case;
mod clock;
mod expression;
mod filters;
mod format;
mod interpreter;
mod methods;
mod operators;
mod predicates;
mod scope;
mod sequences;
mod show;
mod value;

use crate::error::{Error, Result, reserve};
use budget::{Budget, SOURCE_BYTES, exceeded, failure};
use indexmap::IndexMap;
use interpreter::Interpreter;
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use regex::Regex;
use std::borrow::Cow;
use std::time::SystemTime;
use value::{Key, VALUES, Value, gathered, insert};

/// Stack of the thread that a template runs on: deep expressions recurse in the parser and the evaluator.
const STACK_BYTES: usize = 64 << 20;

/// What a byte of JSON or of a template's source may become in their parsers, in bytes.
const JSON_BYTES_A_BYTE: usize = 4;
const TREE_BYTES_A_BYTE: usize = 64;

/// What a template sees beside the messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatOptions<'a> {
    /// Ask for the beginning of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Tools as JSON; absent, `tools` is undefined.
    pub tools_json: Option<&'a [u8]>,
    /// A JSON object whose entries become variables; they win over all others.
    pub vars_json: Option<&'a [u8]>,
    /// Unix seconds for `strftime_now`, in UTC; 0 is the system's clock.
    pub now: i64,
    /// Text of the model's begin token, for `bos_token`.
    pub bos: &'a str,
    /// Text of the model's end token, for `eos_token`.
    pub eos: &'a str,
}

/// Renders `template` for `messages_json`, an array of messages.
///
/// What the template itself gets wrong, raises or exceeds is [`Error::Template`], with the text of `raise_exception` as it
/// is; JSON that is none is [`Error::InvalidArgument`].
pub fn render(template: &str, messages_json: &[u8], options: &ChatOptions) -> Result<String> {
    if template.len() > SOURCE_BYTES {
        return exceeded("source", format_args!("{SOURCE_BYTES} bytes"));
    }
    let builder = std::thread::Builder::new().name("segno-chat".into()).stack_size(STACK_BYTES);
    std::thread::scope(|threads| {
        let thread = builder
            .spawn_scoped(threads, || render_here(template, messages_json, options))
            .map_err(|_| Error::out_of_memory("the stack of a chat template", STACK_BYTES))?;
        thread.join().unwrap_or_else(|_| Err(Error::Panic("rendering a chat template".into())))
    })
}

fn render_here(template: &str, messages_json: &[u8], options: &ChatOptions) -> Result<String> {
    let context = context(messages_json, options)?;
    let now = if options.now == 0 { system_clock() } else { options.now };
    let source = without_generation_tags(template)?;
    drop(reserve::<u8>(source.len().saturating_mul(TREE_BYTES_A_BYTE), VALUES)?);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.map_err(|error| Error::Template(format!("chat template: {error}")))?;
    let parsed = match parse(&source, "chat template", syntax) {
        Ok(parsed) => parsed,
        Err(error) => return failure(format!("chat template: {error}").replace('\n', " ")),
    };
    let budget = Budget::new();
    Interpreter::new(&budget, &context, now).render(&parsed)
}

fn system_clock() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Makes comments of the tags that only training looks at; a comment treats the space around it as a tag does.
fn without_generation_tags(template: &str) -> Result<Cow<'_, str>> {
    let tag = Regex::new(r"\{%([-+]?)\s*(?:end)?generation\s*([-+]?)%\}");
    let tag = tag.map_err(|error| Error::Template(format!("chat template: {error}")))?;
    Ok(tag.replace_all(template, "{#${1}${2}#}"))
}

/// The variables of a template.
fn context(messages_json: &[u8], options: &ChatOptions) -> Result<IndexMap<Key, Value>> {
    let budget = Budget::of_input();
    let mut context = IndexMap::new();
    let messages = read_json(&budget, messages_json, "messages")?;
    if !matches!(messages, Value::List(_)) {
        return Err(Error::InvalidArgument("messages are not a json array".into()));
    }
    insert(&mut context, Key::text("messages")?, messages)?;
    if let Some(tools) = options.tools_json {
        insert(&mut context, Key::text("tools")?, read_json(&budget, tools, "tools")?)?;
    }
    insert(&mut context, Key::text("add_generation_prompt")?, Value::Bool(options.add_generation_prompt))?;
    for (name, text) in [("bos_token", options.bos), ("eos_token", options.eos)] {
        insert(&mut context, Key::text(name)?, Value::text(&budget, text)?)?;
    }
    if let Some(variables) = options.vars_json {
        let Value::Map(variables) = read_json(&budget, variables, "variables")? else {
            return Err(Error::InvalidArgument("variables are not a json object".into()));
        };
        for (name, value) in variables.iter() {
            insert(&mut context, name.clone(), value.clone())?;
        }
    }
    Ok(context)
}

fn read_json(budget: &Budget, json: &[u8], what: &str) -> Result<Value> {
    // The parsers of others end the process when memory runs out, so what they may take is asked for before.
    drop(reserve::<u8>(json.len().saturating_mul(JSON_BYTES_A_BYTE), VALUES)?);
    let parsed = serde_json::from_slice(json);
    let parsed = parsed.map_err(|error| Error::InvalidArgument(format!("{what} are not json: {error}")))?;
    from_json(budget, parsed)
}

fn from_json(budget: &Budget, json: serde_json::Value) -> Result<Value> {
    use serde_json::Value as Json;
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(integer), _) => Value::Int(integer),
            (None, float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Text(text.into()),
        Json::Array(values) => {
            let values = gathered(values.into_iter().map(|value| from_json(budget, value)))?;
            Value::list(budget, values)?
        }
        Json::Object(entries) => {
            let mut map = IndexMap::new();
            map.try_reserve(entries.len()).map_err(|_| Error::out_of_memory(VALUES, entries.len()))?;
            for (name, value) in entries {
                map.insert(Key(Value::Text(name.into())), from_json(budget, value)?);
            }
            Value::map(budget, map)?
        }
    })
}
