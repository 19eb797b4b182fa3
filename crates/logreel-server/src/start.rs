//! Starting runs, and what can be started.

use std::collections::BTreeMap;
use std::time::Duration;

use logreel::{ErrorKind, IfBusy, Json, RunId, Session};
use serde::Deserialize;
use serde_json::Value;

use crate::answer::{self, Page};
use crate::call::Call;
use crate::operation::Answered;
use crate::specs::{NewRun, What};
use crate::{Problem, Role, external};

/// How long `if_busy` waits for the session to be free; then it is answered as busy, and may be asked again.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
const BUSY_LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    spec: Value,
    #[serde(default = "Json::null")]
    input: Json,
    session: Option<Session>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    key: Option<String>,
    id: Option<RunId>,
    #[serde(default)]
    if_busy: Busy,
    #[serde(default)]
    driver: Driver,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Busy {
    #[default]
    Reject,
    Wait,
    Interrupt,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Driver {
    /// Whoever works on this store.
    #[default]
    Worker,
    /// The caller.
    External,
}

impl From<Busy> for IfBusy {
    fn from(busy: Busy) -> Self {
        match busy {
            Busy::Reject => Self::Reject,
            Busy::Wait => Self::Wait,
            Busy::Interrupt => Self::Interrupt,
        }
    }
}

/// `POST /v1/runs`
pub(crate) async fn run(call: Call) -> Answered {
    let said: Said = call.required_json()?;
    let key = match said.key {
        Some(key) if key.is_empty() => return Err(Problem::invalid("`key` is empty")),
        Some(key) => Some(key),
        None => call.idempotency_key()?,
    };
    let new = NewRun {
        input: said.input,
        session: said.session,
        labels: said.labels,
        key,
        id: said.id,
        if_busy: said.if_busy.into(),
    };
    if said.driver == Driver::External {
        return patiently(&call, new, |new| {
            external::start(&call, said.spec.clone(), new)
        })
        .await;
    }
    let what = match said.spec {
        Value::String(name) => What::Named(name),
        Value::Object(_) => {
            if !call.app.allow_inline {
                let detail =
                    "a spec inside the request is running any program, and not allowed here";
                return Err(Problem::new(ErrorKind::Forbidden, detail).hint(
                    "`serve --allow-inline` allows it; GET /v1/specs lists what has a name",
                ));
            }
            call.require(Role::Admin, "a spec inside the request")?;
            What::Inline(said.spec)
        }
        other => {
            let detail = format!("`spec` is {other}; expected a name or a spec");
            return Err(Problem::invalid(detail));
        }
    };
    let begun = patiently(&call, new, |new| call.app.specs.start(what.clone(), new)).await?;
    match begun.attached {
        true => answer::run(&call.app, &begun.run).await,
        false => answer::made(&call.app, &begun.run).await,
    }
}

/// Starts it, waiting for a busy session for as long as a client may be expected to. It is asked for again and
/// again rather than given up half-way: what was started then would be nobody's.
async fn patiently<T, Starting>(
    call: &Call,
    mut new: NewRun,
    start: impl Fn(NewRun) -> Starting,
) -> Result<T, Problem>
where
    Starting: Future<Output = Result<T, Problem>>,
{
    let (engine, env) = (&call.app.engine, call.app.engine.env());
    let if_busy = std::mem::replace(&mut new.if_busy, IfBusy::Reject);
    let begun = env.monotonic();
    loop {
        let busy = match start(new.clone()).await {
            Err(problem) if problem.kind == ErrorKind::Busy => problem,
            done => return done,
        };
        let session = match &new.session {
            Some(session) if if_busy != IfBusy::Reject => engine.session(session.as_str())?,
            _ => return Err(busy),
        };
        // A closed one does not become free.
        let closed = session.info().await?.is_some_and(|info| info.closed);
        if closed || env.monotonic().saturating_sub(begun) >= BUSY_TIME_MAX {
            return Err(busy);
        }
        if if_busy == IfBusy::Interrupt {
            session.cancel("interrupted by a new run").await?;
        }
        env.sleep(BUSY_LOOK_AGAIN).await;
    }
}

/// `GET /v1/specs`
pub(crate) async fn specs(call: Call) -> Answered {
    answer::json(&Page {
        items: call.app.specs.list().await?,
        next: None::<String>,
        has_more: false,
    })
}
