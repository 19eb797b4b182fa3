//! Models: what they are asked, what they answer, and how they fail.

mod anthropic;
mod calls;
mod connect;
#[cfg(feature = "genai")]
mod genai;
mod http;
mod openai;
mod scripted;
mod sse;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logreel::core::event::Spend;
use serde_json::{Map, Value};

use crate::message::Message;
use crate::names::WireNames;

pub(crate) use connect::output_tokens_max;
pub use connect::{ReadVariable, connect, connect_within, key_variable};
pub use http::Timeouts;
pub use scripted::{ScriptError, ScriptedModel};

/// A request: everything is in it, a model remembers nothing.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which model call of the run this is, from 1. One that is issued again after a crash keeps its
    /// number; a retry after a failure has the next.
    pub number: u64,
    /// The system text.
    pub system: Option<Arc<str>>,
    /// The conversation, oldest first. Roles alternate as it happened; a client merges what its
    /// provider wants merged.
    pub messages: Vec<Arc<Message>>,
    /// The tools it may call.
    pub tools: Arc<[ToolSpec]>,
    /// How tools are called on the wire: messages and answers carry the names of the log.
    pub names: Arc<WireNames>,
    /// The JSON Schema that the answer's text must fit.
    pub output_schema: Option<Arc<Value>>,
    /// The spec's `params`: `max_output_tokens`, `temperature`, `reasoning`; others are passed on.
    pub params: Arc<Map<String, Value>>,
}

/// A tool, as a model is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name in the log, with dots.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments: an object.
    pub schema: Value,
}

/// A model's answer, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What it said: role assistant, tool calls by the names of the log.
    pub message: Message,
    /// Why it stopped.
    pub finish: Finish,
    /// Tokens; the price is filled in by whoever asked.
    pub spent: Spend,
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// It was done.
    Stop,
    /// It wants tools.
    ToolCalls,
    /// It ran out of output tokens.
    Length,
    /// It refused.
    Refused,
    /// As the provider says.
    Other(String),
}

impl Finish {
    /// The name in the log.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Refused => "refused",
            Self::Other(other) => other,
        }
    }
}

/// A piece of an answer while it comes in. Provisional: shown live, never recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Words.
    Text(String),
    /// Thoughts.
    Thinking(String),
    /// The name of a tool that it begins to call.
    ToolCall(String),
}

/// Why there is no answer. No variant may hold a key or a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The provider or the way to it is in trouble: a 5xx, a cut stream, a timeout.
    #[error("{message}")]
    Retryable {
        /// What happened.
        message: String,
    },
    /// Too many requests.
    #[error("rate limited: {message}")]
    RateLimited {
        /// What the provider said.
        message: String,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The provider will not answer this.
    #[error("refused: {message}")]
    Refused {
        /// What the provider said.
        message: String,
    },
    /// The conversation does not fit the model.
    #[error("the conversation is too long for the model: {message}")]
    TooLong {
        /// What the provider said.
        message: String,
    },
    /// The answer was cut at its longest.
    #[error("the answer was cut at its longest; raise `params.max_output_tokens`: {message}")]
    Cut {
        /// How it began.
        message: String,
    },
    /// No key, or a wrong one.
    #[error("not authorized: {message}")]
    Auth {
        /// What to do about it.
        message: String,
    },
    /// The request or the answer makes no sense to the other side; the same again would not either.
    #[error("{message}")]
    Invalid {
        /// What happened.
        message: String,
    },
}

impl ModelError {
    /// The `error.kind` in the log.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Retryable { .. } => "model_unavailable",
            Self::RateLimited { .. } => "rate_limited",
            Self::Refused { .. } => "refused",
            Self::TooLong { .. } => "too_long",
            Self::Cut { .. } => "length",
            Self::Auth { .. } => "auth",
            Self::Invalid { .. } => "model_error",
        }
    }

    /// How long the provider wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether asking again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Retryable { .. } | Self::RateLimited { .. })
    }
}

/// Something that answers. Its timeout is the caller's: dropping the future gives the request up.
#[async_trait]
pub trait Model: Send + Sync {
    /// Its full name, such as `anthropic/claude-sonnet-4-5`.
    fn name(&self) -> &str;

    /// Asks it. `live` hears the answer as it comes in.
    async fn answer(
        &self,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError>;
}

/// The model of `PROVIDER/MODEL`, as its provider names it.
fn named_model(name: &str) -> &str {
    name.split_once('/').map_or("", |(_, model)| model)
}

/// A text for an error, cut when it is longer than that many characters.
fn bounded(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
