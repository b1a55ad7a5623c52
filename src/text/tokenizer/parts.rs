//! What a tokenizer is made of, as plain data: whoever reads a model's files fills it in, and [`Tokenizer::new`](super::Tokenizer::new)
//! checks it. Nothing here knows a file format.

use super::patterns::Rule;
use crate::error::Error;
use std::borrow::Cow;

/// The parts of a tokenizer. Texts are borrowed from whatever holds the file.
pub struct Parts<'a> {
    /// What stands before the name of a part in errors: `tokenizer.ggml.` or the like. The parts are called `tokens`, `token_type`,
    /// `scores`, `merges`, `bos_token_id` and so on, as in a GGUF file.
    pub origin: &'static str,
    /// How text becomes tokens.
    pub model: Model<'a>,
    /// Token texts in order of their ids, as the file spells them.
    pub tokens: Vec<&'a [u8]>,
    /// What each token is for, one entry a token; `None` if the file does not say.
    pub kinds: Option<Vec<Kind>>,
    /// The tokens with a part of their own.
    pub named: Named,
    /// Tokens that go in front of a text where special ones are asked for.
    pub prefix: Vec<u32>,
    /// Tokens that go behind it.
    pub suffix: Vec<u32>,
    /// What is done to text before anything else is.
    pub normalizer: Normalizer<'a>,
    /// Special tokens that swallow the white space before them.
    pub strips_before: Vec<u32>,
    /// Special tokens that swallow the white space behind them.
    pub strips_after: Vec<u32>,
}

impl Parts<'_> {
    /// The error for a part that is there but unusable.
    pub(super) fn bad(&self, name: &str, problem: &str) -> Error {
        Error::Metadata { key: format!("{}{name}", self.origin), problem: problem.to_owned() }
    }
}

/// Ids of tokens with a part of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Stands for text that the vocabulary cannot spell. Without one such text is dropped.
    pub unknown: Option<u32>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text, and generation.
    pub eos: Option<u32>,
    /// Ends a turn, and generation.
    pub eot: Option<u32>,
    /// Ends a message, and generation.
    pub eom: Option<u32>,
    /// Stands between texts, and behind the last.
    pub separator: Option<u32>,
}

impl Named {
    /// All of them with their names.
    pub(super) fn all(&self) -> [(&'static str, Option<u32>); 6] {
        [
            ("unknown", self.unknown),
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("seperator", self.separator),
        ]
    }
}

/// How text becomes tokens.
pub enum Model<'a> {
    /// Byte-pair encoding by a list of merges.
    BytePair(BytePair<'a>),
    /// SentencePiece's byte-pair models: the pair whose token scores highest is merged first.
    SentencePiece {
        /// One score a token, no NaN.
        scores: Vec<f32>,
        /// What is done to spaces.
        spaces: SpaceRules,
    },
    /// SentencePiece's unigram models: of all ways to cut a text, the one whose scores add up to most.
    Unigram {
        /// One score a token, no NaN.
        scores: Vec<f32>,
        /// What is done to spaces, and what pieces stay within.
        words: UnigramWords<'a>,
    },
    /// WordPiece: the longest piece that a word begins with, then the longest that goes on. Tokens that begin a word have U+2581 in front
    /// (`▁play`, `ing`, where BERT's own files have `play`, `##ing`).
    WordPiece,
}

/// A byte-pair vocabulary.
pub struct BytePair<'a> {
    /// Spelling of the normal tokens.
    pub alphabet: Alphabet,
    /// The two sides of each merge, spelt as in the tokens; the first goes first.
    pub merges: Vec<(&'a [u8], &'a [u8])>,
    /// How text is cut into the words that merges stay within, step by step.
    pub words: Cow<'a, [Rule<'a>]>,
    /// Which words skip merging.
    pub whole_words: WholeWords,
    /// Where a space is put in front of text.
    pub prefix_space: PrefixSpace,
}

/// A space that is put in front of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixSpace {
    /// Of which texts.
    pub scope: PrefixScope,
    /// Only of those that do not begin with one.
    pub unless_there: bool,
}

impl PrefixSpace {
    /// None at all.
    pub const NEVER: PrefixSpace = PrefixSpace { scope: PrefixScope::Never, unless_there: false };
}

/// Which texts get a space in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixScope {
    /// None.
    Never,
    /// What begins the input.
    Beginning,
    /// What begins the input or follows a special token.
    EveryText,
}

/// The spelling of a vocabulary's normal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// One character a byte, after GPT-2's `bytes_to_unicode`.
    ByteLevel,
    /// Plain UTF-8 with U+2581 in the place of spaces.
    Escaped,
}

/// Which tokens a whole word may become without merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeWords {
    /// None.
    Never,
    /// Only runs of line feeds.
    LineFeeds,
    /// Every word that is a token, which tokenizer.json calls `ignore_merges`.
    Always,
}

/// What a SentencePiece model does to spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceRules {
    /// Put one in front of text, at the beginning and after special tokens.
    pub prefix: bool,
    /// Make one of each run of them, and none of those at the ends.
    pub squeeze: bool,
}

/// The stretches of text that pieces of a unigram model stay within.
pub enum UnigramWords<'a> {
    /// SentencePiece's: all of a text, with these rules for spaces.
    Text(SpaceRules),
    /// Those of tokenizer.json.
    Steps {
        /// What is done to spaces.
        spaces: SpaceSteps,
        /// How text is cut then, step by step.
        cuts: Cow<'a, [Rule<'a>]>,
    },
}

/// What tokenizer.json has done to the spaces of a text, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceSteps {
    /// Drop white space at the beginning.
    pub strip_start: bool,
    /// Drop it at the end.
    pub strip_end: bool,
    /// What becomes of spaces within.
    pub runs: Runs,
    /// Where a space is put in front.
    pub prefix_space: PrefixSpace,
}

impl SpaceSteps {
    /// Nothing at all.
    pub const NONE: SpaceSteps =
        SpaceSteps { strip_start: false, strip_end: false, runs: Runs::Kept, prefix_space: PrefixSpace::NEVER };
}

/// What becomes of runs of spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// They stay.
    Kept,
    /// Each becomes one space.
    Joined,
    /// Each run of white space of any kind becomes one space, none at the ends of a text or in front of U+2581.
    BetweenWords,
}

/// What is done to text before it is cut into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalizer<'a> {
    /// Nothing.
    None,
    /// It is brought to Unicode's form C.
    Nfc,
    /// The character map of a SentencePiece model, as its `precompiled_charsmap` has it.
    Charsmap(&'a [u8]),
    /// As BERT does: controls are dropped, white space becomes spaces, and ideographs get spaces around them.
    Bert(BertRules),
}

/// What BERT's normalizer does beside that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BertRules {
    /// Whether capitals become small letters.
    pub lowercase: bool,
    /// Whether characters lose their accents.
    pub strip_accents: bool,
}

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A piece of text that the model's algorithm builds.
    Normal = 1,
    /// Stands for text that the vocabulary cannot spell.
    Unknown = 2,
    /// Structure, not text: begin, end, roles.
    Control = 3,
    /// Text that is always cut out whole before the algorithm runs.
    UserDefined = 4,
    /// A hole: never produced from text. Files also call it 0.
    Unused = 5,
    /// One byte, for text that no other token spells.
    Byte = 6,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Normal, Kind::Unknown, Kind::Control, Kind::UserDefined, Kind::Unused, Kind::Byte];

    /// The kind that has `number` in a file.
    pub fn of_number(number: i64) -> Option<Kind> {
        if number == 0 { Some(Kind::Unused) } else { Kind::ALL.into_iter().find(|&kind| kind as i64 == number) }
    }
}
