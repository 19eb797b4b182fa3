//! A durable step through the engine, from the call to its recorded result. The task itself
//! alternates: one step, one append to the bare file.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use logreel::{Ctx, Engine, Outcome, TaskError};

use crate::bare::BareFile;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, rows};
use crate::place::Place;
use crate::work::{Note, PAYLOAD_BYTES};

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let steps = place.size(2000, 20);
    let warm_ups = place.size(1000, 10);
    let rounds = place.rounds();
    let bare = Arc::new(Mutex::new(BareFile::create(&place.file("step.bare"), 16)?));
    let measured: Arc<Mutex<Vec<(Samples, Samples)>>> = Arc::default();
    let engine = Engine::open(place.file("step.db")).await?;
    let seen = Arc::clone(&measured);
    let task = engine.task("alternate", move |ctx: Ctx, (): ()| {
        let (bare, seen) = (Arc::clone(&bare), Arc::clone(&seen));
        async move {
            let mut n = 0;
            for round in 0..=rounds {
                let (mut ours, mut theirs) = (Samples::default(), Samples::default());
                for _ in 0..if round == 0 { warm_ups } else { steps } {
                    n += 1;
                    let note = ours.time(step(&ctx, n)).await?;
                    let json = note.json()?;
                    let mut bare = bare.lock().unwrap_or_else(PoisonError::into_inner);
                    theirs.time_blocking(|| bare.append(json.text().as_bytes()))?;
                }
                if round > 0 {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((ours, theirs));
                }
            }
            Ok(())
        }
    });
    let outcome = task.start(&()).await?.wait().await?;
    ensure!(outcome == Outcome::Completed(()), "{outcome:?}");
    engine.close().await?;

    let params = Params {
        runs: 1,
        events: steps,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut p50 = Figure::new("step", "", Metric::P50Us, params).bar(Bar::RatioAtMost(1.8));
    let mut p99 = Figure::new("step", "", Metric::P99Us, params);
    for (ours, theirs) in &*measured.lock().unwrap_or_else(PoisonError::into_inner) {
        p50.round(ours.p50(), Some(theirs.p50()));
        p99.round(ours.p99(), Some(theirs.p99()));
    }
    rows([p50, p99])
}

/// A step that does nothing but give its payload.
pub async fn step(ctx: &Ctx, n: u64) -> Result<Note, TaskError> {
    ctx.step(("step", n))
        .run(|| std::future::ready(Ok::<_, TaskError>(Note::new(n))))
        .await
}
