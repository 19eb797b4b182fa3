//! `logreel pause`: stops a run's work until someone resumes it.

use logreel::PauseOutcome;
use logreel::view::RunView;

use crate::name;
use crate::output::Output;
use crate::store::Place;

#[derive(clap::Args)]
pub struct Args {
    /// Which run
    run: String,
    /// Why; recorded in the run's log
    #[arg(long, value_name = "TEXT", default_value = "from the command line")]
    reason: String,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.speak().await?;
    let run = name::resolve(&*opened.store, &args.run).await?;
    let outcome = opened.engine.pause(&run, args.reason).await?;
    let entry = opened.store.entry(&run).await?;
    let driven = entry.is_driven();
    let short = run.short();
    out.note(match outcome {
        PauseOutcome::AlreadyPaused => format!("{short} had been paused before"),
        PauseOutcome::Paused if driven => format!("{short} is paused; its driver stops its work"),
        PauseOutcome::Paused => format!("{short} is paused"),
    });
    if out.json {
        out.json_line(&RunView::of(&entry))?;
    }
    opened.engine.close().await?;
    Ok(0)
}
