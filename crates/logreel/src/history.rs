//! A run's state from its log, for whoever does not drive it.

use std::ops::ControlFlow;

use logreel_core::{Event, RunId, RunState, Seq};

use crate::Error;
use crate::engine::Inner;
use crate::journal::PAGE;

impl Inner {
    /// Folds the run's log. `before` sees each event before it is folded, and may end the fold there.
    pub(crate) async fn history(
        &self,
        run: &RunId,
        mut before: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<RunState, Error> {
        let mut state: Option<RunState> = None;
        let mut from = Seq::FIRST;
        let mut has_more = true;
        'log: while has_more {
            let page = self.store.events(run, from, PAGE).await?;
            for event in &page.items {
                if before(event).is_break() {
                    break 'log;
                }
                match &mut state {
                    None => {
                        let first = RunState::begin(*run, event);
                        state = Some(first.map_err(logreel_store::Error::from)?);
                    }
                    Some(state) => state.apply(event).map_err(logreel_store::Error::from)?,
                }
            }
            (from, has_more) = (page.next, page.has_more);
        }
        let empty = || logreel_store::Error::corrupt(format!("{run} has no events"));
        Ok(state.ok_or_else(empty)?)
    }
}
