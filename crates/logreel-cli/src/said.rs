//! What models say and tools are called with, as people read it: a line for who looks on, all of it for
//! who must decide.

use std::collections::HashMap;

use logreel::StepId;
use logreel::core::Payload;
use logreel::core::event::Effect;
use logreel_agent::AgentSpec;
use serde_json::Value;

use crate::text;

/// What of a call is shown to who must decide, before it is cut.
const LINES_MAX: usize = 60;

/// What a call is about, on one line: the path, the command, the URL.
pub fn about(tool: &str, arguments: &Payload) -> String {
    let Payload::Inline(json) = arguments else {
        return text::preview(arguments);
    };
    let arguments = json.to_value();
    let of = |name: &str| arguments.get(name).and_then(Value::as_str);
    let found = match tool {
        "shell" => of("command").map(str::to_owned),
        "http.get" => of("url").map(str::to_owned),
        "fs.search" => of("pattern").map(|pattern| match of("path") {
            Some(path) => format!("{pattern} in {path}"),
            None => pattern.to_owned(),
        }),
        "fs.list" => Some(of("path").unwrap_or(".").to_owned()),
        "plan.update" => of("plan").map(str::to_owned),
        name if name.starts_with("fs.") => of("path").map(str::to_owned),
        _ => None,
    };
    // A call with one text in it is about that text.
    let only = || match arguments.as_object()?.values().collect::<Vec<_>>()[..] {
        [Value::String(only)] => Some(only.clone()),
        _ => None,
    };
    match (found.or_else(only), arguments.as_object()) {
        (Some(found), _) => text::one_line(&found),
        (None, Some(none)) if none.is_empty() => String::new(),
        (None, _) => text::one_line(json.text()),
    }
}

/// A call, all of it, for who must decide: nothing is folded away on a line, nothing is obeyed by a
/// terminal, and what is left out at the end is said to be.
pub fn in_full(tool: &str, arguments: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(fields) = arguments.as_object() else {
        return vec![text::visible(&arguments.to_string())];
    };
    // What changes what reads best in this order; the rest follows by name.
    let first: &[(&str, &str)] = match tool {
        "shell" => &[("command", "$ ")],
        "fs.edit" => &[("path", ""), ("old", "- "), ("new", "+ ")],
        "fs.write" => &[("path", ""), ("content", "+ ")],
        _ => &[],
    };
    for (name, sign) in first {
        if let Some(Value::String(said)) = fields.get(*name) {
            lines.extend(
                said.lines()
                    .map(|line| format!("{sign}{}", text::visible(line))),
            );
        }
    }
    let is_first = |name: &str| first.iter().any(|(it, _)| *it == name);
    let is_shown = |name: &str, value: &Value| is_first(name) && value.is_string();
    for (name, value) in fields.iter().filter(|(name, value)| !is_shown(name, value)) {
        let name = text::visible(name);
        match value {
            Value::String(said) if said.contains('\n') => {
                lines.push(format!("{name}:"));
                lines.extend(
                    said.lines()
                        .map(|line| format!("  {}", text::visible(line))),
                );
            }
            Value::String(said) => lines.push(format!("{name}: {}", text::visible(said))),
            other => lines.push(format!("{name}: {}", text::visible(&other.to_string()))),
        }
    }
    if lines.len() > LINES_MAX {
        let more = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
        let more = text::count(more as u64, "line");
        lines.push(format!("… {more} more: `logreel show --json` has them"));
    }
    lines
}

/// What came of a call, on one line.
pub fn result(output: &Payload) -> String {
    match exit_code(output) {
        Some((code, printed)) if printed.is_empty() => format!("exit {code}"),
        Some((code, printed)) => format!("exit {code}: {printed}"),
        None => text::preview(output),
    }
}

/// How a command ended, and what it printed: the end of it, where the news is.
pub fn exit_code(output: &Payload) -> Option<(i64, String)> {
    let value = output.inline()?.to_value();
    let code = value.get("exit_code")?.as_i64()?;
    let printed = value
        .get("output")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let last = printed.lines().rev().find(|line| !line.trim().is_empty());
    Some((code, text::printed(last.unwrap_or_default())))
}

/// What a model said: its words on one line, and the tools it calls.
pub fn message(message: &Payload) -> (String, Vec<String>) {
    match message {
        Payload::Blob(_) => (text::preview(message), Vec::new()),
        Payload::Inline(json) => of_message(&json.to_value()),
    }
}

/// [`message`] of one that is not in an event.
pub fn of_message(message: &Value) -> (String, Vec<String>) {
    let (mut words, mut calls) = (String::new(), Vec::new());
    for part in message
        .get("parts")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let result = part.pointer("/tool_result/text");
        if let Some(said) = part.get("text").or(result).and_then(Value::as_str) {
            words.push_str(said);
            words.push(' ');
        }
        if let Some(name) = part.pointer("/tool_call/name").and_then(Value::as_str) {
            calls.push(text::one_line(name));
        }
    }
    (text::one_line(&words), calls)
}

/// The words and, after them, what is called: `I will look. → fs.read, shell`.
pub fn with_calls((words, calls): (String, Vec<String>)) -> String {
    match (words.is_empty(), calls.is_empty()) {
        (_, true) => words,
        (true, false) => format!("→ {}", calls.join(", ")),
        (false, false) => format!("{words} → {}", calls.join(", ")),
    }
}

/// What a step of an agent's run is.
pub enum Part {
    /// A call of this agent.
    Agent(String),
    /// This check.
    Check(String),
}

impl Part {
    /// The part that the step is; `None` for a step of something else.
    pub fn of(step: &StepId) -> Option<Self> {
        let parts: Vec<String> = serde_json::from_str(&step.canonical()).ok()?;
        match parts.as_slice() {
            [kind, name, _] if kind == "agent" => Some(Self::Agent(text::one_line(name))),
            [kind, _, name] if kind == "verify" => Some(Self::Check(text::one_line(name))),
            _ => None,
        }
    }
}

/// The effects of an agent's tools, as its spec declares them.
#[derive(Debug, Clone)]
pub struct Effects {
    spec: Option<AgentSpec>,
    known: HashMap<String, bool>,
}

impl Effects {
    /// Those of a run that was started with this.
    pub fn of(spec: &Payload) -> Self {
        let spec = spec.inline().map(|json| json.to_value());
        Self {
            spec: spec.and_then(|spec| AgentSpec::from_json(&spec).ok()),
            known: HashMap::new(),
        }
    }

    /// The effect of a call in words; `(default)` when nobody declared it.
    pub fn shown(&mut self, tool: &str, effect: Effect) -> String {
        match self.is_declared(tool) {
            true => effect.as_str().to_owned(),
            false => format!("{} (default)", effect.as_str()),
        }
    }

    fn is_declared(&mut self, tool: &str) -> bool {
        let Some(spec) = &self.spec else { return true };
        if let Some(known) = self.known.get(tool) {
            return *known;
        }
        // What a server says of its own tools is not in the spec, where it counts.
        let server = tool
            .split_once('.')
            .and_then(|(server, _)| spec.mcp.get(server));
        let trusted = server.is_some_and(|server| server.trust_annotations);
        let one = AgentSpec {
            tools: vec![tool.to_owned()],
            ..spec.clone()
        };
        let declared = trusted || one.listed_tools().iter().all(|tool| tool.declared);
        self.known.insert(tool.to_owned(), declared);
        declared
    }
}

#[cfg(test)]
mod tests {
    use logreel::Json;
    use serde_json::json;

    use super::*;

    fn payload(value: Value) -> Payload {
        Payload::Inline(Json::from(value))
    }

    #[test]
    fn a_call_is_about_its_path_its_command_or_its_only_text() {
        let about = |tool, arguments| super::about(tool, &payload(arguments));
        assert_eq!(
            about("fs.edit", json!({"path": "a", "old": "b", "new": "c"})),
            "a"
        );
        assert_eq!(
            about("fs.search", json!({"pattern": "x", "path": "src"})),
            "x in src"
        );
        assert_eq!(about("fs.list", json!({})), ".");
        assert_eq!(about("shell", json!({"command": "a\n  b"})), "a b");
        assert_eq!(about("lint", json!({"file": "a.rs"})), "a.rs");
        assert_eq!(about("lint", json!({"n": 1})), r#"{"n":1}"#);
        assert_eq!(about("now", json!({})), "");
    }

    #[test]
    fn who_decides_sees_all_of_a_call() {
        let hidden = format!("true{};  rm -rf ~\x1b[8m\u{202e}", " ".repeat(500));
        let shown = in_full("shell", &json!({"command": hidden, "timeout_ms": 5}));
        assert!(shown[0].starts_with("$ true   ") && shown[0].contains(";  rm -rf ~"));
        assert!(!shown[0].contains(['\x1b', '\u{202e}']), "{shown:?}");
        assert_eq!(shown[1], "timeout_ms: 5");
        let edit = json!({"path": "a", "old": "x\ny", "new": "z", "all": true});
        assert_eq!(
            in_full("fs.edit", &edit),
            ["a", "- x", "- y", "+ z", "all: true"]
        );
        let long = json!({"path": "a", "content": "x\n".repeat(100)});
        let long = in_full("fs.write", &long);
        assert_eq!(
            (long.len(), long.last().map(String::as_str)),
            (61, Some("… 41 lines more: `logreel show --json` has them"))
        );
    }

    #[test]
    fn messages_and_results_read_well() {
        let said = payload(json!({"parts": [
            {"text": "I will\nlook."},
            {"tool_call": {"arguments": {}, "call": "c", "name": "fs.read"}},
        ], "role": "assistant"}));
        assert_eq!(with_calls(message(&said)), "I will look. → fs.read");
        let result = |value| super::result(&payload(value));
        assert_eq!(
            result(json!({"exit_code": 1, "output": "a\nb\n\n"})),
            "exit 1: b"
        );
        assert_eq!(result(json!({"exit_code": 0, "output": ""})), "exit 0");
        assert_eq!(result(json!("text")), "text");
    }
}
