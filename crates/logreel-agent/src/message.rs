//! Messages: what a model is shown and what it said, as a list of parts.
//!
//! These are the shapes the log keeps. A provider's own shapes stay in its client; what a client does
//! not understand travels as an [`Opaque`] part and goes back to the same provider byte for byte.

use logreel::Json;
use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, or the run on a person's behalf.
    User,
    /// The model.
    Assistant,
    /// The tools that the model called.
    Tool,
}

impl Role {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message of a conversation. The system text is the spec's and is not among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// What it is made of, in the order in which it was said.
    pub parts: Vec<Part>,
    /// Who speaks.
    pub role: Role,
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Words.
    Text(String),
    /// The model calls a tool.
    ToolCall(ToolCall),
    /// What came of a call.
    ToolResult(ToolResult),
    /// Something only its provider understands, such as a signed thinking block.
    Opaque(Opaque),
}

/// A call of a tool, as the model made it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The arguments as the model wrote them; a JSON string when they were no JSON.
    pub arguments: Json,
    /// The call's id, unique in the run.
    pub call: String,
    /// The tool's name in the log, with dots; one that no tool has when the model made it up.
    pub name: String,
}

/// What a model is told of a call's outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Which call.
    pub call: String,
    /// Whether the text is an error.
    pub failed: bool,
    /// The tool's name in the log.
    pub name: String,
    /// The outcome in words, cut to what a model is shown.
    pub text: String,
}

/// A part that is kept and given back to the provider that made it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opaque {
    /// The provider, such as `anthropic`.
    pub provider: String,
    /// The part as it came.
    pub raw: Json,
}

impl Message {
    /// A message of words.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            parts: vec![Part::Text(text.into())],
            role,
        }
    }

    /// Its words, without calls and results.
    pub fn words(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::ToolCall(_) | Part::ToolResult(_) | Part::Opaque(_) => None,
        });
        texts.collect()
    }

    /// The tools it calls.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCall(call) => Some(call),
            Part::Text(_) | Part::ToolResult(_) | Part::Opaque(_) => None,
        })
    }
}
