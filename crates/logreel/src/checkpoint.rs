//! A portable checkpoint: what a run has finished, without its history, to be gone on with in another
//! store (SEMANTICS 34).
//!
//! It carries the run's id, so that the keys of its effects stay what they were. Writes that were
//! open come along with their keys and are in doubt there.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use logreel_core::decide::plain_wait;
use logreel_core::event::{
    Budget, Cause, Effect, Phase, PhaseEntered, Provenance, Resolution, RunKind, RunLimit,
    RunStarted, SignalReceived, StatePatched, StepFailed, StepFinished, StepInDoubt, StepSkipped,
    StepStarted, WaitEnded, WaitKind, WaitStarted,
};
use logreel_core::meaning::digest_of;
use logreel_core::state::Doing;
use logreel_core::{
    Blob, Body, Digest, Draft, Epoch, Event, Json, Payload, RunId, RunState, Seq, StepId,
    StepState, WaitId,
};
use logreel_store::{Created, NewRun};
use serde::{Deserialize, Serialize};

use crate::engine::{Engine, Inner};
use crate::handle::RunHandle;
use crate::{Error, value};

/// The version this build writes. It reads this one and every older one.
const SCHEMA_VERSION: u32 = 1;

/// A run's finished work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Always `checkpoint`.
    #[serde(rename = "type")]
    marker: Marker,
    /// Missing reads as 0.
    #[serde(default)]
    schema_version: u32,
    run: RunId,
    kind: RunKind,
    agent: String,
    spec: Json,
    spec_digest: Digest,
    input: Json,
    #[serde(default)]
    dir: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<RunLimit>,
    /// The patched document.
    #[serde(default)]
    state: serde_json::Value,
    steps: Vec<Done>,
    #[serde(default)]
    skipped: Vec<Skipped>,
    #[serde(default)]
    answers: Vec<Answered>,
    /// Steps whose latest attempt failed: a write that failed is not repeated blind elsewhere either.
    #[serde(default)]
    failed: Vec<Failed>,
    /// Waits that go on, with their deadlines.
    #[serde(default)]
    waits: Vec<WaitStarted>,
    /// Signals nobody awaited yet.
    #[serde(default)]
    signals: Vec<Signal>,
    /// What is left of the limits: what was used stays used.
    #[serde(default)]
    budget: Budget,
    open_writes: Vec<OpenWrite>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Marker {
    Checkpoint,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Done {
    step: StepId,
    attempt: u32,
    effect: Effect,
    input_digest: Option<Digest>,
    output: Json,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Skipped {
    step: StepId,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Answered {
    step: StepId,
    kind: WaitKind,
    prompt: Option<String>,
    name: Option<String>,
    ended: WaitEnded,
    /// The answer's value, whole.
    value: Json,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Failed {
    step: StepId,
    attempt: u32,
    effect: Effect,
    input_digest: Option<Digest>,
    key: Option<Digest>,
    error: Cause,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Signal {
    name: String,
    value: Json,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OpenWrite {
    step: StepId,
    attempt: u32,
    key: Option<Digest>,
    input_digest: Option<Digest>,
}

/// Why a checkpoint was not read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A newer build wrote it.
    #[error(
        "the checkpoint has schema_version {found}, this build reads up to {known}; use a newer \
         logreel"
    )]
    Newer {
        /// The version in it.
        found: u64,
        /// The newest this build reads.
        known: u32,
    },
    /// It is damaged, or something else.
    #[error("this is not a checkpoint: {0}")]
    Unreadable(#[from] serde_json::Error),
}

impl Checkpoint {
    /// Reads one. A newer version is refused by name before anything else is looked at.
    pub fn read(text: &str) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct Version {
            #[serde(default)]
            schema_version: u64,
        }
        let version: Version = serde_json::from_str(text)?;
        if version.schema_version > u64::from(SCHEMA_VERSION) {
            return Err(CheckpointError::Newer {
                found: version.schema_version,
                known: SCHEMA_VERSION,
            });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Its JSON text.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The run it is of.
    pub fn run(&self) -> RunId {
        self.run
    }
}

impl Engine {
    /// What a run that has not ended has finished so far. Refused while it has live children, whose
    /// work a checkpoint cannot carry, and of agents and programs, whose work is not in steps: an
    /// [export](Engine::export_reel) has all of it.
    pub async fn checkpoint(&self, run: &RunId) -> Result<Checkpoint, Error> {
        self.0.checkpoint(run).await
    }

    /// Makes a run from a checkpoint. It is paused: whoever knows that it no longer goes on elsewhere
    /// resumes it. A run of that id that is here already is a conflict.
    pub async fn restore(&self, checkpoint: &Checkpoint) -> Result<RunHandle<Json>, Error> {
        self.0.check_open()?;
        carries(checkpoint.run, checkpoint.kind)?;
        let digest =
            digest_of(&checkpoint.spec).map_err(|error| Error::value("the spec", error))?;
        if digest != checkpoint.spec_digest {
            return Err(Error::DamagedCheckpoint(checkpoint.run));
        }
        let new = begin(checkpoint, self.0.durability, self.0.provenance())?;
        match self.0.create(new).await? {
            Created::New(_) => Ok(self.run(checkpoint.run)),
            Created::Attached(_) => Err(Error::AlreadyHere(checkpoint.run)),
        }
    }
}

/// Whether all that runs of a kind have done is in a checkpoint: tool calls of agents, finished or in doubt,
/// are not, and would be made again without a word.
fn carries(run: RunId, kind: RunKind) -> Result<(), Error> {
    match kind {
        RunKind::Workflow | RunKind::Task => Ok(()),
        RunKind::Agent | RunKind::External | RunKind::Record => {
            Err(Error::NoCheckpoint { run, kind })
        }
    }
}

impl Inner {
    async fn checkpoint(&self, run: &RunId) -> Result<Checkpoint, Error> {
        carries(*run, self.store.entry(run).await?.row.facts.kind)?;
        let (state, ends) = self.folded(run).await?;
        let facts = &state.row.facts;
        if state.row.status().is_terminal() {
            let status = state.row.status();
            return Err(Error::Ended { run: *run, status });
        }
        if let Some(child) = state.children.keys().min() {
            return Err(Error::HasChildren {
                run: *run,
                child: *child,
            });
        }
        let mut checkpoint = Checkpoint {
            marker: Marker::Checkpoint,
            schema_version: SCHEMA_VERSION,
            run: *run,
            kind: facts.kind,
            agent: facts.agent.to_string(),
            spec: value::resolve(&*self.store, &state.spec).await?,
            spec_digest: facts.spec_digest,
            input: value::resolve(&*self.store, &facts.input).await?,
            dir: facts.dir.clone(),
            labels: facts.labels.clone(),
            limit: facts.limit.clone(),
            state: facts.document.clone(),
            steps: Vec::new(),
            skipped: Vec::new(),
            answers: Vec::new(),
            failed: failed(&state),
            waits: open_waits(&state),
            signals: Vec::new(),
            budget: state.row.left(),
            open_writes: open_writes(&state),
        };
        for (name, seq) in &state.signals {
            let page = self.store.events(run, *seq, 1).await?;
            if let Some(Body::SignalReceived(signal)) = page.items.first().map(|it| &it.body) {
                checkpoint.signals.push(Signal {
                    name: name.clone(),
                    value: value::resolve(&*self.store, &signal.value).await?,
                });
            }
        }
        for end in ends {
            self.add(&mut checkpoint, &state, end).await?;
        }
        Ok(checkpoint)
    }

    /// The run's state, and the events that may hold the end of a step.
    async fn folded(&self, run: &RunId) -> Result<(RunState, Vec<(Seq, Ending)>), Error> {
        let mut ends = Vec::new();
        let mut waits: BTreeMap<WaitId, WaitStarted> = BTreeMap::new();
        let note = |event: &Event| {
            let ending = match &event.body {
                Body::StepFinished(finished) => Some(Ending::Finished(finished.clone())),
                Body::StepResolved(resolved) => match &resolved.resolution {
                    Resolution::Returned(output) => {
                        Some(Ending::Resolved(resolved.step.clone(), output.clone()))
                    }
                    Resolution::Failed(_) | Resolution::Retry => None,
                },
                Body::StepSkipped(skipped) => Some(Ending::Skipped(skipped.clone())),
                Body::WaitStarted(wait) => {
                    waits.insert(wait.wait, wait.clone());
                    None
                }
                Body::WaitEnded(ended) => {
                    let wait = waits.remove(&ended.wait);
                    wait.map(|wait| Ending::Answered(Box::new(wait), ended.clone()))
                }
                _ => None,
            };
            ends.extend(ending.map(|ending| (event.seq, ending)));
            ControlFlow::Continue(())
        };
        let state = self.history(run, note).await?;
        Ok((state, ends))
    }

    /// Adds an end that still stands.
    async fn add(
        &self,
        checkpoint: &mut Checkpoint,
        state: &RunState,
        (at, ending): (Seq, Ending),
    ) -> Result<(), Error> {
        let attempt = |step: &StepId| match state.steps.get(step) {
            Some(StepState::Finished { seq, attempt }) if *seq == at => Some(*attempt),
            Some(StepState::Answered { seq }) if *seq == at => Some(1),
            _ => None,
        };
        match ending {
            Ending::Finished(finished) => {
                let Some(attempt) = attempt(&finished.step) else {
                    return Ok(());
                };
                checkpoint.steps.push(Done {
                    attempt,
                    effect: finished.effect,
                    input_digest: finished.input_digest,
                    output: value::resolve(&*self.store, &finished.output).await?,
                    step: finished.step,
                });
            }
            Ending::Resolved(step, output) => {
                let Some(attempt) = attempt(&step) else {
                    return Ok(());
                };
                checkpoint.steps.push(Done {
                    attempt,
                    effect: Effect::Write,
                    input_digest: None,
                    output: value::resolve(&*self.store, &output).await?,
                    step,
                });
            }
            Ending::Skipped(skipped) => {
                let open = state.open_step(&skipped.step);
                if open.is_some_and(|open| open.doing == Doing::Skipped) {
                    checkpoint.skipped.push(Skipped {
                        step: skipped.step,
                        reason: skipped.reason,
                    });
                }
            }
            Ending::Answered(wait, ended) => {
                let Some(step) = wait.step.filter(|step| attempt(step).is_some()) else {
                    return Ok(());
                };
                checkpoint.answers.push(Answered {
                    step,
                    kind: wait.kind,
                    prompt: wait.prompt,
                    name: wait.name,
                    value: value::resolve(&*self.store, &ended.value).await?,
                    ended: WaitEnded {
                        value: Payload::null(),
                        ..ended
                    },
                });
            }
        }
        Ok(())
    }
}

/// An event that may hold the end of a step.
enum Ending {
    Finished(StepFinished),
    Resolved(StepId, Payload),
    Skipped(StepSkipped),
    Answered(Box<WaitStarted>, WaitEnded),
}

/// Steps whose latest attempt failed, or that are about to be tried again after it.
fn failed(state: &RunState) -> Vec<Failed> {
    let failed = state.steps.iter().filter_map(|(step, state)| {
        let StepState::Open(open) = state else {
            return None;
        };
        let Doing::Failed(error) = &open.doing else {
            return None;
        };
        Some(Failed {
            step: step.clone(),
            attempt: open.attempt,
            effect: open.effect,
            input_digest: open.input_digest,
            key: open.key,
            error: error.clone(),
        })
    });
    let mut failed: Vec<Failed> = failed.collect();
    failed.sort_by(|a, b| a.step.cmp(&b.step));
    failed
}

/// Waits that are the work of a step: they go on where they were, until when they were to.
fn open_waits(state: &RunState) -> Vec<WaitStarted> {
    let open = state.row.facts.waits.iter();
    let open = open.filter(|open| open.wait.kind.is_work_of_step());
    open.map(|open| open.wait.clone()).collect()
}

/// Writes that were announced and have no outcome, and those in doubt already.
fn open_writes(state: &RunState) -> Vec<OpenWrite> {
    let mut writes: Vec<OpenWrite> = state
        .steps
        .iter()
        .filter_map(|(step, state)| match state {
            StepState::Open(open)
                if open.effect == Effect::Write
                    && matches!(open.doing, Doing::Running | Doing::InDoubt) =>
            {
                Some(OpenWrite {
                    step: step.clone(),
                    attempt: open.attempt,
                    key: open.key,
                    input_digest: open.input_digest,
                })
            }
            _ => None,
        })
        .collect();
    writes.sort_by(|a, b| a.step.cmp(&b.step));
    writes
}

/// The run that goes on from a checkpoint, with all of it in its first append.
fn begin(
    checkpoint: &Checkpoint,
    durability: logreel_core::event::Durability,
    provenance: Provenance,
) -> Result<NewRun, Error> {
    let mut blobs = Vec::new();
    let started = RunStarted {
        agent: checkpoint.agent.as_str().into(),
        budget: checkpoint.budget.clone(),
        context: None,
        dir: checkpoint.dir.clone(),
        durability,
        git: None,
        input: stored(&checkpoint.input, &mut blobs),
        key: None,
        kind: checkpoint.kind,
        labels: checkpoint.labels.clone(),
        limit: checkpoint.limit.clone(),
        parent: None,
        provenance,
        session: None,
        spec: stored(&checkpoint.spec, &mut blobs),
        spec_digest: checkpoint.spec_digest,
        spec_file: None,
    };
    let mut facts = Facts::default();
    let phase = Phase::Executing;
    facts.add(PhaseEntered { phase });
    if !checkpoint.state.is_null() {
        let patch = serde_json::json!([{"op": "replace", "path": "", "value": checkpoint.state}]);
        let patch =
            serde_json::from_value(patch).map_err(|error| Error::value("the state", error))?;
        facts.add(StatePatched { patch });
    }
    for done in &checkpoint.steps {
        facts.finished(done, stored(&done.output, &mut blobs));
    }
    for skipped in &checkpoint.skipped {
        facts.add(StepSkipped {
            reason: skipped.reason.clone(),
            step: skipped.step.clone(),
        });
    }
    for answered in &checkpoint.answers {
        facts.answered(answered, stored(&answered.value, &mut blobs));
    }
    for failed in &checkpoint.failed {
        facts.failed(failed);
    }
    for write in &checkpoint.open_writes {
        facts.in_doubt(write);
    }
    for wait in &checkpoint.waits {
        facts.wait(WaitStarted {
            suspends: false,
            ..wait.clone()
        });
    }
    for signal in &checkpoint.signals {
        facts.add(SignalReceived {
            name: signal.name.clone(),
            value: stored(&signal.value, &mut blobs),
            wait: None,
        });
    }
    facts.paused();
    Ok(NewRun {
        run: checkpoint.run,
        started,
        then: facts.drafts,
        blobs,
        owner: None,
    })
}

fn stored(json: &Json, blobs: &mut Vec<Blob>) -> Payload {
    let (payload, blob) = Payload::of(json.clone());
    blobs.extend(blob);
    payload
}

/// The facts that follow event 1, with waits numbered.
#[derive(Default)]
struct Facts {
    drafts: Vec<Draft>,
    waits: u32,
}

impl Facts {
    fn add(&mut self, body: impl Into<Body>) {
        self.drafts.push(Draft::new(body.into()));
    }

    fn wait(&mut self, wait: WaitStarted) -> WaitId {
        self.waits += 1;
        let id = WaitId(self.waits);
        self.add(WaitStarted { wait: id, ..wait });
        id
    }

    fn announced(&mut self, write: &OpenWrite) {
        self.add(StepStarted {
            attempt: write.attempt,
            effect: Effect::Write,
            input_digest: write.input_digest,
            key: write.key,
            step: write.step.clone(),
        });
    }

    /// A step is always announced here: a write must be, and nobody knows when the others began.
    fn finished(&mut self, done: &Done, output: Payload) {
        self.add(StepStarted {
            attempt: done.attempt,
            effect: done.effect,
            input_digest: done.input_digest,
            key: None,
            step: done.step.clone(),
        });
        self.add(StepFinished {
            attempt: done.attempt,
            effect: done.effect,
            input_digest: done.input_digest,
            output,
            started_at: None,
            step: done.step.clone(),
        });
    }

    fn failed(&mut self, failed: &Failed) {
        self.add(StepStarted {
            attempt: failed.attempt,
            effect: failed.effect,
            input_digest: failed.input_digest,
            key: failed.key,
            step: failed.step.clone(),
        });
        self.add(StepFailed {
            attempt: failed.attempt,
            error: failed.error.clone(),
            started_at: None,
            step: failed.step.clone(),
        });
    }

    fn answered(&mut self, answered: &Answered, value: Payload) {
        let wait = self.wait(WaitStarted {
            prompt: answered.prompt.clone(),
            name: answered.name.clone(),
            step: Some(answered.step.clone()),
            ..plain_wait(answered.kind, WaitId(0))
        });
        self.add(WaitEnded {
            value,
            wait,
            step: Some(answered.step.clone()),
            ..answered.ended.clone()
        });
    }

    fn in_doubt(&mut self, write: &OpenWrite) {
        self.announced(write);
        let reason = "it was open when the checkpoint was made";
        self.add(StepInDoubt {
            epoch: Epoch::NONE,
            key: write.key,
            reason: reason.to_owned(),
            step: write.step.clone(),
        });
        self.wait(WaitStarted {
            prompt: Some(format!("did `{}` happen? {reason}", write.step)),
            step: Some(write.step.clone()),
            ..plain_wait(WaitKind::InDoubt, WaitId(0))
        });
    }

    fn paused(&mut self) {
        self.wait(WaitStarted {
            name: Some("restored from a checkpoint".to_owned()),
            ..plain_wait(WaitKind::Paused, WaitId(0))
        });
    }
}
