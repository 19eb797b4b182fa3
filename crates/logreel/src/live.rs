//! What commands print and models say while they run, for live views in the process that drives them.

use std::sync::Arc;

use logreel_core::{CallId, RunId, StepId};
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

/// A piece of a model's answer while it comes in. Provisional: only the sealed message counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveText {
    /// Whose.
    pub run: RunId,
    /// Of which call.
    pub call: CallId,
    /// Of which attempt at it; a new one begins with [`Shown::Reset`].
    pub attempt: u32,
    /// What.
    pub shown: Shown,
}

/// What a watcher of live text is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// An attempt begins: what was shown of the call before is void.
    Reset,
    /// Words of the answer.
    Text(Arc<str>),
    /// Words that lead to it.
    Thinking(Arc<str>),
    /// It begins to call this tool.
    ToolCall(Arc<str>),
}

/// Tells whoever watches; nobody may.
pub(crate) struct Live {
    lines: broadcast::Sender<LiveLine>,
    texts: broadcast::Sender<LiveText>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            lines: broadcast::Sender::new(BEHIND_MAX),
            texts: broadcast::Sender::new(BEHIND_MAX),
        }
    }
}

impl Live {
    pub(crate) fn tell(&self, line: LiveLine) {
        if self.lines.send(line).is_err() {
            tracing::trace!("nobody watches");
        }
    }

    pub(crate) fn subscribe(&self) -> LiveLines {
        LiveLines(self.lines.subscribe())
    }

    pub(crate) fn tell_text(&self, text: LiveText) {
        if self.texts.send(text).is_err() {
            tracing::trace!("nobody watches");
        }
    }

    pub(crate) fn subscribe_texts(&self) -> LiveTexts {
        LiveTexts(self.texts.subscribe())
    }
}

/// Lines as they are printed; made by [`crate::Engine::live`].
pub struct LiveLines(broadcast::Receiver<LiveLine>);

impl LiveLines {
    /// The next line; `None` when the engine is gone. Lines that were missed are left out.
    pub async fn next(&mut self) -> Option<LiveLine> {
        next(&mut self.0).await
    }
}

/// Answers as they come in; made by [`crate::Engine::live_text`].
pub struct LiveTexts(broadcast::Receiver<LiveText>);

impl LiveTexts {
    /// The next piece; `None` when the engine is gone. Pieces that were missed are left out.
    pub async fn next(&mut self) -> Option<LiveText> {
        next(&mut self.0).await
    }

    /// The next piece that was said already, without waiting for one; or how many pieces were missed
    /// before it, so that nobody takes what follows for the whole.
    pub fn try_next(&mut self) -> Option<Result<LiveText, Missed>> {
        use broadcast::error::TryRecvError;
        match self.0.try_recv() {
            Ok(text) => Some(Ok(text)),
            Err(TryRecvError::Lagged(pieces)) => Some(Err(Missed { pieces })),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}

/// A watcher was too slow: pieces that it will not hear, of any run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// How many.
    pub pieces: u64,
}

async fn next<T: Clone>(receiver: &mut broadcast::Receiver<T>) -> Option<T> {
    loop {
        match receiver.recv().await {
            Ok(told) => return Some(told),
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                tracing::debug!(missed, "a watcher was too slow");
            }
            Err(broadcast::error::RecvError::Closed) => return None,
        }
    }
}
