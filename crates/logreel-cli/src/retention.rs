//! Retention: what the settings let go is pruned by whoever serves or works, at the start and once an hour.
//!
//! Every such process does it, as `prune` does: two at once find each other's runs gone, and go on.

use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::{Engine, Env as _, Prune};

use crate::output::Output;
use crate::settings::Retention;
use crate::text;

const EVERY: Duration = Duration::from_secs(60 * 60);

/// Prunes again and again; ends only by being dropped.
pub async fn keep(engine: &Engine, retention: Option<&Retention>, out: &Output) {
    let Some(retention) = retention else {
        return std::future::pending().await;
    };
    let what = Prune {
        older_than: retention.older_than,
        keep_last: retention
            .keep_last
            .map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
        status: retention.status.clone(),
        labels: Vec::new(),
    };
    loop {
        let pruned = engine.prune(&what).await;
        for (run, why) in pruned.iter().flat_map(|pruned| &pruned.failed) {
            tracing::warn!(%run, why, "a run could not be pruned by `retention`");
        }
        match pruned {
            Ok(pruned) if pruned.runs.is_empty() => {}
            Ok(pruned) => out.note(format!(
                "pruned {} by `retention`: {}",
                text::count(pruned.runs.len() as u64, "run"),
                text::bytes(pruned.bytes)
            )),
            // The next time is soon enough.
            Err(error) => tracing::warn!(%error, "nothing was pruned by `retention`"),
        }
        SystemEnv.sleep(EVERY).await;
    }
}
