//! `resolve`: says what became of a write in doubt.

use logreel_core::event::Resolution;
use logreel_core::{Outside, RunId};
use logreel_store::{Entry, Owner};

use crate::Error;
use crate::engine::Engine;

/// The answer to a resolve.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The run as it is now.
    pub entry: Entry,
    /// Earlier drivers that lost the run by silence and are not known to be dead. After a
    /// [`Resolution::Retry`] warn of them: one that was only frozen may still make the write.
    pub not_known_dead: Vec<Owner>,
}

impl Engine {
    /// Says what became of a write in doubt: `call` is the step's id as shown.
    pub async fn resolve(
        &self,
        run: &RunId,
        call: impl Into<String>,
        resolution: Resolution,
        by: impl Into<String>,
    ) -> Result<Resolved, Error> {
        let lapsed = self.0.store.lapsed(run).await?;
        let resolution = self.0.redaction_in(run).await.resolution(resolution);
        let command = Outside::Resolve {
            call: call.into(),
            resolution,
            by: by.into(),
        };
        let id = self.0.draw_append_id();
        let done = self.0.command(run, id, command, Vec::new()).await?;
        Ok(Resolved {
            entry: done.entry,
            not_known_dead: lapsed.into_iter().map(|it| it.owner).collect(),
        })
    }
}
