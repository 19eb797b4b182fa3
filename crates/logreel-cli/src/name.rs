//! Which run is meant, or a word about what to say instead.

use logreel::{Error, RunId, RunStore};

use crate::error::Failure;

/// The one run that `name` means, which exists.
pub async fn resolve(store: &dyn RunStore, name: &str) -> anyhow::Result<RunId> {
    logreel::name::find(store, name).await.map_err(|error| {
        let hint = match &error {
            Error::NoSuchRun(_) => "`logreel ls` lists the runs",
            Error::SeveralRuns { .. } => "give more of the id, or its last 8 digits",
            Error::NotAName { .. } => "give an id, its beginning, its last 8 digits, or @last",
            _ => return error.into(),
        };
        let failure = Failure::new(error.kind(), error.to_string());
        failure.hint(hint).into()
    })
}
