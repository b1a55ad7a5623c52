//! Streams against plain decoding and a plain search, on random tokens and stop strings.

use crate::common::metadata::MetadataWriter;
use segno::text::stream::Pending;
use segno::text::{StreamOptions, TextStream, Tokenizer};
use std::sync::Arc;

/// A generator of numbers that look random (Steele et al., SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

const BYTE_TOKENS: usize = 256;
const PIECES: [&str; 16] =
    ["a", "b", "ab", "ba", "abc", " ", "▁c", "é", "éa", "日本", "🦙", "x🦙", "\n", "c", "cab", "aa"];
const CONTROL: i32 = (BYTE_TOKENS + PIECES.len()) as i32;

fn tokenizer() -> Arc<Tokenizer> {
    tokenizer_of("llama")
}

/// 256 byte tokens, some pieces, one control token, in a vocabulary of the kind `model`.
fn tokenizer_of(model: &str) -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = (0..BYTE_TOKENS).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(PIECES.map(String::from));
    tokens.push("<|turn|>".into());
    let mut kinds = vec![6; BYTE_TOKENS];
    kinds.extend([1; PIECES.len()]);
    kinds.push(3);
    let meta = MetadataWriter::default()
        .text("tokenizer.ggml.model", model)
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .floats("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    Arc::new(Tokenizer::from_metadata(&meta.finish()).unwrap().unwrap())
}

fn stream(tokenizer: &Arc<Tokenizer>, special: bool, stops: &[&str]) -> TextStream {
    let stops = stops.iter().map(|stop| stop.as_bytes().to_vec()).collect();
    TextStream::new(Arc::clone(tokenizer), StreamOptions { special, stops }).unwrap()
}

/// The text of a whole stream, and whether a stop string ended it.
fn run(stream: &mut TextStream, tokens: &[i32]) -> (String, bool) {
    let mut out = Vec::new();
    let mut done = false;
    for &token in tokens {
        let pending = stream.push(token).unwrap();
        assert!(std::str::from_utf8(pending.text()).is_ok());
        assert!(!done || (pending.done() && pending.text().is_empty()), "text after the end");
        out.extend_from_slice(pending.text());
        done = pending.done();
        pending.commit();
    }
    let pending = stream.flush();
    out.extend_from_slice(pending.text());
    done |= pending.done();
    pending.commit();
    (String::from_utf8(out).unwrap(), done)
}

/// What the stream must give: the text up to the stop string that is complete first, of several the longest.
fn plain_search(text: &str, stops: &[&str]) -> (String, bool) {
    let ends = |stop: &&str| text.find(stop).map(|start| (start + stop.len(), start));
    match stops.iter().filter_map(ends).min() {
        Some((_, start)) => (text[..start].to_owned(), true),
        None => (text.to_owned(), false),
    }
}

fn lossy(tokenizer: &Tokenizer, tokens: &[i32], special: bool) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.piece(token, special).unwrap().to_vec()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_hundred_thousand_random_streams_are_utf8_and_equal_the_whole() {
    let mut random = Random(1);
    for (model, special) in
        [("llama", false), ("llama", true), ("t5", false), ("t5", true), ("bert", false), ("bert", true)]
    {
        let tokenizer = tokenizer_of(model);
        let mut stream = stream(&tokenizer, special, &[]);
        for _ in 0..17_000 {
            let tokens: Vec<i32> = (0..random.below(24)).map(|_| random.below(CONTROL as usize + 1) as i32).collect();
            let wanted = (lossy(&tokenizer, &tokens, special), false);
            assert_eq!(run(&mut stream, &tokens), wanted, "{model}: {tokens:?}");
        }
    }
}

#[test]
fn stop_strings_never_leak_whatever_the_boundaries() {
    let tokenizer = tokenizer();
    let mut random = Random(2);
    let candidates =
        ["ab", "aab", "abab", "bc", "abcab", "éa", "日本", "本", "🦙\n", "a", "c a", "aaaa", "\u{fffd}a", "é"];
    let mut stopped = 0;
    for _ in 0..20_000 {
        let stops: Vec<&str> = (0..1 + random.below(3)).map(|_| candidates[random.below(candidates.len())]).collect();
        // Mostly pieces, sometimes raw bytes: é and 🦙 also arrive one byte at a time.
        let mut tokens = Vec::new();
        for _ in 0..random.below(20) {
            match random.below(8) {
                0 => tokens.extend("é🦙本".bytes().skip(random.below(3)).take(random.below(8)).map(i32::from)),
                _ => tokens.push((BYTE_TOKENS + random.below(PIECES.len())) as i32),
            }
        }
        let wanted = plain_search(&lossy(&tokenizer, &tokens, false), &stops);
        stopped += usize::from(wanted.1);
        assert_eq!(run(&mut stream(&tokenizer, false, &stops), &tokens), wanted, "{tokens:?} {stops:?}");
    }
    assert!((5_000..19_000).contains(&stopped), "{stopped} of 20000 cases stop: the cases prove little");
}

#[test]
fn a_step_that_is_not_committed_has_not_happened() {
    let tokenizer = tokenizer();
    let mut random = Random(3);
    for _ in 0..5_000 {
        let tokens: Vec<i32> = (0..random.below(16)).map(|_| random.below(CONTROL as usize + 1) as i32).collect();
        let stops = ["abab", "日本a"];
        let mut hesitant = stream(&tokenizer, true, &stops);
        let mut out = Vec::new();
        for &token in &tokens {
            for _ in 0..random.below(3) {
                drop(hesitant.push(random.below(BYTE_TOKENS) as i32).unwrap());
                drop(hesitant.flush());
            }
            let pending = hesitant.push(token).unwrap();
            out.extend_from_slice(pending.text());
            pending.commit();
        }
        out.extend_from_slice(hesitant.flush().text());
        let straight = run(&mut stream(&tokenizer, true, &stops), &tokens).0;
        assert_eq!(String::from_utf8(out).unwrap(), straight);
    }
}

/// What a stream must have given out when its tokens' bytes are `bytes`, and whether a stop string has ended it: the text whose
/// characters are whole, all of it if `ended`, up to the stop string that is complete first, without an end that may become one.
fn model(bytes: &[u8], ended: bool, stops: &[&str]) -> (String, bool) {
    let undecided = match bytes.utf8_chunks().last() {
        // Without a length the bytes at the end are the beginning of a character.
        Some(last) if std::str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none()) => {
            last.invalid().len()
        }
        _ => 0,
    };
    let whole = if ended { bytes.len() } else { bytes.len() - undecided };
    let (text, done) = plain_search(&String::from_utf8_lossy(&bytes[..whole]), stops);
    let begins = |&at: &usize| text.is_char_boundary(at) && stops.iter().any(|stop| stop.starts_with(&text[at..]));
    let end = if done || ended { text.len() } else { (0..text.len()).find(begins).unwrap_or(text.len()) };
    (text[..end].to_owned(), done)
}

/// A stream beside its model. Before a step is taken it is refused at random, as by a host whose buffer is too small; every time
/// it must release what is wanted now beyond what was taken before.
struct Checked<'a> {
    stream: TextStream,
    stops: &'a [&'a str],
    bytes: Vec<u8>,
    taken: String,
    refused: usize,
}

impl Checked<'_> {
    fn push(&mut self, token: i32, piece: &[u8], random: &mut Random) {
        self.bytes.extend_from_slice(piece);
        let wanted = model(&self.bytes, false, self.stops);
        while random.below(3) > 0 {
            self.refused += 1;
            drop(self.stream.flush());
            self.expect(&wanted, |stream| stream.push(token).unwrap(), false);
        }
        self.expect(&wanted, |stream| stream.push(token).unwrap(), true);
    }

    /// Whether a stop string ended the stream.
    fn flush(&mut self, random: &mut Random) -> bool {
        let wanted = model(&self.bytes, true, self.stops);
        while random.below(3) > 0 {
            self.refused += 1;
            self.expect(&wanted, TextStream::flush, false);
        }
        self.expect(&wanted, TextStream::flush, true);
        self.bytes.clear();
        self.taken.clear();
        wanted.1
    }

    fn expect(&mut self, wanted: &(String, bool), step: impl Fn(&mut TextStream) -> Pending, commit: bool) {
        let pending = step(&mut self.stream);
        let got = (self.taken.clone() + std::str::from_utf8(pending.text()).unwrap(), pending.done());
        assert_eq!(got, *wanted, "{:?}, stops {:?}", self.bytes.escape_ascii().to_string(), self.stops);
        if commit {
            pending.commit();
            self.taken = got.0;
        }
    }
}

#[test]
fn steps_that_are_refused_at_random_release_what_a_plain_model_does() {
    let tokenizer = tokenizer();
    let mut random = Random(4);
    let candidates =
        ["aaaaaX", "aab", "aaaaX", "a\u{fffd}", "ab", "abab", "ba", "aa", "é", "éa", "b\u{fffd}b", "日本", "本a"];
    let (mut stopped, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let stops: Vec<&str> = (0..random.below(4)).map(|_| candidates[random.below(candidates.len())]).collect();
        let stream = stream(&tokenizer, false, &stops);
        let mut checked = Checked { stream, stops: &stops, bytes: Vec::new(), taken: String::new(), refused: 0 };
        // The end of one stream must not reach into the next.
        for _ in 0..2 {
            for _ in 0..random.below(14) {
                let token = match random.below(4) {
                    0 => [0xf0, 0xc3, 0xa9, 0x9f, usize::from(b'X')][random.below(5)],
                    1 => BYTE_TOKENS + random.below(PIECES.len()),
                    _ => BYTE_TOKENS + [0, 0, 1, 2][random.below(4)],
                };
                let token = token as i32;
                checked.push(token, tokenizer.piece(token, false).unwrap(), &mut random);
            }
            stopped += usize::from(checked.flush(&mut random));
        }
        refused += checked.refused;
    }
    assert!((10_000..35_000).contains(&stopped), "{stopped} of 40000 streams stop: the cases prove little");
    assert!(refused > 100_000, "only {refused} steps were refused");
}

#[test]
fn a_stream_begins_anew_after_flush() {
    let tokenizer = tokenizer();
    let mut stream = stream(&tokenizer, false, &["ab"]);
    let (x, a, b) = (i32::from(b'x'), i32::from(b'a'), i32::from(b'b'));
    assert_eq!(run(&mut stream, &[x, a, b, x]), ("x".into(), true));
    assert_eq!(run(&mut stream, &[x, a]), ("xa".into(), false), "the end of one stream does not reach into the next");
    assert_eq!(run(&mut stream, &[b, 0xf0, 0x9f]), ("b\u{fffd}".into(), false));
    assert_eq!(run(&mut stream, &[0xa6, x]), ("\u{fffd}x".into(), false));
}

#[test]
fn special_tokens_are_shown_on_request_only() {
    let tokenizer = tokenizer();
    let tokens = [i32::from(b'a'), CONTROL, i32::from(b'b')];
    assert_eq!(run(&mut stream(&tokenizer, false, &[]), &tokens).0, "ab");
    assert_eq!(run(&mut stream(&tokenizer, true, &[]), &tokens).0, "a<|turn|>b");
}

#[test]
fn bad_tokens_and_stop_strings_are_errors() {
    let tokenizer = tokenizer();
    let mut stream = stream(&tokenizer, false, &["abc"]);
    for token in [-1, CONTROL + 1, i32::MAX, i32::MIN] {
        assert!(stream.push(token).is_err(), "token {token}");
    }
    for stop in [&b""[..], b"\xff", b"ab\xc3"] {
        let options = StreamOptions { special: false, stops: vec![stop.to_vec()] };
        assert!(TextStream::new(Arc::clone(&tokenizer), options).is_err(), "{stop:?}");
    }
}
