//! `logreel erase`: takes away what an ended run held, and leaves the proof that it ran.

use logreel::store::{EraseError, Heirs};
use logreel::{Error, RunId};
use serde_json::json;

use crate::error::Failure;
use crate::output::Output;
use crate::store::Place;
use crate::{name, text};

#[derive(clap::Args)]
pub struct Args {
    /// Which run; it must have ended
    run: String,
    /// Erase the runs too that were forked or retried from it
    #[arg(long)]
    with_forks: bool,
    /// Erase the runs of its session too whose conversation goes on from its own
    #[arg(long)]
    with_continuations: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let run = name::resolve(&*opened.store, &args.run).await?;
    let with = Heirs {
        forks: args.with_forks,
        continuations: args.with_continuations,
    };
    let erased = match opened.engine.erase(&run, with).await {
        Ok(erased) => erased,
        Err(error) => return Err(refused(run, error)),
    };
    for run in &erased {
        if out.json {
            out.json_line(&json!({"erased": run}))?;
        } else {
            out.line(run.to_string())?;
        }
    }
    out.note(format!(
        "{} erased: what is left are headers, status and counts; `logreel verify` still holds",
        text::count(erased.len() as u64, "run")
    ));
    Ok(0)
}

fn refused(run: RunId, error: Error) -> anyhow::Error {
    let short = run.short();
    let hint = match &error {
        Error::Erase(EraseError::NotEnded { .. }) => {
            format!("`logreel cancel {short}` ends it")
        }
        Error::Erase(EraseError::Needed {
            forks,
            continuations,
            ..
        }) => {
            let mut flags = String::new();
            if !forks.is_empty() {
                flags.push_str(" --with-forks");
            }
            if !continuations.is_empty() {
                flags.push_str(" --with-continuations");
            }
            format!("they hold the same words: `logreel erase {short}{flags}` erases them too")
        }
        _ => return error.into(),
    };
    Failure::new(error.kind(), error.to_string())
        .hint(hint)
        .into()
}
