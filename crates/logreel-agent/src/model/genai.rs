//! Gemini, Ollama and OpenAI's responses, through the `genai` crate.
//!
//! What it cannot carry: of a thought only its signature comes back, not the block as it came; a stream
//! that was cut is known only by the missing stop reason; `params` that are not ours reach Gemini and
//! OpenAI, while Ollama is told only those that the crate knows; and arguments are a tree by the time
//! we see them, so that their text is ours and not the model's.

use std::sync::Arc;
use std::time::Duration;

use ::genai::adapter::AdapterKind;
use ::genai::chat::{
    ChatMessage, ChatOptions, ChatRequest, ChatResponseFormat, ChatStream, ChatStreamEvent,
    ContentPart, JsonSpec, MessageContent, ReasoningEffort, StopReason, StreamEnd, Tool, ToolCall,
    ToolResponse, Usage,
};
use ::genai::resolver::{AuthData, Endpoint};
use ::genai::{Client, Error, ModelIden, ServiceTarget, webc};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use logreel::core::event::Spend;
use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use super::calls::{Calls, WireCall, written};
use super::http::{Provider, causes};
use super::{Answer, Delta, Finish, Model, ModelError, Request};
use crate::message::{Message, Opaque, Part, Role};

/// Where the provider is, by the prefix of its models.
pub(super) fn base_url(prefix: &str) -> &'static str {
    match prefix {
        "gemini" => "https://generativelanguage.googleapis.com/v1beta/",
        "ollama" => "http://localhost:11434/",
        _ => "https://api.openai.com/v1/",
    }
}

/// A model behind `genai`. It has no debug print: the base URL may hold a secret.
pub(super) struct Genai {
    name: String,
    /// The prefix of the name, which is the provider in opaque parts.
    prefix: String,
    client: Client,
    kind: AdapterKind,
    base_url: Arc<str>,
    provider: Provider,
}

impl Genai {
    /// The model `gemini/NAME`, `ollama/NAME` or `openai-responses/NAME`.
    pub(super) fn new(name: &str, base_url: &str, provider: Provider) -> Result<Self, ModelError> {
        let prefix = name.split_once('/').map_or("", |(prefix, _)| prefix);
        let kind = match prefix {
            "gemini" => AdapterKind::Gemini,
            "ollama" => AdapterKind::Ollama,
            _ => AdapterKind::OpenAIResp,
        };
        // A base without a slash at its end would lose its last part.
        let slash = if base_url.ends_with('/') || base_url.contains('?') {
            ""
        } else {
            "/"
        };
        let client = Client::builder().with_reqwest(provider.client().clone());
        let client = client.build().map_err(|error| ModelError::Invalid {
            message: provider.says(&error.to_string()),
        })?;
        Ok(Self {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            client,
            kind,
            base_url: format!("{base_url}{slash}").into(),
            provider,
        })
    }

    fn target(&self) -> ServiceTarget {
        let model = super::named_model(&self.name);
        // Ollama wants none, and the crate wants one.
        let key = self.provider.key().map_or("none", |key| key.expose());
        ServiceTarget {
            endpoint: Endpoint::from_owned(Arc::clone(&self.base_url)),
            auth: AuthData::from_single(key),
            model: ModelIden::new(self.kind, model.to_owned()),
        }
    }

    fn request(&self, request: &Request) -> ChatRequest {
        let mut messages: Vec<ChatMessage> = Vec::with_capacity(request.messages.len());
        let mut before = None;
        for message in &request.messages {
            let parts = self.parts(message, request);
            if parts.is_empty() {
                continue;
            }
            let content = MessageContent::from_parts(parts);
            match messages.last_mut() {
                Some(last) if before == Some(message.role) => last.content.extend(content),
                _ => messages.push(match message.role {
                    Role::User => ChatMessage::user(content),
                    Role::Assistant => ChatMessage::assistant(content),
                    Role::Tool => ChatMessage::tool(content),
                }),
            }
            before = Some(message.role);
        }
        let mut all = ChatRequest::from_messages(messages);
        if let Some(system) = &request.system {
            all = all.with_system(system.to_string());
        }
        let tools = request.tools.iter().map(|tool| {
            Tool::new(request.names.to_wire(&tool.name))
                .with_description(&tool.description)
                .with_schema(tool.schema.clone())
        });
        if request.tools.is_empty() {
            all
        } else {
            all.with_tools(tools)
        }
    }

    fn parts(&self, message: &Message, request: &Request) -> Vec<ContentPart> {
        let mut parts = Vec::new();
        let mut signatures: Vec<String> = Vec::new();
        for part in &message.parts {
            match part {
                Part::Text(text) if text.is_empty() => {}
                Part::Text(text) => {
                    parts.extend(signatures.drain(..).map(ContentPart::ThoughtSignature));
                    parts.push(ContentPart::Text(text.clone()));
                }
                Part::ToolCall(call) => parts.push(ContentPart::ToolCall(ToolCall {
                    call_id: call.call.clone(),
                    fn_name: request.names.to_wire(&call.name),
                    fn_arguments: match call.arguments.to_value() {
                        Value::Object(arguments) => Value::Object(arguments),
                        _ => json!({"arguments": written(&call.arguments)}),
                    },
                    thought_signatures: (!signatures.is_empty())
                        .then(|| std::mem::take(&mut signatures)),
                })),
                Part::ToolResult(result) => {
                    let text = match result.failed {
                        true => format!("error: {}", result.text),
                        false => result.text.clone(),
                    };
                    let name = request.names.to_wire(&result.name);
                    let response = ToolResponse::new(&result.call, text).with_fn_name(name);
                    parts.push(ContentPart::ToolResponse(response));
                }
                Part::Opaque(opaque) if opaque.provider == self.prefix => {
                    let signature = opaque.raw.to_value();
                    let signature = signature["thought_signature"].as_str();
                    signatures.extend(signature.map(str::to_owned));
                }
                Part::Opaque(_) => {}
            }
        }
        parts.extend(signatures.into_iter().map(ContentPart::ThoughtSignature));
        parts
    }

    fn options(&self, request: &Request) -> ChatOptions {
        let mut options = ChatOptions::default()
            .with_capture_content(true)
            .with_capture_tool_calls(true)
            .with_capture_usage(true);
        // OpenAI's models that do not reason refuse to be asked for their thoughts.
        let reasons = request.params.contains_key("reasoning");
        if reasons || self.kind == AdapterKind::Gemini {
            options = options.with_capture_reasoning_content(true);
        }
        let mut others = Map::new();
        for (key, value) in request.params.iter() {
            match (key.as_str(), value) {
                ("max_output_tokens", Value::Number(limit)) => {
                    let limit = limit.as_u64().and_then(|it| u32::try_from(it).ok());
                    options.max_tokens = limit;
                }
                ("temperature", Value::Number(it)) => options.temperature = it.as_f64(),
                ("top_p", Value::Number(it)) => options.top_p = it.as_f64(),
                ("seed", Value::Number(it)) => options.seed = it.as_u64(),
                ("reasoning", how) => options.reasoning_effort = effort(how),
                _ => {
                    others.insert(key.clone(), value.clone());
                }
            }
        }
        if !others.is_empty() {
            options = options.with_extra_body(Value::Object(others));
        }
        if let Some(schema) = &request.output_schema {
            let spec = JsonSpec::new("answer", schema.as_ref().clone());
            options = options.with_response_format(ChatResponseFormat::JsonSpec(spec));
        }
        options
    }

    /// Listens until the end, which the crate tells also of a stream that was cut.
    async fn listen(
        &self,
        mut stream: ChatStream,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<StreamEnd, ModelError> {
        let mut begun = Vec::new();
        let mut patience = self.provider.timeouts().begin;
        while let Some(event) = self.within(patience, stream.next()).await? {
            patience = self.provider.timeouts().idle;
            match event.map_err(|error| self.failed(error))? {
                ChatStreamEvent::Chunk(chunk) if !chunk.content.is_empty() => {
                    live(Delta::Text(chunk.content));
                }
                ChatStreamEvent::ReasoningChunk(chunk) if !chunk.content.is_empty() => {
                    live(Delta::Thinking(chunk.content));
                }
                // Each is the call so far.
                ChatStreamEvent::ToolCallChunk(chunk)
                    if !begun.contains(&chunk.tool_call.call_id) =>
                {
                    let name = request.names.from_wire(&chunk.tool_call.fn_name);
                    live(Delta::ToolCall(name));
                    begun.push(chunk.tool_call.call_id);
                }
                ChatStreamEvent::End(end) => return Ok(end),
                ChatStreamEvent::Start
                | ChatStreamEvent::Chunk(_)
                | ChatStreamEvent::ReasoningChunk(_)
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::Heartbeat => {}
            }
        }
        Err(self.provider.retryable("the answer was cut"))
    }

    async fn within<T>(
        &self,
        patience: Duration,
        what: impl Future<Output = T>,
    ) -> Result<T, ModelError> {
        let late = |_| {
            self.provider
                .retryable(&format!("nothing came for {patience:?}"))
        };
        tokio::time::timeout(patience, what).await.map_err(late)
    }

    fn answer_of(&self, end: StreamEnd, request: &Request) -> Result<Answer, ModelError> {
        let cut = || self.provider.retryable("the answer was cut");
        let stop = end.captured_stop_reason.ok_or_else(cut)?;
        let content = end.captured_content.unwrap_or_default().into_parts();
        // A signature stands before the call it belongs to, once.
        let of_calls: Vec<String> = content
            .iter()
            .filter_map(ContentPart::as_tool_call)
            .flat_map(|call| call.thought_signatures.clone().unwrap_or_default())
            .collect();
        let mut parts = Vec::with_capacity(content.len());
        let mut calls = Calls::of(request);
        for part in content {
            match part {
                ContentPart::Text(text) if !text.is_empty() => parts.push(Part::Text(text)),
                ContentPart::ThoughtSignature(signature) if !of_calls.contains(&signature) => {
                    parts.push(self.signature(&signature));
                }
                ContentPart::ToolCall(call) => {
                    let signatures = call.thought_signatures.unwrap_or_default();
                    parts.extend(signatures.iter().map(|it| self.signature(it)));
                    // The crate makes ids up for Gemini, and they come again in the next answer.
                    let made_up = call.call_id.starts_with("call#");
                    let id = if made_up { String::new() } else { call.call_id };
                    parts.push(calls.part(WireCall {
                        id,
                        name: call.fn_name,
                        arguments: match call.fn_arguments {
                            Value::Null => String::new(),
                            Value::String(text) => text,
                            other => other.to_string(),
                        },
                    }));
                }
                ContentPart::Text(_)
                | ContentPart::ThoughtSignature(_)
                | ContentPart::Binary(_)
                | ContentPart::ToolResponse(_)
                | ContentPart::ReasoningContent(_)
                | ContentPart::Custom(_) => {}
            }
        }
        let called = parts.iter().any(|it| matches!(it, Part::ToolCall(_)));
        let finish = match stop {
            StopReason::Completed(_) | StopReason::StopSequence(_) if called => Finish::ToolCalls,
            StopReason::Completed(_) | StopReason::StopSequence(_) => Finish::Stop,
            StopReason::MaxTokens(_) => Finish::Length,
            StopReason::ToolCall(_) => Finish::ToolCalls,
            StopReason::ContentFilter(_) => Finish::Refused,
            StopReason::Other(other) => Finish::Other(other),
        };
        Ok(Answer {
            message: Message {
                parts,
                role: Role::Assistant,
            },
            finish,
            spent: spent(&end.captured_usage.unwrap_or_default()),
        })
    }

    fn signature(&self, signature: &str) -> Part {
        Part::Opaque(Opaque {
            provider: self.prefix.clone(),
            raw: json!({"thought_signature": signature}).into(),
        })
    }

    fn failed(&self, error: Error) -> ModelError {
        if let (Some(status), Some(headers)) = (error.status(), error.headers()) {
            let body = match &error {
                Error::HttpError { body, .. }
                | Error::WebModelCall {
                    webc_error: webc::Error::ResponseFailedStatus { body, .. },
                    ..
                } => body.as_str(),
                _ => "",
            };
            return self.provider.by_status(status, headers, body);
        }
        match error {
            Error::WebModelCall {
                webc_error: webc::Error::Reqwest(error),
                ..
            } => self.provider.retryable(&causes(error)),
            Error::WebModelCall { .. } | Error::StreamParse { .. } => {
                self.provider.retryable("not an answer")
            }
            // What went wrong at the start of a stream comes wrapped.
            Error::WebStream { cause, error, .. } => match error.downcast::<Error>() {
                Ok(inner) => self.failed(*inner),
                Err(error) => match error.downcast::<reqwest::Error>() {
                    Ok(error) => self.provider.retryable(&causes(*error)),
                    Err(_) => self.provider.retryable(&cause),
                },
            },
            Error::ChatResponse { body, .. } => {
                let code = body["error"]["code"].as_u64();
                let code = code.and_then(|it| u16::try_from(it).ok());
                match code.and_then(|it| StatusCode::from_u16(it).ok()) {
                    Some(status) => {
                        let headers = reqwest::header::HeaderMap::new();
                        self.provider.by_status(status, &headers, &body.to_string())
                    }
                    None => self.provider.by_body(&body),
                }
            }
            Error::ChatResponseGeneration { cause, .. } => self.provider.retryable(&cause),
            other => ModelError::Invalid {
                message: self.provider.says(&other.to_string()),
            },
        }
    }
}

#[async_trait]
impl Model for Genai {
    fn name(&self) -> &str {
        &self.name
    }

    async fn answer(
        &self,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError> {
        let (chat, options) = (self.request(request), self.options(request));
        let asked = self
            .client
            .exec_chat_stream(self.target(), chat, Some(&options));
        let begin = self.provider.timeouts().begin;
        let reply = self.within(begin, asked).await?;
        let reply = reply.map_err(|error| self.failed(error))?;
        let end = self.listen(reply.stream, request, live).await?;
        self.answer_of(end, request)
    }
}

fn effort(how: &Value) -> Option<ReasoningEffort> {
    let budget = |it: &Value| {
        let tokens = u32::try_from(it.as_u64()?).ok()?;
        Some(ReasoningEffort::Budget(tokens))
    };
    match how {
        Value::String(effort) => ReasoningEffort::from_keyword(effort),
        Value::Number(_) => budget(how),
        Value::Object(how) => match (how.get("effort"), how.get("budget_tokens")) {
            (Some(Value::String(effort)), _) => ReasoningEffort::from_keyword(effort),
            (_, Some(tokens)) => budget(tokens),
            (_, None) => None,
        },
        Value::Null | Value::Bool(_) | Value::Array(_) => None,
    }
}

fn spent(usage: &Usage) -> Spend {
    let count = |it: Option<i32>| it.and_then(|it| u64::try_from(it).ok()).unwrap_or(0);
    let input = usage.prompt_tokens_details.as_ref();
    let output = usage.completion_tokens_details.as_ref();
    Spend {
        cache_read_tokens: count(input.and_then(|it| it.cached_tokens)),
        cache_write_tokens: count(input.and_then(|it| it.cache_creation_tokens)),
        input_tokens: count(usage.prompt_tokens),
        output_tokens: count(usage.completion_tokens),
        reasoning_tokens: count(output.and_then(|it| it.reasoning_tokens)),
        usd_micros: None,
    }
}
