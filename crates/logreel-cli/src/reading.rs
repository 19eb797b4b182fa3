//! Reading a log page by page, so that a long one needs little memory.

use logreel::core::{Record, RunState};
use logreel::store::Error;
use logreel::{Event, RunId, RunStore, Seq};

const PAGE: usize = 1000;

/// A log from a seq to a seq, both inclusive.
pub struct Pages<'s> {
    store: &'s dyn RunStore,
    run: RunId,
    next: Seq,
    last: Seq,
}

impl<'s> Pages<'s> {
    pub fn new(store: &'s dyn RunStore, run: RunId, first: Seq, last: Seq) -> Self {
        Self {
            store,
            run,
            next: first.max(Seq::FIRST),
            last,
        }
    }

    /// The next page; empty at the end.
    pub async fn next(&mut self) -> Result<Vec<Record>, Error> {
        if self.next > self.last {
            return Ok(Vec::new());
        }
        let left = usize::try_from(self.last.0 - self.next.0).unwrap_or(PAGE);
        let page = self
            .store
            .read(&self.run, self.next, PAGE.min(left.saturating_add(1)))
            .await?;
        self.next = page.next;
        Ok(page.items)
    }
}

/// The state after the events up to `last`.
pub async fn fold(store: &dyn RunStore, run: RunId, last: Seq) -> Result<RunState, Error> {
    let mut state: Option<RunState> = None;
    let mut pages = Pages::new(store, run, Seq::FIRST, last);
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            return state.ok_or_else(|| Error::corrupt(format!("the log of {run} is empty")));
        }
        for record in &page {
            let event: Event = record.decode()?;
            match &mut state {
                None => state = Some(RunState::begin(run, &event)?),
                Some(state) => state.apply(&event)?,
            }
        }
    }
}
