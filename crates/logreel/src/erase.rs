//! `erase`: takes away what an ended run held, and leaves the proof that it ran.

use logreel_core::RunId;
use logreel_store::Heirs;

use crate::Error;
use crate::engine::Engine;

impl Engine {
    /// Erases an ended run (SEMANTICS 33): its bodies, its key, the blobs that no other run needs, the words
    /// that it is found by, and what its row says beside status and counts. Refused while forks or
    /// continuations hold the same, unless they go with it. Gives the runs that were erased.
    ///
    /// Children are runs of their own, with logs of their own.
    pub async fn erase(&self, run: &RunId, with: Heirs) -> Result<Vec<RunId>, Error> {
        Ok(self.0.store.erase(run, with).await?)
    }
}
