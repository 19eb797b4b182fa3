//! Folding a log: events that are decoded already, then from the store, for one long run and for
//! runs that were written at the same time and lie scattered in the file.

use std::hint::black_box;
use std::ops::ControlFlow;

use anyhow::{Context, Result, ensure};
use logreel_core::event::{Durability, Phase, PhaseEntered};
use logreel_core::{Body, Digest, Epoch, Event, RunId, RunState, Seq, replay};
use logreel_store::{Env, RunStore, SqliteStore, SystemEnv};
use tokio::task::JoinSet;

use crate::measure::{Bar, Figure, Metric, Params, Row, now, rows};
use crate::place::Place;
use crate::work::{PAYLOAD_BYTES, Pen, finished, join, open, scattered_id, started};

/// Events per append while a log is filled.
const AT_ONCE: usize = 100;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let events = place.size(200_000, 2000);
    let many = place.size(64, 8);
    let params = |runs| Params {
        runs,
        events,
        payload_bytes: PAYLOAD_BYTES,
    };
    let figure = |case, runs, bar| {
        Figure::new("fold", case, Metric::PerS, params(runs)).bar(Bar::ValueAtLeast(bar))
    };
    let mut decoded = figure("decoded", 1, 5e6);
    let mut alone = figure("sqlite, one run", 1, 1e6);
    let mut interleaved = figure("sqlite, interleaved", many, 4e5);

    let log = log(events)?;
    let long = place.file("fold-long.db");
    let long_run = fill(&long, 1, events, AT_ONCE).await?;
    let mixed = place.file("fold-mixed.db");
    let mixed_runs = fill(&mixed, many, events / many, 1).await?;
    for _ in 0..place.rounds() {
        let run = scattered_id();
        let began = now();
        let state = replay(run, black_box(&log))?.context("the log has events")?;
        let took = now() - began;
        ensure!(state.steps.len() == events - 2, "not all steps were folded");
        decoded.round(events as f64 / took.as_secs_f64(), None);
        drop(state);
        alone.round(fold_all(&long, &long_run).await?, None);
        interleaved.round(fold_all(&mixed, &mixed_runs).await?, None);
    }
    rows([decoded, alone, interleaved])
}

/// A log in memory as a run of many short steps leaves it.
fn log(events: usize) -> Result<Vec<Event>> {
    let mut log = Vec::with_capacity(events);
    for at in 0..events {
        let body: Body = match at {
            0 => started("fold").into(),
            1 => PhaseEntered {
                phase: Phase::Executing,
            }
            .into(),
            n => finished(n as u64)?.into(),
        };
        log.push(Event {
            seq: Seq(at as u64 + 1),
            at: SystemEnv.now(),
            caller_at: None,
            epoch: Epoch::NONE.next(),
            late: false,
            digest: Digest([0; 32]),
            body,
        });
    }
    Ok(log)
}

/// A store with some runs that were written side by side.
async fn fill(
    path: &std::path::Path,
    runs: usize,
    events: usize,
    at_once: usize,
) -> Result<Vec<RunId>> {
    let store = open(path, Durability::Relaxed)?;
    let owner = join(&store).await?;
    let mut tasks = JoinSet::new();
    for _ in 0..runs {
        let mut pen = Pen::new(&store, owner, scattered_id()).await?;
        tasks.spawn(async move {
            for _ in 0..events / at_once {
                pen.write(at_once).await?;
            }
            anyhow::Ok(pen.run)
        });
    }
    let mut filled = Vec::new();
    while let Some(done) = tasks.join_next().await {
        filled.push(done??);
    }
    Ok(filled)
}

/// Reads, decodes and folds each run, as a driver that takes it over does: events per second.
async fn fold_all(path: &std::path::Path, runs: &[RunId]) -> Result<f64> {
    let store = open(path, Durability::Relaxed)?;
    let mut events = 0;
    let began = now();
    for run in runs {
        events += fold_one(&store, *run).await?;
    }
    Ok(events as f64 / (now() - began).as_secs_f64())
}

async fn fold_one(store: &SqliteStore, run: RunId) -> Result<u64> {
    let mut state: Option<RunState> = None;
    let mut folded = Ok(());
    let mut each = |event: Event| {
        folded = match &mut state {
            None => RunState::begin(run, &event).map(|first| state = Some(first)),
            Some(state) => state.apply(&event),
        };
        match &folded {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    store.scan(&run, Seq::FIRST, &mut each).await?;
    folded?;
    Ok(state.context("a run has events")?.row.head.seq.0)
}
