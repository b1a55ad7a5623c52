//! Vocabularies that lie: every one is an error, or a tokenizer that works.

use crate::common::metadata as text;
use crate::common::metadata::MetadataWriter;
use crate::common::patient::shortest;
use segno::text::Tokenizer;
use std::time::{Duration, Instant};

fn llama() -> MetadataWriter {
    MetadataWriter::default().text("tokenizer.ggml.model", "llama")
}

fn gpt2() -> MetadataWriter {
    MetadataWriter::default().text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2")
}

fn t5() -> MetadataWriter {
    MetadataWriter::default().text("tokenizer.ggml.model", "t5")
}

fn bert() -> MetadataWriter {
    MetadataWriter::default().text("tokenizer.ggml.model", "bert")
}

/// A small character map, with which t5 files may be damaged.
const MAP: &[u8] = include_bytes!("../golden/text/rules.charsmap");

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
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
        (
            MetadataWriter::default().text("tokenizer.ggml.model", "gpt2").u32("tokenizer.ggml.pre", 1),
            "tokenizer.ggml.pre",
        ),
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
fn character_maps_that_lead_outside_themselves_are_refused() {
    let load = |map: &[u8]| {
        let file = t5().strings(TOKENS, &["<unk>", "a"]).floats(SCORES, &[0.0; 2]).byte_array(CHARSMAP, map);
        Tokenizer::from_metadata(&file.finish())
    };
    let replaced = |at: usize, bytes: &[u8]| {
        let mut map = MAP.to_vec();
        map[at..at + bytes.len()].copy_from_slice(bytes);
        map
    };
    let trie = u32::from_le_bytes(MAP[..4].try_into().unwrap()) as usize;
    let of_size = |size: usize| replaced(0, &(size as u32).to_le_bytes());
    let cases = [
        (MAP[..3].to_vec(), "too short"),
        (of_size(0), "0 bytes"),
        (of_size(6), "6 bytes"),
        (of_size(MAP.len()), "within"),
        (of_size(u32::MAX as usize - 3), "within"),
        (MAP[..MAP.len() - 1].to_vec(), "without an end"),
        (MAP[..4 + trie].to_vec(), "outside"),
        (replaced(MAP.len() - 2, b"\xff"), "not utf-8"),
        // The root's children, far away; the root as a value; one unit less than a block.
        (replaced(4, &0x7fff_fc00u32.to_le_bytes()), "outside"),
        (replaced(4, &u32::MAX.to_le_bytes()), "outside"),
        (of_size(trie - 4), "outside"),
    ];
    assert!(load(MAP).is_ok() && load(&[]).is_ok());
    for (map, wanted) in cases {
        let error = load(&map).err().unwrap_or_else(|| panic!("accepted: {wanted}")).to_string();
        assert!(error.contains(CHARSMAP) && (error.contains(wanted) || error.contains("not utf-8")), "{error}");
    }
}

#[test]
fn pieces_that_begin_alike_cost_no_more_than_their_bytes() {
    let tokens: Vec<String> =
        std::iter::once("<unk>".into()).chain((1..=256).map(|length| "x".repeat(length))).collect();
    let beginnings = tokens.iter().map(|token| format!("\u{2581}{token}"));
    let words: Vec<String> = beginnings.chain(tokens.iter().cloned()).collect();
    let (time, ()) = shortest(Duration::from_secs(4), || {
        let started = Instant::now();
        let unigram = t5().strings(TOKENS, &tokens).floats(SCORES, &[-1.0; 257]).integers(KINDS, &[1; 257]);
        let ids = Tokenizer::from_metadata(&unigram.finish()).unwrap().unwrap().encode(&[b'x'; 100_000], false, true);
        assert_eq!(ids.unwrap().len(), 100_000 / 256 + 1);
        let pieces = bert().strings(TOKENS, &words);
        let tokenizer = Tokenizer::from_metadata(&pieces.finish()).unwrap().unwrap();
        assert_eq!(tokenizer.encode(&[b'x'; 100_000], false, true).unwrap().len(), 1, "too long a word is unknown");
        assert_eq!(tokenizer.encode("xxx ".repeat(25_000).as_bytes(), false, true).unwrap().len(), 25_000);
        (started.elapsed(), ())
    });
    assert!(time.as_secs() < 4, "{time:?}");
    let long = t5().strings(TOKENS, &["a", &"x".repeat(2000)]).floats(SCORES, &[0.0; 2]).integers(KINDS, &[1; 2]);
    let error = Tokenizer::from_metadata(&long.finish()).err().expect("accepted").to_string();
    assert!(error.contains("pieces of 2000 bytes, at most 1024"), "{error}");
}

#[test]
fn a_text_that_its_map_blows_up_is_refused() {
    let map = map_of_a(&"long ".repeat(200));
    let tokens = ["long", "\u{2581}", "b"];
    let file = t5().strings(TOKENS, &tokens).floats(SCORES, &[0.0; 3]).integers(KINDS, &[1; 3]);
    let tokenizer = Tokenizer::from_metadata(&file.byte_array(CHARSMAP, &map).finish()).unwrap().unwrap();
    assert_eq!(tokenizer.encode(b"ba", false, false).unwrap(), [&[2][..], &[0, 1].repeat(200)].concat());
    let error = tokenizer.encode(&[b'a'; 100_000], false, false).unwrap_err().to_string();
    assert!(error.contains("normalized text of more than"), "{error}");
}

/// A character map that turns every `a` into `text`.
fn map_of_a(text: &str) -> Vec<u8> {
    let mut units = [0u32; 256];
    // The children of the root begin at its own place; the value of `a` stands at place 1.
    units[b'a' as usize] = u32::from(b'a') | 1 << 8 | u32::from(b'a' ^ 1) << 10;
    units[1] = 1 << 31;
    let trie: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    [&(trie.len() as u32).to_le_bytes()[..], &trie, text.as_bytes(), b"\0"].concat()
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
            t5().strings(TOKENS, &tokens).floats(SCORES, &[f32::INFINITY; 9]).integers(KINDS, &kinds),
            t5().strings(TOKENS, &tokens).floats(SCORES, &[f32::NEG_INFINITY; 9]).integers(KINDS, &kinds),
            bert().strings(TOKENS, &tokens).integers(KINDS, &kinds),
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
    let long = "x".repeat(3000);
    let tokens: Vec<String> = (0..8).map(|index| format!("{long}{index}")).collect();
    let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 8]).strings::<&str>(MERGES, &[]);
    let error = Tokenizer::from_metadata(&file.finish()).err().expect("accepted").to_string();
    assert!(error.contains("special tokens"), "{error}");
}

#[test]
fn special_tokens_that_begin_alike_cost_no_more_than_their_bytes() {
    let tokens: Vec<String> = (1..=1024).map(|length| "x".repeat(length)).collect();
    let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 1024]).strings::<&str>(MERGES, &[]);
    let (time, ids) = shortest(Duration::from_secs(2), || {
        let started = Instant::now();
        let tokenizer = Tokenizer::from_metadata(&file.finish()).unwrap().unwrap();
        let ids = tokenizer.encode("x".repeat(100_000).as_bytes(), false, true).unwrap();
        (started.elapsed(), ids)
    });
    assert_eq!((ids.len(), ids[0], ids[97]), (98, 1023, 100_000 % 1024 - 1));
    assert!(time.as_secs() < 2, "{time:?}");
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
    let tokens = ["x".to_owned(), "x".repeat(4000)];
    let file = gpt2().strings(TOKENS, &tokens).integers(KINDS, &[4; 2]).strings::<&str>(MERGES, &[]);
    let error = Tokenizer::from_metadata(&file.finish()).err().expect("accepted").to_string();
    assert!(error.contains("4000 bytes, at most 1024"), "{error}");
}

/// Random changes of one byte in a real file's metadata either fail to parse, are refused, or give a tokenizer that works.
#[test]
fn random_damage_never_panics() {
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "\u{2581}", "\u{2581}a", "<0x41>"];
    let spm = llama().strings(TOKENS, &tokens).floats(SCORES, &[0.0; 9]).integers(KINDS, &[2, 3, 3, 1, 1, 1, 1, 1, 6]);
    let bpe =
        gpt2().strings(TOKENS, &tokens).strings(MERGES, &["a b", "\u{2581} a"]).u32("tokenizer.ggml.bos_token_id", 1);
    let unigram =
        t5().strings(TOKENS, &tokens).floats(SCORES, &[-1.0; 9]).integers(KINDS, &[2, 3, 3, 1, 1, 1, 1, 1, 6]);
    let unigram = unigram.byte_array(CHARSMAP, MAP).bool("tokenizer.ggml.remove_extra_whitespaces", true);
    let pieces = bert().strings(TOKENS, &tokens).integers(KINDS, &[2, 3, 3, 1, 1, 1, 1, 1, 6]);
    let pieces = pieces.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.seperator_token_id", 2);
    let mut state = 7u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let (mut parsed, mut loaded) = (0, 0);
    for file in [spm.bytes(), bpe.bytes(), unigram.bytes(), pieces.bytes()] {
        for _ in 0..20_000 {
            let mut damaged = file.clone();
            let at = 24 + random(damaged.len() - 24);
            damaged[at] = random(256) as u8;
            let Some(meta) = text::parse(damaged) else { continue };
            parsed += 1;
            let Ok(Some(tokenizer)) = Tokenizer::from_metadata(&meta) else { continue };
            loaded += 1;
            let ids = tokenizer.encode("ab a\u{2581}é\u{fb01}</s>".as_bytes(), true, true).unwrap_or_default();
            tokenizer.decode(&ids, true).unwrap();
        }
    }
    assert!(parsed > 5_000 && loaded > 2_000, "{parsed} parsed, {loaded} loaded: the cases prove little");
}
