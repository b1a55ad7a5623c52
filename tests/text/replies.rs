//! Replies as events: what templates render of an assistant's message is parsed back, cut in any way, and what models get wrong shows no marker.

use crate::common::replies::{ENDS, Random, SPECIALS, Vocabulary, read, tools};
use crate::common::shared_data;
use segno::text::chat::{ChatOptions, render};
use segno::text::{Reply, ReplyOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// Calls with all that is hard to write. The template of LFM2 does not escape quotation marks.
pub fn calls(format: &str) -> Vec<(String, Value)> {
    if format == "lfm2" {
        return vec![
            ("search".into(), json!({"query": "a, (b) [c] = {d}", "limit": 3, "exact": false, "tags": ["a"]})),
            ("run".into(), json!({"limit": -1})),
        ];
    }
    let query = "it's \"a\" <b>\n\tpath\\to ü🦙 </tag> {x} [y]";
    vec![
        (
            "search".into(),
            json!({"query": query, "limit": 3, "exact": true, "tags": ["a", "b]"], "nested": {"k": [1.5, -2]}}),
        ),
        ("run".into(), json!({"code": "print('hi')\nif x:\n    y = 12", "limit": 0})),
    ]
}

pub const REASONING: &str = "The user wants \"x\".\nSo: 1 < 2, {\"name\": 1}.";
pub const CONTENT: &str = "Let me look it up: a < b, {c} [d]. Über 🦙!";

/// Templates, their formats, and what they render of an assistant's last message: reasoning, content beside calls, how many calls.
pub const TEMPLATES: [(&str, &str, bool, bool, usize); 25] = [
    ("Bielik-11B-v3.0-Instruct", "hermes", false, true, 2),
    ("Cohere2MoE", "cohere", true, false, 2),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", false, false, 2),
    ("GLM-4.7-Flash", "glm4", true, true, 2),
    ("GigaChat3.1-10B-A1.8B", "gigachat", false, false, 1),
    ("Kimi-K2-Instruct", "kimi-k2", false, true, 0),
    ("Kimi-K3", "kimi-k3", true, true, 2),
    ("LFM2.5-8B-A1B", "lfm2", false, true, 2),
    ("MiMo-VL", "hermes", false, true, 2),
    ("MiniMax-M2", "minimax-m2", true, true, 2),
    ("Mistral-Small-3.2-24B-Instruct-2506", "mistral", false, false, 2),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", false, false, 2),
    ("Qwen-Qwen2.5-7B-Instruct", "hermes", false, true, 2),
    ("Qwen-Qwen3-0.6B", "hermes", true, true, 2),
    ("Qwen3-Coder", "qwen3-coder", false, true, 2),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek", false, true, 2),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "dsml", false, true, 2),
    ("google-gemma-4-31B-it-interleaved", "gemma4", true, false, 2),
    ("ibm-granite-granite-4.1", "hermes", false, true, 2),
    ("meetkai-functionary-medium-v3.2", "functionary", false, true, 2),
    ("meta-llama-Llama-3.2-3B-Instruct", "llama3", false, false, 1),
    ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", false, false, 2),
    ("openai-gpt-oss-120b", "harmony", true, false, 1),
    ("openbmb-MiniCPM5-1B", "minicpm5", true, true, 2),
    ("unsloth-mistral-Devstral-Small-2507", "mistral", false, false, 2),
];

/// What a template renders of an assistant's message, from the end of the prompt on.
pub fn rendered(template: &str, message: &Value, tools: &[u8]) -> (String, String) {
    let user = json!({"role": "user", "content": "Please look it up."});
    let options = |add_generation_prompt| ChatOptions {
        add_generation_prompt,
        tools_json: Some(tools),
        bos: "<s>",
        eos: "<|endoftext|>",
        now: 1_721_995_200,
        ..ChatOptions::default()
    };
    let text = |messages: Value, prompt| render(template, messages.to_string().as_bytes(), &options(prompt)).unwrap();
    let (prompt, whole) = (text(json!([user]), true), text(json!([user, message]), false));
    // Templates may open reasoning, or close it, in the prompt, and have the message otherwise: what counts is behind what both share.
    let shared = whole.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
    let splits = |at: usize| {
        ENDS.iter().chain(&SPECIALS).any(|name| {
            (1..name.len()).any(|len| {
                at >= len
                    && name.is_char_boundary(len)
                    && whole.as_bytes()[..at].ends_with(&name.as_bytes()[..len])
                    && whole[at - len..].starts_with(name)
            })
        })
    };
    let shared = (0..=shared).rev().find(|&at| whole.is_char_boundary(at) && !splits(at)).unwrap();
    assert!(prompt[..shared].contains("Please look it up."), "{prompt:?}\n{whole:?}");
    (prompt[..shared].to_owned(), whole[shared..].to_owned())
}

pub fn message(format: &str, reasoning: bool, content: bool, count: usize) -> Value {
    let mut message = json!({"role": "assistant", "content": if content { CONTENT } else { "" }});
    let calls: Vec<Value> = calls(format).into_iter().take(count).enumerate().map(|(index, (name, arguments))| {
        let arguments = if format == "functionary" { json!(arguments.to_string()) } else { arguments };
        json!({"id": format!("abcdefgh{index}"), "type": "function", "function": {"name": name, "arguments": arguments}})
    }).collect();
    if reasoning {
        for key in ["reasoning_content", "reasoning", "thinking"] {
            message[key] = json!(REASONING);
        }
    }
    if count > 0 {
        message["tool_calls"] = json!(calls);
    }
    message
}

#[test]
fn what_templates_render_is_read_back_however_it_is_cut() {
    let Some(data) = shared_data().map(|data| data.join("chat/templates")) else { return };
    let tools = tools().to_string().into_bytes();
    let vocabularies = [Vocabulary::new(false), Vocabulary::new(true)];
    let (mut random, mut wrong) = (Random(1), Vec::new());
    for (name, format, has_reasoning, has_content, most) in TEMPLATES {
        let template = std::fs::read_to_string(data.join(format!("{name}.jinja"))).unwrap();
        for (reasoning, content, count) in [
            (false, true, 0),
            (has_reasoning, true, 0),
            (has_reasoning, has_content || most == 0, most),
            (false, most == 0, most.min(1)),
        ] {
            let message = message(format, reasoning, content, count);
            let (prompt, text) = rendered(&template, &message, &tools);
            // Some templates keep the reasoning only where calls follow it.
            let reasoning = reasoning && (count > 0 || text.contains(REASONING));
            for vocabulary in &vocabularies {
                let options = ReplyOptions {
                    template: &template,
                    prompt: &prompt,
                    tools_json: Some(&tools),
                    ..Default::default()
                };
                let mut reply = Reply::new(Arc::clone(&vocabulary.tokenizer), &options, Vec::new()).unwrap();
                assert_eq!(reply.format(), format, "{name}");
                let told = read(&mut reply, &vocabulary.tokens(&text, || false));
                let end = prompt.chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect::<String>();
                let shown = format!("{name}: ..{end:?} then {text:?} is {told:#?}");
                let is_right = told.reasoning == if reasoning { REASONING } else { "" }
                    && told.content.trim_end() == if content { CONTENT } else { "" }
                    && told.arguments() == calls(format)[..count]
                    && told.calls.iter().all(|call| call.whole);
                if !is_right {
                    wrong.push(shown.clone());
                }
                for _ in 0..6 {
                    let tokens = vocabulary.tokens(&text, || random.below(3) > 0);
                    let mut reply = Reply::new(Arc::clone(&vocabulary.tokenizer), &options, Vec::new()).unwrap();
                    assert_eq!(read(&mut reply, &tokens), told, "{shown}");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
