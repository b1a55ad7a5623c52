//! Chat templates against what Jinja2 renders, and against strangers who mean harm.

mod text;

use segno::error::Error;
use segno::text::chat::{ChatOptions, render};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Renders with a conversation in the layout of `contexts.json`: messages, flags, and variables.
fn render_context(template: &str, context: &Map<String, Value>, now: i64) -> Result<String, Error> {
    let mut variables = context.clone();
    let messages = variables.remove("messages").unwrap().to_string();
    let prompt = variables.remove("add_generation_prompt").and_then(|flag| flag.as_bool()).unwrap_or(false);
    let tools = variables.remove("tools").map(|tools| tools.to_string());
    let bos = variables.remove("bos_token").and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
    let variables = Value::Object(variables).to_string();
    let options = ChatOptions {
        add_generation_prompt: prompt,
        tools_json: tools.as_deref().map(str::as_bytes),
        vars_json: Some(variables.as_bytes()),
        now,
        bos: &bos,
        eos: "",
    };
    render(template, messages.as_bytes(), &options)
}

/// What is wrong with `found`, when it should be `wanted` as `expected.json` has it.
fn difference(found: Result<String, Error>, wanted: &Value) -> Option<String> {
    match (found, wanted["output"].as_str(), wanted["error"].as_str()) {
        (Ok(found), Some(output), _) if found == output => None,
        (Err(Error::Template(message)), None, Some(error)) => {
            let raised = error.strip_prefix("TemplateError: ");
            (raised.is_some_and(|raised| raised != message)).then(|| format!("{message:?} instead of {error:?}"))
        }
        (found, ..) => {
            let (found, wanted) = (format!("{found:?}"), format!("{:?}", wanted["output"].as_str().ok_or(&wanted["error"])));
            let same = found.chars().zip(wanted.chars()).take_while(|(a, b)| a == b).count();
            let from = |text: &str| text.chars().skip(same.saturating_sub(40)).take(120).collect::<String>();
            Some(format!("at {same}: {}\n   instead of: {}", from(&found), from(&wanted)))
        }
    }
}

/// 2024-07-26 12:00:00 UTC
const NOON: i64 = 1_721_995_200;

#[test]
fn real_templates_render_as_jinja_renders_them() {
    let Some(data) = text::shared_data() else { return };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let contexts: Map<String, Value> = serde_json::from_str(&read(&data.join("chat/contexts.json"))).unwrap();
    let expected: BTreeMap<String, Map<String, Value>> =
        serde_json::from_str(&read(&data.join("chat/expected.json"))).unwrap();
    let (mut cases, mut wrong) = (0, Vec::new());
    for (name, outcomes) in &expected {
        let template = read(&data.join("chat/templates").join(name));
        for (context, wanted) in outcomes {
            cases += 1;
            let found = render_context(&template, contexts[context].as_object().unwrap(), NOON);
            wrong.extend(difference(found, wanted).map(|difference| format!("{name} {context}: {difference}")));
        }
    }
    assert!(cases > 200, "{cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn plain(template: &str) -> Result<String, Error> {
    render(template, json!([{"role": "user", "content": "hi"}]).to_string().as_bytes(), &ChatOptions::default())
}
