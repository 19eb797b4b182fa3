//! What the server counts, as Prometheus reads it.

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

use crate::call::Call;
use crate::operation::Answered;
use crate::{Problem, answer};

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
        Self {
            registry,
            requests,
            watching,
            runs,
            events,
            blobs,
            driving,
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

/// `GET /metrics`
pub(crate) async fn answer(call: Call) -> Answered {
    let metrics = &call.app.metrics;
    let engine = &call.app.engine;
    let stats = engine.store().stats().await?;
    for (status, count) in stats.runs {
        let labels = WithStatus {
            status: status.as_str(),
        };
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        metrics.runs.get_or_create(&labels).set(count);
    }
    metrics.events.set(stats.events);
    metrics.blobs.set(stats.blobs);
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
