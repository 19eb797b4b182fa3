//! `resolve`: says what became of a write in doubt.

use std::sync::Arc;

use logreel_core::event::Resolution;
use logreel_core::{Outside, RunId};
use logreel_store::{Entry, Owner};

use crate::engine::Engine;
use crate::request::Ask;

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
    pub fn resolve(
        &self,
        run: &RunId,
        call: impl Into<String>,
        resolution: Resolution,
        by: impl Into<String>,
    ) -> Ask<Resolved> {
        let (engine, run) = (Arc::clone(&self.0), *run);
        let (call, by) = (call.into(), by.into());
        Ask::new(async move |request| {
            let lapsed = engine.store.lapsed(&run).await?;
            let resolution = engine.redaction_in(&run).await.resolution(resolution);
            let id = request.append_id(&engine, &("resolve", &call, &resolution, &by));
            let command = Outside::Resolve {
                call,
                resolution,
                by,
            };
            let done = engine.command(&run, id, command, Vec::new()).await?;
            Ok(Resolved {
                entry: done.entry,
                not_known_dead: lapsed.into_iter().map(|it| it.owner).collect(),
            })
        })
    }
}
