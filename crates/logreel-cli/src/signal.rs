//! `logreel signal`: sends a run something that it waits for, or will.

use logreel::Entry;
use logreel::core::event::{WaitKind, WaitStarted};

use crate::answer::{self, Then};
use crate::output::Output;
use crate::signals::Signals;
use crate::store::{Missing, Place};
use crate::{input, name, settle};

#[derive(clap::Args)]
pub struct Args {
    /// Which run
    run: String,
    /// The signal's name
    name: String,
    /// Its value [default: null]
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    value: Option<String>,
    /// Drive the run on here
    #[arg(long)]
    resume: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    let value = input::json("the value", args.value.as_deref().unwrap_or("null"))?;
    let acting = place.act(Missing::Refuse, None, out).await?;
    let run = name::resolve(&*acting.store, &args.run).await?;
    let is_it = |wait: &WaitStarted| {
        wait.kind == WaitKind::Signal && wait.name.as_deref() == Some(&args.name)
    };
    let run = settle::meant(&*acting.store, run, is_it).await?;
    let awaits = |entry: &Entry| {
        let mut waits = entry.row.facts.waits.iter();
        waits.any(|open| is_it(&open.wait))
    };
    let was_awaited = awaits(&acting.store.entry(&run).await?);
    let entry = acting.engine.signal(&run, &args.name, &value).await?;
    let short = run.short();
    let mut then = Then::new(args.resume);
    if was_awaited && !awaits(&entry) {
        out.note(format!("{short} has its signal {:?}", args.name));
    } else {
        out.note(format!(
            "nobody awaits {:?} in {short} yet; it is kept until someone does",
            args.name
        ));
        if !args.resume {
            then = Then::Nothing;
        }
    }
    answer::after(acting, entry, then, signals, out).await
}
