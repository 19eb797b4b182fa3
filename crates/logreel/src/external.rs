//! External drivers (SEMANTICS 30): programs of any language that drive a run of their own and have it
//! recorded here. They hold a lease like any driver; what they append is folded first, and refused
//! when the fold would refuse it.
//!
//! A lease is an owner of its own in the store, known by the digest of a secret (`secret`). Its expiry is
//! what every lease's is: nobody heard of it for the lease time. Who listens is the process that serves
//! the client, on its own monotonic clock, and each append counts as a sign of life. So `expires_at` is a
//! promise in one direction: before it nobody is given the run; after it someone may be, and a client
//! that nobody replaced goes on as if nothing had happened. A server that was restarted begins to
//! listen anew, which only makes a lease longer.

mod append;
mod fact;
mod folds;
mod message;
mod secret;
mod start;

use std::sync::Arc;

use logreel_core::event::RunKind;
use logreel_core::{Blob, Body, Digest, Epoch, Event, Json, RunId, Seq, StepId, Timestamp};
use logreel_store::{ClaimOutcome, Entry, OwnerId};
use std::ops::ControlFlow;

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::value;

pub use append::{ExternalAppend, ExternalAppended, HeadMoved};
pub use fact::ExternalFact;
pub(crate) use folds::Folds;
pub use secret::LeaseSecret;
pub use start::{ExternalStart, ExternalStarted};

/// What clients do who drive runs themselves; made by [`Engine::external`].
#[derive(Clone)]
pub struct External {
    engine: Arc<Inner>,
}

/// A lease that was given to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalLease {
    /// Every append carries it; whoever holds a later one has taken over.
    pub epoch: Epoch,
    /// Proves that the client holds it.
    pub secret: LeaseSecret,
    /// When someone else may claim the run, if nothing is heard of the client until then.
    pub expires_at: Timestamp,
}

/// A run that a client has taken over.
#[derive(Debug, Clone)]
pub struct ExternalClaim {
    /// The run as it is.
    pub entry: Entry,
    /// The new lease.
    pub lease: ExternalLease,
    /// Where it can be picked up; `None` = at its beginning.
    pub checkpoint: Option<SavedCheckpoint>,
}

/// What a client saved to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedCheckpoint {
    /// Its name.
    pub checkpoint: String,
    /// The event that saved it; what comes after it may be done again.
    pub seq: Seq,
    /// The node it was saved at.
    pub step: Option<StepId>,
    /// What it holds.
    pub data: Json,
}

impl Engine {
    /// Runs that others drive: started, claimed and appended to by clients.
    pub fn external(&self) -> External {
        External {
            engine: Arc::clone(&self.0),
        }
    }
}

impl External {
    /// Gives a client the run, under the next epoch: when nobody alive holds it. The secret of an earlier
    /// lease is worth nothing from then on.
    pub async fn claim(&self, run: &RunId) -> Result<ExternalClaim, Error> {
        let engine = &self.engine;
        engine.check_open()?;
        let entry = engine.external_entry(run).await?;
        if entry.row.status().is_terminal() {
            let status = entry.row.status();
            return Err(Error::Ended { run: *run, status });
        }
        // First, so that a log that does not fold is not taken from anyone.
        let checkpoint = engine.last_checkpoint(run).await?;
        let secret = LeaseSecret::draw(&*engine.env);
        let owner = secret.owner(&*engine.env);
        engine.store.join(&owner).await?;
        let outcome = engine.claim_as(run, owner.id).await;
        let entry = match outcome {
            Ok(ClaimOutcome::Claimed(entry)) => entry,
            other => {
                engine.store.leave(owner.id).await?;
                return Err(not_claimed(*run, other?));
            }
        };
        // A claim that follows another's is an event.
        let resumed = entry.row.head.seq;
        engine
            .tell_up_to(&entry, resumed, |event| {
                matches!(event.body, Body::RunResumed(_))
            })
            .await;
        let lease = engine.lease_of(&entry, secret);
        Ok(ExternalClaim {
            entry,
            lease,
            checkpoint,
        })
    }

    /// The client lives: its lease begins anew. After the end of the run it does not: whoever waits for the
    /// session would wait for as long as a client renews.
    pub async fn renew(&self, run: &RunId, secret: &LeaseSecret) -> Result<ExternalLease, Error> {
        let entry = self.engine.external_entry(run).await?;
        let owner = self.engine.held_by(&entry, secret).await?;
        let status = entry.row.status();
        if status.is_terminal() {
            return Err(Error::Ended { run: *run, status });
        }
        self.engine.store.beat(owner).await?;
        Ok(self.engine.lease_of(&entry, secret.clone()))
    }

    /// The client gives its lease back: whoever claims next need not wait. After the end of the run nothing
    /// more can be appended.
    pub async fn release(&self, run: &RunId, secret: &LeaseSecret) -> Result<Entry, Error> {
        let entry = self.engine.external_entry(run).await?;
        let owner = self.engine.held_by(&entry, secret).await?;
        let released = self.engine.release(run, entry.epoch, owner).await?;
        self.engine.store.leave(owner).await?;
        match released {
            Some(entry) => Ok(entry),
            None => Ok(self.engine.store.entry(run).await?),
        }
    }

    /// Keeps bytes for an event to come that names them. Without one they are dropped after an hour.
    pub async fn put_blob(&self, run: &RunId, bytes: Vec<u8>) -> Result<Digest, Error> {
        let entry = self.engine.external_entry(run).await?;
        if entry.row.status().is_terminal() && entry.driver.is_none() {
            let status = entry.row.status();
            return Err(Error::Ended { run: *run, status });
        }
        let blob = Blob::new(bytes);
        let digest = blob.digest();
        self.engine.store.stage(run, blob).await?;
        Ok(digest)
    }
}

fn not_claimed(run: RunId, outcome: ClaimOutcome) -> Error {
    match outcome {
        ClaimOutcome::Driven(entry) => {
            let by = entry.driver.map(|driver| driver.owner.to_string());
            let by = by.unwrap_or_default();
            Error::Driven { run, by }
        }
        ClaimOutcome::NotReady(entry)
        | ClaimOutcome::CrashLoop(entry)
        | ClaimOutcome::Limited(entry)
        | ClaimOutcome::Claimed(entry) => match entry.row.status() {
            status if status.is_terminal() => Error::Ended { run, status },
            _ => Error::Waiting {
                run,
                waits: crate::resume::waits_of(&entry),
            },
        },
    }
}

impl Inner {
    /// The run, if clients drive it.
    async fn external_entry(&self, run: &RunId) -> Result<Entry, Error> {
        let entry = self.store.entry(run).await?;
        match entry.row.facts.kind {
            RunKind::External => Ok(entry),
            RunKind::Agent | RunKind::Workflow | RunKind::Task | RunKind::Record => {
                Err(Error::NotExternal(*run))
            }
        }
    }

    /// Whose lease the run has, when it is this secret's.
    async fn held_by(&self, entry: &Entry, secret: &LeaseSecret) -> Result<OwnerId, Error> {
        let run = entry.row.run;
        if let Some(owner) = secret.holder(entry) {
            return Ok(owner);
        }
        // A secret that was good once is told from one that never was, as long as that is known.
        let lapsed = self.store.lapsed(&run).await?;
        if entry.driver.is_none() || lapsed.iter().any(|it| secret.is_of(&it.owner)) {
            return Err(self.lost(entry));
        }
        Err(Error::WrongSecret(run))
    }

    /// What to tell a client that has no lease any more.
    fn lost(&self, entry: &Entry) -> Error {
        let (run, status) = (entry.row.run, entry.row.status());
        match status.is_terminal() && entry.driver.is_none() {
            true => Error::Ended { run, status },
            false => Error::LeaseLost {
                run,
                current: entry.epoch,
            },
        }
    }

    fn lease_of(&self, entry: &Entry, secret: LeaseSecret) -> ExternalLease {
        ExternalLease {
            epoch: entry.epoch,
            secret,
            expires_at: self.env.now() + self.lease,
        }
    }

    /// The last checkpoint that was saved and not deleted.
    async fn last_checkpoint(&self, run: &RunId) -> Result<Option<SavedCheckpoint>, Error> {
        let mut saved = Vec::new();
        let look = |event: &Event| {
            match &event.body {
                Body::CheckpointSaved(checkpoint) => {
                    forget(&mut saved, &checkpoint.checkpoint);
                    saved.push((event.seq, checkpoint.clone()));
                }
                Body::CheckpointDeleted(deleted) => forget(&mut saved, &deleted.checkpoint),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        self.history(run, look).await?;
        let Some((seq, last)) = saved.pop() else {
            return Ok(None);
        };
        Ok(Some(SavedCheckpoint {
            checkpoint: last.checkpoint,
            seq,
            step: last.step,
            data: value::resolve(&*self.store, &last.data).await?,
        }))
    }
}

fn forget(saved: &mut Vec<(Seq, logreel_core::event::Checkpoint)>, name: &str) {
    saved.retain(|(_, checkpoint)| checkpoint.checkpoint != name);
}
