//! Calls of tools and what came of them. A call is complete when it is told, so it is never left open.

use std::collections::HashMap;

use logreel::{RunId, StepId};
use serde_json::Value;

use super::super::messages::{self, Transcript};
use super::super::sent::Sent;
use super::words::pieces;

pub(super) struct Tools {
    run: RunId,
    /// Calls that were told, and whether their result was.
    calls: HashMap<String, bool>,
}

impl Tools {
    pub(super) fn new(run: RunId) -> Self {
        Self {
            run,
            calls: HashMap::new(),
        }
    }

    /// The id that clients know a call by, when it was told.
    pub(super) fn told(&self, call: &str) -> Option<String> {
        let is_told = self.calls.contains_key(call);
        is_told.then(|| messages::id(&self.run, call))
    }

    /// A call that a message made.
    pub(super) fn made(&mut self, call: &str) {
        self.calls.insert(call.to_owned(), false);
    }

    /// A call that no message made is a message of its own.
    pub(super) fn called(
        &mut self,
        (call, name, arguments): (&str, &str, &str),
        said: &mut Transcript,
        out: &mut Vec<Sent>,
    ) {
        if self.calls.contains_key(call) {
            return;
        }
        self.made(call);
        let id = messages::id(&self.run, call);
        let made = messages::tool_call(&id, name, arguments);
        said.answer(&id, "", vec![made]);
        self.send((call, name, arguments), None, out);
    }

    pub(super) fn send(
        &self,
        (call, name, arguments): (&str, &str, &str),
        parent: Option<&str>,
        out: &mut Vec<Sent>,
    ) {
        let id = messages::id(&self.run, call);
        out.push(Sent::ToolCallStart {
            tool_call_id: id.clone(),
            tool_call_name: name.to_owned(),
            parent_message_id: parent.map(str::to_owned),
        });
        let arguments = pieces(arguments).map(|delta| Sent::ToolCallArgs {
            tool_call_id: id.clone(),
            delta: delta.to_owned(),
        });
        out.extend(arguments);
        out.push(Sent::ToolCallEnd { tool_call_id: id });
    }

    pub(super) fn result(
        &mut self,
        call: &str,
        content: &str,
        said: &mut Transcript,
        out: &mut Vec<Sent>,
    ) {
        match self.calls.get_mut(call) {
            Some(has_result) if !*has_result => *has_result = true,
            // Nobody was told of the call, or its result is known.
            _ => return,
        }
        let tool_call_id = messages::id(&self.run, call);
        let message_id = format!("{tool_call_id}/result");
        said.result(&message_id, &tool_call_id, content);
        out.push(Sent::ToolCallResult {
            message_id,
            tool_call_id,
            content: content.to_owned(),
            role: "tool",
        });
    }

    /// The call that a step is: an agent's call of a sub-agent is one.
    pub(super) fn of_step(&self, step: &StepId) -> Option<String> {
        let parts: Vec<Value> = serde_json::from_str(&step.canonical()).ok()?;
        match parts.as_slice() {
            [Value::String(_), Value::String(_), Value::String(call)] => {
                self.calls.contains_key(call).then(|| call.clone())
            }
            _ => None,
        }
    }
}
