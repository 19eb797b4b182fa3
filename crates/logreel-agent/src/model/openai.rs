//! OpenAI's chat completions, and every server that speaks them.
//!
//! Nothing of an answer is kept for the provider alone: thoughts that some servers add
//! (`reasoning_content`) are shown live and not sent back, as those servers ask.

use async_trait::async_trait;
use logreel::core::event::Spend;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::calls::{Calls, WireCall, written};
use super::http::{Events, Provider};
use super::{Answer, Delta, Finish, Model, ModelError, Request, named_model};
use crate::message::{Message, Part, Role};

/// Where OpenAI is.
pub(super) const BASE_URL: &str = "https://api.openai.com/v1";

/// A model behind chat completions.
#[derive(Debug)]
pub(super) struct OpenAi {
    name: String,
    provider: Provider,
    /// OpenAI itself: newer parameters, where others know only the older ones.
    genuine: bool,
}

impl OpenAi {
    /// The model `openai/NAME`.
    pub(super) fn new(name: &str, provider: Provider) -> Result<Self, ModelError> {
        let domains = ["openai.com", "openai.azure.com"];
        let genuine = domains.iter().any(|it| provider.is_at(it));
        Ok(Self {
            name: name.to_owned(),
            provider: provider.key_in("authorization", "Bearer ")?,
            genuine,
        })
    }

    fn body(&self, request: &Request) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(named_model(&self.name)));
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        if !request.tools.is_empty() {
            body.insert("tools".to_owned(), tools(request));
        }
        if let Some(schema) = &request.output_schema {
            let named = json!({"name": "answer", "schema": schema});
            body.insert(
                "response_format".to_owned(),
                json!({"type": "json_schema", "json_schema": named}),
            );
        }
        for (key, value) in request.params.iter() {
            let (key, value) = match (key.as_str(), value) {
                ("model" | "messages" | "tools", _) => continue,
                ("max_output_tokens", limit) if self.genuine => ("max_completion_tokens", limit),
                ("max_output_tokens", limit) => ("max_tokens", limit),
                ("reasoning", Value::String(_)) => ("reasoning_effort", value),
                ("reasoning", Value::Object(how)) if how.len() == 1 => match how.get("effort") {
                    Some(effort) => ("reasoning_effort", effort),
                    None => ("reasoning", value),
                },
                (other, value) => (other, value),
            };
            body.insert(key.to_owned(), value.clone());
        }
        if body.get("stream") != Some(&Value::Bool(true)) {
            body.remove("stream_options");
        }
        body.insert("messages".to_owned(), json!(messages(request)));
        body
    }
}

#[async_trait]
impl Model for OpenAi {
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
            let chunk = self.chunk(&reply.whole().await?)?;
            said.take(chunk, request, live);
        } else {
            self.listen(reply.events(), &mut said, request, live)
                .await?;
        }
        said.answer(request)
            .ok_or_else(|| self.provider.retryable("the answer was cut"))
    }
}

impl OpenAi {
    async fn listen(
        &self,
        mut events: Events<'_>,
        said: &mut Said,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<(), ModelError> {
        while let Some(event) = events.next().await? {
            if event.data == "[DONE]" {
                break;
            }
            let chunk = self.chunk(&event.data)?;
            said.take(chunk, request, live);
        }
        Ok(())
    }

    fn chunk(&self, data: &str) -> Result<Chunk, ModelError> {
        let no_json = |error| self.provider.retryable(&format!("not an answer: {error}"));
        let chunk: Chunk = serde_json::from_str(data).map_err(no_json)?;
        match &chunk.error {
            Some(error) if !error.is_null() => Err(self.provider.by_body(&json!({"error": error}))),
            Some(_) | None => Ok(chunk),
        }
    }
}

/// A request's message.
#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum WireMessage {
    System {
        content: String,
    },
    User {
        content: String,
    },
    Assistant {
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Value>,
    },
    Tool {
        tool_call_id: String,
        content: String,
    },
}

fn tools(request: &Request) -> Value {
    let tools = request.tools.iter().map(|tool| {
        json!({"type": "function", "function": {
            "name": request.names.to_wire(&tool.name),
            "description": tool.description,
            "parameters": tool.schema,
        }})
    });
    tools.collect()
}

fn messages(request: &Request) -> Vec<WireMessage> {
    let mut all = Vec::with_capacity(request.messages.len() + 1);
    if let Some(system) = &request.system {
        all.push(WireMessage::System {
            content: system.to_string(),
        });
    }
    for message in &request.messages {
        match message.role {
            Role::Assistant => all.extend(assistant(message, request)),
            Role::User | Role::Tool => {
                all.extend(results(message));
                let words = message.words();
                match all.last_mut() {
                    _ if words.is_empty() => {}
                    // Some servers' templates insist that roles alternate.
                    Some(WireMessage::User { content }) => {
                        content.push_str("\n\n");
                        content.push_str(&words);
                    }
                    _ => all.push(WireMessage::User { content: words }),
                }
            }
        }
    }
    all
}

fn assistant(message: &Message, request: &Request) -> Option<WireMessage> {
    let calls = message.tool_calls().map(|call| {
        json!({"id": call.call, "type": "function", "function": {
            "name": request.names.to_wire(&call.name),
            "arguments": written(&call.arguments),
        }})
    });
    let tool_calls: Vec<Value> = calls.collect();
    let words = message.words();
    // An answer of nothing is not sent back: servers refuse it.
    (!words.is_empty() || !tool_calls.is_empty()).then(|| WireMessage::Assistant {
        content: (!words.is_empty()).then_some(words),
        tool_calls,
    })
}

fn results(message: &Message) -> impl Iterator<Item = WireMessage> {
    message.parts.iter().filter_map(|part| match part {
        Part::ToolResult(result) => Some(WireMessage::Tool {
            tool_call_id: result.call.clone(),
            // There is no flag for a failure here: the words say it.
            content: match result.failed {
                true if !result.text.to_lowercase().starts_with("error") => {
                    format!("error: {}", result.text)
                }
                true | false => result.text.clone(),
            },
        }),
        Part::Text(_) | Part::ToolCall(_) | Part::Opaque(_) => None,
    })
}

/// A piece of an answer, or all of it: a server that does not stream says `message` for `delta`.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Piece>,
    message: Option<Piece>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Piece {
    content: Option<Content>,
    refusal: Option<String>,
    /// Two names of the same, and some servers send both.
    reasoning_content: Option<Value>,
    reasoning: Option<Value>,
    tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

impl Content {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => {
                let texts = parts.iter().filter_map(|it| it.get("text")?.as_str());
                texts.collect()
            }
        }
    }
}

#[derive(Deserialize)]
struct CallPiece {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<InputDetails>,
    completion_tokens_details: Option<OutputDetails>,
}

#[derive(Deserialize)]
struct InputDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl Usage {
    fn spent(&self) -> Spend {
        let (input, output) = (&self.prompt_tokens_details, &self.completion_tokens_details);
        let cached = input.as_ref().and_then(|it| it.cached_tokens);
        let reasoning = output.as_ref().and_then(|it| it.reasoning_tokens);
        Spend {
            cache_read_tokens: cached.unwrap_or(0),
            input_tokens: self.prompt_tokens.unwrap_or(0),
            output_tokens: self.completion_tokens.unwrap_or(0),
            reasoning_tokens: reasoning.unwrap_or(0),
            ..Spend::default()
        }
    }
}

/// An answer as it comes together.
#[derive(Default)]
struct Said {
    text: String,
    refusal: String,
    /// The calls, each with the server's index for it.
    calls: Vec<(Option<usize>, WireCall)>,
    finish: Option<String>,
    spent: Spend,
}

impl Said {
    fn take(&mut self, chunk: Chunk, request: &Request, live: &mut (dyn FnMut(Delta) + Send)) {
        if let Some(usage) = &chunk.usage {
            self.spent = usage.spent();
        }
        let Some(choice) = chunk.choices.into_iter().flatten().next() else {
            return;
        };
        if choice.finish_reason.is_some() {
            self.finish = choice.finish_reason;
        }
        let Some(piece) = choice.delta.or(choice.message) else {
            return;
        };
        if let Some(Value::String(thought)) = piece.reasoning_content.or(piece.reasoning)
            && !thought.is_empty()
        {
            live(Delta::Thinking(thought));
        }
        let text = piece.content.map(Content::text).unwrap_or_default();
        if !text.is_empty() {
            self.text.push_str(&text);
            live(Delta::Text(text));
        }
        self.refusal.push_str(&piece.refusal.unwrap_or_default());
        for call in piece.tool_calls.unwrap_or_default() {
            self.take_call(call, request, live);
        }
    }

    /// Calls come together by their index. Servers that leave it out, or give each call the same one,
    /// begin a call with a new id, or else with a name.
    fn take_call(
        &mut self,
        piece: CallPiece,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) {
        let id = piece.id.unwrap_or_default();
        let name = piece.function.as_ref().and_then(|it| it.name.as_deref());
        let begins =
            piece.index.is_none() && id.is_empty() && name.is_some_and(|it| !it.is_empty());
        let known = self.calls.iter().rposition(|(index, call)| {
            !begins
                && (piece.index.is_none() || piece.index == *index)
                && (id.is_empty() || call.id == id)
        });
        let at = known.unwrap_or_else(|| {
            let call = WireCall {
                id,
                ..WireCall::default()
            };
            self.calls.push((piece.index, call));
            self.calls.len() - 1
        });
        let call = &mut self.calls[at].1;
        let Some(function) = piece.function else {
            return;
        };
        if let Some(name) = function.name.filter(|it| !it.is_empty())
            && call.name.is_empty()
        {
            live(Delta::ToolCall(request.names.from_wire(&name)));
            call.name = name;
        }
        match function.arguments {
            Some(Value::String(text)) => call.arguments.push_str(&text),
            // Not what the format says, but what it means.
            Some(Value::Object(whole)) => call.arguments = Value::Object(whole).to_string(),
            Some(_) | None => {}
        }
    }

    /// The whole; none when the server never said that it was done.
    fn answer(self, request: &Request) -> Option<Answer> {
        let finish = match self.finish?.as_str() {
            _ if !self.refusal.is_empty() => Finish::Refused,
            "content_filter" => Finish::Refused,
            "length" => Finish::Length,
            "stop" | "tool_calls" | "function_call" | "" if !self.calls.is_empty() => {
                Finish::ToolCalls
            }
            "stop" | "tool_calls" | "function_call" | "" => Finish::Stop,
            other => Finish::Other(other.to_owned()),
        };
        let texts = [self.text, self.refusal].into_iter();
        let mut parts: Vec<Part> = texts.filter(|it| !it.is_empty()).map(Part::Text).collect();
        let mut calls = Calls::of(request);
        parts.extend(self.calls.into_iter().map(|(_, call)| calls.part(call)));
        Some(Answer {
            message: Message {
                parts,
                role: Role::Assistant,
            },
            finish,
            spent: self.spent,
        })
    }
}
