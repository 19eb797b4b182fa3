//! Runs that the caller drives: leases, appends, and blobs that come ahead of them.

use axum::http::{HeaderValue, StatusCode, header};
use logreel::core::Epoch;
use logreel::view::{EventView, RunView};
use logreel::{
    Digest, Entry, ErrorKind, ExternalAppend, ExternalFact, ExternalLease, Head, HeadMoved, Json,
    LeaseSecret, Record, RunId, SavedCheckpoint, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Problem;
use crate::answer;
use crate::call::Call;
use crate::operation::Answered;
use crate::specs::NewRun;

/// The header in which a lease's secret travels.
pub(crate) const LEASE: &str = "logreel-lease";

#[derive(Serialize)]
struct LeaseView<'a> {
    epoch: Epoch,
    secret: &'a str,
    expires_at: Timestamp,
}

#[derive(Serialize)]
struct StartedView<'a> {
    run: RunView,
    lease: Option<LeaseView<'a>>,
    head: Head,
    checkpoint: Option<CheckpointView<'a>>,
}

#[derive(Serialize)]
struct CheckpointView<'a> {
    checkpoint: &'a str,
    seq: u64,
    step: Option<String>,
    data: &'a Json,
}

#[derive(Serialize)]
struct AppendedView<'a> {
    head: Head,
    events: Vec<EventView<'a>>,
    repeated: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    epoch: Epoch,
    expect: Head,
    append_id: String,
    events: Vec<SaidFact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaidFact {
    kind: String,
    body: Json,
    #[serde(default)]
    caller_at: Option<Timestamp>,
}

/// `POST /v1/runs` with `driver: external`. What the spec says is recorded and nothing of it is run, so
/// that anyone who may start a run may say it.
pub(crate) async fn start(call: &Call, spec: Value, new: NewRun) -> Answered {
    let (name, spec) = match spec {
        Value::String(name) => (name, None),
        Value::Object(fields) => match fields.get("name").and_then(Value::as_str) {
            Some(name) => (name.to_owned(), Some(Value::Object(fields))),
            None => return Err(Problem::invalid("`spec` has no `name`, a text")),
        },
        other => {
            let detail = format!("`spec` is {other}; expected a name or an object that has one");
            return Err(Problem::invalid(detail));
        }
    };
    if name.trim().is_empty() {
        return Err(Problem::invalid("the spec's name is empty"));
    }
    let mut start = call
        .app
        .engine
        .external()
        .start(name)
        .input(&new.input)
        .if_busy(new.if_busy);
    if let Some(spec) = spec {
        start = start.spec(spec);
    }
    if let Some(session) = new.session {
        start = start.session(session.as_str());
    }
    if let Some(key) = new.key {
        start = start.key(key);
    }
    if let Some(id) = new.id {
        start = start.id(id);
    }
    for (name, value) in new.labels {
        start = start.label(name, value);
    }
    let started = start.await?;
    let mut response = given(&started.entry, started.lease.as_ref(), None)?;
    if started.lease.is_some() {
        *response.status_mut() = StatusCode::CREATED;
    }
    let place = format!("/v1/runs/{}", started.entry.row.run);
    let place = HeaderValue::from_str(&place).expect("an id is ASCII");
    response.headers_mut().insert(header::LOCATION, place);
    Ok(response)
}

/// `POST /v1/runs/{id}/lease`
pub(crate) async fn claim(call: Call) -> Answered {
    let run = call.run().await?;
    let claim = call.app.engine.external().claim(&run).await?;
    given(&claim.entry, Some(&claim.lease), claim.checkpoint.as_ref())
}

/// `PUT /v1/runs/{id}/lease`
pub(crate) async fn renew(call: Call) -> Answered {
    let run = call.run().await?;
    let lease = call
        .app
        .engine
        .external()
        .renew(&run, &secret(&call)?)
        .await?;
    let entry = call.app.engine.store().entry(&run).await?;
    given(&entry, Some(&lease), None)
}

/// `DELETE /v1/runs/{id}/lease`
pub(crate) async fn release(call: Call) -> Answered {
    let run = call.run().await?;
    let external = call.app.engine.external();
    external.release(&run, &secret(&call)?).await?;
    answer::run(&call.app, &run).await
}

/// `POST /v1/runs/{id}/events`
pub(crate) async fn append(call: Call) -> Answered {
    let run = call.run().await?;
    let said: Said = call.required_json()?;
    let facts = said.events.into_iter().map(|fact| ExternalFact {
        kind: fact.kind,
        body: fact.body,
        caller_at: fact.caller_at,
    });
    let append = ExternalAppend {
        epoch: said.epoch,
        secret: secret(&call)?,
        expect: said.expect,
        append_id: said.append_id,
        facts: facts.collect(),
    };
    let appended = match call.app.engine.external().append(&run, append).await {
        Ok(appended) => appended,
        Err(logreel::Error::HeadMoved(moved)) => return Err(conflict(&call, *moved).await),
        Err(error) => return Err(error.into()),
    };
    let store = call.app.engine.store();
    let mut records = Vec::new();
    // A page may be shorter than was asked for.
    while let Some(next) = appended.events.get(records.len()) {
        let left = appended.events.len() - records.len();
        let page = store.read(&run, next.seq, left).await?;
        if page.items.is_empty() {
            return Err(Problem::new(
                ErrorKind::Bug,
                "what was appended is not there",
            ));
        }
        records.extend(page.items);
    }
    let key = store.key(&run).await?;
    let views = records
        .iter()
        .map(|it| EventView::of(run, it, key.as_ref()));
    answer::json(&AppendedView {
        head: appended.head,
        events: views.collect(),
        repeated: appended.repeated,
    })
}

/// `PUT /v1/blobs/{digest}?run=`
pub(crate) async fn put_blob(call: &Call, digest: Digest) -> Answered {
    let Some(name) = call.query("run") else {
        return Err(Problem::usage("`run` says whose the blob is to be"));
    };
    let run = call.run_named(name).await?;
    let sent = Digest::of(&call.body);
    if sent != digest {
        let detail = format!("what was sent has the digest {sent}");
        return Err(Problem::invalid(detail));
    }
    let external = call.app.engine.external();
    external.put_blob(&run, call.body.to_vec()).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// The lease's secret, which is no part of any address or body.
fn secret(call: &Call) -> Result<LeaseSecret, Problem> {
    let said = call.headers.get(LEASE).and_then(|it| it.to_str().ok());
    let missing = || {
        Problem::new(ErrorKind::Forbidden, "the lease's secret is missing")
            .hint("send it as the header `Logreel-Lease`")
    };
    said.map(LeaseSecret::new).ok_or_else(missing)
}

fn given(
    entry: &Entry,
    lease: Option<&ExternalLease>,
    checkpoint: Option<&SavedCheckpoint>,
) -> Answered {
    let lease = lease.map(|lease| LeaseView {
        epoch: lease.epoch,
        secret: lease.secret.reveal(),
        expires_at: lease.expires_at,
    });
    let checkpoint = checkpoint.map(|saved| CheckpointView {
        checkpoint: &saved.checkpoint,
        seq: saved.seq.0,
        step: saved.step.as_ref().map(ToString::to_string),
        data: &saved.data,
    });
    let head = entry.row.head;
    let mut response = answer::json(&StartedView {
        run: RunView::of(entry),
        lease,
        head,
        checkpoint,
    })?;
    // A secret is in it.
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A conflict with where the log ends, and what the caller has not seen of it.
async fn conflict(call: &Call, moved: HeadMoved) -> Problem {
    let run: RunId = moved.run;
    let key = match call.app.engine.store().key(&run).await {
        Ok(key) => key,
        Err(error) => return error.into(),
    };
    let records: &[Record] = &moved.since.items;
    let views: Vec<EventView<'_>> = records
        .iter()
        .map(|it| EventView::of(run, it, key.as_ref()))
        .collect();
    let events = Json::of(&views).unwrap_or_else(|_| Json::null());
    let (head, has_more) = (moved.head, moved.since.has_more);
    Problem::from(logreel::Error::HeadMoved(Box::new(moved.clone())))
        .hint("fold `events`, decide again, and append on `head`")
        .member("head", &head)
        .member("events", &events)
        .member("has_more", &has_more)
}
