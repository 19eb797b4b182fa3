//! `say`: steers a running agent; it hears it at its next turn.

use logreel_core::event::RunKind;
use logreel_core::{AppendId, Body, Outside, RunId, Seq};

use crate::Error;
use crate::engine::Engine;

impl Engine {
    /// Queues a message for an agent. The receipt is where it stands in the log; the same request id
    /// again gives the same receipt, also after the run has ended.
    pub async fn say(
        &self,
        run: &RunId,
        text: impl Into<String>,
        by: Option<String>,
        request_id: Option<&str>,
    ) -> Result<Seq, Error> {
        let entry = self.0.store.entry(run).await?;
        if entry.row.facts.kind != RunKind::Agent {
            return Err(Error::NotSteered(*run));
        }
        let id = match request_id {
            Some(id) => AppendId::new(id)?,
            None => self.0.draw_append_id(),
        };
        let text = self.0.redaction_in(run).await.text(text.into());
        let done = self
            .0
            .command(run, id, Outside::Say { text, by }, Vec::new())
            .await?;
        let mut queued = done.events.iter();
        let queued = queued.find(|event| matches!(event.body, Body::MessageQueued(_)));
        match queued {
            Some(event) => Ok(event.seq),
            // The id is another command's.
            None => Err(Error::RequestIdTaken(*run)),
        }
    }
}
