//! Understanding what other agents print: lines of JSON become messages, tool calls and spend.
//!
//! Pure: a line in, facts out. A line that is not understood is kept as it is, so that nothing is lost
//! when a format changes; how many there were is told once. What it makes of any lines, the fold takes.

mod claude_code;
mod codex;
mod facts;
mod lines;
mod mapping;

use logreel::core::event::OutputWritten;
use logreel::core::{Blob, RunState};
use logreel::{Body, Json, Timestamp};
use serde_json::Value;

pub use lines::{Said, StreamLines};
pub use mapping::{Mapping, MappingError};

use self::claude_code::ClaudeCode;
use self::codex::Codex;
use self::facts::Facts;
use crate::price::Prices;
use crate::redact::Redactor;

/// A longer line is no line of a format that we know; it is kept in pieces.
pub const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What the lines are.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// `claude -p --output-format stream-json --verbose`, and the session files of Claude Code.
    ClaudeCode,
    /// `codex exec --json`, and the session files of Codex.
    Codex,
    /// Any lines of JSON, by a mapping.
    Mapped(Mapping),
}

impl Format {
    /// The names of those that need no mapping.
    pub const NAMES: [&'static str; 2] = ["claude-code", "codex"];

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "claude-code" => Some(Self::ClaudeCode),
            "codex" => Some(Self::Codex),
            _ => None,
        }
    }

    /// As a spec keeps it.
    pub fn to_json(&self) -> Value {
        match self {
            Self::ClaudeCode => "claude-code".into(),
            Self::Codex => "codex".into(),
            Self::Mapped(mapping) => mapping.to_json(),
        }
    }

    /// From a spec; `None` when it is none.
    pub fn from_json(json: &Value) -> Option<Self> {
        match json {
            Value::String(name) => Self::named(name),
            other => Mapping::from_json(other).map(Self::Mapped),
        }
    }
}

/// What became of one line.
#[derive(Debug, Default)]
pub struct Understood {
    /// What it says.
    pub bodies: Vec<Body>,
    /// What that needs beside it.
    pub blobs: Vec<Blob>,
    /// When it was written, if it says so.
    pub at: Option<Timestamp>,
    /// Whether it was understood; if not, the facts are the line itself.
    pub known: bool,
}

enum Reader {
    ClaudeCode(ClaudeCode),
    Codex(Codex),
    Mapped(Mapping),
}

/// Reads the lines of one program, in their order.
pub struct StreamReader {
    reader: Reader,
    facts: Facts,
    lines: u64,
    unknown: u64,
}

impl StreamReader {
    /// For this format.
    pub fn new(format: &Format, redactor: Redactor, prices: Prices) -> Self {
        let reader = match format {
            Format::ClaudeCode => Reader::ClaudeCode(ClaudeCode::default()),
            Format::Codex => Reader::Codex(Codex::default()),
            Format::Mapped(mapping) => Reader::Mapped(mapping.clone()),
        };
        Self {
            reader,
            facts: Facts::new(redactor, prices),
            lines: 0,
            unknown: 0,
        }
    }

    /// The run has a log already, because its program is run again: what the lines say comes after it, and
    /// their calls are others than those of the log.
    pub fn go_on(&mut self, state: &RunState) {
        self.facts.go_on(state);
    }

    /// A line that is no text, which whoever read it keeps.
    pub(crate) fn no_text(&mut self) {
        self.lines += 1;
        self.unknown += 1;
    }

    /// A line, without its end.
    pub fn line(&mut self, line: &str) -> Understood {
        let line = line.trim_end_matches('\r');
        if line.trim().is_empty() {
            return Understood {
                known: true,
                ..Understood::default()
            };
        }
        self.lines += 1;
        let value: Option<Value> = serde_json::from_str(line).ok();
        let object = value.filter(Value::is_object);
        let known = object
            .as_ref()
            .is_some_and(|object| match &mut self.reader {
                Reader::ClaudeCode(reader) => reader.line(object, &mut self.facts),
                Reader::Codex(reader) => reader.line(object, &mut self.facts),
                Reader::Mapped(mapping) => mapping.line(object, &mut self.facts),
            });
        let at = object
            .as_ref()
            .and_then(|object| object["timestamp"].as_str());
        let at = at.and_then(|at| at.parse().ok());
        if !known {
            self.unknown += 1;
            self.keep(line);
        }
        Understood {
            known,
            at,
            ..self.facts.take()
        }
    }

    /// Nothing more comes: what was open is closed.
    pub fn finish(&mut self) -> Understood {
        match &mut self.reader {
            Reader::ClaudeCode(reader) => reader.finish(&mut self.facts),
            Reader::Codex(_) | Reader::Mapped(_) => {}
        }
        self.facts.close();
        Understood {
            known: true,
            ..self.facts.take()
        }
    }

    /// What the agent said in the end.
    pub fn answer(&self) -> Option<&Json> {
        self.facts.answer.as_ref()
    }

    /// What it says went wrong.
    pub fn failure(&self) -> Option<&str> {
        self.facts.failure.as_deref()
    }

    /// The conversation's id, as the agent has it.
    pub fn session(&self) -> Option<&str> {
        self.facts.session.as_deref()
    }

    /// How many lines came, and how many of them were not understood.
    pub fn counts(&self) -> (u64, u64) {
        (self.lines, self.unknown)
    }

    /// The line itself, as what was printed.
    fn keep(&mut self, line: &str) {
        let (text, mut redacted) = self.facts.redactor.text(line);
        let text = format!("{text}\n");
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let cut = rest.floor_char_boundary(crate::recorded::WRITTEN_BYTES_MAX);
            let (piece, after) = rest.split_at(cut);
            rest = after;
            self.facts.add(OutputWritten {
                base64: None,
                redacted: std::mem::take(&mut redacted),
                step: None,
                stream: "stdout".to_owned(),
                text: Some(piece.to_owned()),
            });
        }
    }
}
