//! `signal`: tells a run something by name, now or before it asks.

use logreel_core::{Outside, RunId};
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
        let (value, blobs) = crate::value::payload("the signal", value)?;
        let command = Outside::Signal {
            name: name.into(),
            value,
        };
        self.0
            .command(run, self.0.draw_append_id(), command, blobs)
            .await
            .map(|done| done.entry)
    }
}
