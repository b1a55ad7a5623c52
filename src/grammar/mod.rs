//! Grammars: which tokens may follow, so that the text of a sequence is a JSON value of a schema, or what an expression or rules describe.
//!
//! A [`Grammar`] is compiled once for a model's [`Vocabulary`]; a sequence has a [`Constraint`] that walks through it, and leaves it the tables
//! that the walk has filled, so that the next one finds its masks quicker. The engine is llguidance: derivatives of regular expressions below, an
//! Earley parser above. Texts are strangers': they are compiled on a thread with a large stack, within [`limits`]. What is drawn from the tokens
//! that are left is the sampler's business.

mod byte_classes;
mod calls;
mod constraint;
mod gbnf;
mod kept;
mod measure;
mod regex;
mod schema;
mod source;
mod vocabulary;

pub use constraint::{Constraint, Next, Walk};
pub use source::{CallChoice, Calls, Source};
pub use vocabulary::Vocabulary;

use crate::error::{Error, Result, backed, checked, reserve};
use crate::sync::threads;
use crate::text::Tokenizer;
use kept::Kept;
use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::{ParserFactory, TokenParser, panic_utils};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once, PoisonError};

/// The languages in which a grammar may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JSON Schema, drafts 4 to 2020-12.
    JsonSchema,
    /// A regular expression, which the whole text matches.
    Regex,
    /// Lark, as llguidance has it.
    Lark,
    /// GBNF, the notation of llama.cpp.
    Gbnf,
}

/// A grammar as it is written.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// Its language.
    pub kind: Kind,
    /// UTF-8.
    pub text: &'a [u8],
    /// JSON of a schema has no white space outside of strings.
    pub compact: bool,
}

/// A compiled grammar. Shared by sequences, sessions and threads.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// What it was compiled of.
    source: Source,
    start: Mutex<Start>,
    kept: Mutex<Kept>,
}

/// A parser at the beginning of a text, its first mask known. Walks start as copies of it, with tables of their own.
struct Start {
    parser: TokenParser,
    tables: Tables,
}

/// Tables that a walk is a copy of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tables {
    /// How often they have grown by what a walk has left.
    generation: u64,
    /// States of the lexer, which the engine makes as texts need them.
    states: usize,
}

/// Longest text of a grammar.
pub const TEXT_BYTES: usize = 256 << 10;
/// Stack of the thread that a grammar is compiled on: nested expressions recurse.
const STACK_BYTES: usize = 256 << 20;
/// Memory that is set aside for a compilation, which has no way to fail.
const COMPILING_BYTES: usize = 64 << 20;
/// Memory that is set aside for what a step of the engine takes.
const STEP_BYTES: usize = 4 << 20;
/// Tables that walks begin with, at most, of those that others have filled: a fraction of what a walk may fill itself.
const MOST_LEARNED_STATES: usize = 6_000;
const MOST_LEARNED_BYTES: usize = 4 << 20;
/// States that are worth taking over.
const LEAST_LEARNED_STATES: usize = 16;
/// Memory in which glibc notes that a thread has values to drop, generously.
const NOTE_BYTES: usize = 256;
/// What the memory is for, in messages.
const WHAT: &str = "a grammar";

/// What a grammar may take, so that compiling one and working out a mask end in time and within 256 MB, whatever they are made of.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 300_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

impl Vocabulary {
    /// Reads the tokens of `tokenizer`.
    pub fn of(tokenizer: &Arc<Tokenizer>) -> Result<Vocabulary> {
        apart(|| Vocabulary::new(tokenizer))
    }
}

impl Grammar {
    /// Compiles what is written. [`Error::Grammar`] tells what is wrong with it, and where.
    pub fn compile(vocabulary: &Arc<Vocabulary>, form: &Form) -> Result<Grammar> {
        if form.text.len() > TEXT_BYTES {
            let length = form.text.len();
            return Err(Error::Grammar(format!("the grammar has {length} bytes, at most {TEXT_BYTES} are possible")));
        }
        let text = std::str::from_utf8(form.text).map_err(|error| {
            Error::InvalidArgument(format!("the grammar is not valid utf-8 at byte {}", error.valid_up_to()))
        })?;
        if text.trim_ascii().is_empty() {
            return Err(Error::Grammar("the grammar is empty".into()));
        }
        let source = Source::of_text(form)?;
        let start = apart(|| {
            let _backing = backed(COMPILING_BYTES, WHAT)?;
            match form.kind {
                Kind::JsonSchema => schema::compile(vocabulary, text, form.compact),
                Kind::Regex => start(vocabulary, TopLevelGrammar::from_regex(regex::whole(text)?), refused),
                Kind::Lark => {
                    measure::lark(text)?;
                    start(vocabulary, TopLevelGrammar::from_lark(text.into()), refused)
                }
                Kind::Gbnf => start(vocabulary, TopLevelGrammar::from_lark(gbnf::to_lark(text)?), refused),
            }
        })?;
        Ok(Grammar::new(vocabulary, source, start))
    }

    fn new(vocabulary: &Arc<Vocabulary>, source: Source, parser: TokenParser) -> Grammar {
        let tables = Tables { generation: 0, states: parser.parser.lexer_stats().num_states };
        let (start, kept) = (Mutex::new(Start { parser, tables }), Mutex::default());
        Grammar { vocabulary: Arc::clone(vocabulary), source, start, kept }
    }

    /// A parser at the beginning of a text, and what its tables are a copy of.
    fn begin(&self) -> Result<(TokenParser, Tables)> {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((copied(&start.parser)?, start.tables))
    }

    /// Has walks begin with the tables of one that is over, where these hold much more than what they begin with now. Masks are the same with any
    /// tables; only what comes near the [`limits`] may be refused sooner or later, as states of others count, up to [`MOST_LEARNED_STATES`], and need
    /// not be made. States keep their numbers: only a walk whose own copy is of the present tables can leave them.
    fn learn(&self, parser: &mut TokenParser, copied: Tables) {
        let Ok(mut start) = self.start.try_lock() else { return };
        let Tables { generation, states } = start.tables;
        let stats = parser.parser.lexer_stats();
        let is_small = stats.num_states <= MOST_LEARNED_STATES && stats.num_bytes <= MOST_LEARNED_BYTES;
        if copied != start.tables || !is_small || stats.num_states < states + states / 8 + LEAST_LEARNED_STATES {
            return;
        }
        let Ok(backing) = backed(STEP_BYTES, WHAT) else { return };
        let is_back = catch_unwind(AssertUnwindSafe(|| {
            parser.reset().is_ok() && !parser.stopped() && parser.compute_mask().is_ok()
        }));
        drop(backing);
        if checked(WHAT).is_ok() && is_back.unwrap_or(false) {
            std::mem::swap(&mut start.parser, parser);
            start.tables = Tables { generation: generation + 1, states: stats.num_states };
        }
    }

    /// Of how many states of its lexer it keeps a part of the mask.
    #[cfg(feature = "testing")]
    pub fn masks_kept(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).count()
    }

    /// What it was compiled of.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The vocabulary that it was compiled for.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }
}

/// Compiles what has been read, and works out the first mask, so that a grammar that is too large is refused here.
fn start(
    vocabulary: &Vocabulary,
    source: TopLevelGrammar,
    refused: impl FnOnce(&anyhow::Error) -> Error,
) -> Result<TokenParser> {
    let start = begun(&vocabulary.factory, source);
    checked(WHAT)?;
    start.map_err(|error| refused(&error))
}

/// A parser at the beginning of a text, whose first mask is known.
fn begun(factory: &ParserFactory, source: TopLevelGrammar) -> anyhow::Result<TokenParser> {
    let mut start = factory.create_parser(source)?;
    start.parser.grammar().lexer_spec().check_rollback()?;
    start.start_without_prompt();
    if !start.check_stop()? {
        start.compute_mask()?;
    }
    Ok(start)
}

/// A copy with tables of its own, so that walks of several threads do not wait for each other.
fn copied(parser: &TokenParser) -> Result<TokenParser> {
    let _backing = backed(2 * parser.parser.lexer_stats().num_bytes + STEP_BYTES, WHAT)?;
    let copy = parser.deep_clone();
    checked(WHAT)?;
    Ok(copy)
}

/// Whether the engine says that no token may be the first.
fn is_empty(cause: &str) -> bool {
    cause == StopReason::NoExtensionBias.to_string()
}

/// Runs `body`, which recurses and may panic in code of others, on a thread with a large stack.
fn apart<T: Send>(body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let result = threads::run("segno-grammar", STACK_BYTES, || {
        note_values_of_thread()?;
        body()
    });
    let result = result.map_err(|_| Error::out_of_memory("the stack of a grammar's thread", STACK_BYTES))?;
    result.unwrap_or_else(|_| Err(Error::Grammar("the grammar cannot be compiled: it breaks the engine".into())))
}

/// The engine has values that are dropped when a thread ends. Where glibc finds no memory to note that, it ends the process; so a thread that
/// begins asks for such memory in the way that can fail, frees it, and has the note made of it.
///
/// The engine also puts a hook for panics in place of the process's, once and on first use: what was there is put back.
pub fn note_values_of_thread() -> Result<()> {
    static ONCE: Once = Once::new();
    drop(reserve::<u8>(NOTE_BYTES, WHAT)?);
    let note = || drop(panic_utils::catch_unwind(|| Ok(())));
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        note();
        panic::set_hook(previous);
    });
    note();
    Ok(())
}

/// What the engine says of a grammar, in one line. It begins with line and column in the form `3(14): `, where it knows them.
fn refused(error: &anyhow::Error) -> Error {
    let text = error.to_string();
    if text.starts_with("panic: ") {
        return Error::Grammar("the grammar is too large for the engine".into());
    }
    if is_empty(&text) {
        return Error::Grammar("the grammar lets no text through".into());
    }
    let line = text.lines().next().unwrap_or_default().trim_end();
    let line = line.strip_prefix("at ").unwrap_or(line);
    let place = line.split_once("): ").and_then(|(place, cause)| {
        let (line, column) = place.split_once('(')?;
        Some((line.parse::<usize>().ok()?, column.parse::<usize>().ok()?, cause))
    });
    Error::Grammar(match place {
        Some((line, column, cause)) => format!("the grammar, line {line}, column {column}: {cause}"),
        None => format!("the grammar cannot be compiled: {line}"),
    })
}
