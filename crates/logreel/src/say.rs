//! `say`: steers a running agent; it hears it at its next turn.

use std::sync::Arc;

use logreel_core::event::RunKind;
use logreel_core::{Body, Outside, RunId, Seq};

use crate::Error;
use crate::engine::Engine;
use crate::request::Ask;

impl Engine {
    /// Queues a message for an agent. The receipt is where it stands in the log.
    pub fn say(&self, run: &RunId, text: impl Into<String>, by: Option<String>) -> Ask<Seq> {
        let (engine, run, text) = (Arc::clone(&self.0), *run, text.into());
        Ask::new(async move |request| {
            let entry = engine.store.entry(&run).await?;
            if entry.row.facts.kind != RunKind::Agent {
                return Err(Error::NotSteered(run));
            }
            let text = engine.redaction_in(&run).await.text(text);
            let id = request.append_id(&engine, &("say", &text, &by));
            let command = Outside::Say { text, by };
            let done = engine.command(&run, id, command, Vec::new()).await?;
            let mut queued = done.events.iter();
            let queued = queued.find(|event| matches!(event.body, Body::MessageQueued(_)));
            let lost = || logreel_store::Error::Bug("something said left no message".to_owned());
            Ok(queued.ok_or_else(lost)?.seq)
        })
    }
}
