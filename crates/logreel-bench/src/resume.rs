//! From a resume to the run's next action: claim, fold, call the function again, give it its recorded
//! results, and call the function of the first step that has none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use logreel::{Ctx, Engine, RunId, Task, TaskError};
use tokio::sync::mpsc;

use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::step::step;
use crate::work::{Note, PAYLOAD_BYTES};

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let steps = place.size(1000, 20);
    let times = place.size(20, 2);
    let path = place.file("resume.db");
    let params = Params {
        runs: 1,
        events: steps,
        payload_bytes: PAYLOAD_BYTES,
    };
    let run = {
        let engine = Engine::open(&path).await?;
        let (task, mut reached) = task(&engine, steps);
        let run = task.start(&()).await?.id();
        reached.recv().await.context("the task ended")?;
        engine.close().await?;
        run
    };
    let mut p50 = Figure::new("resume", "", Metric::Ms, params).bar(Bar::ValueBelow(20.0));
    let mut p99 = Figure::new("resume", "p99", Metric::Ms, params);
    for _ in 0..place.rounds() {
        let mut samples = Samples::default();
        for _ in 0..times {
            samples.add(once(&path, run, steps).await?);
        }
        p50.round(samples.p50() / 1000.0, None);
        p99.round(samples.p99() / 1000.0, None);
    }
    rows([p50, p99])
}

/// A fresh store each time, as after a crash: nothing of the run is in memory.
async fn once(path: &std::path::Path, run: RunId, steps: usize) -> Result<Duration> {
    let engine = Engine::open(path).await?;
    let (_task, mut reached) = task(&engine, steps);
    let began = now();
    engine.resume(&run).await?;
    let acted = reached.recv().await.context("the task ended")?;
    engine.close().await?;
    Ok(acted.saturating_sub(began))
}

/// A task that asks for its steps, does one more in each driver's life, and says when that began.
fn task(engine: &Engine, steps: usize) -> (Task<(), ()>, mpsc::UnboundedReceiver<Duration>) {
    let (acts, reached) = mpsc::unbounded_channel();
    let acts = Arc::new(Mutex::new(acts));
    let task = engine.task("resume", move |ctx: Ctx, (): ()| {
        let acts = Arc::clone(&acts);
        async move {
            for n in 0..steps as u64 {
                step(&ctx, n).await?;
            }
            let next = ("next", ctx.attempt());
            let act = || {
                let acts = acts.lock().unwrap_or_else(PoisonError::into_inner);
                if acts.send(now()).is_err() {
                    eprintln!("nobody measures this resume any more");
                }
                std::future::ready(Ok::<_, TaskError>(Note::new(0)))
            };
            ctx.step(next).run(act).await?;
            std::future::pending().await
        }
    });
    (task, reached)
}
