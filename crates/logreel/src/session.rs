//! Sessions: conversations with one active run at a time.

use std::sync::Arc;

use logreel_core::{RunId, Session};
use logreel_store::SessionInfo;

use crate::Error;
use crate::cancel::CancelOutcome;
use crate::engine::{Engine, Inner};

/// A session by its name.
#[derive(Clone)]
pub struct SessionHandle {
    engine: Arc<Inner>,
    session: Session,
}

impl SessionHandle {
    pub(crate) fn new(engine: Arc<Inner>, session: Session) -> Self {
        Self { engine, session }
    }

    /// What is known of it; `None` when no run was ever started in it.
    pub async fn info(&self) -> Result<Option<SessionInfo>, Error> {
        let sessions = self.engine.store.sessions().await?;
        Ok(sessions
            .into_iter()
            .find(|info| info.session == self.session))
    }

    /// The run that is active in it.
    pub async fn active(&self) -> Result<Option<RunId>, Error> {
        Ok(self.info().await?.and_then(|info| info.active))
    }

    /// Cancels its active run; a run that starts later is not touched.
    pub async fn cancel(&self, reason: impl Into<String>) -> Result<CancelOutcome, Error> {
        match self.active().await? {
            None => Ok(CancelOutcome::NotFound),
            Some(run) => self.engine.cancel(&run, Some(reason.into())).await,
        }
    }

    /// Closes it, in order: no new runs, then its active run with its children and what it asked
    /// for. Idempotent; returns when the run's driver has let go.
    pub async fn close(&self) -> Result<(), Error> {
        self.engine.store.close_session(&self.session).await?;
        if let Some(run) = self.active().await? {
            self.engine
                .cancel(&run, Some("the session was closed".to_owned()))
                .await?;
            self.engine.until_session_free(&run).await?;
        }
        Ok(())
    }
}

impl Engine {
    /// Every session, latest first.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        Ok(self.0.store.sessions().await?)
    }
}
