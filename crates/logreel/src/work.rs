//! Being a worker: driving whatever is ready or orphaned and registered here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use logreel_core::{Epoch, RunId};
use logreel_store::ClaimOutcome;
use tokio::sync::oneshot;

use crate::Error;
use crate::begin::Begin;
use crate::child::FORSAKEN;
use crate::ctx::Counted;
use crate::engine::{Engine, Inner};
use crate::error::ErrorKind;
use crate::owner::LOOK_EVERY;

/// How often a worker looks for children that outlived their parents, and for leases of its own that it forgot.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// How many more runs are looked at where several workers go for the same ones.
const CROWD: usize = 32;
/// A look that takes longer in vain is not made again at once: for how many times as long, and at most.
const QUICK: Duration = Duration::from_millis(20);
const REST: u32 = 4;
const REST_MAX: Duration = Duration::from_secs(5);

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

    /// Takes nothing, until the engine is closed: what is started here meanwhile is queued, and driven by workers elsewhere.
    pub async fn leave_to_workers(&self) {
        let _at_work = Counted::new(&self.0.workers);
        self.0.until_closing().await;
    }
}

/// What became of a run that a worker went for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Took {
    /// It is driven here.
    It,
    /// Another worker was first.
    SomeoneElse,
    /// It cannot be driven now, or not here.
    Not,
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
        let mut strays = HashMap::new();
        let mut enlisted = false;
        let mut crowded = false;
        let mut away = false;
        let mut rest = Duration::ZERO;
        loop {
            if self.check_open().is_err() {
                return Ok(());
            }
            if !enlisted {
                match self.enlist(labels, at_once).await {
                    Ok(()) => enlisted = true,
                    Err(error) if error.kind() == ErrorKind::Unavailable => {
                        warn_once(&mut away, &error);
                    }
                    Err(error) => return Err(error),
                }
            }
            // What a run begins as a run of its own takes a place too: the run itself gives its own back meanwhile.
            for command in std::mem::take(&mut *self.commands()) {
                if !driving.contains(&command) {
                    driving.push(command);
                }
            }
            driving.retain(|run| self.is_driving(run));
            let now = self.env.monotonic();
            if swept.is_none_or(|at| now.saturating_sub(at) >= SWEEP_EVERY) {
                swept = Some(now);
                // Where all places are taken these are the only ones who ask the store, and hear that it is away.
                let forsaken = self.cancel_forsaken().await;
                let strays = self.give_back_strays(&mut strays).await;
                let have_asked = forsaken.is_ok() && matches!(strays, Ok(true));
                if have_asked && std::mem::take(&mut away) {
                    tracing::warn!("the store is back");
                }
                for error in forsaken.err().into_iter().chain(strays.err()) {
                    match error.kind() {
                        ErrorKind::Unavailable => warn_once(&mut away, &error),
                        _ => {
                            tracing::warn!(%error, "runs that nobody looks after could not be looked for")
                        }
                    }
                }
            }
            let free = at_once.saturating_sub(driving.len());
            if free > 0 {
                let what = self.registry.claimable();
                // Those we lack something for stay in the list, and must not hide the others. Where several
                // workers go for the same runs each begins somewhere else, among more of them.
                let at_most = free + lacking.len() + if crowded { CROWD } else { 0 };
                let began = self.env.monotonic();
                match self.store.claimable(&what, labels, at_most).await {
                    Ok(mut runs) => {
                        let took = self.env.monotonic().saturating_sub(began);
                        rest = rest_after(took, runs.len());
                        if crowded && !runs.is_empty() {
                            let first = self.env.random_u64() % runs.len() as u64;
                            runs.rotate_left(usize::try_from(first).unwrap_or(0));
                        }
                        let missed = self.take_all(runs, free, &mut driving, &mut lacking).await;
                        crowded = missed > 0;
                        if std::mem::take(&mut away) {
                            tracing::warn!("the store is back");
                        }
                    }
                    // The next look may succeed; a worker does not die of a store's bad moment.
                    Err(error @ logreel_store::Error::Unavailable { .. }) => {
                        warn_once(&mut away, &error.into());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            tokio::select! {
                () = self.until_closing() => {}
                () = self.env.sleep(std::mem::take(&mut rest)) => {}
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

    /// Gives back what this process holds and does not drive: it lives, so nobody else would take it. A driver gives its lease
    /// back itself, but one that panicked or gave up did not, and a store that was replaced by an older copy knows
    /// nothing of what was given back since. Only what was so at the last look already, under the same epoch: a lease
    /// is there a moment before its driver. Says whether there was anyone to ask for.
    async fn give_back_strays(
        self: &Arc<Self>,
        strays: &mut HashMap<RunId, Epoch>,
    ) -> Result<bool, Error> {
        let Some(owner) = self.owner_id() else {
            return Ok(false);
        };
        let mut held = self.store.held(owner).await?;
        held.retain(|(run, _)| !self.is_driving(run));
        let before = std::mem::replace(strays, held.into_iter().collect());
        for (run, epoch) in &before {
            if strays.get(run) == Some(epoch) && !self.is_driving(run) {
                tracing::warn!(%run, "its lease is ours, and nobody here drives it: it is given back");
                if let Err(error) = self.release(run, *epoch, owner).await {
                    tracing::warn!(%run, %error, "while it was given back");
                }
            }
        }
        Ok(true)
    }

    /// Takes what can be taken; a run that cannot be is somebody else's, or the next look's. Says how many others
    /// were faster at.
    async fn take_all(
        self: &Arc<Self>,
        runs: Vec<RunId>,
        free: usize,
        driving: &mut Vec<RunId>,
        lacking: &mut HashSet<RunId>,
    ) -> usize {
        let full = driving.len() + free;
        let mut missed = 0;
        lacking.retain(|run| runs.contains(run));
        for run in runs {
            if driving.len() >= full {
                break;
            }
            match self.take(&run).await {
                Ok(Took::It) => driving.push(run),
                Ok(Took::SomeoneElse) => missed += 1,
                Ok(Took::Not) => {}
                Err(error @ (Error::Lacks { .. } | Error::UnknownTask { .. })) => {
                    if lacking.insert(run) {
                        tracing::info!(%run, %error, "a run is left alone");
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tracing::warn!(%run, %error, "a run could not be taken; trying again");
                }
                // A log that is damaged, or written by a newer build: looked at again like those that lack something.
                Err(error) => {
                    if lacking.insert(run) {
                        tracing::warn!(%run, %error, "a run cannot be driven here and is left alone");
                    }
                }
            }
        }
        missed
    }

    /// Claims and drives one run. A run whose task was changed is left alone.
    async fn take(self: &Arc<Self>, run: &RunId) -> Result<Took, Error> {
        if self.is_driving(run) {
            return Ok(Took::Not);
        }
        let entry = self.store.entry(run).await?;
        if self.is_forsaken(&entry).await? {
            self.cancel(run, Some(FORSAKEN.to_owned())).await?;
            return Ok(Took::Not);
        }
        if entry.over_limit {
            return Ok(Took::Not);
        }
        if entry.is_driven() {
            return Ok(Took::SomeoneElse);
        }
        // After an outage everyone was silent: they are given the time to be heard again.
        if entry.driver.is_some() && !self.owner().await?.may_judge() {
            return Ok(Took::Not);
        }
        let def = self.program_of(&entry).await?;
        if def.spec_digest != entry.row.facts.spec_digest {
            return Ok(Took::Not);
        }
        let (answer, answered) = oneshot::channel();
        self.spawn_driver(*run, def, Begin::Take { answer }, false);
        // No answer: someone else is at it.
        let Ok(outcome) = answered.await else {
            return Ok(Took::SomeoneElse);
        };
        Ok(match outcome? {
            ClaimOutcome::Claimed(_) => Took::It,
            ClaimOutcome::Driven(_) => Took::SomeoneElse,
            ClaimOutcome::NotReady(_) | ClaimOutcome::Limited(_) | ClaimOutcome::CrashLoop(_) => {
                Took::Not
            }
        })
    }
}

/// How long a worker leaves its store alone after a look, whoever rings. Behind a million runs that are for others, or
/// whose places are all taken, a look that finds nothing takes a second.
fn rest_after(took: Duration, found: usize) -> Duration {
    match found {
        0 if took > QUICK => (REST * took).min(REST_MAX),
        _ => Duration::ZERO,
    }
}

/// A store that is away for an hour is not told of two times a second.
fn warn_once(away: &mut bool, error: &Error) {
    if !std::mem::replace(away, true) {
        tracing::warn!(%error, "the store cannot be reached; trying again until it can");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_take_no_more_than_a_fifth_of_a_stores_time() {
        let ms = Duration::from_millis;
        assert_eq!(
            rest_after(ms(20), 0),
            ms(0),
            "a quick one is made whenever someone rings"
        );
        for took in [ms(21), ms(300), ms(1_200)] {
            assert_eq!(took + rest_after(took, 0), 5 * took);
            assert_eq!(rest_after(took, 1), ms(0), "it was not in vain");
        }
        assert_eq!(rest_after(ms(8_000), 0), REST_MAX);
    }
}
