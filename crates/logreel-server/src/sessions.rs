//! Sessions: the list, and the end of what goes on in one.

use std::cmp::Reverse;

use logreel::store::SessionInfo;
use logreel::{ErrorKind, Filter, RunId, SessionHandle, Status, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Problem;
use crate::answer::{self, Page};
use crate::call::Call;
use crate::operation::Answered;
use crate::say;

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
    let after = call.query("cursor").map(Place::parse).transpose()?;
    let mut sessions = call.app.engine.sessions().await?;
    sessions.sort_by_cached_key(Place::of);
    if let Some(after) = after {
        let had = sessions.partition_point(|info| Place::of(info) <= after);
        sessions.drain(..had);
    }
    let has_more = sessions.len() > limit;
    sessions.truncate(limit);
    let last = sessions.last().map(|info| Place::of(info).cursor());
    answer::json(&Page {
        items: sessions.into_iter().map(View::from).collect(),
        next: last.filter(|_| has_more),
        has_more,
    })
}

/// Where a session stands in the list: latest first, those without a run last, equal ones by name. A cursor is the place
/// of the last one that the caller has. A session with a new run moves to the front, and what comes after that place stays
/// what it was.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    latest: Reverse<Option<i64>>,
    name: String,
}

impl Place {
    fn of(info: &SessionInfo) -> Self {
        Self {
            latest: Reverse(info.last_created_at.map(Timestamp::as_micros)),
            name: info.session.as_str().to_owned(),
        }
    }

    fn cursor(&self) -> String {
        let at = self.latest.0.map(|at| at.to_string());
        format!("{}:{}", at.unwrap_or_default(), self.name)
    }

    fn parse(cursor: &str) -> Result<Self, Problem> {
        let none = || Problem::usage(format!("`cursor` is {cursor:?}, which no page ended with"));
        let (at, name) = cursor.split_once(':').ok_or_else(none)?;
        let latest = match at {
            "" => None,
            at => Some(at.parse().map_err(|_| none())?),
        };
        Ok(Self {
            latest: Reverse(latest),
            name: name.to_owned(),
        })
    }
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
    let cancel = call.under_key(session.cancel_active(reason))?;
    if let Some((run, outcome)) = cancel.await? {
        say::stopped(&run, outcome)?;
        return answer::run(&call.app, &run).await;
    }
    // Cancelling twice is harmless, as it is by a run's id.
    let filter = Filter {
        session: Some(info.session.clone()),
        ..Filter::default()
    };
    let latest = call.app.engine.store().list(&filter, None, 1).await?;
    let latest = latest.items.into_iter().next();
    let latest = latest.filter(|entry| entry.row.status() == Status::Cancelled);
    let entry = latest.ok_or_else(|| {
        let detail = format!("session {} has no active run", info.session);
        Problem::new(ErrorKind::NotApplicable, detail)
    })?;
    answer::whole(&call.app, &entry).await
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
