//! Sessions: conversations with one active run at a time.

use std::sync::Arc;

use logreel_core::{AppendId, RunId, Session, Status};
use logreel_store::{Filter, SessionInfo};

use crate::Error;
use crate::cancel::CancelOutcome;
use crate::engine::{Engine, Inner};
use crate::request::{Ask, Request};

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

    /// What is known of it; `None` when no run was ever started in it and it was not closed.
    pub async fn info(&self) -> Result<Option<SessionInfo>, Error> {
        Ok(self.engine.store.session(&self.session).await?)
    }

    /// The run that is active in it.
    pub async fn active(&self) -> Result<Option<RunId>, Error> {
        Ok(self.info().await?.and_then(|info| info.active))
    }

    /// Cancels its active run; a run that starts later is not touched.
    pub fn cancel(&self, reason: impl Into<String>) -> Ask<CancelOutcome> {
        let (session, reason) = (self.clone(), reason.into());
        Ask::new(async move |request| {
            let cancelled = session.cancel_one(reason, request).await?;
            Ok(cancelled.map_or(CancelOutcome::NotFound, |(_, outcome)| outcome))
        })
    }

    /// [`SessionHandle::cancel`], and which run that was; `None` when none was active.
    pub fn cancel_active(&self, reason: impl Into<String>) -> Ask<Option<(RunId, CancelOutcome)>> {
        let (session, reason) = (self.clone(), reason.into());
        Ask::new(async move |request| session.cancel_one(reason, request).await)
    }

    async fn cancel_one(
        &self,
        reason: String,
        request: Request,
    ) -> Result<Option<(RunId, CancelOutcome)>, Error> {
        let engine = &self.engine;
        let asked = ("cancel the session's run", &self.session, &reason);
        let id = request.append_id(engine, &asked);
        // The same request again is about the run that it cancelled, whoever is active now.
        let before = match request.named(&asked) {
            Some(_) => self.run_cancelled_by(&id).await?,
            None => None,
        };
        let run = match before {
            Some(run) => Some(run),
            None => self.active().await?,
        };
        match run {
            None => Ok(None),
            Some(run) => {
                let outcome = engine.cancel_as(&run, id, Some(reason)).await?;
                Ok(Some((run, outcome)))
            }
        }
    }

    async fn run_cancelled_by(&self, id: &AppendId) -> Result<Option<RunId>, Error> {
        let filter = Filter {
            session: Some(self.session.clone()),
            status: vec![Status::Cancelled],
            ..Filter::default()
        };
        let mut cursor = None;
        loop {
            let store = &self.engine.store;
            let page = store.list(&filter, cursor.as_ref(), 100).await?;
            for entry in page.items {
                if store.landed(&entry.row.run, id).await?.is_some() {
                    return Ok(Some(entry.row.run));
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// Closes it, in order: no new runs, then its active run with its children and what it asked
    /// for. Idempotent, so that no request needs a name; returns when the run's driver has let go.
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
