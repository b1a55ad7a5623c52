//! Calls of tools as a grammar: what a family writes of a reply whose calls meet the tools' schemas, in Lark as llguidance has it.
//!
//! It is made of the same markers that replies are read by, and of the writings beside them. A grammar for [`Choice::Auto`] begins behind the
//! special token that begins a call, so that what stands before costs nothing; where a family has no such token of its own, the grammar is of
//! the whole reply. Compiling is the business of `grammar`.

mod arguments;
mod disjoint;
mod family;
mod pattern;
mod rules;
mod schema;
mod values;

use super::formats::{Format, Layout, Part, Writing};
use super::schema::Tools;
use super::{ReplyOptions, Start, start};
use crate::error::{Error, Result};
use crate::text::tokenizer::Tokenizer;
use arguments::Arguments;
use family::Reply;
use rules::{Marks, Rules, joined, literal};
use schema::{Members, Root};
use serde_json::Value;
use std::collections::HashMap;
use values::{Style, Values, bad_name};

/// Which tools a reply may call, and must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// Any or none.
    Auto,
    /// At least one.
    Required,
    /// None.
    None,
    /// The one of this name.
    Named(&'a str),
}

/// What a grammar of calls is made of.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions<'a> {
    /// How the reply is read.
    pub reply: ReplyOptions<'a>,
    /// Which tools it may call.
    pub choice: Choice<'a>,
    /// Whether it may have several calls, where the family writes several.
    pub parallel: bool,
}

/// A grammar of calls as it is written.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Its rules.
    pub lark: String,
    /// The schemas in them, each with the name of its tool.
    pub schemas: Vec<(String, Value)>,
    /// The token behind which it begins; none where it begins at once.
    pub trigger: Option<i32>,
}

/// Longest grammar of calls.
const MOST_BYTES: usize = 2 << 20;

/// A tool that may be called.
struct Tool {
    name: String,
    parameters: Value,
}

/// The grammar of what `options` say for a vocabulary.
///
/// A tool that cannot be written in the format, or with a schema that cannot be watched, is [`Error::Grammar`] with its name.
pub fn calls(tokenizer: &Tokenizer, options: &CallOptions) -> Result<Calls> {
    let reply = &options.reply;
    let format = reply.format()?;
    let read = Tools::read(reply.tools_json)?;
    let tools = tools(reply.tools_json, options.choice)?;
    let mut made = Calls { lark: String::new(), schemas: Vec::new(), trigger: None };
    let mut rules = Rules::default();
    let marks = Marks::new(tokenizer, format, reply.template);
    let writing = format.writing(reply.template);
    let may_call = options.choice != Choice::None && (!tools.is_empty() || options.choice != Choice::Auto);
    let writing = match writing {
        None if may_call => {
            let name = format.name;
            return Err(Error::Grammar(format!("the format {name} has no calls of tools, so none can be watched")));
        }
        writing => writing.unwrap_or(&Writing::JSON),
    };
    let mut written = Vec::new();
    for tool in tools.iter().filter(|_| may_call) {
        let arguments = arguments(&mut rules, &marks, writing, format, (&read, tool), &mut made.schemas)?;
        if rules.len() > MOST_BYTES {
            return Err(Error::Grammar(format!("the tools make a grammar of more than {MOST_BYTES} bytes")));
        }
        written.push((&*tool.name, arguments));
    }
    let reply = Reply {
        rules,
        marks: &marks,
        format,
        writing,
        tools: written,
        start: start(format, reply.prompt),
        choice: options.choice,
        several: options.parallel && writing.several,
    };
    (made.lark, made.trigger) = reply.grammar()?;
    Ok(made)
}

/// The tools of a JSON array that may be called.
fn tools(json: Option<&[u8]>, choice: Choice) -> Result<Vec<Tool>> {
    let wrong = |cause: String| Error::InvalidArgument(format!("tools_json: {cause}"));
    let list: Vec<Value> = match json {
        Some(json) => serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?,
        None => Vec::new(),
    };
    let mut tools: Vec<Tool> = Vec::new();
    for (index, tool) in list.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong(format!("tool {index} has no name")))?;
        if tools.iter().any(|tool| tool.name == name) {
            return Err(wrong(format!("there are two tools `{name}`")));
        }
        let parameters = function.get("parameters").or_else(|| function.get("input_schema"));
        tools.push(Tool { name: name.into(), parameters: schema::parameters(parameters) });
    }
    match choice {
        Choice::Named(name) => {
            tools.retain(|tool| tool.name == name);
            if tools.is_empty() {
                return Err(Error::NotFound(format!("tools_json has no tool `{name}`")));
            }
        }
        Choice::Required if tools.is_empty() => {
            return Err(Error::InvalidArgument("a call is required, but tools_json has no tools".into()));
        }
        _ => {}
    }
    Ok(tools)
}

/// The arguments of a tool as an expression.
fn arguments(
    rules: &mut Rules,
    marks: &Marks,
    writing: &'static Writing,
    format: &'static Format,
    (read, tool): (&Tools, &Tool),
    schemas: &mut Vec<(String, Value)>,
) -> Result<String> {
    use super::formats::Notation;
    let is_quoted = writing.call.contains(&Part::Quoted);
    let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || "_-.:/$@".contains(c));
    if !is_quoted && !is_name(&tool.name) {
        return Err(bad_name("the tool", &tool.name, format.name));
    }
    let root = Root { tool: &tool.name, schema: &tool.parameters, format: format.name };
    let style = match writing.notation {
        Notation::Json | Notation::Tagged => Style::Json,
        Notation::Python | Notation::TaggedPython => Style::Python,
        Notation::Gemma => Style::Gemma,
    };
    let quote = marks.text(super::formats::Mark::Quote).map_or(Ok(Vec::new()), |text| marks.pieces(text))?;
    let mut values = Values { root, style, quote, known: HashMap::new(), schemas, depth: 0 };
    if writing.notation == Notation::Json {
        return values.json(rules, &tool.parameters);
    }
    let schema = root.resolved(&tool.parameters)?;
    let map = root.members(schema, &["type", "properties", "required", "additionalProperties", "strict"])?;
    if map.get("type").is_some_and(|kind| kind != "object") {
        return Err(root.refuse("they are no object"));
    }
    let members = Members::of(map);
    match writing.notation {
        Notation::Python => {
            let is_bare =
                |key: &str| !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-.$@".contains(c));
            if let Some((key, ..)) = members.named.iter().find(|(key, ..)| !is_bare(key)) {
                return Err(bad_name("the argument", key, format.name));
            }
            values.members(rules, &members, "=")
        }
        Notation::Gemma => {
            let inside = values.members(rules, &members, ":")?;
            Ok(joined(&[&literal("{"), &inside, &literal("}")]))
        }
        _ => Arguments { values, writing, marks, tools: read }.all(rules, &members),
    }
}
