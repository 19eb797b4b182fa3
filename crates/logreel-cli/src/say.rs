//! `logreel say`: steers an agent while it works.

use logreel::ErrorKind;
use serde_json::json;

use crate::error::Failure;
use crate::output::Output;
use crate::store::Place;
use crate::{ask, name};

#[derive(clap::Args)]
pub struct Args {
    /// Which run; it must be an agent's
    run: String,
    /// What to say
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: String,
    /// Your own name for this: the same again is said once and gets the same receipt
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if args.text.trim().is_empty() {
        return Err(Failure::new(ErrorKind::Usage, "there is nothing to say").into());
    }
    let opened = place.speak().await?;
    let run = name::resolve(&*opened.store, &args.run).await?;
    let mut said = opened.engine.say(&run, args.text, Some(ask::who()));
    if let Some(id) = args.request_id {
        said = said.request(id);
    }
    let seq = said.await?;
    if out.json {
        out.json_line(&json!({"run": run, "seq": seq}))?;
    } else {
        out.line(seq.to_string())?;
    }
    let entry = opened.store.entry(&run).await?;
    if !entry.is_driven() && !entry.row.status().is_terminal() {
        let short = run.short();
        out.note(format!(
            "nobody drives {short} now; it hears this when it goes on, as by `logreel resume {short}`"
        ));
    }
    opened.engine.close().await?;
    Ok(0)
}
