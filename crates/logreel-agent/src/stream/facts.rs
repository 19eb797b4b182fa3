//! Facts on their way from a line to the log. What two lines say twice, or out of order, must not become
//! something that the fold refuses: a call is made once, and only an open one returns.

use std::collections::HashSet;

use logreel::core::event::{
    Cause, Custom, Effect, ModelAnswered, ModelCalled, ModelFailed, PlanMade, Spend, ToolCalled,
    ToolFailed, ToolReturned, Turn, TurnFinished,
};
use logreel::core::{Blob, CallId, Payload, RunState};
use logreel::{Body, Digest, Json};
use serde_json::Value;

use super::Understood;
use crate::context::Addition;
use crate::message::{Message, Opaque, Part, Role, ToolResult};
use crate::price::Prices;
use crate::redact::Redactor;

pub(super) struct Facts {
    pub(super) redactor: Redactor,
    prices: Prices,
    bodies: Vec<Body>,
    blobs: Vec<Blob>,
    context: Option<Digest>,
    /// Calls of tools that were made, with their names; those that returned have none.
    tools: std::collections::HashMap<String, Option<String>>,
    models: HashSet<String>,
    model: Option<OpenModel>,
    turn: Option<u32>,
    turns: u32,
    /// Which telling this is, when the log has calls of an earlier one: their ids are taken.
    telling: Option<u32>,
    pub(super) answer: Option<Json>,
    pub(super) failure: Option<String>,
    pub(super) session: Option<String>,
}

/// A model call that has not ended.
pub(super) struct OpenModel {
    pub(super) call: String,
    pub(super) model: String,
    parts: Vec<Part>,
    pub(super) spent: Spend,
}

impl Facts {
    pub(super) fn new(redactor: Redactor, prices: Prices) -> Self {
        Self {
            redactor,
            prices,
            bodies: Vec::new(),
            blobs: Vec::new(),
            context: None,
            tools: std::collections::HashMap::new(),
            models: HashSet::new(),
            model: None,
            turn: None,
            turns: 0,
            telling: None,
            answer: None,
            failure: None,
            session: None,
        }
    }

    /// The run has a log already: the program is run again, or in a copy of the run. Turns and the
    /// conversation go on from there, and calls get ids that no earlier one has.
    pub(super) fn go_on(&mut self, state: &RunState) {
        self.context = state.row.pulse.context;
        self.turns = state.turn;
        let made = state.models.keys().chain(state.tools.keys());
        self.telling = made.map(telling_of).max().map(|last| last + 1);
    }

    /// A call's id in the log: as the agent has it, or its digest when it is none.
    fn call_id(&self, call: &str) -> CallId {
        let told = |call: &str| match self.telling {
            Some(telling) => format!("{telling}.{call}"),
            None => call.to_owned(),
        };
        CallId::new(told(call)).unwrap_or_else(|_| {
            let digest = Digest::of(call.as_bytes()).hex();
            CallId::new(told(&digest)).expect("a number and hex digits are an id")
        })
    }

    pub(super) fn take(&mut self) -> Understood {
        Understood {
            bodies: std::mem::take(&mut self.bodies),
            blobs: std::mem::take(&mut self.blobs),
            ..Understood::default()
        }
    }

    pub(super) fn add(&mut self, body: impl Into<Body>) {
        self.bodies.push(body.into());
    }

    /// A value without secrets, as a body holds it.
    fn payload(&mut self, value: Value) -> (Payload, u32) {
        let (value, redacted) = self.redactor.value(value);
        let (payload, blob) = Payload::of(Json::from(value));
        self.blobs.extend(blob);
        (payload, redacted)
    }

    /// A message joins the conversation.
    pub(super) fn message(&mut self, role: Role, parts: Vec<Part>) {
        if parts.is_empty() {
            return;
        }
        let mut redacted = 0;
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|part| self.part(part, &mut redacted))
            .collect();
        if let Some(model) = self.model.as_mut().filter(|_| role == Role::Assistant) {
            model.parts.extend(parts.iter().cloned());
        }
        let message = Message { parts, role };
        let addition = Addition::after(self.context, message, None, redacted);
        self.context = Some(addition.event.node);
        self.blobs.push(addition.blob);
        self.bodies.push(addition.event.into());
    }

    fn part(&self, part: Part, redacted: &mut u32) -> Part {
        let text = |text: &str, redacted: &mut u32| {
            let (text, count) = self.redactor.text(text);
            *redacted += count;
            text.into_owned()
        };
        let json = |json: &Json, redacted: &mut u32| {
            let (value, count) = self.redactor.value(json.to_value());
            *redacted += count;
            match count {
                0 => json.clone(),
                _ => Json::from(value),
            }
        };
        match part {
            Part::Text(words) => Part::Text(text(&words, redacted)),
            Part::ToolCall(mut call) => {
                call.call = self.call_id(&call.call).to_string();
                call.arguments = json(&call.arguments, redacted);
                Part::ToolCall(call)
            }
            Part::ToolResult(mut result) => {
                result.call = self.call_id(&result.call).to_string();
                result.text = text(&result.text, redacted);
                Part::ToolResult(result)
            }
            Part::Opaque(mut opaque) => {
                opaque.raw = json(&opaque.raw, redacted);
                Part::Opaque(opaque)
            }
        }
    }

    /// A part that only its provider understands.
    pub(super) fn opaque(provider: &str, raw: &Value) -> Part {
        Part::Opaque(Opaque {
            provider: provider.to_owned(),
            raw: Json::from(raw.clone()),
        })
    }

    /// A model is asked, unless this call was made before. One that was open has ended.
    pub(super) fn call_model(&mut self, call: &str, model: &str) {
        let is_open = self.model.as_ref().is_some_and(|open| open.call == call);
        if is_open || self.models.contains(call) {
            return;
        }
        self.answer_model(None);
        self.models.insert(call.to_owned());
        self.add(ModelCalled {
            attempt: 1,
            call: self.call_id(call),
            context: self.context,
            model: model.to_owned(),
            request: None,
            reserved: Spend::default(),
        });
        self.model = Some(OpenModel {
            call: call.to_owned(),
            model: model.to_owned(),
            parts: Vec::new(),
            spent: Spend::default(),
        });
    }

    /// A call that has no name of its own.
    pub(super) fn next_call(&mut self, model: &str) {
        let call = format!("call-{}", self.models.len() + 1);
        self.call_model(&call, model);
    }

    pub(super) fn open_model(&mut self) -> Option<&mut OpenModel> {
        self.model.as_mut()
    }

    /// The open call has its answer. Its cost is what is said here, or what its tokens cost.
    pub(super) fn answer_model(&mut self, usd_micros: Option<u64>) {
        let Some(open) = self.model.take() else {
            return;
        };
        let mut spent = open.spent;
        spent.usd_micros = usd_micros.or_else(|| self.cost(&open.model, &spent));
        let message = Message {
            parts: open.parts,
            role: Role::Assistant,
        };
        let message = serde_json::to_value(&message).unwrap_or_default();
        let (message, redacted) = self.payload(message);
        self.add(ModelAnswered {
            call: self.call_id(&open.call),
            finish_reason: None,
            message,
            redacted,
            spent,
        });
    }

    /// The open call failed.
    pub(super) fn fail_model(&mut self, message: &str) {
        let Some(open) = self.model.take() else {
            return;
        };
        let mut spent = open.spent;
        spent.usd_micros = self.cost(&open.model, &spent);
        let (message, redacted) = self.redactor.text(message);
        let error = cause("model", message.into_owned());
        self.add(ModelFailed {
            call: self.call_id(&open.call),
            error,
            redacted,
            retry_after_ms: None,
            spent,
        });
    }

    fn cost(&self, model: &str, spent: &Spend) -> Option<u64> {
        let named = [format!("anthropic/{model}"), format!("openai/{model}")];
        let mut known = named.iter().map(String::as_str).chain([model]);
        known.find_map(|name| self.prices.cost(name, spent))
    }

    /// Whether this call was made before.
    pub(super) fn has_called(&self, call: &str) -> bool {
        self.tools.contains_key(call)
    }

    /// A tool is called, unless this call was made before.
    pub(super) fn call_tool(&mut self, call: &str, name: &str, arguments: Value) {
        if self.tools.contains_key(call) {
            return;
        }
        self.tools.insert(call.to_owned(), Some(name.to_owned()));
        let (arguments, redacted) = self.payload(arguments);
        self.add(ToolCalled {
            arguments,
            attempt: 1,
            call: self.call_id(call),
            // Nobody declared what it does.
            effect: Effect::Write,
            key: None,
            name: name.to_owned(),
            redacted,
        });
    }

    /// What came of a call that is open; of another only the message is kept.
    pub(super) fn tool_returned(&mut self, call: &str, output: Value) {
        if self.close_tool(call) {
            let (output, redacted) = self.payload(output);
            self.add(ToolReturned {
                call: self.call_id(call),
                output,
                redacted,
            });
        }
    }

    pub(super) fn tool_failed(&mut self, call: &str, message: &str) {
        if self.close_tool(call) {
            let (message, redacted) = self.redactor.text(message);
            let error = cause("tool", message.into_owned());
            self.add(ToolFailed {
                call: self.call_id(call),
                error,
                redacted,
            });
        }
    }

    fn close_tool(&mut self, call: &str) -> bool {
        self.tools
            .get_mut(call)
            .is_some_and(|name| name.take().is_some())
    }

    /// What the model is told of a call's outcome.
    pub(super) fn result(&self, call: &str, failed: bool, text: String) -> Part {
        let name = self.tools.get(call).cloned().flatten();
        Part::ToolResult(ToolResult {
            call: call.to_owned(),
            failed,
            name: name.unwrap_or_default(),
            text,
        })
    }

    pub(super) fn begin_turn(&mut self) {
        self.end_turn();
        self.turns += 1;
        self.turn = Some(self.turns);
        self.add(Turn { turn: self.turns });
    }

    pub(super) fn turns(&self) -> u32 {
        self.turns
    }

    pub(super) fn end_turn(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.add(TurnFinished { turn });
        }
    }

    pub(super) fn plan(&mut self, plan: Value) {
        let (plan, _) = self.payload(plan);
        self.add(PlanMade { plan });
    }

    /// Something that is known and has no kind of its own.
    pub(super) fn custom(&mut self, name: String, data: Value) {
        let (data, _) = self.payload(data);
        self.add(Custom { data, name });
    }

    pub(super) fn answer(&mut self, answer: Value) {
        let (answer, _) = self.redactor.value(answer);
        self.answer = Some(Json::from(answer));
    }

    pub(super) fn fail(&mut self, message: &str) {
        self.failure = Some(self.redactor.text(message).0.into_owned());
    }

    /// It went on after what went wrong, and well.
    pub(super) fn succeed(&mut self) {
        self.failure = None;
    }

    /// Nothing more comes.
    pub(super) fn close(&mut self) {
        self.answer_model(None);
        self.end_turn();
    }
}

fn cause(kind: &str, message: String) -> Cause {
    Cause {
        exit_code: None,
        kind: kind.to_owned(),
        message,
        retryable: false,
        step: None,
    }
}

/// Which telling a call is of, by its id.
fn telling_of(call: &CallId) -> u32 {
    let number = call
        .as_str()
        .split_once('.')
        .map(|(number, _)| number.parse());
    number.and_then(Result::ok).unwrap_or(1)
}

/// A whole number at a key; 0 when there is none.
pub(super) fn count(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

/// Dollars in millionths.
pub(super) fn micros(value: &Value) -> Option<u64> {
    let dollars = value.as_f64().filter(|it| (0.0..1e9).contains(it))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was looked at"
    )]
    let micros = (dollars * 1e6).round() as u64;
    Some(micros)
}

/// A value as words: a text as it is.
pub(super) fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
