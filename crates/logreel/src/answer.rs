//! `answer`: says yes or no to what a run asks.

use logreel_core::{AppendId, Outside, Payload, RunId, WaitId};
use logreel_store::Entry;

use crate::Error;
use crate::engine::{Engine, Inner};

impl Engine {
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
}

impl Inner {
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
}
