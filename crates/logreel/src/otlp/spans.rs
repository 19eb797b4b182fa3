//! From a run's log to its spans: each event in, the spans that it ends out.

use std::collections::{BTreeMap, HashMap};

use logreel_core::event::{
    Effect, ModelCalled, Relation, RunKind, RunStarted, Spend, WaitKind, WaitStarted,
};
use logreel_core::{Body, CallId, Event, RunId, StepId, Timestamp, WaitId};
use logreel_store::RunStore;
use serde_json::Value;

use super::span::{Attribute, Content, Span, SpanKind, span_id, trace_id};
use crate::Error;

/// The trace that a run is part of: that of the run that started it all.
pub async fn trace_of(store: &dyn RunStore, run: RunId) -> Result<[u8; 16], Error> {
    let mut root = run;
    loop {
        let parent = match store.entry(&root).await {
            Ok(entry) => entry.row.facts.parent.clone(),
            // Pruned since.
            Err(logreel_store::Error::NotFound(_)) if root != run => None,
            Err(error) => return Err(error.into()),
        };
        match parent.filter(|parent| parent.relation == Relation::Child) {
            Some(parent) => root = parent.run,
            None => return Ok(trace_id(&root)),
        }
    }
}

/// The spans of one run, as its events come in.
pub struct RunSpans {
    run: RunId,
    trace: [u8; 16],
    root: Option<Root>,
    open: BTreeMap<Key, Span>,
    /// Attempts of steps that failed.
    failed: HashMap<StepId, u32>,
    /// Names of tools, by the calls that models made of them.
    tools: HashMap<CallId, String>,
    spent: Spend,
    ended: bool,
}

struct Root {
    span: Span,
    kind: RunKind,
    /// The spec changed since it said which model it asks.
    asks_anew: bool,
}

impl Root {
    fn without(&mut self, keys: &[&str]) {
        self.span.attributes.retain(|(key, _)| !keys.contains(key));
    }

    /// An attribute has one value.
    fn set(&mut self, key: &'static str, text: String) {
        self.without(&[key]);
        self.span.attributes.push((key, Attribute::Text(text)));
    }
}

/// What is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Model(String),
    Tool(String),
    Step(String),
    Wait(u32),
}

impl RunSpans {
    /// Of a run, in this trace.
    pub fn new(run: RunId, trace: [u8; 16]) -> Self {
        Self {
            run,
            trace,
            root: None,
            open: BTreeMap::new(),
            failed: HashMap::new(),
            tools: HashMap::new(),
            spent: Spend::default(),
            ended: false,
        }
    }

    /// Whether the run has ended: no more spans come.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes the next event, and gives the spans that end with it.
    pub fn take(&mut self, event: &Event) -> Vec<Span> {
        if event.late || self.ended {
            return Vec::new();
        }
        let at = event.at;
        match &event.body {
            Body::RunStarted(started) if self.root.is_none() => {
                self.root = Some(self.begun(started, at));
                Vec::new()
            }
            // What came before is another run's work, and in that one's trace.
            Body::RunForked(forked) => {
                self.open.clear();
                self.spent = Spend::default();
                if let Some(root) = &mut self.root {
                    root.span.start = at;
                    let (parent, relation) = (forked.parent.run, forked.parent.relation);
                    let relation = match relation {
                        Relation::Fork => "fork",
                        Relation::Retry => "retry",
                        Relation::Child => "child",
                    };
                    root.span.parent = None;
                    // Which models it asks it says itself, and a fork has no session.
                    root.without(&[PROVIDER, REQUEST_MODEL, CONVERSATION]);
                    root.set("logreel.parent.run", parent.to_string());
                    root.set("logreel.parent.relation", relation.to_owned());
                    let is_input = |content: &Content| matches!(content, Content::Input(_));
                    root.span.content.retain(|content| !is_input(content));
                    let input = Content::Input(forked.input.clone());
                    root.span.content.push(input);
                }
                Vec::new()
            }
            Body::SpecChanged(changed) => {
                if let Some(root) = &mut self.root {
                    root.set("logreel.spec_digest", changed.spec_digest.to_string());
                    root.asks_anew = true;
                }
                Vec::new()
            }
            Body::ModelCalled(called) => {
                self.note_model(called);
                let span = self.chat(called, at);
                self.begin(Key::Model(called.call.to_string()), span, at)
            }
            Body::ModelAnswered(answered) => {
                self.note_tools(answered.message.inline().map(logreel_core::Json::to_value));
                self.spend(&answered.spent);
                let finish = answered.finish_reason.clone();
                self.end(&Key::Model(answered.call.to_string()), at, |mut span| {
                    let message = answered.message.clone();
                    span.content.push(Content::Answer(message, finish.clone()));
                    if let Some(finish) = finish {
                        let reasons = Attribute::Texts(vec![finish]);
                        span = span.with("gen_ai.response.finish_reasons", reasons);
                    }
                    with_usage(span, &answered.spent)
                })
            }
            Body::ModelFailed(failed) => {
                self.spend(&failed.spent);
                self.end(&Key::Model(failed.call.to_string()), at, |span| {
                    with_usage(span, &failed.spent)
                        .failed(&failed.error.kind, Some(&failed.error.message))
                })
            }
            Body::ToolCalled(called) => {
                self.tools.insert(called.call.clone(), called.name.clone());
                let key = Key::Tool(called.call.to_string());
                let which = format!("{}#{}", called.call, called.attempt);
                let mut span = self.tool(&called.call, &called.name, &which, at);
                span = span.with("logreel.effect", effect(called.effect));
                let arguments = called.arguments.clone();
                span.content
                    .push(Content::Value("gen_ai.tool.call.arguments", arguments));
                self.begin(key, span, at)
            }
            Body::ToolReturned(returned) => {
                self.end(&Key::Tool(returned.call.to_string()), at, |mut span| {
                    let output = returned.output.clone();
                    span.content
                        .push(Content::Value("gen_ai.tool.call.result", output));
                    span
                })
            }
            Body::ToolFailed(failed) => {
                let key = Key::Tool(failed.call.to_string());
                if !self.open.contains_key(&key) {
                    // Denied: it was never made.
                    let name = self.tools.get(&failed.call).cloned().unwrap_or_default();
                    let span = self.tool(&failed.call, &name, failed.call.as_str(), at);
                    self.open.insert(key.clone(), span);
                }
                self.end(&key, at, |span| {
                    span.failed(&failed.error.kind, Some(&failed.error.message))
                })
            }
            Body::ToolInDoubt(doubt) => self.end(&Key::Tool(doubt.call.to_string()), at, |span| {
                span.failed("in_doubt", Some(&doubt.reason))
            }),
            Body::StepStarted(started) => {
                let span = self.step(&started.step, started.attempt, at);
                let span = span.with("logreel.effect", effect(started.effect));
                self.begin(Key::step(&started.step), span, at)
            }
            Body::ChildStarted(started) => {
                let span = self.child(&started.step, event);
                self.begin(Key::step(&started.step), span, at)
            }
            Body::StepFinished(finished) => {
                let start = finished.started_at.unwrap_or(at);
                self.open_step(&finished.step, finished.attempt, start);
                self.end(&Key::step(&finished.step), at, |mut span| {
                    let output = finished.output.clone();
                    span.content.push(Content::Value("logreel.output", output));
                    span
                })
            }
            Body::StepFailed(failed) => {
                let start = failed.started_at.unwrap_or(at);
                self.open_step(&failed.step, failed.attempt, start);
                self.failed.insert(failed.step.clone(), failed.attempt);
                self.end(&Key::step(&failed.step), at, |span| {
                    let exit = failed.error.exit_code;
                    let span = span.failed(&failed.error.kind, Some(&failed.error.message));
                    match exit {
                        Some(code) => {
                            span.with("process.exit.code", Attribute::Number(i64::from(code)))
                        }
                        None => span,
                    }
                })
            }
            Body::StepInDoubt(doubt) => self.end(&Key::step(&doubt.step), at, |span| {
                span.failed("in_doubt", Some(&doubt.reason))
            }),
            Body::WaitStarted(wait) => match self.wait(wait, at) {
                Some(span) => self.begin(Key::wait(wait.wait), span, at),
                None => Vec::new(),
            },
            Body::WaitEnded(ended) => self.end(&Key::wait(ended.wait), at, |span| {
                let outcome = serde_json::to_value(ended.outcome).unwrap_or_default();
                span.with("logreel.wait.outcome", outcome.as_str().unwrap_or_default())
            }),
            Body::RunCompleted(completed) => {
                let output = completed.output.clone();
                self.over(at, "completed", |mut span| {
                    span.content.push(Content::Output(output));
                    span
                })
            }
            Body::RunFailed(failed) => {
                let error = failed.error.clone();
                self.over(at, "failed", |span| {
                    span.failed(&error.kind, Some(&error.message))
                })
            }
            Body::RunCancelled(cancelled) => {
                let reason = cancelled.reason.clone();
                self.over(at, "cancelled", |span| {
                    span.failed("cancelled", reason.as_deref())
                })
            }
            _ => Vec::new(),
        }
    }

    /// The run as far as its log goes, when that has no end: its own span, until now.
    pub fn so_far(&mut self, at: Timestamp, status: &str) -> Vec<Span> {
        match self.ended {
            true => Vec::new(),
            false => self.over(at, status, |span| span),
        }
    }

    fn blank(&self, id: [u8; 8], name: String, start: Timestamp) -> Span {
        Span {
            trace: self.trace,
            id,
            parent: self.root.as_ref().map(|root| root.span.id),
            name,
            kind: SpanKind::Internal,
            start,
            end: start,
            attributes: Vec::new(),
            failed: false,
            message: None,
            content: Vec::new(),
        }
    }

    fn begun(&self, started: &RunStarted, at: Timestamp) -> Root {
        let agent = &started.agent;
        let (operation, named) = match started.kind {
            RunKind::Agent => ("invoke_agent", "gen_ai.agent.name"),
            RunKind::Workflow => ("invoke_workflow", "gen_ai.workflow.name"),
            RunKind::Task => ("run_task", "logreel.task.name"),
            RunKind::External | RunKind::Record => ("run", "logreel.program.name"),
        };
        let id = span_id(&self.run, "run", "");
        let mut span = self.blank(id, format!("{operation} {agent}"), at);
        let parent = started.parent.as_ref();
        let parent = parent.filter(|parent| parent.relation == Relation::Child);
        span.parent = parent.map(|parent| span_id(&parent.run, "child", &parent.seq.to_string()));
        span = span
            .with("gen_ai.operation.name", operation)
            .with(named, &**agent)
            .with("logreel.run.id", self.run.to_string())
            .with("logreel.spec_digest", started.spec_digest.to_string());
        if let Some(session) = &started.session {
            span = span.with(CONVERSATION, session.as_str());
        }
        span.content.push(Content::Input(started.input.clone()));
        Root {
            span,
            kind: started.kind,
            asks_anew: false,
        }
    }

    /// A run of an agent says which model it asks.
    fn note_model(&mut self, called: &ModelCalled) {
        let (provider, model) = provider_and_model(&called.model);
        let Some(root) = &mut self.root else {
            return;
        };
        let said = root.span.attributes.iter();
        let has_said = said.into_iter().any(|(key, _)| *key == REQUEST_MODEL);
        if root.kind == RunKind::Agent && (!has_said || root.asks_anew) {
            root.asks_anew = false;
            root.without(&[PROVIDER, REQUEST_MODEL]);
            root.span.attributes.push((PROVIDER, provider.into()));
            root.span.attributes.push((REQUEST_MODEL, model.into()));
        }
    }

    fn chat(&self, called: &ModelCalled, at: Timestamp) -> Span {
        let (provider, model) = provider_and_model(&called.model);
        let which = format!("{}#{}", called.call, called.attempt);
        let id = span_id(&self.run, "model", &which);
        let mut span = self.blank(id, format!("chat {model}"), at);
        span.kind = SpanKind::Client;
        span.content.extend(called.context.map(Content::Context));
        span.content.extend(called.request.map(Content::Told));
        span.with("gen_ai.operation.name", "chat")
            .with(PROVIDER, provider)
            .with(REQUEST_MODEL, model)
            .with("logreel.call.id", called.call.as_str())
            .with("logreel.attempt", u64::from(called.attempt))
    }

    fn tool(&self, call: &CallId, name: &str, which: &str, at: Timestamp) -> Span {
        let id = span_id(&self.run, "tool", which);
        let shown = format!("execute_tool {name}").trim_end().to_owned();
        self.blank(id, shown, at)
            .with("gen_ai.operation.name", "execute_tool")
            .with("gen_ai.tool.name", name)
            .with("gen_ai.tool.call.id", call.as_str())
            .with("gen_ai.tool.type", "function")
    }

    fn step(&self, step: &StepId, attempt: u32, at: Timestamp) -> Span {
        let id = self.step_id(step, attempt);
        let mut span = self.blank(id, format!("step {step}"), at);
        if let Some(outer) = step.outer() {
            let attempt = self.failed.get(&outer).map_or(1, |failed| failed + 1);
            span.parent = Some(self.step_id(&outer, attempt));
        }
        span.with("logreel.step.id", step.to_string())
            .with("logreel.attempt", u64::from(attempt))
    }

    fn step_id(&self, step: &StepId, attempt: u32) -> [u8; 8] {
        span_id(
            &self.run,
            "step",
            &format!("{}#{attempt}", step.canonical()),
        )
    }

    /// A step that is a child run; of an agent, a tool that is an agent.
    fn child(&self, step: &StepId, event: &Event) -> Span {
        let id = span_id(&self.run, "child", &event.seq.to_string());
        let of_agent = self.root.as_ref().map(|root| root.kind) == Some(RunKind::Agent);
        let parts: Vec<String> = serde_json::from_str(&step.canonical()).unwrap_or_default();
        if let (true, [_, name, call]) = (of_agent, parts.as_slice()) {
            return self
                .blank(id, format!("execute_tool {name}"), event.at)
                .with("gen_ai.operation.name", "execute_tool")
                .with("gen_ai.tool.name", name.as_str())
                .with("gen_ai.tool.call.id", call.as_str())
                .with("gen_ai.tool.type", "extension");
        }
        let attempt = self.failed.get(step).map_or(1, |failed| failed + 1);
        let span = self.step(step, attempt, event.at);
        Span { id, ..span }
    }

    fn wait(&self, wait: &WaitStarted, at: Timestamp) -> Option<Span> {
        let kind = match wait.kind {
            WaitKind::Approval => "approval",
            WaitKind::Signal => "signal",
            WaitKind::Timer => "timer",
            WaitKind::Paused => "paused",
            WaitKind::InDoubt => "in_doubt",
            WaitKind::Budget => "budget",
            WaitKind::CrashLoop => "crash_loop",
            WaitKind::Retry => "retry",
            // Its span is the child's.
            WaitKind::Child => return None,
        };
        let id = span_id(&self.run, "wait", &wait.wait.to_string());
        let mut span = self.blank(id, format!("wait {kind}"), at);
        span = span.with("logreel.wait.kind", kind);
        if let Some(step) = &wait.step {
            span = span.with("logreel.step.id", step.to_string());
        }
        if let Some(call) = &wait.call {
            span = span.with("gen_ai.tool.call.id", call.as_str());
        }
        Some(span)
    }

    /// Something begins. What was under way under the same name was interrupted, and begins again.
    fn begin(&mut self, key: Key, span: Span, at: Timestamp) -> Vec<Span> {
        let before = self.open.remove(&key);
        self.open.insert(key, span);
        let interrupted = before.map(|span| Span { end: at, ..span });
        let interrupted = interrupted.map(|span| span.failed("interrupted", None));
        interrupted.into_iter().collect()
    }

    /// A short step has only its end.
    fn open_step(&mut self, step: &StepId, attempt: u32, start: Timestamp) {
        let key = Key::step(step);
        if !self.open.contains_key(&key) {
            let span = self.step(step, attempt, start);
            self.open.insert(key, span);
        }
    }

    fn end(&mut self, key: &Key, at: Timestamp, change: impl FnOnce(Span) -> Span) -> Vec<Span> {
        let span = self.open.remove(key);
        let span = span.map(|span| change(Span { end: at, ..span }));
        span.into_iter().collect()
    }

    /// The run is over, and with it all that was under way.
    fn over(
        &mut self,
        at: Timestamp,
        status: &str,
        change: impl FnOnce(Span) -> Span,
    ) -> Vec<Span> {
        self.ended = true;
        let open = std::mem::take(&mut self.open).into_values();
        let mut spans: Vec<Span> = open
            .map(|span| Span { end: at, ..span }.failed("interrupted", None))
            .collect();
        if let Some(Root { span, .. }) = self.root.take() {
            let span = Span { end: at, ..span }.with("logreel.status", status);
            let span = match self.spent == Spend::default() {
                true => span,
                false => with_usage(span, &self.spent),
            };
            spans.push(change(span));
        }
        spans
    }

    fn spend(&mut self, spent: &Spend) {
        let sum = &mut self.spent;
        sum.input_tokens += spent.input_tokens;
        sum.output_tokens += spent.output_tokens;
        sum.cache_read_tokens += spent.cache_read_tokens;
        sum.cache_write_tokens += spent.cache_write_tokens;
        sum.reasoning_tokens += spent.reasoning_tokens;
    }

    fn note_tools(&mut self, message: Option<Value>) {
        let parts = message
            .as_ref()
            .and_then(|message| message["parts"].as_array());
        for part in parts.into_iter().flatten() {
            let call = &part["tool_call"];
            if let (Some(id), Some(name)) = (call["call"].as_str(), call["name"].as_str())
                && let Ok(id) = CallId::new(id)
            {
                self.tools.insert(id, name.to_owned());
            }
        }
    }
}

impl Key {
    fn step(step: &StepId) -> Self {
        Self::Step(step.canonical().into_owned())
    }

    fn wait(wait: WaitId) -> Self {
        Self::Wait(wait.0)
    }
}

const PROVIDER: &str = "gen_ai.provider.name";
const REQUEST_MODEL: &str = "gen_ai.request.model";
const CONVERSATION: &str = "gen_ai.conversation.id";

/// As the conventions call them.
fn provider_and_model(model: &str) -> (&str, &str) {
    match model.split_once('/') {
        Some(("gemini", model)) => ("gcp.gemini", model),
        Some((provider, model)) => (provider, model),
        None => ("custom", model),
    }
}

fn with_usage(span: Span, spent: &Spend) -> Span {
    let mut span = span
        .with("gen_ai.usage.input_tokens", spent.input_tokens)
        .with("gen_ai.usage.output_tokens", spent.output_tokens);
    for (key, tokens) in [
        (
            "gen_ai.usage.cache_read.input_tokens",
            spent.cache_read_tokens,
        ),
        (
            "gen_ai.usage.cache_creation.input_tokens",
            spent.cache_write_tokens,
        ),
        (
            "gen_ai.usage.reasoning.output_tokens",
            spent.reasoning_tokens,
        ),
    ] {
        if tokens > 0 {
            span = span.with(key, tokens);
        }
    }
    span
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Read => "read",
        Effect::Idempotent => "idempotent",
        Effect::Write => "write",
    }
}
