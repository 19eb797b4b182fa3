//! What counts of a log when it is compared with another, as hashes with the places they are from. A log
//! of a million events is some dozen megabytes of this, and nothing of it needs the events again.
//!
//! Ids, times, attempts, epochs and who drove do not count. The order of steps does not either: they
//! complete as a set. The calls of one answer are in the order of the answer, not in that of their ends.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use logreel_core::event::{Cause, Resolution, WaitKind};
use logreel_core::meaning::digest_of_json;
use logreel_core::{
    Body, CallId, Digest, Event, IllegalEvent, Json, Payload, Row, RunId, Seq, StepId, WaitId,
};
use serde_json::Value;

use super::align::Item;

/// A log on its way to be compared.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The run as its whole log leaves it.
    pub row: Row,
    /// What it ran, or runs since that was changed.
    pub spec: Payload,
    pub(super) steps: Vec<StepMark>,
    pub(super) tools: Vec<Mark>,
    pub(super) models: Vec<Mark>,
    pub(super) others: Vec<Mark>,
    /// Where a fork began, and the steps that it forgot.
    forks: Vec<(Seq, Vec<u64>)>,
    open_tools: HashMap<CallId, usize>,
    open_models: HashMap<CallId, (Seq, u64)>,
    asked: HashMap<CallId, (String, u64)>,
    waits: BTreeMap<WaitId, (WaitKind, u64)>,
    /// What the next request is made of: all that was said before it, and the outcomes of the calls
    /// since the last answer, in any order.
    said: u64,
    outcomes: u64,
    /// What was said in the conversation that it goes on from.
    before: u64,
    /// A hash of the input.
    input: u64,
    /// The calls of the last answer, in its order, and where their marks begin.
    order: HashMap<String, u32>,
    round: usize,
}

/// What became of a step, last of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepMark {
    /// A hash of its id.
    pub(super) id: u64,
    pub(super) whole: u64,
    pub(super) seq: Seq,
    has_result: bool,
}

/// A call or a fact, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) item: Item,
    /// What a model call was made of; nothing for others.
    pub(super) context: u64,
    /// Its call.
    pub(super) seq: Seq,
    /// Its outcome, when it has one of its own.
    pub(super) end: Option<Seq>,
    id: u64,
    order: u32,
}

impl Trace {
    /// A log, from its first event.
    pub fn begin(run: RunId, first: &Event) -> Result<Self, IllegalEvent> {
        Self::begin_after(run, first, 0)
    }

    /// The same of one that goes on from a conversation in which [this was said](of_said).
    pub(super) fn begin_after(
        run: RunId,
        first: &Event,
        before: u64,
    ) -> Result<Self, IllegalEvent> {
        let row = Row::start(run, first)?;
        let (spec, input) = match &first.body {
            Body::RunStarted(started) => (started.spec.clone(), of_payload(&started.input)),
            _ => (Payload::null(), 0),
        };
        Ok(Self {
            row,
            spec,
            steps: Vec::new(),
            tools: Vec::new(),
            models: Vec::new(),
            others: Vec::new(),
            forks: Vec::new(),
            open_tools: HashMap::new(),
            open_models: HashMap::new(),
            asked: HashMap::new(),
            waits: BTreeMap::new(),
            said: after(before, input),
            before,
            input,
            outcomes: 0,
            order: HashMap::new(),
            round: 0,
        })
    }

    /// Takes the next event.
    pub fn take(&mut self, event: &Event) -> Result<(), IllegalEvent> {
        self.row.apply(event)?;
        // What came after the end changed nothing.
        if !event.late {
            self.apply(event);
        }
        Ok(())
    }

    /// All of it was taken.
    pub fn finish(mut self) -> Self {
        self.end_round();
        let forks = std::mem::take(&mut self.forks);
        self.steps.retain(|mark| {
            forks
                .iter()
                .filter(|(seq, _)| mark.seq < *seq)
                .all(|(_, forgotten)| mark.has_result && !forgotten.contains(&mark.id))
        });
        // The last word on each.
        self.steps
            .sort_unstable_by_key(|mark| (mark.id, std::cmp::Reverse(mark.seq)));
        self.steps.dedup_by_key(|mark| mark.id);
        self.steps.shrink_to_fit();
        self
    }

    fn apply(&mut self, event: &Event) {
        let seq = event.seq;
        match &event.body {
            Body::StepStarted(it) => self.step(&it.step, seq, hash("open"), false),
            Body::StepFinished(it) => {
                let whole = hash(("finished", of_payload(&it.output)));
                self.step(&it.step, seq, whole, true);
            }
            Body::StepFailed(it) => self.step(&it.step, seq, of_cause(&it.error), false),
            Body::StepSkipped(it) => self.step(&it.step, seq, hash("skipped"), false),
            Body::StepInDoubt(it) => self.step(&it.step, seq, hash("in doubt"), false),
            Body::StepResolved(it) => match &it.resolution {
                Resolution::Returned(output) => {
                    let whole = hash(("finished", of_payload(output)));
                    self.step(&it.step, seq, whole, true);
                }
                Resolution::Failed(message) => {
                    self.step(&it.step, seq, hash(("failed", message)), false);
                }
                Resolution::Retry => {}
            },
            Body::ToolCalled(it) => {
                let arguments = of_payload(&it.arguments);
                self.tool_called(&it.call, &it.name, arguments, seq);
            }
            Body::ToolReturned(it) => self.tool_ended(&it.call, of_payload(&it.output), seq),
            Body::ToolFailed(it) => self.tool_ended(&it.call, of_cause(&it.error), seq),
            Body::ToolResolved(it) => match &it.resolution {
                Resolution::Returned(output) => {
                    self.tool_ended(&it.call, of_payload(output), seq);
                }
                Resolution::Failed(message) => {
                    self.tool_ended(&it.call, hash(("failed", message)), seq);
                }
                Resolution::Retry => {}
            },
            Body::ModelCalled(it) => {
                self.end_round();
                self.said = hash((self.said, self.outcomes));
                self.outcomes = 0;
                let model = hash(&it.model);
                self.open_models.insert(it.call.clone(), (seq, model));
            }
            Body::ModelAnswered(it) => self.answered(&it.call, &it.message, seq),
            Body::MessageQueued(it) => {
                self.said = hash((self.said, &it.text));
                self.other("message.queued", 0, hash(&it.text), seq);
            }
            Body::PlanMade(it) => self.other("plan.made", 0, of_payload(&it.plan), seq),
            Body::StatePatched(it) => {
                let patch = Json::of(&it.patch).unwrap_or_else(|_| Json::null());
                self.other("state.patched", 0, of_json(&patch), seq);
            }
            Body::SignalReceived(it) => {
                self.other(
                    "signal.received",
                    hash(&it.name),
                    of_payload(&it.value),
                    seq,
                );
            }
            Body::Custom(it) => self.other("custom", hash(&it.name), of_payload(&it.data), seq),
            Body::CheckpointSaved(it) => {
                let name = hash(&it.checkpoint);
                self.other("checkpoint.saved", name, of_payload(&it.data), seq);
            }
            Body::OutputWritten(it) => {
                let written = hash((&it.text, &it.base64));
                self.other("output.written", hash(&it.stream), written, seq);
            }
            Body::WaitStarted(it) => {
                if let (Some(call), Some(tool)) = (&it.call, &it.tool) {
                    let arguments = it.arguments.as_ref().map_or(0, of_payload);
                    self.asked.insert(call.clone(), (tool.clone(), arguments));
                }
                let about = hash((&it.name, &it.prompt, &it.tool));
                self.waits.insert(it.wait, (it.kind, about));
            }
            Body::WaitEnded(it) => {
                let whole = hash((it.approved, of_payload(&it.value)));
                let wait = self.waits.remove(&it.wait);
                match (&it.step, wait) {
                    (
                        Some(step),
                        Some((WaitKind::Approval | WaitKind::Signal | WaitKind::Timer, _)),
                    ) => {
                        self.step(step, seq, hash(("finished", whole)), true);
                    }
                    (None, Some((WaitKind::Approval | WaitKind::Signal, about))) => {
                        self.other("wait.ended", about, whole, seq);
                    }
                    _ => {}
                }
            }
            Body::SpecChanged(it) => self.spec = it.spec.clone(),
            Body::RunForked(it) => {
                let forgotten = it.forgotten.iter().map(of_step);
                self.forks.push((seq, forgotten.collect()));
                let forgotten: Vec<u64> = it.forgotten_calls.iter().map(hash).collect();
                self.tools
                    .retain(|mark| mark.end.is_some() && !forgotten.contains(&mark.id));
                self.open_tools.clear();
                self.open_models.clear();
                self.waits.clear();
                self.round = self.round.min(self.tools.len());
                let input = of_payload(&it.input);
                if input != self.input {
                    // The conversation begins again.
                    (self.input, self.said) = (input, after(self.before, input));
                }
            }
            // Told by the row, by what they belong to, or of no account here.
            Body::RunStarted(_)
            | Body::RunResumed(_)
            | Body::RunCompleted(_)
            | Body::RunFailed(_)
            | Body::RunCancelled(_)
            | Body::PhaseEntered(_)
            | Body::StepRetrying(_)
            | Body::TurnStarted(_)
            | Body::TurnFinished(_)
            | Body::ModelFailed(_)
            | Body::ToolInDoubt(_)
            | Body::MessageAdded(_)
            | Body::ContextCompacted(_)
            | Body::CheckpointRestored(_)
            | Body::CheckpointDeleted(_)
            | Body::ChildStarted(_)
            | Body::ChildFinished(_)
            | Body::BudgetChanged(_)
            | Body::VerificationFinished(_)
            | Body::Unknown(_) => {}
        }
    }

    fn step(&mut self, step: &StepId, seq: Seq, whole: u64, has_result: bool) {
        let id = of_step(step);
        self.steps.push(StepMark {
            id,
            whole,
            seq,
            has_result,
        });
    }

    fn other(&mut self, kind: &str, key: u64, whole: u64, seq: Seq) {
        let (kind, key) = (hash(kind), hash((kind, key)));
        let whole = hash((key, whole));
        self.others.push(Mark {
            item: Item { whole, key, kind },
            context: 0,
            seq,
            end: None,
            id: 0,
            order: 0,
        });
    }

    fn tool_called(&mut self, call: &CallId, name: &str, arguments: u64, seq: Seq) {
        // Made again after a crash it is the same call.
        if self.open_tools.contains_key(call) {
            return;
        }
        let (kind, key) = (hash(name), hash((name, arguments)));
        self.open_tools.insert(call.clone(), self.tools.len());
        self.tools.push(Mark {
            item: Item {
                whole: key,
                key,
                kind,
            },
            context: 0,
            seq,
            end: None,
            id: hash(call),
            order: self.order.get(call.as_str()).copied().unwrap_or(u32::MAX),
        });
    }

    fn tool_ended(&mut self, call: &CallId, outcome: u64, seq: Seq) {
        if !self.open_tools.contains_key(call) {
            // Denied: it was never made.
            let (name, arguments) = self.asked.remove(call).unwrap_or_default();
            self.tool_called(call, &name, arguments, seq);
        }
        if let Some(place) = self.open_tools.remove(call) {
            let mark = &mut self.tools[place];
            mark.item.whole = hash((mark.item.key, outcome));
            mark.end = Some(seq);
            self.outcomes = self.outcomes.wrapping_add(mark.item.whole);
        }
    }

    fn answered(&mut self, call: &CallId, message: &Payload, seq: Seq) {
        let Some((called, model)) = self.open_models.remove(call) else {
            return;
        };
        let (answer, calls) = of_answer(message);
        let purpose = call.as_str().split_once('.').map_or("", |(_, it)| it);
        let (kind, key) = (hash(purpose), hash((purpose, answer)));
        let context = self.said;
        self.models.push(Mark {
            item: Item {
                whole: hash((key, model, context)),
                key,
                kind,
            },
            context,
            seq: called,
            end: Some(seq),
            id: 0,
            order: 0,
        });
        self.said = hash((self.said, answer));
        self.order = calls.into_iter().zip(0..).collect();
        self.round = self.tools.len();
    }

    /// The calls of an answer are in its order, whichever came to its end first.
    fn end_round(&mut self) {
        if self.open_tools.is_empty() {
            let round = self.round.min(self.tools.len());
            self.tools[round..].sort_by_key(|mark| mark.order);
            self.round = self.tools.len();
        }
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What is said first, after what was said before.
fn after(before: u64, input: u64) -> u64 {
    match before {
        0 => input,
        before => hash((before, input)),
    }
}

/// What a context node says, without the ids of calls, and the node before it.
pub(super) fn of_node(bytes: &[u8]) -> Option<(u64, Option<Digest>)> {
    #[derive(serde::Deserialize)]
    struct Node {
        message: Value,
        previous: Option<Digest>,
    }
    let mut node: Node = serde_json::from_slice(bytes).ok()?;
    forget_calls(&mut node.message);
    Some((of_json(&Json::from(node.message)), node.previous))
}

pub(super) fn of_digest(node: &Digest) -> u64 {
    hash(node.as_bytes())
}

/// A conversation, the last message first.
pub(super) fn of_said(said: &[u64]) -> u64 {
    said.iter()
        .rev()
        .fold(0, |before, message| hash((before, message)))
}

/// Without what only its provider understands, and without which call is meant: those differ between any two
/// runs.
fn forget_calls(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.retain(|item| item.get("opaque").is_none());
            items.iter_mut().for_each(forget_calls);
        }
        Value::Object(fields) => {
            if fields.get("call").is_some_and(Value::is_string) {
                fields.remove("call");
            }
            fields.iter_mut().for_each(|(_, field)| forget_calls(field));
        }
        _ => {}
    }
}

fn of_step(step: &StepId) -> u64 {
    hash(&*step.canonical())
}

/// By what it means, whatever its text is.
fn of_payload(payload: &Payload) -> u64 {
    match payload {
        Payload::Inline(json) => of_json(json),
        Payload::Blob(reference) => hash(reference.blob.as_bytes()),
    }
}

fn of_json(json: &Json) -> u64 {
    let text = json.text();
    match text.trim_start().starts_with(['{', '[']) {
        true => hash(digest_of_json(json).as_bytes()),
        false => hash(text.trim()),
    }
}

fn of_cause(cause: &Cause) -> u64 {
    hash(("failed", &cause.kind, &cause.message))
}

/// What a model said, without the ids of its calls and what only its provider understands, and those
/// ids.
fn of_answer(message: &Payload) -> (u64, Vec<String>) {
    let Some(json) = message.inline() else {
        return (of_payload(message), Vec::new());
    };
    let mut calls = Vec::new();
    let mut value = json.to_value();
    forget_ids(&mut value, &mut calls);
    (of_json(&Json::from(value)), calls)
}

fn forget_ids(value: &mut Value, calls: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            items.retain(|item| item.get("opaque").is_none());
            items.iter_mut().for_each(|item| forget_ids(item, calls));
        }
        Value::Object(fields) => {
            if fields.contains_key("arguments") && fields.contains_key("name") {
                if let Some(Value::String(call)) = fields.remove("call") {
                    calls.push(call);
                }
                return;
            }
            fields
                .iter_mut()
                .for_each(|(_, field)| forget_ids(field, calls));
        }
        _ => {}
    }
}
