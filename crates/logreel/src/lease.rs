//! A lease of this process on a run: given back when its driver is done, and looked at before each effect.

use std::future::pending;

use logreel_core::{Epoch, Event, RunId, Seq};
use logreel_store::Entry;

use crate::Error;
use crate::ctx::{Counted, Execution};
use crate::engine::Inner;
use crate::error::{ErrorKind, TaskError};
use crate::journal::Stop;
use crate::outage::Outage;
use crate::owner::LOOK_EVERY;

/// How often a lease is given back to a store that refuses it for no reason it could have.
const GIVE_BACK_TRIES: u32 = 5;

/// A lease this process holds, and how far the log reached when it got it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    pub(crate) run: RunId,
    pub(crate) epoch: Epoch,
    head: Seq,
}

impl Lease {
    /// From the run as the lease was given.
    pub(crate) fn of(entry: &Entry) -> Self {
        Self {
            run: entry.row.run,
            epoch: entry.epoch,
            head: entry.row.head.seq,
        }
    }

    /// Whether the hooks hear of the event from this driver (SEMANTICS 29): it began the lease, or came
    /// while it was held, whoever appended it.
    pub(crate) fn tells(&self, event: &Event) -> bool {
        event.epoch == self.epoch || event.seq > self.head
    }
}

/// Gives the lease back, also to a store that cannot be reached for a while: this process lives, so
/// nobody else would take the run over. For the same reason any other failure is tried again, but not without end: who
/// drives this run has a place that others wait for. Another driver's lease is not touched.
pub(crate) async fn give_back(engine: &Inner, lease: Lease) -> Option<Entry> {
    let Lease { run, epoch, .. } = lease;
    // Whoever drives has joined.
    let owner = engine.owner_id()?;
    let mut outage = Outage::default();
    let mut left = GIVE_BACK_TRIES;
    loop {
        let error = match engine.release(&run, epoch, owner).await {
            Ok(released) => return released,
            Err(error) => error,
        };
        if error.kind() == ErrorKind::Corrupt {
            tracing::warn!(%run, %error, "the run was given back and cannot be read");
            return None;
        }
        outage.tell(&run, &error, "the lease was not given back");
        left = match error.kind() {
            ErrorKind::Unavailable => GIVE_BACK_TRIES,
            ErrorKind::NotFound => 0,
            _ => left - 1,
        };
        if left == 0 || engine.check_open().is_err() {
            return None;
        }
        engine.env.sleep(LOOK_EVERY).await;
    }
}

/// Right before an effect: a worker that was frozen or cut off past its lease renews it first, and stops when
/// it was fenced meanwhile. So does one whose renewal came late and was confirmed by now: a beat says nothing of
/// the runs that were taken before it. While the store cannot be reached nothing begins, and nothing is lost:
/// nobody took the run over as far as anyone knows, and what is under way goes on. The error is a cancel.
pub(crate) async fn check_lease(execution: &Execution) -> Result<(), TaskError> {
    if execution.journal.is_lost() {
        return pending().await;
    }
    if execution.surely_holds() {
        return Ok(());
    }
    Box::pin(renew_first(execution)).await
}

async fn renew_first(execution: &Execution) -> Result<(), TaskError> {
    let journal = &execution.journal;
    // It is about to begin: the run has more to do than to wait.
    let _busy = Counted::new(&execution.activity.busy);
    let mut outage = Outage::default();
    // Again when the look itself took too long.
    while !execution.surely_holds() {
        let renewed = async {
            if !execution.pulse.is_fresh() {
                execution.pulse.beat(&*journal.store).await?;
            }
            let reasons = execution.reasons_to_look();
            let entry = journal.store.entry(&journal.run).await?;
            Ok::<_, logreel_store::Error>((entry, reasons))
        };
        match renewed.await.map_err(Error::from) {
            Ok((entry, _)) if !journal.still_holds(&entry) => return pending().await,
            Ok((_, reasons)) => execution.has_looked(reasons),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                outage.tell(&journal.run, &error, "the lease could not be renewed");
                tokio::select! {
                    () = journal.env.sleep(LOOK_EVERY) => continue,
                    stopped = execution.until_stopped() => return Err(stopped),
                }
            }
            Err(error) => {
                let why = format!("the lease could not be renewed: {error}");
                journal.stop(Stop::Lost(why));
                return pending().await;
            }
        }
    }
    // Another task of this run may have heard it meanwhile.
    if journal.is_lost() {
        return pending().await;
    }
    Ok(())
}
