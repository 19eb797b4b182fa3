//! What is said, as text: messages in the shapes that logs have, values, failures, and long text in pieces.

use logreel::RunId;
use logreel::core::event::Cause;
use logreel::core::{CallId, Payload};
use serde_json::Value;

use super::super::messages;
use super::super::sent::Sent;

/// Longer text is sent in several pieces: clients give up on blocks without an end.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// A message of a conversation, in the shapes that logs have: parts, or content.
pub(super) struct Answer {
    pub(super) words: String,
    /// Id, name and arguments.
    pub(super) calls: Vec<(String, String, String)>,
}

impl Answer {
    pub(super) fn of(message: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let content = match &message["content"] {
            Value::Null => message,
            content => content,
        };
        let parts = match (&message["parts"], content) {
            (Value::Array(parts), _) | (_, Value::Array(parts)) => parts.as_slice(),
            (_, Value::String(words)) => {
                let (words, calls) = (words.clone(), Vec::new());
                return Self { words, calls };
            }
            (_, Value::Null) => &[],
            (_, other) => {
                let (words, calls) = (other.to_string(), Vec::new());
                return Self { words, calls };
            }
        };
        let calls = parts.iter().map(|part| &part["tool_call"]);
        let calls = calls.filter(|call| call.is_object()).map(|call| {
            let arguments = call["arguments"].to_string();
            (text(&call["call"]), text(&call["name"]), arguments)
        });
        Self {
            words: parts.iter().map(|part| text(&part["text"])).collect(),
            calls: calls.collect(),
        }
    }
}

/// What a model is asked for that is not for the conversation: a summary of it.
pub(super) fn is_private(call: &CallId) -> bool {
    call.as_str().ends_with(".compact")
}

/// The id of what a model answers.
pub(super) fn message_id(run: &RunId, call: &CallId, attempt: u32) -> String {
    match attempt {
        1 => messages::id(run, call.as_str()),
        _ => messages::id(run, &format!("{call}.{attempt}")),
    }
}

/// A value for people: text as it is, else JSON.
pub(super) fn shown(value: &Payload) -> String {
    match value.to_json().to_value() {
        Value::String(text) => text,
        _ => value.to_json().text().to_owned(),
    }
}

pub(super) fn failure(cause: &Cause) -> String {
    format!("{}: {}", cause.kind, cause.message)
}

/// A message from its start to its end.
pub(super) fn say_at_once(id: &str, role: &'static str, text: &str, out: &mut Vec<Sent>) {
    let message_id = id.to_owned();
    out.push(Sent::TextMessageStart { message_id, role });
    say(id, text, out);
    let message_id = id.to_owned();
    out.push(Sent::TextMessageEnd { message_id });
}

/// More of a message that is open.
pub(super) fn say(id: &str, text: &str, out: &mut Vec<Sent>) {
    out.extend(pieces(text).map(|delta| Sent::TextMessageContent {
        message_id: id.to_owned(),
        delta: delta.to_owned(),
    }));
}

/// The text in pieces that are not too long; none of nothing.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(PIECE_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
