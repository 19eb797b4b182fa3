//! Spans of runs that are driven here, sent as they end. A collector that is slow or gone costs spans, never a
//! run: nothing waits for it, and what is lost is said once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use logreel::otlp::{RunSpans, Span, encode, fill, trace_of};
use logreel::store::SystemEnv;
use logreel::{Builder, Env as _, Hook, HookEvent, RunId, RunStore, Seq, TaskError};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;

use super::endpoint::{Endpoint, resource};
use crate::reading::Pages;

/// Spans that wait to be sent; more are dropped.
const QUEUE: usize = 4096;
/// Spans that are sent together.
const BATCH: usize = 256;
/// How long a span may wait for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long the process waits at its end for what is left.
const FAREWELL: Duration = Duration::from_secs(3);

/// The sender of this process.
static LIVE: OnceLock<Live> = OnceLock::new();

struct Live {
    queue: Sender<Told>,
    task: Mutex<Option<JoinHandle<()>>>,
}

enum Told {
    Span(Box<Span>),
    /// Nothing comes after this.
    End,
}

/// Follows the runs that the engine drives, when the environment names a collector.
pub fn watch(builder: Builder, store: &Arc<dyn RunStore>) -> Builder {
    let endpoint = match Endpoint::of_environment() {
        None => return builder,
        Some(Ok(endpoint)) => endpoint,
        Some(Err(failure)) => {
            tracing::warn!("{failure}; no spans are sent");
            return builder;
        }
    };
    if LIVE.get().is_some() {
        return builder;
    }
    let (queue, receiver) = mpsc::channel(QUEUE);
    let task = tokio::spawn(send(endpoint, Arc::clone(store), receiver));
    let live = Live {
        queue: queue.clone(),
        task: Mutex::new(Some(task)),
    };
    if LIVE.set(live).is_err() {
        return builder;
    }
    builder.hook(LiveSpans {
        store: Arc::clone(store),
        runs: tokio::sync::Mutex::default(),
        queue,
        told: AtomicBool::new(false),
    })
}

/// Sends what is left, as far as that does not take long.
pub async fn finish() {
    let Some(live) = LIVE.get() else { return };
    let task = live
        .task
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(mut task) = task else { return };
    let farewell = async {
        if live.queue.send(Told::End).await.is_ok()
            && let Err(error) = (&mut task).await
        {
            tracing::warn!(%error, "the sender of spans broke");
        }
    };
    tokio::select! {
        () = farewell => {}
        () = SystemEnv.sleep(FAREWELL) => {
            tracing::warn!("the collector takes too long; the last spans were not sent");
        }
    }
    task.abort();
}

/// Whether what was said may be sent, by the variable of the conventions.
fn with_content() -> bool {
    let name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
    std::env::var(name).is_ok_and(|said| said.eq_ignore_ascii_case("true"))
}

async fn send(endpoint: Endpoint, store: Arc<dyn RunStore>, mut queue: Receiver<Told>) {
    let (resource, content) = (resource(), with_content());
    let mut failed = false;
    let mut ends = false;
    while !ends {
        let mut batch = Vec::new();
        let mut gathered = std::pin::pin!(SystemEnv.sleep(GATHER));
        while batch.len() < BATCH {
            let told = match batch.is_empty() {
                true => queue.recv().await,
                false => tokio::select! {
                    told = queue.recv() => told,
                    () = &mut gathered => break,
                },
            };
            match told {
                Some(Told::Span(span)) => {
                    if batch.is_empty() {
                        gathered.set(SystemEnv.sleep(GATHER));
                    }
                    batch.push(*span);
                }
                Some(Told::End) | None => {
                    ends = true;
                    break;
                }
            }
        }
        for span in &mut batch {
            if let Err(error) = fill(&*store, span, content).await {
                tracing::debug!(%error, "a span lacks what was said");
            }
        }
        if batch.is_empty() {
            continue;
        }
        let sent = endpoint.post(encode(&resource, &batch)).await;
        if let Err(why) = sent
            && !std::mem::replace(&mut failed, true)
        {
            let url = endpoint.url();
            tracing::warn!("spans were not taken by {url}: {why}; the run is not disturbed");
        }
    }
}

/// Turns events into spans as they come.
struct LiveSpans {
    store: Arc<dyn RunStore>,
    runs: tokio::sync::Mutex<HashMap<RunId, RunSpans>>,
    queue: Sender<Told>,
    told: AtomicBool,
}

impl LiveSpans {
    /// A run that was begun by another process: what it did is known from its log, and told by that one.
    async fn caught_up(&self, run: RunId, before: Seq) -> anyhow::Result<RunSpans> {
        let mut spans = RunSpans::new(run, trace_of(&*self.store, run).await?);
        if before > Seq::FIRST {
            let last = Seq(before.0 - 1);
            let mut pages = Pages::new(&*self.store, run, Seq::FIRST, last);
            loop {
                let page = pages.next().await?;
                if page.is_empty() {
                    break;
                }
                for record in &page {
                    let event = record.decode().map_err(logreel::store::Error::from)?;
                    drop(spans.take(&event));
                }
            }
        }
        Ok(spans)
    }
}

#[async_trait]
impl Hook for LiveSpans {
    async fn fire(&self, told: &HookEvent) -> Result<(), TaskError> {
        let (run, event) = (told.run, &told.event);
        let mut runs = self.runs.lock().await;
        let spans = match runs.entry(run) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => match self.caught_up(run, event.seq).await {
                Ok(spans) => unknown.insert(spans),
                Err(error) => {
                    tracing::debug!(%run, %error, "no spans of this run");
                    return Ok(());
                }
            },
        };
        let ended = spans.take(event);
        if spans.has_ended() {
            runs.remove(&run);
        }
        for span in ended {
            let full = self.queue.try_send(Told::Span(Box::new(span))).is_err();
            if full && !self.told.swap(true, Ordering::Relaxed) {
                tracing::warn!("the collector does not keep up; spans are dropped");
            }
        }
        Ok(())
    }
}
