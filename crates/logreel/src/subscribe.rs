//! Watching a run: the log first, then live, every event once and in order.
//!
//! A subscriber pulls: it reads pages from where it is and waits for the doorbell when there is no
//! more. Nothing is queued for one that does not read, and a slow one misses nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use logreel_core::{Event, Record, RunId, Seq};
use logreel_store::{Doorbell, RunStore};

use crate::Error;
use crate::error::ErrorKind;

const PAGE: usize = 256;

/// A run's events as stored, from a seq to the run's end.
pub struct RecordStream {
    store: Arc<dyn RunStore>,
    run: RunId,
    next: Seq,
    page: VecDeque<Record>,
    doorbell: Option<Doorbell>,
    ended: bool,
}

impl RecordStream {
    pub(crate) fn new(store: Arc<dyn RunStore>, run: RunId, from: Seq) -> Self {
        let next = from.max(Seq::FIRST);
        Self {
            store,
            run,
            next,
            page: VecDeque::new(),
            doorbell: None,
            ended: false,
        }
    }

    /// The next event; `None` after the run's first terminal event. Late facts are read by paging.
    ///
    /// An error of the kind [`ErrorKind::Unavailable`] is no end: asked again, perhaps after a while, it reads on from
    /// where it was. After any other error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<Record, Error>> {
        loop {
            if let Some(record) = self.page.pop_front() {
                if record.late {
                    self.ended = true;
                    return None;
                }
                self.next = record.seq.next();
                self.ended |= is_terminal(&record);
                return Some(Ok(record));
            }
            if self.ended {
                return None;
            }
            // The bell first, the page second: what comes in between rings.
            if self.doorbell.is_none() {
                self.doorbell = Some(self.store.watch(&self.run));
            }
            let page = match self.store.read(&self.run, self.next, PAGE).await {
                Ok(page) => page,
                Err(error) => return Some(Err(self.failed(error.into()))),
            };
            if page.items.is_empty() {
                match self.is_past_the_end().await {
                    Ok(true) => return None,
                    Ok(false) => {
                        if let Some(bell) = &mut self.doorbell {
                            self.ended |= !bell.rung().await;
                        }
                    }
                    Err(error) => return Some(Err(self.failed(error))),
                }
            }
            self.page = page.items.into();
        }
    }

    /// A store's bad moment does not end the watching.
    fn failed(&mut self, error: Error) -> Error {
        self.ended |= error.kind() != ErrorKind::Unavailable;
        error
    }

    /// A reader that begins at or past the end finds nothing more.
    async fn is_past_the_end(&self) -> Result<bool, Error> {
        let row = self.store.entry(&self.run).await?.row;
        Ok(row.status().is_terminal() && row.head.seq < self.next)
    }
}

/// Which kinds end a run is known by the body. One that cannot be read ends the stream all the same:
/// after it there is nothing but late facts.
fn is_terminal(record: &Record) -> bool {
    record.kind.starts_with("run.") && record.decode().is_ok_and(|event| event.body.is_terminal())
}

/// A run's events, decoded.
pub struct EventStream(RecordStream);

impl EventStream {
    pub(crate) fn new(records: RecordStream) -> Self {
        Self(records)
    }

    /// The next event; `None` after the run's first terminal event. Errors are those of [`RecordStream::next`].
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        let record = self.0.next().await?;
        Some(record.and_then(|record| {
            record
                .decode()
                .map_err(|error| logreel_store::Error::from(error).into())
        }))
    }
}
