//! `logreel prune`: deletes ended runs that nobody needs any more.

use std::time::Duration;

use logreel::{ErrorKind, Prune, Status};
use serde_json::json;

use crate::error::Failure;
use crate::ls::parse_label;
use crate::output::Output;
use crate::store::Place;
use crate::text;

const EXAMPLES: &str = "\
Examples:
  logreel prune --older-than 30d --dry-run      what would go
  logreel prune --older-than 30d                ended more than 30 days ago
  logreel prune --keep-last 100                 all but the newest 100 that have ended
  logreel prune --status failed --label ci=yes  failed ones with a label

Runs that have not ended, that others are forked from, or whose parent goes on stay in any case.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only what ended at least this long ago: 12h, 30d
    #[arg(long, value_name = "SPAN", value_parser = text::parse_duration)]
    older_than: Option<Duration>,
    /// Keep so many of the newest
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Only with this status (completed, failed, cancelled); repeat it or separate with commas for more
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    status: Vec<Status>,
    /// Only with this label; repeat for more
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// Say what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if let Some(live) = args.status.iter().find(|status| !status.is_terminal()) {
        let message = format!("a run that is {live} is never pruned; only ended ones are");
        return Err(Failure::new(ErrorKind::Usage, message)
            .hint("--status takes completed, failed and cancelled")
            .into());
    }
    let what = Prune {
        older_than: args.older_than,
        keep_last: args.keep_last,
        status: args.status,
        labels: args.label,
    };
    if what == Prune::default() {
        let message = "nothing says which runs to prune";
        return Err(Failure::new(ErrorKind::Usage, message)
            .hint("say --older-than, --keep-last, --status or --label; --keep-last 0 means all that have ended")
            .into());
    }
    let opened = place.open().await?;
    let pruned = match args.dry_run {
        true => opened.engine.would_prune(&what).await?,
        false => opened.engine.prune(&what).await?,
    };
    let failed: Vec<_> = pruned
        .failed
        .iter()
        .map(|(run, why)| json!({ "run": run, "why": why }))
        .collect();
    if out.json {
        out.json_line(&json!({
            "dry_run": args.dry_run,
            "runs": pruned.runs,
            "events": pruned.events,
            "bytes": pruned.bytes,
            "needed": pruned.needed,
            "failed": failed,
        }))?;
    } else {
        for run in &pruned.runs {
            out.line(run.to_string())?;
        }
    }
    out.flush()?;
    let verb = if args.dry_run { "would go" } else { "deleted" };
    let mut said = format!(
        "{} {verb}: {}, {}",
        text::count(pruned.runs.len() as u64, "run"),
        text::count(pruned.events, "event"),
        text::bytes(pruned.bytes),
    );
    if !pruned.needed.is_empty() {
        let needed = text::count(pruned.needed.len() as u64, "run");
        said.push_str(&format!(
            "; {needed} kept, because others need what they hold"
        ));
    }
    out.note(said);
    for (run, why) in &pruned.failed {
        out.note(format!("{run} could not be deleted: {why}"));
    }
    match pruned.failed.is_empty() {
        true => Ok(0),
        false => Ok(4),
    }
}
