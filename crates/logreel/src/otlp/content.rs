//! What was said, as the conventions write it: read from the log when it is asked for.

use logreel_core::{Digest, Payload};
use logreel_store::RunStore;
use serde_json::{Value, json};

use super::span::{Attribute, Content, Span};
use crate::{Error, value};

/// Completes a span from the store: the parameters of a model call, and with `content` what was said.
pub async fn fill(store: &dyn RunStore, span: &mut Span, content: bool) -> Result<(), Error> {
    for said in std::mem::take(&mut span.content) {
        if let Content::Told(digest) = &said {
            let told = blob(store, digest).await?;
            told_to(span, &told, content);
            continue;
        }
        if !content {
            continue;
        }
        let (key, text) = match said {
            Content::Told(_) => continue,
            Content::Error(message) => {
                span.message = Some(message);
                continue;
            }
            Content::Value(key, payload) => (
                key,
                value::resolve(store, &payload).await?.text().to_owned(),
            ),
            Content::Input(payload) => {
                let message = message("user", &said_in(store, &payload).await?);
                ("gen_ai.input.messages", json!([message]).to_string())
            }
            Content::Output(payload) => {
                let message = message("assistant", &said_in(store, &payload).await?);
                ("gen_ai.output.messages", json!([message]).to_string())
            }
            Content::Context(node) => {
                let messages = conversation(store, node).await?;
                ("gen_ai.input.messages", Value::from(messages).to_string())
            }
            Content::Answer(payload, finish) => {
                let answer = value::resolve(store, &payload).await?.to_value();
                let mut message = converted(&answer);
                message["finish_reason"] = finish.map(Value::from).unwrap_or_default();
                ("gen_ai.output.messages", json!([message]).to_string())
            }
        };
        span.attributes.push((key, Attribute::Text(text)));
    }
    Ok(())
}

fn told_to(span: &mut Span, told: &Value, content: bool) {
    let params = &told["params"];
    let numbers = [
        ("max_output_tokens", "gen_ai.request.max_tokens"),
        ("temperature", "gen_ai.request.temperature"),
        ("top_p", "gen_ai.request.top_p"),
    ];
    for (name, key) in numbers {
        let value = match (params[name].as_i64(), params[name].as_f64()) {
            (Some(number), _) if name == "max_output_tokens" => Attribute::Number(number),
            (_, Some(number)) => Attribute::Double(number),
            _ => continue,
        };
        span.attributes.push((key, value));
    }
    if !content {
        return;
    }
    if let Some(system) = told["system"].as_str() {
        let text = json!([{"type": "text", "content": system}]).to_string();
        let key = "gen_ai.system_instructions";
        span.attributes.push((key, Attribute::Text(text)));
    }
    let tools = told["tools"].as_array().into_iter().flatten();
    let tools: Vec<Value> = tools
        .map(|tool| {
            json!({
                "type": "function",
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["schema"],
            })
        })
        .collect();
    if !tools.is_empty() {
        let text = Value::from(tools).to_string();
        let key = "gen_ai.tool.definitions";
        span.attributes.push((key, Attribute::Text(text)));
    }
}

/// A value as words.
async fn said_in(store: &dyn RunStore, payload: &Payload) -> Result<String, Error> {
    let json = value::resolve(store, payload).await?;
    Ok(match json.to_value() {
        Value::String(text) => text,
        _ => json.text().to_owned(),
    })
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "parts": [{"type": "text", "content": text}]})
}

/// The conversation up to a node, oldest first.
async fn conversation(store: &dyn RunStore, node: Digest) -> Result<Vec<Value>, Error> {
    let mut messages = Vec::new();
    let mut next = Some(node);
    while let Some(digest) = next {
        let node = blob(store, &digest).await?;
        messages.push(converted(&node["message"]));
        next = node["previous"].as_str().and_then(|it| it.parse().ok());
    }
    messages.reverse();
    Ok(messages)
}

async fn blob(store: &dyn RunStore, digest: &Digest) -> Result<Value, Error> {
    let bytes = store.blob(digest).await?;
    let read = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(read.unwrap_or_default())
}

/// A message as the conventions write it.
fn converted(message: &Value) -> Value {
    let parts = message["parts"].as_array().into_iter().flatten();
    let parts: Vec<Value> = parts
        .map(|part| {
            let (call, result) = (&part["tool_call"], &part["tool_result"]);
            if let Some(text) = part["text"].as_str() {
                json!({"type": "text", "content": text})
            } else if call.is_object() {
                json!({
                    "type": "tool_call",
                    "id": call["call"],
                    "name": call["name"],
                    "arguments": call["arguments"],
                })
            } else if result.is_object() {
                json!({
                    "type": "tool_call_response",
                    "id": result["call"],
                    "response": result["text"],
                })
            } else {
                // Only its provider understands it.
                json!({"type": "opaque"})
            }
        })
        .collect();
    json!({"role": message["role"], "parts": parts})
}
