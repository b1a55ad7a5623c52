//! Vocabularies that lie: every one is an error, or a tokenizer that works.

mod text;

use segno::text::Tokenizer;
use text::MetadataWriter;

fn llama() -> MetadataWriter {
    MetadataWriter::default().text("tokenizer.ggml.model", "llama")
}

fn gpt2() -> MetadataWriter {
    MetadataWriter::default().text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2")
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

#[test]
fn metadata_that_contradicts_itself_is_an_error_that_names_the_key() {
    let pair = ["<unk>", "a"];
    let spm = || llama().strings(TOKENS, &pair);
    let bpe = || gpt2().strings(TOKENS, &["a", "b", "ab"]);
    let cases = [
        (llama(), TOKENS),
        (llama().strings::<&str>(TOKENS, &[]).floats(SCORES, &[]), TOKENS),
        (llama().integers(TOKENS, &[1, 2]), TOKENS),
        (spm(), SCORES),
        (spm().floats(SCORES, &[0.0]), SCORES),
        (spm().floats(SCORES, &[0.0, f32::NAN]), SCORES),
        (spm().strings(SCORES, &["0", "1"]), SCORES),
        (spm().floats(SCORES, &[0.0; 2]).integers(KINDS, &[1]), KINDS),
        (spm().floats(SCORES, &[0.0; 2]).integers(KINDS, &[1, 9]), KINDS),
        (spm().floats(SCORES, &[0.0; 2]).integers(KINDS, &[-1, 1]), KINDS),
        (spm().floats(SCORES, &[0.0; 2]).u32("tokenizer.ggml.bos_token_id", 2), "tokenizer.ggml.bos_token_id"),
        (spm().floats(SCORES, &[0.0; 2]).text("tokenizer.ggml.eos_token_id", "1"), "tokenizer.ggml.eos_token_id"),
        (spm().floats(SCORES, &[0.0; 2]).u32("tokenizer.ggml.add_space_prefix", 1), "add_space_prefix"),
        (bpe(), MERGES),
        (bpe().strings(MERGES, &["a b", "ab a"]), "`aba`"),
        (bpe().strings(MERGES, &["a x"]), "`ax`"),
        (bpe().strings(MERGES, &["ab"]), "entry 0"),
        (bpe().strings(MERGES, &["a b", ""]), "entry 1"),
        (bpe().strings(MERGES, &[&b"\xff \xff"[..]]), "entry 0"),
        (MetadataWriter::default().text("tokenizer.ggml.model", "gpt2").strings(TOKENS, &pair), "tokenizer.ggml.pre"),
    ];
    for (index, (file, named)) in cases.iter().enumerate() {
        let error = match Tokenizer::from_metadata(&file.finish()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("case {index} ({named}) was accepted"),
        };
        assert!(error.contains(named) && !error.contains('\n'), "case {index}: {error}");
    }
}

#[test]
fn strange_but_possible_vocabularies_work() {
    let texts: [&[u8]; 6] = [b"", b"ab ab", "é🦙\u{2581}".as_bytes(), b"\0\x01", b"<unk>", b"ab\n\n\n"];
    let tokens: [&[u8]; 9] = [b"<unk>", b"ab", b"ab", b"", b"", b"\xff\xfe", b"a", b"b", "\u{2581}".as_bytes()];
    let kinds = [vec![1; 9], vec![2, 1, 4, 4, 1, 4, 1, 1, 1], vec![6; 9], vec![3; 9], vec![0; 9]];
    for kinds in kinds {
        let files = [
            llama().strings(TOKENS, &tokens).floats(SCORES, &[f32::INFINITY; 9]).integers(KINDS, &kinds),
            gpt2().strings(TOKENS, &tokens).integers(KINDS, &kinds).strings(MERGES, &["a b", "a b"]),
            gpt2().strings(TOKENS, &tokens).integers(KINDS, &kinds).strings::<&str>(MERGES, &[]),
        ];
        for file in files {
            let tokenizer = Tokenizer::from_metadata(&file.finish()).unwrap().unwrap();
            for text in texts {
                for special in [false, true] {
                    let ids = tokenizer.encode(text, special, special).unwrap();
                    assert!(ids.iter().all(|&id| (0..9).contains(&id)), "{ids:?}");
                    std::str::from_utf8(&tokenizer.decode(&ids, special).unwrap()).unwrap();
                }
            }
        }
    }
}

#[test]
fn too_many_special_tokens_are_refused() {
    let long = "x".repeat(1 << 20);
    let tokens: Vec<String> = (0..8).map(|index| format!("{long}{index}")).collect();
    let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 8]).strings::<&str>(MERGES, &[]);
    let error = Tokenizer::from_metadata(&file.finish()).err().expect("accepted").to_string();
    assert!(error.contains("special tokens"), "{error}");
}

#[test]
fn special_tokens_that_begin_alike_cost_no_more_than_their_bytes() {
    let tokens: Vec<String> = (1..=1024).map(|length| "x".repeat(length)).collect();
    let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 1024]).strings::<&str>(MERGES, &[]);
    let started = std::time::Instant::now();
    let tokenizer = Tokenizer::from_metadata(&file.finish()).unwrap().unwrap();
    let ids = tokenizer.encode("x".repeat(100_000).as_bytes(), false, true).unwrap();
    assert_eq!((ids.len(), ids[0], ids[97]), (98, 1023, 100_000 % 1024 - 1));
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
}

#[test]
fn special_tokens_are_found_as_scanning_finds_them() {
    let mut state = 3u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut word =
        |most: usize| (0..1 + random(most)).map(|_| if random(3) > 0 { 'a' } else { 'b' }).collect::<String>();
    for _ in 0..300 {
        let tokens: Vec<String> = (0..12).map(|_| word(9)).collect();
        let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 12]).strings::<&str>(MERGES, &[]);
        let (tokenizer, text) = (Tokenizer::from_metadata(&file.finish()).unwrap().unwrap(), word(200));
        let (mut wanted, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let here = tokens.iter().enumerate().filter(|(_, token)| text[at..].starts_with(token.as_str()));
            // Of equal ones the first.
            let longest = here.max_by_key(|(index, token)| (token.len(), usize::MAX - index));
            wanted.extend(longest.map(|(index, _)| index as i32));
            at += longest.map_or(1, |(_, token)| token.len());
        }
        assert_eq!(tokenizer.encode(text.as_bytes(), false, false).unwrap(), wanted, "{tokens:?} in {text}");
    }
}

#[test]
fn a_special_token_that_reads_far_ahead_is_refused() {
    let tokens = ["x".to_owned(), "x".repeat(60_000)];
    let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 2]).strings::<&str>(MERGES, &[]);
    let error = Tokenizer::from_metadata(&file.finish()).err().expect("accepted").to_string();
    assert!(error.contains("60000 bytes, at most 1024"), "{error}");
}

/// Random changes of one byte in a real file's metadata either fail to parse, are refused, or give a tokenizer that works.
#[test]
fn random_damage_never_panics() {
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "\u{2581}", "\u{2581}a", "<0x41>"];
    let spm = llama().strings(TOKENS, &tokens).floats(SCORES, &[0.0; 9]).integers(KINDS, &[2, 3, 3, 1, 1, 1, 1, 1, 6]);
    let bpe =
        gpt2().strings(TOKENS, &tokens).strings(MERGES, &["a b", "\u{2581} a"]).u32("tokenizer.ggml.bos_token_id", 1);
    let mut state = 7u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let (mut parsed, mut loaded) = (0, 0);
    for file in [spm.bytes(), bpe.bytes()] {
        for _ in 0..20_000 {
            let mut damaged = file.clone();
            let at = 24 + random(damaged.len() - 24);
            damaged[at] = random(256) as u8;
            let Some(meta) = text::parse(damaged) else { continue };
            parsed += 1;
            let Ok(Some(tokenizer)) = Tokenizer::from_metadata(&meta) else { continue };
            loaded += 1;
            let ids = tokenizer.encode("ab a\u{2581}é</s>".as_bytes(), true, true).unwrap_or_default();
            tokenizer.decode(&ids, true).unwrap();
        }
    }
    assert!(parsed > 5_000 && loaded > 2_000, "{parsed} parsed, {loaded} loaded: the cases prove little");
}
