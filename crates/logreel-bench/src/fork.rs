//! A fork of a long run near its end: what it shares is folded, and nothing of it is copied.

use anyhow::{Context, Result};
use logreel::{Ctx, Engine, ForkPoint, Seq};

use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::step::step;
use crate::work::PAYLOAD_BYTES;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let events = place.size(10_000, 100);
    let times = place.size(20, 2);
    let params = Params {
        runs: 1,
        events,
        payload_bytes: PAYLOAD_BYTES,
    };
    let engine = Engine::open(place.file("fork.db")).await?;
    // Event 1, the phase and the end are the others.
    let steps = events as u64 - 3;
    let task = engine.task("long", move |ctx: Ctx, (): ()| async move {
        for n in 0..steps {
            step(&ctx, n).await?;
        }
        Ok(())
    });
    let run = task.start(&()).await?;
    run.wait().await?;
    let at = ForkPoint::At(Seq(events as u64 * 9 / 10));
    let mut made = Figure::new("fork", "", Metric::Ms, params).bar(Bar::ValueBelow(50.0));
    let mut looked = Figure::new("fork", "with the list of writes", Metric::Ms, params);
    for _ in 0..place.rounds() {
        let (mut alone, mut with_list) = (Samples::default(), Samples::default());
        for _ in 0..times {
            let began = now();
            let fork = engine.fork(&run.id(), at.clone()).queue().await;
            alone.add(now().saturating_sub(began));
            fork.context("the fork was not made")?;
            let began = now();
            let mut fork = engine.fork(&run.id(), at.clone()).queue();
            fork.look().await?;
            fork.await?;
            with_list.add(now().saturating_sub(began));
        }
        made.round(alone.p50() / 1000.0, None);
        looked.round(with_list.p50() / 1000.0, None);
    }
    engine.close().await?;
    rows([made, looked])
}
