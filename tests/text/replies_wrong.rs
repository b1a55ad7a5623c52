//! Replies that no template renders: other forms of calls, what models get wrong, and anything at all.

use crate::common::replies::{Random, SPECIALS, Told, Vocabulary, read, tools};
use segno::text::{Reply, ReplyOptions};
use std::sync::Arc;

const FORMATS: [&str; 22] = [
    "harmony",
    "gemma4",
    "dsml",
    "deepseek",
    "kimi-k2",
    "kimi-k3",
    "minimax-m2",
    "hunyuan",
    "glm4",
    "qwen3-coder",
    "minicpm5",
    "lfm2",
    "cohere",
    "gigachat",
    "functionary",
    "mistral",
    "nemotron",
    "firefunction",
    "hermes",
    "llama3",
    "think",
    "plain",
];

/// A reply of the format called `format` behind `prompt`, by a vocabulary with the special tokens or without them.
fn reply(vocabulary: &Vocabulary, format: &str, prompt: &str, tools: Option<&[u8]>) -> Reply {
    let options = ReplyOptions { format: Some(format), prompt, tools_json: tools, ..Default::default() };
    Reply::new(Arc::clone(&vocabulary.tokenizer), &options, Vec::new()).unwrap()
}

fn read_text(format: &str, prompt: &str, text: &str) -> Told {
    let tools = tools().to_string();
    let vocabulary = Vocabulary::new(false);
    let told =
        read(&mut reply(&vocabulary, format, prompt, Some(tools.as_bytes())), &vocabulary.tokens(text, || false));
    let mut random = Random(7);
    for _ in 0..8 {
        let tokens = vocabulary.tokens(text, || random.below(2) > 0);
        assert_eq!(read(&mut reply(&vocabulary, format, prompt, Some(tools.as_bytes())), &tokens), told, "{text}");
    }
    told
}

/// What is told as `reasoning|content|name{arguments}`, a call that is not whole with `?`.
fn brief(format: &str, prompt: &str, text: &str) -> String {
    let told = read_text(format, prompt, text);
    let calls =
        told.calls.iter().map(|call| format!("|{}{}{}", call.name, call.arguments, if call.whole { "" } else { "?" }));
    format!("{}|{}{}", told.reasoning, told.content, calls.collect::<String>())
}

#[test]
fn forms_that_no_template_renders_are_read() {
    let cases = [
        (
            "kimi-k2",
            "",
            "Hi<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{\"code\": \"x\"}<|tool_call_end|><|tool_call_begin|>functions.search:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            "|Hi|run{\"code\":\"x\"}|search{}",
        ),
        (
            "deepseek",
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{\"code\": \"x\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "||run{\"code\":\"x\"}",
        ),
        ("nemotron", "", "<TOOLCALL>[{\"name\": \"run\", \"arguments\": {}}]</TOOLCALL>", "||run{}"),
        (
            "mistral",
            "",
            "[THINK]a[/THINK]b[TOOL_CALLS]run[ARGS]{\"code\": \"[ARGS] \\u00fc\"}",
            "a|b|run{\"code\":\"[ARGS] ü\"}",
        ),
        (
            "mistral",
            "",
            "[TOOL_CALLS] [{\"name\": \"run\", \"arguments\": \"{\\\"limit\\\": 1}\", \"id\": \"x23456789\"}]",
            "||run{\"limit\":1}",
        ),
        ("llama3", "", "<|python_tag|>search.call(query=\"x\", limit=2)", "||search{\"query\":\"x\",\"limit\":2}"),
        (
            "llama3",
            "",
            "{\"name\": \"run\", \"parameters\": {\"code\": \"}\"}}; {\"name\": \"search\", \"parameters\": {}}",
            "||run{\"code\":\"}\"}|search{}",
        ),
        ("llama3", "", "{\"name\": \"unknown\", \"parameters\": {}}", "|{\"name\": \"unknown\", \"parameters\": {}}"),
        ("llama3", "", "{\"a\": [1, {}]} is it", "|{\"a\": [1, {}]} is it"),
        (
            "hermes",
            "<think>\n",
            "why\n</think>\n\nHi\n<tool_call>\n{\"arguments\": {\"limit\": 1}, \"name\": \"run\"}\n</tool_call>",
            "why|Hi|run{\"limit\":1}",
        ),
        (
            "harmony",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.run <|constrain|>json<|message|>{\"limit\":1}<|call|>",
            "hm||run{\"limit\":1}",
        ),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", "Hi<|return|>", "|Hi"),
        (
            "qwen3-coder",
            "<think>\n",
            "hm <tool_call>\n<function=run>\n<parameter=code>\n\nx = '</function>'\n\n</parameter>\n<parameter=limit>\nx\n</parameter>\n</function>\n</tool_call>",
            "hm||run{\"code\":\"\\nx = '</function>'\\n\",\"limit\":\"x\"}",
        ),
        (
            "lfm2",
            "",
            "<|tool_call_start|>[run(code='it\\'s \\x41', tags=('a', {'k': None}),)]<|tool_call_end|>done",
            "|done|run{\"code\":\"it's A\",\"tags\":[\"a\",{\"k\":null}]}",
        ),
        ("functionary", ">>>", "all\na >>> b\n>>>run\n{\"limit\": 1}", "|a >>> b|run{\"limit\":1}"),
        ("think", "<think>", "a</think>b<think>c</think>d", "a|bcd"),
    ];
    for (format, prompt, text, wanted) in cases {
        assert_eq!(brief(format, prompt, text), wanted, "{format}: {text}");
    }
}

#[test]
fn what_models_get_wrong_shows_no_marker_and_ends_no_call() {
    let cases = [
        // Calls and tags within reasoning are reasoning.
        ("hermes", "<think>", "a <tool_call>{\"name\": \"run\"} b</think>c", "a {\"name\": \"run\"} b|c"),
        ("hermes", "<think>", "a<think>b</think>c</think>d", "ab|cd"),
        // Within strings they are text.
        (
            "hermes",
            "",
            "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"</tool_call><think>\"}}</tool_call>",
            "||run{\"code\":\"</tool_call><think>\"}",
        ),
        (
            "kimi-k2",
            "",
            "<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{\"code\": \"<|tool_call_end|>\"}<|tool_call_end|>",
            "||run{\"code\":\"<|tool_call_end|>\"}",
        ),
        // Calls that are cut or broken do not end, and what is left of them is not content.
        ("hermes", "", "a<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"x", "|a|run{\"code\":\"x?"),
        ("hermes", "", "a<tool_call>{\"name\": run}</tool_call>b", "|ab"),
        ("hermes", "", "a<tool_call>[}</tool_call><tool_call>{\"name\": \"run\"}</tool_call>b", "|ab|run{}"),
        ("glm4", "", "<tool_call>run<arg_key>code</arg_key><arg_value>x", "||run{\"code\":\"x?"),
        ("deepseek", "", "<｜tool▁call▁begin｜>run<｜tool▁sep｜>{\"a\": 01}<｜tool▁call▁end｜>b", "|b|run{\"a\":?"),
        // Half a marker at the end is text; where the vocabulary has the token, its characters are text too.
        ("minicpm5", "", "a <function na", "|a <function na"),
        ("hermes", "", "a </tool_call> b", "|a  b"),
        ("mistral", "", "a [TOOL_CA", "|a [TOOL_CA"),
        ("gemma4", "", "a<|channel>b<channel|>c<|\"|>", "|abc"),
    ];
    for (format, prompt, text, wanted) in cases {
        assert_eq!(brief(format, prompt, text), wanted, "{format}: {text}");
    }
}

#[test]
fn characters_of_a_marker_are_text_where_the_vocabulary_has_the_token() {
    let vocabulary = Vocabulary::new(false);
    let text = "a <tool_call>{\"name\": \"run\"}</tool_call> <think>";
    let bytes: Vec<i32> = text.bytes().map(i32::from).collect();
    let told = read(&mut reply(&vocabulary, "hermes", "", None), &bytes);
    assert_eq!((told.content.as_str(), told.calls.len()), (text, 0));
    let told = read(&mut reply(&Vocabulary::new(true), "hermes", "", None), &bytes);
    assert_eq!((told.content.as_str(), told.calls.len()), ("a<think>", 1));
}

#[test]
fn stop_strings_end_content_alone() {
    let vocabulary = Vocabulary::new(false);
    let options = ReplyOptions { format: Some("hermes"), prompt: "<think>", ..Default::default() };
    let mut reply =
        Reply::new(Arc::clone(&vocabulary.tokenizer), &options, vec![b"STOP".to_vec(), b"ST!".to_vec()]).unwrap();
    for _ in 0..2 {
        let told = read(&mut reply, &vocabulary.tokens("STOP</think>an STOMP, SSTOP and more", || true));
        assert_eq!((told.reasoning.as_str(), told.content.as_str()), ("STOP", "an STOMP, S"));
    }
    let told = read(&mut reply, &vocabulary.tokens("</think>ends with ST", || true));
    assert_eq!(told.content, "ends with ST");
}

/// What replies are made of, beside special tokens.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "'",
    "\\",
    ":",
    ",",
    "=",
    "\n",
    " ",
    "run",
    "{\"name\": \"run\", \"arguments\": {}}",
    "search",
    "name",
    "arguments",
    "code",
    "<function=",
    "<parameter=",
    ">",
    "</parameter>",
    "</function>",
    "<invoke name=\"",
    "\">",
    "</invoke>",
    "\u{fffd}",
    "ü",
    "1",
    "-2.5e3",
    "true",
    "None",
    "\\ud83d",
    "\\u00",
    "call:",
    ">>>",
    "functions.run:0",
    " to=functions.run",
    "analysis",
    "final",
    "think",
    "\" type=\"",
    "string",
];

#[test]
fn anything_at_all_is_read_the_same_however_it_is_cut_and_ends_once() {
    let formats = FORMATS;
    let tools = tools().to_string();
    let vocabularies = [Vocabulary::new(false), Vocabulary::new(true)];
    let mut random = Random(3);
    let mut whole = 0;
    for round in 0..6000 {
        let format = formats[round % formats.len()];
        let mut text = String::new();
        for _ in 0..random.below(40) {
            let part = if random.below(3) == 0 {
                SPECIALS[random.below(SPECIALS.len())]
            } else {
                WORDS[random.below(WORDS.len())]
            };
            text += part;
        }
        let prompt = ["", "<think>", "<|start|>assistant", ">>>"][random.below(4)];
        let vocabulary = &vocabularies[round % 2];
        let told =
            read(&mut reply(vocabulary, format, prompt, Some(tools.as_bytes())), &vocabulary.tokens(&text, || false));
        whole += told.calls.iter().filter(|call| call.whole).count();
        let again = read(
            &mut reply(vocabulary, format, prompt, Some(tools.as_bytes())),
            &vocabulary.tokens(&text, || random.below(2) > 0),
        );
        assert_eq!(again, told, "{format}: {prompt:?} {text:?}");
        // Tokens without any meaning, bytes that are no text among them, and several replies one after the other.
        let mut reply = reply(vocabulary, format, prompt, None);
        for _ in 0..2 {
            let tokens: Vec<i32> = (0..30).map(|_| random.below(vocabulary.tokenizer.vocab_size()) as i32).collect();
            read(&mut reply, &tokens);
        }
    }
    assert!(whole > 20, "{whole} whole calls");
}

#[test]
fn replies_hold_back_no_more_than_they_say() {
    let vocabulary = Vocabulary::new(false);
    for (format, text) in [
        ("glm4", "<tool_call>run<arg_key>nested</arg_key><arg_value>"),
        ("llama3", "{\"x\": \""),
        ("think", ""),
        ("glm4", "<tool_call>"),
        ("harmony", "<|start|>"),
        ("hermes", "<tool_call>{\"arguments\": [\""),
    ] {
        let tools = tools().to_string();
        let mut reply = reply(&vocabulary, format, "", Some(tools.as_bytes()));
        for &token in &vocabulary.tokens(text, || true) {
            reply.push(token).unwrap();
        }
        let mut given = 0;
        for index in 0..200_000 {
            reply.push(i32::from(if format == "think" { b' ' } else { b'a' + (index % 2) as u8 })).unwrap();
            given += reply.events().map(|event| event.text.len()).sum::<usize>();
        }
        let kept = !matches!(format, "harmony" | "hermes") && text != "<tool_call>";
        assert!(!kept || given > 100_000, "{format}: {given} bytes given out");
        reply.flush().unwrap();
    }
}
