//! What it costs to keep the row of each run in the transaction of its append: many runs at once with
//! it, beside as many in a store that writes the events alone.

use anyhow::Result;
use logreel_store::sqlite::Rows;

use crate::concurrent::{SLICE, many, ours};
use crate::measure::{Bar, Figure, Metric, Params, Row, rows};
use crate::place::Place;
use crate::work::PAYLOAD_BYTES;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let runs = place.size(64, 8);
    let slices = place.size(6, 1);
    let slice = if place.quick { SLICE / 10 } else { SLICE };
    let mut kept = many(&place.file("row-kept.db"), runs, Rows::Kept).await?;
    let mut left = many(&place.file("row-left.db"), runs, Rows::Left).await?;
    ours(&mut kept, slice / 2).await?;
    ours(&mut left, slice / 2).await?;
    let mut measured = Vec::new();
    let mut events = usize::MAX;
    for _ in 0..place.rounds() {
        let (mut with, mut without, mut written) = (0.0, 0.0, 0);
        for _ in 0..slices {
            let (samples, rate) = ours(&mut kept, slice).await?;
            written += samples.len();
            with += rate / slices as f64;
            without += ours(&mut left, slice).await?.1 / slices as f64;
        }
        events = events.min(written);
        measured.push((with, without));
    }
    let params = Params {
        runs,
        events,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut rate =
        Figure::new("row", "kept / left out", Metric::PerS, params).bar(Bar::RatioAtLeast(0.85));
    for (with, without) in measured {
        rate.round(with, Some(without));
    }
    rows([rate])
}
