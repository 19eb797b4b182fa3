//! Being a worker: driving whatever is ready or orphaned and registered here.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::RunId;
use logreel_store::ClaimOutcome;
use tokio::sync::oneshot;

use crate::Error;
use crate::child::FORSAKEN;
use crate::ctx::Counted;
use crate::driver::Begin;
use crate::engine::{Engine, Inner};
use crate::owner::LOOK_EVERY;

/// How often a worker looks for children that outlived their parents.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

impl Engine {
    /// Drives ready and orphaned runs of the registered tasks, at most `at_once` of them at a time,
    /// until the engine is closed. A run that waits takes no slot.
    pub async fn work(&self, at_once: usize) -> Result<(), Error> {
        self.work_on(&[], at_once).await
    }

    /// [`Engine::work`] on the runs that carry all these labels, and on no others.
    pub async fn work_on(&self, labels: &[(String, String)], at_once: usize) -> Result<(), Error> {
        let _at_work = Counted::new(&self.0.workers);
        self.0.work(labels, at_once.max(1)).await
    }
}

impl Inner {
    async fn work(
        self: &Arc<Self>,
        labels: &[(String, String)],
        at_once: usize,
    ) -> Result<(), Error> {
        let mut doorbell = self.store.watch_all();
        let mut driving: Vec<RunId> = Vec::new();
        let mut lacking: HashSet<RunId> = HashSet::new();
        let mut swept: Option<Duration> = None;
        loop {
            if self.check_open().is_err() {
                return Ok(());
            }
            driving.retain(|run| self.is_driving(run));
            let now = self.env.monotonic();
            if swept.is_none_or(|at| now.saturating_sub(at) >= SWEEP_EVERY) {
                swept = Some(now);
                if let Err(error) = self.cancel_forsaken().await {
                    tracing::warn!(%error, "runs without a parent could not be looked for");
                }
            }
            let free = at_once.saturating_sub(driving.len());
            if free > 0 {
                let what = self.registry.claimable();
                // Those we lack something for stay in the list, and must not hide the others.
                let at_most = free + lacking.len();
                match self.store.claimable(&what, labels, at_most).await {
                    Ok(runs) => self.take_all(runs, free, &mut driving, &mut lacking).await,
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
    async fn take_all(
        self: &Arc<Self>,
        runs: Vec<RunId>,
        free: usize,
        driving: &mut Vec<RunId>,
        lacking: &mut HashSet<RunId>,
    ) {
        let full = driving.len() + free;
        lacking.retain(|run| runs.contains(run));
        for run in runs {
            if driving.len() >= full {
                return;
            }
            match self.take(&run).await {
                Ok(true) => driving.push(run),
                Ok(false) => {}
                Err(error @ (Error::Lacks { .. } | Error::UnknownTask { .. })) => {
                    if lacking.insert(run) {
                        tracing::info!(%run, %error, "a run is left alone");
                    }
                }
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
        if self.is_forsaken(&entry).await? {
            self.cancel(run, Some(FORSAKEN.to_owned())).await?;
            return Ok(false);
        }
        if entry.over_limit {
            return Ok(false);
        }
        let def = self.program_of(&entry).await?;
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
