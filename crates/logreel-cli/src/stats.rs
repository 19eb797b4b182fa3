//! `logreel stats`: how much there is.

use serde_json::{Map, Value, json};

use crate::output::Output;
use crate::store::Place;
use crate::text;

pub async fn run(place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let stats = opened.store.stats().await?;
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
    Ok(0)
}
