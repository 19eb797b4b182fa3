//! Tools: what a model may do. Each declares its effect, which says what an interruption means.

mod command;
mod confine;
mod fs;
mod http;
mod parts;
mod shell;

#[cfg(feature = "mcp")]
pub(crate) mod mcp;

pub(crate) use command::OwnTool;
pub(crate) use fs::{Fs, definitions as fs_definitions, subject as fs_subject};
pub(crate) use http::HttpGet;
pub(crate) use shell::Shell;

use std::time::Duration;

use async_trait::async_trait;
use logreel::core::CallId;
use logreel::core::event::Effect;
use logreel::{Ctx, Digest, Reconciled, TaskError};
use serde_json::Value;

/// What a tool is, before it is called.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name in the log, with dots: `fs.read`, `SERVER.TOOL`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments: an object. Arguments are checked against it before a call.
    pub schema: Value,
    /// What an interruption means.
    pub effect: Effect,
    /// Whether someone declared the effect; if not it is shown as `(default)`.
    pub declared: bool,
    /// How long a call may take.
    pub timeout: Option<Duration>,
    /// Whether a call of it is asked about when no policy says anything.
    pub asks: bool,
}

/// A call of a tool, validated against its schema and allowed by policy.
pub struct Call<'a> {
    /// The run it is part of: commands are started through it, so that none outlives the run.
    pub ctx: &'a Ctx,
    /// The call's id.
    pub call: &'a CallId,
    /// The arguments.
    pub arguments: &'a Value,
    /// The idempotency key: the same over attempts and drivers, different in a fork.
    pub key: Digest,
}

/// Why a call has no result. It goes back to the model, not up the stack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// The `error.kind` in the log. Of a write, `timeout`, `lost` and `signal` mean doubt: it may
    /// have happened.
    pub kind: String,
    /// What happened, for the model.
    pub message: String,
}

impl ToolError {
    /// An ordinary failure: it surely did not do what it was asked to.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::of_kind("error", message)
    }

    /// A failure of this kind.
    pub fn of_kind(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
        }
    }

    /// As the engine takes it; `From` is taken by every error's own conversion.
    pub(crate) fn into_task(self) -> TaskError {
        TaskError::of_kind(self.kind, self.message).permanent()
    }
}

/// Something a model may call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What it is.
    fn definition(&self) -> &Definition;

    /// What policy judges a call by: the resolved paths, the URL, each part of a compound command.
    /// Every one of them must be allowed. None: only the tool's name counts.
    fn subjects(&self, _arguments: &Value) -> Result<Vec<String>, ToolError> {
        Ok(Vec::new())
    }

    /// Does it. The result is what the log keeps; text is a JSON string.
    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError>;

    /// Whether [`Tool::reconcile`] can find anything out.
    fn reconciles(&self) -> bool {
        false
    }

    /// Finds out whether an interrupted write with this key happened.
    async fn reconcile(&self, _call: &Call<'_>) -> Result<Reconciled<Value>, ToolError> {
        Ok(Reconciled::Unknown)
    }
}

/// The text, when it can be recorded beside little else; else its ends.
pub(crate) fn bounded(text: String, recorded_max: u64) -> String {
    let max = usize::try_from(recorded_max).unwrap_or(usize::MAX);
    let max = max.saturating_sub(BESIDE_BYTES);
    // No character takes more than six bytes in JSON.
    if text.len().saturating_mul(6) <= max {
        return text;
    }
    let escaped: usize = text
        .chars()
        .map(|c| match c {
            '"' | '\\' | '\n' | '\r' | '\t' => 2,
            c if c.is_control() => 6,
            c => c.len_utf8(),
        })
        .sum();
    match escaped <= max {
        true => text,
        false => logreel::cut(&text, max / 6),
    }
}

/// What is recorded beside a long text: names, an exit code, a header or two.
const BESIDE_BYTES: usize = 64 * 1024;

/// The value, when it can be recorded; else the ends of its text.
pub(crate) fn recordable(value: Value, recorded_max: u64) -> Value {
    let text = match &value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return value,
        Value::String(text) if (text.len() as u64).saturating_mul(6) + 2 <= recorded_max => {
            return value;
        }
        Value::String(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    match (text.len() as u64 <= recorded_max, value) {
        (true, value) => value,
        (false, Value::String(text)) => bounded(text, recorded_max).into(),
        (false, _) => bounded(text, recorded_max).into(),
    }
}

/// What a command's trouble is for a tool.
pub(crate) fn from_task(error: TaskError) -> ToolError {
    let cause = error.cause();
    ToolError::of_kind(cause.kind, cause.message)
}
