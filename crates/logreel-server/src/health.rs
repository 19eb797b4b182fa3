//! Whether the store can be read and written.

use std::time::Duration;

use axum::http::StatusCode;
use logreel::RunId;
use logreel::core::Epoch;
use logreel::store::{Error, OwnerId};
use serde::Serialize;

use crate::answer;
use crate::app::App;
use crate::call::Call;
use crate::operation::Answered;

/// A store that takes longer is not there.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Anyone may ask, and nobody shall keep the writer busy by asking: what was found holds for so long.
const HOLDS: Duration = Duration::from_secs(1);

/// Whether the store could be read and written when someone last asked, and when that was.
#[derive(Default)]
pub(crate) struct LastSeen(tokio::sync::Mutex<Option<(Duration, bool, bool)>>);

#[derive(Serialize)]
struct Health {
    status: &'static str,
    store: &'static str,
    writer: &'static str,
    version: &'static str,
    driving: usize,
}

/// `GET /health`
pub(crate) async fn answer(call: Call) -> Answered {
    let app = &call.app;
    let (store, writer) = looked(app).await;
    let is_well = store && writer;
    let mut response = answer::json(&Health {
        status: if is_well { "ok" } else { "unavailable" },
        store: if store { "reachable" } else { "unreachable" },
        writer: if writer { "alive" } else { "stuck" },
        version: env!("CARGO_PKG_VERSION"),
        driving: app.engine.driving(),
    })?;
    if !is_well {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

/// Looks, unless someone has just done that; those who ask meanwhile wait for the same answer.
async fn looked(app: &App) -> (bool, bool) {
    let mut last = app.health.0.lock().await;
    let now = app.engine.env().monotonic();
    if let Some((at, store, writer)) = *last
        && now.saturating_sub(at) < HOLDS
    {
        return (store, writer);
    }
    let store = within(app, can_read(app)).await;
    let writer = within(app, can_write(app)).await;
    *last = Some((app.engine.env().monotonic(), store, writer));
    (store, writer)
}

async fn within(app: &App, holds: impl Future<Output = bool>) -> bool {
    tokio::select! {
        holds = holds => holds,
        () = app.engine.env().sleep(TIME_MAX) => false,
    }
}

/// A run that cannot exist is looked for: what is wrong with one that does is not the store's.
const NOBODY: RunId = RunId::from_bytes([0; 16]);

async fn can_read(app: &App) -> bool {
    is_answered(app.engine.store().entry(&NOBODY).await)
}

/// Gives back a lease of that run: a whole write transaction that writes nothing.
async fn can_write(app: &App) -> bool {
    let store = app.engine.store();
    is_answered(store.release(&NOBODY, Epoch(0), OwnerId(0)).await)
}

fn is_answered<T>(asked: Result<T, Error>) -> bool {
    match asked {
        Ok(_) | Err(Error::NotFound(_)) => true,
        Err(error) => {
            tracing::error!(%error, "the store is not well");
            false
        }
    }
}
