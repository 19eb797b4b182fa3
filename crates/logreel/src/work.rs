//! Being a worker: driving whatever is ready or orphaned and registered here.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::RunId;
use logreel_core::event::RunKind;
use logreel_store::{ClaimOutcome, Claimable};
use tokio::sync::oneshot;

use crate::Error;
use crate::driver::Begin;
use crate::engine::{Engine, Inner};
use crate::owner::LOOK_EVERY;

impl Engine {
    /// Drives ready and orphaned runs of the registered tasks, at most `at_once` of them at a time,
    /// until the engine is closed. A run that waits takes no slot.
    pub async fn work(&self, at_once: usize) -> Result<(), Error> {
        self.0.work(at_once.max(1)).await
    }
}

impl Inner {
    async fn work(self: &Arc<Self>, at_once: usize) -> Result<(), Error> {
        let mut doorbell = self.store.watch_all();
        let mut driving: Vec<RunId> = Vec::new();
        loop {
            if self.check_open().is_err() {
                return Ok(());
            }
            driving.retain(|run| self.is_driving(run));
            let free = at_once.saturating_sub(driving.len());
            if free > 0 {
                let what = [Claimable {
                    kind: RunKind::Task,
                    agents: None,
                    specs: Some(self.task_specs()),
                }];
                match self.store.claimable(&what, free).await {
                    Ok(runs) => self.take_all(runs, &mut driving).await,
                    // The next look may succeed; a worker does not die of a store's bad moment.
                    Err(error @ logreel_store::Error::Unavailable { .. }) => {
                        tracing::warn!(%error, "no runs could be listed; trying again");
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            tokio::select! {
                () = self.until_closing() => {}
                _ = doorbell.rung() => {
                    // Many rings, one look: a busy store would otherwise be asked all the time.
                    self.env.sleep(Duration::from_millis(5)).await;
                }
                () = self.env.sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Takes what can be taken; a run that cannot be is somebody else's, or the next look's.
    async fn take_all(self: &Arc<Self>, runs: Vec<RunId>, driving: &mut Vec<RunId>) {
        for run in runs {
            match self.take(&run).await {
                Ok(true) => driving.push(run),
                Ok(false) => {}
                Err(error) => tracing::warn!(%run, %error, "a run could not be taken"),
            }
        }
    }

    /// Claims and drives one run. A run whose task was changed is left alone.
    async fn take(self: &Arc<Self>, run: &RunId) -> Result<bool, Error> {
        if self.is_driving(run) {
            return Ok(false);
        }
        let entry = self.store.entry(run).await?;
        let Some(def) = self.task(&entry.row.facts.agent) else {
            return Ok(false);
        };
        if def.spec_digest != entry.row.facts.spec_digest {
            return Ok(false);
        }
        let (answer, answered) = oneshot::channel();
        let begin = Begin::Claim {
            accept_spec_change: false,
            answer,
        };
        self.spawn_driver(*run, def, begin, false);
        match answered.await {
            Ok(outcome) => Ok(matches!(outcome?, ClaimOutcome::Claimed(_))),
            // This process has a driver for the run already.
            Err(_) => Ok(false),
        }
    }
}
