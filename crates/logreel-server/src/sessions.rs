//! Sessions: the list, and the end of what goes on in one.

use logreel::store::SessionInfo;
use logreel::{CancelOutcome, Entry, ErrorKind, Filter, RunId, SessionHandle, Status, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Problem;
use crate::answer::{self, Page};
use crate::call::Call;
use crate::operation::Answered;

#[derive(Serialize)]
struct View {
    session: String,
    runs: u64,
    active: Option<RunId>,
    last_created_at: Option<Timestamp>,
    closed: bool,
}

impl From<SessionInfo> for View {
    fn from(info: SessionInfo) -> Self {
        Self {
            session: info.session.as_str().to_owned(),
            runs: info.runs,
            active: info.active,
            last_created_at: info.last_created_at,
            closed: info.closed,
        }
    }
}

const LIMIT: u64 = 50;
pub(crate) const LIMIT_MAX: u64 = 1000;

/// `GET /v1/sessions`
pub(crate) async fn list(call: Call) -> Answered {
    let limit = call.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
    let limit = usize::try_from(limit).unwrap_or(1);
    let mut sessions = call.app.engine.sessions().await?;
    // A cursor is the last session that the caller has.
    if let Some(last) = call.query("cursor") {
        let mut had = sessions.iter();
        let had = had.position(|info| info.session.as_str() == last);
        let none = || Problem::usage(format!("`cursor`: there is no session {last:?}"));
        sessions.drain(..=had.ok_or_else(none)?);
    }
    let has_more = sessions.len() > limit;
    sessions.truncate(limit);
    let last = sessions.last().map(|info| info.session.as_str().to_owned());
    answer::json(&Page {
        items: sessions.into_iter().map(View::from).collect(),
        next: last.filter(|_| has_more),
        has_more,
    })
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Said {
    reason: Option<String>,
}

/// `POST /v1/sessions/{s}/cancel`
pub(crate) async fn cancel(call: Call) -> Answered {
    let Said { reason } = call.json()?;
    let (session, info) = known(&call).await?;
    let reason = reason.unwrap_or_else(|| format!("by {}", call.by()));
    let cancel = call.under_key(session.cancel(reason))?;
    match cancel.await? {
        CancelOutcome::Requested | CancelOutcome::AlreadyTerminal(_) => {}
        // Cancelling twice is harmless, as it is by a run's id.
        CancelOutcome::NotFound => {
            let latest = latest(&call, &info, Vec::new()).await?;
            let latest = latest.filter(|entry| entry.row.status() == Status::Cancelled);
            let entry = latest.ok_or_else(|| {
                let detail = format!("session {} has no active run", info.session);
                Problem::new(ErrorKind::NotApplicable, detail)
            })?;
            return answer::whole(&call.app, &entry).await;
        }
    }
    let run = match info.active {
        Some(run) => run,
        // The same request again: it is about the run that it cancelled.
        None => {
            let cancelled = latest(&call, &info, vec![Status::Cancelled]).await?;
            let gone = || Problem::not_found("the run that was cancelled is not there any more");
            cancelled.ok_or_else(gone)?.row.run
        }
    };
    answer::run(&call.app, &run).await
}

/// The session's latest run, of any of these statuses.
async fn latest(
    call: &Call,
    info: &SessionInfo,
    status: Vec<Status>,
) -> Result<Option<Entry>, Problem> {
    let filter = Filter {
        session: Some(info.session.clone()),
        status,
        ..Filter::default()
    };
    let page = call.app.engine.store().list(&filter, None, 1).await?;
    Ok(page.items.into_iter().next())
}

/// `POST /v1/sessions/{s}/close`
pub(crate) async fn close(call: Call) -> Answered {
    let (session, _) = known(&call).await?;
    session.close().await?;
    let (_, info) = known(&call).await?;
    answer::json(&View::from(info))
}

/// The session of the path; a name that nobody used is a slip.
async fn known(call: &Call) -> Result<(SessionHandle, SessionInfo), Problem> {
    let name = call.param("session");
    let unknown = || {
        Problem::not_found(format!("there is no session {name:?}"))
            .hint("GET /v1/sessions lists them")
    };
    let session = call.app.engine.session(name).map_err(|_| unknown())?;
    let info = session.info().await?.ok_or_else(unknown)?;
    Ok((session, info))
}
