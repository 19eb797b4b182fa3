//! A run in the hands of whoever started it or asked for it.

use std::marker::PhantomData;
use std::sync::Arc;

use logreel_core::event::Cause;
use logreel_core::row::End;
use logreel_core::{Json, RunId, Seq};
use logreel_store::Entry;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::cancel::CancelOutcome;
use crate::engine::Inner;
use crate::pause::PauseOutcome;
use crate::subscribe::{EventStream, RecordStream};
use crate::value;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<O> {
    /// With a result.
    Completed(O),
    /// With an error.
    Failed(Cause),
    /// By someone, perhaps with a reason.
    Cancelled(Option<String>),
}

/// A run. Cheap to clone; dropping it stops nothing.
pub struct RunHandle<O> {
    pub(crate) engine: Arc<Inner>,
    pub(crate) run: RunId,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for RunHandle<O> {
    fn clone(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
            run: self.run,
            output: PhantomData,
        }
    }
}

impl<O> std::fmt::Debug for RunHandle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunHandle({})", self.run)
    }
}

impl<O: DeserializeOwned> RunHandle<O> {
    pub(crate) fn new(engine: Arc<Inner>, run: RunId) -> Self {
        Self {
            engine,
            run,
            output: PhantomData,
        }
    }

    /// Its id.
    pub fn id(&self) -> RunId {
        self.run
    }

    /// The run as it is now.
    pub async fn entry(&self) -> Result<Entry, Error> {
        Ok(self.engine.store.entry(&self.run).await?)
    }

    /// Its events from `from` on: the log, then live, without a gap, up to its end.
    pub fn events(&self, from: Seq) -> EventStream {
        EventStream::new(self.records(from))
    }

    /// Its events as they are stored.
    pub fn records(&self, from: Seq) -> RecordStream {
        RecordStream::new(Arc::clone(&self.engine.store), self.run, from)
    }

    /// Waits until it has ended, whoever drives it.
    pub async fn wait(&self) -> Result<Outcome<O>, Error> {
        let mut doorbell = self.engine.store.watch(&self.run);
        loop {
            let entry = self.entry().await?;
            if let Some(ended) = &entry.row.facts.ended {
                return match &ended.end {
                    End::Completed { output } => {
                        let json = value::resolve(&*self.engine.store, output).await?;
                        let output = json
                            .decode()
                            .map_err(|error| Error::value("the output", error))?;
                        Ok(Outcome::Completed(output))
                    }
                    End::Failed { cause } => Ok(Outcome::Failed(cause.clone())),
                    End::Cancelled { reason } => Ok(Outcome::Cancelled(reason.clone())),
                };
            }
            // The doorbell does not ring for a lease that ran out; look now and then as well.
            tokio::select! {
                _ = doorbell.rung() => {}
                () = self.engine.env.sleep(std::time::Duration::from_secs(1)) => {}
            }
        }
    }

    /// Ends it now, whoever drives it. Harmless when it has ended already.
    pub async fn cancel(&self, reason: impl Into<String>) -> Result<CancelOutcome, Error> {
        self.engine.cancel(&self.run, Some(reason.into())).await
    }

    /// Stops its work until someone resumes it.
    pub async fn pause(&self, reason: impl Into<String>) -> Result<PauseOutcome, Error> {
        self.engine.pause(&self.run, Some(reason.into())).await
    }

    /// A handle for another output type.
    pub fn typed<T: DeserializeOwned>(&self) -> RunHandle<T> {
        RunHandle::new(Arc::clone(&self.engine), self.run)
    }

    /// Its input as recorded.
    pub async fn input(&self) -> Result<Json, Error> {
        let entry = self.entry().await?;
        value::resolve(&*self.engine.store, &entry.row.facts.input).await
    }
}
