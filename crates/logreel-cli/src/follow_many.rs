//! Following several runs that this process drives with all that they wait for: one line each when it
//! settles.

use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::view::RunView;
use logreel::{Env as _, RunId};

use crate::outcome::{self, Line};
use crate::output::Output;
use crate::signals::{Signals, Stop};
use crate::store::Acting;
use crate::whose::{self, Whose};
use crate::{drive, settle};

/// A driver that dies rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The exit code of each run, or the signal that came first: Ctrl-C pauses what is still open. The
/// leases are the caller's to give back.
pub async fn to_the_end(
    acting: &Acting,
    runs: &[RunId],
    signals: &mut Signals,
    out: &mut Output,
) -> anyhow::Result<Result<Vec<u8>, Stop>> {
    let mut doorbell = acting.store.watch_all();
    let mut open: Vec<RunId> = runs.to_vec();
    let mut codes = Vec::with_capacity(runs.len());
    while !open.is_empty() {
        let mut still_open = Vec::with_capacity(open.len());
        for run in open {
            let entry = acting.store.entry(&run).await?;
            let Some(code) = settle::code(&*acting.store, &entry).await? else {
                // A parent is ready when its child has ended.
                match drive::go_on(acting, &run, None).await {
                    Ok(()) => still_open.push(run),
                    Err(error) => out.note(format!("{} is left alone: {error}", run.short())),
                }
                continue;
            };
            codes.push(code);
            if out.json {
                out.json_line(&Line::run(&RunView::of(&entry)))?;
            } else {
                out.line(format!("{run} {}", outcome::ended(&entry)))?;
            }
            out.flush()?;
        }
        open = still_open;
        if open.is_empty() {
            break;
        }
        tokio::select! {
            _ = doorbell.rung() => SystemEnv.sleep(Duration::from_millis(5)).await,
            () = SystemEnv.sleep(LOOK_AGAIN) => {}
            stop = signals.next() => {
                if stop == Stop::Interrupt {
                    pause_all(acting, &open, signals, out).await?;
                }
                return Ok(Err(stop));
            }
        }
    }
    Ok(Ok(codes))
}

async fn pause_all(
    acting: &Acting,
    runs: &[RunId],
    signals: &mut Signals,
    out: &Output,
) -> anyhow::Result<()> {
    out.note("pausing; Ctrl-C again leaves at once");
    for run in runs {
        if let Whose::Theirs(owner) = whose::find(&*acting.store, run).await? {
            out.note(format!("{} goes on: it is driven by {owner}", run.short()));
            continue;
        }
        tokio::select! {
            paused = drive::pause(acting, run) => if paused? {
                let short = run.short();
                out.note(format!("{short} is paused: `logreel resume {short}` goes on"));
            },
            _ = signals.next() => drive::leave_at_once(),
        }
    }
    Ok(())
}
