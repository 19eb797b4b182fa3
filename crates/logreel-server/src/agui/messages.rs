//! A run's messages as AG-UI has them, and how they meet those that a client has.
//!
//! Ids are computed from the run and the call, so that a message is the same one whether it was watched
//! while it was said or read later.

use std::collections::{HashMap, HashSet, VecDeque};

use logreel::RunId;
use serde_json::{Value, json};

/// What is kept of a run's messages, as JSON: they are told in one block, and clients give up on 10 MiB.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a run has said so far; of a very long one, the latest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Transcript {
    messages: VecDeque<Value>,
    bytes: usize,
    /// Whether its beginning is left out.
    has_lost: bool,
    /// Calls of the messages that are here.
    calls: HashSet<String>,
}

/// A call of a tool, as a message carries it.
pub(crate) fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    json!({
        "id": id, "type": "function",
        "function": {"name": name, "arguments": arguments},
    })
}

/// The id of what the run has under this name.
pub(crate) fn id(run: &RunId, name: &str) -> String {
    format!("{run}/{name}")
}

impl Transcript {
    pub(crate) fn all(&mut self) -> &[Value] {
        self.messages.make_contiguous()
    }

    pub(crate) fn into_all(self) -> Vec<Value> {
        self.messages.into()
    }

    /// How much it is, as JSON.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, place: usize, message: Value) {
        self.bytes += message.to_string().len();
        self.messages.insert(place, message);
        // The result of a call goes with the call.
        let is_result = |message: &Value| message["role"] == "tool";
        while self.bytes > BYTES_MAX
            || self.has_lost && self.messages.front().is_some_and(is_result)
        {
            let Some(oldest) = self.messages.pop_front() else {
                return;
            };
            self.has_lost = true;
            self.bytes -= oldest.to_string().len();
            for call in calls_of(&oldest) {
                self.calls.remove(call);
            }
        }
    }

    /// Words of someone.
    pub(crate) fn say(&mut self, id: &str, role: &str, text: &str) {
        let message = json!({"id": id, "role": role, "content": text});
        self.insert(self.messages.len(), message);
    }

    /// An answer of a model: words, calls of tools, or both.
    pub(crate) fn answer(&mut self, id: &str, text: &str, calls: Vec<Value>) {
        let mut message = json!({"id": id, "role": "assistant"});
        if !text.is_empty() {
            message["content"] = json!(text);
        }
        let ids = calls.iter().filter_map(|call| call["id"].as_str());
        self.calls.extend(ids.map(str::to_owned));
        if !calls.is_empty() {
            message["toolCalls"] = Value::Array(calls);
        }
        self.insert(self.messages.len(), message);
    }

    /// What came of a call: behind the message that made it, and behind the results that are there. Where that
    /// message is left out, its result is.
    pub(crate) fn result(&mut self, id: &str, call: &str, content: &str) {
        if !self.calls.contains(call) {
            return;
        }
        // It is among the latest: whoever made it waits for it.
        let makes_it = |message: &Value| calls_of(message).any(|it| it == call);
        let behind = self.messages.iter().rev().position(makes_it).unwrap_or(0);
        let owner = self.messages.len() - behind;
        let results = self.messages.range(owner..);
        let results = results.take_while(|message| message["role"] == "tool");
        let place = owner + results.count();
        let message = json!({"id": id, "role": "tool", "toolCallId": call, "content": content});
        self.insert(place, message);
    }
}

fn calls_of(message: &Value) -> impl Iterator<Item = &str> {
    let calls = message["toolCalls"].as_array().into_iter().flatten();
    calls.filter_map(|call| call["id"].as_str())
}

/// What a client has that the run does not say anew. The run's own messages are told as they are now; one that it does
/// not have was shown while it was said, and is void.
pub(crate) fn kept(mut theirs: Vec<Value>, run: &RunId) -> Vec<Value> {
    let of_run = id(run, "");
    let is_of_run = |message: &Value| {
        let id = message["id"].as_str();
        id.is_some_and(|id| id.starts_with(&of_run))
    };
    theirs.retain(|message| !is_of_run(message));
    theirs
}

/// The messages of a conversation: ours, and those of the client that we know nothing of, in their places.
pub(crate) fn merged(theirs: &[Value], ours: &[Value]) -> Vec<Value> {
    let mut places = HashMap::with_capacity(ours.len());
    for (place, message) in ours.iter().enumerate() {
        if let Some(id) = message["id"].as_str() {
            places.entry(id).or_insert(place);
        }
    }
    let mut merged = Vec::with_capacity(theirs.len() + ours.len());
    let mut told = 0;
    for message in theirs {
        let id = message["id"].as_str().unwrap_or_default();
        match places.get(id) {
            Some(place) if *place >= told => {
                merged.extend_from_slice(&ours[told..=*place]);
                told = place + 1;
            }
            // Told already.
            Some(_) => {}
            None => merged.push(message.clone()),
        }
    }
    merged.extend_from_slice(&ours[told..]);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_very_long_conversation_is_its_latest_part_and_no_result_is_without_its_call() {
        let mut said = Transcript::default();
        let long = "x".repeat(100_000);
        for n in 0..50 {
            let call = format!("c{n}");
            said.say(&format!("u{n}"), "user", &long);
            said.answer(&format!("a{n}"), "", vec![tool_call(&call, "look", "{}")]);
            said.result(&format!("r{n}"), &call, &long);
        }
        assert!(said.bytes() <= BYTES_MAX && said.bytes() > BYTES_MAX / 2);
        let kept: usize = said.all().iter().map(|it| it.to_string().len()).sum();
        assert_eq!(said.bytes(), kept);
        assert_eq!(said.all().last().unwrap()["id"], "r49");
        assert_ne!(said.all()[0]["role"], "tool");
    }

    #[test]
    fn what_a_client_has_of_its_own_keeps_its_place_and_what_is_void_goes() {
        let run: RunId = "run_0197b0a0-0001-7000-8000-000000000001".parse().unwrap();
        let message = |id: &str, text: &str| json!({"id": id, "role": "user", "content": text});
        let void = id(&run, "m1.turn");
        let theirs = [
            message("system", "theirs"),
            message("a", "old"),
            message("note", "theirs"),
            message(&void, "half of it"),
            message("b", "old"),
        ];
        let ours = ["a", "between", "b", "after"].map(|id| message(id, "ours"));
        let merged = merged(&kept(theirs.into(), &run), &ours);
        let told: Vec<String> = merged
            .iter()
            .map(|it| format!("{} {}", it["id"], it["content"]).replace('"', ""))
            .collect();
        assert_eq!(
            told,
            [
                "system theirs",
                "a ours",
                "note theirs",
                "between ours",
                "b ours",
                "after ours"
            ]
        );
    }
}
