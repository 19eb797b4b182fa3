//! From a run's events and live text to the events of AG-UI: pure, and the same for whoever watches from
//! the beginning and whoever joins in the middle.
//!
//! Whatever is opened here (text, reasoning, steps, children) is known, and closed before the end. A call
//! of a tool is complete when it is told, so it is never left open.

use std::collections::{BTreeMap, HashMap, HashSet};

use logreel::core::event::{
    Cause, MessageAdded, ModelAnswered, Resolution, RunKind, RunStarted, Spend, StatePatched,
    TerminalStatus,
};
use logreel::core::{CallId, Payload};
use logreel::{Body, Event, Json, LiveText, RunId, Seq, Shown, StepId};
use serde_json::{Value, json};

use super::messages::{self, Transcript};
use super::sent::{Interrupt, Outcome, PROTOCOL, Sent, SubagentOutcome, TokenUsage};

/// Longer text is sent in several pieces: clients give up on blocks without an end.
const PIECE_BYTES: usize = 64 * 1024;

/// The label that holds the id of the message that a run answers.
pub(crate) const MESSAGE_LABEL: &str = "agui.message";

/// An event whose values are here: what was in blobs is inline, unless it is too large to be sent.
pub(crate) struct Fact {
    pub(crate) event: Event,
    /// The context node of a `message.added`.
    pub(crate) node: Option<Json>,
}

/// For whom a run is told.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) thread: String,
    /// What they call the run.
    pub(crate) run: String,
    /// The messages that came before the run.
    pub(crate) messages: Vec<Value>,
}

pub(crate) struct Translator {
    run: RunId,
    listener: Listener,
    kind: Option<RunKind>,
    document: Value,
    transcript: Transcript,
    /// Whether the run said something itself, so that its output need not.
    spoke: bool,
    /// A model's answer was told, and its `message.added` comes.
    told_answer: bool,
    live: Option<Live>,
    /// The latest attempt of each model call, with its model.
    models: HashMap<CallId, (u32, String)>,
    /// Model calls that are over: what is still said of them live comes too late.
    over: HashSet<CallId>,
    /// Tool calls that were told, and whether their result was.
    calls: HashMap<String, bool>,
    /// Oldest first.
    steps: Vec<String>,
    children: Vec<(RunId, String)>,
    /// Children that have ended in their run: nobody may begin twice.
    gone: HashSet<RunId>,
    usage: BTreeMap<String, TokenUsage>,
}

/// An answer that comes in.
struct Live {
    call: CallId,
    attempt: u32,
    message: String,
    /// What was sent of it.
    text: Option<String>,
    /// The reasoning that is open, and how many there were.
    reasoning: Option<String>,
    reasonings: u32,
}

/// Why everything is closed.
enum Closing<'c> {
    Done,
    Suspended(&'c [Interrupt]),
    Stopped(&'static str),
}

impl Translator {
    pub(crate) fn new(run: RunId, listener: Listener) -> Self {
        Self {
            run,
            listener,
            kind: None,
            document: Value::Null,
            transcript: Transcript::default(),
            spoke: false,
            told_answer: false,
            live: None,
            models: HashMap::new(),
            over: HashSet::new(),
            calls: HashMap::new(),
            steps: Vec::new(),
            children: Vec::new(),
            gone: HashSet::new(),
            usage: BTreeMap::new(),
        }
    }

    /// What the run has said.
    pub(crate) fn into_transcript(self) -> Transcript {
        self.transcript
    }

    /// Whom it is told to may only be known once its log was read.
    pub(crate) fn set_listener(&mut self, listener: Listener) {
        self.listener = listener;
    }

    /// How their run begins: after nothing, or after all that was taken so far.
    pub(crate) fn begin(&mut self, joins: bool) -> Vec<Sent> {
        self.usage.clear();
        self.gone.clear();
        let mut out = vec![
            Sent::RunStarted {
                thread_id: self.listener.thread.clone(),
                run_id: self.listener.run.clone(),
                protocol_version: PROTOCOL,
                metadata: json!({"logreel": {"run": self.run}}),
            },
            Sent::StateSnapshot {
                snapshot: self.document.clone(),
            },
        ];
        if joins {
            out.push(self.snapshot());
        }
        let steps = self.steps.iter().cloned();
        out.extend(steps.map(|step_name| Sent::StepStarted { step_name }));
        let children = self.children.clone();
        out.extend(children.iter().map(|(child, name)| self.child(child, name)));
        out
    }

    /// What follows from an event.
    pub(crate) fn take(&mut self, fact: &Fact) -> Vec<Sent> {
        let mut out = Vec::new();
        if !fact.event.late {
            self.fold(fact, &mut out);
        }
        out
    }

    /// What follows from a piece of an answer.
    pub(crate) fn hear(&mut self, text: &LiveText) -> Vec<Sent> {
        let mut out = Vec::new();
        let is_known = |live: &Live| live.call == text.call && live.attempt == text.attempt;
        if text.run != self.run || self.over.contains(&text.call) || is_private(&text.call) {
            return out;
        }
        match &text.shown {
            Shown::Reset if self.live.as_ref().is_some_and(is_known) => {}
            Shown::Reset => {
                self.drop_live(&mut out);
                self.live = Some(Live {
                    call: text.call.clone(),
                    attempt: text.attempt,
                    message: message_id(&self.run, &text.call, text.attempt),
                    text: None,
                    reasoning: None,
                    reasonings: 0,
                });
            }
            Shown::Text(words) | Shown::Thinking(words) if words.is_empty() => {}
            Shown::Text(words) => {
                // One whose beginning was missed is told when it is complete.
                if let Some(live) = self.live.as_mut().filter(|live| is_known(live)) {
                    live.say(words, &mut out);
                }
            }
            Shown::Thinking(words) => {
                if let Some(live) = self.live.as_mut().filter(|live| is_known(live)) {
                    live.think(words, &mut out);
                }
            }
            Shown::ToolCall(_) => {}
        }
        out
    }

    /// The end of their run while ours waits.
    pub(crate) fn interrupt(&mut self, interrupts: Vec<Interrupt>) -> Vec<Sent> {
        let mut out = Vec::new();
        self.close(&Closing::Suspended(&interrupts), &mut out);
        let outcome = Outcome::Interrupt { interrupts };
        out.push(self.finished(Value::Null, outcome));
        out
    }

    /// The end of their run because it cannot be told any further.
    pub(crate) fn give_up(&mut self, message: String, code: &str) -> Vec<Sent> {
        let mut out = Vec::new();
        self.close(&Closing::Stopped("unavailable"), &mut out);
        out.push(self.error(message, code));
        out
    }

    /// The id that a tool call has in their events, when it was told.
    pub(crate) fn told_call(&self, call: &CallId) -> Option<String> {
        let call = call.as_str();
        let told = self.calls.contains_key(call);
        told.then(|| messages::id(&self.run, call))
    }

    #[cfg(test)]
    pub(crate) fn document(&self) -> &Value {
        &self.document
    }

    /// The messages as a client that watched from the beginning has them.
    #[cfg(test)]
    pub(crate) fn messages(&mut self) -> Vec<Value> {
        self.merged()
    }

    fn fold(&mut self, fact: &Fact, out: &mut Vec<Sent>) {
        let seq = fact.event.seq;
        match &fact.event.body {
            Body::RunStarted(started) => self.started(started),
            Body::RunForked(forked) => {
                let name = format!("e{seq}");
                self.ask(&messages::id(&self.run, &name), &forked.input);
            }
            Body::RunCompleted(completed) => self.completed(&completed.output, out),
            Body::RunFailed(failed) => {
                self.close(&Closing::Stopped("failed"), out);
                out.push(self.error(failed.error.message.clone(), &failed.error.kind));
            }
            Body::RunCancelled(_) => {
                self.close(&Closing::Stopped("cancelled"), out);
                out.push(self.finished(Value::Null, Outcome::Cancelled));
            }
            Body::StepStarted(it) => self.step_started(it.step.to_string(), out),
            Body::StepFinished(it) => {
                self.step_over(&it.step, out);
                self.step_result(&it.step, &shown(&it.output), out);
            }
            Body::StepFailed(it) => {
                self.step_over(&it.step, out);
                self.step_result(&it.step, &failure(&it.error), out);
            }
            Body::StepResolved(it) => self.step_over(&it.step, out),
            Body::StepSkipped(it) => self.step_closed(&it.step.to_string(), out),
            Body::StepInDoubt(it) => self.step_closed(&it.step.to_string(), out),
            Body::TurnStarted(it) => self.step_started(turn(it.turn), out),
            Body::TurnFinished(it) => self.step_closed(&turn(it.turn), out),
            Body::ModelCalled(it) => {
                if self
                    .live
                    .as_ref()
                    .is_some_and(|live| live.call == it.call && live.attempt < it.attempt)
                {
                    self.drop_live(out);
                }
                let known = (it.attempt, it.model.clone());
                self.models.insert(it.call.clone(), known);
            }
            Body::ModelAnswered(it) => self.answered(it, out),
            Body::ModelFailed(it) => {
                self.spent(&it.call, &it.spent);
                if self.live.as_ref().is_some_and(|live| live.call == it.call) {
                    self.drop_live(out);
                }
                self.over.insert(it.call.clone());
            }
            Body::ToolCalled(it) => {
                let arguments = it.arguments.to_json();
                self.tool_called(it.call.as_str(), &it.name, arguments.text(), out);
            }
            Body::ToolReturned(it) => {
                self.tool_result(it.call.as_str(), &shown(&it.output), out);
            }
            Body::ToolFailed(it) => self.tool_result(it.call.as_str(), &failure(&it.error), out),
            Body::ToolResolved(it) => match &it.resolution {
                Resolution::Returned(value) => {
                    self.tool_result(it.call.as_str(), &shown(value), out);
                }
                Resolution::Failed(why) => self.tool_result(it.call.as_str(), why, out),
                Resolution::Retry => {}
            },
            Body::MessageAdded(it) => self.message(seq, it, fact.node.as_ref(), out),
            Body::MessageQueued(it) => {
                let id = messages::id(&self.run, &format!("e{seq}"));
                self.told(&id, "user", &it.text, out);
            }
            Body::StatePatched(patched) => self.patched(patched, out),
            Body::WaitEnded(it) => {
                if let Some(step) = &it.step {
                    self.step_closed(&step.to_string(), out);
                }
            }
            Body::ChildStarted(it) if it.detached => {}
            Body::ChildStarted(it) => {
                let is_open = self.children.iter().any(|(child, _)| *child == it.child);
                if !is_open && !self.gone.contains(&it.child) {
                    let name = it.step.to_string();
                    out.push(self.child(&it.child, &name));
                    self.children.push((it.child, name));
                }
            }
            Body::ChildFinished(it) => {
                if let Some(place) = self.children.iter().position(|(id, _)| *id == it.child) {
                    self.children.remove(place);
                    self.gone.insert(it.child);
                    let closing = match it.status {
                        TerminalStatus::Completed => Closing::Done,
                        TerminalStatus::Failed => Closing::Stopped("failed"),
                        TerminalStatus::Cancelled => Closing::Stopped("cancelled"),
                    };
                    out.push(child_closed(&it.child, &closing));
                }
            }
            Body::PlanMade(it) => out.push(custom("plan.made", &it.plan)),
            Body::VerificationFinished(it) => out.push(Sent::Custom {
                name: "verification.finished".to_owned(),
                value: serde_json::to_value(it).unwrap_or_default(),
            }),
            Body::Custom(it) => out.push(custom(&it.name, &it.data)),
            // These change what the run may do or where it is, not what a conversation shows.
            Body::RunResumed(_)
            | Body::PhaseEntered(_)
            | Body::StepRetrying(_)
            | Body::ToolInDoubt(_)
            | Body::ContextCompacted(_)
            | Body::CheckpointSaved(_)
            | Body::CheckpointRestored(_)
            | Body::CheckpointDeleted(_)
            | Body::WaitStarted(_)
            | Body::SignalReceived(_)
            | Body::BudgetChanged(_)
            | Body::SpecChanged(_)
            | Body::OutputWritten(_)
            | Body::Unknown(_) => {}
        }
    }

    fn started(&mut self, started: &RunStarted) {
        // A second one only fills an input that was empty.
        self.kind = Some(started.kind);
        let label = started.labels.get(MESSAGE_LABEL).cloned();
        let id = label.unwrap_or_else(|| messages::id(&self.run, "input"));
        self.ask(&id, &started.input);
    }

    /// What the run is asked is known to whoever asked: it is part of the conversation, and not sent.
    fn ask(&mut self, id: &str, input: &Payload) {
        if !input.is_null() {
            self.transcript.say(id, "user", &shown(input));
        }
    }

    fn completed(&mut self, output: &Payload, out: &mut Vec<Sent>) {
        if !self.spoke && !output.is_null() {
            let id = messages::id(&self.run, "output");
            self.told(&id, "assistant", &shown(output), out);
        }
        self.close(&Closing::Done, out);
        let result = output.to_json().to_value();
        out.push(self.finished(result, Outcome::Success));
    }

    /// Words of someone that come at once.
    fn told(&mut self, id: &str, role: &'static str, text: &str, out: &mut Vec<Sent>) {
        self.spoke |= role == "assistant";
        self.transcript.say(id, role, text);
        let message_id = id.to_owned();
        out.push(Sent::TextMessageStart { message_id, role });
        say(id, text, out);
        let message_id = id.to_owned();
        out.push(Sent::TextMessageEnd { message_id });
    }

    fn answered(&mut self, answered: &ModelAnswered, out: &mut Vec<Sent>) {
        let call = &answered.call;
        self.spent(call, &answered.spent);
        self.over.insert(call.clone());
        if is_private(call) {
            return;
        }
        self.told_answer = true;
        let answer = Answer::of(&answered.message.to_json().to_value());
        let attempt = self.models.get(call).map_or(1, |(attempt, _)| *attempt);
        let id = message_id(&self.run, call, attempt);
        let live = self.live.take_if(|live| live.call == *call);
        let mut is_as_shown = true;
        match live {
            Some(mut live) => {
                live.end_reasoning(out);
                if let Some(shown) = live.text {
                    match answer.words.strip_prefix(&shown) {
                        Some(rest) if live.message == id => say(&id, rest, out),
                        _ => is_as_shown = false,
                    }
                    let message_id = live.message;
                    out.push(Sent::TextMessageEnd { message_id });
                } else {
                    self.say_at_once(&id, &answer.words, out);
                }
            }
            None => self.say_at_once(&id, &answer.words, out),
        }
        self.spoke |= !answer.words.is_empty();
        let calls = answer.calls.iter().map(|(call, name, arguments)| {
            messages::tool_call(&messages::id(&self.run, call), name, arguments)
        });
        let calls: Vec<Value> = calls.collect();
        // Nobody is told of an answer that says nothing.
        if !answer.words.is_empty() || !calls.is_empty() {
            self.transcript.answer(&id, &answer.words, calls);
        }
        if !is_as_shown {
            out.push(self.snapshot());
        }
        for (call, name, arguments) in answer.calls {
            self.calls.insert(call.clone(), false);
            if is_as_shown {
                self.send_call(&call, name, &arguments, Some(&id), out);
            }
        }
    }

    fn say_at_once(&self, id: &str, words: &str, out: &mut Vec<Sent>) {
        if words.is_empty() {
            return;
        }
        let (message_id, role) = (id.to_owned(), "assistant");
        out.push(Sent::TextMessageStart { message_id, role });
        say(id, words, out);
        let message_id = id.to_owned();
        out.push(Sent::TextMessageEnd { message_id });
    }

    /// A call that no message made is a message of its own.
    fn tool_called(&mut self, call: &str, name: &str, arguments: &str, out: &mut Vec<Sent>) {
        if self.calls.contains_key(call) {
            return;
        }
        self.calls.insert(call.to_owned(), false);
        let id = messages::id(&self.run, call);
        let made = messages::tool_call(&id, name, arguments);
        self.transcript.answer(&id, "", vec![made]);
        self.send_call(call, name.to_owned(), arguments, None, out);
    }

    fn send_call(
        &self,
        call: &str,
        name: String,
        arguments: &str,
        parent: Option<&str>,
        out: &mut Vec<Sent>,
    ) {
        let id = messages::id(&self.run, call);
        out.push(Sent::ToolCallStart {
            tool_call_id: id.clone(),
            tool_call_name: name,
            parent_message_id: parent.map(str::to_owned),
        });
        let arguments = pieces(arguments).map(|delta| Sent::ToolCallArgs {
            tool_call_id: id.clone(),
            delta: delta.to_owned(),
        });
        out.extend(arguments);
        out.push(Sent::ToolCallEnd { tool_call_id: id });
    }

    fn tool_result(&mut self, call: &str, content: &str, out: &mut Vec<Sent>) {
        match self.calls.get_mut(call) {
            Some(has_result) if !*has_result => *has_result = true,
            // Nobody was told of the call, or its result is known.
            _ => return,
        }
        let tool_call_id = messages::id(&self.run, call);
        let message_id = format!("{tool_call_id}/result");
        self.transcript.result(&message_id, &tool_call_id, content);
        out.push(Sent::ToolCallResult {
            message_id,
            tool_call_id,
            content: content.to_owned(),
            role: "tool",
        });
    }

    /// A message that no model call made, and that nobody queued.
    fn message(
        &mut self,
        seq: Seq,
        added: &MessageAdded,
        node: Option<&Json>,
        out: &mut Vec<Sent>,
    ) {
        let role = match &*added.role {
            "assistant" if std::mem::take(&mut self.told_answer) => return,
            "assistant" => "assistant",
            "user" => "user",
            "system" => "system",
            "developer" => "developer",
            _ => return,
        };
        // An agent's own are what was asked, queued, or said on a person's behalf.
        if self.kind == Some(RunKind::Agent) || added.queued.is_some() {
            return;
        }
        let Some(node) = node else { return };
        let answer = Answer::of(&node.to_value()["message"]);
        if !answer.words.is_empty() {
            let id = messages::id(&self.run, &format!("e{seq}"));
            self.told(&id, role, &answer.words, out);
        }
    }

    fn patched(&mut self, patched: &StatePatched, out: &mut Vec<Sent>) {
        let delta = serde_json::to_value(&patched.patch).unwrap_or_default();
        let before = (!is_plain(&delta)).then(|| self.document.clone());
        if let Err(error) = json_patch::patch(&mut self.document, &patched.patch) {
            // The fold refuses such a log before anyone is told of it.
            tracing::warn!(%error, run = %self.run, "a patch does not apply");
            return;
        }
        let delta = match before {
            None => Some(delta),
            Some(before) => difference(&before, &self.document).filter(is_plain),
        };
        match delta {
            Some(Value::Array(operations)) if operations.is_empty() => {}
            Some(delta) => out.push(Sent::StateDelta { delta }),
            None => out.push(Sent::StateSnapshot {
                snapshot: self.document.clone(),
            }),
        }
    }

    fn step_started(&mut self, step_name: String, out: &mut Vec<Sent>) {
        if !self.steps.contains(&step_name) {
            self.steps.push(step_name.clone());
            out.push(Sent::StepStarted { step_name });
        }
    }

    /// A step has its outcome; a short one was not announced.
    fn step_over(&mut self, step: &StepId, out: &mut Vec<Sent>) {
        let name = step.to_string();
        self.step_started(name.clone(), out);
        self.step_closed(&name, out);
    }

    fn step_closed(&mut self, name: &str, out: &mut Vec<Sent>) {
        if let Some(place) = self.steps.iter().position(|it| it == name) {
            let step_name = self.steps.remove(place);
            out.push(Sent::StepFinished { step_name });
        }
    }

    /// An agent's call of a sub-agent is a step, whose outcome is that of the call.
    fn step_result(&mut self, step: &StepId, content: &str, out: &mut Vec<Sent>) {
        if let Some(call) = self.call_of(step) {
            self.tool_result(&call, content, out);
        }
    }

    fn call_of(&self, step: &StepId) -> Option<String> {
        let parts: Vec<Value> = serde_json::from_str(&step.canonical()).ok()?;
        match parts.as_slice() {
            [Value::String(_), Value::String(_), Value::String(call)] => {
                self.calls.contains_key(call).then(|| call.clone())
            }
            _ => None,
        }
    }

    fn child(&self, child: &RunId, name: &str) -> Sent {
        let mut calls = self.calls.keys();
        let call = calls.find(|call| name.ends_with(&format!(",{call}]")));
        Sent::SubagentStarted {
            subagent_run_id: child.to_string(),
            name: name.to_owned(),
            parent_tool_call_id: call.map(|call| messages::id(&self.run, call)),
        }
    }

    fn spent(&mut self, call: &CallId, spent: &Spend) {
        let model = self.models.get(call).map_or("", |(_, model)| &**model);
        let usage = self.usage.entry(model.to_owned()).or_default();
        model.clone_into(&mut usage.model);
        usage.input_tokens += spent.input_tokens;
        usage.output_tokens += spent.output_tokens;
        usage.reasoning_tokens += spent.reasoning_tokens;
    }

    fn usage(&self) -> Vec<TokenUsage> {
        self.usage.values().cloned().collect()
    }

    fn finished(&self, result: Value, outcome: Outcome) -> Sent {
        Sent::RunFinished {
            thread_id: self.listener.thread.clone(),
            run_id: self.listener.run.clone(),
            result,
            outcome,
            usage: self.usage(),
        }
    }

    fn error(&self, message: String, code: &str) -> Sent {
        Sent::RunError {
            message,
            code: code.to_owned(),
            usage: self.usage(),
        }
    }

    fn merged(&mut self) -> Vec<Value> {
        messages::merged(&self.listener.messages, self.transcript.all(), &self.run)
    }

    fn snapshot(&mut self) -> Sent {
        Sent::MessagesSnapshot {
            messages: self.merged(),
        }
    }

    /// Ends what comes in and will not be completed; a client forgets what it was shown of it.
    fn drop_live(&mut self, out: &mut Vec<Sent>) {
        let Some(mut live) = self.live.take() else {
            return;
        };
        live.end_reasoning(out);
        if live.text.is_some() {
            let message_id = live.message;
            out.push(Sent::TextMessageEnd { message_id });
            out.push(self.snapshot());
        }
    }

    fn close(&mut self, why: &Closing<'_>, out: &mut Vec<Sent>) {
        self.drop_live(out);
        let steps = std::mem::take(&mut self.steps).into_iter().rev();
        out.extend(steps.map(|step_name| Sent::StepFinished { step_name }));
        let children = std::mem::take(&mut self.children).into_iter().rev();
        out.extend(children.map(|(child, _)| child_closed(&child, why)));
    }
}

impl Live {
    fn say(&mut self, words: &str, out: &mut Vec<Sent>) {
        self.end_reasoning(out);
        let (message_id, role) = (self.message.clone(), "assistant");
        let text = self.text.get_or_insert_with(|| {
            out.push(Sent::TextMessageStart { message_id, role });
            String::new()
        });
        text.push_str(words);
        say(&self.message, words, out);
    }

    fn think(&mut self, words: &str, out: &mut Vec<Sent>) {
        if self.reasoning.is_none() {
            self.reasonings += 1;
            let id = format!("{}/thinking/{}", self.message, self.reasonings);
            let (message_id, role) = (id.clone(), "reasoning");
            out.push(Sent::ReasoningStart {
                message_id: id.clone(),
            });
            out.push(Sent::ReasoningMessageStart { message_id, role });
            self.reasoning = Some(id);
        }
        let id = self.reasoning.as_deref().unwrap_or_default();
        out.extend(pieces(words).map(|delta| Sent::ReasoningMessageContent {
            message_id: id.to_owned(),
            delta: delta.to_owned(),
        }));
    }

    fn end_reasoning(&mut self, out: &mut Vec<Sent>) {
        if let Some(id) = self.reasoning.take() {
            let message_id = id.clone();
            out.push(Sent::ReasoningMessageEnd { message_id });
            out.push(Sent::ReasoningEnd { message_id: id });
        }
    }
}

/// A message of a conversation, in the shapes that logs have: parts, or content.
struct Answer {
    words: String,
    /// Id, name and arguments.
    calls: Vec<(String, String, String)>,
}

impl Answer {
    fn of(message: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let content = match &message["content"] {
            Value::Null => message,
            content => content,
        };
        let parts = match (&message["parts"], content) {
            (Value::Array(parts), _) | (_, Value::Array(parts)) => parts.as_slice(),
            (_, Value::String(words)) => {
                let (words, calls) = (words.clone(), Vec::new());
                return Self { words, calls };
            }
            (_, Value::Null) => &[],
            (_, other) => {
                let (words, calls) = (other.to_string(), Vec::new());
                return Self { words, calls };
            }
        };
        let calls = parts.iter().map(|part| &part["tool_call"]);
        let calls = calls.filter(|call| call.is_object()).map(|call| {
            let arguments = call["arguments"].to_string();
            (text(&call["call"]), text(&call["name"]), arguments)
        });
        Self {
            words: parts.iter().map(|part| text(&part["text"])).collect(),
            calls: calls.collect(),
        }
    }
}

/// What a model is asked for that is not for the conversation: a summary of it.
fn is_private(call: &CallId) -> bool {
    call.as_str().ends_with(".compact")
}

fn message_id(run: &RunId, call: &CallId, attempt: u32) -> String {
    match attempt {
        1 => messages::id(run, call.as_str()),
        _ => messages::id(run, &format!("{call}.{attempt}")),
    }
}

fn turn(number: u32) -> String {
    format!("turn {number}")
}

/// A value for people: text as it is, else JSON.
fn shown(value: &Payload) -> String {
    match value.to_json().to_value() {
        Value::String(text) => text,
        _ => value.to_json().text().to_owned(),
    }
}

fn failure(cause: &Cause) -> String {
    format!("{}: {}", cause.kind, cause.message)
}

fn custom(name: &str, value: &Payload) -> Sent {
    Sent::Custom {
        name: name.to_owned(),
        value: value.to_json().to_value(),
    }
}

fn child_closed(child: &RunId, why: &Closing<'_>) -> Sent {
    let subagent_run_id = child.to_string();
    let outcome = match why {
        Closing::Done => SubagentOutcome::Success,
        Closing::Suspended(interrupts) => {
            let its_own = interrupts.iter().map(|it| it.id.clone());
            let its_own = its_own.filter(|id| id.starts_with(&subagent_run_id));
            let interrupt_ids = its_own.collect();
            SubagentOutcome::Suspended { interrupt_ids }
        }
        Closing::Stopped(code) => {
            return Sent::SubagentError {
                subagent_run_id,
                message: format!("it did not complete ({code})"),
                code,
            };
        }
    };
    Sent::SubagentFinished {
        subagent_run_id,
        outcome,
    }
}

fn say(id: &str, text: &str, out: &mut Vec<Sent>) {
    out.extend(pieces(text).map(|delta| Sent::TextMessageContent {
        message_id: id.to_owned(),
        delta: delta.to_owned(),
    }));
}

/// The text in pieces that are not too long; none of nothing.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(PIECE_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Whether a patch means the same to every client. Some refuse names that are special in JavaScript, and
/// what they make of a patch of the whole document differs.
fn is_plain(patch: &Value) -> bool {
    let pointers = patch.as_array().into_iter().flatten();
    let mut pointers = pointers.flat_map(|operation| [&operation["path"], &operation["from"]]);
    pointers.all(|pointer| {
        let Some(pointer) = pointer.as_str() else {
            return pointer.is_null();
        };
        let mut names = pointer.split('/').skip(1).peekable();
        names.peek().is_some()
            && !names.any(|name| matches!(name, "__proto__" | "constructor" | "prototype"))
    })
}

/// A patch from one document to another, by their members; `None` when one has none.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (old, new) = (old.as_object()?, new.as_object()?);
    let path = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let gone = gone.map(|name| json!({"op": "remove", "path": path(name)}));
    let changed = new
        .iter()
        .filter(|(name, value)| old.get(*name) != Some(*value));
    let changed =
        changed.map(|(name, value)| json!({"op": "add", "path": path(name), "value": value}));
    Some(gone.chain(changed).collect())
}

#[cfg(test)]
mod tests;
