//! A durable append of one run, one event at a time, alternating with the bare file.

use anyhow::Result;
use logreel_core::event::Durability;

use crate::bare::BareFile;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, rows};
use crate::place::Place;
use crate::work::{Note, PAYLOAD_BYTES, Pen, join, open, scattered_id};

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let events = place.size(2000, 20);
    let warm_ups = place.size(1000, 10);
    let store = open(&place.file("append.db"), Durability::Full)?;
    let owner = join(&store).await?;
    let mut pen = Pen::new(&store, owner, scattered_id()).await?;
    let mut bare = BareFile::create(&place.file("append.bare"), 16)?;
    let bytes = Note::new(0).json()?;
    let bytes = bytes.text().as_bytes();
    for _ in 0..warm_ups {
        pen.write(1).await?;
        bare.append(bytes)?;
    }
    let params = Params {
        runs: 1,
        events,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut p50 = Figure::new("append", "", Metric::P50Us, params).bar(Bar::RatioAtMost(1.5));
    let mut p99 = Figure::new("append", "", Metric::P99Us, params).bar(Bar::RatioAtMost(2.0));
    for _ in 0..place.rounds() {
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..events {
            let append = pen.next(1)?;
            ours.time(pen.send(append)).await?;
            theirs.time_blocking(|| bare.append(bytes))?;
        }
        p50.round(ours.p50(), Some(theirs.p50()));
        p99.round(ours.p99(), Some(theirs.p99()));
    }
    rows([p50, p99])
}
