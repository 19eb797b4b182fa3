//! `logreel wait`: until runs have ended, or nobody but a person can go on.

use std::time::Duration;

use logreel::core::event::{Relation, WaitKind};
use logreel::core::row::End;
use logreel::store::SystemEnv;
use logreel::view::RunView;
use logreel::{Entry, Env as _, Filter, RunId, RunStore, Status};
use serde::Serialize;

use crate::output::Output;
use crate::show::print_value;
use crate::store::Place;
use crate::{name, text};

/// A driver that dies rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

const FAILED: u8 = 1;
const WAITS: u8 = 3;
const OUT_OF_TIME: u8 = 124;
const CANCELLED: u8 = 130;

#[derive(clap::Args)]
pub struct Args {
    /// Which runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    /// Wait no longer than this (90s, 15m, 1h30m); then exit with 124
    #[arg(long, value_name = "SPAN", value_parser = text::parse_duration)]
    timeout: Option<Duration>,
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    run: &'a RunView,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let store = &opened.store;
    let mut runs = Vec::with_capacity(args.runs.len());
    for name in &args.runs {
        runs.push(name::resolve(store, name).await?);
    }
    let until = args.timeout.map(|timeout| SystemEnv.monotonic() + timeout);
    let mut codes = Vec::with_capacity(runs.len());
    for run in &runs {
        let (entry, code) = match until {
            None => settled(store, run, out).await?,
            Some(until) => {
                let left = until.saturating_sub(SystemEnv.monotonic());
                match tokio::time::timeout(left, settled(store, run, out)).await {
                    Ok(settled) => settled?,
                    Err(_) => (store.entry(run).await?, OUT_OF_TIME),
                }
            }
        };
        codes.push(code);
        if out.json {
            out.json_line(&Line {
                r#type: "run",
                run: &RunView::of(&entry),
            })?;
        } else if runs.len() > 1 {
            out.line(format!("{run} {}", entry.row.status()))?;
        } else {
            tell_one(store, &entry, code, out).await?;
        }
        out.flush()?;
    }
    let first = [OUT_OF_TIME, FAILED, CANCELLED, WAITS]
        .into_iter()
        .find(|it| codes.contains(it));
    Ok(first.unwrap_or(0))
}

async fn tell_one(
    store: &dyn RunStore,
    entry: &Entry,
    code: u8,
    out: &mut Output,
) -> anyhow::Result<()> {
    let short = entry.row.run.short();
    match entry.row.facts.ended.as_ref().map(|ended| &ended.end) {
        Some(End::Completed { output }) => {
            let output = logreel::value::resolve(store, output).await?;
            print_value(&output, out)?;
        }
        Some(End::Failed { cause }) => {
            out.note(format!(
                "{short} failed: {}",
                text::one_line(&cause.message)
            ));
        }
        Some(End::Cancelled { reason }) => {
            let reason = reason
                .as_deref()
                .map(|why| format!(": {}", text::one_line(why)));
            out.note(format!(
                "{short} was cancelled{}",
                reason.unwrap_or_default()
            ));
        }
        None if code == OUT_OF_TIME => {
            out.note(format!("out of time: {short} is {}", text::status(entry)));
        }
        None => {
            let what = text::waits(&entry.row);
            out.note(format!(
                "{short} waits for someone ({what}): `logreel show {short}`"
            ));
        }
    }
    Ok(())
}

/// Waits until the run has ended or is parked; gives the exit code for it.
async fn settled(store: &dyn RunStore, run: &RunId, out: &Output) -> anyhow::Result<(Entry, u8)> {
    let mut doorbell = store.watch(run);
    let mut told = false;
    loop {
        let entry = store.entry(run).await?;
        match entry.row.status() {
            Status::Completed => return Ok((entry, 0)),
            Status::Failed => return Ok((entry, FAILED)),
            Status::Cancelled => return Ok((entry, CANCELLED)),
            Status::Waiting if is_parked(store, &entry).await? => return Ok((entry, WAITS)),
            _ => {}
        }
        if entry.is_orphaned() && !told {
            told = true;
            out.note(format!(
                "nobody drives {}; it goes on once someone resumes it",
                run.short()
            ));
        }
        tokio::select! {
            _ = doorbell.rung() => {}
            () = SystemEnv.sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Whether only a person can go on: every wait needs one, and the driver has let go. One that waits
/// for a child is parked when the child is.
async fn is_parked(store: &dyn RunStore, entry: &Entry) -> anyhow::Result<bool> {
    let driven = entry.is_driven();
    if driven || entry.row.status() != Status::Waiting {
        return Ok(false);
    }
    let waits = &entry.row.facts.waits;
    if waits.iter().any(|open| open.wait.kind.stops_everything()) {
        return Ok(true);
    }
    let mut for_child = false;
    for open in waits {
        match open.wait.kind {
            WaitKind::Child => for_child = true,
            kind if !kind.needs_person() => return Ok(false),
            _ => {}
        }
    }
    Ok(!for_child || has_parked_child(store, &entry.row.run).await?)
}

async fn has_parked_child(store: &dyn RunStore, run: &RunId) -> anyhow::Result<bool> {
    let filter = Filter {
        parent: Some(*run),
        status: vec![Status::Waiting],
        ..Filter::default()
    };
    let mut cursor = None;
    loop {
        let page = store.list(&filter, cursor.as_ref(), 100).await?;
        for child in &page.items {
            let parent = child.row.facts.parent.as_ref();
            let is_child = parent.is_some_and(|parent| parent.relation == Relation::Child);
            if is_child && Box::pin(is_parked(store, child)).await? {
                return Ok(true);
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(false);
        }
    }
}
