//! Runs of programs that are only watched: nobody can go on with them, so whoever takes one over ends it.
//!
//! The library knows that a recorded program is one process among others, and nothing of terminals:
//! whoever records gives a function that runs the program and records what it does.

use std::io;
use std::sync::Arc;

use logreel_core::codec::encode_body;
use logreel_core::decide::may_be_late;
use logreel_core::event::{Budget, Custom, Phase, RunKind, WaitKind};
use logreel_core::meaning::digest_of;
use logreel_core::row::Facts;
use logreel_core::{Blob, Body, Digest, Json, Payload, RunState};
use logreel_store::Entry;
use rustix::process::Pid;
use serde::Serialize;
use serde_json::Value;

use crate::agents::Driving;
use crate::ctx::Ctx;
use crate::engine::{Engine, Inner};
use crate::error::TaskError;
use crate::log::Log;
use crate::program::Program;
use crate::start::Start;
use crate::workflow::groups::{self, Groups};

/// The variable that names the run in the environment of what it runs: how a process group that lost
/// its leader is known.
pub const RUN_VARIABLE: &str = groups::RUN;

/// The `error.kind` of a recorded run whose recorder died.
pub const RECORDER_LOST: &str = "recorder_lost";

/// A registered recording: starts runs of it. Made by [`Engine::recorder`].
#[derive(Clone)]
pub struct Recorder {
    engine: Arc<Inner>,
    program: Arc<Program>,
}

impl Recorder {
    /// Starts a run; awaited, gives its handle.
    pub fn start<T: Serialize + ?Sized>(&self, input: &T) -> Start<Json> {
        let (engine, program) = (Arc::clone(&self.engine), Arc::clone(&self.program));
        Start::new(engine, program, Json::of(input))
    }
}

impl Engine {
    /// Registers a function that runs a program and records it. `spec` says which program; it is
    /// called for a run once and never again: a run that lost its recorder fails as
    /// [`RECORDER_LOST`].
    ///
    /// A pause does not stop the function. It sees [`Log::is_paused`] and keeps the lease, because
    /// nobody else could go on with the program.
    pub fn recorder<F, Fut>(&self, name: &str, spec: &Value, function: F) -> Recorder
    where
        F: Fn(Ctx, Json) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Json, TaskError>> + Send + 'static,
    {
        let function = Arc::new(function);
        let call = move |ctx: Ctx, input: Json| -> Driving {
            let function = Arc::clone(&function);
            Box::pin(async move {
                match ctx.attempt() {
                    0 | 1 => function(ctx, input).await,
                    _ => Err(lost()),
                }
            })
        };
        let program = Arc::new(Program {
            name: Arc::from(name),
            kind: RunKind::Record,
            spec: Json::from(spec.clone()),
            spec_digest: digest_of(spec).expect("a JSON tree serializes"),
            workflow: None,
            budget: Budget::default(),
            limit: None,
            phase: Phase::Executing,
            call: Arc::new(call),
        });
        self.0.registry.add(&program);
        Recorder {
            engine: Arc::clone(&self.0),
            program,
        }
    }
}

impl Program {
    /// What ends a recorded run that nobody here records.
    pub(crate) fn of_lost(entry: &Entry) -> Self {
        Self {
            name: Arc::clone(&entry.row.facts.agent),
            kind: RunKind::Record,
            spec: Json::null(),
            spec_digest: entry.row.facts.spec_digest,
            workflow: None,
            budget: Budget::default(),
            limit: None,
            phase: Phase::Executing,
            call: Arc::new(|_, _| Box::pin(std::future::ready(Err(lost())))),
        }
    }
}

pub(crate) fn lost() -> TaskError {
    let message = "whoever recorded the program is gone, and the program was stopped; what it did \
                   in its last moments is not known";
    TaskError::of_kind(RECORDER_LOST, message).permanent()
}

/// A process group that is listed beside the store as long as this lives: whoever takes the run over
/// stops it first.
pub struct NotedGroup {
    groups: Arc<Groups>,
    group: Pid,
}

impl Ctx {
    /// Lists the process group of something this run has started, before it may proceed.
    pub fn note_group(&self, group: i32) -> io::Result<NotedGroup> {
        let no_group = || io::Error::other(format!("{group} is no process group"));
        let group = Some(group).filter(|group| *group > 1);
        let group = group.and_then(Pid::from_raw).ok_or_else(no_group)?;
        let groups = Arc::clone(&self.0.pulse.groups);
        groups.note(self.run_id(), group)?;
        Ok(NotedGroup { groups, group })
    }
}

impl Drop for NotedGroup {
    fn drop(&mut self) {
        self.groups.forget(self.group);
    }
}

impl Log<'_> {
    /// Whether someone paused the run.
    pub fn is_paused(&self) -> bool {
        self.with_state(is_paused)
    }

    /// Records what has happened, whatever became of the run meanwhile: after its end nothing starts, so a
    /// start of something is kept then as a `custom` fact under its kind, and the rest as it is.
    pub async fn record_happened(
        &self,
        bodies: Vec<Body>,
        blobs: Vec<Blob>,
    ) -> Result<(), TaskError> {
        if bodies.iter().all(may_be_late) {
            return self.record(bodies, blobs).await.map(drop);
        }
        match self.record(bodies.clone(), blobs.clone()).await {
            Err(error) if error.is_cancelled() => {
                let mut blobs = blobs;
                let late = bodies.into_iter().map(|body| late_fact(body, &mut blobs));
                let late: Vec<Body> = late.collect::<Result<_, TaskError>>()?;
                self.record(late, blobs).await.map(drop)
            }
            recorded => recorded.map(drop),
        }
    }

    /// Waits for the log to change until something holds, and keeps the lease meanwhile.
    pub async fn until(&self, holds: impl Fn(&RunState) -> bool) {
        let mut changes = self.ctx().0.journal.changes();
        loop {
            changes.borrow_and_update();
            if self.with_state(&holds) {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Waits until the run is paused, or no longer is.
    pub async fn until_paused(&self, paused: bool) {
        self.until(|state| is_paused(state) == paused).await;
    }

    /// Resolves when the driver has to stop: the run was cancelled, or is lost.
    pub async fn until_stopped(&self) {
        self.ctx().0.journal.told_to_stop().await;
    }
}

fn late_fact(body: Body, blobs: &mut Vec<Blob>) -> Result<Body, TaskError> {
    if may_be_late(&body) {
        return Ok(body);
    }
    let name = body.kind().to_owned();
    let (data, blob) = Payload::of(Json::parse(encode_body(&body)?)?);
    blobs.extend(blob);
    Ok(Custom { data, name }.into())
}

fn is_paused(state: &RunState) -> bool {
    let mut waits = state.row.facts.waits.iter();
    waits.any(|open| open.wait.kind == WaitKind::Paused)
}

/// Whether only its recorder can go on with the run. The command of a workflow's step is not such a run:
/// it is started again like any command.
pub fn is_with_recorder(facts: &Facts) -> bool {
    facts.is_with_recorder()
}

/// Programs of recordings by their digest.
pub(crate) type Recordings = std::collections::HashMap<Digest, Arc<Program>>;
