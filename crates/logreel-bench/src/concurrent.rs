//! Many runs at once, each waiting for its acknowledgement before it goes on, beside as many tasks
//! that append to one group-committed bare file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use logreel_core::event::Durability;
use logreel_store::sqlite::Rows;
use logreel_store::{NewRun, RunStore};
use tokio::task::JoinSet;

use crate::bare::GroupFile;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::work::{Note, PAYLOAD_BYTES, Pen, join, open, open_with, scattered_id, started};

/// Live runs that rest between two that work, so that their rows lie on many pages.
const RESTING: usize = 31;
/// Product and reference take turns of this length.
pub const SLICE: Duration = Duration::from_millis(500);

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let runs = place.size(64, 8);
    let slices = place.size(6, 1);
    let slice = if place.quick { SLICE / 10 } else { SLICE };
    let mut working = many(&place.file("concurrent.db"), runs, Rows::Kept).await?;
    let (group, _helper) = GroupFile::create(&place.file("concurrent.bare"), 64)?;
    let params = Params {
        runs,
        events: 0,
        payload_bytes: PAYLOAD_BYTES,
    };
    ours(&mut working, slice / 2).await?;
    theirs(&group, runs, slice / 2).await?;

    let mut measured = Vec::new();
    for _ in 0..place.rounds() {
        let mut latencies = Samples::default();
        let (mut written, mut reference) = (0.0, 0.0);
        for _ in 0..slices {
            let (samples, rate) = ours(&mut working, slice).await?;
            latencies.append(samples);
            written += rate / slices as f64;
            reference += theirs(&group, runs, slice).await? / slices as f64;
        }
        measured.push((latencies, written, reference));
    }
    let events = measured.iter().map(|(samples, ..)| samples.len()).min();
    let params = Params {
        events: events.unwrap_or(0),
        ..params
    };
    let mut rate = Figure::new("concurrent", "", Metric::PerS, params).bar(Bar::RatioAtLeast(0.22));
    let mut stretch =
        Figure::new("concurrent", "stretch", Metric::PerS, params).bar(Bar::RatioAtLeast(0.45));
    let mut p50 = Figure::new("concurrent", "", Metric::P50Us, params);
    let mut p99 = Figure::new("concurrent", "", Metric::P99Us, params).bar(Bar::ValueBelow(8000.0));
    for (latencies, written, reference) in measured {
        rate.round(written, Some(reference));
        stretch.round(written, Some(reference));
        p50.round(latencies.p50(), None);
        p99.round(latencies.p99(), None);
    }
    rows([rate, stretch, p50, p99])
}

/// Runs to append to, among others that rest.
pub async fn many(path: &Path, runs: usize, rows: Rows) -> Result<Vec<Pen>> {
    // What only fills the tables need not be synced run by run.
    {
        let store = open(path, Durability::Relaxed)?;
        let mut tasks = JoinSet::new();
        for _ in 0..runs {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for _ in 0..RESTING {
                    store.create(resting()).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
    }
    let store = open_with(path, Durability::Full, rows)?;
    let owner = join(&store).await?;
    let mut working = Vec::new();
    for _ in 0..runs {
        working.push(Pen::new(&store, owner, scattered_id()).await?);
        for _ in 0..RESTING.min(3) {
            store.create(resting()).await?;
        }
    }
    Ok(working)
}

fn resting() -> NewRun {
    NewRun {
        run: scattered_id(),
        started: started("resting"),
        blobs: Vec::new(),
        owner: None,
        then: Vec::new(),
    }
}

/// A slice of ours: the latencies, and events per second.
pub async fn ours(pens: &mut Vec<Pen>, slice: Duration) -> Result<(Samples, f64)> {
    let mut tasks = JoinSet::new();
    let began = now();
    let until = began + slice;
    for mut pen in pens.drain(..) {
        tasks.spawn(async move {
            let mut samples = Samples::default();
            while now() < until {
                let append = pen.next(1)?;
                samples.time(pen.send(append)).await?;
            }
            anyhow::Ok((pen, samples))
        });
    }
    let mut all = Samples::default();
    while let Some(done) = tasks.join_next().await {
        let (pen, samples) = done??;
        pens.push(pen);
        all.append(samples);
    }
    let rate = all.len() as f64 / (now() - began).as_secs_f64();
    Ok((all, rate))
}

/// A slice of the reference: events per second.
pub async fn theirs(group: &Arc<GroupFile>, waiters: usize, slice: Duration) -> Result<f64> {
    let mut tasks = JoinSet::new();
    let began = now();
    let until = began + slice;
    for _ in 0..waiters {
        let group = Arc::clone(group);
        tasks.spawn(async move {
            let mut written = 0_u64;
            while now() < until {
                // Making the payload is part of both sides.
                let json = Note::new(written).json()?;
                group.append(json.text().as_bytes()).await?;
                written += 1;
            }
            anyhow::Ok(written)
        });
    }
    let mut all = 0;
    while let Some(done) = tasks.join_next().await {
        all += done??;
    }
    Ok(all as f64 / (now() - began).as_secs_f64())
}
