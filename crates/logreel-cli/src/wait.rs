//! `logreel wait`: until runs have ended, or nobody but a person can go on.

use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::view::RunView;
use logreel::{Entry, Env as _, RunId, RunStore};

use crate::output::Output;
use crate::patience::{self, Patience};
use crate::settle::{self, CANCELLED, FAILED, WAITS};
use crate::store::Place;
use crate::{name, outcome, text};

/// A driver that dies rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How long the last look at a run may take, when its time is up.
const LAST_LOOK: Duration = Duration::from_millis(500);

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
    let until = args.timeout.map(|timeout| SystemEnv.monotonic() + timeout);
    let mut entries = Vec::with_capacity(args.runs.len());
    for name in &args.runs {
        let run = name::resolve(store, name).await?;
        // As it is shown when time is up and the store is away.
        entries.push(store.entry(&run).await?);
    }
    let several = entries.len() > 1;
    let mut codes = Vec::with_capacity(entries.len());
    for mut entry in entries {
        let code = settled(store, &mut entry, until, out).await?;
        let run = entry.row.run;
        codes.push(code);
        if out.json {
            out.json_line(&outcome::Line::run(&RunView::of(&entry)))?;
        } else if several {
            out.line(format!("{run} {}", entry.row.status()))?;
        } else if code == OUT_OF_TIME || !tell(store, &entry, until, out).await? {
            let (short, status) = (run.short(), text::status(&entry));
            out.note(format!("out of time: {short} is {status}"));
            // Its output could not be read. That it waits for someone is known all the same.
            if code == 0 {
                codes.push(OUT_OF_TIME);
            }
        }
        out.flush()?;
    }
    let first = [OUT_OF_TIME, FAILED, CANCELLED, WAITS]
        .into_iter()
        .find(|it| codes.contains(it));
    Ok(first.unwrap_or(0))
}

/// Tells what became of the run, once the store has all that there is to tell; says whether that was in time.
async fn tell(
    store: &dyn RunStore,
    entry: &Entry,
    until: Option<Duration>,
    out: &mut Output,
) -> anyhow::Result<bool> {
    let mut patience = Patience::default();
    loop {
        let left = until.map(|until| until.saturating_sub(SystemEnv.monotonic()));
        let telling = outcome::tell(store, entry, out);
        let told = match left {
            None => Some(telling.await),
            Some(left) => in_time(left, telling).await,
        };
        if let Some(told) = told
            && patience.bear(told)?.is_some()
        {
            return Ok(true);
        }
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        patience::pause().await;
    }
}

/// Waits until the run has ended or is parked, or time is up; gives the exit code for it. Meanwhile `seen` is how it was
/// last.
async fn settled(
    store: &dyn RunStore,
    seen: &mut Entry,
    until: Option<Duration>,
    out: &Output,
) -> anyhow::Result<u8> {
    let run = seen.row.run;
    let mut doorbell = store.watch(&run);
    let mut patience = Patience::default();
    let mut told = false;
    loop {
        let left = until.map(|until| until.saturating_sub(SystemEnv.monotonic()));
        let looking = look(store, &run);
        let looked = match left {
            None => Some(looking.await),
            Some(left) => in_time(left, looking).await,
        };
        if let Some(looked) = looked
            && let Some((entry, code)) = patience.bear(looked)?
        {
            *seen = entry;
            if let Some(code) = code {
                return Ok(code);
            }
        }
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(OUT_OF_TIME);
        }
        if !told && seen.is_orphaned() {
            told = true;
            let short = run.short();
            out.note(format!(
                "nobody drives {short}; `logreel resume {short}` goes on"
            ));
        }
        tokio::select! {
            _ = doorbell.rung() => {}
            () = SystemEnv.sleep(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))) => {}
        }
    }
}

/// What the store answers in the time that is left, or in that of a last look.
async fn in_time<F: Future>(left: Duration, asked: F) -> Option<F::Output> {
    let answered = tokio::time::timeout(left.max(LAST_LOOK), asked);
    answered.await.ok()
}

async fn look(store: &dyn RunStore, run: &RunId) -> anyhow::Result<(Entry, Option<u8>)> {
    let entry = store.entry(run).await?;
    let code = settle::code(store, &entry).await?;
    Ok((entry, code))
}
