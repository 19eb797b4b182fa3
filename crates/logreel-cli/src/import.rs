//! `logreel import`: takes in what `export` wrote.

use std::fs::File;
use std::io::{Read as _, Seek as _};

use logreel::view::RunView;
use logreel::{
    Checkpoint, CheckpointError, Error, ErrorKind, FileError, ImportOutcome, ImportedRun, RunFile,
};
use serde::Serialize;

use crate::error::Failure;
use crate::import_session;
use crate::output::Output;
use crate::store::{Missing, Place};
use crate::{carried, text};

/// The largest checkpoint that is read.
const CHECKPOINT_BYTES_MAX: u64 = 256 << 20;

#[derive(clap::Args)]
pub struct Args {
    /// The file (jsonl, reel or checkpoint), or - for stdin
    file: String,
    /// The file is a session of another agent, as it keeps or prints it
    #[arg(long, value_name = "AGENT")]
    from: Option<import_session::From>,
}

/// A run that was imported, for programs.
#[derive(Serialize)]
pub struct Line<'a> {
    pub outcome: &'static str,
    pub run: &'a RunView,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if let Some(from) = args.from {
        return import_session::run(from, &args.file, place, out).await;
    }
    let source = carried::source(&args.file)?;
    let copy = source.try_clone()?;
    match RunFile::of(source) {
        Ok(file) => runs(&file, &args.file, place, out).await,
        Err(FileError::Unknown) => checkpoint(copy, &args.file, place, out).await,
        Err(error) => Err(carried::refused(&args.file, &error).into()),
    }
}

async fn runs(file: &RunFile, name: &str, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    // What does not hold must not make a store, and need not wait for one.
    let check = || -> Result<(), FileError> {
        let mut reading = file.read()?;
        while reading.check_next(None)?.is_some() {}
        Ok(())
    };
    if place.file().is_none() {
        check().map_err(|error| carried::refused(name, &error))?;
    }
    let acting = place.act(Missing::Make, None, out).await?;
    let imported = acting.engine.import(file).await;
    acting.engine.close().await?;
    let imported = imported.map_err(|error| refused(name, error))?;
    for run in &imported {
        tell(run, out)?;
    }
    Ok(0)
}

fn tell(imported: &ImportedRun, out: &mut Output) -> anyhow::Result<()> {
    let (entry, row) = (&imported.entry, &imported.entry.row);
    let (short, events) = (row.run.short(), text::count(row.head.seq.0, "event"));
    if out.json {
        let outcome = match imported.outcome {
            ImportOutcome::New => "new",
            ImportOutcome::Forwarded { .. } => "forwarded",
            ImportOutcome::NothingNew => "nothing_new",
            ImportOutcome::Erased => "erased",
        };
        let run = &RunView::of(entry);
        out.json_line(&Line { outcome, run })?;
    } else {
        out.line(row.run.to_string())?;
    }
    let status = text::status(entry);
    let said = match imported.outcome {
        ImportOutcome::New => format!("{short} is here: {events}, {status}"),
        ImportOutcome::Forwarded { from } => {
            format!("{short} went on from event {from}: {events}, {status}")
        }
        ImportOutcome::NothingNew => format!("{short} is here already; nothing to do"),
        ImportOutcome::Erased => {
            format!("{short} was erased here, and stays so; nothing was taken in")
        }
    };
    let hint = match entry.read_only && !entry.erased {
        true => format!(
            "; it is read-only: `logreel resume {short} --take-over` goes on, once nobody does \
             elsewhere"
        ),
        false => String::new(),
    };
    out.note(format!("{said}{hint}"));
    Ok(())
}

fn refused(name: &str, error: Error) -> anyhow::Error {
    match error {
        Error::File(error) => carried::refused(name, &error).into(),
        Error::Diverged { moved, .. } => {
            let hint = if moved {
                "it was moved away from here and came back: import it into another store, or `logreel \
                 prune` what is left of it here first"
            } else {
                "both went on from the event before; neither can take the other in"
            };
            Failure::new(error.kind(), error.to_string())
                .hint(hint)
                .into()
        }
        other => other.into(),
    }
}

async fn checkpoint(
    mut file: File,
    name: &str,
    place: &Place,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let read = |file: &mut File| -> std::io::Result<String> {
        file.rewind()?;
        let mut text = String::new();
        file.take(CHECKPOINT_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let unreadable = |what: String| {
        Failure::new(ErrorKind::Invalid, format!("{name}: {what}"))
            .hint("`logreel export RUN --format jsonl|reel|checkpoint` writes what can be imported")
    };
    let text = read(&mut file).map_err(|error| unreadable(error.to_string()))?;
    let checkpoint = Checkpoint::read(&text).map_err(|error| match error {
        CheckpointError::Newer { .. } => {
            Failure::new(ErrorKind::NewerFormat, format!("{name}: {error}"))
        }
        CheckpointError::Unreadable(_) => unreadable(error.to_string()),
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
