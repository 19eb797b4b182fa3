//! What the server counts, as Prometheus reads it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::call::Call;
use crate::operation::Answered;
use crate::{Problem, answer};

/// How long a scrape waits for the store to be counted; then it tells what was counted before.
const COUNTING: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answering {
    method: String,
    route: &'static str,
    status: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WithStatus {
    status: &'static str,
}

pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Answering, Histogram>,
    watching: Gauge,
    runs: Family<WithStatus, Gauge>,
    events: Gauge<u64, AtomicU64>,
    blobs: Gauge<u64, AtomicU64>,
    driving: Gauge,
    /// When the store was counted.
    counted: Gauge,
    /// Held by whoever counts.
    counting: Arc<tokio::sync::Mutex<()>>,
}

/// Counts one who watches, for as long as it lives.
pub(crate) struct Watching(Gauge);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_25, 4.0, 9));
        let requests = Family::new_with_constructor(histogram);
        let mut registry = Registry::with_prefix("logreel");
        let (watching, driving) = (Gauge::default(), Gauge::default());
        let counted: Gauge = Gauge::default();
        let (events, blobs) = (Gauge::default(), Gauge::default());
        let runs: Family<WithStatus, Gauge> = Family::default();
        registry.register(
            "http_request_duration_seconds",
            "Requests by route and status, until the answer began",
            requests.clone(),
        );
        registry.register(
            "sse_clients",
            "Streams of events that are open",
            watching.clone(),
        );
        registry.register(
            "driven_runs",
            "Runs that this process drives",
            driving.clone(),
        );
        registry.register("runs", "Runs in the store, by status", runs.clone());
        registry.register("events", "Events in the store", events.clone());
        registry.register("blobs", "Blobs in the store", blobs.clone());
        registry.register(
            "counted_timestamp_seconds",
            "When runs, events and blobs were counted; 0 before the first time",
            counted.clone(),
        );
        Self {
            registry,
            requests,
            watching,
            runs,
            events,
            blobs,
            driving,
            counted,
            counting: Arc::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn answered(
        &self,
        method: &Method,
        route: &'static str,
        status: u16,
        took: Duration,
    ) {
        // A name that nobody uses must not make a series of its own.
        let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
        let method = known.into_iter().find(|it| method.as_str() == *it);
        let labels = Answering {
            method: method.unwrap_or("other").to_owned(),
            route,
            status: status.into(),
        };
        self.requests
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn watching(&self) -> Watching {
        self.watching.inc();
        Watching(self.watching.clone())
    }
}

/// Counts what is in the store, whoever waits for it; one at a time, because it takes as long as the store is
/// large.
async fn count(app: App) {
    let Ok(counting) = app.metrics.counting.clone().try_lock_owned() else {
        // Whoever comes meanwhile waits for the same numbers.
        return drop(app.metrics.counting.lock().await);
    };
    let counted = tokio::spawn(async move {
        let (metrics, _counting) = (&app.metrics, counting);
        let stats = match app.engine.store().stats().await {
            Ok(stats) => stats,
            Err(error) => {
                tracing::warn!(%error, "the metrics tell what was counted before");
                return;
            }
        };
        for (status, count) in stats.runs {
            let labels = WithStatus {
                status: status.as_str(),
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            metrics.runs.get_or_create(&labels).set(count);
        }
        metrics.events.set(stats.events);
        metrics.blobs.set(stats.blobs);
        let at = app.engine.env().now().as_micros();
        metrics.counted.set(at / 1_000_000);
    });
    if let Err(error) = counted.await {
        tracing::warn!(%error, "the store was not counted");
    }
}

/// `GET /metrics`
pub(crate) async fn answer(call: Call) -> Answered {
    let metrics = &call.app.metrics;
    let engine = &call.app.engine;
    tokio::select! {
        () = count(call.app.clone()) => {}
        () = engine.env().sleep(COUNTING) => {}
    }
    let driving = i64::try_from(engine.driving()).unwrap_or(i64::MAX);
    metrics.driving.set(driving);
    let mut text = String::new();
    encode(&mut text, &metrics.registry).map_err(|error| {
        Problem::new(
            logreel::ErrorKind::Bug,
            format!("the metrics were not written: {error}"),
        )
    })?;
    Ok(answer::of_type(
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        Body::from(text),
    ))
}
