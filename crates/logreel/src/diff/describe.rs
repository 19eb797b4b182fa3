//! The differences between two traces, with what the events say about them.

use std::collections::{BTreeMap, HashMap};

use logreel_core::event::{Cause, Resolution, RunKind};
use logreel_core::row::End;
use logreel_core::{Body, Digest, Event, Json, Payload, RunId, Seq, Status};
use serde::Serialize;
use serde_json::{Value, json};

use super::align::{Alignment, How, Item, align};
use super::trace::{Mark, StepMark, Trace};
use super::values::{ValueChange, compare};
use super::{Became, ITEMS_MAX, Section};

/// What differs between two runs, `a` and `b`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Whether nothing does.
    pub equal: bool,
    /// The first run.
    pub a: Side,
    /// The second run.
    pub b: Side,
    /// The first event of each that the other has not; null when they go the same way.
    pub divergence: Option<Divergence>,
    /// What they ran.
    pub spec: Vec<ValueChange>,
    /// On what.
    pub input: Vec<ValueChange>,
    /// Steps, by id.
    pub steps: Section<StepChange>,
    /// Tool calls, in their order.
    pub tool_calls: Section<ToolChange>,
    /// Model calls, in their order.
    pub model_calls: Section<ModelChange>,
    /// Other facts: plans, steering, answers, signals, patches, facts of the embedder's own.
    pub events: Section<OtherChange>,
    /// The runs' documents.
    pub state: Vec<ValueChange>,
    /// The reports of the checks, which are in it by name.
    pub verification: Vec<ValueChange>,
    /// How they ended: `/status`, `/output`, `/error`.
    pub outcome: Vec<ValueChange>,
    /// What each used; `usd` is null when it is not known. No difference by itself.
    pub usage: BTreeMap<&'static str, Two<Value>>,
    /// From the start to the end, or to the last event. No difference by itself.
    pub time_ms: Two<u64>,
}

/// Of both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Two<T> {
    /// Of the first.
    pub a: T,
    /// Of the second.
    pub b: T,
}

/// A run at a glance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// Which.
    pub run: RunId,
    /// The name of what it ran.
    pub agent: String,
    /// What kind of spec that is.
    pub kind: RunKind,
    /// Its status.
    #[serde(serialize_with = "as_name")]
    pub status: Status,
    /// The digest of its spec.
    pub spec_digest: Digest,
    /// The digest of its final state, once it has ended.
    pub final_state_digest: Option<Digest>,
    /// How many events it has.
    pub event_count: u64,
}

/// Where two runs part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// The first event of `a` that `b` has not in this way; null when there is none.
    pub a: Option<Place>,
    /// The first event of `b` that `a` has not in this way; null when there is none.
    pub b: Option<Place>,
}

/// An event, in short.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Place {
    /// Where.
    pub seq: Seq,
    /// Its kind.
    pub kind: String,
    /// The step, tool or model call it is of.
    pub what: String,
}

/// A step that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepChange {
    /// Its id, as it is shown.
    pub id: String,
    /// What became of it.
    pub changes: Vec<Became>,
    /// In the first run.
    pub a: Option<StepSide>,
    /// In the second.
    pub b: Option<StepSide>,
}

/// What became of a step in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepSide {
    /// The event that says so.
    pub seq: Seq,
    /// `finished`, `failed`, `skipped`, `in_doubt` or `running`.
    pub status: &'static str,
    /// Its result.
    pub output: Option<Payload>,
    /// Why it failed.
    pub error: Option<String>,
}

/// A tool call that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolChange {
    /// The tool.
    pub name: String,
    /// What became of the call.
    pub changes: Vec<Became>,
    /// Of one that changed: `arguments`, `result`.
    pub what: Vec<&'static str>,
    /// In the first run.
    pub a: Option<CallSide>,
    /// In the second.
    pub b: Option<CallSide>,
}

/// A tool call in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallSide {
    /// The event that announced it.
    pub seq: Seq,
    /// Its id there.
    pub call: String,
    /// With what.
    pub arguments: Option<Payload>,
    /// What it returned.
    pub result: Option<Payload>,
    /// Why it failed.
    pub error: Option<String>,
}

/// A model call that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelChange {
    /// What for: `turn`, `plan`, `repair`, `compact`; empty when its id does not say it.
    pub purpose: String,
    /// What became of it.
    pub changes: Vec<Became>,
    /// Of one that changed: `model`, `context`, `answer`.
    pub what: Vec<&'static str>,
    /// In the first run.
    pub a: Option<ModelSide>,
    /// In the second.
    pub b: Option<ModelSide>,
}

/// A model call in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSide {
    /// The event that announced it.
    pub seq: Seq,
    /// Its id there.
    pub call: String,
    /// The model.
    pub model: String,
    /// What it was asked with: a node of the conversation.
    pub context: Option<Digest>,
    /// What it answered.
    pub message: Payload,
}

/// A fact that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherChange {
    /// Its kind.
    pub kind: String,
    /// What became of it.
    pub changes: Vec<Became>,
    /// In the first run.
    pub a: Option<OtherSide>,
    /// In the second.
    pub b: Option<OtherSide>,
}

/// A fact in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherSide {
    /// Where.
    pub seq: Seq,
    /// Its body.
    pub body: Json,
}

/// What two traces have apart, by place, and which events are needed to tell it.
pub(super) struct Plan {
    steps: Found<StepMark>,
    tools: Found<Mark>,
    models: Found<Mark>,
    others: Found<Mark>,
}

/// One sort of differences.
struct Found<M> {
    counts: Section<()>,
    items: Vec<(Vec<Became>, Option<M>, Option<M>)>,
    /// The first places that the other has not in this way.
    first: (Option<Seq>, Option<Seq>),
}

/// What is compared as values.
pub(super) struct Values {
    pub(super) spec: Value,
    pub(super) input: Value,
    pub(super) output: Option<Value>,
}

/// What is known of one run.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) trace: &'a Trace,
    pub(super) events: &'a HashMap<Seq, Event>,
    pub(super) values: &'a Values,
}

trait Placed: Copy {
    fn seq(&self) -> Seq;
    fn end(&self) -> Option<Seq>;
}

impl Placed for StepMark {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn end(&self) -> Option<Seq> {
        None
    }
}

impl Placed for Mark {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn end(&self) -> Option<Seq> {
        self.end
    }
}

impl<M: Placed> Found<M> {
    fn new() -> Self {
        Self {
            counts: Section {
                same: 0,
                added: 0,
                removed: 0,
                moved: 0,
                changed: 0,
                items: Vec::new(),
                left_out: 0,
            },
            items: Vec::new(),
            first: (None, None),
        }
    }

    fn add(&mut self, changes: Vec<Became>, a: Option<M>, b: Option<M>) {
        for change in &changes {
            match change {
                Became::Added => self.counts.added += 1,
                Became::Removed => self.counts.removed += 1,
                Became::Moved => self.counts.moved += 1,
                Became::Changed => self.counts.changed += 1,
            }
        }
        let earlier = |first: &mut Option<Seq>, mark: Option<M>| {
            if let Some(seq) = mark.map(|mark| mark.end().unwrap_or(mark.seq())) {
                *first = Some(first.map_or(seq, |first| first.min(seq)));
            }
        };
        earlier(&mut self.first.0, a);
        earlier(&mut self.first.1, b);
        self.items.push((changes, a, b));
    }

    /// Only the first ones are told one by one.
    fn done(mut self) -> Self {
        let place = |(_, a, b): &(Vec<Became>, Option<M>, Option<M>)| {
            let of = |mark: &Option<M>| mark.map(|mark| mark.seq());
            (of(a).or(of(b)), of(b))
        };
        self.items.sort_by_key(place);
        self.counts.left_out = self.items.len().saturating_sub(ITEMS_MAX);
        self.items.truncate(ITEMS_MAX);
        self
    }

    fn section<T>(&self, tell: impl Fn(&[Became], Option<&M>, Option<&M>) -> T) -> Section<T> {
        let items = self.items.iter();
        let items = items.map(|(changes, a, b)| tell(changes, a.as_ref(), b.as_ref()));
        Section {
            same: self.counts.same,
            added: self.counts.added,
            removed: self.counts.removed,
            moved: self.counts.moved,
            changed: self.counts.changed,
            items: items.collect(),
            left_out: self.counts.left_out,
        }
    }

    fn wanted(&self, of_a: bool, wanted: &mut Vec<Seq>) {
        for (_, a, b) in &self.items {
            let mark = if of_a { a } else { b };
            if let Some(mark) = mark {
                wanted.push(mark.seq());
                wanted.extend(mark.end());
            }
        }
        wanted.extend(if of_a { self.first.0 } else { self.first.1 });
    }
}

/// Steps are a set: by id, in whatever order they came.
fn steps(a: &[StepMark], b: &[StepMark]) -> Found<StepMark> {
    let mut found = Found::new();
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return found.done(),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.id.cmp(&b.id),
        };
        match order {
            std::cmp::Ordering::Less => found.add(vec![Became::Removed], a.next().copied(), None),
            std::cmp::Ordering::Greater => found.add(vec![Became::Added], None, b.next().copied()),
            std::cmp::Ordering::Equal => match (a.next(), b.next()) {
                (Some(a), Some(b)) if a.whole == b.whole => found.counts.same += 1,
                (a, b) => found.add(vec![Became::Changed], a.copied(), b.copied()),
            },
        }
    }
}

fn calls(a: &[Mark], b: &[Mark], moves_count: bool) -> Found<Mark> {
    let items = |marks: &[Mark]| marks.iter().map(|mark| mark.item).collect::<Vec<Item>>();
    let Alignment {
        pairs,
        removed,
        added,
    } = align(&items(a), &items(b));
    let mut found = Found::new();
    for pair in pairs {
        let changes = match pair.how {
            How::Same => Vec::new(),
            How::Moved if !moves_count => Vec::new(),
            How::Moved => vec![Became::Moved],
            How::Changed => vec![Became::Changed],
            How::MovedAndChanged => vec![Became::Moved, Became::Changed],
        };
        match changes.is_empty() {
            true => found.counts.same += 1,
            false => found.add(changes, Some(a[pair.a]), Some(b[pair.b])),
        }
    }
    for place in removed {
        found.add(vec![Became::Removed], Some(a[place]), None);
    }
    for place in added {
        found.add(vec![Became::Added], None, Some(b[place]));
    }
    found.done()
}

impl Plan {
    pub(super) fn of(a: &Trace, b: &Trace) -> Self {
        Self {
            steps: steps(&a.steps, &b.steps),
            tools: calls(&a.tools, &b.tools, true),
            models: calls(&a.models, &b.models, true),
            // Facts that parallel steps record come in any order.
            others: calls(&a.others, &b.others, false),
        }
    }

    pub(super) fn wanted_of_a(&self) -> Vec<Seq> {
        self.wanted(true)
    }

    pub(super) fn wanted_of_b(&self) -> Vec<Seq> {
        self.wanted(false)
    }

    fn wanted(&self, of_a: bool) -> Vec<Seq> {
        let mut wanted = Vec::new();
        self.steps.wanted(of_a, &mut wanted);
        self.tools.wanted(of_a, &mut wanted);
        self.models.wanted(of_a, &mut wanted);
        self.others.wanted(of_a, &mut wanted);
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    pub(super) fn describe(&self, a: Known<'_>, b: Known<'_>) -> Diff {
        let steps = self.steps.section(|changes, of_a, of_b| StepChange {
            id: a.step_id(of_a).or(b.step_id(of_b)).unwrap_or_default(),
            changes: changes.to_vec(),
            a: a.step(of_a),
            b: b.step(of_b),
        });
        let tool_calls = self
            .tools
            .section(|changes, of_a, of_b| tool(changes, a, of_a, b, of_b));
        let model_calls = self
            .models
            .section(|changes, of_a, of_b| model(changes, a, of_a, b, of_b));
        let events = self.others.section(|changes, of_a, of_b| OtherChange {
            kind: a.kind(of_a).or(b.kind(of_b)).unwrap_or_default(),
            changes: changes.to_vec(),
            a: a.other(of_a),
            b: b.other(of_b),
        });
        let first = |of_a: bool| {
            let all = [
                self.steps.first,
                self.tools.first,
                self.models.first,
                self.others.first,
            ];
            let all = all
                .into_iter()
                .filter_map(|(a, b)| if of_a { a } else { b });
            all.min()
        };
        let divergence = match (first(true), first(false)) {
            (None, None) => None,
            (of_a, of_b) => Some(Divergence {
                a: of_a.and_then(|seq| a.place(seq)),
                b: of_b.and_then(|seq| b.place(seq)),
            }),
        };
        let mut diff = Diff {
            equal: false,
            a: a.side(),
            b: b.side(),
            divergence,
            spec: compare(&a.values.spec, &b.values.spec),
            input: compare(&a.values.input, &b.values.input),
            steps,
            tool_calls,
            model_calls,
            events,
            state: compare(a.document(), b.document()),
            verification: compare(&a.verification(), &b.verification()),
            outcome: compare(&a.outcome(), &b.outcome()),
            usage: usage(a, b),
            time_ms: Two {
                a: a.time_ms(),
                b: b.time_ms(),
            },
        };
        let values = [
            &diff.spec,
            &diff.input,
            &diff.state,
            &diff.verification,
            &diff.outcome,
        ];
        diff.equal = values.into_iter().all(Vec::is_empty)
            && diff.steps.is_empty()
            && diff.tool_calls.is_empty()
            && diff.model_calls.is_empty()
            && diff.events.is_empty();
        diff
    }
}

fn tool(
    changes: &[Became],
    a: Known<'_>,
    of_a: Option<&Mark>,
    b: Known<'_>,
    of_b: Option<&Mark>,
) -> ToolChange {
    let what = match (of_a, of_b) {
        (Some(of_a), Some(of_b)) => {
            let (side_a, side_b) = (a.call(Some(of_a)), b.call(Some(of_b)));
            let outcome = |side: &Option<CallSide>| {
                let side = side.as_ref();
                side.map(|side| (meaning(side.result.as_ref()), side.error.clone()))
            };
            let arguments = (of_a.item.key != of_b.item.key).then_some("arguments");
            let result = (outcome(&side_a) != outcome(&side_b)).then_some("result");
            arguments.into_iter().chain(result).collect()
        }
        _ => Vec::new(),
    };
    ToolChange {
        name: a.tool(of_a).or(b.tool(of_b)).unwrap_or_default(),
        changes: changes.to_vec(),
        what,
        a: a.call(of_a),
        b: b.call(of_b),
    }
}

fn meaning(payload: Option<&Payload>) -> Option<Value> {
    payload.map(|payload| payload.to_json().to_value())
}

fn model(
    changes: &[Became],
    a: Known<'_>,
    of_a: Option<&Mark>,
    b: Known<'_>,
    of_b: Option<&Mark>,
) -> ModelChange {
    let (side_a, side_b) = (a.model(of_a), b.model(of_b));
    let what = match (of_a, of_b, &side_a, &side_b) {
        (Some(of_a), Some(of_b), Some(side_a), Some(side_b)) => {
            let model = (side_a.model != side_b.model).then_some("model");
            let context = (of_a.context != of_b.context).then_some("context");
            let answer = (of_a.item.key != of_b.item.key).then_some("answer");
            model.into_iter().chain(context).chain(answer).collect()
        }
        _ => Vec::new(),
    };
    let call = side_a.as_ref().or(side_b.as_ref()).map(|side| &side.call);
    let purpose = call.and_then(|call| call.split_once('.'));
    ModelChange {
        purpose: purpose.map_or_else(String::new, |(_, purpose)| purpose.to_owned()),
        changes: changes.to_vec(),
        what,
        a: side_a,
        b: side_b,
    }
}

fn usage(a: Known<'_>, b: Known<'_>) -> BTreeMap<&'static str, Two<Value>> {
    let of = |known: Known<'_>| {
        let usage = &known.trace.row.pulse.usage;
        let spent = &usage.spent;
        [
            ("cache_read_tokens", json!(spent.cache_read_tokens)),
            ("cache_write_tokens", json!(spent.cache_write_tokens)),
            ("input_tokens", json!(spent.input_tokens)),
            ("model_calls", json!(usage.model_calls)),
            ("output_tokens", json!(spent.output_tokens)),
            ("reasoning_tokens", json!(spent.reasoning_tokens)),
            ("tool_calls", json!(usage.tool_calls)),
            ("usd", json!(usage.usd_micros().map(|it| it as f64 / 1e6))),
        ]
    };
    let both = of(a).into_iter().zip(of(b));
    both.map(|((name, a), (_, b))| (name, Two { a, b }))
        .collect()
}

impl<'a> Known<'a> {
    fn event(&self, seq: Seq) -> Option<&'a Event> {
        self.events.get(&seq)
    }

    fn side(&self) -> Side {
        let (row, facts) = (&self.trace.row, &self.trace.row.facts);
        Side {
            run: row.run,
            agent: facts.agent.to_string(),
            kind: facts.kind,
            status: row.status(),
            spec_digest: facts.spec_digest,
            final_state_digest: facts.ended.as_ref().map(|it| it.final_state_digest),
            event_count: row.head.seq.0,
        }
    }

    fn document(&self) -> &'a Value {
        &self.trace.row.facts.document
    }

    fn verification(&self) -> Value {
        let Some(report) = &self.trace.row.facts.verification else {
            return Value::Null;
        };
        let checks = report.checks.iter().map(|check| {
            let name = check.name.clone();
            (name, json!({"message": check.message, "required": check.required, "verdict": check.verdict}))
        });
        let checks: serde_json::Map<String, Value> = checks.collect();
        json!({"checks": checks, "verdict": report.verdict})
    }

    fn outcome(&self) -> Value {
        let facts = &self.trace.row.facts;
        let mut outcome = json!({"status": self.trace.row.status().as_str()});
        match facts.ended.as_ref().map(|ended| &ended.end) {
            Some(End::Completed { .. }) => {
                outcome["output"] = self.values.output.clone().unwrap_or_default();
            }
            Some(End::Failed { cause }) => {
                let step = cause.step.as_ref().map(ToString::to_string);
                outcome["error"] =
                    json!({"kind": cause.kind, "message": cause.message, "step": step});
            }
            Some(End::Cancelled { .. }) | None => {}
        }
        outcome
    }

    fn time_ms(&self) -> u64 {
        let row = &self.trace.row;
        let end = row.facts.ended.as_ref().map_or(row.updated_at, |it| it.at);
        u64::try_from(end.since(row.facts.created_at).as_millis()).unwrap_or(u64::MAX)
    }

    fn kind(&self, mark: Option<&Mark>) -> Option<String> {
        let event = self.event(mark?.seq)?;
        Some(event.body.kind().to_owned())
    }

    fn step_id(&self, mark: Option<&StepMark>) -> Option<String> {
        what_of(&self.event(mark?.seq)?.body)
    }

    fn step(&self, mark: Option<&StepMark>) -> Option<StepSide> {
        let event = self.event(mark?.seq)?;
        let (status, output, error) = match &event.body {
            Body::StepFinished(it) => ("finished", Some(it.output.clone()), None),
            Body::StepResolved(it) => match &it.resolution {
                Resolution::Returned(output) => ("finished", Some(output.clone()), None),
                Resolution::Failed(message) => ("failed", None, Some(message.clone())),
                Resolution::Retry => ("running", None, None),
            },
            Body::WaitEnded(it) => {
                let said = json!({"approved": it.approved, "value": it.value.to_json().to_value()});
                ("finished", Some(Payload::Inline(Json::from(said))), None)
            }
            Body::StepFailed(it) => ("failed", None, Some(words(&it.error))),
            Body::StepSkipped(_) => ("skipped", None, None),
            Body::StepInDoubt(_) => ("in_doubt", None, None),
            _ => ("running", None, None),
        };
        Some(StepSide {
            seq: event.seq,
            status,
            output,
            error,
        })
    }

    fn tool(&self, mark: Option<&Mark>) -> Option<String> {
        match &self.event(mark?.seq)?.body {
            Body::ToolCalled(it) => Some(it.name.clone()),
            _ => None,
        }
    }

    fn call(&self, mark: Option<&Mark>) -> Option<CallSide> {
        let mark = mark?;
        let event = self.event(mark.seq)?;
        let (result, error) = match mark.end.and_then(|end| self.event(end)).map(|it| &it.body) {
            Some(Body::ToolReturned(it)) => (Some(it.output.clone()), None),
            Some(Body::ToolFailed(it)) => (None, Some(words(&it.error))),
            Some(Body::ToolResolved(it)) => match &it.resolution {
                Resolution::Returned(output) => (Some(output.clone()), None),
                Resolution::Failed(message) => (None, Some(message.clone())),
                Resolution::Retry => (None, None),
            },
            _ => (None, None),
        };
        let (call, arguments) = match &event.body {
            Body::ToolCalled(it) => (it.call.to_string(), Some(it.arguments.clone())),
            Body::ToolFailed(it) => (it.call.to_string(), None),
            _ => return None,
        };
        Some(CallSide {
            seq: event.seq,
            call,
            arguments,
            result,
            error,
        })
    }

    fn model(&self, mark: Option<&Mark>) -> Option<ModelSide> {
        let mark = mark?;
        let Body::ModelCalled(called) = &self.event(mark.seq)?.body else {
            return None;
        };
        let Body::ModelAnswered(answered) = &self.event(mark.end?)?.body else {
            return None;
        };
        Some(ModelSide {
            seq: mark.seq,
            call: called.call.to_string(),
            model: called.model.clone(),
            context: called.context,
            message: answered.message.clone(),
        })
    }

    fn other(&self, mark: Option<&Mark>) -> Option<OtherSide> {
        let event = self.event(mark?.seq)?;
        let body = logreel_core::codec::encode_body(&event.body).ok()?;
        Some(OtherSide {
            seq: event.seq,
            body: Json::parse(body).ok()?,
        })
    }

    fn place(&self, seq: Seq) -> Option<Place> {
        let event = self.event(seq)?;
        Some(Place {
            seq,
            kind: event.body.kind().to_owned(),
            what: what_of(&event.body).unwrap_or_default(),
        })
    }
}

fn words(cause: &Cause) -> String {
    format!("{}: {}", cause.kind, cause.message)
}

/// What an event is about.
fn what_of(body: &Body) -> Option<String> {
    Some(match body {
        Body::StepStarted(it) => it.step.to_string(),
        Body::StepFinished(it) => it.step.to_string(),
        Body::StepFailed(it) => it.step.to_string(),
        Body::StepSkipped(it) => it.step.to_string(),
        Body::StepInDoubt(it) => it.step.to_string(),
        Body::StepResolved(it) => it.step.to_string(),
        Body::WaitEnded(it) => it.step.as_ref()?.to_string(),
        Body::ToolCalled(it) => format!("{} {}", it.call, it.name),
        Body::ToolReturned(it) => it.call.to_string(),
        Body::ToolFailed(it) => it.call.to_string(),
        Body::ToolResolved(it) => it.call.to_string(),
        Body::ModelCalled(it) => it.call.to_string(),
        Body::ModelAnswered(it) => it.call.to_string(),
        Body::Custom(it) => it.name.clone(),
        Body::SignalReceived(it) => it.name.clone(),
        Body::CheckpointSaved(it) => it.checkpoint.clone(),
        _ => return None,
    })
}

fn as_name<S: serde::Serializer>(status: &Status, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status.as_str())
}
