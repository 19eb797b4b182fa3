//! Messages as clients have them, on their way to the chain of nodes that a conversation is.
//!
//! What the log keeps is a role and a list of parts, as for our own agents. A client may send that, or
//! the shape that most model APIs share: `content` as a text or a list, `tool_calls`, `tool_call_id`. What
//! fits neither is kept as it came.

use logreel_core::{Blob, Digest, Json};
use serde::Serialize;
use serde_json::{Value, json};

/// A message about to join a conversation.
pub(super) struct Node {
    pub(super) blob: Blob,
    pub(super) role: String,
    /// Bytes of text.
    pub(super) length: u64,
    pub(super) previous: Option<Digest>,
}

/// Fields in alphabetical order, like every body.
#[derive(Serialize)]
struct StoredNode<'a> {
    message: &'a StoredMessage,
    previous: Option<Digest>,
}

#[derive(Serialize)]
struct StoredMessage {
    parts: Vec<Value>,
    role: String,
}

impl Node {
    /// The message as the node after `previous`.
    pub(super) fn after(previous: Option<Digest>, message: &Value) -> Result<Self, String> {
        let message = read(message)?;
        let node = StoredNode {
            message: &message,
            previous,
        };
        let text = serde_json::to_vec(&node).map_err(|error| error.to_string())?;
        let length = message.parts.iter().map(length).sum::<usize>() as u64;
        Ok(Self {
            blob: Blob::new(text),
            role: message.role,
            length,
            previous,
        })
    }

    pub(super) fn digest(&self) -> Digest {
        self.blob.digest()
    }
}

/// An answer of a model, as the log keeps it: also when the client says only its words.
pub(super) fn answer(message: &Json) -> Result<Json, String> {
    let message = match message.to_value() {
        Value::Null => return Ok(Json::null()),
        Value::String(text) => json!({"role": "assistant", "content": text}),
        Value::Object(mut fields) => {
            fields.entry("role").or_insert("assistant".into());
            Value::Object(fields)
        }
        other => return Err(format!("a message is an object or a text, not {other}")),
    };
    Json::of(&read(&message)?).map_err(|error| error.to_string())
}

fn read(message: &Value) -> Result<StoredMessage, String> {
    let role = message["role"].as_str().filter(|role| !role.is_empty());
    let role = role.ok_or("a message needs its `role`, a text")?.to_owned();
    if let Some(parts) = message["parts"].as_array() {
        let parts = parts.clone();
        return Ok(StoredMessage { parts, role });
    }
    if let (Some(call), content) = (message["tool_call_id"].as_str(), &message["content"]) {
        let text = content
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned);
        let name = message["name"].as_str().unwrap_or_default();
        let result = json!({"call": call, "failed": false, "name": name, "text": text});
        let parts = vec![json!({"tool_result": result})];
        return Ok(StoredMessage { parts, role });
    }
    let mut parts = match &message["content"] {
        Value::Null => Vec::new(),
        Value::String(text) => vec![json!({"text": text})],
        Value::Array(parts) => parts.iter().map(part).collect(),
        other => return Err(format!("`content` is a text or a list, not {other}")),
    };
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let (Some(id), Some(name)) = (call["id"].as_str(), function["name"].as_str()) else {
            return Err(format!(
                "a tool call has an id and a function with a name, not {call}"
            ));
        };
        // Models write arguments as a text of JSON; what is none stays a text.
        let arguments = match &function["arguments"] {
            Value::String(text) => {
                serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
            }
            other => other.clone(),
        };
        let call = json!({"arguments": arguments, "call": id, "name": name});
        parts.push(json!({"tool_call": call}));
    }
    if parts.is_empty() && message.get("content").is_none() {
        return Err("a message needs its `content`, or `parts`".to_owned());
    }
    Ok(StoredMessage { parts, role })
}

fn part(part: &Value) -> Value {
    match part["text"].as_str() {
        Some(text) => json!({"text": text}),
        None => json!({"opaque": {"provider": "external", "raw": part}}),
    }
}

fn length(part: &Value) -> usize {
    let text = |value: &Value| value.as_str().map_or(0, str::len);
    match part {
        Value::Object(fields) => fields.iter().map(|(kind, value)| match kind.as_str() {
            "text" => text(value),
            "tool_result" => text(&value["text"]),
            _ => value.to_string().len(),
        }),
        _ => return part.to_string().len(),
    }
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_common_shapes_become_parts() {
        let check = |message: Value, expected: Value| {
            let stored = read(&message).unwrap();
            assert_eq!(
                serde_json::to_value(&stored).unwrap(),
                expected,
                "{message}"
            );
        };
        check(
            json!({"role": "user", "content": "hi"}),
            json!({"role": "user", "parts": [{"text": "hi"}]}),
        );
        let ours = json!({"role": "assistant", "parts": [{"text": "hi"}]});
        check(ours.clone(), ours);
        check(
            json!({"role": "assistant", "content": null, "tool_calls":
                [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]}),
            json!({"role": "assistant", "parts":
                [{"tool_call": {"arguments": {"a": 1}, "call": "c1", "name": "add"}}]}),
        );
        check(
            json!({"role": "tool", "tool_call_id": "c1", "content": "3"}),
            json!({"role": "tool", "parts":
                [{"tool_result": {"call": "c1", "failed": false, "name": "", "text": "3"}}]}),
        );
        check(
            json!({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]}),
            json!({"role": "user", "parts": [{"text": "see"},
                {"opaque": {"provider": "external", "raw": {"type": "image"}}}]}),
        );
        for bad in [
            json!("hi"),
            json!({"content": "hi"}),
            json!({"role": "user"}),
            json!({"role": "user", "content": 7}),
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_covers_what_came_before_it() {
        let message = json!({"role": "user", "content": "grüß"});
        let first = Node::after(None, &message).unwrap();
        assert_eq!((first.role.as_str(), first.length), ("user", 6));
        let second = Node::after(Some(first.digest()), &message).unwrap();
        assert_ne!(first.digest(), second.digest());
        assert_eq!(
            Node::after(None, &message).unwrap().digest(),
            first.digest()
        );
    }
}
