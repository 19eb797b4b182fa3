//! From a run's events and live text to the events of AG-UI: pure, and the same for whoever watches from
//! the beginning and whoever joins in the middle.
//!
//! Whatever is opened here (text, reasoning, steps, children) is known, and closed before the end.

mod document;
mod live;
mod models;
mod open;
mod tools;
mod words;

use logreel::core::event::{MessageAdded, ModelAnswered, Resolution, RunKind, RunStarted};
use logreel::core::{CallId, Payload};
use logreel::{Body, Event, Json, LiveText, RunId, Seq, Shown, StepId};
use serde_json::{Value, json};

use self::document::Document;
use self::live::Live;
use self::models::Models;
use self::open::{Child, Closing, Open};
use self::tools::Tools;
use self::words::{Answer, failure, is_private, message_id, say, say_at_once, shown};
use super::messages::{self, Transcript};
use super::sent::{Interrupt, Outcome, PROTOCOL, Sent};

/// The label that holds the id of the message that a run answers.
pub(crate) const MESSAGE_LABEL: &str = "agui.message";

/// An event whose values are here: what was in blobs is inline, unless it is too large to be sent.
pub(crate) struct Fact {
    pub(crate) event: Event,
    /// The context node of a `message.added`.
    pub(crate) node: Option<Json>,
}

/// For whom a run is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listener {
    pub(crate) thread: String,
    /// What they call the run.
    pub(crate) run: String,
    /// The messages that came before the run, and others that are not of it.
    pub(crate) messages: Vec<Value>,
}

pub(crate) struct Translator {
    run: RunId,
    listener: Listener,
    kind: Option<RunKind>,
    document: Document,
    transcript: Transcript,
    /// Whether the run said something itself, so that its output need not.
    spoke: bool,
    /// A model's answer was told, and its `message.added` comes.
    told_answer: bool,
    live: Option<Live>,
    models: Models,
    tools: Tools,
    open: Open,
}

impl Translator {
    pub(crate) fn new(run: RunId, listener: Listener) -> Self {
        Self {
            run,
            listener,
            kind: None,
            document: Document::default(),
            transcript: Transcript::default(),
            spoke: false,
            told_answer: false,
            live: None,
            models: Models::default(),
            tools: Tools::new(run),
            open: Open::default(),
        }
    }

    /// What the run has said.
    pub(crate) fn into_transcript(self) -> Transcript {
        self.transcript
    }

    /// How their run begins: after nothing, or after all that was taken so far.
    pub(crate) fn begin(&mut self, joins: bool) -> Vec<Sent> {
        self.models.begin();
        let mut out = vec![
            Sent::RunStarted {
                thread_id: self.listener.thread.clone(),
                run_id: self.listener.run.clone(),
                protocol_version: PROTOCOL,
                metadata: json!({"logreel": {"run": self.run}}),
            },
            self.document.snapshot(),
        ];
        if joins {
            out.push(self.snapshot());
        }
        self.open.begin(&mut out);
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
        if text.run != self.run || self.models.is_over(&text.call) || is_private(&text.call) {
            return out;
        }
        // One whose beginning was missed is told when it is complete.
        let known = self.live.as_mut().filter(|live| live.has(text));
        match (&text.shown, known) {
            (Shown::Reset, Some(_)) => {}
            (Shown::Reset, None) => {
                self.drop_live(&mut out);
                self.live = Some(Live::new(&self.run, text));
            }
            (Shown::Text(words) | Shown::Thinking(words), _) if words.is_empty() => {}
            (Shown::Text(words), Some(live)) => live.say(words, &mut out),
            (Shown::Thinking(words), Some(live)) => live.think(words, &mut out),
            (Shown::Text(_) | Shown::Thinking(_), None) | (Shown::ToolCall(_), _) => {}
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
        self.tools.told(call.as_str())
    }

    #[cfg(test)]
    pub(crate) fn document(&self) -> &Value {
        self.document.value()
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
            Body::StepStarted(it) => self.open.step_started(it.step.to_string(), out),
            Body::StepFinished(it) => {
                self.open.step_over(&it.step, out);
                self.step_result(&it.step, &shown(&it.output), out);
            }
            Body::StepFailed(it) => {
                self.open.step_over(&it.step, out);
                self.step_result(&it.step, &failure(&it.error), out);
            }
            Body::StepResolved(it) => self.open.step_over(&it.step, out),
            Body::StepSkipped(it) => self.open.step_closed(&it.step.to_string(), out),
            Body::StepInDoubt(it) => self.open.step_closed(&it.step.to_string(), out),
            Body::TurnStarted(it) => self.open.step_started(turn(it.turn), out),
            Body::TurnFinished(it) => self.open.step_closed(&turn(it.turn), out),
            Body::ModelCalled(it) => {
                if self
                    .live
                    .as_ref()
                    .is_some_and(|live| live.call == it.call && live.attempt < it.attempt)
                {
                    self.drop_live(out);
                }
                self.models.called(it);
            }
            Body::ModelAnswered(it) => self.answered(it, out),
            Body::ModelFailed(it) => {
                self.models.end(&it.call, &it.spent);
                if self.live.as_ref().is_some_and(|live| live.call == it.call) {
                    self.drop_live(out);
                }
            }
            Body::ToolCalled(it) => {
                let arguments = it.arguments.to_json();
                let called = (it.call.as_str(), &*it.name, arguments.text());
                self.tools.called(called, &mut self.transcript, out);
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
            Body::StatePatched(it) => self.document.patch(&self.run, it, out),
            Body::WaitEnded(it) => {
                if let Some(step) = &it.step {
                    self.open.step_closed(&step.to_string(), out);
                }
            }
            Body::ChildStarted(it) if it.detached => {}
            Body::ChildStarted(it) => {
                let call = self.tools.of_step(&it.step);
                let child = Child {
                    run: it.child,
                    name: it.step.to_string(),
                    call: call.map(|call| messages::id(&self.run, &call)),
                };
                self.open.child_started(child, out);
            }
            Body::ChildFinished(it) => self.open.child_finished(it, out),
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
        say_at_once(id, role, text, out);
    }

    fn answered(&mut self, answered: &ModelAnswered, out: &mut Vec<Sent>) {
        let call = &answered.call;
        self.models.end(call, &answered.spent);
        if is_private(call) {
            return;
        }
        self.told_answer = true;
        let answer = Answer::of(&answered.message.to_json().to_value());
        let id = message_id(&self.run, call, self.models.attempt(call));
        let mut live = self.live.take_if(|live| live.call == *call);
        if let Some(live) = &mut live {
            live.end_reasoning(out);
        }
        let mut is_as_shown = true;
        match live.and_then(|live| Some((live.message, live.text?))) {
            Some((message_id, shown)) => {
                match answer.words.strip_prefix(&shown) {
                    Some(rest) if message_id == id => say(&id, rest, out),
                    _ => is_as_shown = false,
                }
                out.push(Sent::TextMessageEnd { message_id });
            }
            None if answer.words.is_empty() => {}
            None => say_at_once(&id, "assistant", &answer.words, out),
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
        for (call, name, arguments) in &answer.calls {
            self.tools.made(call);
            if is_as_shown {
                self.tools.send((call, name, arguments), Some(&id), out);
            }
        }
    }

    fn tool_result(&mut self, call: &str, content: &str, out: &mut Vec<Sent>) {
        self.tools.result(call, content, &mut self.transcript, out);
    }

    /// An agent's call of a sub-agent is a step, whose outcome is that of the call.
    fn step_result(&mut self, step: &StepId, content: &str, out: &mut Vec<Sent>) {
        if let Some(call) = self.tools.of_step(step) {
            self.tool_result(&call, content, out);
        }
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

    fn finished(&self, result: Value, outcome: Outcome) -> Sent {
        Sent::RunFinished {
            thread_id: self.listener.thread.clone(),
            run_id: self.listener.run.clone(),
            result,
            outcome,
            usage: self.models.usage(),
        }
    }

    fn error(&self, message: String, code: &str) -> Sent {
        Sent::RunError {
            message,
            code: code.to_owned(),
            usage: self.models.usage(),
        }
    }

    fn merged(&mut self) -> Vec<Value> {
        messages::merged(&self.listener.messages, self.transcript.all())
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
        self.open.close(why, out);
    }
}

fn turn(number: u32) -> String {
    format!("turn {number}")
}

fn custom(name: &str, value: &Payload) -> Sent {
    Sent::Custom {
        name: name.to_owned(),
        value: value.to_json().to_value(),
    }
}

#[cfg(test)]
mod tests;
