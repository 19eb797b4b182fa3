//! `pause`: stops a run's work, and that of its children, until someone resumes it.

use logreel_core::{Outside, Rejected, RunId};

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
}
