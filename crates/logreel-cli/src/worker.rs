//! `logreel worker`: drives the runs of this store until it is told to stop.

use std::path::{Path, PathBuf};

use logreel::core::event::WaitKind;
use logreel::{Body, Builder, ErrorKind, HookEvent};

use crate::detach::WorkerLock;
use crate::error::Failure;
use crate::live::terminal;
use crate::output::Output;
use crate::signals::{Signals, Stop};
use crate::store::{Missing, Place};
use crate::{ls, patience, retention, spec, text};

#[derive(clap::Args)]
pub struct Args {
    /// How many runs it drives at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// Only runs with this label; may be given several times
    #[arg(long, value_name = "K=V", value_parser = ls::parse_label)]
    label: Vec<(String, String)>,
    /// The folder to run in [default: as recorded with each run; one whose folder is not here is left alone]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if place.is_memory() {
        let message = "a store in memory is this process's own: no run would ever come to it";
        return Err(Failure::new(ErrorKind::Usage, message)
            .hint("name a file with --store PATH")
            .into());
    }
    let mut signals = Signals::new()?;
    let dir = args.dir.as_deref().map(spec::folder).transpose()?;
    let quiet = out.quiet;
    let acting = place
        .act_with(Missing::Make, out, |builder| {
            telling(in_folder(builder, dir.as_deref()), quiet)
        })
        .await?;
    // One that takes only some runs is none that `--detach` may count on.
    let lock = match args.label.is_empty() {
        true => WorkerLock::hold(&acting.kept)?,
        false => None,
    };
    let at_once = usize::from(args.concurrency);
    let labels = args
        .label
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let labels: Vec<_> = labels.collect();
    let labelled = match labels.as_slice() {
        [] => String::new(),
        labels => format!(" with {}", labels.join(" ")),
    };
    out.note(format!(
        "driving up to {at_once} runs{labelled} of {}",
        acting.kept.shown()
    ));
    let retention = acting.settings.retention.as_ref();
    let stop = tokio::select! {
        worked = acting.engine.work_on(&args.label, at_once) => {
            worked?;
            Stop::Terminate
        }
        () = retention::keep(&acting.engine, retention, out) => Stop::Terminate,
        stop = signals.next() => stop,
    };
    // From now on `--detach` must not count on this process.
    drop(lock);
    out.note("leaving; what is under way is handed back");
    tokio::select! {
        closed = patience::close(&acting.engine) => closed?,
        _ = signals.next() => {}
    }
    Ok(stop.code())
}

/// Lets an engine drive everything in this folder, if one was named.
pub fn in_folder(builder: Builder, dir: Option<&Path>) -> Builder {
    match dir {
        Some(dir) => builder.dir(dir),
        None => builder,
    }
}

/// Lets an engine tell what becomes of its runs.
pub fn telling(builder: Builder, quiet: bool) -> Builder {
    builder.on_event(move |event: HookEvent| async move {
        if !quiet && let Some(line) = line(&event) {
            terminal::print(&format!("{} {line}\n", event.run.short()));
        }
        Ok(())
    })
}

/// A line for a run that was taken, ended, or waits for someone.
fn line(event: &HookEvent) -> Option<String> {
    Some(match &event.event.body {
        Body::PhaseEntered(_) => "taken".to_owned(),
        Body::RunResumed(_) => "taken again".to_owned(),
        Body::RunCompleted(_) => "completed".to_owned(),
        Body::RunFailed(failed) => format!("failed: {}", text::one_line(&failed.error.message)),
        Body::RunCancelled(_) => "cancelled".to_owned(),
        Body::WaitStarted(wait) if wait.needs_person() && wait.kind != WaitKind::Paused => {
            format!("waits for {}", wait.kind)
        }
        Body::WaitStarted(wait) if wait.kind == WaitKind::Paused => "paused".to_owned(),
        _ => return None,
    })
}
