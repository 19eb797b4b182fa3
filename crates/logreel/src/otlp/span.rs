//! A span, as it is exported.

use logreel_core::{Digest, Payload, RunId, Timestamp};

/// What a span is to a tracing system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside.
    Internal,
    /// A request to someone else.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// An integer.
    Number(i64),
    /// A number.
    Double(f64),
    /// Texts.
    Texts(Vec<String>),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A piece of work with its beginning and its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Which trace it is part of.
    pub trace: [u8; 16],
    /// Its id.
    pub id: [u8; 8],
    /// The span above it.
    pub parent: Option<[u8; 8]>,
    /// Its name, such as `chat gpt-5`.
    pub name: String,
    /// What it is.
    pub kind: SpanKind,
    /// When it began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Whether it failed; `error.type` says how.
    pub failed: bool,
    /// Why, when what was said may be told.
    pub message: Option<String>,
    /// Where what was said is.
    pub(crate) content: Vec<Content>,
}

/// Something that was said, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// A value as JSON.
    Value(&'static str, Payload),
    /// A run's input, as a message of its user.
    Input(Payload),
    /// A run's output, as a message of its agent.
    Output(Payload),
    /// A conversation, by its last node.
    Context(Digest),
    /// A model's answer, and why it stopped.
    Answer(Payload, Option<String>),
    /// What a model is told beside the conversation.
    Told(Digest),
    /// Why something failed.
    Error(String),
}

impl Span {
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<Attribute>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }

    /// It failed like this.
    pub(crate) fn failed(mut self, kind: &str, message: Option<&str>) -> Self {
        self.failed = true;
        self.attributes.push(("error.type", kind.into()));
        let message = message.map(|message| Content::Error(message.to_owned()));
        self.content.extend(message);
        self
    }
}

/// The id of a span of a run.
pub(crate) fn span_id(run: &RunId, what: &str, which: &str) -> [u8; 8] {
    let digest = Digest::of(format!("logreel.span\0{run}\0{what}\0{which}").as_bytes());
    let mut id = [0; 8];
    id.copy_from_slice(&digest.as_bytes()[..8]);
    id
}

/// The id of the trace that begins with a run.
pub(crate) fn trace_id(root: &RunId) -> [u8; 16] {
    let digest = Digest::of(format!("logreel.trace\0{root}").as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_bytes()[..16]);
    id
}
