//! What anyone may ask of a run without driving it: cancel, pause, resume, answer, signal, resolve.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Relation, Resolution};
use logreel_core::{AppendId, Blob, Json, Outside, Payload, Rejected, RunId, Status, WaitId};
use logreel_store::{ClaimOutcome, Commanded, Entry, Filter, Owner};
use tokio::sync::oneshot;

use crate::Error;
use crate::driver::Begin;
use crate::engine::{Engine, Inner};
use crate::handle::RunHandle;

/// The answer to a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It is cancelled now.
    Requested,
    /// It had ended before.
    AlreadyTerminal(Status),
    /// There is no such run.
    NotFound,
}

/// The answer to a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseOutcome {
    /// It waits now.
    Paused,
    /// It had been paused before.
    AlreadyPaused,
}

/// The answer to a resume.
#[derive(Debug, Clone)]
pub enum ResumeOutcome {
    /// This process drives it now.
    Driving(RunHandle<Json>),
    /// It had completed; there is nothing to do.
    Completed(RunHandle<Json>),
}

/// The answer to a resolve.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The run as it is now.
    pub entry: Entry,
    /// Earlier drivers that lost the run by silence and are not known to be dead. After a
    /// [`Resolution::Retry`] warn of them: one that was only frozen may still make the write.
    pub not_known_dead: Vec<Owner>,
}

/// How long a driver may take to stop its work and give the lease back.
const LET_GO: Duration = Duration::from_secs(3);

/// How often a command whose outcome is not known is sent.
const COMMAND_TRIES: u32 = 10;

impl Engine {
    /// Cancels any run by its id.
    pub async fn cancel(
        &self,
        run: &RunId,
        reason: impl Into<String>,
    ) -> Result<CancelOutcome, Error> {
        self.0.cancel(run, Some(reason.into())).await
    }

    /// Pauses any run by its id, and its children.
    pub async fn pause(
        &self,
        run: &RunId,
        reason: impl Into<String>,
    ) -> Result<PauseOutcome, Error> {
        self.0.pause(run, Some(reason.into())).await
    }

    /// Drives a run on: one that was paused or keeps crashing, is ready, or lost its driver.
    pub async fn resume(&self, run: &RunId) -> Result<ResumeOutcome, Error> {
        self.0.resume(run, false).await
    }

    /// [`Engine::resume`] under another version of the task than it was started with; recorded.
    pub async fn resume_accepting_spec_change(&self, run: &RunId) -> Result<ResumeOutcome, Error> {
        self.0.resume(run, true).await
    }

    /// Answers an approval; `wait` may be left out when exactly one is open. The same answer again
    /// gets the same receipt.
    pub async fn answer(
        &self,
        run: &RunId,
        wait: Option<WaitId>,
        approved: bool,
        by: Option<String>,
    ) -> Result<Entry, Error> {
        let wait = match wait {
            Some(wait) => Some(wait),
            None => self.0.only_question(run).await?,
        };
        let command = Outside::Answer {
            wait,
            approved: Some(approved),
            value: Payload::null(),
            reason: None,
            by,
        };
        // With the wait known the id is computed, so that a repeated answer finds its receipt.
        let id = match wait {
            Some(wait) => AppendId::new(format!("answer:{wait}:{approved}"))?,
            None => self.0.draw_append_id(),
        };
        self.0
            .command(run, id, command, Vec::new())
            .await
            .map(|done| done.entry)
    }

    /// Sends a signal; it is kept when nobody awaits it yet.
    pub async fn signal<T: serde::Serialize + ?Sized>(
        &self,
        run: &RunId,
        name: impl Into<String>,
        value: &T,
    ) -> Result<Entry, Error> {
        let (value, blobs) = crate::value::payload("the signal", value)?;
        let command = Outside::Signal {
            name: name.into(),
            value,
        };
        self.0
            .command(run, self.0.draw_append_id(), command, blobs)
            .await
            .map(|done| done.entry)
    }

    /// Says what became of a write in doubt: `call` is the step's id as shown.
    pub async fn resolve(
        &self,
        run: &RunId,
        call: impl Into<String>,
        resolution: Resolution,
        by: impl Into<String>,
    ) -> Result<Resolved, Error> {
        let lapsed = self.0.store.lapsed(run).await?;
        let command = Outside::Resolve {
            call: call.into(),
            resolution,
            by: by.into(),
        };
        let id = self.0.draw_append_id();
        let done = self.0.command(run, id, command, Vec::new()).await?;
        Ok(Resolved {
            entry: done.entry,
            not_known_dead: lapsed.into_iter().map(|it| it.owner).collect(),
        })
    }
}

impl Inner {
    pub(crate) fn draw_append_id(&self) -> AppendId {
        let id = format!(
            "{:016x}{:016x}",
            self.env.random_u64(),
            self.env.random_u64()
        );
        AppendId::new(id).expect("hex digits")
    }

    /// The one wait that an answer can mean when it names none.
    async fn only_question(&self, run: &RunId) -> Result<Option<WaitId>, Error> {
        let entry = self.store.entry(run).await?;
        let mut open = entry
            .row
            .facts
            .waits
            .iter()
            .filter(|open| open.wait.kind.is_answerable());
        Ok(open
            .next()
            .filter(|_| open.next().is_none())
            .map(|open| open.wait.wait))
    }

    /// Gives an outside command to the store, and tells the hooks when nobody drives the run.
    pub(crate) async fn command(
        &self,
        run: &RunId,
        id: AppendId,
        command: Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error> {
        let mut tries = 0;
        let done = loop {
            tries += 1;
            match self.store.command(run, &id, &command, blobs.clone()).await {
                // The same command under the same id again: it lands once.
                Err(logreel_store::Error::Ambiguous { what }) if tries < COMMAND_TRIES => {
                    tracing::warn!(%run, what, "sending the command again");
                    self.env.sleep(Duration::from_millis(20)).await;
                }
                other => break other?,
            }
        };
        if !done.entry.is_driven() && !done.repeated {
            let session = done.entry.row.facts.session.as_ref();
            self.hooks.tell(*run, session, &done.events).await;
        }
        match &done.answer {
            Ok(()) => Ok(done),
            Err(why) => Err(Error::Rejected {
                run: *run,
                why: why.clone(),
            }),
        }
    }

    pub(crate) async fn cancel(
        &self,
        run: &RunId,
        reason: Option<String>,
    ) -> Result<CancelOutcome, Error> {
        let command = Outside::Cancel {
            reason: reason.clone(),
        };
        let outcome = match self
            .command(run, self.draw_append_id(), command, Vec::new())
            .await
        {
            Ok(done) if done.events.is_empty() => {
                CancelOutcome::AlreadyTerminal(done.entry.row.status())
            }
            Ok(_) => CancelOutcome::Requested,
            Err(Error::Rejected {
                why: Rejected::Ended(status),
                ..
            }) => CancelOutcome::AlreadyTerminal(status),
            Err(Error::Store(logreel_store::Error::NotFound(_))) => {
                return Ok(CancelOutcome::NotFound);
            }
            Err(error) => return Err(error),
        };
        // Root first, then everyone below; whoever claims or sweeps repairs what a crash leaves.
        if outcome == CancelOutcome::Requested {
            let reason = reason.unwrap_or_else(|| format!("{run} was cancelled"));
            for child in self.live_children(run).await? {
                Box::pin(self.cancel(&child, Some(reason.clone()))).await?;
            }
        }
        Ok(outcome)
    }

    pub(crate) async fn pause(
        &self,
        run: &RunId,
        reason: Option<String>,
    ) -> Result<PauseOutcome, Error> {
        let command = Outside::Pause {
            reason: reason.clone(),
        };
        let done = self
            .command(run, self.draw_append_id(), command, Vec::new())
            .await?;
        if done.events.is_empty() {
            return Ok(PauseOutcome::AlreadyPaused);
        }
        for child in self.live_children(run).await? {
            match Box::pin(self.pause(&child, reason.clone())).await {
                Ok(_)
                | Err(Error::Rejected {
                    why: Rejected::Ended(_),
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(PauseOutcome::Paused)
    }

    async fn live_children(&self, run: &RunId) -> Result<Vec<RunId>, Error> {
        let filter = Filter {
            parent: Some(*run),
            ..Filter::default()
        };
        let mut children = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.store.list(&filter, cursor.as_ref(), 100).await?;
            for entry in page.items {
                let parent = entry.row.facts.parent.as_ref();
                let is_child = parent.is_some_and(|parent| parent.relation == Relation::Child);
                if is_child && !entry.row.status().is_terminal() {
                    children.push(entry.row.run);
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(children),
            }
        }
    }

    async fn resume(
        self: &Arc<Self>,
        run: &RunId,
        accept_spec_change: bool,
    ) -> Result<ResumeOutcome, Error> {
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
        let name = entry.row.facts.agent.to_string();
        let def = self
            .task(&name)
            .ok_or_else(|| Error::UnknownTask { name: name.clone() })?;
        let changed = entry.row.facts.spec_digest != def.spec_digest;
        if changed && !accept_spec_change {
            return Err(Error::SpecChanged { run: *run, name });
        }
        if entry
            .row
            .facts
            .waits
            .iter()
            .any(|open| open.wait.kind.stops_everything())
        {
            let command = Outside::Resume { by: None };
            entry = self
                .command(run, self.draw_append_id(), command, Vec::new())
                .await?
                .entry;
            // A driver that saw the pause gives its lease back; one that did not see it in time goes
            // on, and the claim says so.
            if entry.is_driven() && !self.is_driving(run) {
                tokio::select! {
                    undriven = self.until_undriven(run) => undriven?,
                    () = self.env.sleep(LET_GO) => {}
                }
            }
        }
        let (answer, answered) = oneshot::channel();
        let begin = Begin::Claim {
            accept_spec_change: changed,
            answer,
        };
        self.spawn_driver(*run, def, begin, true);
        let handle = RunHandle::new(Arc::clone(self), *run);
        // No answer: this process has a driver for the run already, which goes on by itself.
        let Ok(outcome) = answered.await else {
            return Ok(ResumeOutcome::Driving(handle));
        };
        match outcome? {
            ClaimOutcome::Claimed(_) => Ok(ResumeOutcome::Driving(handle)),
            ClaimOutcome::Driven(entry) => {
                let by = entry
                    .driver
                    .map_or_else(String::new, |driver| driver.owner.to_string());
                Err(Error::Driven { run: *run, by })
            }
            ClaimOutcome::NotReady(entry) => {
                if entry.row.status().is_terminal() {
                    return Err(Error::Ended {
                        run: *run,
                        status: entry.row.status(),
                    });
                }
                Err(Error::Waiting {
                    run: *run,
                    waits: waits_of(&entry),
                })
            }
        }
    }

    /// Waits until the run no longer occupies its session: it has ended and nobody holds its lease.
    pub(crate) async fn until_session_free(self: &Arc<Self>, run: &RunId) -> Result<(), Error> {
        self.until(run, |entry| {
            entry.row.status().is_terminal() && !entry.is_driven()
        })
        .await?;
        // A dead owner gives nothing back; taking the run over does.
        match self.claim(run).await {
            Ok(_) | Err(Error::Store(logreel_store::Error::NotFound(_))) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until nobody alive drives the run.
    async fn until_undriven(&self, run: &RunId) -> Result<(), Error> {
        self.until(run, |entry| !entry.is_driven()).await
    }

    async fn until(&self, run: &RunId, holds: impl Fn(&Entry) -> bool) -> Result<(), Error> {
        let mut doorbell = self.store.watch(run);
        loop {
            match self.store.entry(run).await {
                Err(logreel_store::Error::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(entry) if holds(&entry) => return Ok(()),
                Ok(_) => {}
            }
            // A lease given back in another process does not ring here.
            tokio::select! {
                _ = doorbell.rung() => {}
                () = self.env.sleep(std::time::Duration::from_millis(50)) => {}
            }
        }
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
