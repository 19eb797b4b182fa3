//! Results that a fork is given instead of those its parent had, or would have got.
//!
//! A step's result and a tool call's outcome may be given as long as nothing was made of them where the
//! fork leaves its parent. What was made of them says from where on it is too late.

use std::ops::ControlFlow;

use logreel_core::event::{Change, Effect, StepFinished, ToolCalled, ToolReturned};
use logreel_core::{
    Blob, Body, CallId, Draft, Event, Json, Payload, Record, RunId, RunState, Seq, StepId,
    StepState, Timestamp,
};
use serde_json::Value;

use super::point::{is_call, is_named};
use crate::Error;
use crate::engine::Inner;
use crate::moment::decode;
use crate::value;
use crate::workflow::Workflow;

/// What the fork begins with because of the results it is given.
#[derive(Default)]
pub(super) struct Given {
    pub(super) forgotten: Vec<StepId>,
    pub(super) forgotten_calls: Vec<CallId>,
    pub(super) changes: Vec<Change>,
    pub(super) then: Vec<Draft>,
    pub(super) blobs: Vec<Blob>,
}

/// The run where the fork leaves it.
pub(super) struct Parting<'a> {
    pub(super) run: RunId,
    pub(super) at: Seq,
    pub(super) state: &'a RunState,
    /// Its graph, when it is a workflow's.
    pub(super) workflow: Option<&'a Workflow>,
    pub(super) now: Timestamp,
}

impl Given {
    /// Adds a result of the step or tool call with this name.
    pub(super) async fn add(
        &mut self,
        engine: &Inner,
        parting: &Parting<'_>,
        name: &str,
        result: &Json,
    ) -> Result<(), Error> {
        let mut search = Search::new(name, parting);
        let look = |record: &Record| search.take(record);
        engine.each_record(&parting.run, Seq::FIRST, look).await?;
        match search.found()? {
            Found::Call(call) => {
                let (tool, arguments) = search
                    .called
                    .clone()
                    .ok_or_else(|| unknown(parting, name))?;
                let arguments = value::resolve(&*engine.store, &arguments).await?;
                self.call(parting, call, tool, arguments, result);
            }
            Found::Step(step) => self.step(parting, step, result),
        }
        self.changes.push(Change::Result(name.to_owned()));
        Ok(())
    }

    fn call(
        &mut self,
        parting: &Parting<'_>,
        call: CallId,
        name: String,
        arguments: Json,
        result: &Json,
    ) {
        if parting.state.tools.contains_key(&call) {
            self.forgotten_calls.push(call.clone());
        }
        let arguments = self.payload(arguments);
        let output = self.payload(result.clone());
        // It touches nothing outside: nobody calls the tool.
        let called = ToolCalled {
            arguments,
            attempt: 1,
            call: call.clone(),
            effect: Effect::Read,
            key: None,
            name,
            redacted: 0,
        };
        let redacted = 0;
        self.then.push(Draft::new(called));
        self.then.push(Draft::new(ToolReturned {
            call,
            output,
            redacted,
        }));
    }

    fn step(&mut self, parting: &Parting<'_>, step: StepId, result: &Json) {
        if parting.state.steps.contains_key(&step) {
            self.forgotten.push(step.clone());
        }
        let output = self.payload(result.clone());
        self.then.push(Draft::new(StepFinished {
            attempt: 1,
            effect: Effect::Read,
            // Bound to nothing: whatever its input is, this is its result.
            input_digest: None,
            output,
            started_at: Some(parting.now),
            step,
        }));
    }

    fn payload(&mut self, json: Json) -> Payload {
        let (payload, blob) = Payload::of(json);
        self.blobs.extend(blob);
        payload
    }
}

fn unknown(parting: &Parting<'_>, name: &str) -> Error {
    Error::NoSuchCall {
        run: parting.run,
        call: name.to_owned(),
    }
}

/// What a name means.
enum Found {
    Call(CallId),
    Step(StepId),
}

/// What a log says of one step or call.
struct Search<'a> {
    name: &'a str,
    parting: &'a Parting<'a>,
    /// Steps that are shown like that, also those that began later.
    steps: Vec<StepId>,
    /// The tool and its arguments.
    called: Option<(String, Payload)>,
    /// The answer that asks for the call is part of the conversation from this event on.
    asked: Option<Seq>,
    asking: bool,
    /// Where its result is, at the point or before.
    result: Option<(Seq, Timestamp)>,
    /// The first event that was made of its result.
    used: Option<(Seq, String)>,
}

impl<'a> Search<'a> {
    fn new(name: &'a str, parting: &'a Parting<'a>) -> Self {
        Self {
            name,
            parting,
            steps: Vec::new(),
            called: None,
            asked: None,
            asking: false,
            result: None,
            used: None,
        }
    }

    fn take(&mut self, record: &Record) -> Result<ControlFlow<()>, Error> {
        let group = record.kind.split('.').next().unwrap_or_default();
        let is_told = matches!(
            group,
            "step" | "wait" | "tool" | "message" | "model" | "child"
        );
        if is_told && !record.late {
            self.apply(&decode(record)?);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn apply(&mut self, event: &Event) {
        let name = self.name;
        let is_call = |call: &CallId| call.as_str() == name;
        match &event.body {
            Body::ModelAnswered(it) => {
                if let Some(called) = find_call(&it.message, self.name) {
                    self.called = Some(called);
                    self.asking = true;
                }
            }
            Body::MessageAdded(it) if it.role == "assistant" && self.asking => {
                (self.asking, self.asked) = (false, Some(event.seq));
            }
            Body::MessageAdded(it) if it.role == "tool" => {
                let is_of_call = self.asked.is_some() || self.called.is_some();
                if is_of_call && self.result.is_some() {
                    self.use_it(event, "joined the conversation".to_owned());
                }
            }
            Body::WaitStarted(it) => {
                if it.call.as_ref().is_some_and(is_call)
                    && let (Some(tool), Some(arguments)) = (&it.tool, &it.arguments)
                {
                    self.called = Some((tool.clone(), arguments.clone()));
                }
                if let Some(step) = &it.step {
                    self.of_step(step, event, None, false);
                }
            }
            Body::ToolCalled(it) if is_call(&it.call) => {
                self.called = Some((it.name.clone(), it.arguments.clone()));
            }
            Body::ToolReturned(it) if is_call(&it.call) => self.has_result(event),
            Body::ToolFailed(it) if is_call(&it.call) => self.has_result(event),
            Body::ToolResolved(it) if is_call(&it.call) => self.has_result(event),
            Body::StepStarted(it) => self.of_step(&it.step, event, None, false),
            Body::StepFailed(it) => self.of_step(&it.step, event, it.started_at, false),
            Body::StepSkipped(it) => self.of_step(&it.step, event, None, false),
            Body::ChildStarted(it) => self.of_step(&it.step, event, None, false),
            Body::StepFinished(it) => self.of_step(&it.step, event, it.started_at, true),
            Body::StepResolved(it) => self.of_step(&it.step, event, None, true),
            Body::WaitEnded(it) => {
                if let Some(step) = &it.step {
                    self.of_step(step, event, None, true);
                }
            }
            _ => {}
        }
    }

    fn has_result(&mut self, event: &Event) {
        if event.seq <= self.parting.at {
            // A second one: the first was forgotten, with what was made of it.
            (self.result, self.used) = (Some((event.seq, event.at)), None);
        }
    }

    fn use_it(&mut self, event: &Event, how: String) {
        if event.seq <= self.parting.at && self.used.is_none() {
            self.used = Some((event.seq, how));
        }
    }

    /// `began`: when the step did, if the event is all there is of it.
    fn of_step(&mut self, step: &StepId, event: &Event, began: Option<Timestamp>, ends: bool) {
        if is_named(step, self.name) || is_call(step, self.name) {
            if !self.steps.contains(step) {
                self.steps.push(step.clone());
            }
            if ends {
                self.has_result(event);
            }
            return;
        }
        let Some((result, at)) = self.result else {
            return;
        };
        // Only what has a result where the fork leaves its parent stays.
        let stays = !matches!(
            self.parting.state.steps.get(step),
            None | Some(StepState::Open(_))
        );
        let is_later = event.seq > result && began.is_none_or(|began| began >= at);
        let around = || {
            let named = self.steps.first().and_then(StepId::outer);
            let mut around = std::iter::successors(named, StepId::outer);
            ends && event.seq > result && around.any(|outer| outer == *step)
        };
        if stays && ((is_later && self.needs(step)) || around()) {
            self.use_it(event, format!("went into step `{step}`"));
        }
    }

    /// Whether the step may have been made of the result. What a Rust task does between its steps is
    /// not known.
    fn needs(&self, step: &StepId) -> bool {
        let Some(workflow) = self.parting.workflow else {
            return self.parting.state.row.facts.kind != logreel_core::event::RunKind::Agent;
        };
        let Some(named) = self.steps.first() else {
            return false;
        };
        let index = workflow.index_of(&named.name());
        let name = step.name();
        index.is_some_and(|index| {
            let mut dependents = workflow.dependents(index).iter();
            dependents.any(|next| workflow.step(*next).id == name)
        })
    }

    fn found(&mut self) -> Result<Found, Error> {
        let Parting { run, at, state, .. } = *self.parting;
        let refused = |why: &str| Error::NotGiven {
            run,
            call: self.name.to_owned(),
            why: why.to_owned(),
        };
        let call = CallId::new(self.name).ok();
        if call
            .as_ref()
            .is_some_and(|call| state.models.contains_key(call))
        {
            let why = "it is a model call; say something to the agent, or give it another model";
            return Err(refused(why));
        }
        let is_step = !self.steps.is_empty() || self.planned().is_some();
        if let Some((seq, how)) = &self.used {
            return Err(Error::ResultUsed {
                run,
                call: self.name.to_owned(),
                how: how.clone(),
                seq: *seq,
            });
        }
        if let Some(asked) = self.asked.filter(|asked| *asked > at) {
            return Err(Error::NotAskedYet {
                run,
                call: self.name.to_owned(),
                seq: asked,
            });
        }
        if let (Some(call), true, false) = (call, self.called.is_some(), is_step) {
            return Ok(Found::Call(call));
        }
        match (self.steps.as_slice(), self.planned()) {
            ([step], _) => {
                let is_wait = matches!(state.steps.get(step), Some(StepState::Answered { .. }));
                if is_wait && self.parting.workflow.is_none() {
                    return Err(refused(
                        "it is a wait; fork before its answer and answer the fork",
                    ));
                }
                Ok(Found::Step(step.clone()))
            }
            ([], Some(step)) => Ok(Found::Step(step)),
            ([], None) if self.is_mapped() => Err(refused(
                "it is a step over a list; name one of its items, as `ID[KEY]`",
            )),
            ([], None) => Err(unknown(self.parting, self.name)),
            _ => Err(Error::NoSuchStep {
                run,
                step: self.name.to_owned(),
                several: true,
            }),
        }
    }

    fn is_mapped(&self) -> bool {
        let index = |workflow: &Workflow| workflow.index_of(self.name);
        let mapped = self.parting.workflow.and_then(|workflow| {
            let index = index(workflow)?;
            workflow.step(index).map.as_ref()
        });
        mapped.is_some()
    }

    /// A step of the workflow that the log does not speak of yet.
    fn planned(&self) -> Option<StepId> {
        let workflow = self.parting.workflow?;
        workflow.index_of(self.name).filter(|_| !self.is_mapped())?;
        StepId::from_parts([self.name]).ok()
    }
}

/// The tool and arguments of a call in what a model said: an object with the call's id.
fn find_call(message: &Payload, call: &str) -> Option<(String, Payload)> {
    let text = message.inline()?.text();
    if !text.contains(call) {
        return None;
    }
    let mut left = vec![serde_json::from_str::<Value>(text).ok()?];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                let named = fields.get("call").and_then(Value::as_str) == Some(call);
                let name = fields.get("name").and_then(Value::as_str);
                if let (true, Some(name), Some(arguments)) = (named, name, fields.get("arguments"))
                {
                    let arguments = Payload::Inline(Json::from(arguments.clone()));
                    return Some((name.to_owned(), arguments));
                }
                left.extend(fields.into_iter().map(|(_, value)| value));
            }
            _ => {}
        }
    }
    None
}
