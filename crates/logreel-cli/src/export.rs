//! `logreel export`: a run as a file that another store takes in.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::name;
use crate::output::Output;
use crate::store::Place;

#[derive(clap::Args)]
pub struct Args {
    /// Which run; it must not have ended
    run: String,
    /// What to write
    #[arg(long, value_name = "FORMAT")]
    format: Format,
    /// Where to [default: stdout]; an existing file is not overwritten
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// What has finished and which writes are open: enough to go on elsewhere
    Checkpoint,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let run = name::resolve(&opened.store, &args.run).await?;
    let text = match args.format {
        Format::Checkpoint => opened.engine.checkpoint(&run).await?.write()?,
    };
    match &args.output {
        None => out.line(&text)?,
        Some(path) => {
            let write = || -> std::io::Result<()> {
                let mut file = std::fs::File::create_new(path)?;
                file.write_all(text.as_bytes())?;
                file.write_all(b"\n")?;
                file.sync_all()
            };
            write().with_context(|| format!("{} cannot be written", path.display()))?;
            out.note(format!("{} is in {}", run.short(), path.display()));
        }
    }
    Ok(0)
}
