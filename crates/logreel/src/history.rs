//! A run's state from its log, for whoever does not drive it.

use std::ops::ControlFlow;

use logreel_core::{Event, RunId, RunState, Seq};

use crate::Error;
use crate::engine::Inner;

impl Inner {
    /// Folds the run's log. `before` sees each event before it is folded, and may end the fold there.
    pub(crate) async fn history(
        &self,
        run: &RunId,
        mut before: impl FnMut(&Event) -> ControlFlow<()> + Send,
    ) -> Result<RunState, Error> {
        let mut state: Option<RunState> = None;
        let mut folded = Ok(());
        let mut each = |event: Event| {
            if before(&event).is_break() {
                return ControlFlow::Break(());
            }
            folded = match &mut state {
                None => RunState::begin(*run, &event).map(|first| state = Some(first)),
                Some(state) => state.apply(&event),
            };
            match &folded {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        };
        let scanned = self.store.scan(run, Seq::FIRST, &mut each).await;
        scanned.map_err(|error| of_erased(*run, error.into()))?;
        folded.map_err(logreel_store::Error::from)?;
        let empty = || logreel_store::Error::corrupt(format!("{run} has no events"));
        Ok(state.ok_or_else(empty)?)
    }
}

/// An event without its body says that the run was erased; whoever asked wants to know which one.
pub(crate) fn of_erased(run: RunId, error: Error) -> Error {
    use logreel_store::Error as Store;
    match error {
        Error::Store(Store::Erased(_)) => Store::ErasedRun(run).into(),
        other => other,
    }
}
