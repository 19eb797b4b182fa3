//! Sessions: the list, and the end of what goes on in one.

use logreel::store::SessionInfo;
use logreel::{ErrorKind, RunId, SessionHandle, Timestamp};
use serde::{Deserialize, Serialize};

use crate::answer::{self, Page};
use crate::call::Call;
use crate::operation::Answered;
use crate::{Problem, say};

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

/// `GET /v1/sessions`
pub(crate) async fn list(call: Call) -> Answered {
    let sessions = call.app.engine.sessions().await?.into_iter();
    answer::json(&Page {
        items: sessions.map(View::from).collect(),
        next: None::<String>,
        has_more: false,
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
    drop(session);
    let Some(run) = info.active else {
        let detail = format!("session {} has no active run", info.session);
        return Err(Problem::new(ErrorKind::NotApplicable, detail));
    };
    say::stop(&call, &run, reason).await?;
    answer::run(&call.app, &run).await
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
