//! From a durable append to whoever follows the run: in the same process, and in another one.
//!
//! The bars are for the time after the acknowledgement; beside it stands the time from the call,
//! which has the sync in it that `append` measures.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use logreel::{Engine, RunHandle, Seq};
use logreel_core::Json;
use logreel_core::event::Durability;
use logreel_store::{Env, SqliteStore, SystemEnv};

use crate::child;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::work::{PAYLOAD_BYTES, Pen, join, open, scattered_id};

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let events = place.size(300, 10);
    let path = place.file("tail.db");
    let store = open(&path, Durability::Full)?;
    let owner = join(&store).await?;
    let params = Params {
        runs: 1,
        events,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut here = Figures::new("same process", params, 500.0);
    let mut there = Figures::new("another process", params, 10_000.0);
    for _ in 0..place.rounds() {
        let mut pen = Pen::new(&store, owner, scattered_id()).await?;
        here.round(&same_process(&store, &mut pen, events).await?);
        let mut pen = Pen::new(&store, owner, scattered_id()).await?;
        there.round(&another_process(&path, &mut pen, events).await?);
    }
    rows(here.0.into_iter().chain(there.0))
}

/// After the acknowledgement, p50 and p99, then the same from the call.
struct Figures([Figure; 4]);

impl Figures {
    fn new(case: &str, params: Params, bar_us: f64) -> Self {
        let figure = |case: &str, metric| Figure::new("tail", case, metric, params);
        let from_call = format!("{case}, from the call");
        Self([
            figure(case, Metric::P50Us).bar(Bar::ValueBelow(bar_us)),
            figure(case, Metric::P99Us),
            figure(&from_call, Metric::P50Us),
            figure(&from_call, Metric::P99Us),
        ])
    }

    fn round(&mut self, times: &Times) {
        let [p50, p99, call_p50, call_p99] = &mut self.0;
        p50.round(times.acked.p50(), None);
        p99.round(times.acked.p99(), None);
        call_p50.round(times.called.p50(), None);
        call_p99.round(times.called.p99(), None);
    }
}

/// Until an event was seen.
#[derive(Default)]
struct Times {
    called: Samples,
    acked: Samples,
}

async fn same_process(store: &Arc<SqliteStore>, pen: &mut Pen, events: usize) -> Result<Times> {
    let engine = Engine::builder()
        .store(Arc::clone(store) as Arc<_>)
        .build()
        .await?;
    let from = pen.head().seq.next();
    let follower = tokio::spawn(follow(engine.run(pen.run), from, events));
    let sent = send(pen, events).await?;
    times(&sent, &follower.await??)
}

async fn another_process(path: &std::path::Path, pen: &mut Pen, events: usize) -> Result<Times> {
    let path = path.to_str().context("the path is no text")?;
    let from = pen.head().seq.next();
    let args = ["follow", path, &pen.run.to_string(), &from.to_string()];
    let process = child::command(&args)?
        .arg(events.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    // It must follow before the first append, or it measures how long it took to start.
    SystemEnv.sleep(Duration::from_millis(300)).await;
    let sent = send(pen, events).await?;
    let output = process.wait_with_output()?;
    ensure!(
        output.status.success(),
        "the follower ended with {}",
        output.status
    );
    let seen = child::times(&output.stdout)?;
    times(&sent, &seen)
}

/// Appends at odd moments, so that no poller is met in step; gives when each append was called and
/// when it was acknowledged.
async fn send(pen: &mut Pen, events: usize) -> Result<Vec<(Duration, Duration)>> {
    let mut sent = Vec::with_capacity(events);
    for _ in 0..events {
        let pause = Duration::from_micros(2000 + SystemEnv.random_u64() % 6000);
        SystemEnv.sleep(pause).await;
        let append = pen.next(1)?;
        let called = now();
        pen.send(append).await?;
        sent.push((called, now()));
    }
    Ok(sent)
}

/// Follows a run and gives when each event was in hand, decoded.
pub async fn follow(run: RunHandle<Json>, from: Seq, events: usize) -> Result<Vec<Duration>> {
    let mut stream = run.events(from);
    let mut seen = Vec::with_capacity(events);
    while seen.len() < events {
        stream.next().await.context("the run ended")??;
        seen.push(now());
    }
    Ok(seen)
}

fn times(sent: &[(Duration, Duration)], seen: &[Duration]) -> Result<Times> {
    ensure!(sent.len() == seen.len(), "not every event was seen");
    let mut times = Times::default();
    for ((called, acked), seen) in sent.iter().zip(seen) {
        times.called.add(seen.saturating_sub(*called));
        // The follower may be the faster one.
        times.acked.add(seen.saturating_sub(*acked));
    }
    Ok(times)
}
