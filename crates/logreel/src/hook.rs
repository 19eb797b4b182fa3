//! Hooks: the embedder's own code, told of every event of the runs this process drives.
//!
//! A hook fires at most once per event: in the process that drives the run, whoever appended the
//! event, or when nobody drives it in the process that appended it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use logreel_core::{Event, RunId, Session};
use tokio::sync::mpsc;

use crate::error::TaskError;
use crate::workflow::secrets::Secrets;

/// Something that wants to know.
#[async_trait]
pub trait Hook: Send + Sync + 'static {
    /// Called once per event, in the order of each run's log. An error is logged and counted; it
    /// does not disturb the run.
    async fn fire(&self, event: &HookEvent) -> Result<(), TaskError>;
}

/// What a hook is told.
#[derive(Debug, Clone)]
pub struct HookEvent {
    /// Which run.
    pub run: RunId,
    /// Its session.
    pub session: Option<Session>,
    /// What happened.
    pub event: Event,
}

/// Wraps a function as a hook.
pub(crate) struct FnHook<F>(pub(crate) F);

#[async_trait]
impl<F, Fut> Hook for FnHook<F>
where
    F: Fn(HookEvent) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), TaskError>> + Send,
{
    async fn fire(&self, event: &HookEvent) -> Result<(), TaskError> {
        (self.0)(event.clone()).await
    }
}

/// The queue to the task that calls the hooks. Bounded: a hook that does not keep up slows the runs
/// it watches down, it does not eat the memory.
#[derive(Clone)]
pub(crate) struct Hooks(Option<mpsc::Sender<Told>>);

enum Told {
    Event(Box<HookEvent>),
    /// Everything before this was told; the engine closes.
    End,
}

impl Hooks {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// The queue, and the loop that empties it until the queue is dropped.
    /// None of the secrets is said, whatever a hook that failed says.
    pub(crate) fn start(
        hooks: Vec<Arc<dyn Hook>>,
        secrets: &[String],
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let secrets = Secrets::inherited(secrets);
        let (sender, mut receiver) = mpsc::channel::<Told>(1024);
        let task = async move {
            while let Some(Told::Event(event)) = receiver.recv().await {
                for hook in &hooks {
                    let (run, seq) = (event.run, event.event.seq);
                    match AssertUnwindSafe(hook.fire(&event)).catch_unwind().await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            let error = secrets.redact_printed(error.to_string());
                            tracing::error!(%run, %seq, %error, "a hook failed");
                        }
                        Err(_) => tracing::error!(%run, %seq, "a hook panicked"),
                    }
                }
            }
        };
        (Self(Some(sender)), task)
    }

    pub(crate) fn wanted(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) async fn tell(&self, run: RunId, session: Option<&Session>, events: &[Event]) {
        let Some(queue) = &self.0 else { return };
        for event in events {
            let event = HookEvent {
                run,
                session: session.cloned(),
                event: event.clone(),
            };
            if queue.send(Told::Event(Box::new(event))).await.is_err() {
                tracing::error!(%run, "the hooks have stopped; the event was not told");
                return;
            }
        }
    }

    /// Lets the hooks finish what they were told.
    pub(crate) async fn close(&self) {
        if let Some(queue) = &self.0
            && queue.send(Told::End).await.is_err()
        {
            tracing::debug!("the hooks had stopped already");
        }
    }
}
