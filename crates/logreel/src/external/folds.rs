//! States of runs that clients append to, kept between their appends: each append is folded before it is
//! written, and a fold of the whole log each time would make a long run slower with every event.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logreel_core::{Event, IllegalEvent, RunId, RunState, Seq};
use logreel_store::{Entry, OwnerId};

use crate::Error;
use crate::engine::Inner;

/// How many states are kept; the one that was used the longest ago goes first.
const KEPT_MAX: usize = 64;

/// The states, by run. Deleted at any time they are made again from the log.
#[derive(Default)]
pub(crate) struct Folds(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    used: u64,
    states: HashMap<RunId, (u64, Folded)>,
}

/// A run as its client last left it.
pub(super) struct Folded {
    pub(super) state: RunState,
    /// When its lease was last renewed, on the monotonic clock, and whose it is.
    pub(super) heard: Option<(OwnerId, Duration)>,
}

impl Folds {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, run: &RunId) -> Option<Folded> {
        self.kept().states.remove(run).map(|(_, folded)| folded)
    }

    pub(super) fn put(&self, folded: Folded) {
        let mut kept = self.kept();
        kept.used += 1;
        let used = kept.used;
        kept.states.insert(folded.state.row.run, (used, folded));
        if kept.states.len() > KEPT_MAX {
            let oldest = kept.states.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(run, _)| *run);
            oldest.and_then(|run| kept.states.remove(&run));
        }
    }
}

impl Inner {
    /// The run's state at this entry's head, taken out of what is kept.
    pub(super) async fn state_for_client(&self, entry: &Entry) -> Result<Folded, Error> {
        let (run, head) = (entry.row.run, entry.row.head);
        if let Some(mut folded) = self.external.take(&run)
            && folded.state.row.head.seq <= head.seq
        {
            let state = &mut folded.state;
            let next = state.row.head.seq.next();
            self.apply_up_to(entry, next, &mut |event| state.apply(event))
                .await?;
            if state.row.head == head {
                return Ok(folded);
            }
        }
        let up_to_head = |event: &Event| match event.seq > head.seq {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let state = self.history(&run, up_to_head).await?;
        Ok(Folded { state, heard: None })
    }

    async fn apply_up_to(
        &self,
        entry: &Entry,
        from: Seq,
        apply: &mut (dyn FnMut(&Event) -> Result<(), IllegalEvent> + Send),
    ) -> Result<(), Error> {
        let mut applied = Ok(());
        let mut each = |event: Event| {
            if event.seq > entry.row.head.seq {
                return ControlFlow::Break(());
            }
            applied = apply(&event);
            match &applied {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        };
        if from <= entry.row.head.seq {
            self.store.scan(&entry.row.run, from, &mut each).await?;
        }
        Ok(applied.map_err(logreel_store::Error::from)?)
    }
}
