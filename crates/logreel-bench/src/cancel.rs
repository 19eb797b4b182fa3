//! A cancel from another process beside a writer that never rests: 64 runs of this process append as
//! fast as they are acknowledged, and a child process cancels runs that nobody drives.

use std::future::IntoFuture as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use logreel::{CancelOutcome, Engine, RunId};
use logreel_core::event::Durability;
use logreel_store::{Env, NewRun, RunStore, SqliteStore, SystemEnv};

use crate::child;
use crate::concurrent;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, rows};
use crate::place::Place;
use crate::work::{PAYLOAD_BYTES, Pen, join, open, scattered_id, started};

/// How long the writer goes on before it asks whether the child is done.
const SLICE: Duration = Duration::from_millis(100);

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let runs = place.size(64, 8);
    let cancels = place.size(300, 5);
    let path = place.file("cancel.db");
    let store = open(&path, Durability::Full)?;
    let owner = join(&store).await?;
    let mut pens = Vec::new();
    for _ in 0..runs {
        pens.push(Pen::new(&store, owner, scattered_id()).await?);
    }
    let params = Params {
        runs,
        events: cancels,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut p50 = Figure::new("cancel", "", Metric::P50Us, params);
    let mut p99 = Figure::new("cancel", "", Metric::P99Us, params).bar(Bar::ValueBelow(50_000.0));
    for _ in 0..place.rounds() {
        let victims = victims(&store, cancels).await?;
        let path = path.to_str().context("the path is no text")?;
        let mut command = child::command(&["cancel", path])?;
        command.args(victims.iter().map(RunId::to_string));
        let times = beside(&mut pens, command).await?;
        ensure!(times.len() == cancels, "not every cancel was timed");
        p50.round(times.p50(), None);
        p99.round(times.p99(), None);
    }
    rows([p50, p99])
}

/// Runs to be cancelled, which nobody drives.
async fn victims(store: &SqliteStore, many: usize) -> Result<Vec<RunId>> {
    let mut victims = Vec::with_capacity(many);
    for _ in 0..many {
        let run = scattered_id();
        let new = NewRun {
            run,
            started: started("victim"),
            blobs: Vec::new(),
            owner: None,
            then: Vec::new(),
        };
        store.create(new).await?;
        victims.push(run);
    }
    Ok(victims)
}

/// Keeps the writer busy until the child is done; what the child measured.
async fn beside(pens: &mut Vec<Pen>, mut command: Command) -> Result<Samples> {
    let mut process = command.stdout(Stdio::piped()).spawn()?;
    while process.try_wait()?.is_none() {
        concurrent::ours(pens, SLICE).await?;
    }
    let output = process.wait_with_output()?;
    ensure!(
        output.status.success(),
        "the canceller ended with {}",
        output.status
    );
    let mut samples = Samples::default();
    for took in child::times(&output.stdout)? {
        samples.add(took);
    }
    Ok(samples)
}

/// The child: cancels at odd moments and gives how long each took.
pub async fn cancel_all(engine: &Engine, victims: &[RunId]) -> Result<Samples> {
    let mut samples = Samples::default();
    for run in victims {
        let pause = Duration::from_micros(500 + SystemEnv.random_u64() % 4000);
        SystemEnv.sleep(pause).await;
        let outcome = samples
            .time(engine.cancel(run, "bench").into_future())
            .await?;
        ensure!(outcome == CancelOutcome::Requested, "{outcome:?}");
    }
    Ok(samples)
}
