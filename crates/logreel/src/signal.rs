//! `signal`: tells a run something by name, now or before it asks.

use std::sync::Arc;

use logreel_core::{Json, Outside, Payload, RunId};
use logreel_store::Entry;

use crate::Error;
use crate::engine::Engine;
use crate::request::Ask;

impl Engine {
    /// Sends a signal; it is kept when nobody awaits it yet.
    pub fn signal<T: serde::Serialize + ?Sized>(
        &self,
        run: &RunId,
        name: impl Into<String>,
        value: &T,
    ) -> Ask<Entry> {
        let (engine, run, name) = (Arc::clone(&self.0), *run, name.into());
        let value = Json::of(value).map_err(|error| Error::value("the signal", error));
        Ask::new(async move |request| {
            let value = engine.redaction_in(&run).await.json(value?);
            let id = request.append_id(&engine, &("signal", &name, &value));
            let (value, blob) = Payload::of(value);
            let command = Outside::Signal { name, value };
            let blobs = blob.into_iter().collect();
            Ok(engine.command(&run, id, command, blobs).await?.entry)
        })
    }
}
