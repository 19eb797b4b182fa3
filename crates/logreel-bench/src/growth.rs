//! A run that grows: what its 10,000th step costs beside its 100th, and how many bytes it takes
//! beside the jsonl export of the same log.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use logreel::view::EventView;
use logreel::{Ctx, Durability, Engine, RunId, Seq, Task};
use logreel_store::RunStore;
use tokio::sync::{mpsc, oneshot};

use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::step::step;
use crate::work::{PAYLOAD_BYTES, open};

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let params = Params {
        runs: 1,
        events: place.size(10_000, 400),
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut figures = vec![time(place, params).await?];
    figures.extend(bytes(place, params).await?);
    rows(figures)
}

/// A run whose steps are asked for one at a time, so that two can take turns.
struct Paced {
    ask: mpsc::Sender<oneshot::Sender<Samples>>,
}

type Asks = mpsc::Receiver<oneshot::Sender<Samples>>;

impl Paced {
    async fn step(&self) -> Result<Samples> {
        let (reply, took) = oneshot::channel();
        self.ask.send(reply).await?;
        Ok(took.await?)
    }

    async fn steps(&self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.step().await?;
        }
        Ok(())
    }
}

/// Waiting for the next start of the task.
type Waiting = Arc<Mutex<Option<Asks>>>;

fn paced_task(engine: &Engine) -> (Task<(), ()>, Waiting) {
    let waiting = Waiting::default();
    let next = Arc::clone(&waiting);
    let task = engine.task("grow", move |ctx: Ctx, (): ()| {
        let asks = next.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            let Some(mut asks) = asks else { return Ok(()) };
            let mut n = 0;
            while let Some(reply) = asks.recv().await {
                n += 1;
                let mut samples = Samples::default();
                samples.time(step(&ctx, n)).await?;
                // Whoever asked has stopped measuring.
                drop(reply.send(samples));
            }
            Ok(())
        }
    });
    (task, waiting)
}

async fn paced(task: &Task<(), ()>, waiting: &Waiting) -> Result<Paced> {
    let (ask, asks) = mpsc::channel(1);
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(asks);
    task.start(&()).await?;
    let paced = Paced { ask };
    // The function has taken its asks once it answers the first.
    paced.step().await?;
    Ok(paced)
}

/// The median around the last step, beside the median around step 100 of a younger run, in turns.
async fn time(place: &Place, params: Params) -> Result<Figure> {
    let (early, window) = (place.size(100, 10), place.size(400, 20));
    let engine = Engine::open(place.file("growth.db")).await?;
    let (task, waiting) = paced_task(&engine);
    let old = paced(&task, &waiting).await?;
    old.steps(params.events - window / 2).await?;
    let mut figure =
        Figure::new("growth", "step", Metric::P50Us, params).bar(Bar::RatioAtMost(1.2));
    for _ in 0..place.rounds() {
        let young = paced(&task, &waiting).await?;
        young.steps(early.saturating_sub(window / 2)).await?;
        let (mut late, mut soon) = (Samples::default(), Samples::default());
        for _ in 0..window {
            late.append(old.step().await?);
            soon.append(young.step().await?);
        }
        figure.round(late.p50(), Some(soon.p50()));
    }
    engine.close().await?;
    Ok(figure)
}

/// Bytes on disk once everything is in the file, beside the export, and beside half the steps.
async fn bytes(place: &Place, params: Params) -> Result<Vec<Figure>> {
    let (stored, exported) = grown(place, params.events).await?;
    let (half, _) = grown(place, params.events / 2).await?;
    let mut export = Figure::new("growth", "disk / jsonl", Metric::BytesRatio, params)
        .bar(Bar::ValueAtMost(1.2));
    export.round(stored as f64 / exported as f64, None);
    let mut linear = Figure::new("growth", "disk / 2 x half", Metric::BytesRatio, params)
        .bar(Bar::ValueAtMost(1.2));
    linear.round(stored as f64 / (2.0 * half as f64), None);
    let mut size = Figure::new("growth", "disk", Metric::Mib, params);
    size.round(stored as f64 / f64::from(1 << 20), None);
    Ok(vec![export, linear, size])
}

/// A store with one run of this many steps: its bytes, and those of the run's export.
async fn grown(place: &Place, steps: usize) -> Result<(u64, u64)> {
    let path = place.file(&format!("growth-{steps}.db"));
    // The bytes are the same without the syncs.
    let engine = Engine::builder()
        .durability(Durability::Relaxed)
        .sqlite(&path)
        .build()
        .await?;
    let task = engine.task("grown", move |ctx: Ctx, (): ()| async move {
        for n in 0..steps as u64 {
            step(&ctx, n).await?;
        }
        Ok(())
    });
    let handle = task.start(&()).await?;
    handle.wait().await?;
    let run = handle.id();
    engine.close().await?;
    // All of them hold the store open.
    drop((handle, task, engine));
    let exported = export(&path, run).await?;
    Ok((on_disk(&path)?, exported))
}

/// The log as JSON lines, counted.
async fn export(path: &Path, run: RunId) -> Result<u64> {
    let store = open(path, Durability::Relaxed)?;
    let key = store.key(&run).await?;
    let (mut from, mut bytes) = (Seq::FIRST, 0);
    loop {
        let page = store.read(&run, from, 1000).await?;
        for record in &page.items {
            let view = EventView::of(run, record, key.as_ref());
            bytes += serde_json::to_string(&view)?.len() as u64 + 1;
        }
        if !page.has_more {
            return Ok(bytes);
        }
        from = page.next;
    }
}

/// The last to close a store moves the WAL into the file.
pub fn on_disk(path: &Path) -> Result<u64> {
    let wal = PathBuf::from(format!("{}-wal", path.display()));
    let began = now();
    // A driver that ends drops its store a moment after the engine was closed.
    while wal.exists() && (now() - began).as_secs() < 5 {
        std::thread::yield_now();
    }
    let bytes = std::fs::metadata(path).context("the store is gone")?.len();
    Ok(bytes + std::fs::metadata(&wal).map_or(0, |wal| wal.len()))
}
