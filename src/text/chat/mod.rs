//! Chat templates: a conversation as JSON becomes the text that a model was trained on.
//!
//! A template is a Jinja program that came with a model file, so it is a stranger's: it runs on a thread of its own with
//! a large stack, and within the limits of `budget`. Its language is that of Hugging Face's sandbox: Jinja2 with
//! `trim_blocks` and `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a `tojson` that writes as Python's
//! `json.dumps` does, and `{% generation %}`, whose body is written as it is.

mod arguments;
mod arithmetic;
mod attributes;
mod budget;
mod case;
mod characters;
mod check;
mod clock;
mod expression;
mod field;
mod filters;
mod format;
mod grammar;
mod heap;
mod integer;
mod interpreter;
mod json;
mod key;
mod lazy;
mod lexer;
mod links;
mod markup;
pub mod message;
mod methods;
mod numbers;
#[cfg(feature = "testing")]
pub mod operations;
mod operators;
mod parser;
mod predicates;
mod pretty;
mod references;
mod scope;
mod sequences;
mod show;
mod stand_ins;
mod translation;
mod tree;
mod value;
mod wrap;

use crate::error::{Error, Result};
use crate::sync::threads;
pub use budget::Limits;
use budget::{Budget, SOURCE_BYTES, exceeded};
use check::check;
use heap::Entries;
use interpreter::Interpreter;
use key::Key;
use lexer::with_plain_line_ends;
use parser::parse;
pub use stand_ins::StandIns;
use std::time::SystemTime;
use value::Value;

/// Stack of the thread that a template runs on: deep expressions recurse in the parser and the evaluator.
const STACK_BYTES: usize = 64 << 20;

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
    /// What the texts of messages are written with, if names of special tokens in them must stay text: the rendered text has the stand-ins.
    pub stand_ins: Option<&'a StandIns>,
    /// What the template may use up.
    pub limits: Limits,
}

/// Renders `template` for `messages_json`, an array of messages.
///
/// What the template itself gets wrong, raises or exceeds is [`Error::Template`], with the text of `raise_exception` as it
/// is; JSON that is none is [`Error::InvalidArgument`].
pub fn render(template: &str, messages_json: &[u8], options: &ChatOptions) -> Result<String> {
    if template.len() > SOURCE_BYTES {
        return exceeded("source", format_args!("{SOURCE_BYTES} bytes"));
    }
    let rendered = threads::run("segno-chat", STACK_BYTES, || render_here(template, messages_json, options));
    let rendered = rendered.map_err(|_| Error::out_of_memory("the stack of a chat template", STACK_BYTES))?;
    rendered.unwrap_or_else(|_| Err(Error::Panic("rendering a chat template".into())))
}

fn render_here(template: &str, messages_json: &[u8], options: &ChatOptions) -> Result<String> {
    let context = context(messages_json, options)?;
    let now = if options.now == 0 { system_clock() } else { options.now };
    let source = with_plain_line_ends(template)?;
    let budget = Budget::new(options.limits);
    let tree = parse(&budget, &source)?;
    check(&tree)?;
    Interpreter::new(&tree, &budget, &context, now)?.render()
}

fn system_clock() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// The variables of a template.
fn context(messages_json: &[u8], options: &ChatOptions) -> Result<Entries> {
    let budget = Budget::of_input();
    let mut context = Entries::new(&budget);
    let mut set = |name: &str, value: Value| context.insert(Key::text(&budget, name)?, value);
    let messages = json::read_messages(&budget, messages_json, options.stand_ins)?;
    if !matches!(messages, Value::List(_)) {
        return Err(Error::InvalidArgument("messages are not a json array".into()));
    }
    set("messages", messages)?;
    if let Some(tools) = options.tools_json {
        let tools = json::read(&budget, tools, "tools_json")?;
        if !matches!(tools, Value::List(_)) {
            let found = tools.type_name();
            return Err(Error::InvalidArgument(format!("tools_json must be a json array of tools, it is a {found}")));
        }
        set("tools", tools)?;
    }
    set("add_generation_prompt", Value::Bool(options.add_generation_prompt))?;
    for (name, text) in [("bos_token", options.bos), ("eos_token", options.eos)] {
        set(name, Value::text(&budget, text)?)?;
    }
    if let Some(variables) = options.vars_json {
        let Value::Map(variables) = json::read(&budget, variables, "variables")? else {
            return Err(Error::InvalidArgument("variables are not a json object".into()));
        };
        for (name, value) in variables.iter() {
            context.insert(name.clone(), value.clone())?;
        }
    }
    Ok(context)
}
