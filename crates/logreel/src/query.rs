//! Asking which runs there are.

use std::sync::Arc;

use logreel_core::{Session, Status, Timestamp};
use logreel_store::{Cursor, Entry, Filter, RunPage};

use crate::Error;
use crate::engine::Inner;

/// A list of runs about to be asked for; made by [`crate::Engine::runs`].
#[must_use = "nothing is listed until it is asked for"]
pub struct Runs {
    engine: Arc<Inner>,
    filter: Filter,
}

impl Runs {
    pub(crate) fn new(engine: Arc<Inner>) -> Self {
        Self {
            engine,
            filter: Filter::default(),
        }
    }

    /// Only these; said twice, either.
    pub fn status(mut self, status: Status) -> Self {
        self.filter.status.push(status);
        self
    }

    /// Only of this session.
    pub fn session(mut self, session: Session) -> Self {
        self.filter.session = Some(session);
        self
    }

    /// Only of this task, agent or workflow.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.filter.agent = Some(agent.into());
        self
    }

    /// Only with this label.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.filter.labels.push((name.into(), value.into()));
        self
    }

    /// Only those created at or after.
    pub fn since(mut self, since: Timestamp) -> Self {
        self.filter.since = Some(since);
        self
    }

    /// Only those with all these words in input, output, agent or labels.
    pub fn search(mut self, words: impl Into<String>) -> Self {
        self.filter.search = Some(words.into());
        self
    }

    /// The newest of them.
    pub async fn newest(self, limit: usize) -> Result<Vec<Entry>, Error> {
        Ok(self.page(None, limit).await?.items)
    }

    /// A page of them, newest first.
    pub async fn page(self, cursor: Option<&Cursor>, limit: usize) -> Result<RunPage, Error> {
        Ok(self.engine.store.list(&self.filter, cursor, limit).await?)
    }
}
