//! Renders what a fuzzer writes as a chat template: an error or a text within the limits, never a panic.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use segno::error::Error;
use segno::text::chat::{ChatOptions, render};

const MESSAGES: &[u8] = br#"[{"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi \u00e9\u1f999"}, {"type": "image"}], "weight": -1.5e300},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "a1", "type": "function",
        "function": {"name": "f", "arguments": {"x": 1, "y": [true, null, 170141183460469231731687303715884105727]}}}]},
    {"role": "tool", "tool_call_id": "a1", "content": "<b>\n\t'2' & 3</b>"}, {"role": "user", "content": ""}]"#;
const TOOLS: &[u8] =
    br#"[{"type": "function", "function": {"name": "f", "description": "adds", "parameters": {"type": "object",
    "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}]"#;

fuzz_target!(|template: &str| -> Corpus {
    let options = ChatOptions {
        add_generation_prompt: true,
        tools_json: Some(TOOLS),
        vars_json: Some(b"{\"enable_thinking\": false}"),
        now: 1_721_995_200,
        bos: "<s>",
        eos: "</s>",
        ..ChatOptions::default()
    };
    match render(template, MESSAGES, &options) {
        Ok(_) => Corpus::Keep,
        Err(Error::Template(message)) => {
            assert!(!message.is_empty(), "an error says what is wrong");
            Corpus::Keep
        }
        Err(other) => panic!("{other}"),
    }
});
