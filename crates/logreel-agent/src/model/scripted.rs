//! A model that says what a script says: the offline default of examples and tests.

use std::collections::HashSet;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use logreel::Json;
use logreel::core::event::Spend;
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, Delta, Finish, Model, ModelError, Request};
use crate::message::{Message, Part, Role, ToolCall};

/// The model of `scripted/FILE`: call k gets line k, whatever was asked.
///
/// A run that is killed and resumed hears the same answers, and a call that is issued again gets the
/// line it had. A line is one of
///
/// ```json
/// {"text": "…", "tool_calls": [{"id": "a", "name": "fs.read", "arguments": {}}],
///  "usage": {"input_tokens": 10}, "delay_ms": 5, "chunks": ["…"], "expect": "…"}
/// {"error": {"kind": "rate_limited", "message": "…", "retry_after_ms": 10}}
/// ```
///
/// - Every key may be left out. A call without an `id` has `call_K_I`.
/// - `usage` has the keys of a run's usage; what it does not say is zero, never an estimate.
/// - `chunks` are the pieces in which the text comes in live, or their number; `delay_ms` is spread
///   over them. Beside an `error` they are a stream that is cut.
/// - `expect` looks at the request and fails the call when it is not what the author of the script
///   thought: a text that the last message contains, or an object of `last`, `any`, `none` (texts that
///   the last, some, no message contains), `role` (of the last), `system`, `messages` (how many) and
///   `tools` (that are offered). For one text a list may stand, and means all of them.
/// - Kinds of errors: `rate_limited unavailable refused too_long auth invalid`.
#[derive(Debug, Clone)]
pub struct ScriptedModel {
    name: String,
    lines: Vec<Line>,
}

/// A script that cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it, by the name of the key.
    pub message: String,
}

impl ScriptedModel {
    /// The model that says these lines.
    pub fn new(lines: Vec<Value>) -> Result<Self, ScriptError> {
        let lines = lines.into_iter().enumerate();
        Self::of(lines.map(|(at, line)| (at + 1, line)).collect())
    }

    /// The same under another name, such as the spec's.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { name, ..self }
    }

    /// The lines of a script file, as a spec keeps them; every one of them is checked.
    pub fn lines(text: &str) -> Result<Vec<Value>, ScriptError> {
        let lines = numbered(text)?;
        Self::of(lines.clone())?;
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }

    fn of(lines: Vec<(usize, Value)>) -> Result<Self, ScriptError> {
        let mut ids = HashSet::new();
        let mut parsed = Vec::with_capacity(lines.len());
        for (line, value) in lines {
            let wrong = |message| ScriptError { line, message };
            let it = Line::parse(value).map_err(wrong)?;
            for id in it.said.tool_calls.iter().filter_map(|it| it.id.as_ref()) {
                if !ids.insert(id.clone()) {
                    return Err(wrong(format!(
                        "`id`: an earlier call has {id:?} too; ids are unique in a run"
                    )));
                }
            }
            parsed.push(it);
        }
        let name = "scripted/script".to_owned();
        Ok(Self {
            name,
            lines: parsed,
        })
    }

    fn line(&self, number: u64) -> Result<&Line, ModelError> {
        let at = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        at.and_then(|at| self.lines.get(at)).ok_or_else(|| {
            let (name, count) = (&self.name, self.lines.len());
            let lines = if count == 1 { "line" } else { "lines" };
            invalid(format!(
                "{name}: the script has {count} {lines}, this is call {number}"
            ))
        })
    }
}

impl FromStr for ScriptedModel {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::of(numbered(text)?)
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn name(&self) -> &str {
        &self.name
    }

    async fn answer(
        &self,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError> {
        let line = self.line(request.number)?;
        if let Some(expect) = &line.expect {
            expect.check(request).map_err(|missed| {
                let number = request.number;
                invalid(format!("{}: line {number} expects {missed}", self.name))
            })?;
        }
        line.play(live).await;
        match &line.error {
            Some(error) => Err(error.clone()),
            None => Ok(line.said.answer(request.number)),
        }
    }
}

/// A line, understood.
#[derive(Debug, Clone)]
struct Line {
    said: Said,
    /// The text as it comes in.
    pieces: Vec<String>,
    delay: Duration,
    expect: Option<Expect>,
    /// What the call ends with instead of what was said.
    error: Option<ModelError>,
}

#[derive(Debug, Clone, Default)]
struct Said {
    text: String,
    tool_calls: Vec<ScriptedCall>,
    spent: Spend,
}

impl Line {
    fn parse(value: Value) -> Result<Self, String> {
        let raw: RawLine = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if raw.error.is_some()
            && (raw.text.is_some() || raw.tool_calls.is_some() || raw.usage.is_some())
        {
            return Err(
                "`error` stands without `text`, `tool_calls` and `usage`: nothing was answered"
                    .to_owned(),
            );
        }
        let (text, pieces) = pieces(raw.text, raw.chunks)?;
        let spent = raw.usage.unwrap_or_default().spent()?;
        let error = raw.error.map(ScriptedError::understand).transpose()?;
        Ok(Self {
            said: Said {
                text,
                tool_calls: raw.tool_calls.unwrap_or_default(),
                spent,
            },
            pieces,
            delay: Duration::from_millis(raw.delay_ms),
            expect: raw.expect.map(Expect::from),
            error,
        })
    }

    /// Lets the text come in. Nothing is lost when nobody listens.
    async fn play(&self, live: &mut (dyn FnMut(Delta) + Send)) {
        let pauses = u32::try_from(self.pieces.len().max(1)).unwrap_or(u32::MAX);
        let pause = self.delay / pauses;
        if self.pieces.is_empty() {
            rest(pause).await;
        }
        for piece in &self.pieces {
            rest(pause).await;
            live(Delta::Text(piece.clone()));
        }
        for call in &self.said.tool_calls {
            live(Delta::ToolCall(call.name.clone()));
        }
    }
}

impl Said {
    fn answer(&self, number: u64) -> Answer {
        let mut parts = Vec::with_capacity(1 + self.tool_calls.len());
        if !self.text.is_empty() {
            parts.push(Part::Text(self.text.clone()));
        }
        for (at, call) in self.tool_calls.iter().enumerate() {
            let made_up = || format!("call_{number}_{}", at + 1);
            parts.push(Part::ToolCall(ToolCall {
                arguments: Json::from(call.arguments.clone()),
                call: call.id.clone().unwrap_or_else(made_up),
                name: call.name.clone(),
            }));
        }
        Answer {
            message: Message {
                parts,
                role: Role::Assistant,
            },
            finish: if self.tool_calls.is_empty() {
                Finish::Stop
            } else {
                Finish::ToolCalls
            },
            spent: self.spent.clone(),
        }
    }
}

/// What a request must look like; a key that is left out is not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Expect {
    last: Texts,
    role: Option<Role>,
    any: Texts,
    none: Texts,
    system: Texts,
    messages: Option<usize>,
    tools: Texts,
}

/// A text, or several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "OneOrMore")]
struct Texts(Vec<String>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Texts {
    fn from(texts: OneOrMore) -> Self {
        match texts {
            OneOrMore::One(text) => Self(vec![text]),
            OneOrMore::More(texts) => Self(texts),
        }
    }
}

impl Expect {
    /// What was missed: what was expected, and what was there.
    fn check(&self, request: &Request) -> Result<(), String> {
        let shown: Vec<String> = request.messages.iter().map(|it| said(it)).collect();
        let last = shown.last().map_or("", String::as_str);
        for text in &self.last.0 {
            if !last.contains(text.as_str()) {
                return Err(missed("the last message to contain", text, last));
            }
        }
        if let Some(role) = self.role {
            let there = request.messages.last().map(|it| it.role);
            if there != Some(role) {
                let there = there.map_or("no message", Role::as_str);
                return Err(missed(
                    "the last message to be of role",
                    role.as_str(),
                    there,
                ));
            }
        }
        for text in &self.any.0 {
            if !shown.iter().any(|it| it.contains(text.as_str())) {
                return Err(missed("a message that contains", text, &shown.join("\n")));
            }
        }
        for text in &self.none.0 {
            if let Some(it) = shown.iter().find(|it| it.contains(text.as_str())) {
                return Err(missed("no message that contains", text, it));
            }
        }
        let system = request.system.as_deref().unwrap_or_default();
        for text in &self.system.0 {
            if !system.contains(text.as_str()) {
                return Err(missed("the system text to contain", text, system));
            }
        }
        if let Some(count) = self.messages
            && count != shown.len()
        {
            let there = shown.len();
            return Err(format!("{count} messages; there were {there}"));
        }
        for tool in &self.tools.0 {
            if !request.tools.iter().any(|it| it.name == *tool) {
                let there: Vec<&str> = request.tools.iter().map(|it| it.name.as_str()).collect();
                return Err(missed("the tool", tool, &there.join(" ")));
            }
        }
        Ok(())
    }
}

/// Everything a message says, for a reader.
fn said(message: &Message) -> String {
    let parts = message.parts.iter().map(|part| match part {
        Part::Text(text) => text.clone(),
        Part::ToolCall(call) => format!("{} {}", call.name, call.arguments),
        Part::ToolResult(result) => result.text.clone(),
        Part::Opaque(_) => String::new(),
    });
    parts.collect::<Vec<_>>().join("\n")
}

fn missed(what: &str, expected: &str, there: &str) -> String {
    format!(
        "{what} {expected:?}; there was {:?}",
        super::bounded(there, SHOWN_MAX)
    )
}

/// Characters of a message in an error.
const SHOWN_MAX: usize = 300;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    text: Option<String>,
    tool_calls: Option<Vec<ScriptedCall>>,
    usage: Option<ScriptedUsage>,
    #[serde(default)]
    delay_ms: u64,
    chunks: Option<Chunks>,
    expect: Option<ExpectLine>,
    error: Option<ScriptedError>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCall {
    id: Option<String>,
    name: String,
    #[serde(default = "no_arguments")]
    arguments: Value,
}

fn no_arguments() -> Value {
    Value::Object(serde_json::Map::new())
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScriptedUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    reasoning_tokens: u64,
    usd: Option<f64>,
}

impl ScriptedUsage {
    fn spent(self) -> Result<Spend, String> {
        let micros = |usd: f64| {
            let micros = (usd * 1e6).ceil();
            // Past 2^53 a float counts no single micro-dollars any more.
            if !(0.0..=9e15).contains(&micros) {
                return Err(format!("`usd`: {usd} is no price"));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked above"
            )]
            Ok(micros as u64)
        };
        Ok(Spend {
            cache_read_tokens: self.cache_read_tokens,
            cache_write_tokens: self.cache_write_tokens,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            reasoning_tokens: self.reasoning_tokens,
            usd_micros: self.usd.map(micros).transpose()?,
        })
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`chunks`: a list of texts, or their number")]
enum Chunks {
    Texts(Vec<String>),
    Number(usize),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`expect`: a text, or an object of last, role, any, none, system, messages, tools"
)]
enum ExpectLine {
    Last(String),
    All(Expect),
}

impl From<ExpectLine> for Expect {
    fn from(line: ExpectLine) -> Self {
        match line {
            ExpectLine::Last(text) => Self {
                last: Texts(vec![text]),
                ..Self::default()
            },
            ExpectLine::All(all) => all,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedError {
    kind: String,
    message: Option<String>,
    retry_after_ms: Option<u64>,
}

impl ScriptedError {
    /// The kinds of a script, and those that the log gives them.
    fn understand(self) -> Result<ModelError, String> {
        let message = self
            .message
            .unwrap_or_else(|| format!("the script says {}", self.kind));
        if self.retry_after_ms.is_some() && self.kind != "rate_limited" {
            return Err(format!(
                "`retry_after_ms`: only rate_limited has one, not {}",
                self.kind
            ));
        }
        Ok(match self.kind.as_str() {
            "rate_limited" => ModelError::RateLimited {
                message,
                retry_after: self.retry_after_ms.map(Duration::from_millis),
            },
            "unavailable" | "retryable" | "model_unavailable" => ModelError::Retryable { message },
            "refused" => ModelError::Refused { message },
            "too_long" => ModelError::TooLong { message },
            "auth" => ModelError::Auth { message },
            "invalid" | "model_error" => ModelError::Invalid { message },
            other => {
                return Err(format!(
                    "`kind`: {other:?} is none of rate_limited, unavailable, refused, too_long, \
                     auth, invalid"
                ));
            }
        })
    }
}

/// The whole text and the pieces in which it comes in.
fn pieces(text: Option<String>, chunks: Option<Chunks>) -> Result<(String, Vec<String>), String> {
    match (text, chunks) {
        (text, None) => {
            let text = text.unwrap_or_default();
            let whole = (!text.is_empty()).then(|| text.clone());
            Ok((text, whole.into_iter().collect()))
        }
        (None, Some(Chunks::Texts(pieces))) => Ok((pieces.concat(), pieces)),
        (Some(text), Some(Chunks::Texts(pieces))) => {
            if pieces.concat() != text {
                return Err("`chunks`: together they are not the `text`".to_owned());
            }
            Ok((text, pieces))
        }
        (_, Some(Chunks::Number(0))) => Err("`chunks`: 0 pieces hold no text".to_owned()),
        (None, Some(Chunks::Number(_))) => Err("`chunks`: a number of pieces of what?".to_owned()),
        (Some(text), Some(Chunks::Number(count))) => {
            let letters: Vec<char> = text.chars().collect();
            let size = letters.len().div_ceil(count).max(1);
            let pieces = letters.chunks(size).map(|it| it.iter().collect()).collect();
            Ok((text, pieces))
        }
    }
}

/// The lines that say something, with their numbers in the file.
fn numbered(text: &str) -> Result<Vec<(usize, Value)>, ScriptError> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let said = lines.filter(|(_, line)| !line.trim().is_empty());
    said.map(|(line, text)| {
        let wrong = |error: serde_json::Error| ScriptError {
            line,
            message: format!("not JSON at column {}", error.column()),
        };
        Ok((line, serde_json::from_str(text).map_err(wrong)?))
    })
    .collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a provider's slowness is real time: nothing of the run depends on it"
)]
async fn rest(pause: Duration) {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
}

fn invalid(message: String) -> ModelError {
    ModelError::Invalid { message }
}
