//! `pause`: stops a run's work, and that of its children, until someone resumes it.

use std::sync::Arc;

use logreel_core::event::{Relation, WaitKind};
use logreel_core::{AppendId, Outside, Rejected, RunId};
use logreel_store::Entry;

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::request::Ask;

/// The answer to a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseOutcome {
    /// It waits now.
    Paused,
    /// It had been paused before.
    AlreadyPaused,
}

impl Engine {
    /// Pauses any run by its id, and its children.
    pub fn pause(&self, run: &RunId, reason: impl Into<String>) -> Ask<PauseOutcome> {
        let (engine, run, reason) = (Arc::clone(&self.0), *run, reason.into());
        Ask::new(async move |request| {
            let reason = engine.redaction_in(&run).await.text(reason);
            let id = request.append_id(&engine, &("pause", &reason));
            engine.pause_as(&run, id, Some(reason)).await
        })
    }
}

impl Inner {
    pub(crate) async fn pause(
        &self,
        run: &RunId,
        reason: Option<String>,
    ) -> Result<PauseOutcome, Error> {
        self.pause_as(run, self.draw_append_id(), reason).await
    }

    async fn pause_as(
        &self,
        run: &RunId,
        id: AppendId,
        reason: Option<String>,
    ) -> Result<PauseOutcome, Error> {
        let command = Outside::Pause {
            reason: reason.clone(),
        };
        let done = self.command(run, id, command, Vec::new()).await?;
        // The same request again, and someone has resumed it since.
        if done.repeated && !is_paused(&done.entry) {
            return Ok(PauseOutcome::Paused);
        }
        // Also when it was paused before: whoever paused it may have died before it came to the children.
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
        Ok(match done.events.is_empty() {
            true => PauseOutcome::AlreadyPaused,
            false => PauseOutcome::Paused,
        })
    }

    /// Pauses a child that nobody has driven yet when its parent is paused: it was made while the pause
    /// went through the children that were there. One that was driven before heard of the pause itself,
    /// and someone may have resumed it since.
    pub(crate) async fn pause_with_parent(&self, entry: &Entry) -> Result<(), Error> {
        let parent = match &entry.row.facts.parent {
            Some(parent) if parent.relation == Relation::Child => parent.run,
            Some(_) | None => return Ok(()),
        };
        let parent = match self.store.entry(&parent).await {
            Ok(parent) => parent,
            // Whoever drives the child finds that out.
            Err(logreel_store::Error::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if is_paused(&parent) {
            match self
                .pause(&entry.row.run, Some(WITH_PARENT.to_owned()))
                .await
            {
                Ok(_)
                | Err(Error::Rejected {
                    why: Rejected::Ended(_),
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_paused(entry: &Entry) -> bool {
    let mut waits = entry.row.facts.waits.iter();
    waits.any(|open| open.wait.kind == WaitKind::Paused)
}

/// Why a child is paused that was made under a paused parent.
const WITH_PARENT: &str = "its parent is paused";
