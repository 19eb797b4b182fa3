//! Time travel: a run's state as it was after an earlier event.

use std::ops::ControlFlow;

use logreel_core::{Record, RunId, RunState, Seq};

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::history::of_erased;
use crate::journal::PAGE;

impl Engine {
    /// The run's state right after an event: the fold of its log up to there, the row in it. Of a fork
    /// that may be an event that it shares.
    pub async fn at(&self, run: &RunId, seq: Seq) -> Result<RunState, Error> {
        let head = self.0.store.entry(run).await?.row.head.seq;
        if seq == Seq::NONE || seq > head {
            let (run, at) = (*run, seq);
            return Err(Error::NoSuchEvent { run, at, head });
        }
        self.0.at(run, seq).await
    }
}

impl Inner {
    /// The state after an event that the run has.
    pub(crate) async fn at(&self, run: &RunId, seq: Seq) -> Result<RunState, Error> {
        let until = |event: &logreel_core::Event| match event.seq > seq {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        self.history(run, until).await
    }

    /// Shows the log to someone, as it is stored: whoever needs few kinds decodes only those.
    pub(crate) async fn each_record(
        &self,
        run: &RunId,
        from: Seq,
        mut look: impl FnMut(&Record) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let mut from = from;
        loop {
            let page = self.store.read(run, from, PAGE).await?;
            for record in &page.items {
                let looked = look(record).map_err(|error| of_erased(*run, error))?;
                if looked.is_break() {
                    return Ok(());
                }
            }
            if !page.has_more {
                return Ok(());
            }
            from = page.next;
        }
    }
}

/// The event of a record.
pub(crate) fn decode(record: &Record) -> Result<logreel_core::Event, Error> {
    Ok(record.decode().map_err(logreel_store::Error::from)?)
}
