//! A run and those that it started, as spans.

use std::collections::VecDeque;

use logreel_core::{Body, RunId, Seq, Timestamp};
use logreel_store::RunStore;

use super::{Resource, RunSpans, Span, encode, fill, trace_of};
use crate::Error;

/// Spans that are encoded together, and events that are read together.
const BATCH: usize = 256;

/// The trace of a run and of everyone below it, a piece at a time.
pub struct Trace<'s> {
    store: &'s dyn RunStore,
    root: RunId,
    trace: [u8; 16],
    resource: Resource,
    content: bool,
    runs: VecDeque<RunId>,
    reading: Option<Reading>,
    batch: Vec<Span>,
    count: u64,
}

/// A log as far as it was when it was begun.
struct Reading {
    run: RunId,
    spans: RunSpans,
    next: Seq,
    last: Seq,
    updated_at: Timestamp,
    status: String,
}

impl<'s> Trace<'s> {
    /// Made by `resource`; with what was said when there is `content`.
    pub async fn new(
        store: &'s dyn RunStore,
        run: RunId,
        resource: Resource,
        content: bool,
    ) -> Result<Self, Error> {
        Ok(Self {
            store,
            root: run,
            trace: trace_of(store, run).await?,
            resource,
            content,
            runs: VecDeque::from([run]),
            reading: None,
            batch: Vec::new(),
            count: 0,
        })
    }

    /// How many spans there were so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next spans, as bytes of an `ExportTraceServiceRequest`: several of them in a row are one. `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        while self.batch.len() < BATCH && self.read().await? {}
        if self.batch.is_empty() {
            return Ok(None);
        }
        for span in &mut self.batch {
            fill(self.store, span, self.content).await?;
        }
        self.count += self.batch.len() as u64;
        let bytes = encode(&self.resource, &self.batch);
        self.batch.clear();
        Ok(Some(bytes))
    }

    /// Reads on; `false` when there is nothing left.
    async fn read(&mut self) -> Result<bool, Error> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => match self.runs.pop_front() {
                None => return Ok(false),
                Some(run) => match self.begin(run).await? {
                    None => return Ok(true),
                    Some(reading) => reading,
                },
            },
        };
        let left = usize::try_from(reading.last.0 + 1 - reading.next.0).unwrap_or(BATCH);
        let page = self
            .store
            .read(&reading.run, reading.next, BATCH.min(left))
            .await?;
        for record in &page.items {
            let event = record.decode().map_err(logreel_store::Error::from)?;
            let spans = reading.spans.take(&event);
            // What a fork shares is told by the run that did it.
            if record.origin.is_some() {
                continue;
            }
            if let Body::ChildStarted(started) = &event.body {
                self.runs.push_back(started.child);
            }
            self.batch.extend(spans);
        }
        reading.next = page.next;
        if reading.next <= reading.last && !page.items.is_empty() {
            self.reading = Some(reading);
            return Ok(true);
        }
        let rest = reading.spans.so_far(reading.updated_at, &reading.status);
        self.batch.extend(rest);
        Ok(true)
    }

    /// `None` when nothing is known of the run any more.
    async fn begin(&self, run: RunId) -> Result<Option<Reading>, Error> {
        let entry = match self.store.entry(&run).await {
            Ok(entry) => entry,
            // Announced and never made, or pruned.
            Err(logreel_store::Error::NotFound(_)) if run != self.root => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match entry.erased {
            true if run != self.root => return Ok(None),
            true => return Err(logreel_store::Error::ErasedRun(run).into()),
            false => {}
        }
        Ok(Some(Reading {
            run,
            spans: RunSpans::new(run, self.trace),
            next: Seq::FIRST,
            last: entry.row.head.seq,
            updated_at: entry.row.updated_at,
            status: entry.row.status().to_string(),
        }))
    }
}
