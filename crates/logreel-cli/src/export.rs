//! `logreel export`: a run as a file, to be checked, kept, or gone on with elsewhere.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use logreel::{Error, ErrorKind, Exported, FileError, RunId};

use crate::error::Failure;
use crate::otlp::{self, Endpoint, Sink};
use crate::output::Output;
use crate::store::{Opened, Place};
use crate::{name, text};

const EXAMPLES: &str = "\
Examples:
  logreel export @last > run.jsonl              the whole log, a line for each event
  logreel export @last --format reel -o run.reel
                                                the run and its children, compressed
  logreel export @last --format reel -o run.reel --move
                                                the same, and it ends here: it goes on elsewhere
  logreel export @last --format otlp --endpoint http://localhost:4318
                                                as an OpenTelemetry trace, to a collector
  logreel verify run.reel                       does it hold? needs no store
  logreel import run.reel && logreel resume --take-over RUN
                                                on the other machine";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which run
    run: String,
    /// What to write
    #[arg(long, value_name = "FORMAT", default_value = "jsonl")]
    format: Format,
    /// Where to [default: stdout]; an existing file is not overwritten
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// End the run here once the file is safe on disk, because it goes on elsewhere
    #[arg(long = "move", requires = "output")]
    moves: bool,
    /// With what was said: prompts, answers, arguments, results (otlp)
    #[arg(long)]
    content: bool,
    /// Send it to a collector instead, such as http://localhost:4318 (otlp)
    #[arg(long, value_name = "URL", conflicts_with = "output")]
    endpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The whole log and what it refers to, as lines of JSON
    Jsonl,
    /// The run and its children, whole, in one compressed file
    Reel,
    /// What has finished and which writes are open: enough to go on elsewhere, without the history
    Checkpoint,
    /// The run and its children as an OpenTelemetry trace
    Otlp,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if args.format != Format::Otlp && (args.content || args.endpoint.is_some()) {
        let message = "--content and --endpoint are for --format otlp";
        return Err(Failure::new(ErrorKind::Usage, message).into());
    }
    let opened = place.open().await?;
    let run = name::resolve(&*opened.store, &args.run).await?;
    let engine = &opened.engine;
    if let Some(url) = &args.endpoint {
        return send(&args, url, &opened, run, out).await;
    }
    if args.moves {
        if !matches!(args.format, Format::Jsonl | Format::Reel) {
            let message = "only the whole log can go on elsewhere; --move takes jsonl or reel";
            return Err(Failure::new(ErrorKind::Usage, message).into());
        }
        // Before anything is written; and once more when the run is ended.
        engine.check_movable(&run).await?;
    }
    let Some(path) = &args.output else {
        let mut stdout = BufWriter::with_capacity(1 << 16, io::stdout());
        write(&opened, run, &args, &mut stdout).await?;
        stdout.flush()?;
        return Ok(0);
    };
    let exported = write_file(&opened, run, &args, path).await?;
    let short = run.short();
    out.note(match &exported {
        Some(exported) => format!(
            "{short} is in {} ({}, {})",
            path.display(),
            text::count(exported.events, "event"),
            text::count(exported.runs.len() as u64, "run"),
        ),
        None => format!("{short} is in {}", path.display()),
    });
    if let (true, Some(exported)) = (args.moves, &exported) {
        engine.move_away(exported).await?;
        out.note(format!(
            "{short} has ended here as moved: `logreel import {}` elsewhere, then `logreel resume \
             {short} --take-over`",
            path.display()
        ));
    }
    Ok(0)
}

/// Writes a new file and makes it durable; half of one is taken away again.
async fn write_file(
    opened: &Opened,
    run: RunId,
    args: &Args,
    path: &Path,
) -> anyhow::Result<Option<Exported>> {
    let refused = |error: io::Error| {
        let message = format!("{} cannot be written: {error}", path.display());
        let kind = match error.kind() {
            io::ErrorKind::AlreadyExists => ErrorKind::Conflict,
            _ => ErrorKind::Unavailable,
        };
        Failure::new(kind, message)
    };
    let file = File::create_new(path).map_err(refused)?;
    let mut buffered = BufWriter::with_capacity(1 << 16, file);
    let written = write(opened, run, args, &mut buffered).await;
    let safe = |mut buffered: BufWriter<File>| -> io::Result<()> {
        buffered.flush()?;
        buffered.get_ref().sync_all()?;
        // A new name is durable once its folder is.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    let outcome = match written {
        Ok(exported) => match safe(buffered) {
            Ok(()) => return Ok(exported),
            Err(error) => refused(error).into(),
        },
        Err(error) => error,
    };
    if let Err(error) = std::fs::remove_file(path) {
        let message = format!(
            "{outcome:#}; half of it is left in {}: {error}",
            path.display()
        );
        return Err(Failure::new(ErrorKind::Unavailable, message).into());
    }
    Err(outcome)
}

async fn write(
    opened: &Opened,
    run: RunId,
    args: &Args,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Option<Exported>> {
    let engine = &opened.engine;
    let written = match args.format {
        Format::Jsonl => engine.export_jsonl(&run, out).await,
        Format::Reel => engine.export_reel(&run, out).await,
        Format::Otlp => {
            otlp::export(&*opened.store, run, args.content, &mut Sink::File(out)).await?;
            return Ok(None);
        }
        Format::Checkpoint => {
            let checkpoint = engine.checkpoint(&run).await.map_err(|error| match error {
                Error::NoCheckpoint { .. } => Failure::new(error.kind(), error.to_string())
                    .hint("--format reel has all of it, and goes on elsewhere too")
                    .into(),
                other => anyhow::Error::from(other),
            })?;
            let text = checkpoint.write()?;
            writeln!(out, "{text}")?;
            return Ok(None);
        }
    };
    match written {
        Ok(exported) => Ok(Some(exported)),
        // Whoever read it has seen enough; the caller knows what that means.
        Err(Error::File(FileError::Io { source, .. }))
            if source.kind() == io::ErrorKind::BrokenPipe =>
        {
            Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends the run as a trace to a collector.
async fn send(
    args: &Args,
    url: &str,
    opened: &Opened,
    run: RunId,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let endpoint = Endpoint::named(url)?;
    let mut collector = Sink::Collector(&endpoint);
    let count = otlp::export(&*opened.store, run, args.content, &mut collector).await?;
    out.note(format!(
        "{} was sent to {} ({})",
        run.short(),
        endpoint.url(),
        text::count(count, "span")
    ));
    Ok(0)
}
