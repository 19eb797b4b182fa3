//! `logreel backup`: a copy of the store as it is at one moment.

use std::path::PathBuf;

use logreel::ErrorKind;
use serde_json::json;

use crate::error::Failure;
use crate::output::Output;
use crate::store::{Kept, Place};
use crate::text;

#[derive(clap::Args)]
pub struct Args {
    /// The new file
    file: PathBuf,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let store = match &opened.kept {
        Kept::File(store) => store,
        // `open` refuses it.
        Kept::Memory => return Ok(0),
        Kept::Database(store, _) => {
            let message = format!(
                "{} is a database, which `backup` does not copy",
                store.shown()
            );
            return Err(Failure::new(ErrorKind::NotApplicable, message)
                .hint("PostgreSQL's own `pg_dump --format=custom -f FILE URL` does, while others write it; `logreel export` writes single runs")
                .into());
        }
    };
    // The store refuses as well, under the file system's own lock; here it gets its name.
    if args.file.symlink_metadata().is_ok() {
        let message = format!(
            "{} exists; a backup writes over nothing",
            args.file.display()
        );
        return Err(Failure::new(ErrorKind::Conflict, message)
            .hint("name a new file")
            .into());
    }
    store.backup(&args.file)?;
    let bytes = std::fs::metadata(&args.file)?.len();
    if out.json {
        out.json_line(&json!({"path": args.file.to_string_lossy(), "bytes": bytes}))?;
    }
    let size = text::bytes(bytes);
    out.note(format!(
        "copied {} to {} ({size})",
        store.path().display(),
        args.file.display()
    ));
    Ok(0)
}
