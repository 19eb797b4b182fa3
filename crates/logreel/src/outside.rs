//! What those share who ask something of a run without driving it: the way to the store, the run's
//! children, and waiting for its driver to let go.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Relation, RunKind};
use logreel_core::{AppendId, Blob, Outside, RunId};
use logreel_store::{Commanded, Entry, Filter};

use crate::Error;
use crate::engine::Inner;

/// How often a command whose outcome is not known is sent.
const COMMAND_TRIES: u32 = 10;

impl Inner {
    pub(crate) fn draw_append_id(&self) -> AppendId {
        let id = format!(
            "{:016x}{:016x}",
            self.env.random_u64(),
            self.env.random_u64()
        );
        AppendId::new(id).expect("hex digits")
    }

    /// Gives an outside command to the store, and tells the hooks when nobody drives the run.
    pub(crate) async fn command(
        &self,
        run: &RunId,
        id: AppendId,
        command: Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error> {
        let mut tries = 0;
        let done = loop {
            tries += 1;
            match self.store.command(run, &id, &command, blobs.clone()).await {
                // The same command under the same id again: it lands once.
                Err(logreel_store::Error::Ambiguous { what }) if tries < COMMAND_TRIES => {
                    tracing::warn!(%run, what, "sending the command again");
                    self.env.sleep(Duration::from_millis(20)).await;
                }
                other => break other?,
            }
        };
        // A client that drives a run has no hooks here.
        let is_external = done.entry.row.facts.kind == RunKind::External;
        if (is_external || !done.entry.is_driven()) && !done.repeated {
            let session = done.entry.row.facts.session.as_ref();
            self.hooks.tell(*run, session, &done.events).await;
        }
        match &done.answer {
            Ok(()) => Ok(done),
            Err(why) => Err(Error::Rejected {
                run: *run,
                why: why.clone(),
            }),
        }
    }

    /// The children that have not ended. Those that are driven elsewhere are not for anyone here.
    pub(crate) async fn live_children(&self, run: &RunId) -> Result<Vec<RunId>, Error> {
        let filter = Filter {
            parent: Some(*run),
            ..Filter::default()
        };
        let mut children = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.store.list(&filter, cursor.as_ref(), 100).await?;
            for entry in page.items {
                let parent = entry.row.facts.parent.as_ref();
                let is_child = parent.is_some_and(|parent| parent.relation == Relation::Child);
                if is_child && !entry.row.status().is_terminal() && !entry.read_only {
                    children.push(entry.row.run);
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(children),
            }
        }
    }

    /// Waits until the run no longer occupies its session: it has ended and nobody holds its lease.
    pub(crate) async fn until_session_free(self: &Arc<Self>, run: &RunId) -> Result<(), Error> {
        self.until(run, |entry| {
            entry.row.status().is_terminal() && !entry.is_driven()
        })
        .await?;
        // A dead owner gives nothing back; taking the run over does.
        let _open = self.hold_open().await?;
        match self.claim(run).await {
            Ok(_) | Err(Error::Store(logreel_store::Error::NotFound(_))) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until nobody alive drives the run.
    pub(crate) async fn until_undriven(&self, run: &RunId) -> Result<(), Error> {
        self.until(run, |entry| !entry.is_driven()).await
    }

    async fn until(&self, run: &RunId, holds: impl Fn(&Entry) -> bool) -> Result<(), Error> {
        let mut doorbell = self.store.watch(run);
        loop {
            match self.store.entry(run).await {
                Err(logreel_store::Error::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(entry) if holds(&entry) => return Ok(()),
                Ok(_) => {}
            }
            // A lease given back in another process does not ring here.
            tokio::select! {
                _ = doorbell.rung() => {}
                () = self.env.sleep(std::time::Duration::from_millis(50)) => {}
            }
        }
    }
}
