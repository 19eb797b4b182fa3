//! `logreel import`: takes in what `export` wrote.

use std::io::Read as _;

use logreel::{Checkpoint, CheckpointError, ErrorKind};

use crate::error::Failure;
use crate::import_session;
use crate::output::Output;
use crate::store::{Missing, Place};

#[derive(clap::Args)]
pub struct Args {
    /// The file, or - for stdin
    file: String,
    /// The file is a session of another agent, as it keeps or prints it
    #[arg(long, value_name = "AGENT")]
    from: Option<import_session::From>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if let Some(from) = args.from {
        return import_session::run(from, &args.file, place, out).await;
    }
    let text = read(&args.file)?;
    let checkpoint = Checkpoint::read(&text).map_err(|error| {
        let kind = match error {
            CheckpointError::Newer { .. } => ErrorKind::NewerFormat,
            CheckpointError::Unreadable(_) => ErrorKind::Invalid,
        };
        Failure::new(kind, format!("{}: {error}", args.file))
            .hint("`logreel export RUN --format checkpoint` writes one")
    })?;
    let acting = place.act(Missing::Make, None, out).await?;
    let restored = acting.engine.restore(&checkpoint).await;
    acting.engine.close().await?;
    let run = restored?.id();
    out.line(run.to_string())?;
    let short = run.short();
    out.note(format!(
        "{short} is here and paused: `logreel resume {short}` goes on, once nobody does elsewhere"
    ));
    Ok(0)
}

fn read(file: &str) -> Result<String, Failure> {
    let read = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        path => std::fs::read_to_string(path),
    };
    read.map_err(|error| {
        let message = format!("{file} cannot be read: {error}");
        Failure::new(ErrorKind::Invalid, message)
    })
}
