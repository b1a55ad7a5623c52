//! The message of the assistant that the events of a reply make up.

use super::{Event, Kind, REPLY, escape_all, write};
use crate::error::{Result, push};
use crate::text::chat::message::is_object;

/// A message that is being written.
#[derive(Debug, Default)]
pub struct Draft {
    content: String,
    reasoning: String,
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
struct Call {
    name: String,
    id: String,
    arguments: String,
    is_whole: bool,
}

impl Draft {
    /// Adds what a push or a flush has brought. Where memory is refused, a part of it may have been added.
    pub fn take<'e>(&mut self, events: impl Iterator<Item = Event<'e>>) -> Result<()> {
        for event in events {
            match event.kind {
                Kind::Reasoning => write(&mut self.reasoning, event.text)?,
                Kind::Content => write(&mut self.content, event.text)?,
                Kind::CallBegin => {
                    let mut call = Call::default();
                    write(&mut call.name, event.text)?;
                    push(&mut self.calls, call, REPLY)?;
                }
                Kind::CallArguments => {
                    self.calls.last_mut().map_or(Ok(()), |call| write(&mut call.arguments, event.text))?;
                }
                Kind::CallEnd => {
                    if let Some(call) = self.calls.last_mut() {
                        call.id.clear();
                        write(&mut call.id, event.id)?;
                        call.is_whole = true;
                    }
                }
                Kind::End => {}
            }
        }
        Ok(())
    }

    /// The message as a JSON object: `role`, `content`, and where there are any `reasoning_content` and `tool_calls`, whose arguments are
    /// objects. A call that did not become whole is left out.
    pub fn message(&self) -> Result<String> {
        let mut json = String::new();
        write(&mut json, "{\"role\":\"assistant\"")?;
        if !self.reasoning.is_empty() {
            member(&mut json, ",\"reasoning_content\":\"", &self.reasoning)?;
        }
        member(&mut json, ",\"content\":\"", &self.content)?;
        let calls = self.calls.iter().filter(|call| call.is_whole && is_object(&call.arguments));
        let mut lead = ",\"tool_calls\":[";
        for call in calls {
            write(&mut json, lead)?;
            member(&mut json, "{\"id\":\"", &call.id)?;
            member(&mut json, ",\"type\":\"function\",\"function\":{\"name\":\"", &call.name)?;
            write(&mut json, ",\"arguments\":")?;
            write(&mut json, &call.arguments)?;
            write(&mut json, "}}")?;
            lead = ",";
        }
        write(&mut json, if lead == "," { "]}" } else { "}" })?;
        Ok(json)
    }
}

/// Writes `lead`, which opens a string, and the string.
fn member(json: &mut String, lead: &str, text: &str) -> Result<()> {
    write(json, lead)?;
    escape_all(text, json)?;
    write(json, "\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event<'e>(kind: Kind, text: &'e str, id: &'e str) -> Event<'e> {
        Event { kind, index: 0, text, id }
    }

    #[test]
    fn events_become_a_message() {
        let mut draft = Draft::default();
        let first = [
            event(Kind::Reasoning, "so \"", ""),
            event(Kind::Reasoning, "x\"", ""),
            event(Kind::Content, "Look:\n", ""),
            event(Kind::CallBegin, "search", ""),
            event(Kind::CallArguments, "{\"q\":", "call00003"),
        ];
        draft.take(first.into_iter()).unwrap();
        let second = [
            event(Kind::CallArguments, "\"é\"}", ""),
            event(Kind::CallEnd, "", "call00003"),
            event(Kind::CallBegin, "cut", ""),
            event(Kind::CallArguments, "{\"q\":", ""),
            event(Kind::End, "", ""),
        ];
        draft.take(second.into_iter()).unwrap();
        let message: Value = serde_json::from_str(&draft.message().unwrap()).unwrap();
        let call =
            json!({"id": "call00003", "type": "function", "function": {"name": "search", "arguments": {"q": "é"}}});
        let wanted =
            json!({"role": "assistant", "reasoning_content": "so \"x\"", "content": "Look:\n", "tool_calls": [call]});
        assert_eq!(message, wanted);
    }

    #[test]
    fn a_reply_without_events_is_an_empty_message() {
        assert_eq!(Draft::default().message().unwrap(), r#"{"role":"assistant","content":""}"#);
    }
}
