//! A run and those that it started, as spans.

use std::io::Write;

use logreel::otlp::Trace;
use logreel::{ErrorKind, RunId, RunStore};

use super::endpoint::{Endpoint, resource};
use crate::error::Failure;

/// Where spans go.
pub enum Sink<'a> {
    File(&'a mut (dyn Write + Send)),
    Collector(&'a Endpoint),
}

/// Writes the spans of a run and of everyone below it; says how many.
pub async fn export(
    store: &dyn RunStore,
    run: RunId,
    content: bool,
    sink: &mut Sink<'_>,
) -> anyhow::Result<u64> {
    let mut trace = Trace::new(store, run, resource(), content).await?;
    while let Some(bytes) = trace.next().await? {
        match sink {
            Sink::File(file) => file.write_all(&bytes)?,
            Sink::Collector(endpoint) => endpoint.post(bytes).await.map_err(|why| {
                let message = format!("the spans were not taken by {}: {why}", endpoint.url());
                Failure::new(ErrorKind::Unavailable, message)
            })?,
        }
    }
    Ok(trace.count())
}
