//! Messages of a conversation, one by one: their JSON, and the little that a conversation must know of them.

use super::budget::Budget;
use super::json;
use super::key::Key;
use super::value::Value;
use crate::error::{Error, Result, copied_text, grow_text, push};
use crate::text::reply::escape_all;

/// What the memory of messages is for.
const MESSAGES: &str = "the messages of a conversation";

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host: `system` and `developer`.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool, or whoever else the template knows.
    Other,
}

impl Role {
    fn named(name: &str) -> Role {
        match name {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => Role::Other,
        }
    }
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// An object of JSON.
    pub json: String,
    /// Who says it.
    pub role: Role,
    /// One more than the highest number in an id of its calls that is made as `segno_reply` makes them; 0 if there is none.
    pub calls: usize,
}

impl Message {
    /// The messages of `json`, which is one object or an array of them.
    ///
    /// What is no JSON, no object, or has no text as its role is [`Error::InvalidArgument`].
    pub fn read(json: &[u8]) -> Result<Vec<Message>> {
        let budget = Budget::of_input();
        let mut messages = Vec::new();
        json::read_each(&budget, json, "messages", &mut |text, value| {
            let number = messages.len();
            let role = member(&budget, value, "role")?;
            let Some(role) = role.as_ref().and_then(Value::as_str) else {
                let found = if matches!(value, Value::Map(_)) { "has no text as its role" } else { "is no object" };
                return Err(Error::InvalidArgument(format!("message {number} {found}")));
            };
            let (role, calls) = (Role::named(role), calls(&budget, value)?);
            push(&mut messages, Message { json: copied_text(text, MESSAGES)?, role, calls }, MESSAGES)
        })?;
        Ok(messages)
    }

    /// The message in which `role` says `text`.
    pub fn of_text(role: &str, text: &str) -> Result<Message> {
        let mut json = String::new();
        grow_text(&mut json, role.len() + text.len() + 32, MESSAGES)?;
        json.push_str("{\"role\":\"");
        escape_all(role, &mut json)?;
        json.push_str("\",\"content\":\"");
        escape_all(text, &mut json)?;
        grow_text(&mut json, 2, MESSAGES)?;
        json.push_str("\"}");
        Ok(Message { json, role: Role::named(role), calls: 0 })
    }

    /// A copy.
    pub fn copied(&self) -> Result<Message> {
        Ok(Message { json: copied_text(&self.json, MESSAGES)?, ..*self })
    }
}

/// Messages as a JSON array.
pub fn array<'m>(messages: impl Iterator<Item = &'m Message>) -> Result<String> {
    let mut json = String::new();
    grow_text(&mut json, 2, MESSAGES)?;
    json.push('[');
    for message in messages {
        grow_text(&mut json, message.json.len() + 2, MESSAGES)?;
        json.push_str(if json.len() > 1 { "," } else { "" });
        json.push_str(&message.json);
    }
    json.push(']');
    Ok(json)
}

/// Whether `text` is a JSON object.
pub fn is_object(text: &str) -> bool {
    matches!(json::read(&Budget::of_input(), text.as_bytes(), "text"), Ok(Value::Map(_)))
}

/// A member of an object; nothing where there is none, or of anything else.
fn member(budget: &Budget, value: &Value, name: &str) -> Result<Option<Value>> {
    let Value::Map(entries) = value else { return Ok(None) };
    Ok(entries.get(&Key::text(budget, name)?).cloned())
}

fn calls(budget: &Budget, message: &Value) -> Result<usize> {
    let mut calls = 0;
    if let Some(Value::List(items)) = member(budget, message, "tool_calls")? {
        for item in items.iter() {
            let id = member(budget, item, "id")?;
            let digits = id.as_ref().and_then(Value::as_str).and_then(|id| id.strip_prefix("call"));
            let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            calls =
                calls.max(digits.and_then(|digits| digits.parse::<usize>().ok()).map_or(0, |n| n.saturating_add(1)));
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<Message>> {
        Message::read(json.as_bytes())
    }

    #[test]
    fn messages_keep_their_json_and_tell_who_says_them() {
        let json =
            r#" [ {"role" : "developer", "content": "a, [b]"},{"content":"\"}","role":"user"} , {"role":"tool"} ] "#;
        let messages = read(json).unwrap();
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Other]);
        assert_eq!(messages[0].json, r#"{"role" : "developer", "content": "a, [b]"}"#);
        assert_eq!(messages[1].json, r#"{"content":"\"}","role":"user"}"#);
        assert_eq!(read(&array(messages.iter()).unwrap()).unwrap().len(), 3);
        assert_eq!(read(r#"{"role":"assistant"}"#).unwrap()[0].role, Role::Assistant);
        assert!(read("[]").unwrap().is_empty());
    }

    #[test]
    fn the_numbers_of_calls_are_read_from_their_ids() {
        let calls = |ids: &str| read(&format!(r#"{{"role":"assistant","tool_calls":[{ids}]}}"#)).unwrap()[0].calls;
        assert_eq!(calls(r#"{"id":"call00004"},{"id":"call00002"}"#), 5);
        assert_eq!(calls(r#"{"id":"callback7"},{"id":7},{},3,{"id":"call99999999999999999999999"}"#), 0);
    }

    #[test]
    fn texts_are_written_as_json() {
        let message = Message::of_text("user", "a\"\\\n\u{1}é</s>").unwrap();
        let value: serde_json::Value = serde_json::from_str(&message.json).unwrap();
        assert_eq!(value, serde_json::json!({"role": "user", "content": "a\"\\\n\u{1}é</s>"}));
        assert_eq!(message.role, Role::User);
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_number() {
        for (json, wanted) in [
            ("[{\"role\":\"user\"},3]", "message 1 is no object"),
            ("{\"content\":\"x\"}", "message 0 has no text as its role"),
            ("{\"role\":null}", "message 0 has no text as its role"),
            ("7", "message 0 is no object"),
            ("[{]", "messages are not json: expected a name in double quotes, found ']' at line 1 column 3"),
        ] {
            assert_eq!(read(json).unwrap_err().to_string(), wanted);
        }
        assert!(Message::read(b"{\"role\":\"\xff\"}").is_err());
    }
}
