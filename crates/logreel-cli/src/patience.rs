//! A store that cannot be reached for a while, for whoever drives, follows or waits for a run: who leaves would stop its
//! commands, or not see its end, so it is asked again until it answers.

use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::{Engine, Env as _, ErrorKind};

/// How often a store that is away is asked.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Whether the store is away, which is said once each time.
#[derive(Debug, Default)]
pub struct Patience {
    away: bool,
}

impl Patience {
    /// What the store answered; `None` when it is away and is to be asked again, later.
    pub fn bear<T>(&mut self, asked: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match asked {
            Ok(answer) => {
                if std::mem::take(&mut self.away) {
                    tracing::warn!("the store is back");
                }
                Ok(Some(answer))
            }
            Err(error) if is_away(&error) => {
                if !std::mem::replace(&mut self.away, true) {
                    tracing::warn!(%error, "the store cannot be reached; trying again until it can");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks until the store answers.
    pub async fn ask<T, F>(&mut self, ask: impl Fn() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        loop {
            if let Some(answer) = self.bear(ask().await)? {
                return Ok(answer);
            }
            pause().await;
        }
    }
}

/// A while, before the store is asked again.
pub async fn pause() {
    SystemEnv.sleep(ASK_AGAIN).await;
}

/// Whether it was the store that could not be reached. Our own files and pipes are no store.
pub fn is_away(error: &anyhow::Error) -> bool {
    use logreel::store::Error as Store;
    let of_store =
        |error: &Store| matches!(error, Store::Unavailable { .. } | Store::Ambiguous { .. });
    match error.downcast_ref::<logreel::Error>() {
        // An engine that is closed does not open again.
        Some(logreel::Error::Closed) => false,
        Some(error) => error.kind() == ErrorKind::Unavailable,
        None => error.downcast_ref::<Store>().is_some_and(of_store),
    }
}

/// Gives leases back and ends what was started. A store that is away cannot be told, and that is no failure of what was
/// done: others see that this process is gone.
pub async fn close(engine: &Engine) -> anyhow::Result<()> {
    match engine.close().await {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            tracing::warn!(%error, "the store was not told that this process leaves; others will find out");
            Ok(())
        }
        closed => Ok(closed?),
    }
}
