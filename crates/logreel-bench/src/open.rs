//! From the start of a process to its first durable event, on no store and on one that is there.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use logreel_core::event::Durability;

use crate::child;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::work::{PAYLOAD_BYTES, Pen, join, open, scattered_id};

/// Events in the store that is there.
const EVENTS: usize = 10_000;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let times = place.size(20, 2);
    let there = place.file("open.db");
    {
        let store = open(&there, Durability::Relaxed)?;
        let owner = join(&store).await?;
        let mut pen = Pen::new(&store, owner, scattered_id()).await?;
        for _ in 0..EVENTS / 100 {
            pen.write(100).await?;
        }
    }
    let figure = |case, events| {
        let params = Params {
            runs: 1,
            events,
            payload_bytes: PAYLOAD_BYTES,
        };
        Figure::new("open", case, Metric::Ms, params)
    };
    let mut empty = figure("empty store", 1).bar(Bar::ValueBelow(25.0));
    let mut again = figure("reopened", EVENTS);
    for round in 0..place.rounds() {
        let (mut made, mut reopened) = (Samples::default(), Samples::default());
        for n in 0..times {
            let new = place.file(&format!("open-{round}-{n}.db"));
            start(&new, &mut made)?;
            start(&there, &mut reopened)?;
        }
        empty.round(made.p50() / 1000.0, None);
        again.round(reopened.p50() / 1000.0, None);
    }
    rows([empty, again])
}

fn start(path: &Path, samples: &mut Samples) -> Result<()> {
    let path = path.to_str().context("the path is no text")?;
    let mut command = child::command(&["open", path])?;
    let began = now();
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "the process ended with {}",
        output.status
    );
    let durable = child::times(&output.stdout)?;
    let durable = durable.first().context("the process said nothing")?;
    samples.add(durable.saturating_sub(began));
    Ok(())
}
