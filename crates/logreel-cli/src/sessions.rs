//! `logreel sessions`: conversations, and the end of one.

use logreel::store::{SessionInfo, SystemEnv};
use logreel::{Env as _, Session};
use serde_json::{Value, json};

use crate::cancel::unknown;
use crate::output::{Output, Page, Paint};
use crate::store::Place;
use crate::table::{self, Cell, Column, left, right};
use crate::text;

const COLUMNS: &[Column] = &[
    left("SESSION", 40),
    right("RUNS", 9),
    left("ACTIVE", 8),
    right("LAST", 4),
    left("STATE", 8),
];

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Refuse new runs in a session and end its active one
    Close {
        /// Which session
        #[arg(value_name = "S")]
        session: Session,
    },
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    if let Some(Verb::Close { session }) = args.verb {
        // A name nobody used is a slip, not a session to close.
        let handle = opened.engine.session(session.as_str())?;
        if handle.info().await?.is_none() {
            return Err(unknown(&session).into());
        }
        let closed = handle.close().await;
        // Closing may have made this process an owner; it must not stay one.
        opened.engine.close().await?;
        closed?;
        out.note(format!("session {session} is closed"));
        if out.json {
            let closed = handle.info().await?;
            out.json_line(&closed.as_ref().map(view))?;
        }
        return Ok(0);
    }
    let sessions = opened.engine.sessions().await?;
    if out.json {
        let items = sessions.iter().map(view).collect();
        out.json_line(&Page {
            items,
            next: None,
            has_more: false,
        })?;
        return Ok(0);
    }
    if sessions.is_empty() {
        out.note("no sessions");
        return Ok(0);
    }
    let now = SystemEnv.now();
    let rows: Vec<Vec<Cell>> = sessions
        .iter()
        .map(|info| {
            let last = info.last_created_at.map(|at| text::age(now.since(at)));
            vec![
                text::one_line(info.session.as_str()).into(),
                info.runs.to_string().into(),
                Cell::painted(
                    info.active.map(|run| run.short()).unwrap_or_default(),
                    Paint::Busy,
                ),
                last.unwrap_or_default().into(),
                Cell::painted(if info.closed { "closed" } else { "open" }, Paint::Dim),
            ]
        })
        .collect();
    table::print(out, "", COLUMNS, &rows)?;
    Ok(0)
}

fn view(info: &SessionInfo) -> Value {
    let SessionInfo {
        session,
        runs,
        active,
        last_created_at,
        closed,
    } = info;
    json!({
        "session": session, "runs": runs, "active": active,
        "last_created_at": last_created_at, "closed": closed,
    })
}
