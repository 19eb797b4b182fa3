//! `logreel migrate`: brings a store's tables to this build's version, or says what that would change.

use logreel::store::Migrations;
use logreel::{PostgresStore, SqliteStore};
use serde_json::json;

use crate::output::Output;
use crate::store::{Missing, Place, Spot};
use crate::text;

const EXAMPLES: &str = "\
Verbs that start something do this by themselves when they find an older store, and any number of processes may at
once. A file is brought up to date by whoever opens it. A store that a newer logreel made is refused.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let spot = place.find()?;
    let (shown, found) = match &spot {
        Spot::File(path) => (path.display().to_string(), SqliteStore::migrations(path)?),
        Spot::Database(url) => (url.shown()?, PostgresStore::migrations(url.secret()).await?),
    };
    if !args.dry_run {
        let acting = place.act(Missing::Make, None, out).await?;
        acting.engine.close().await?;
    }
    tell(&shown, &found, args.dry_run, out)?;
    Ok(0)
}

fn tell(shown: &str, found: &Migrations, dry_run: bool, out: &mut Output) -> anyhow::Result<()> {
    if out.json {
        let migrations = found.pending.iter();
        let migrations = migrations.map(|it| json!({"number": it.number, "what": it.what}));
        return out.json_line(&json!({
            "store": shown, "dry_run": dry_run, "found": found.found, "known": found.known,
            "migrations": migrations.collect::<Vec<_>>(),
        }));
    }
    for migration in &found.pending {
        out.line(format!("{} {}", migration.number, migration.what))?;
    }
    out.flush()?;
    let count = text::count(found.pending.len() as u64, "migration");
    out.note(match (found.pending.is_empty(), dry_run) {
        (true, _) => format!("{shown} is up to date (schema {})", found.known),
        (false, true) => format!("{shown}: {count} would be done"),
        (false, false) => format!("{shown}: {count} done, schema {} now", found.known),
    });
    Ok(())
}
