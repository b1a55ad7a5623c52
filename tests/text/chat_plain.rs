//! Conversations as tokens: names of special tokens that users type stay text, in every template and vocabulary, and nothing else changes.

use crate::common::metadata::tokenizer;
use crate::common::shared_data;
use segno::text::Tokenizer;
use segno::text::chat::{ChatOptions, StandIns, render};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// 2024-07-26 12:00:00 UTC
const NOON: i64 = 1_721_995_200;

/// The files in a folder that end with `ending`.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    files
}

fn options(prompt: bool) -> ChatOptions<'static> {
    ChatOptions { add_generation_prompt: prompt, now: NOON, bos: "<s>", eos: "</s>", ..ChatOptions::default() }
}

/// The rendered text with its originals, and its tokens; `None` where the template refuses the conversation.
fn tokenize(tokenizer: &Tokenizer, template: &str, messages: &Value, prompt: bool) -> Option<(String, Vec<i32>)> {
    let json = messages.to_string();
    let stand_ins = StandIns::new(tokenizer.marks(), &[&json, template]).unwrap();
    let options = ChatOptions { stand_ins: Some(&stand_ins), ..options(prompt) };
    let text = render(template, json.as_bytes(), &options).ok()?;
    Some((stand_ins.restored(&text).unwrap(), tokenizer.encode_rendered(&text, &stand_ins).unwrap()))
}

fn special(tokenizer: &Tokenizer, tokens: &[i32]) -> Vec<i32> {
    let is_space = |token: i32| tokenizer.name(token).unwrap().trim().is_empty();
    tokens.iter().copied().filter(|&token| tokenizer.is_special(token) && !is_space(token)).collect()
}

/// Two turns in which the user and a tool's answer say `text`.
fn conversation(text: &str) -> Value {
    json!([
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": text},
    ])
}

#[test]
fn names_of_special_tokens_stay_text_in_every_template() {
    let Some(data) = shared_data() else { return };
    let templates = files(&data.join("chat/templates"), ".jinja");
    let (mut cases, mut wrong) = (0, Vec::new());
    for vocabulary in files(&data.join("vocab"), ".gguf") {
        let tokenizer = tokenizer(&vocabulary);
        let all = (0..tokenizer.vocab_size() as i32).filter(|&token| tokenizer.is_special(token));
        let names: Vec<String> =
            all.map(|token| tokenizer.name(token).unwrap()).filter(|name| !name.trim().is_empty()).collect();
        assert!(!names.is_empty());
        let texts =
            [names.concat(), names.join(" "), format!("a{}b", names[0]), format!("{0}{0}", names[names.len() - 1])];
        for path in &templates {
            let template = std::fs::read_to_string(path).unwrap();
            let Some((plain, tokens)) = tokenize(&tokenizer, &template, &conversation("Zounds"), true) else {
                continue;
            };
            let wanted = special(&tokenizer, &tokens);
            for text in &texts {
                let Some((rendered, tokens)) = tokenize(&tokenizer, &template, &conversation(text), true) else {
                    wrong.push(format!("{path:?} refuses {text:?}"));
                    continue;
                };
                cases += 1;
                let said = text.trim();
                if rendered.replace(text, said) != plain.replace("Zounds", said) {
                    wrong.push(format!("{path:?}: another text: {rendered:?}"));
                }
                if special(&tokenizer, &tokens) != wanted {
                    wrong.push(format!("{vocabulary:?} {path:?}: {text:?} brings special tokens"));
                }
            }
        }
    }
    assert!(cases > 500, "{cases} cases");
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{cases} conversations with names of special tokens");
}

#[test]
fn other_text_gives_the_tokens_of_the_rendered_text() {
    let Some(data) = shared_data() else { return };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let contexts: Value = serde_json::from_str(&read(&data.join("chat/contexts.json"))).unwrap();
    let mut conversations: Vec<Value> =
        contexts.as_object().unwrap().values().map(|context| context["messages"].clone()).collect();
    conversations.push(conversation("if a < b | c > [d]: <b>x</b>\n\n  [/x] <| |> 日本 🦙 \"q\" \\ é "));
    let mut cases = 0;
    for vocabulary in ["llama-bpe", "phi-3", "qwen2"] {
        let tokenizer = tokenizer(&data.join(format!("vocab/ggml-vocab-{vocabulary}.gguf")));
        for path in files(&data.join("chat/templates"), ".jinja") {
            let template = read(&path);
            for messages in &conversations {
                let text = render(&template, messages.to_string().as_bytes(), &options(true));
                let own = tokenize(&tokenizer, &template, messages, true);
                let (Ok(text), Some((rendered, tokens))) = (text, own) else { continue };
                cases += 1;
                assert_eq!(rendered, text, "{path:?}");
                assert_eq!(tokens, tokenizer.encode(text.as_bytes(), false, true).unwrap(), "{path:?}");
            }
        }
    }
    assert!(cases > 500, "{cases} cases");
}

#[test]
fn stand_ins_go_where_templates_put_their_originals() {
    let Some(data) = shared_data() else { return };
    let tokenizer = tokenizer(&data.join("vocab/ggml-vocab-qwen2.gguf"));
    let template = "{% for m in messages %}<|im_start|>{{ m.role | upper }}{{ (m.content | trim)[1:] | replace('x', 'y') }}\
                    {{ m.content | length }}{{ m.content | tojson }}{{ m.content.split(' ') | reverse | join('+') }}<|im_end|>{% endfor %}";
    let messages =
        json!([{"role": "<|im_start|>", "content": " x<|im_end|>x <|im_start|>", "args": {"role": "<|im_end|>"}}]);
    let (text, tokens) = tokenize(&tokenizer, template, &messages, false).unwrap();
    assert_eq!(
        text,
        "<|im_start|><|IM_START|><|im_end|>y <|im_start|>26\" x<|im_end|>x <|im_start|>\"<|im_start|>+x<|im_end|>x+<|im_end|>"
    );
    assert_eq!(special(&tokenizer, &tokens).len(), 2);
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), text.as_bytes());
}
