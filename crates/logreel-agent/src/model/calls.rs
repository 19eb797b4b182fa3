//! Tool calls as providers make them, brought into the shape of the log.

use std::collections::HashSet;

use logreel::Json;

use super::Request;
use crate::message::{Part, ToolCall};

/// A shorter id is a counter that starts again with every answer, not an id. The shortest real ones
/// are nine letters long.
const ID_MIN: usize = 9;

/// A call as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WireCall {
    pub(super) id: String,
    pub(super) name: String,
    /// The text of the arguments.
    pub(super) arguments: String,
}

/// Gives calls the names of the log and ids that are unique in the run.
pub(super) struct Calls<'a> {
    request: &'a Request,
    taken: HashSet<String>,
    made: usize,
}

impl<'a> Calls<'a> {
    pub(super) fn of(request: &'a Request) -> Self {
        let calls = request.messages.iter().flat_map(|it| it.tool_calls());
        Self {
            request,
            taken: calls.map(|it| it.call.clone()).collect(),
            made: 0,
        }
    }

    /// A provider's id stays when it is one: it goes back to the provider with the result.
    pub(super) fn understand(&mut self, call: WireCall) -> ToolCall {
        self.made += 1;
        let mut id = call.id;
        if id.len() < ID_MIN || self.taken.contains(&id) {
            id = format!("call_{}_{}", self.request.number, self.made);
            while self.taken.contains(&id) {
                id.push('x');
            }
        }
        self.taken.insert(id.clone());
        ToolCall {
            arguments: arguments(call.arguments),
            call: id,
            name: self.request.names.from_wire(&call.name),
        }
    }

    pub(super) fn part(&mut self, call: WireCall) -> Part {
        Part::ToolCall(self.understand(call))
    }
}

/// Arguments as the model wrote them; what is no JSON becomes a string, for the model to be told.
pub(super) fn arguments(text: String) -> Json {
    if text.trim().is_empty() {
        return Json::from(serde_json::Value::Object(serde_json::Map::new()));
    }
    Json::parse(text.as_str()).unwrap_or_else(|_| Json::from(serde_json::Value::String(text)))
}

/// The text that the model wrote, which may be no JSON.
pub(super) fn written(arguments: &Json) -> String {
    arguments
        .decode::<String>()
        .unwrap_or_else(|_| arguments.text().to_owned())
}
