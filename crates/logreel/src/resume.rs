//! `resume`: drives a run on, after a pause, a crash or a change of its code.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::row::OpenWait;
use logreel_core::{Json, Outside, RunId, Status};
use logreel_store::{ClaimOutcome, Entry};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::Error;
use crate::driver::Begin;
use crate::engine::{Engine, Inner};
use crate::handle::RunHandle;
use crate::program::Program;
use crate::workflow::Workflow;

/// The answer to a resume.
#[derive(Debug, Clone)]
pub enum ResumeOutcome {
    /// This process drives it now, or as soon as its limit has a place.
    Driving(RunHandle<Json>),
    /// Its recorder lives and goes on with it: only who has the program can.
    GoesOn(RunHandle<Json>),
    /// It had completed; there is nothing to do.
    Completed(RunHandle<Json>),
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

impl Engine {
    /// Drives a run on: one that was paused or keeps crashing, is ready, or lost its driver. One that
    /// only waits for its children is driven on through them, and one that waits before it calls again
    /// does not wait any longer.
    pub async fn resume(&self, run: &RunId) -> Result<ResumeOutcome, Error> {
        self.0.resume(run, Under::Stored).await
    }

    /// [`Engine::resume`] under another version of the task than it was started with; recorded.
    pub async fn resume_accepting_spec_change(&self, run: &RunId) -> Result<ResumeOutcome, Error> {
        self.0.resume(run, Under::Registered).await
    }

    /// [`Engine::resume`] under another workflow than it was started with; recorded. What has
    /// finished keeps its result, whatever the new workflow says about it.
    pub async fn resume_under(
        &self,
        run: &RunId,
        workflow: &Workflow,
    ) -> Result<ResumeOutcome, Error> {
        let program = self.0.registry.add_workflow(workflow);
        self.0.resume(run, Under::Other(program)).await
    }

    /// [`Engine::resume`] under another spec of the agent than it was started with; recorded. What
    /// was said and done stays as it is.
    pub async fn resume_under_agent(
        &self,
        run: &RunId,
        spec: &Value,
    ) -> Result<ResumeOutcome, Error> {
        let program = self.0.agent_to_drive(spec)?;
        self.0.resume(run, Under::Other(program)).await
    }
}

impl Inner {
    async fn resume(self: &Arc<Self>, run: &RunId, under: Under) -> Result<ResumeOutcome, Error> {
        self.check_open()?;
        let mut entry = self.store.entry(run).await?;
        match entry.row.status() {
            Status::Completed => {
                return Ok(ResumeOutcome::Completed(RunHandle::new(
                    Arc::clone(self),
                    *run,
                )));
            }
            status @ (Status::Failed | Status::Cancelled) => {
                return Err(Error::Ended { run: *run, status });
            }
            _ => {}
        }
        if entry.read_only {
            return Err(logreel_store::Error::ReadOnly(*run).into());
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
        if entry.row.facts.waits.iter().any(stopped) {
            let command = Outside::Resume { by: None };
            entry = self
                .command(run, self.draw_append_id(), command, Vec::new())
                .await?
                .entry;
            if entry.is_driven() && crate::record::is_with_recorder(&entry.row.facts) {
                return Ok(ResumeOutcome::GoesOn(RunHandle::new(
                    Arc::clone(self),
                    *run,
                )));
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
        let handle = RunHandle::new(Arc::clone(self), *run);
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

    /// Drives the run's children on; says whether any of them goes on. One that is driven elsewhere or
    /// waits for someone is none of our business.
    async fn resume_children(self: &Arc<Self>, run: &RunId) -> Result<bool, Error> {
        let mut any = false;
        for child in self.live_children(run).await? {
            match Box::pin(self.resume(&child, Under::Stored)).await {
                Ok(_) => any = true,
                Err(Error::Driven { .. } | Error::Waiting { .. } | Error::Ended { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }
}

/// What a run waits for, in a few words.
fn waits_of(entry: &Entry) -> String {
    let waits = entry.row.facts.waits.iter();
    waits
        .map(|open| open.wait.kind.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
