//! What commands print while they run, for live views in the process that drives them.

use std::sync::Arc;

use logreel_core::{RunId, StepId};
use tokio::sync::broadcast;

/// Lines that a slow watcher may be behind before it misses some.
const BEHIND_MAX: usize = 1024;

/// Where a line was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line that a step's command printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLine {
    /// Whose.
    pub run: RunId,
    /// Of which step.
    pub step: StepId,
    /// Where.
    pub stream: Stream,
    /// What, without its end of line.
    pub text: Arc<str>,
}

/// Tells whoever watches; nobody may.
pub(crate) struct Live(broadcast::Sender<LiveLine>);

impl Default for Live {
    fn default() -> Self {
        Self(broadcast::Sender::new(BEHIND_MAX))
    }
}

impl Live {
    pub(crate) fn tell(&self, line: LiveLine) {
        if self.0.send(line).is_err() {
            tracing::trace!("nobody watches");
        }
    }

    pub(crate) fn subscribe(&self) -> LiveLines {
        LiveLines(self.0.subscribe())
    }
}

/// Lines as they are printed; made by [`crate::Engine::live`].
pub struct LiveLines(broadcast::Receiver<LiveLine>);

impl LiveLines {
    /// The next line; `None` when the engine is gone. Lines that were missed are left out.
    pub async fn next(&mut self) -> Option<LiveLine> {
        loop {
            match self.0.recv().await {
                Ok(line) => return Some(line),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::debug!(missed, "a watcher was too slow");
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
