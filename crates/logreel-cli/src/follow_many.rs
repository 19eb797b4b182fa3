//! Following several runs that this process drives with all that they wait for: one line each when it
//! settles.

use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::view::RunView;
use logreel::{Entry, Env as _, ErrorKind, RunId};

use crate::error::{self, failure_of};
use crate::outcome::{self, Line};
use crate::output::Output;
use crate::patience::{self, Patience};
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
    let mut patience = Patience::default();
    while !open.is_empty() {
        let mut still_open = Vec::with_capacity(open.len());
        let mut left = open.into_iter();
        for run in left.by_ref() {
            let found = match look(acting, &run, out).await {
                // One that cannot be read keeps nobody from the others.
                Err(error) if !patience::is_away(&error) => {
                    codes.push(error::leave_alone(&run, &error, out));
                    continue;
                }
                found => patience.bear(found)?,
            };
            let (entry, code) = match found {
                Some(Look::Settled(entry, code)) => (entry, code),
                Some(Look::Open) => {
                    still_open.push(run);
                    continue;
                }
                Some(Look::LeftAlone) => continue,
                None => {
                    still_open.push(run);
                    break;
                }
            };
            codes.push(code);
            if out.json {
                out.json_line(&Line::run(&RunView::of(&entry)))?;
            } else {
                out.line(format!("{run} {}", outcome::ended(&entry)))?;
            }
            out.flush()?;
        }
        // The store is away: the others would not be found either.
        still_open.extend(left);
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

/// What was found of a run.
enum Look {
    Settled(Box<Entry>, u8),
    /// It goes on.
    Open,
    /// It cannot go on here, which was told.
    LeftAlone,
}

async fn look(acting: &Acting, run: &RunId, out: &Output) -> anyhow::Result<Look> {
    let entry = acting.store.entry(run).await?;
    if let Some(code) = settle::code(&*acting.store, &entry).await? {
        return Ok(Look::Settled(Box::new(entry), code));
    }
    // A parent is ready when its child has ended.
    match drive::go_on(acting, run, None).await {
        Ok(()) => Ok(Look::Open),
        Err(error) if patience::is_away(&error) || is_unread(&error) => Err(error),
        Err(error) => {
            out.note(format!("{} is left alone: {error}", run.short()));
            Ok(Look::LeftAlone)
        }
    }
}

async fn pause_all(
    acting: &Acting,
    runs: &[RunId],
    signals: &mut Signals,
    out: &Output,
) -> anyhow::Result<()> {
    out.note("pausing; Ctrl-C again leaves at once");
    for run in runs {
        let pause = async {
            let find = || whose::find(&*acting.store, run);
            if let Whose::Theirs(owner) = Patience::default().ask(find).await? {
                out.note(format!("{} goes on: it is driven by {owner}", run.short()));
            } else if drive::pause(acting, run).await? {
                let short = run.short();
                out.note(format!(
                    "{short} is paused: `logreel resume {short}` goes on"
                ));
            }
            anyhow::Ok(())
        };
        tokio::select! {
            paused = pause => paused?,
            stop = signals.next() => drive::leave_at_once(stop),
        }
    }
    Ok(())
}

/// Whether the store has it and nobody can read it, which is no want of ours.
fn is_unread(error: &anyhow::Error) -> bool {
    failure_of(error).is_some_and(|it| it.kind.exit_code() == ErrorKind::Corrupt.exit_code())
}
