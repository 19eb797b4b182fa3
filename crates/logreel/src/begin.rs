//! How a run gets a driver in this process: with the lease that it was created with, by claiming it once, or by keeping
//! at it until it has ended.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::RunId;
use logreel_store::ClaimOutcome;
use tokio::sync::oneshot;

use crate::Error;
use crate::driver::{Drove, drive};
use crate::engine::Inner;
use crate::error::ErrorKind;
use crate::lease::Lease;
use crate::outage::Outage;
use crate::owner::LOOK_EVERY;
use crate::program::Program;

/// How a driver begins. All claims of a run by this process are made by the run's one driver, so that
/// two of them never hold the same lease.
pub(crate) enum Begin {
    /// With the lease that the run was created with.
    Created(Lease),
    /// By claiming it once; the asker wants to know how that went.
    Claim {
        accept_spec_change: bool,
        answer: oneshot::Sender<Result<ClaimOutcome, Error>>,
    },
    /// As a worker does, which goes on to another when someone else is at this one: then there is no answer.
    Take {
        answer: oneshot::Sender<Result<ClaimOutcome, Error>>,
    },
    /// By claiming it whenever it is ready.
    Keep,
}

impl Inner {
    /// Starts the run's driver, unless this process has one already. `keep` goes on driving after the
    /// run gave its lease back, until it has ended.
    pub(crate) fn spawn_driver(
        self: &Arc<Self>,
        run: RunId,
        def: Arc<Program>,
        begin: Begin,
        keep_on: bool,
    ) {
        let engine = Arc::clone(self);
        self.spawn(run, async move {
            let drove = match begin {
                Begin::Created(lease) => drive_or_wait(&engine, lease, &def, false).await?,
                Begin::Keep => Drove::Released,
                begin @ (Begin::Claim { .. } | Begin::Take { .. }) => {
                    let (outcome, accept_spec_change, answer) = match begin {
                        Begin::Take { answer } => match engine.try_claim(&run).await.transpose() {
                            None => {
                                engine.no_longer_drives(&run);
                                return Ok(());
                            }
                            Some(outcome) => (outcome, false, answer),
                        },
                        Begin::Claim {
                            accept_spec_change,
                            answer,
                        } => (engine.claim(&run).await, accept_spec_change, answer),
                        Begin::Created(_) | Begin::Keep => return Ok(()),
                    };
                    let (claimed, in_line) = match &outcome {
                        Ok(ClaimOutcome::Claimed(entry)) => (Some(Lease::of(entry)), false),
                        Ok(ClaimOutcome::Limited(_)) => (None, keep_on),
                        Ok(
                            ClaimOutcome::Driven(_)
                            | ClaimOutcome::NotReady(_)
                            | ClaimOutcome::CrashLoop(_),
                        )
                        | Err(_) => (None, false),
                    };
                    if claimed.is_none() && !in_line {
                        // Before the answer: whoever hears it may want to drive in another way.
                        engine.no_longer_drives(&run);
                    }
                    if answer.send(outcome).is_err() {
                        tracing::debug!(%run, "whoever asked for the claim is gone");
                    }
                    let claimed = match claimed {
                        None if in_line => stand_in_line(&engine, run).await?,
                        claimed => claimed,
                    };
                    match claimed {
                        Some(lease) => {
                            drive_or_wait(&engine, lease, &def, accept_spec_change).await?
                        }
                        None if in_line => Drove::Lost,
                        None => return Ok(()),
                    }
                }
            };
            match drove {
                Drove::Released | Drove::Lost if keep_on => keep(&engine, run, &def).await,
                Drove::ToTheEnd | Drove::Released | Drove::Lost => Ok(()),
            }
        });
    }
}

/// [`drive`], where a store that could not be reached is no end: the run is tried again later.
async fn drive_or_wait(
    engine: &Arc<Inner>,
    lease: Lease,
    def: &Program,
    accept_spec_change: bool,
) -> Result<Drove, Error> {
    match drive(engine, lease, def, accept_spec_change).await {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            tracing::warn!(run = %lease.run, %error, "the run could not be driven; trying again");
            engine.env.sleep(LOOK_EVERY).await;
            Ok(Drove::Lost)
        }
        other => other,
    }
}

/// Waits until the run's limit has a place, and takes it; `None` when the run is not ready any more, or
/// someone else drives it by then.
async fn stand_in_line(engine: &Arc<Inner>, run: RunId) -> Result<Option<Lease>, Error> {
    let mut doorbell = engine.store.watch(&run);
    let mut outage = Outage::default();
    loop {
        tokio::select! {
            _ = doorbell.rung() => {}
            () = engine.until_closing() => return Ok(None),
            () = engine.env.sleep(LOOK_EVERY) => {}
        }
        let outcome = match engine.store.entry(&run).await {
            Ok(entry) if entry.over_limit => continue,
            Ok(_) => engine.claim(&run).await,
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(ClaimOutcome::Claimed(entry)) => return Ok(Some(Lease::of(&entry))),
            Ok(ClaimOutcome::Limited(_)) => {}
            Ok(
                ClaimOutcome::Driven(_) | ClaimOutcome::NotReady(_) | ClaimOutcome::CrashLoop(_),
            ) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                outage.tell(&run, &error, "the run could not be looked at");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the run is ready, claims and drives it, again and again until it has ended.
async fn keep(engine: &Arc<Inner>, run: RunId, def: &Program) -> Result<(), Error> {
    let mut doorbell = engine.store.watch(&run);
    let mut outage = Outage::default();
    let mut keeps_children = false;
    // Before the store is asked: one that is away would keep this here.
    while engine.check_open().is_ok() {
        let looked = async {
            if !keeps_children {
                engine.keep_children(&run).await?;
                keeps_children = true;
            }
            keep_once(engine, run, def).await
        };
        let until_ready = match looked.await {
            Ok(ControlFlow::Break(())) => return Ok(()),
            Ok(ControlFlow::Continue(until_ready)) => {
                outage.is_over();
                until_ready
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                outage.tell(&run, &error, "the run could not be looked at");
                LOOK_EVERY
            }
            Err(error) => return Err(error),
        };
        tokio::select! {
            _ = doorbell.rung() => {}
            () = engine.until_closing() => {}
            () = engine.env.sleep(until_ready.clamp(Duration::from_millis(1), LOOK_EVERY)) => {}
        }
    }
    Ok(())
}

/// Looks at the run once, and drives it when it is ready. Says how long to wait for the next look, or
/// that there is nothing more to do.
async fn keep_once(
    engine: &Arc<Inner>,
    run: RunId,
    def: &Program,
) -> Result<ControlFlow<(), Duration>, Error> {
    let entry = engine.store.entry(&run).await?;
    if entry.row.status().is_terminal() || entry.row.facts.spec_digest != def.spec_digest {
        return Ok(ControlFlow::Break(()));
    }
    let now = engine.env.now();
    let claimable = match &entry.driver {
        // Ours, but this is the run's only driver here and it is not driving: it was left behind
        // when the store could not be reached.
        Some(driver) if driver.owner.id == engine.owner().await?.id() => {
            engine.release(&run, entry.epoch, driver.owner.id).await?;
            true
        }
        Some(_) | None => entry.is_worth_a_claim(now),
    };
    if claimable {
        match engine.claim(&run).await? {
            ClaimOutcome::Claimed(entry) => {
                drive_or_wait(engine, Lease::of(&entry), def, false).await?;
                return Ok(ControlFlow::Continue(Duration::ZERO));
            }
            // Someone else got the place.
            ClaimOutcome::Limited(_) => return Ok(ControlFlow::Continue(LOOK_EVERY)),
            ClaimOutcome::Driven(_) | ClaimOutcome::NotReady(_) | ClaimOutcome::CrashLoop(_) => {}
        }
    } else if entry.is_in_line(now) {
        // Ready all the time; the doorbell rings for a place.
        return Ok(ControlFlow::Continue(LOOK_EVERY));
    }
    Ok(ControlFlow::Continue(
        entry.ready_at.map_or(LOOK_EVERY, |at| at.since(now)),
    ))
}
