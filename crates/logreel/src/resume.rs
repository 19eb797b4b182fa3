//! `resume`: drives a run on, after a pause, a crash or a change of its code.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::RunKind;
use logreel_core::row::OpenWait;
use logreel_core::{AppendId, Digest, Json, Outside, RunId, Status};
use logreel_store::{ClaimOutcome, Entry};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::Error;
use crate::begin::Begin;
use crate::engine::{Engine, Inner};
use crate::handle::RunHandle;
use crate::program::Program;
use crate::request::{Ask, Request};
use crate::workflow::Workflow;

/// The answer to a resume.
#[derive(Debug, Clone)]
pub enum ResumeOutcome {
    /// This process drives it now, or as soon as its limit has a place.
    Driving(RunHandle<Json>),
    /// Its recorder, or the client that drives it, goes on with it: nobody else can.
    GoesOn(RunHandle<Json>),
    /// It had completed; there is nothing to do.
    Completed(RunHandle<Json>),
    /// The same request was answered before. What became of the run since then stays as it is.
    Repeated(RunHandle<Json>),
}

/// How long a driver may take to stop its work and give the lease back.
const LET_GO: Duration = Duration::from_secs(3);

/// What the run goes on under.
enum Under {
    /// What it was started with.
    Stored,
    /// The task as it is registered now, whatever its version.
    Registered,
    /// Another workflow or agent.
    Other(Arc<Program>),
}

impl Under {
    /// What someone asks for who asks for this.
    fn asked(&self) -> (&'static str, Option<Digest>) {
        match self {
            Self::Stored => ("resume", None),
            Self::Registered => ("resume accepting a spec change", None),
            Self::Other(program) => ("resume under", Some(program.spec_digest)),
        }
    }
}

impl Engine {
    /// Drives a run on: one that was paused or keeps crashing, is ready, or lost its driver. One that
    /// only waits for its children is driven on through them, and one that waits before it calls again
    /// does not wait any longer.
    ///
    /// A [request id](Ask::request) is kept with the wait that this ends. Where there was none to end, the
    /// same request again is one to drive the run.
    pub fn resume(&self, run: &RunId) -> Ask<ResumeOutcome> {
        self.resume_with(run, Ok(Under::Stored))
    }

    /// [`Engine::resume`] under another version of the task than it was started with; recorded.
    pub fn resume_accepting_spec_change(&self, run: &RunId) -> Ask<ResumeOutcome> {
        self.resume_with(run, Ok(Under::Registered))
    }

    /// [`Engine::resume`] under another workflow than it was started with; recorded. What has
    /// finished keeps its result, whatever the new workflow says about it.
    pub fn resume_under(&self, run: &RunId, workflow: &Workflow) -> Ask<ResumeOutcome> {
        let program = self.0.registry.add_workflow(workflow);
        self.resume_with(run, Ok(Under::Other(program)))
    }

    /// [`Engine::resume`] under another spec of the agent than it was started with; recorded. What
    /// was said and done stays as it is.
    pub fn resume_under_agent(&self, run: &RunId, spec: &Value) -> Ask<ResumeOutcome> {
        let program = self.0.agent_to_drive(spec);
        self.resume_with(run, program.map(Under::Other))
    }

    /// Refuses what [`Engine::resume`] would refuse because of what the run goes on under; changes nothing.
    pub async fn check_resume(&self, run: &RunId) -> Result<(), Error> {
        let engine = &self.0;
        let entry = engine.store.entry(run).await?;
        let facts = &entry.row.facts;
        if facts.ended.is_some() || facts.kind == RunKind::External {
            return Ok(());
        }
        let program = engine.program_of(&entry).await?;
        match facts.spec_digest == program.spec_digest {
            true => Ok(()),
            false => Err(Error::SpecChanged {
                run: *run,
                name: facts.agent.to_string(),
            }),
        }
    }

    fn resume_with(&self, run: &RunId, under: Result<Under, Error>) -> Ask<ResumeOutcome> {
        let (engine, run) = (Arc::clone(&self.0), *run);
        Ask::new(async move |request| engine.resume(&run, under?, request).await)
    }
}

impl Inner {
    async fn resume(
        self: &Arc<Self>,
        run: &RunId,
        under: Under,
        request: Request,
    ) -> Result<ResumeOutcome, Error> {
        self.check_open()?;
        let mut entry = self.store.entry(run).await?;
        let handle = RunHandle::new(Arc::clone(self), *run);
        let named = request.named(&under.asked());
        let first = match &named {
            Some(id) => self.store.landed(run, id).await?,
            None => None,
        };
        match entry.row.status() {
            Status::Completed => return Ok(ResumeOutcome::Completed(handle)),
            Status::Failed | Status::Cancelled if first.is_some() => {
                return Ok(ResumeOutcome::Repeated(handle));
            }
            status @ (Status::Failed | Status::Cancelled) => {
                return Err(Error::Ended { run: *run, status });
            }
            _ => {}
        }
        if entry.read_only {
            return Err(logreel_store::Error::ReadOnly(*run).into());
        }
        if entry.row.facts.kind == RunKind::External {
            return self.resume_external(&entry, named).await;
        }
        let accepts = !matches!(under, Under::Stored);
        let program = match under {
            Under::Other(program) => program,
            Under::Stored | Under::Registered => self.program_of(&entry).await?,
        };
        let changed = entry.row.facts.spec_digest != program.spec_digest;
        if changed && !accepts {
            let name = entry.row.facts.agent.to_string();
            return Err(Error::SpecChanged { run: *run, name });
        }
        let (now, driven) = (self.env.now(), entry.is_driven());
        let stopped = |open: &OpenWait| {
            // Whoever drives it waits for a retry by itself.
            open.wait.kind.stops_everything() || !driven && open.wait.ends_with_resume(now)
        };
        let stops = entry.row.facts.waits.iter().any(stopped);
        // Whoever asked first may have died before it drove the run; if not, someone saw to it.
        if first.is_some() && (stops || driven) {
            return Ok(ResumeOutcome::Repeated(handle));
        }
        if stops {
            let command = Outside::Resume { by: None };
            let id = named.unwrap_or_else(|| self.draw_append_id());
            entry = self.command(run, id, command, Vec::new()).await?.entry;
            if entry.is_driven() && crate::record::is_with_recorder(&entry.row.facts) {
                return Ok(ResumeOutcome::GoesOn(handle));
            }
            // A driver that saw the pause gives its lease back; one that did not see it in time goes
            // on, and the claim says so.
            if entry.is_driven() && !self.is_driving(run) {
                tokio::select! {
                    undriven = self.until_undriven(run) => undriven?,
                    () = self.env.sleep(LET_GO) => {}
                }
            }
            // A pause cascades, and so does its end.
            self.resume_children(run).await?;
        }
        let (answer, answered) = oneshot::channel();
        let begin = Begin::Claim {
            accept_spec_change: changed,
            answer,
        };
        self.spawn_driver(*run, Arc::clone(&program), begin, true);
        // No answer: this process has a driver for the run already, which goes on by itself.
        let Ok(outcome) = answered.await else {
            return Ok(ResumeOutcome::Driving(handle));
        };
        match outcome? {
            ClaimOutcome::Claimed(_) | ClaimOutcome::Limited(_) => {
                Ok(ResumeOutcome::Driving(handle))
            }
            ClaimOutcome::Driven(entry) => {
                let by = entry
                    .driver
                    .map_or_else(String::new, |driver| driver.owner.to_string());
                Err(Error::Driven { run: *run, by })
            }
            ClaimOutcome::NotReady(entry) | ClaimOutcome::CrashLoop(entry) => {
                if entry.row.status().is_terminal() {
                    return Err(Error::Ended {
                        run: *run,
                        status: entry.row.status(),
                    });
                }
                if self.resume_children(run).await? {
                    self.spawn_driver(*run, program, Begin::Keep, true);
                    return Ok(ResumeOutcome::Driving(handle));
                }
                Err(Error::Waiting {
                    run: *run,
                    waits: waits_of(&entry),
                })
            }
        }
    }

    /// Only its client can drive it on. What a person stopped goes on by a person's word all the same.
    async fn resume_external(
        self: &Arc<Self>,
        entry: &Entry,
        named: Option<AppendId>,
    ) -> Result<ResumeOutcome, Error> {
        let run = entry.row.run;
        let mut waits = entry.row.facts.waits.iter();
        if !waits.any(|open| open.wait.kind.stops_everything()) {
            return Err(Error::DrivenOutside(run));
        }
        let command = Outside::Resume { by: None };
        let id = named.unwrap_or_else(|| self.draw_append_id());
        self.command(&run, id, command, Vec::new()).await?;
        Ok(ResumeOutcome::GoesOn(RunHandle::new(Arc::clone(self), run)))
    }

    /// Drives the run's children on; says whether any of them goes on. One that is driven elsewhere or
    /// waits for someone is none of our business.
    async fn resume_children(self: &Arc<Self>, run: &RunId) -> Result<bool, Error> {
        let mut any = false;
        for child in self.live_children(run).await? {
            match Box::pin(self.resume(&child, Under::Stored, Request::default())).await {
                Ok(_) => any = true,
                Err(
                    Error::Driven { .. }
                    | Error::DrivenOutside(_)
                    | Error::Waiting { .. }
                    | Error::Ended { .. },
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }
}

/// What a run waits for, in a few words.
pub(crate) fn waits_of(entry: &Entry) -> String {
    let waits = entry.row.facts.waits.iter();
    waits
        .map(|open| open.wait.kind.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
