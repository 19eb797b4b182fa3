//! What we say to a model ourselves: the only words in a conversation that are neither the user's nor
//! the spec's.

use serde_json::Value;

use crate::message::{Message, Role};
use crate::progress::Purpose;
use crate::spec::AgentSpec;

/// The input as the first message.
pub(crate) fn input(input: &Value) -> Message {
    let text = match input {
        Value::String(text) => text.clone(),
        Value::Null => "Begin.".to_owned(),
        other => other.to_string(),
    };
    Message::text(Role::User, text)
}

/// The system text, with what the purpose of a call adds to it.
pub(crate) fn system(spec: &AgentSpec, purpose: Purpose) -> Option<String> {
    let mut text = spec.system.clone().unwrap_or_default();
    let more = match purpose {
        Purpose::Plan => {
            "Before you begin, make a plan: a short numbered list of what you will do. Answer with the \
             plan only; do not call tools yet."
        }
        Purpose::Turn | Purpose::Repair | Purpose::Compact => "",
    };
    if !more.is_empty() {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(more);
    }
    (!text.is_empty()).then_some(text)
}

/// What a call adds to the end of the conversation without becoming part of it.
pub(crate) fn closing(purpose: Purpose) -> Option<Message> {
    match purpose {
        Purpose::Compact => Some(Message::text(
            Role::User,
            "Summarise this conversation so that you can go on from the summary alone: the task, what was \
             done and found, what is left, and every name, path and number that matters. Answer with the \
             summary only.",
        )),
        Purpose::Plan | Purpose::Turn | Purpose::Repair => None,
    }
}

/// What follows a plan.
pub(crate) fn carry_out() -> Message {
    Message::text(Role::User, "Carry out the plan.")
}

/// What a model is told about an answer that misses its schema.
pub(crate) fn repair(misses: &str) -> Message {
    let text = format!(
        "Your answer does not fit the schema it must fit: {misses}. Answer again, with JSON that fits and \
         nothing else."
    );
    Message::text(Role::User, text)
}

/// What the conversation goes on from after a compaction.
pub(crate) fn summary(task: &str, summary: &str) -> Message {
    let text = format!("{task}\n\n(The conversation so far, in short:)\n{summary}");
    Message::text(Role::User, text)
}
