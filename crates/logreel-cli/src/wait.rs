//! `logreel wait`: until runs have ended, or nobody but a person can go on.

use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::view::RunView;
use logreel::{Entry, Env as _, RunId, RunStore};

use crate::output::Output;
use crate::patience::Patience;
use crate::settle::{self, CANCELLED, FAILED, WAITS};
use crate::store::Place;
use crate::{name, outcome, text};

/// A driver that dies rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

const OUT_OF_TIME: u8 = 124;

#[derive(clap::Args)]
pub struct Args {
    /// Which runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    /// Wait no longer than this (90s, 15m, 1h30m); then exit with 124
    #[arg(long, value_name = "SPAN", value_parser = text::parse_duration)]
    timeout: Option<Duration>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let store = &*opened.store;
    let mut runs = Vec::with_capacity(args.runs.len());
    for name in &args.runs {
        runs.push(name::resolve(store, name).await?);
    }
    let until = args.timeout.map(|timeout| SystemEnv.monotonic() + timeout);
    let mut codes = Vec::with_capacity(runs.len());
    for run in &runs {
        let mut seen = None;
        let settling = settled(store, run, out, &mut seen);
        let settled = match until {
            None => Some(settling.await),
            Some(until) => {
                let left = until.saturating_sub(SystemEnv.monotonic());
                tokio::time::timeout(left, settling).await.ok()
            }
        };
        let (entry, code) = match (settled, seen) {
            (Some(settled), _) => settled?,
            // As it was a moment ago, or before the store went away.
            (None, Some(entry)) => (entry, OUT_OF_TIME),
            (None, None) => (store.entry(run).await?, OUT_OF_TIME),
        };
        codes.push(code);
        if out.json {
            out.json_line(&outcome::Line::run(&RunView::of(&entry)))?;
        } else if runs.len() > 1 {
            out.line(format!("{run} {}", entry.row.status()))?;
        } else {
            if code == OUT_OF_TIME {
                let (short, status) = (run.short(), text::status(&entry));
                out.note(format!("out of time: {short} is {status}"));
            } else {
                outcome::tell(store, &entry, out).await?;
            }
        }
        out.flush()?;
    }
    let first = [OUT_OF_TIME, FAILED, CANCELLED, WAITS]
        .into_iter()
        .find(|it| codes.contains(it));
    Ok(first.unwrap_or(0))
}

/// Waits until the run has ended or is parked; gives the exit code for it. Meanwhile `seen` is how it was last.
async fn settled(
    store: &dyn RunStore,
    run: &RunId,
    out: &Output,
    seen: &mut Option<Entry>,
) -> anyhow::Result<(Entry, u8)> {
    let mut doorbell = store.watch(run);
    let mut patience = Patience::default();
    let mut told = false;
    loop {
        let looked = patience.bear(look(store, run).await)?;
        if let Some((entry, Some(code))) = looked {
            return Ok((entry, code));
        }
        *seen = looked.map(|(entry, _)| entry).or(seen.take());
        if !told && seen.as_ref().is_some_and(Entry::is_orphaned) {
            told = true;
            let short = run.short();
            out.note(format!(
                "nobody drives {short}; `logreel resume {short}` goes on"
            ));
        }
        tokio::select! {
            _ = doorbell.rung() => {}
            () = SystemEnv.sleep(LOOK_AGAIN) => {}
        }
    }
}

async fn look(store: &dyn RunStore, run: &RunId) -> anyhow::Result<(Entry, Option<u8>)> {
    let entry = store.entry(run).await?;
    let code = settle::code(store, &entry).await?;
    Ok((entry, code))
}
