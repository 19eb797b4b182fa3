//! A store that cannot be reached for an hour is told of once, not two times a second, and asked less and less
//! often.

use std::ops::ControlFlow;
use std::time::Duration;

use logreel_core::RunId;
use logreel_store::Env;

use crate::Error;

/// How long a driver that was told to stop waits for a store that cannot be reached. Before that it waits as
/// long as it takes: what it has was done, and would be done again.
const STOPPED_MAX: Duration = Duration::from_secs(30);
/// How long is waited before an append is sent again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What one loop knows of the store it asks again and again.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    is_told: bool,
}

impl Outage {
    /// It failed: said the first time, and again only after it had answered.
    pub(crate) fn tell(&mut self, run: &RunId, error: &Error, what: &str) {
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(%run, %error, "{what}");
        } else {
            tracing::warn!(%run, %error, "{what}; trying again until it can be reached");
        }
    }

    /// It answered.
    pub(crate) fn is_over(&mut self) {
        self.is_told = false;
    }
}

/// What an append that must land knows of the store that does not take it: since when, and how long to wait before
/// it is sent again.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Option<Duration>,
    pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            since: None,
            pause: AGAIN.0,
        }
    }
}

impl Patience {
    /// Waits. Breaks off when its driver was told to stop and has waited long enough.
    pub(crate) async fn wait(
        &mut self,
        env: &dyn Env,
        run: &RunId,
        error: &Error,
        is_stopped: bool,
    ) -> ControlFlow<()> {
        let now = env.monotonic();
        // Said once: a full disk would be told of fifty times a second.
        let since = *self.since.get_or_insert_with(|| {
            tracing::warn!(%run, %error, "appending again until it lands");
            now
        });
        if is_stopped && now.saturating_sub(since) > STOPPED_MAX {
            return ControlFlow::Break(());
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(AGAIN.1);
        env.sleep(pause).await;
        ControlFlow::Continue(())
    }
}
