//! Replies for tests: a vocabulary with the special tokens of all families, texts cut into its tokens in any way, and events joined.

use crate::common::metadata::MetadataWriter;
use segno::text::reply::Kind;
use segno::text::{Reply, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;

/// A generator of numbers that look random (Steele et al., SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Special tokens of the families' vocabularies: those that end a turn come first.
pub const ENDS: [&str; 13] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<turn|>",
    "[e~[",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_msg|>",
    "<|message_sep|>",
];
pub const SPECIALS: [&str; 57] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "｜DSML｜",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_call_start|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<|function_call|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<|python_tag|>",
    "<think:opensource>",
    "</think:opensource>",
    "<tool_call:opensource>",
    "</tool_call:opensource>",
    "<tool_sep:opensource>",
    "<tool_calls:opensource>",
    "</tool_calls:opensource>",
];
/// Pieces of several characters, which markers and their neighbours begin and end within.
pub const PIECES: [&str; 16] =
    ["\">", "\n</", "{\"", "}}", ">\n", "</", "<t", "nk>", "\":", "=\"", " {", "search", "tool", "_call", "ü", "call"];

/// Number of the first special token.
const FIRST_SPECIAL: usize = 256 + PIECES.len();

/// A vocabulary of 256 bytes, pieces and special tokens; with `few`, only those that end a turn are special.
pub struct Vocabulary {
    pub tokenizer: Arc<Tokenizer>,
    special: Vec<(String, i32)>,
}

impl Vocabulary {
    /// The texts of all tokens, and their kinds.
    pub fn parts(few: bool) -> (Vec<String>, Vec<i32>) {
        let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend(PIECES.map(|piece| piece.replace(' ', "▁")));
        tokens.extend(ENDS.map(String::from));
        tokens.extend(SPECIALS.iter().filter(|_| !few).map(|&name| name.to_owned()));
        let mut kinds = vec![6; 256];
        kinds.extend([1; PIECES.len()]);
        // Tags of thinking and calls are what files call user-defined, the rest control tokens.
        let is_tag = |name: &String| name.starts_with("<t") || name.starts_with("</");
        kinds.extend(tokens[FIRST_SPECIAL..].iter().map(|name| if is_tag(name) { 4 } else { 3 }));
        (tokens, kinds)
    }

    /// The vocabulary.
    pub fn new(few: bool) -> Vocabulary {
        let (tokens, kinds) = Vocabulary::parts(few);
        let special: Vec<(String, i32)> = tokens[FIRST_SPECIAL..].iter().cloned().zip(FIRST_SPECIAL as i32..).collect();
        let eot = special.iter().find(|(name, _)| name == "<|END_OF_TURN_TOKEN|>").unwrap().1;
        let eom = special.iter().find(|(name, _)| name == "<|end_of_msg|>").unwrap().1;
        let eos = special.iter().find(|(name, _)| name == "<|message_sep|>").unwrap().1;
        let meta = MetadataWriter::default()
            .text("tokenizer.ggml.model", "llama")
            .strings("tokenizer.ggml.tokens", &tokens)
            .integers("tokenizer.ggml.token_type", &kinds)
            .floats("tokenizer.ggml.scores", &vec![0.0; tokens.len()])
            .u32("tokenizer.ggml.eot_token_id", eot as u32)
            .u32("tokenizer.ggml.eom_token_id", eom as u32)
            .u32("tokenizer.ggml.eos_token_id", eos as u32);
        Vocabulary { tokenizer: Arc::new(Tokenizer::from_metadata(&meta.finish()).unwrap().unwrap()), special }
    }

    /// Tokens of `text`, where `cut` tells whether the next piece may be one of several bytes.
    pub fn tokens(&self, text: &str, mut cut: impl FnMut() -> bool) -> Vec<i32> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let special =
                self.special.iter().filter(|(name, _)| rest.starts_with(name)).max_by_key(|(name, _)| name.len());
            if let Some((name, token)) = special {
                tokens.push(*token);
                rest = &rest[name.len()..];
                continue;
            }
            let piece = PIECES
                .iter()
                .zip(256..)
                .filter(|(piece, _)| rest.starts_with(**piece))
                .max_by_key(|(piece, _)| piece.len());
            // A special token is one wherever its name stands.
            let holds = |len: usize| {
                (1..len).any(|at| {
                    rest.is_char_boundary(at) && self.special.iter().any(|(name, _)| rest[at..].starts_with(name))
                })
            };
            let piece = piece.filter(|(piece, _)| !holds(piece.len()) && cut());
            let len = match piece {
                Some((piece, token)) => {
                    tokens.push(token);
                    piece.len()
                }
                None => {
                    let len = rest.chars().next().unwrap().len_utf8();
                    tokens.extend(rest.as_bytes()[..len].iter().map(|&byte| i32::from(byte)));
                    len
                }
            };
            rest = &rest[len..];
        }
        tokens
    }
}

/// What a reply told, fragments joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
    pub ends: usize,
}

/// A call of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    pub name: String,
    pub arguments: String,
    pub id: String,
    pub whole: bool,
}

impl Told {
    /// Adds the events of a push.
    pub fn take(&mut self, reply: &Reply) {
        for event in reply.events() {
            match event.kind {
                Kind::Reasoning => self.reasoning += event.text,
                Kind::Content => self.content += event.text,
                Kind::CallBegin => {
                    assert_eq!(event.index, self.calls.len());
                    self.calls.push(Call { name: event.text.into(), ..Call::default() });
                }
                Kind::CallArguments => {
                    assert_eq!(event.index + 1, self.calls.len());
                    self.calls[event.index].arguments += event.text;
                }
                Kind::CallEnd => {
                    let call = &mut self.calls[event.index];
                    (call.whole, call.id) = (true, event.id.into());
                    assert!(!event.id.is_empty());
                    let arguments: Value = serde_json::from_str(&call.arguments).expect(&call.arguments);
                    assert!(arguments.is_object());
                }
                Kind::End => self.ends += 1,
            }
        }
    }

    /// Names and arguments of the calls.
    pub fn arguments(&self) -> Vec<(String, Value)> {
        let call = |call: &Call| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap_or(Value::Null));
        self.calls.iter().map(call).collect()
    }
}

/// What the tokens of a whole reply tell.
pub fn read(reply: &mut Reply, tokens: &[i32]) -> Told {
    let mut told = Told::default();
    for &token in tokens {
        reply.push(token).unwrap();
        told.take(reply);
    }
    reply.flush().unwrap();
    told.take(reply);
    assert_eq!(told.ends, 1);
    told
}

/// Two tools.
pub fn tools() -> Value {
    let properties = json!({
        "query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}, "nested": {"type": "object"}, "code": {"type": "string"},
    });
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "It works.",
            "parameters": {"type": "object", "properties": properties, "required": []}}})
    };
    json!([tool("search"), tool("run")])
}
