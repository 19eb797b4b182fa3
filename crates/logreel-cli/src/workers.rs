//! `logreel workers`: who drives the runs of this store, and who would.

use std::collections::BTreeMap;

use logreel::Env as _;
use logreel::store::{OwnerInfo, SystemEnv};
use serde_json::{Value, json};

use crate::output::{Output, Page, Paint};
use crate::store::Place;
use crate::table::{self, Cell, Column, left, right};
use crate::text;

const COLUMNS: &[Column] = &[
    left("HOST", 24),
    right("PID", 8),
    left("KIND", 8),
    left("VERSION", 10),
    right("RUNNING", 8),
    right("OF", 5),
    left("LABELS", 24),
    right("HEARD", 6),
    left("STATE", 8),
];

pub async fn run(place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let owners = opened.store.owners().await?;
    if out.json {
        out.json_line(&Page {
            items: owners.iter().map(view).collect(),
            next: None,
            has_more: false,
        })?;
        return Ok(0);
    }
    if owners.is_empty() {
        out.note(format!(
            "nobody drives runs of {}: `logreel worker` does",
            opened.kept.shown()
        ));
        return Ok(0);
    }
    let rows: Vec<Vec<Cell>> = owners.iter().map(row).collect();
    table::print(out, "", COLUMNS, &rows)?;
    Ok(0)
}

fn row(info: &OwnerInfo) -> Vec<Cell> {
    let duty = info.duty.as_ref();
    let labels = duty.map_or_else(String::new, |duty| {
        let labels = duty.labels.iter();
        let labels = labels.map(|(name, value)| format!("{name}={value}"));
        labels.collect::<Vec<_>>().join(" ")
    });
    let of = duty.and_then(|duty| duty.concurrency);
    let heard = info.silent.map(text::age);
    vec![
        text::one_line(&info.owner.host_name).into(),
        info.owner.pid.to_string().into(),
        duty.map_or("", |duty| duty.kind.as_str()).into(),
        duty.map_or_else(String::new, |duty| text::one_line(&duty.version))
            .into(),
        info.running.to_string().into(),
        of.map_or_else(String::new, |of| of.to_string()).into(),
        text::one_line(&labels).into(),
        heard.unwrap_or_default().into(),
        match state(info) {
            "gone" => Cell::painted("gone", Paint::Bad),
            other => other.into(),
        },
    ]
}

fn state(info: &OwnerInfo) -> &'static str {
    match &info.duty {
        _ if !info.alive => "gone",
        Some(duty) if duty.leaving => "leaving",
        _ => "alive",
    }
}

fn view(info: &OwnerInfo) -> Value {
    let duty = info.duty.as_ref();
    let labels = duty.map_or(&[][..], |duty| &duty.labels[..]);
    let labels: BTreeMap<&str, &str> = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
    let heard = info.silent.map(|silent| {
        let micros = i64::try_from(silent.as_micros()).unwrap_or(i64::MAX);
        logreel::Timestamp::from_micros(SystemEnv.now().as_micros().saturating_sub(micros))
    });
    json!({
        "id": info.owner.id.to_string(), "host": info.owner.host_name, "pid": info.owner.pid,
        "kind": duty.map(|duty| duty.kind.as_str()), "version": duty.map(|duty| &duty.version),
        "running": info.running, "concurrency": duty.and_then(|duty| duty.concurrency),
        "labels": labels, "last_heartbeat_at": heard, "state": state(info),
    })
}
