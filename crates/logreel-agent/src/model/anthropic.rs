//! Anthropic's messages. A client of our own, because what the model thinks is signed: a thinking
//! block, and any block we do not know, is kept as it came and goes back byte for byte in its place.

use std::collections::BTreeMap;

use async_trait::async_trait;
use logreel::Json;
use logreel::core::event::Spend;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::calls::{Calls, WireCall, written};
use super::http::{Events, Provider};
use super::{Answer, Delta, Finish, Model, ModelError, Request, named_model};
use crate::message::{Message, Opaque, Part, Role};

/// Where Anthropic is.
pub(super) const BASE_URL: &str = "https://api.anthropic.com";
/// The name in opaque parts.
const PROVIDER: &str = "anthropic";
/// The format that this client speaks.
const VERSION: &str = "2023-06-01";
/// Output tokens, when the spec says nothing: the provider wants a number.
const MAX_TOKENS: u64 = 8192;

/// A model behind the messages API.
#[derive(Debug)]
pub(super) struct Anthropic {
    name: String,
    provider: Provider,
}

impl Anthropic {
    /// The model `anthropic/NAME`.
    pub(super) fn new(name: &str, provider: Provider) -> Result<Self, ModelError> {
        Ok(Self {
            name: name.to_owned(),
            provider: provider
                .key_in("x-api-key", "")?
                .header("anthropic-version", VERSION),
        })
    }

    fn body<'r>(&'r self, request: &'r Request) -> Body<'r> {
        let mut messages = turns(request);
        mark_ends(&mut messages);
        let mut params = params(&request.params);
        for ours in ["model", "system", "tools", "messages"] {
            params.remove(ours);
        }
        Body {
            model: named_model(&self.name),
            stream: params.remove("stream").unwrap_or(Value::Bool(true)),
            system: system(request).map(|text| [Block::text(text).marked()]),
            tools: tools(request),
            messages,
            params,
        }
    }
}

#[async_trait]
impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.name
    }

    async fn answer(
        &self,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError> {
        let reply = self.provider.post(&self.body(request)).await?;
        let mut said = Said::default();
        if reply.is_whole() {
            self.read(&reply.whole().await?, &mut said)?;
            said.blocks.values().for_each(|it| it.show(request, live));
        } else {
            self.listen(reply.events(), &mut said, request, live)
                .await?;
        }
        Ok(said.answer(request))
    }
}

impl Anthropic {
    /// An answer in one piece.
    fn read(&self, text: &str, said: &mut Said) -> Result<(), ModelError> {
        let whole: Whole = serde_json::from_str(text).map_err(|error| self.no_answer(&error))?;
        for (at, raw) in whole.content.iter().enumerate() {
            let block = Growing::new(raw).map_err(|error| self.no_answer(&error))?;
            said.blocks.insert(at, block);
        }
        said.usage.take(whole.usage);
        said.stop = whole.stop_reason;
        Ok(())
    }

    async fn listen(
        &self,
        mut events: Events<'_>,
        said: &mut Said,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<(), ModelError> {
        while let Some(event) = events.next().await? {
            let data = event.data.as_str();
            let kind: Kind = serde_json::from_str(data).map_err(|error| self.no_answer(&error))?;
            match kind.r#type.as_str() {
                "message_stop" => return Ok(()),
                "error" => {
                    let body = serde_json::from_str(data).unwrap_or(Value::Null);
                    return Err(self.provider.by_body(&body));
                }
                kind => said
                    .take(kind, data, request, live)
                    .map_err(|error| self.no_answer(&error))?,
            }
        }
        Err(self.provider.retryable("the answer was cut"))
    }

    fn no_answer(&self, error: &serde_json::Error) -> ModelError {
        self.provider.retryable(&format!("not an answer: {error}"))
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Block; 1]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    messages: Vec<Turn>,
    #[serde(flatten)]
    params: Map<String, Value>,
}

#[derive(Serialize)]
struct Turn {
    role: &'static str,
    content: Vec<Content>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content {
    Block(Box<Block>),
    /// As it came.
    Raw(Json),
}

/// A block of our own making; each kind uses some of the fields.
#[derive(Serialize, Default)]
struct Block {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_use_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Value>,
}

impl Block {
    fn text(text: String) -> Self {
        Self {
            r#type: "text",
            text: Some(text),
            ..Self::default()
        }
    }

    /// What comes before the end of this block is worth keeping in the provider's cache.
    fn marked(mut self) -> Self {
        self.cache_control = Some(json!({"type": "ephemeral"}));
        self
    }
}

/// The system text. There is no field for the shape of the answer here: the words ask for it.
fn system(request: &Request) -> Option<String> {
    let schema = request.output_schema.as_ref().map(|schema| {
        format!(
            "When you are done, answer with one JSON value that fits this JSON Schema, and with \
             nothing else around it:\n{schema}"
        )
    });
    let texts = [request.system.as_deref().map(str::to_owned), schema];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

fn tools(request: &Request) -> Vec<Value> {
    let tools = request.tools.iter().map(|tool| {
        json!({
            "name": request.names.to_wire(&tool.name),
            "description": tool.description,
            "input_schema": tool.schema,
        })
    });
    let mut tools: Vec<Value> = tools.collect();
    if let Some(last) = tools.last_mut() {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    tools
}

/// `max_output_tokens` and `reasoning` in the provider's words; the rest as it is.
fn params(params: &Map<String, Value>) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("max_tokens".to_owned(), json!(MAX_TOKENS));
    for (key, value) in params {
        let (key, value) = match (key.as_str(), value) {
            ("max_output_tokens", limit) => ("max_tokens", limit.clone()),
            ("reasoning", how) => match thinking(how) {
                Some(thinking) => ("thinking", thinking),
                None => continue,
            },
            (other, value) => (other, value.clone()),
        };
        all.insert(key.to_owned(), value);
    }
    // Thoughts count against the limit, and the limit must be above what is for them.
    let budget = all
        .get("thinking")
        .and_then(|it| it["budget_tokens"].as_u64());
    let limit = all.get("max_tokens").and_then(Value::as_u64);
    if let (Some(budget), Some(limit)) = (budget, limit)
        && limit <= budget
    {
        all.insert("max_tokens".to_owned(), json!(budget.saturating_add(limit)));
    }
    all
}

/// The longest answer with these parameters, thoughts with it.
pub(super) fn output_tokens_max(given: &Map<String, Value>) -> u64 {
    let limit = params(given).get("max_tokens").and_then(Value::as_u64);
    limit.unwrap_or(MAX_TOKENS)
}

fn thinking(how: &Value) -> Option<Value> {
    let enabled = |budget: u64| Some(json!({"type": "enabled", "budget_tokens": budget}));
    match how {
        Value::String(effort) => match effort.as_str() {
            "minimal" | "low" => enabled(2048),
            "high" => enabled(24_576),
            "none" | "off" => None,
            _ => enabled(8192),
        },
        Value::Number(budget) => budget.as_u64().and_then(enabled),
        Value::Object(how) if how.contains_key("type") => Some(Value::Object(how.clone())),
        Value::Object(how) => enabled(how.get("budget_tokens")?.as_u64()?),
        Value::Bool(true) => enabled(8192),
        Value::Bool(false) | Value::Null | Value::Array(_) => None,
    }
}

/// The conversation: roles alternate, and results come first in the turn after their calls.
fn turns(request: &Request) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        let role = match message.role {
            Role::User | Role::Tool => "user",
            Role::Assistant => "assistant",
        };
        let content = message.parts.iter().filter_map(|it| content(it, request));
        match turns.last_mut() {
            Some(turn) if turn.role == role => turn.content.extend(content),
            _ => {
                let content: Vec<Content> = content.collect();
                // An answer of nothing is not sent back: the provider refuses it.
                if !content.is_empty() {
                    turns.push(Turn { role, content });
                }
            }
        }
    }
    for turn in turns.iter_mut().filter(|it| it.role == "user") {
        turn.content.sort_by_key(|it| !is_result(it));
    }
    turns
}

fn is_result(content: &Content) -> bool {
    matches!(content, Content::Block(block) if block.r#type == "tool_result")
}

fn content(part: &Part, request: &Request) -> Option<Content> {
    let block = match part {
        Part::Text(text) if text.trim().is_empty() => return None,
        Part::Text(text) => Block::text(text.clone()),
        Part::ToolCall(call) => Block {
            r#type: "tool_use",
            id: Some(call.call.clone()),
            name: Some(request.names.to_wire(&call.name)),
            input: Some(if call.arguments.text().trim_start().starts_with('{') {
                call.arguments.clone()
            } else {
                // Only an object may be sent back as arguments.
                Json::from(json!({"arguments": written(&call.arguments)}))
            }),
            ..Block::default()
        },
        Part::ToolResult(result) => Block {
            r#type: "tool_result",
            tool_use_id: Some(result.call.clone()),
            content: (!result.text.is_empty()).then(|| result.text.clone()),
            is_error: result.failed.then_some(true),
            ..Block::default()
        },
        Part::Opaque(opaque) if opaque.provider == PROVIDER => {
            return Some(Content::Raw(opaque.raw.clone()));
        }
        Part::Opaque(_) => return None,
    };
    Some(Content::Block(Box::new(block)))
}

/// Marks the ends of the last two turns of the user for the cache: what this request adds, and what
/// the one before it left there. With system and tools that makes the four that are allowed.
fn mark_ends(turns: &mut [Turn]) {
    let users = turns.iter_mut().rev().filter(|it| it.role == "user");
    for turn in users.take(2) {
        let ours = turn.content.iter_mut().rev().find_map(|it| match it {
            Content::Block(block) => Some(block),
            Content::Raw(_) => None,
        });
        if let Some(block) = ours {
            block.cache_control = Some(json!({"type": "ephemeral"}));
        }
    }
}

#[derive(Deserialize)]
struct Kind {
    r#type: String,
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow)]
    content: Vec<&'a RawValue>,
    stop_reason: Option<String>,
    #[serde(default)]
    usage: Usage,
}

#[derive(Deserialize)]
struct Started {
    message: StartedMessage,
}

#[derive(Deserialize)]
struct StartedMessage {
    #[serde(default)]
    usage: Usage,
}

#[derive(Deserialize)]
struct BlockStarted<'a> {
    index: usize,
    #[serde(borrow)]
    content_block: &'a RawValue,
}

#[derive(Deserialize)]
struct BlockDelta {
    index: usize,
    delta: Map<String, Value>,
}

#[derive(Deserialize)]
struct MessageDelta {
    delta: Stopped,
    #[serde(default)]
    usage: Usage,
}

#[derive(Deserialize)]
struct Stopped {
    stop_reason: Option<String>,
}

/// Each number is of the whole answer so far; one that is missing has not changed.
#[derive(Deserialize, Default)]
struct Usage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl Usage {
    fn take(&mut self, newer: Self) {
        self.input_tokens = newer.input_tokens.or(self.input_tokens);
        self.cache_creation_input_tokens = newer
            .cache_creation_input_tokens
            .or(self.cache_creation_input_tokens);
        self.cache_read_input_tokens = newer
            .cache_read_input_tokens
            .or(self.cache_read_input_tokens);
        self.output_tokens = newer.output_tokens.or(self.output_tokens);
    }

    /// The provider counts apart what came from and went to its cache; the log counts it in.
    fn spent(&self) -> Spend {
        let read = self.cache_read_input_tokens.unwrap_or(0);
        let write = self.cache_creation_input_tokens.unwrap_or(0);
        let fresh = self.input_tokens.unwrap_or(0);
        Spend {
            cache_read_tokens: read,
            cache_write_tokens: write,
            input_tokens: fresh.saturating_add(read).saturating_add(write),
            output_tokens: self.output_tokens.unwrap_or(0),
            ..Spend::default()
        }
    }
}

/// A block as it comes together.
struct Growing {
    /// The block as it began.
    raw: Box<RawValue>,
    block: Map<String, Value>,
    /// The text of a call's input, which comes in pieces of JSON.
    input: String,
    grown: bool,
}

impl Growing {
    fn new(raw: &RawValue) -> Result<Self, serde_json::Error> {
        Ok(Self {
            raw: raw.to_owned(),
            block: serde_json::from_str(raw.get())?,
            input: String::new(),
            grown: false,
        })
    }

    fn kind(&self) -> &str {
        self.block.get("type").and_then(Value::as_str).unwrap_or("")
    }

    /// Shows what is there of it.
    fn show(&self, request: &Request, live: &mut (dyn FnMut(Delta) + Send)) {
        let delta = match self.kind() {
            "tool_use" => Delta::ToolCall(request.names.from_wire(&self.field("name"))),
            "text" => Delta::Text(self.field("text")),
            "thinking" => Delta::Thinking(self.field("thinking")),
            _ => return,
        };
        if !matches!(&delta, Delta::Text(text) | Delta::Thinking(text) if text.is_empty()) {
            live(delta);
        }
    }

    fn field(&self, name: &str) -> String {
        let value = self.block.get(name).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    }

    /// Adds a piece. One of a kind that we do not know is taken as what all known ones are: texts to
    /// append to the fields of the same names.
    fn grow(&mut self, delta: Map<String, Value>) {
        self.grown = true;
        for (key, value) in delta {
            match (key.as_str(), value) {
                ("type", _) => {}
                ("partial_json", Value::String(text)) => self.input.push_str(&text),
                ("citation", citation) => match self.block.get_mut("citations") {
                    Some(Value::Array(citations)) => citations.push(citation),
                    Some(_) | None => {
                        self.block.insert("citations".to_owned(), json!([citation]));
                    }
                },
                (_, Value::String(text)) => match self.block.get_mut(&key) {
                    Some(Value::String(before)) => before.push_str(&text),
                    Some(_) | None => {
                        self.block.insert(key, Value::String(text));
                    }
                },
                (_, value) => {
                    self.block.insert(key, value);
                }
            }
        }
    }

    fn part(mut self, calls: &mut Calls<'_>) -> Option<Part> {
        match self.kind() {
            "text" => Some(Part::Text(self.field("text"))).filter(|it| *it != no_text()),
            "tool_use" => {
                let arguments = match self.block.get("input") {
                    Some(whole) if self.input.is_empty() => whole.to_string(),
                    Some(_) | None => std::mem::take(&mut self.input),
                };
                Some(calls.part(WireCall {
                    id: self.field("id"),
                    name: self.field("name"),
                    arguments,
                }))
            }
            _ => {
                if !self.input.is_empty() {
                    let input = super::calls::arguments(std::mem::take(&mut self.input));
                    self.block.insert("input".to_owned(), input.to_value());
                }
                let raw = if self.grown {
                    Json::from(Value::Object(self.block))
                } else {
                    Json::parse(self.raw.get()).ok()?
                };
                Some(Part::Opaque(Opaque {
                    provider: PROVIDER.to_owned(),
                    raw,
                }))
            }
        }
    }
}

fn no_text() -> Part {
    Part::Text(String::new())
}

/// An answer as it comes together.
#[derive(Default)]
struct Said {
    /// By index.
    blocks: BTreeMap<usize, Growing>,
    usage: Usage,
    stop: Option<String>,
}

impl Said {
    fn take(
        &mut self,
        kind: &str,
        data: &str,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<(), serde_json::Error> {
        match kind {
            "message_start" => {
                let started: Started = serde_json::from_str(data)?;
                self.usage.take(started.message.usage);
            }
            "content_block_start" => {
                let started: BlockStarted<'_> = serde_json::from_str(data)?;
                let block = Growing::new(started.content_block)?;
                block.show(request, live);
                self.blocks.insert(started.index, block);
            }
            "content_block_delta" => {
                let piece: BlockDelta = serde_json::from_str(data)?;
                let text = |key| piece.delta.get(key).and_then(Value::as_str);
                if let Some(text) = text("text") {
                    live(Delta::Text(text.to_owned()));
                }
                if let Some(thought) = text("thinking") {
                    live(Delta::Thinking(thought.to_owned()));
                }
                if let Some(block) = self.blocks.get_mut(&piece.index) {
                    block.grow(piece.delta);
                }
            }
            "message_delta" => {
                let end: MessageDelta = serde_json::from_str(data)?;
                self.usage.take(end.usage);
                self.stop = end.delta.stop_reason.or(self.stop.take());
            }
            // The end of a block, pings, and what a newer server says.
            _ => {}
        }
        Ok(())
    }

    fn answer(self, request: &Request) -> Answer {
        let mut calls = Calls::of(request);
        let blocks = self.blocks.into_values();
        let parts: Vec<Part> = blocks.filter_map(|it| it.part(&mut calls)).collect();
        let finish = match self.stop.as_deref() {
            None | Some("end_turn") if parts.iter().any(|it| matches!(it, Part::ToolCall(_))) => {
                Finish::ToolCalls
            }
            None | Some("end_turn" | "stop_sequence") => Finish::Stop,
            Some("tool_use") => Finish::ToolCalls,
            Some("max_tokens" | "model_context_window_exceeded") => Finish::Length,
            Some("refusal") => Finish::Refused,
            Some(other) => Finish::Other(other.to_owned()),
        };
        Answer {
            message: Message {
                parts,
                role: Role::Assistant,
            },
            finish,
            spent: self.usage.spent(),
        }
    }
}
