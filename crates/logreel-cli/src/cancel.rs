//! `logreel cancel`: ends a run now, whoever drives it.

use logreel::view::RunView;
use logreel::{CancelOutcome, ErrorKind, RunId, Session, Status};

use crate::error::Failure;
use crate::name;
use crate::output::Output;
use crate::store::{Opened, Place};

#[derive(clap::Args)]
pub struct Args {
    /// Which run
    #[arg(required_unless_present = "session", conflicts_with = "session")]
    run: Option<String>,
    /// The active run of this session instead
    #[arg(long, value_name = "S")]
    session: Option<Session>,
    /// Why; recorded in the run's log
    #[arg(long, value_name = "TEXT", default_value = "from the command line")]
    reason: String,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.speak().await?;
    let run = match (&args.run, &args.session) {
        (Some(name), _) => name::resolve(&*opened.store, name).await?,
        (None, Some(session)) => active(&opened, session).await?,
        (None, None) => return Err(Failure::new(ErrorKind::Usage, "name a run").into()),
    };
    match opened.engine.cancel(&run, args.reason).await? {
        CancelOutcome::Requested => out.note(format!("{} is cancelled", run.short())),
        CancelOutcome::AlreadyTerminal(Status::Cancelled) => {
            out.note(format!("{} had been cancelled before", run.short()));
        }
        CancelOutcome::AlreadyTerminal(status) => {
            let message = format!("{run} has {status}; there is nothing to cancel");
            return Err(Failure::new(ErrorKind::Terminal, message).into());
        }
        // Deleted since it was found.
        CancelOutcome::NotFound => return Err(logreel::store::Error::NotFound(run).into()),
    }
    if out.json {
        out.json_line(&RunView::of(&opened.store.entry(&run).await?))?;
    }
    opened.engine.close().await?;
    Ok(0)
}

async fn active(opened: &Opened, session: &Session) -> anyhow::Result<RunId> {
    let info = opened.engine.session(session.as_str())?.info().await?;
    let info = info.ok_or_else(|| unknown(session))?;
    info.active.ok_or_else(|| {
        let message = format!("session {session} has no active run");
        Failure::new(ErrorKind::NotApplicable, message).into()
    })
}

/// No such session.
pub fn unknown(session: &Session) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no session {:?}", session.as_str()),
    )
    .hint("`logreel sessions` lists them")
}
