//! Grammars of replies that call tools, as `text::reply` writes them.

use super::{COMPILING_BYTES, Grammar, Source, Vocabulary, WHAT, apart, measure, schema};
use crate::error::{Error, Result, backed, checked};
use crate::text::Tokenizer;
use crate::text::reply::{CallOptions, calls};
use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use std::sync::Arc;

/// Longest list of tools.
const TOOLS_BYTES: usize = 256 << 10;

impl Grammar {
    /// The grammar of replies that call tools, and the token behind which it begins, if it does not begin at once. `tokenizer` is that of the
    /// vocabulary. [`Error::Grammar`] tells which tool cannot be watched, and why.
    pub fn of_calls(
        vocabulary: &Arc<Vocabulary>,
        tokenizer: &Tokenizer,
        options: &CallOptions,
    ) -> Result<(Grammar, Option<i32>)> {
        let bytes = options.reply.tools_json.map_or(0, <[u8]>::len);
        if bytes > TOOLS_BYTES {
            let problem = format!("tools_json has {bytes} bytes, at most {TOOLS_BYTES} are possible");
            return Err(Error::InvalidArgument(problem));
        }
        let source = Source::of_calls(options)?;
        let (start, trigger) = apart(|| {
            let _backing = backed(COMPILING_BYTES, WHAT)?;
            let made = calls(tokenizer, options)?;
            for (tool, schema) in &made.schemas {
                measure::schema(schema).map_err(|error| of_tool(tool, error))?;
            }
            checked(WHAT)?;
            let start = super::start(vocabulary, TopLevelGrammar::from_lark(made.lark), super::refused);
            let start = match start {
                Err(Error::Grammar(cause)) => return Err(blamed(vocabulary, made.schemas, cause)),
                start => start?,
            };
            Ok((start, made.trigger))
        })?;
        Ok((Grammar::new(vocabulary, source, start), trigger))
    }
}

/// The error of the schema that is to blame, or of the whole.
fn blamed(vocabulary: &Vocabulary, schemas: Vec<(String, Value)>, cause: String) -> Error {
    let failed = schemas.into_iter().find_map(|(tool, schema)| {
        let error = schema::compile_value(vocabulary, schema).err()?;
        Some(of_tool(&tool, error))
    });
    failed.unwrap_or(Error::Grammar(cause))
}

/// The error of the parameters of `tool`.
fn of_tool(tool: &str, error: Error) -> Error {
    match error {
        Error::Grammar(cause) => Error::Grammar(format!("the parameters of the tool `{tool}`: {cause}")),
        other => other,
    }
}
