//! `signal`: tells a run something by name, now or before it asks.

use logreel_core::{Json, Outside, Payload, RunId};
use logreel_store::Entry;

use crate::Error;
use crate::engine::Engine;

impl Engine {
    /// Sends a signal; it is kept when nobody awaits it yet.
    pub async fn signal<T: serde::Serialize + ?Sized>(
        &self,
        run: &RunId,
        name: impl Into<String>,
        value: &T,
    ) -> Result<Entry, Error> {
        let value = Json::of(value).map_err(|error| Error::value("the signal", error))?;
        let (value, blob) = Payload::of(self.0.redaction_in(run).await.json(value));
        let command = Outside::Signal {
            name: name.into(),
            value,
        };
        self.0
            .command(
                run,
                self.0.draw_append_id(),
                command,
                blob.into_iter().collect(),
            )
            .await
            .map(|done| done.entry)
    }
}
