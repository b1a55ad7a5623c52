//! Walks through grammars, mask by mask: after any forks and cuts the masks are those of a walk that was there from the beginning.

use crate::common::metadata::{MetadataWriter, tokenizer};
use crate::common::{bundled_model, shared_data};
use segno::grammar::{Constraint, Form, Grammar, Kind, Next, Vocabulary};
use segno::text::Tokenizer;
use std::sync::Arc;

const GRAMMARS: [(Kind, &str); 4] = [
    (
        Kind::JsonSchema,
        r#"{"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-f]+$"}, "b": {"type": "array", "items":
            {"anyOf": [{"type": "number"}, {"const": "a long and forced text"}, {"type": "string", "maxLength": 12}]}}}, "required": ["a", "b"]}"#,
    ),
    (Kind::Regex, r"(ab|a[bc]*d|[^x]{2,9}){3,}"),
    (Kind::Lark, "start: item+\nitem: \"<\" NAME \">\" item* \"</>\" | TEXT\nNAME: /[a-z]+/\nTEXT: /[A-Z ]+/\n"),
    (Kind::Gbnf, "root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+ (\".\" [0-9]+)?"),
];

fn vocabulary() -> Arc<Vocabulary> {
    Arc::new(Vocabulary::of(&Arc::new(tokenizer(&bundled_model()))).unwrap())
}

/// What a walk says of the next token: the forced one, or the mask and whether the text may end.
fn view(walk: &mut Constraint) -> (Next, Vec<u32>, bool) {
    let next = walk.peek().unwrap();
    if next != Next::Choice {
        return (next, Vec::new(), false);
    }
    walk.prepare();
    let (mask, may_end) = walk.mask().unwrap();
    (next, mask.to_vec(), may_end)
}

/// Compares the ways to a mask: what [`Constraint::peek`] works out in narrow places, what is asked of single tokens, and the engine's own.
fn assert_masks_agree(walk: &Constraint, vocabulary: &Vocabulary) {
    let (mut peeked, mut asked, mut whole) = (walk.fork().unwrap(), walk.fork().unwrap(), walk.fork().unwrap());
    let next = peeked.peek().unwrap();
    if !matches!(next, Next::Choice | Next::Forced(_)) {
        return;
    }
    whole.prepare();
    let mask = whole.mask().unwrap();
    if peeked.is_prepared() {
        assert_eq!(peeked.mask().unwrap(), mask);
    }
    for token in 0..vocabulary.len() {
        let bit = mask.0[token / 32] >> (token % 32) & 1 == 1;
        assert_eq!(asked.allows(&[token as i32]).unwrap(), bit, "token {token}");
    }
    assert!(!asked.is_prepared());
}

/// Some token that the view lets through.
fn pick(view: &(Next, Vec<u32>, bool), state: &mut u64) -> Option<i32> {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    match view.0 {
        Next::Forced(token) => Some(token),
        Next::Choice => {
            let bits = (0..view.1.len() * 32).filter(|bit| view.1[bit / 32] >> (bit % 32) & 1 == 1);
            let bits: Vec<usize> = bits.collect();
            Some(bits[(*state >> 33) as usize % bits.len()] as i32).filter(|_| !bits.is_empty())
        }
        _ => None,
    }
}

#[test]
fn a_walk_with_forks_and_cuts_has_the_masks_of_a_fresh_one() {
    let vocabulary = vocabulary();
    for (kind, text) in GRAMMARS {
        let form = Form { kind, text: text.as_bytes(), compact: false };
        let compile = || Arc::new(Grammar::compile(&vocabulary, &form).unwrap());
        let grammar = compile();
        let (mut state, mut seen) = (1, 0);
        for _ in 0..16 {
            let mut walk = Constraint::new(&grammar, None).unwrap();
            let mut tokens = Vec::new();
            for turn in 0..60 {
                assert_masks_agree(&walk, &vocabulary);
                let current = view(&mut walk);
                if turn % 4 == 3 {
                    // Now and then by a grammar to which no walk has left its tables.
                    let unused = if turn % 16 == 3 { compile() } else { Arc::clone(&grammar) };
                    let mut fresh = Constraint::new(&unused, None).unwrap();
                    for (position, &token) in tokens.iter().enumerate() {
                        view(&mut fresh);
                        fresh.advance(token, position, false).unwrap();
                    }
                    assert_eq!(view(&mut fresh), current, "{text}: after {tokens:?}");
                    seen += 1;
                }
                let Some(token) = pick(&current, &mut state) else { break };
                let step = if state >> 60 & 1 == 1 { Constraint::note } else { Constraint::advance };
                step(&mut walk, token, tokens.len(), false).unwrap();
                tokens.push(token);
                if state >> 62 == 0 {
                    let fork = walk.fork().unwrap();
                    let kept = (state >> 40) as usize % (tokens.len() + 1);
                    walk.cut(kept);
                    tokens.truncate(kept);
                    if state >> 61 & 1 == 1 {
                        walk = fork;
                        walk.cut(kept);
                    }
                }
            }
        }
        assert!(seen > 20, "{text}: {seen} comparisons");
        let has_strings = matches!(kind, Kind::JsonSchema | Kind::Regex);
        assert!(!has_strings || grammar.masks_kept() > 0, "{text}: no mask was kept");
    }
}

/// Strings of which a lexer tells characters apart by their number alone, by some of their letters, or by where a character's bytes end.
const STRINGS: [(Kind, &str); 6] = [
    (Kind::JsonSchema, r#"{"type": "array", "minItems": 9, "items": {"type": "string", "maxLength": 9}}"#),
    (Kind::JsonSchema, r#"{"type": "array", "minItems": 9, "items": {"type": "string"}}"#),
    (
        Kind::JsonSchema,
        r#"{"type": "array", "minItems": 9, "items": {"type": "string", "pattern": "^[^x]+$", "minLength": 3, "maxLength": 14}}"#,
    ),
    (
        Kind::JsonSchema,
        r#"{"type": "array", "minItems": 9, "items": {"type": "string", "pattern": "^[\u00e0-\u04ff]{2,}.{1,3}$"}}"#,
    ),
    (Kind::Regex, r"(?s:.){5,30}"),
    (Kind::Regex, r"\p{L}{2,8}( \p{Han}+){3}"),
];

#[test]
fn masks_of_a_large_vocabulary_are_what_the_engine_says_of_each_token() {
    let Some(data) = shared_data() else { return };
    let tokenizer = Arc::new(tokenizer(&data.join("vocab/ggml-vocab-llama-bpe.gguf")));
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer).unwrap());
    let mut state = 3;
    for (kind, text) in STRINGS {
        let form = Form { kind, text: text.as_bytes(), compact: true };
        let grammar = Arc::new(Grammar::compile(&vocabulary, &form).unwrap());
        // The second walk begins with the tables of the first, and with what was kept.
        for _ in 0..2 {
            let mut walk = Constraint::new(&grammar, None).unwrap();
            for position in 0..10 {
                assert_masks_agree(&walk, &vocabulary);
                let Some(token) = pick(&view(&mut walk), &mut state) else { break };
                walk.advance(token, position, false).unwrap();
            }
        }
    }
}

#[test]
fn a_noted_move_that_cannot_be_made_is_told_by_the_next_use() {
    let vocabulary = vocabulary();
    let form = Form { kind: Kind::Regex, text: b"[ab]+", compact: false };
    let walk = Constraint::new(&Arc::new(Grammar::compile(&vocabulary, &form).unwrap()), None).unwrap();
    let (_, mask, _) = view(&mut walk.fork().unwrap());
    let wrong = (0..).find(|token| mask[token / 32] >> (token % 32) & 1 == 0).unwrap() as i32;
    let noted = || {
        let mut walk = walk.fork().unwrap();
        walk.note(wrong, 0, false).unwrap();
        walk
    };
    assert!(walk.fork().unwrap().advance(wrong, 0, false).is_err());
    assert!(noted().peek().is_err() && noted().catch_up().is_err() && noted().allows(&[wrong]).is_err());
    assert!(noted().fork().unwrap().peek().is_err());
    let mut cut = noted();
    cut.cut(0);
    assert_eq!(view(&mut cut), view(&mut walk.fork().unwrap()));
}

#[test]
fn special_tokens_are_let_through_by_name_alone() {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>").into_bytes()).collect();
    let mut kinds = vec![6; 256];
    for (name, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<tool>", 4), ("plain", 4), ("yes", 1), ("<tool>x", 1)]
    {
        tokens.push(name.into());
        kinds.push(kind);
    }
    let find = |name: &str| tokens.iter().position(|token| token == name.as_bytes()).unwrap();
    let metadata = MetadataWriter::default().text("tokenizer.ggml.model", "llama");
    let metadata = metadata.strings("tokenizer.ggml.tokens", &tokens).integers("tokenizer.ggml.token_type", &kinds);
    let metadata = metadata.floats("tokenizer.ggml.scores", &vec![0.0; tokens.len()]).finish();
    let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata).unwrap().unwrap());
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer).unwrap());
    let allowed = |kind, text: &str| {
        let form = Form { kind, text: text.as_bytes(), compact: false };
        let mut walk = Constraint::new(&Arc::new(Grammar::compile(&vocabulary, &form).unwrap()), None).unwrap();
        match view(&mut walk) {
            (Next::Forced(token), ..) => vec![token as usize],
            (_, mask, _) => (0..tokens.len()).filter(|token| mask[token / 32] >> (token % 32) & 1 == 1).collect(),
        }
    };
    let any = allowed(Kind::Regex, r"(?s:.)+");
    assert!(["plain", "yes", "<tool>x"].iter().all(|name| any.contains(&find(name))), "{any:?}");
    assert!(["<unk>", "<s>", "</s>", "<tool>"].iter().all(|name| !any.contains(&find(name))), "{any:?}");
    assert_eq!(allowed(Kind::Lark, "start: <tool> /x/\n"), [find("<tool>")]);
    let number = format!("start: <[{}]> \"x\"\n", find("</s>"));
    assert_eq!(allowed(Kind::Lark, &number), [find("</s>")]);
}
