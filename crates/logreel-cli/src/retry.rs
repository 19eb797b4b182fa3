//! `logreel retry`: goes on with a failed or cancelled run in a new one that shares what finished.

use std::path::Path;

use logreel::core::event::RunKind;
use logreel::{Entry, ErrorKind, Json, RunHandle, RunId};
use logreel_agent::AgentSpec;
use serde_json::Value;

use crate::again::{self, Asked};
use crate::drive::{self, Followed};
use crate::error::Failure;
use crate::output::Output;
use crate::signals::Signals;
use crate::store::{Acting, Missing, Place};
use crate::{changed, git, input, name, outcome, record, spec};

const EXAMPLES: &str = "\
Examples:
  logreel retry @last                   what finished is kept, what failed starts again
  logreel retry @last --from review     review and all that need it start again too

A write that was under way may have happened; it is done again, and told of. One
that finished is done again only with --from, with another --input of an agent,
or in a child that starts again: then it is asked about first.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which run; it must have failed or been cancelled
    run: String,
    /// Forget this step and all that need it, though they finished
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Another input: text or JSON, @FILE, or - for stdin
    #[arg(long, value_name = "INPUT", allow_hyphen_values = true)]
    input: Option<String>,
    /// Another model, PROVIDER/MODEL or scripted/FILE; only for an agent
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Do not ask about writes that would be done again
    #[arg(long, short)]
    yes: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let acting = place.act(Missing::Refuse, None, out).await?;
    let run = name::resolve(&*acting.store, &args.run).await?;
    let entry = acting.store.entry(&run).await?;
    if record::is_recorded(&entry) {
        if args.from.is_some() || args.input.is_some() || args.model.is_some() {
            let message = format!("{run} is a recorded program; it runs again as it was");
            return Err(Failure::new(ErrorKind::Usage, message).into());
        }
        return record::retry(acting, &entry, out).await;
    }
    let made = make(&args, &acting, &entry, &mut signals, out).await;
    let handle = match made {
        Ok(handle) => handle,
        Err(error) => {
            acting.engine.close().await?;
            return Err(error);
        }
    };
    let entry = handle.entry().await?;
    let Some(parent) = &entry.row.facts.parent else {
        let message = format!("{} was made by a retry and names no parent", handle.id());
        return Err(Failure::new(ErrorKind::Bug, message).into());
    };
    let (short, old) = (handle.id().short(), run.short());
    out.note(format!("{short} goes on with what {old} finished"));
    // Whoever mended the file expects it to be used.
    let old = acting.store.entry(&run).await?;
    if let Some(changed) = changed::find(&acting, &old).await? {
        let file = changed.file;
        out.note(format!(
            "{file} has changed since; this goes on with the spec as it was, and \
             `logreel run {file}` starts anew with the file"
        ));
    }
    // What it shares with the old run is history; its own log begins with `run.forked`.
    let followed = Followed::ours(handle.id(), parent.seq.next());
    drive::to_the_end(acting, followed, signals, out).await
}

/// The run's agent on another model.
pub async fn on_model(acting: &Acting, run: &RunId, model: &str) -> anyhow::Result<Value> {
    let entry = acting.store.entry(run).await?;
    if entry.row.facts.kind != RunKind::Agent {
        let message = format!("--model is for agents; {run} is none");
        return Err(Failure::new(ErrorKind::Usage, message).into());
    }
    let stored = acting.engine.stored_spec(run).await?;
    let stored = AgentSpec::from_json(&stored.to_value())?;
    let other = acting.agents.on_model(&stored, model);
    let other = other.map_err(|problems| spec::invalid(&problems))?;
    Ok(other.to_json())
}

/// The new run, once nobody minds what it writes again.
async fn make(
    args: &Args,
    acting: &Acting,
    entry: &Entry,
    signals: &mut Signals,
    out: &Output,
) -> anyhow::Result<RunHandle<Json>> {
    let run = entry.row.run;
    let mut retry = acting.engine.retry(&run);
    if let Some(from) = &args.from {
        retry = retry.from(from);
    }
    if let Some(model) = &args.model {
        retry = retry.under_agent(on_model(acting, &run, model).await?);
    }
    if let Some(said) = &args.input {
        let given = input::read(Some(said))?;
        if entry.row.facts.kind == RunKind::Agent && !entry.erased {
            let stored = acting.engine.stored_spec(&run).await?;
            spec::admit(&AgentSpec::from_json(&stored.to_value())?, &given)?;
        }
        retry = retry.input(&given);
    }
    if let Some(dir) = &entry.row.facts.dir
        && let Some(git) = git::look(Path::new(dir))
    {
        retry = retry.git(git);
    }
    let outlook = retry.look().await?;
    let mut told = Vec::new();
    let was_moved = outcome::was_moved(entry);
    if was_moved {
        let short = run.short();
        told.push(format!(
            "{short} was moved to another store and goes on there; a retry does its work a second time"
        ));
    }
    if !outlook.is_harmless() {
        told.push(again::list(run, &outlook, "the retry"));
    }
    let asked = Asked {
        question: "Retry all the same?",
        refused: "nothing was retried",
        hint: "nothing was retried; --yes retries all the same",
    };
    let told = told.join("\n");
    match (was_moved || outlook.repeats()) && !args.yes {
        true => again::confirm(told, &asked, signals, out).await?,
        false if !told.is_empty() => out.note(told),
        false => {}
    }
    Ok(retry.await?)
}
