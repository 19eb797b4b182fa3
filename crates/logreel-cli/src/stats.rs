//! `logreel stats`: how much there is.

use std::time::Duration;

use logreel::RunId;
use serde_json::{Map, Value, json};

use crate::output::Output;
use crate::store::Place;
use crate::text;

pub async fn run(place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let stats = opened.store.stats().await?;
    let backlog = opened.store.backlog().await?;
    let total: u64 = stats.runs.iter().map(|(_, count)| count).sum();
    if out.json {
        let runs: Map<String, Value> = stats
            .runs
            .iter()
            .map(|(status, count)| (status.to_string(), Value::from(*count)))
            .collect();
        out.json_line(&json!({
            "store": opened.kept.shown(), "runs": total, "runs_by_status": runs,
            "events": stats.events, "blobs": stats.blobs, "blob_bytes": stats.blob_bytes,
            "disk_bytes": stats.disk_bytes,
            "ready": backlog.ready,
            "lag_ms": backlog.oldest_ready.map(|(_, age)| millis(age)),
            "oldest_ready": backlog.oldest_ready.map(|(run, _)| run),
            "orphans": backlog.orphans,
            "oldest_orphan": backlog.oldest_orphan.map(|(run, _)| run),
            "oldest_orphan_ms": backlog.oldest_orphan.map(|(_, age)| millis(age)),
            "claim_latency": {
                "runs": backlog.claims.len(),
                "p50_ms": backlog.claim_at(0.5).map(millis),
                "p99_ms": backlog.claim_at(0.99).map(millis),
                "max_ms": backlog.claims.last().copied().map(millis),
            },
        }))?;
        return Ok(0);
    }
    let by_status: Vec<String> = stats
        .runs
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(status, count)| format!("{count} {status}"))
        .collect();
    let split = match by_status.as_slice() {
        [] => String::new(),
        some => format!(" ({})", some.join(", ")),
    };
    out.line(format!("store   {}", opened.kept.shown()))?;
    out.line(format!("runs    {total}{split}"))?;
    out.line(format!("events  {}", stats.events))?;
    out.line(format!(
        "blobs   {} ({})",
        stats.blobs,
        text::bytes(stats.blob_bytes)
    ))?;
    if let Some(bytes) = stats.disk_bytes {
        out.line(format!("disk    {}", text::bytes(bytes)))?;
    }
    let oldest = |oldest: Option<(RunId, Duration)>| match oldest {
        Some((run, age)) => format!(", {} since {}", run.short(), text::age(age)),
        None => String::new(),
    };
    let first = oldest(backlog.oldest_ready);
    out.line(format!("ready   {}{first}", backlog.ready))?;
    let first = oldest(backlog.oldest_orphan);
    out.line(format!("orphans {}{first}", backlog.orphans))?;
    if let (Some(half), Some(most)) = (backlog.claim_at(0.5), backlog.claim_at(0.99)) {
        out.line(format!(
            "claimed after {} (p50), {} (p99) in the last {}",
            text::duration(half),
            text::duration(most),
            text::count(backlog.claims.len() as u64, "queued run")
        ))?;
    }
    Ok(0)
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}
