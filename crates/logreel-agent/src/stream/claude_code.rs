//! Claude Code: `claude -p --output-format stream-json --verbose`, and its session files
//! (`~/.claude/projects/**/*.jsonl`), whose lines carry the same messages.
//!
//! A message of the model comes in several lines of the same id, a line for each block, each with what
//! the message has cost so far. The last line, `result`, has the sums.

use logreel::core::event::Spend;
use serde_json::{Value, json};

use super::facts::{Facts, count, micros, words};
use crate::message::{Part, Role, ToolCall};

const PROVIDER: &str = "anthropic";

/// Lines that say something about the session and nothing of the conversation.
const ASIDE: [&str; 12] = [
    "agent-name",
    "ai-title",
    "attachment",
    "custom-title",
    "file-history-snapshot",
    "last-prompt",
    "permission-mode",
    "pr-link",
    "progress",
    "queue-operation",
    "summary",
    "tag",
];

#[derive(Default)]
pub(super) struct ClaudeCode {
    /// What was used so far, and since the last result; the next one has a sum.
    counted: Spend,
    since_result: Spend,
    /// What the last result said everything had cost.
    usd_micros: u64,
    results: u32,
    /// A stream ends with a result, which knows the price; a session file does not.
    is_session: bool,
    has_result: bool,
    calls: u64,
}

impl ClaudeCode {
    /// Whether the line was understood.
    pub(super) fn line(&mut self, line: &Value, facts: &mut Facts) -> bool {
        if let Some(session) = line["sessionId"].as_str().or(line["session_id"].as_str()) {
            facts.session = Some(session.to_owned());
        }
        self.is_session |= line["sessionId"].is_string();
        match line["type"].as_str() {
            Some("assistant") => self.assistant(line, facts),
            Some("user") => self.user(line, facts),
            Some("result") => self.result(line, facts),
            Some("system") => {
                facts.custom("claude-code.system".to_owned(), line.clone());
                true
            }
            // Parts of a message that comes whole.
            Some("stream_event") => line["event"].is_object(),
            Some(aside) if ASIDE.contains(&aside) => {
                facts.custom(format!("claude-code.{aside}"), line.clone());
                true
            }
            _ => false,
        }
    }

    fn assistant(&mut self, line: &Value, facts: &mut Facts) -> bool {
        let message = &line["message"];
        let Some(blocks) = blocks(&message["content"]) else {
            return false;
        };
        let uuid = line["uuid"].as_str();
        let id = message["id"].as_str().or(uuid).map(str::to_owned);
        let id = id.unwrap_or_else(|| {
            self.calls += 1;
            format!("message-{}", self.calls)
        });
        if facts.open_model().is_none_or(|open| open.call != id) {
            self.close(facts);
        }
        let model = message["model"].as_str().unwrap_or("claude");
        self.has_result = false;
        facts.call_model(&id, model);
        if let Some(open) = facts.open_model().filter(|open| open.call == id) {
            open.spent = larger(&open.spent, &spend(&message["usage"]));
        }
        let mut parts = Vec::new();
        let mut calls = Vec::new();
        for block in blocks {
            let text = block["text"].as_str();
            let (call, name) = (block["id"].as_str(), block["name"].as_str());
            parts.push(match (block["type"].as_str(), text, call, name) {
                (Some("text"), Some(text), _, _) => Part::Text(text.to_owned()),
                (Some("tool_use"), _, Some(call), Some(name)) => {
                    calls.push((call.to_owned(), name.to_owned(), block["input"].clone()));
                    Part::ToolCall(ToolCall {
                        arguments: block["input"].clone().into(),
                        call: call.to_owned(),
                        name: name.to_owned(),
                    })
                }
                _ => Facts::opaque(PROVIDER, &block),
            });
        }
        let said: String = parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::ToolCall(_) | Part::ToolResult(_) | Part::Opaque(_) => None,
            })
            .collect();
        let is_aside = line["isSidechain"] == true || line["parent_tool_use_id"].is_string();
        if !said.is_empty() && !is_aside {
            facts.answer(said.into());
        }
        facts.message(Role::Assistant, parts);
        for (call, name, input) in calls {
            facts.call_tool(&call, &name, input);
        }
        true
    }

    fn user(&mut self, line: &Value, facts: &mut Facts) -> bool {
        let Some(blocks) = blocks(&line["message"]["content"]) else {
            return false;
        };
        self.close(facts);
        let (mut said, mut results) = (Vec::new(), Vec::new());
        for block in blocks {
            match (block["type"].as_str(), block["tool_use_id"].as_str()) {
                (Some("tool_result"), Some(call)) => {
                    let failed = block["is_error"] == true;
                    let text = result_text(&block["content"]);
                    results.push(facts.result(call, failed, text.clone()));
                    match failed {
                        true => facts.tool_failed(call, &text),
                        false => facts.tool_returned(call, text.into()),
                    }
                }
                (Some("text"), _) => said.push(Part::Text(words(&block["text"]))),
                _ => said.push(Facts::opaque(PROVIDER, &block)),
            }
        }
        facts.message(Role::Tool, results);
        facts.message(Role::User, said);
        true
    }

    fn result(&mut self, line: &Value, facts: &mut Facts) -> bool {
        self.has_result = true;
        self.results += 1;
        let total = spend(&line["usage"]);
        // The sum of all, or of what came since the result before.
        let open = facts.open_model().map(|open| open.spent.clone());
        let said = more(&self.counted, &open.unwrap_or_default());
        let is_all = less(&said, &total) == Spend::default();
        let known = if is_all {
            &self.counted
        } else {
            &self.since_result
        };
        let left = less(&total, known);
        let usd = micros(&line["total_cost_usd"]).map(|all| {
            let more = all.saturating_sub(self.usd_micros);
            self.usd_micros = self.usd_micros.max(all);
            more
        });
        if facts.open_model().is_none()
            && (usd.is_some_and(|usd| usd > 0) || left != Spend::default())
        {
            let call = match self.results {
                1 => "result".to_owned(),
                number => format!("result-{number}"),
            };
            facts.call_model(&call, "claude");
        }
        if let Some(open) = facts.open_model() {
            // Of a message that was still being written its lines say too little.
            if line["usage"].is_object() {
                open.spent = left;
            }
            self.counted = more(&self.counted, &open.spent);
            facts.answer_model(usd);
        }
        self.since_result = Spend::default();
        let failed = line["is_error"] == true
            || line["subtype"]
                .as_str()
                .is_some_and(|it| it.starts_with("error"));
        let answer = match &line["structured_output"] {
            Value::Null => &line["result"],
            structured => structured,
        };
        if failed {
            let subtype = line["subtype"].as_str().unwrap_or("error");
            let said = line["result"].as_str().filter(|said| !said.is_empty());
            facts.fail(said.unwrap_or(subtype));
        } else {
            facts.succeed();
            if !answer.is_null() {
                facts.answer(answer.clone());
            }
        }
        let mut about = line.clone();
        if let Some(about) = about.as_object_mut() {
            // The answer is the run's output.
            about.remove("result");
            about.remove("structured_output");
        }
        facts.custom("claude-code.result".to_owned(), about);
        true
    }

    /// The open call has its answer. In a stream its cost comes with the result.
    fn close(&mut self, facts: &mut Facts) {
        if let Some(open) = facts.open_model() {
            self.counted = more(&self.counted, &open.spent);
            self.since_result = more(&self.since_result, &open.spent);
        }
        facts.answer_model((!self.is_session).then_some(0));
    }

    /// A stream that broke off does not say what it cost.
    pub(super) fn finish(&mut self, facts: &mut Facts) {
        if !self.is_session && !self.has_result && self.counted != Spend::default() {
            facts.call_model("unfinished", "claude (broken off)");
        }
    }
}

/// A message's content: a text, or blocks.
fn blocks(content: &Value) -> Option<Vec<Value>> {
    match content {
        Value::String(text) => Some(vec![json!({"type": "text", "text": text})]),
        Value::Array(blocks) => Some(blocks.clone()),
        _ => None,
    }
}

fn result_text(content: &Value) -> String {
    match content {
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| match block["type"].as_str() {
                Some("text") => words(&block["text"]),
                Some(other) => format!("[{other}]"),
                None => words(block),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        other => words(other),
    }
}

/// Their input tokens are without those of the cache; ours count them in.
fn spend(usage: &Value) -> Spend {
    let read = count(usage, "cache_read_input_tokens");
    let written = count(usage, "cache_creation_input_tokens");
    let input = count(usage, "input_tokens");
    Spend {
        cache_read_tokens: read,
        cache_write_tokens: written,
        input_tokens: input.saturating_add(read).saturating_add(written),
        output_tokens: count(usage, "output_tokens"),
        reasoning_tokens: 0,
        usd_micros: None,
    }
}

fn each(one: &Spend, other: &Spend, of: impl Fn(u64, u64) -> u64) -> Spend {
    Spend {
        cache_read_tokens: of(one.cache_read_tokens, other.cache_read_tokens),
        cache_write_tokens: of(one.cache_write_tokens, other.cache_write_tokens),
        input_tokens: of(one.input_tokens, other.input_tokens),
        output_tokens: of(one.output_tokens, other.output_tokens),
        reasoning_tokens: of(one.reasoning_tokens, other.reasoning_tokens),
        usd_micros: None,
    }
}

fn larger(one: &Spend, other: &Spend) -> Spend {
    each(one, other, u64::max)
}

fn more(one: &Spend, other: &Spend) -> Spend {
    each(one, other, u64::saturating_add)
}

fn less(one: &Spend, other: &Spend) -> Spend {
    each(one, other, u64::saturating_sub)
}
