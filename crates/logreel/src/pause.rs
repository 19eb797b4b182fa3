//! `pause`: stops a run's work, and that of its children, until someone resumes it.

use logreel_core::event::{Relation, WaitKind};
use logreel_core::{Outside, Rejected, RunId};
use logreel_store::Entry;

use crate::Error;
use crate::engine::{Engine, Inner};

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
    pub async fn pause(
        &self,
        run: &RunId,
        reason: impl Into<String>,
    ) -> Result<PauseOutcome, Error> {
        let reason = self.0.redaction_in(run).await.text(reason.into());
        self.0.pause(run, Some(reason)).await
    }
}

impl Inner {
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
        let mut waits = parent.row.facts.waits.iter();
        if waits.any(|open| open.wait.kind == WaitKind::Paused) {
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

/// Why a child is paused that was made under a paused parent.
const WITH_PARENT: &str = "its parent is paused";
