//! Grammars of tool calls: what templates render of calls is let through, and whatever is let through is read as calls that meet their schemas.

use crate::common::replies::{Random, Told, Vocabulary, read, tools};
use crate::common::shared_data;
use crate::common::validator;
use crate::replies::{TEMPLATES, message, rendered};
use segno::grammar::{Constraint, Grammar, Next};
use segno::text::reply::{CallOptions, Choice};
use segno::text::{Reply, ReplyOptions};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A vocabulary as replies and as grammars have it.
struct Words {
    words: Vocabulary,
    grammar: Arc<segno::grammar::Vocabulary>,
}

impl Words {
    fn new(few: bool) -> Words {
        let words = Vocabulary::new(few);
        let grammar = Arc::new(segno::grammar::Vocabulary::of(&words.tokenizer).unwrap());
        Words { words, grammar }
    }

    fn walk(&self, reply: ReplyOptions, choice: Choice, parallel: bool) -> Result<Constraint, String> {
        let options = CallOptions { reply, choice, parallel };
        let (grammar, trigger) =
            Grammar::of_calls(&self.grammar, &self.words.tokenizer, &options).map_err(|error| error.to_string())?;
        Ok(Constraint::new(&Arc::new(grammar), trigger).unwrap())
    }
}

/// Whether a token may come next, and moves on by it.
fn takes(walk: &mut Constraint, token: i32, position: usize, ends: bool) -> Result<bool, String> {
    if !matches!(walk.peek().map_err(|error| error.to_string())?, Next::Free) {
        walk.prepare();
        let (fits, may_end) = match walk.peek().map_err(|error| error.to_string())? {
            Next::End | Next::Nothing => (false, true),
            _ => {
                let (mask, may_end) = walk.mask().map_err(|error| error.to_string())?;
                (mask[token as usize / 32] >> (token % 32) & 1 == 1, may_end)
            }
        };
        if !(fits || ends && may_end) {
            return Ok(false);
        }
    }
    walk.advance(token, position, ends).map_err(|error| error.to_string())?;
    Ok(true)
}

/// Arguments in the order of the schema, which grammars keep to.
fn sort(message: &mut Value) {
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let arguments = &mut call["function"]["arguments"];
        let is_text = arguments.is_string();
        let given: Value = arguments.as_str().map_or(arguments.clone(), |text| serde_json::from_str(text).unwrap());
        let order = ["query", "limit", "exact", "tags", "nested", "code"];
        let sorted: Map<String, Value> =
            order.iter().filter_map(|key| Some((key.to_string(), given.get(*key)?.clone()))).collect();
        *arguments = if is_text { Value::Object(sorted).to_string().into() } else { sorted.into() };
    }
}

#[test]
fn what_templates_render_is_let_through() {
    let Some(data) = shared_data().map(|data| data.join("chat/templates")) else { return };
    let tools = tools().to_string().into_bytes();
    let vocabularies = [Words::new(false), Words::new(true)];
    let (mut random, mut wrong, mut passed) = (Random(1), Vec::new(), 0);
    for (name, format, has_reasoning, has_content, most) in TEMPLATES {
        let template = std::fs::read_to_string(data.join(format!("{name}.jinja"))).unwrap();
        for count in 1..=most {
            for (choice, content) in
                [(Choice::Auto, has_content), (Choice::Required, false), (Choice::Named("search"), false)]
            {
                if count == 2 && choice == Choice::Named("search") {
                    continue;
                }
                let mut message = message(format, has_reasoning, content, count);
                sort(&mut message);
                let (prompt, text) = rendered(&template, &message, &tools);
                for words in &vocabularies {
                    let reply = ReplyOptions {
                        template: &template,
                        prompt: &prompt,
                        tools_json: Some(&tools),
                        ..Default::default()
                    };
                    let tokens = words.words.tokens(&text, || random.below(3) > 0);
                    let mut walk = match words.walk(reply, choice, count > 1) {
                        Ok(walk) => walk,
                        Err(error) => {
                            wrong.push(format!("{name} {choice:?}: {error}"));
                            continue;
                        }
                    };
                    for (position, &token) in tokens.iter().enumerate() {
                        let ends = words.words.tokenizer.is_eog(token);
                        let fits = takes(&mut walk, token, position, ends);
                        if fits != Ok(true) {
                            let before = words.words.tokenizer.decode(&tokens[..position], true).unwrap();
                            let before = String::from_utf8_lossy(&before).into_owned();
                            let next = words.words.tokenizer.name(token).unwrap();
                            let special = words.words.tokenizer.is_special(tokens[0]);
                            wrong.push(format!(
                                "{name} {choice:?} {count} {special}: {fits:?} {before:?} then {next:?}"
                            ));
                            break;
                        }
                        if ends {
                            passed += 1;
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, {passed} passed:\n{}", wrong.len(), wrong.join("\n"));
    assert!(passed > 150, "{passed} replies");
}

/// Formats with calls, and what a prompt may end with.
const FORMATS: [(&str, &[&str]); 20] = [
    ("harmony", &["<|start|>assistant", "<|start|>assistant<|channel|>analysis<|message|>"]),
    ("gemma4", &["", "<|channel>thought\n", "<|channel>thought\n<channel|>"]),
    ("dsml", &["", "<think>", "</think>"]),
    ("deepseek", &["", "<think>", "</think>"]),
    ("kimi-k2", &["", "<think>"]),
    ("kimi-k3", &["<|open|>think<|sep|>", ""]),
    ("minimax-m2", &["<think>\n", ""]),
    ("hunyuan", &["<think:opensource>", "</think:opensource>", ""]),
    ("glm4", &["<think>", "</think>", ""]),
    ("qwen3-coder", &["", "<think>\n"]),
    ("minicpm5", &["", "<think>\n", "</think>\n"]),
    ("lfm2", &["", "<think>"]),
    ("cohere", &["<|START_THINKING|>", ""]),
    ("gigachat", &[""]),
    ("functionary", &[">>>", ""]),
    ("mistral", &["", "[THINK]"]),
    ("nemotron", &["<think>\n", ""]),
    ("firefunction", &[""]),
    ("hermes", &["", "<think>\n", "</think>\n"]),
    ("llama3", &[""]),
];

/// Texts that end what a walk would not find the end of, or that begin calls.
const ENDINGS: &[&str] = &[
    "\"",
    "}",
    "]",
    "'",
    ">",
    "\n</parameter>",
    "</parameter>",
    "</param>",
    "]]></param>",
    "</arg_value>",
    "</arg_value:opensource>",
    "</｜DSML｜parameter>",
    "<|close|>argument<|sep|>",
    "<|\"|>",
    "</think>",
    "</think:opensource>",
    "<|close|>think<|sep|>",
    "<channel|>",
    "[/THINK]",
    "<|END_THINKING|>",
    "<|end|>",
    "<tool_call>",
    "<|open|>tools<|sep|>",
    "<｜DSML｜tool_calls>",
    "<minimax:tool_call>",
    "<tool_calls:opensource>",
    "<function name=\"",
    "<|tool_call>",
    "functools[",
    "<TOOLCALL>",
    ">>>",
    "all\n",
    "{\"name\": \"",
];

/// Lists of tools with whatever schemas say.
fn tool_lists() -> Vec<Value> {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": "It works.", "parameters": parameters}});
    let leaf = json!({"type": "object", "properties": {"kind": {"const": "leaf"}, "next": {"$ref": "#/$defs/leaf"}},
        "required": ["kind"], "additionalProperties": false});
    vec![
        json!([{"type": "function", "function": {"name": "ping"}}]),
        json!([
            tool("search", json!({"type": "object", "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": 20},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                "score": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
                "exact": {"type": "boolean"},
                "order": {"enum": ["up", "down", "it's \"so\""]},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b c", "ü"]}, "minItems": 1, "maxItems": 3},
            }, "required": ["query", "limit"]})),
            {"name": "ping", "parameters": {"type": "object", "properties": {}}},
        ]),
        json!([
            tool(
                "wide",
                json!({"type": "object", "properties": {
                "maybe": {"type": ["string", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[a-z]+-\\d{2}$"}]},
                "day": {"type": "string", "format": "date"},
                "mixed": {"enum": ["one", 2, null, true]},
                "count": {"type": "integer", "multipleOf": 5},
                "deep": {"type": "object", "properties": {
                    "list": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "maxItems": 2},
                    "text": {"type": "string"}, "on": {"type": "boolean"}},
                    "required": ["list"], "additionalProperties": false},
            }, "required": ["either", "deep", "mixed"], "additionalProperties": false})
            ),
            tool(
                "tree",
                json!({"type": "object", "properties": {"root": {"$ref": "#/$defs/leaf"}}, "required": ["root"],
                "$defs": {"leaf": leaf}})
            ),
        ]),
        json!([tool(
            "météo_東京",
            json!({"type": "object",
            "properties": {"größe": {"type": "string", "pattern": "x"}, "любой": {}}, "required": ["größe"]})
        )]),
        json!([tool(
            "pick",
            json!({"type": "object", "properties": {
                "one": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
                "inner": {"type": "array", "maxItems": 2, "items": {"oneOf": [
                    {"type": "object", "properties": {"kind": {"const": "dot"}, "x": {"type": "integer"}}, "required": ["kind"],
                        "additionalProperties": false},
                    {"type": "object", "properties": {"kind": {"enum": ["line", "arc"]}}, "required": ["kind"],
                        "additionalProperties": false},
                    {"enum": [1, "none", null]}]}}}, "required": ["one", "inner"], "additionalProperties": false})
        )]),
        json!([tool(
            "open",
            json!({"type": "object", "properties": {"a": {"type": "object"}},
            "additionalProperties": {"type": "integer"}})
        )]),
    ]
}

/// A walk that draws tokens, and now and then goes for an end. Nothing where it found none.
fn drawn(words: &Words, walk: &mut Constraint, random: &mut Random) -> Result<Option<Vec<i32>>, String> {
    let (mut tokens, mut goal): (Vec<i32>, Vec<i32>) = (Vec::new(), Vec::new());
    while tokens.len() < 1500 {
        let next = walk.peek().map_err(|error| error.to_string())?;
        let token = match next {
            Next::Free => return Err("it is free".into()),
            Next::End | Next::Nothing => return Ok(Some(tokens)),
            Next::Forced(token) => token,
            Next::Choice => {
                walk.prepare();
                let (mask, may_end) = walk.mask().map_err(|error| error.to_string())?;
                let allowed = |token: &i32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
                if may_end && random.below(4) == 0 {
                    return Ok(Some(tokens));
                }
                if goal.is_empty() && random.below(6) == 0 {
                    let ends: Vec<Vec<i32>> = ENDINGS
                        .iter()
                        .map(|text| words.words.tokens(text, || false))
                        .filter(|end| allowed(&end[0]))
                        .collect();
                    if !ends.is_empty() {
                        goal = ends[random.below(ends.len())].clone();
                    }
                }
                if goal.first().is_some_and(allowed) {
                    goal.remove(0)
                } else {
                    goal.clear();
                    let all: Vec<i32> =
                        (0..words.words.tokenizer.vocab_size() as i32).filter(|token| allowed(token)).collect();
                    // A number ends at some time, and has no exponent, since others read no number of any size.
                    let is_digit = |token: &i32| (48..58).contains(token);
                    let is_long = tokens.len() >= 8 && tokens[tokens.len() - 8..].iter().all(is_digit);
                    let grows = |token: &i32| is_long && is_digit(token) || matches!(token, 69 | 101);
                    let others: Vec<i32> = all.iter().copied().filter(|token| !grows(token)).collect();
                    let all = if others.is_empty() || !tokens.last().is_some_and(is_digit) { all } else { others };
                    if all.is_empty() {
                        return if may_end { Ok(Some(tokens)) } else { Err(format!("nothing may follow {tokens:?}")) };
                    }
                    all[random.below(all.len())]
                }
            }
        };
        let ends = words.words.tokenizer.is_eog(token);
        walk.advance(token, tokens.len(), ends).map_err(|error| error.to_string())?;
        tokens.push(token);
        if ends {
            return Ok(Some(tokens));
        }
    }
    Ok(None)
}

/// What a reply that a grammar let through must hold.
fn check_calls(told: &Told, choice: Choice, parallel: bool) -> Result<(), String> {
    let count = told.calls.len();
    let fits = match choice {
        Choice::Auto => parallel || count <= 1,
        Choice::Required => count >= 1 && (parallel || count == 1),
        Choice::None => count == 0,
        Choice::Named(name) => count >= 1 && told.calls.iter().all(|call| call.name == name),
    };
    if !fits || told.calls.iter().any(|call| !call.whole) {
        return Err(format!("{count} calls"));
    }
    Ok(())
}

#[test]
fn what_is_let_through_is_read_as_calls_that_meet_their_schemas() {
    let vocabularies = [Words::new(false), Words::new(true)];
    let (mut random, mut wrong, mut cases) = (Random(5), Vec::new(), Vec::new());
    for (format, prompts) in FORMATS {
        let (mut ended, mut called) = (0, 0);
        for (tools, words) in tool_lists().iter().flat_map(|tools| vocabularies.iter().map(move |words| (tools, words)))
        {
            let json = tools.to_string().into_bytes();
            let of = |tool: &Value| tool.get("function").unwrap_or(tool).clone();
            let first = of(&tools[0])["name"].as_str().unwrap().to_string();
            for choice in [Choice::Auto, Choice::Required, Choice::Named(&first), Choice::None] {
                let (prompt, parallel) = (prompts[random.below(prompts.len())], random.below(2) == 0);
                let reply =
                    ReplyOptions { format: Some(format), prompt, tools_json: Some(&json), ..Default::default() };
                let options = CallOptions { reply, choice, parallel };
                let made = Grammar::of_calls(&words.grammar, &words.words.tokenizer, &options);
                let (grammar, trigger) = match made {
                    Ok((grammar, trigger)) => (Arc::new(grammar), trigger),
                    Err(error) => {
                        wrong.push(format!("{format} {first} {choice:?}: {error}"));
                        continue;
                    }
                };
                for _ in 0..6 {
                    let mut walk = Constraint::new(&grammar, None).unwrap();
                    let told = match drawn(words, &mut walk, &mut random) {
                        Ok(None) => continue,
                        Err(error) => Err(error),
                        Ok(Some(mut tokens)) => {
                            tokens.splice(0..0, trigger);
                            let mut reader =
                                Reply::new(Arc::clone(&words.words.tokenizer), &reply, Vec::new()).unwrap();
                            let told = read(&mut reader, &tokens);
                            let text = words.words.tokenizer.decode(&tokens, true).unwrap();
                            let text = String::from_utf8_lossy(&text).into_owned();
                            check_calls(&told, choice, parallel)
                                .map(|()| told.clone())
                                .map_err(|e| format!("{e}: {text:?} {told:?}"))
                        }
                    };
                    match told {
                        Err(error) => wrong.push(format!("{format} {prompt:?} {first} {choice:?} {parallel}: {error}")),
                        Ok(told) => {
                            ended += 1;
                            called += usize::from(!told.calls.is_empty());
                            for call in &told.calls {
                                let tool =
                                    tools.as_array().unwrap().iter().map(of).find(|tool| tool["name"] == *call.name);
                                let Some(tool) = tool else {
                                    wrong.push(format!("{format}: there is no tool {}", call.name));
                                    continue;
                                };
                                let schema = tool.get("parameters").cloned().unwrap_or(json!({"maxProperties": 0}));
                                // As it is: numbers of any size.
                                cases.push(format!("{{\"schema\": {schema}, \"value\": {}}}", call.arguments));
                            }
                        }
                    }
                }
            }
        }
        println!("{format}: {ended} walks ended, {called} with calls");
        if ended < 120 || called < 40 {
            wrong.push(format!("{format}: {ended} walks ended, {called} with calls"));
        }
    }
    println!("{} calls", cases.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    validator::check(&cases);
}

#[test]
fn alternatives_of_one_of_must_leave_no_value_to_two() {
    let words = Words::new(false);
    let object = |name: &str, schema: Value| {
        json!({"type": "object", "properties": {name: schema, "x": {"type": "integer"}}, "required": [name],
            "additionalProperties": false})
    };
    let made = |format: &str, list: &Value| {
        let parameters = json!({"type": "object", "properties": {"v": {"type": "array", "items": {"oneOf": list}}}});
        let json = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]).to_string();
        let reply = ReplyOptions { format: Some(format), tools_json: Some(json.as_bytes()), ..ReplyOptions::default() };
        words.walk(reply, Choice::Required, true).map(|_| ())
    };
    for (fits, list) in [
        (true, json!([{"type": "string"}, {"type": ["integer", "null"]}])),
        (true, json!([{"enum": [1, "a"]}, {"enum": [2, "b"]}, {"type": "boolean"}])),
        (true, json!([object("a", json!({"const": "p"})), object("a", json!({"const": "q"}))])),
        (true, json!([object("a", json!({"type": "string"})), object("b", json!({"type": "string"}))])),
        (true, json!([{"type": "number", "maximum": 1}, {"type": "integer", "minimum": 2}])),
        (
            true,
            json!([{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "array", "items": {"type": "integer"}}]),
        ),
        (false, json!([{"type": "integer"}, {"type": "number"}])),
        (false, json!([{"enum": [1, "a"]}, {"enum": [1.0, "b"]}])),
        (false, json!([{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^a"}])),
        (false, json!([object("a", json!({"const": "p"})), object("a", json!({"enum": ["p", "q"]}))])),
        (false, json!([{"type": "number", "maximum": 2}, {"type": "integer", "minimum": 2}])),
        (false, json!([{"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}])),
    ] {
        for format in ["lfm2", "gemma4"] {
            match made(format, &list) {
                Ok(()) => assert!(fits, "{format} {list}"),
                Err(error) => {
                    assert!(!fits && error.contains("the keyword `oneOf` cannot be watched"), "{list}: {error}")
                }
            }
        }
    }
    // Arguments in tags are texts or JSON: what may be a text is told apart here, the rest by the engine.
    let tagged = |list: Value| {
        let parameters = json!({"type": "object", "properties": {"v": {"oneOf": list}}});
        let json = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]).to_string();
        let reply = ReplyOptions { format: Some("glm4"), tools_json: Some(json.as_bytes()), ..ReplyOptions::default() };
        words.walk(reply, Choice::Required, true).map(|_| ())
    };
    tagged(json!([{"type": "string", "maxLength": 4}, {"type": "integer"}])).unwrap();
    let error = tagged(json!([{"type": "string", "maxLength": 4}, {"type": ["string", "null"]}])).unwrap_err();
    assert!(error.contains("the keyword `oneOf` cannot be watched"), "{error}");
}

#[test]
fn days_of_calls_are_of_the_calendar_in_every_notation() {
    let words = Words::new(false);
    let day = json!({"type": "string", "format": "date"});
    let parameters = json!({"type": "object", "properties": {"default": day}, "required": ["default"]});
    let json = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]).to_string();
    for (format, before, behind) in [
        ("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"default\": \"", "\""),
        ("lfm2", "<|tool_call_start|>[f(default=\"", "\""),
        ("glm4", "<tool_call>f\n<arg_key>default</arg_key>\n<arg_value>", "</arg_value>"),
    ] {
        let reply = ReplyOptions { format: Some(format), tools_json: Some(json.as_bytes()), ..ReplyOptions::default() };
        let is_let_through = |day: &str| {
            let mut walk = words.walk(reply, Choice::Required, false).unwrap();
            let tokens = words.words.tokens(&format!("{before}{day}{behind}"), || false);
            let mut tokens = tokens.iter().enumerate();
            tokens.all(|(position, &token)| takes(&mut walk, token, position, false).unwrap())
        };
        assert!(is_let_through("2024-02-29") && is_let_through("2023-12-31"), "{format}");
        assert!(!is_let_through("2023-02-29") && !is_let_through("2024-06-31"), "{format}");
    }
}
