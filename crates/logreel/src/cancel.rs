//! `cancel`: ends a run now, whoever drives it, and everyone below it.

use std::sync::Arc;

use logreel_core::{AppendId, Outside, Rejected, RunId, Status};

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::request::Ask;
use crate::workflow::groups;

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

impl Engine {
    /// Cancels any run by its id.
    pub fn cancel(&self, run: &RunId, reason: impl Into<String>) -> Ask<CancelOutcome> {
        let (engine, run, reason) = (Arc::clone(&self.0), *run, reason.into());
        Ask::new(async move |request| {
            let reason = engine.redaction_in(&run).await.text(reason);
            let id = request.append_id(&engine, &("cancel", &reason));
            engine.cancel_as(&run, id, Some(reason)).await
        })
    }
}

impl Inner {
    pub(crate) async fn cancel(
        &self,
        run: &RunId,
        reason: Option<String>,
    ) -> Result<CancelOutcome, Error> {
        self.cancel_as(run, self.draw_append_id(), reason).await
    }

    /// [`Inner::cancel`] under this id. Those below are cancelled once, whatever their appends are called.
    pub(crate) async fn cancel_as(
        &self,
        run: &RunId,
        id: AppendId,
        reason: Option<String>,
    ) -> Result<CancelOutcome, Error> {
        let command = Outside::Cancel {
            reason: reason.clone(),
        };
        let outcome = match self.command(run, id, command, Vec::new()).await {
            Ok(done) if done.events.is_empty() => {
                CancelOutcome::AlreadyTerminal(done.entry.row.status())
            }
            Ok(done) => {
                if !done.entry.is_driven() {
                    self.stop_left_behind(run).await;
                }
                CancelOutcome::Requested
            }
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

    /// Stops the commands of a run whose driver is gone: nobody will take it over and do that.
    async fn stop_left_behind(&self, run: &RunId) {
        let folders = self.store.all_notes();
        groups::stop_reachable(&folders, self.owner_id(), run, &*self.env).await;
    }
}
