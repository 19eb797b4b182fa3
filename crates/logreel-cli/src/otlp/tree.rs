//! A run and those that it started, as spans.

use std::collections::VecDeque;
use std::io::Write;

use logreel::otlp::{RunSpans, Span, encode, fill, trace_of};
use logreel::{Body, ErrorKind, RunId, RunStore, Seq};

use super::endpoint::{Endpoint, resource};
use crate::error::Failure;
use crate::reading::Pages;

/// Spans that are encoded together.
const BATCH: usize = 256;

/// Where spans go.
pub enum Sink<'a> {
    /// As bytes of `ExportTraceServiceRequest`: several of them in a row are one.
    File(&'a mut (dyn Write + Send)),
    Collector(&'a Endpoint),
}

impl Sink<'_> {
    async fn take(
        &mut self,
        store: &dyn RunStore,
        spans: &mut Vec<Span>,
        content: bool,
    ) -> anyhow::Result<()> {
        if spans.is_empty() {
            return Ok(());
        }
        for span in spans.iter_mut() {
            fill(store, span, content).await?;
        }
        let bytes = encode(&resource(), spans);
        spans.clear();
        match self {
            Self::File(file) => file.write_all(&bytes)?,
            Self::Collector(endpoint) => endpoint.post(bytes).await.map_err(|why| {
                let message = format!("the spans were not taken by {}: {why}", endpoint.url());
                Failure::new(ErrorKind::Unavailable, message)
            })?,
        }
        Ok(())
    }
}

/// Writes the spans of a run and of everyone below it; says how many.
pub async fn export(
    store: &dyn RunStore,
    run: RunId,
    content: bool,
    sink: &mut Sink<'_>,
) -> anyhow::Result<u64> {
    let trace = trace_of(store, run).await?;
    let mut runs = VecDeque::from([run]);
    let (mut batch, mut count) = (Vec::new(), 0);
    let root = run;
    while let Some(run) = runs.pop_front() {
        let entry = match store.entry(&run).await {
            Ok(entry) => entry,
            // Announced and never made, or pruned.
            Err(logreel::store::Error::NotFound(_)) if run != root => continue,
            Err(error) => return Err(error.into()),
        };
        match entry.erased {
            true if run != root => continue,
            true => return Err(logreel::store::Error::ErasedRun(run).into()),
            false => {}
        }
        let mut of_run = RunSpans::new(run, trace);
        let mut pages = Pages::new(store, run, Seq::FIRST, entry.row.head.seq);
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                break;
            }
            for record in &page {
                let event = record.decode().map_err(logreel::store::Error::from)?;
                let spans = of_run.take(&event);
                // What a fork shares is told by the run that did it.
                if record.origin.is_some() {
                    continue;
                }
                if let Body::ChildStarted(started) = &event.body {
                    runs.push_back(started.child);
                }
                count += spans.len() as u64;
                batch.extend(spans);
                if batch.len() >= BATCH {
                    sink.take(store, &mut batch, content).await?;
                }
            }
        }
        let status = entry.row.status().to_string();
        let rest = of_run.so_far(entry.row.updated_at, &status);
        count += rest.len() as u64;
        batch.extend(rest);
    }
    sink.take(store, &mut batch, content).await?;
    Ok(count)
}
