//! Codex: `codex exec --json`, and its session files (`~/.codex/sessions/**/rollout-*.jsonl`), whose lines
//! are {timestamp, type, payload}.

use logreel::core::event::Spend;
use serde_json::{Value, json};

use super::facts::{Facts, count, words};
use crate::message::{Part, Role, ToolCall};

const PROVIDER: &str = "openai";
const MODEL: &str = "codex";

#[derive(Default)]
pub(super) struct Codex {
    model: Option<String>,
    /// What a session has used so far; it is said again and again.
    total: Option<Value>,
    calls: u32,
}

impl Codex {
    /// Whether the line was understood.
    pub(super) fn line(&mut self, line: &Value, facts: &mut Facts) -> bool {
        if line["payload"].is_object() {
            return self.session_line(line, facts);
        }
        match line["type"].as_str() {
            Some("thread.started") => {
                facts.session = line["thread_id"].as_str().map(str::to_owned);
                facts.custom("codex.thread.started".to_owned(), line.clone());
                true
            }
            Some("turn.started") => {
                facts.begin_turn();
                let call = format!("turn-{}", facts.turns());
                facts.call_model(&call, self.model.as_deref().unwrap_or(MODEL));
                true
            }
            Some("turn.completed") => {
                self.turn_ended(facts);
                if let Some(open) = facts.open_model() {
                    open.spent = spend(&line["usage"]);
                }
                facts.answer_model(None);
                facts.end_turn();
                facts.succeed();
                true
            }
            Some("turn.failed") => {
                let message = words(&line["error"]["message"]);
                self.turn_ended(facts);
                facts.fail_model(&message);
                facts.end_turn();
                facts.fail(&message);
                true
            }
            Some("error") => {
                // It may try again; only a turn that fails is a failure.
                facts.custom("codex.error".to_owned(), line.clone());
                true
            }
            Some("item.started" | "item.updated") => item(&line["item"], false, facts),
            Some("item.completed") => item(&line["item"], true, facts),
            _ => false,
        }
    }

    /// A turn whose beginning was not seen was paid for all the same.
    fn turn_ended(&self, facts: &mut Facts) {
        if facts.open_model().is_none() {
            facts.begin_turn();
            let call = format!("turn-{}", facts.turns());
            facts.call_model(&call, self.model.as_deref().unwrap_or(MODEL));
        }
    }

    fn session_line(&mut self, line: &Value, facts: &mut Facts) -> bool {
        let payload = &line["payload"];
        match (line["type"].as_str(), payload["type"].as_str()) {
            (Some("session_meta"), _) => {
                facts.session = payload["id"].as_str().map(str::to_owned);
                facts.custom("codex.session_meta".to_owned(), payload.clone());
                true
            }
            (Some("turn_context"), _) => {
                self.model = payload["model"].as_str().map(str::to_owned);
                facts.begin_turn();
                true
            }
            (Some("response_item"), Some(kind)) => response(kind, payload, facts),
            (Some("event_msg"), Some("token_count")) => {
                self.tokens(&payload["info"], facts);
                true
            }
            // The same words as the items', for whoever watches.
            (
                Some("event_msg"),
                Some(
                    "user_message"
                    | "agent_message"
                    | "agent_reasoning"
                    | "agent_reasoning_raw_content",
                ),
            ) => true,
            (Some("event_msg"), Some(kind)) => {
                facts.custom(format!("codex.{kind}"), payload.clone());
                true
            }
            (Some("compacted"), _) => {
                facts.custom("codex.compacted".to_owned(), payload.clone());
                true
            }
            _ => false,
        }
    }

    fn tokens(&mut self, info: &Value, facts: &mut Facts) {
        let total = &info["total_token_usage"];
        if !total.is_object() || self.total.as_ref() == Some(total) {
            return;
        }
        self.total = Some(total.clone());
        self.calls += 1;
        let call = format!("call-{}", self.calls);
        facts.call_model(&call, self.model.as_deref().unwrap_or(MODEL));
        if let Some(open) = facts.open_model() {
            open.spent = spend(&info["last_token_usage"]);
        }
        facts.answer_model(None);
    }
}

/// An item of `exec --json`. What is under way is announced, what is done has its outcome.
fn item(item: &Value, done: bool, facts: &mut Facts) -> bool {
    let (Some(id), Some(kind)) = (item["id"].as_str(), item["type"].as_str()) else {
        return false;
    };
    match kind {
        "agent_message" => {
            let Some(text) = item["text"].as_str() else {
                return false;
            };
            if done {
                facts.answer(text.into());
                facts.message(Role::Assistant, vec![Part::Text(text.to_owned())]);
            }
        }
        "reasoning" => {
            if done {
                facts.message(Role::Assistant, vec![Facts::opaque(PROVIDER, item)]);
            }
        }
        "todo_list" => facts.plan(item["items"].clone()),
        "error" => {
            if done {
                facts.custom("codex.error".to_owned(), item.clone());
            }
        }
        "command_execution" => {
            let arguments = json!({"command": item["command"]});
            let output = json!({
                "output": item["aggregated_output"],
                "exit_code": item["exit_code"],
            });
            let failed = item["exit_code"].is_null() && item["status"] == "failed";
            tool(id, "command_execution", arguments, facts);
            outcome(
                id,
                done,
                failed.then(|| words(&item["aggregated_output"])),
                output,
                facts,
            );
        }
        "file_change" => {
            tool(
                id,
                "file_change",
                json!({"changes": item["changes"]}),
                facts,
            );
            let failed =
                (item["status"] == "failed").then(|| "the patch was not applied".to_owned());
            outcome(id, done, failed, item["status"].clone(), facts);
        }
        "mcp_tool_call" => {
            let name = format!("{}.{}", words(&item["server"]), words(&item["tool"]));
            tool(id, &name, item["arguments"].clone(), facts);
            let error = item["error"]["message"].as_str().map(str::to_owned);
            let failed =
                error.or_else(|| (item["status"] == "failed").then(|| "failed".to_owned()));
            outcome(id, done, failed, item["result"].clone(), facts);
        }
        "web_search" => {
            tool(id, "web_search", json!({"query": item["query"]}), facts);
            outcome(id, done, None, Value::Null, facts);
        }
        _ => return false,
    }
    true
}

fn tool(id: &str, name: &str, arguments: Value, facts: &mut Facts) {
    let call = Part::ToolCall(ToolCall {
        arguments: arguments.clone().into(),
        call: id.to_owned(),
        name: name.to_owned(),
    });
    if !facts.has_called(id) {
        facts.message(Role::Assistant, vec![call]);
        facts.call_tool(id, name, arguments);
    }
}

fn outcome(id: &str, done: bool, failed: Option<String>, output: Value, facts: &mut Facts) {
    if !done {
        return;
    }
    let text = failed.clone().unwrap_or_else(|| words(&output));
    let told = facts.result(id, failed.is_some(), text);
    match failed {
        Some(message) => facts.tool_failed(id, &message),
        None => facts.tool_returned(id, output),
    }
    facts.message(Role::Tool, vec![told]);
}

/// An item of a session file, as the model's interface has it.
fn response(kind: &str, item: &Value, facts: &mut Facts) -> bool {
    let call = item["call_id"].as_str().or(item["id"].as_str());
    match (kind, call) {
        ("message", _) => {
            let Some(content) = item["content"].as_array() else {
                return false;
            };
            let role = match item["role"].as_str() {
                Some("assistant") => Role::Assistant,
                _ => Role::User,
            };
            let parts: Vec<Part> = content
                .iter()
                .map(|part| match part["text"].as_str() {
                    Some(text) => Part::Text(text.to_owned()),
                    None => Facts::opaque(PROVIDER, part),
                })
                .collect();
            let said: String = content
                .iter()
                .filter_map(|part| part["text"].as_str())
                .collect();
            if role == Role::Assistant && !said.is_empty() {
                facts.answer(said.into());
            }
            facts.message(role, parts);
            true
        }
        ("reasoning", _) => {
            facts.message(Role::Assistant, vec![Facts::opaque(PROVIDER, item)]);
            true
        }
        ("function_call" | "custom_tool_call" | "local_shell_call", Some(call)) => {
            let name = item["name"].as_str().unwrap_or("local_shell");
            let said = [&item["arguments"], &item["input"], &item["action"]];
            let said = said.into_iter().find(|it| !it.is_null());
            let said = said.cloned().unwrap_or_default();
            // Arguments are JSON in a text.
            let arguments = said
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok());
            tool(call, name, arguments.unwrap_or(said), facts);
            true
        }
        (
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output",
            Some(call),
        ) => {
            let output = &item["output"];
            let failed = (output["success"] == false).then(|| words(&output["content"]));
            outcome(call, true, failed, output.clone(), facts);
            true
        }
        ("web_search_call" | "ghost_snapshot" | "compaction" | "other", _) => {
            facts.custom(format!("codex.{kind}"), item.clone());
            true
        }
        _ => false,
    }
}

/// Their input tokens count those of the cache in, as ours do.
fn spend(usage: &Value) -> Spend {
    Spend {
        cache_read_tokens: count(usage, "cached_input_tokens"),
        cache_write_tokens: 0,
        input_tokens: count(usage, "input_tokens"),
        output_tokens: count(usage, "output_tokens"),
        reasoning_tokens: count(usage, "reasoning_output_tokens"),
        usd_micros: None,
    }
}
