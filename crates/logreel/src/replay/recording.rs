//! A run as it was recorded: its log, and what of it came from outside, in which order.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use logreel_core::codec::encode_body;
use logreel_core::event::{
    Cause, Change, ChildFinished, Resolution, RunKind, RunStarted, TerminalStatus, WaitKind,
};
use logreel_core::row::{End, Ended};
use logreel_core::{
    Blob, BlobRef, Body, CallId, Digest, Draft, Event, Json, Payload, RunId, Seq, StepId, Timestamp,
};
use logreel_store::RunStore;
use serde_json::Value;

use super::lane::{self, Lane, Waits};
use crate::Error;
use crate::child::ChildEnd;
use crate::journal::PAGE;
use crate::step::GIVEN_UP;
use crate::value;

/// Something that came from outside.
#[derive(Debug, Clone)]
pub(crate) struct Cue {
    /// Where it is in the log.
    pub(crate) seq: Seq,
    pub(crate) lane: Lane,
    pub(crate) gives: Gives,
}

#[derive(Debug, Clone)]
pub(crate) enum Gives {
    /// What an effect came to, for whoever asks for it.
    Answer(Answer),
    /// What someone did, or time: facts that are appended as they were.
    Outside(Vec<Body>),
}

/// What an effect came to.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Returned(Json),
    Failed(Cause),
    /// Nobody knew whether it happened.
    Interrupted,
    /// What `reconcile` found out about it: its result, or that it did not happen.
    Reconciled(Option<Json>),
    /// A model's answer or failure, as recorded.
    Model(Box<Body>),
    Child(Box<ChildEnd>),
}

/// A recorded run.
pub(crate) struct Recording {
    pub(crate) run: RunId,
    pub(crate) started: RunStarted,
    pub(crate) created_at: Timestamp,
    /// The spec it goes on with in the end.
    pub(crate) spec: Json,
    pub(crate) spec_digest: Digest,
    /// Up to its end; what came after that changed nothing.
    pub(crate) events: Vec<Event>,
    /// Up to here it was decided by another spec or by another run: given as a whole.
    pub(crate) given: Seq,
    pub(crate) cues: Vec<Cue>,
    /// Its end is its own: not cut short by someone, nor still to come.
    pub(crate) ended: bool,
    /// What its models were told beside the conversation.
    pub(crate) requests: HashMap<Digest, Value>,
    /// Children that are recorded too, with what they were started with.
    pub(crate) children: HashMap<RunId, ChildRecording>,
    /// Bytes that its events refer to.
    pub(crate) blobs: Vec<Blob>,
}

/// What is known of a recorded child.
pub(crate) struct ChildRecording {
    pub(crate) input: Json,
}

/// The last event that is given: the last change of the spec, or what came with the last fork in the same
/// append, which is what someone gave it beside the log that it shares.
fn given_up_to(events: &[Event]) -> Seq {
    let changed = events.iter().rev().find_map(|event| match event.body {
        Body::SpecChanged(_) => Some(event.seq),
        _ => None,
    });
    let forked = events.iter().enumerate().rev();
    let forked = forked.filter_map(|(at, event)| match &event.body {
        Body::RunForked(forked) => Some((at, forked)),
        _ => None,
    });
    let forked = forked.take(1).map(|(at, forked)| {
        let came_with = |event: &&Event| match &event.body {
            Body::StepFinished(_) | Body::ToolCalled(_) | Body::ToolReturned(_) => {
                let is_result = |change: &Change| matches!(change, Change::Result(_));
                forked.changes.iter().any(is_result)
            }
            Body::MessageQueued(_) => forked.changes.contains(&Change::Message),
            Body::SpecChanged(_) => true,
            // A driver's first is `phase.entered`.
            _ => false,
        };
        let rest = events[at + 1..].iter().take_while(came_with);
        rest.last().unwrap_or(&events[at]).seq
    });
    forked.chain(changed).max().unwrap_or(Seq::FIRST)
}

impl Recording {
    /// Reads a run, and what it needs of its children.
    pub(crate) async fn load(store: &dyn RunStore, run: RunId) -> Result<Self, Error> {
        let cannot = |why: &str| Error::CannotReplay {
            run,
            why: why.to_owned(),
        };
        if store.entry(&run).await?.erased {
            return Err(cannot("its bodies were erased"));
        }
        let mut events = Vec::new();
        let (mut from, mut has_more) = (Seq::FIRST, true);
        while has_more {
            let page = store.events(&run, from, PAGE).await?;
            events.extend(page.items);
            (from, has_more) = (page.next, page.has_more);
        }
        let Some(Body::RunStarted(started)) = events.first().map(|event| &event.body) else {
            return Err(cannot("its log does not begin with `run.started`"));
        };
        let (started, created_at) = (RunStarted::clone(started), events[0].at);
        if matches!(started.kind, RunKind::External | RunKind::Record) {
            return Err(cannot(
                "another program decided what it did; there is no spec to drive again",
            ));
        }
        if let Some(event) = events
            .iter()
            .find(|event| matches!(event.body, Body::Unknown(_)))
        {
            let (seq, kind) = (event.seq, event.body.kind());
            let why = format!("event {seq} is a `{kind}`, which a newer build wrote");
            return Err(cannot(&why));
        }
        if let Some(end) = events.iter().position(|event| event.body.is_terminal()) {
            events.truncate(end + 1);
        }
        let last = events.last().map(|event| &event.body);
        let ended = matches!(last, Some(Body::RunCompleted(_) | Body::RunFailed(_)));
        let (spec, spec_digest) = events.iter().fold(
            (&started.spec, started.spec_digest),
            |spec, event| match &event.body {
                Body::SpecChanged(changed) => (&changed.spec, changed.spec_digest),
                _ => spec,
            },
        );
        let spec = value::resolve(store, spec).await?;
        let given = given_up_to(&events);
        let mut recording = Self {
            run,
            created_at,
            spec,
            spec_digest,
            given,
            cues: Vec::new(),
            ended,
            requests: HashMap::new(),
            children: HashMap::new(),
            blobs: Vec::new(),
            started,
            events,
        };
        recording.read_blobs(store).await?;
        recording.read_cues(store).await?;
        Ok(recording)
    }

    /// Event 1 as the replay begins, under this spec: without limits, which only make a run wait, and
    /// without what ties it to other runs.
    pub(crate) fn begins(&self, spec: &Json, spec_digest: Digest) -> (RunStarted, Vec<Blob>) {
        let (spec, blob) = Payload::of(spec.clone());
        let started = RunStarted {
            budget: Default::default(),
            limit: None,
            parent: None,
            session: None,
            key: None,
            spec,
            spec_digest,
            ..self.started.clone()
        };
        let blobs = self.blobs.iter().cloned().chain(blob).collect();
        (started, blobs)
    }

    /// The facts that are given as a whole, without those of drivers.
    pub(crate) fn given(&self, spec: &Json, spec_digest: Digest) -> Vec<Draft> {
        let given = self.events.iter().skip(1);
        let given = given.take_while(|event| event.seq <= self.given);
        let drafts = given.map(|event| {
            let mut body = event.body.clone();
            match &mut body {
                Body::SpecChanged(changed) => {
                    (changed.spec, _) = Payload::of(spec.clone());
                    changed.spec_digest = spec_digest;
                }
                Body::RunForked(forked) => forked.budget = Default::default(),
                Body::BudgetChanged(changed) => changed.budget = Default::default(),
                _ => {}
            }
            Draft::new(body)
        });
        drafts.collect()
    }

    /// Everything that must be at hand while it is driven again.
    async fn read_blobs(&mut self, store: &dyn RunStore) -> Result<(), Error> {
        let mut wanted: Vec<Digest> = Vec::new();
        let mut nodes: Vec<Digest> = Vec::from_iter(self.started.context);
        for event in &self.events {
            wanted.extend(references(&event.body));
            match &event.body {
                Body::MessageAdded(added) if event.seq <= self.given => nodes.push(added.node),
                Body::ContextCompacted(it) if event.seq <= self.given => nodes.push(it.node),
                Body::ModelCalled(called) => {
                    let Some(request) = called.request else {
                        continue;
                    };
                    if self.requests.contains_key(&request) {
                        continue;
                    }
                    let bytes = store.blob(&request).await?;
                    let read = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
                    if let Some(told) = read {
                        self.requests.insert(request, told);
                    }
                }
                _ => {}
            }
        }
        let mut seen = HashSet::new();
        for digest in wanted {
            if seen.insert(digest)
                && let Some(bytes) = store.blob(&digest).await?
            {
                self.blobs.push(Blob::new(bytes));
            }
        }
        // A node and everything before it.
        while let Some(digest) = nodes.pop() {
            if !seen.insert(digest) {
                continue;
            }
            let Some(bytes) = store.blob(&digest).await? else {
                continue;
            };
            nodes.extend(previous(&bytes));
            self.blobs.push(Blob::new(bytes));
        }
        Ok(())
    }

    async fn read_cues(&mut self, store: &dyn RunStore) -> Result<(), Error> {
        let mut waits = Waits::default();
        let mut cues: Vec<Cue> = Vec::new();
        // Ends of steps that only say what became of their child.
        let mut derived: HashSet<Seq> = HashSet::new();
        let mut skip = None;
        for (at, event) in self.events.iter().enumerate() {
            waits.note(&event.body);
            if event.seq <= self.given || event.late || skip == Some(event.seq) {
                continue;
            }
            let rest = &self.events[at + 1..];
            let lane = lane::of(&event.body, &waits);
            if is_nested(&lane) {
                continue;
            }
            let answer = |answer| Some(Gives::Answer(answer));
            let gives = match &event.body {
                Body::StepFinished(_) | Body::StepFailed(_) if derived.contains(&event.seq) => None,
                Body::StepFinished(finished) => answer(Answer::Returned(
                    value::resolve(store, &finished.output).await?,
                )),
                Body::StepFailed(failed) if failed.error.kind == GIVEN_UP => None,
                Body::StepFailed(failed) => answer(Answer::Failed(failed.error.clone())),
                Body::StepInDoubt(_) | Body::ToolInDoubt(_) => answer(Answer::Interrupted),
                Body::StepResolved(it) if it.by == RECONCILE => {
                    answer(Answer::Reconciled(done(store, &it.resolution).await?))
                }
                Body::ToolResolved(it) if it.by == RECONCILE => {
                    answer(Answer::Reconciled(done(store, &it.resolution).await?))
                }
                Body::ToolReturned(returned) => answer(Answer::Returned(
                    value::resolve(store, &returned.output).await?,
                )),
                Body::ToolFailed(failed) => answer(Answer::Failed(failed.error.clone())),
                Body::ModelAnswered(it) => {
                    let lane = Lane::Call(it.call.clone());
                    let gives = Gives::Answer(Answer::Model(Box::new(event.body.clone())));
                    let seq = event.seq;
                    cues.push(Cue { seq, lane, gives });
                    continue;
                }
                Body::ModelFailed(it) => {
                    let lane = Lane::Call(it.call.clone());
                    let gives = Gives::Answer(Answer::Model(Box::new(event.body.clone())));
                    let seq = event.seq;
                    cues.push(Cue { seq, lane, gives });
                    continue;
                }
                Body::ChildFinished(finished) => {
                    let result = rest.iter().find(|later| ends(&later.body, &finished.step));
                    derived.extend(result.map(|result| result.seq));
                    let end = self.end_of(store, finished, event.at, result).await?;
                    end.and_then(|end| answer(Answer::Child(Box::new(end))))
                }
                // A signal for a wait ends it, and a person's word on a write does: one append each.
                Body::SignalReceived(_) | Body::StepResolved(_) | Body::ToolResolved(_) => {
                    let mut bodies = vec![event.body.clone()];
                    if let Some(next) = rest.first()
                        && let Body::WaitEnded(_) = &next.body
                        && ends_wait_of(&event.body, &next.body, &waits)
                    {
                        skip = Some(next.seq);
                        bodies.push(next.body.clone());
                    }
                    Some(Gives::Outside(bodies))
                }
                Body::WaitEnded(it) => {
                    let comes = matches!(
                        waits.kind(it.wait),
                        Some(
                            WaitKind::Approval
                                | WaitKind::Signal
                                | WaitKind::Timer
                                | WaitKind::InDoubt
                        )
                    );
                    comes.then(|| Gives::Outside(vec![event.body.clone()]))
                }
                Body::MessageQueued(_) => Some(Gives::Outside(vec![event.body.clone()])),
                _ => None,
            };
            if let Some(gives) = gives {
                let seq = event.seq;
                cues.push(Cue { seq, lane, gives });
            }
        }
        self.cues = in_time(cues, &self.events);
        Ok(())
    }

    /// How a child ended: as its own log says, or as far as its parent's tells.
    async fn end_of(
        &self,
        store: &dyn RunStore,
        finished: &ChildFinished,
        at: Timestamp,
        result: Option<&Event>,
    ) -> Result<Option<ChildEnd>, Error> {
        let known = match store.entry(&finished.child).await {
            // What it came to went with it.
            Ok(entry) if entry.erased => None,
            Ok(entry) => entry.row.facts.ended.clone().map(|ended| ended.end),
            Err(logreel_store::Error::NotFound(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let told = || {
            Some(match (finished.status, &result?.body) {
                (TerminalStatus::Completed, Body::StepFinished(it)) => End::Completed {
                    output: it.output.clone(),
                },
                (TerminalStatus::Failed, Body::StepFailed(it)) => End::Failed {
                    cause: without_preface(&it.error, "failed: "),
                },
                (TerminalStatus::Cancelled, Body::StepFailed(it)) => {
                    let message = &it.error.message;
                    let reason = message.split_once("was cancelled: ");
                    End::Cancelled {
                        reason: reason.map(|(_, reason)| reason.to_owned()),
                    }
                }
                _ => return None,
            })
        };
        Ok(known.or_else(told).map(|end| ChildEnd {
            child: finished.child,
            since: at,
            used: finished.used.unwrap_or_default(),
            ended: Ended {
                at,
                end,
                final_state_digest: finished.final_state_digest,
            },
        }))
    }

    /// Reads which children are recorded too.
    pub(crate) async fn read_children(&mut self, store: &dyn RunStore) -> Result<(), Error> {
        for event in &self.events {
            let Body::ChildStarted(started) = &event.body else {
                continue;
            };
            let page = match store.events(&started.child, Seq::FIRST, 1).await {
                Ok(page) => page,
                // Deleted, or erased: how it ended is in this log.
                Err(logreel_store::Error::NotFound(_) | logreel_store::Error::Erased(_)) => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // What a program did is not decided again: its end is all there is.
            if let Some(Body::RunStarted(began)) = page.items.first().map(|event| &event.body)
                && !matches!(began.kind, RunKind::Record | RunKind::External)
            {
                let input = value::resolve(store, &began.input).await?;
                let child = ChildRecording { input };
                self.children.insert(started.child, child);
            }
        }
        Ok(())
    }

    /// The children of each step, in the order in which they were started.
    pub(crate) fn child_ids(&self) -> HashMap<StepId, VecDeque<RunId>> {
        let mut ids: HashMap<StepId, VecDeque<RunId>> = HashMap::new();
        for event in self.events.iter().filter(|event| event.seq > self.given) {
            if let Body::ChildStarted(started) = &event.body {
                ids.entry(started.step.clone())
                    .or_default()
                    .push_back(started.child);
            }
        }
        ids
    }

    /// Calls that were refused because of what was found where they led: the path of a file that is a
    /// symlink out of the folder, say. Nobody can look there again.
    pub(crate) fn refusals(&self) -> BTreeMap<String, Cause> {
        let mut unmade: HashSet<&CallId> = HashSet::new();
        let mut refused = BTreeMap::new();
        for event in &self.events {
            match &event.body {
                Body::ToolCalled(called) if called.key.is_none() => {
                    unmade.insert(&called.call);
                }
                Body::ToolFailed(failed) if unmade.contains(&failed.call) => {
                    refused.insert(failed.call.to_string(), failed.error.clone());
                }
                _ => {}
            }
        }
        refused
    }

    /// What the first model call was told beside the conversation.
    pub(crate) fn first_request(&self) -> Option<&Value> {
        self.events.iter().find_map(|event| match &event.body {
            Body::ModelCalled(called) => self.requests.get(&called.request?),
            _ => None,
        })
    }

    /// Where the log first speaks of something, after what is given.
    pub(crate) fn first_of(&self, lane: &Lane) -> Option<&Event> {
        let mut waits = Waits::default();
        self.events.iter().find(|event| {
            waits.note(&event.body);
            event.seq > self.given && lane::of(&event.body, &waits) == *lane
        })
    }
}

/// Who settled an interrupted write without asking a person.
const RECONCILE: &str = "reconcile";

/// The result that `reconcile` found, if it found one.
async fn done(store: &dyn RunStore, resolution: &Resolution) -> Result<Option<Json>, Error> {
    match resolution {
        Resolution::Returned(output) => Ok(Some(value::resolve(store, output).await?)),
        Resolution::Retry | Resolution::Failed(_) => Ok(None),
    }
}

/// What happens inside a step's work is part of it.
pub(crate) fn is_nested(lane: &Lane) -> bool {
    matches!(lane, Lane::Step(step) if step.outer().is_some())
}

fn ends(body: &Body, step: &StepId) -> bool {
    match body {
        Body::StepFinished(finished) => finished.step == *step,
        Body::StepFailed(failed) => failed.step == *step,
        _ => false,
    }
}

/// Whether the second fact ends the wait that the first is for.
fn ends_wait_of(fact: &Body, ended: &Body, waits: &Waits) -> bool {
    let Body::WaitEnded(ended) = ended else {
        return false;
    };
    let waited = waits.get(ended.wait);
    match fact {
        Body::SignalReceived(signal) => signal.wait == Some(ended.wait),
        Body::StepResolved(it) => waited.is_some_and(|wait| wait.step.as_ref() == Some(&it.step)),
        Body::ToolResolved(it) => waited.is_some_and(|wait| wait.call.as_ref() == Some(&it.call)),
        _ => false,
    }
}

/// A message to a running agent counts from the turn that took it. It may have come between an outcome
/// and that turn, where a replay makes no stop: so it is given right before that outcome. One that
/// nobody took is not given at all.
fn in_time(cues: Vec<Cue>, events: &[Event]) -> Vec<Cue> {
    let is_queued = |cue: &Cue| {
        matches!(&cue.gives, Gives::Outside(bodies)
            if matches!(bodies.as_slice(), [Body::MessageQueued(_)]))
    };
    let (queued, mut cues): (Vec<Cue>, Vec<Cue>) = cues.into_iter().partition(is_queued);
    for cue in queued.into_iter().rev() {
        let taken = events.iter().find_map(|event| match &event.body {
            Body::MessageAdded(added) if added.queued == Some(cue.seq) => Some(event.seq),
            _ => None,
        });
        let Some(taken) = taken else { continue };
        let before = cues.iter().filter(|it| it.seq < taken).count();
        let place = cues.iter().filter(|it| it.seq < cue.seq).count();
        cues.insert(place.min(before.saturating_sub(1)), cue);
    }
    cues
}

/// The digests of values that a body keeps elsewhere.
fn references(body: &Body) -> Vec<Digest> {
    fn walk(value: &Value, found: &mut Vec<Digest>) {
        match value {
            Value::Object(fields) if fields.len() == 3 && fields.contains_key("blob") => {
                match serde_json::from_value::<BlobRef>(value.clone()) {
                    Ok(reference) => found.push(reference.blob),
                    Err(_) => fields.values().for_each(|it| walk(it, found)),
                }
            }
            Value::Object(fields) => fields.values().for_each(|it| walk(it, found)),
            Value::Array(items) => items.iter().for_each(|it| walk(it, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    let text = encode_body(body).unwrap_or_default();
    if text.contains("\"blob\"")
        && let Ok(value) = serde_json::from_str(&text)
    {
        walk(&value, &mut found);
    }
    found
}

/// The context node before this one.
fn previous(node: &[u8]) -> Option<Digest> {
    let node: Value = serde_json::from_slice(node).ok()?;
    node.get("previous")?.as_str()?.parse().ok()
}

/// A child's failure as it said it: `its agent failed: ..` is its parent's.
fn without_preface(cause: &Cause, preface: &str) -> Cause {
    let message = cause.message.split_once(preface);
    Cause {
        message: message.map_or_else(|| cause.message.clone(), |(_, it)| it.to_owned()),
        ..cause.clone()
    }
}
