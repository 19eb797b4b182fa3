//! `replay`: drives a recorded run again, under its own spec and under another, and says what differs.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use logreel_core::event::RunKind;
use logreel_core::meaning::digest_of_json;
use logreel_core::{Body, Json, RunId, Seq};
use serde_json::Value;

use super::compare::compare;
use super::conductor::{Performance, perform};
use super::recording::Recording;
use super::report::{Difference, Replayed, ReplayedSpec};
use crate::Error;
use crate::engine::{Engine, Inner};
use crate::program::Program;
use crate::workflow::Workflow;

/// A replay about to begin; made by [`Engine::replay`], awaited to replay.
#[must_use = "a run is replayed when this is awaited"]
pub struct Replay {
    engine: Arc<Inner>,
    run: RunId,
    present: Present,
}

/// What the run is replayed under, beside its own spec.
enum Present {
    Stored,
    Workflow(Box<Workflow>),
    Agent(Value),
}

impl Engine {
    /// Drives a run again offline: its spec, through the same code as live, with the answers and results
    /// that its log has. Says which decision is the first that differs, and why; that another time or
    /// id was drawn does not count. Nothing is executed, and nothing is stored.
    ///
    /// A task must be registered here, in its present version: its code is called again. Children are
    /// replayed too, as far as the store has them. Limits, and waiting for them, are left out.
    pub fn replay(&self, run: RunId) -> Replay {
        Replay {
            engine: Arc::clone(&self.0),
            run,
            present: Present::Stored,
        }
    }
}

impl Replay {
    /// Under this workflow, instead of the one that the log has.
    pub fn under(mut self, workflow: &Workflow) -> Self {
        self.present = Present::Workflow(Box::new(workflow.clone()));
        self
    }

    /// Under this agent's spec, as [`crate::Agents::load`] gives it.
    pub fn under_agent(mut self, spec: &Value) -> Self {
        self.present = Present::Agent(spec.clone());
        self
    }
}

impl IntoFuture for Replay {
    type Output = Result<Replayed, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let registry = &self.engine.registry;
            let present = match &self.present {
                Present::Stored => None,
                Present::Workflow(workflow) => Some(Arc::new(Program::of_workflow(workflow))),
                Present::Agent(spec) => Some(registry.add_agent(spec)?),
            };
            replay(&self.engine, self.run, present).await
        })
    }
}

type Replaying<'a> = Pin<Box<dyn Future<Output = Result<Replayed, Error>> + Send + 'a>>;

/// Replays a run, and those that it started.
fn replay(engine: &Arc<Inner>, run: RunId, present: Option<Arc<Program>>) -> Replaying<'_> {
    Box::pin(async move {
        let source = &*engine.store;
        let mut recording = Recording::load(source, run).await?;
        recording.read_children(source).await?;
        let recording = Arc::new(recording);
        let stored = stored_program(engine, &recording)?;
        let spec = match &present {
            None => ReplayedSpec::Stored,
            Some(present) if present.spec_digest == recording.spec_digest => ReplayedSpec::Same,
            Some(present) if present.kind != recording.started.kind => {
                return Err(Error::CannotReplay {
                    run,
                    why: format!(
                        "it is a run of {} {}, and what it is to be replayed under is {} {}",
                        article(recording.started.kind),
                        recording.started.kind,
                        article(present.kind),
                        present.kind
                    ),
                });
            }
            Some(_) => ReplayedSpec::Changed,
        };
        let program = match (&present, spec) {
            (Some(present), ReplayedSpec::Changed) => present,
            _ => &stored,
        };
        let as_it_was = perform(engine, &recording, &stored).await?;
        let mut difference = compare(source, &recording, None, &as_it_was).await;
        let mut performed = as_it_was;
        // One that this build decides otherwise anyway says nothing about another spec.
        if difference.is_none() && spec == ReplayedSpec::Changed {
            let as_it_is = perform(engine, &recording, program).await?;
            difference = compare(source, &recording, Some(&performed), &as_it_is).await;
            performed = as_it_is;
        }
        let children = replay_children(engine, &recording, &performed).await?;
        let in_child = children
            .iter()
            .filter_map(|child| started(&recording, child));
        let difference = difference
            .into_iter()
            .chain(in_child)
            .min_by_key(|it| it.seq);
        let events = &recording.events;
        Ok(Replayed {
            run,
            agent: recording.started.agent.to_string(),
            kind: recording.started.kind,
            events: events
                .iter()
                .filter(|event| recording.given == Seq::FIRST || event.seq > recording.given)
                .count() as u64,
            from: match recording.given {
                Seq::FIRST => Seq::FIRST,
                given => given.next(),
            },
            ended: recording.ended,
            spec,
            spec_digest: program.spec_digest,
            difference,
            children,
        })
    })
}

fn article(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Agent | RunKind::External => "an",
        RunKind::Workflow | RunKind::Task | RunKind::Record => "a",
    }
}

/// The program that the log has: checked to be the one that it says.
fn stored_program(engine: &Inner, recording: &Recording) -> Result<Arc<Program>, Error> {
    let run = recording.run;
    let (name, spec) = (&recording.started.agent, &recording.spec);
    if recording.started.kind == RunKind::Task {
        // What a task does is not in its log.
        let registered = engine.registry.task(name);
        return registered.ok_or_else(|| Error::CannotReplay {
            run,
            why: format!(
                "it is a run of the Rust task `{name}`, whose code is not here; `Engine::replay` in the \
                 program that registers it can"
            ),
        });
    }
    let found = digest_of_json(spec);
    if found != recording.spec_digest {
        let what = format!(
            "the spec stored with {run} has the digest {found}, and its log says {}",
            recording.spec_digest
        );
        return Err(logreel_store::Error::corrupt(what).into());
    }
    program_of(engine, recording.started.kind, spec, run)
}

fn program_of(
    engine: &Inner,
    kind: RunKind,
    spec: &Json,
    run: RunId,
) -> Result<Arc<Program>, Error> {
    let spec = spec.to_value();
    if kind == RunKind::Agent {
        return engine.registry.add_agent(&spec);
    }
    let workflow = Workflow::from_json(&spec).map_err(|problems| {
        let what = format!("the spec stored with {run} is not one this build reads: {problems}");
        Error::from(logreel_store::Error::corrupt(what))
    })?;
    Ok(Arc::new(Program::of_workflow(&workflow)))
}

/// Replays the children that are recorded, each under what it is started with now.
async fn replay_children(
    engine: &Arc<Inner>,
    recording: &Recording,
    performed: &Performance,
) -> Result<Vec<Replayed>, Error> {
    let mut children = Vec::new();
    for call in &performed.noted.children {
        if !recording.children.contains_key(&call.child)
            || children.iter().any(|it: &Replayed| it.run == call.child)
        {
            continue;
        }
        let program = (call.program.kind != RunKind::Task).then(|| Arc::clone(&call.program));
        children.push(replay(engine, call.child, program).await?);
    }
    Ok(children)
}

/// A difference of a child, as its parent has it: where the child was started.
fn started(recording: &Recording, child: &Replayed) -> Option<Difference> {
    let difference = child.difference.as_ref()?;
    let mut events = recording.events.iter();
    let (seq, step) = events.find_map(|event| match &event.body {
        Body::ChildStarted(it) if it.child == child.run => Some((event.seq, &it.step)),
        _ => None,
    })?;
    Some(Difference {
        run: difference.run,
        seq,
        kind: "child.started".to_owned(),
        about: format!("step `{step}`"),
        why: format!(
            "its child {} differs at event {} (`{}`, {}): {}",
            child.run, difference.seq, difference.kind, difference.about, difference.why
        ),
        recorded: difference.recorded.clone(),
        now: difference.now.clone(),
    })
}
