//! Steps that write outside: announced before they run, never repeated blind.

use std::time::Duration;

use logreel_core::decide::plain_wait;
use logreel_core::event::{
    Effect, Resolution, StepInDoubt, StepResolved, StepStarted, WaitKind, WaitStarted,
};
use logreel_core::meaning::{digest_of, effect_key};
use logreel_core::state::Doing;
use logreel_core::{Body, Command, Digest, Epoch, IdError, Seq, StepId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ctx::{Counted, Ctx};
use crate::error::TaskError;
use crate::journal::NEW_WAIT;
use crate::outage::Outage;
use crate::owner::LOOK_EVERY;
use crate::step::{self, GivenUp, Retry, Running, call, check_input, recorded};

/// What a reconcile found out about a write that was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It happened, with this result.
    Done(T),
    /// It surely did not happen; it is run now.
    NotDone,
    /// Nobody can tell; a person must.
    Unknown,
}

/// No reconcile: what was interrupted is in doubt.
pub struct NoReconcile;

/// A write about to run; made by [`Ctx::write_step`].
#[must_use = "a step does nothing until it is run"]
pub struct WriteStep<'c, R = NoReconcile> {
    ctx: &'c Ctx,
    name: Result<StepId, IdError>,
    input: Result<Option<Digest>, serde_json::Error>,
    retry: Retry,
    timeout: Option<Duration>,
    reconcile: R,
    /// Whether `reconcile` is one that can find out.
    reconciles: bool,
}

/// What the log says about a write that is asked for.
enum Known {
    Finished(Seq),
    Failed(TaskError),
    /// Announced and without an outcome.
    Interrupted {
        attempt: u32,
        epoch: Epoch,
    },
    InDoubt,
    Run {
        attempt: u32,
        wait: Duration,
    },
}

/// What came of running a write.
enum Wrote<T> {
    Done(T),
    Failed(TaskError),
    /// Nobody knows whether it happened.
    Unknown,
}

impl<'c> WriteStep<'c> {
    pub(crate) fn new(ctx: &'c Ctx, name: Result<StepId, IdError>) -> Self {
        Self {
            ctx,
            name,
            input: Ok(None),
            retry: Retry::attempts(1),
            timeout: None,
            reconcile: NoReconcile,
            reconciles: false,
        }
    }

    /// How to find out whether an interrupted write happened, by its key.
    ///
    /// It is asked at once when whoever was interrupted is known to be dead or has stopped. One that
    /// only fell silent (frozen, or on a host that cannot be seen) may still be writing: then it is
    /// asked after the write's [timeout](WriteStep::timeout) plus one lease, and without a timeout not
    /// at all; a person must resolve the write.
    pub fn reconcile<R, Fut, T, E>(self, reconcile: R) -> WriteStep<'c, R>
    where
        R: Fn(Digest) -> Fut,
        Fut: Future<Output = Result<Reconciled<T>, E>>,
    {
        let Self {
            ctx,
            name,
            input,
            retry,
            timeout,
            ..
        } = self;
        WriteStep {
            ctx,
            name,
            input,
            retry,
            timeout,
            reconcile,
            reconciles: true,
        }
    }
}

impl<R> WriteStep<'_, R> {
    /// Binds the result to this input: with another input the recorded result is refused.
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.input = digest_of(input).map(Some);
        self
    }

    /// Binds the result to what has this digest.
    pub(crate) fn bound_to(mut self, digest: Digest) -> Self {
        self.input = Ok(Some(digest));
        self
    }

    /// Tries again after a recorded failure: then it surely did not happen. One whose outcome nobody
    /// knows is never tried again by itself.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// A write that takes longer is in doubt: it may still happen.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl WriteStep<'_, NoReconcile> {
    /// Runs the write with its key, or gives its recorded result. After an interruption the run waits
    /// until a person says what became of it.
    pub async fn run<F, Fut, T, E>(self, work: F) -> Result<T, TaskError>
    where
        F: Fn(Digest) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<TaskError>,
    {
        let unknown = |_key| std::future::ready(Ok::<_, TaskError>(Reconciled::<T>::Unknown));
        let Self {
            ctx,
            name,
            input,
            retry,
            timeout,
            ..
        } = self;
        WriteStep {
            ctx,
            name,
            input,
            retry,
            timeout,
            reconcile: unknown,
            reconciles: false,
        }
        .run(work)
        .await
    }
}

impl<R, RFut, T, RE> WriteStep<'_, R>
where
    R: Fn(Digest) -> RFut,
    RFut: Future<Output = Result<Reconciled<T>, RE>>,
    T: Serialize + DeserializeOwned,
    RE: Into<TaskError>,
{
    /// Runs the write with its key, or gives its recorded result. After an interruption `reconcile`
    /// is asked first.
    pub async fn run<F, Fut, E>(self, work: F) -> Result<T, TaskError>
    where
        F: Fn(Digest) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<TaskError>,
    {
        let Self {
            ctx,
            name,
            input,
            retry,
            timeout,
            reconcile,
            reconciles,
        } = self;
        let step = ctx.0.ask(name)?;
        let input_digest = input?;
        let key = effect_key(&ctx.0.journal.run, &step.canonical(), input_digest.as_ref());
        let running = Running {
            ctx,
            step: &step,
            input_digest,
            effect: Effect::Write,
            timeout,
        };
        loop {
            let known = know(ctx, &step, input_digest, &retry)?;
            if let Known::Run { .. } = known {
                crate::budget::before_step(ctx, &step).await?;
            }
            // A write in doubt is nobody's work; everything else is.
            let _busy = match known {
                Known::InDoubt => None,
                _ => Some(Counted::new(&ctx.0.activity.busy)),
            };
            match known {
                Known::Finished(seq) => return recorded(ctx, &step, seq, input_digest).await,
                Known::Failed(error) => return Err(error),
                Known::InDoubt => resolved(ctx, &step).await?,
                Known::Run { attempt, wait } => {
                    crate::wait::back_off(ctx, &step, wait).await?;
                    refuse_if_code_changed(ctx, &step)?;
                    match write(&running, attempt, key, reconciles, &work).await? {
                        Wrote::Done(value) => return Ok(value),
                        Wrote::Failed(error) => {
                            try_again(ctx, &step, &retry, attempt, error).await?;
                        }
                        Wrote::Unknown if reconciles => settled(ctx).await?,
                        Wrote::Unknown => doubt(ctx, &step, key, NO_OUTCOME).await?,
                    }
                }
                Known::Interrupted { attempt, epoch } => {
                    if reconciles && !has_settled(ctx, epoch, timeout).await? {
                        let reason = "it was interrupted, its driver is not known to be dead, and \
                             it has no timeout after which it could be";
                        doubt(ctx, &step, key, reason).await?;
                        continue;
                    }
                    let ours = epoch == ctx.0.journal.epoch;
                    let why = if ours { NO_OUTCOME } else { INTERRUPTED };
                    let said = match &ctx.0.engine.stage {
                        Some(stage) => stage.reconciled_step(&step).await,
                        None => running.guarded(call(&step, || reconcile(key))).await,
                    };
                    let reason = match said {
                        Ok(Reconciled::Done(value)) => {
                            let (_, output, blobs) = running.written(&value)?;
                            settle(ctx, &step, epoch, key, Resolution::Returned(output), blobs)
                                .await?;
                            continue;
                        }
                        // Our own attempt came to nothing: it counts, as one that a crash cut off does not.
                        Ok(Reconciled::NotDone) if ours && attempt >= retry.limit() => {
                            let message =
                                format!("{why}, and `reconcile` says that it was not done");
                            let failed = Resolution::Failed(message);
                            settle(ctx, &step, epoch, key, failed, Vec::new()).await?;
                            continue;
                        }
                        Ok(Reconciled::NotDone) => {
                            settle(ctx, &step, epoch, key, Resolution::Retry, Vec::new()).await?;
                            match write(&running, attempt + 1, key, reconciles, &work).await? {
                                Wrote::Done(value) => return Ok(value),
                                Wrote::Failed(error) => {
                                    try_again(ctx, &step, &retry, attempt + 1, error).await?;
                                }
                                // And `reconcile` is asked again.
                                Wrote::Unknown => settled(ctx).await?,
                            }
                            continue;
                        }
                        Ok(Reconciled::Unknown) => why.to_owned(),
                        Err(error) => format!("{why}, and reconcile failed: {error}"),
                    };
                    doubt(ctx, &step, key, &reason).await?;
                }
            }
        }
    }
}

/// Why a write is in doubt whose driver is gone.
const INTERRUPTED: &str = "it was interrupted";
/// Why a write is in doubt that was not interrupted.
const NO_OUTCOME: &str = "its outcome did not come back";

/// Asks the log: a write that was announced and has no outcome is not simply run again. For the rest it
/// is a step like any other.
fn know(
    ctx: &Ctx,
    step: &StepId,
    input_digest: Option<Digest>,
    retry: &Retry,
) -> Result<Known, TaskError> {
    let journal = &ctx.0.journal;
    if let Some(open) = journal.with_state(|state| state.open_step(step).cloned()) {
        check_input(step, open.input_digest, input_digest)?;
        match open.doing {
            Doing::InDoubt => return Ok(Known::InDoubt),
            Doing::Running => {
                return Ok(Known::Interrupted {
                    attempt: open.attempt,
                    epoch: open.epoch,
                });
            }
            Doing::Failed(_) | Doing::Retrying { .. } | Doing::Skipped | Doing::Waiting(_) => {}
        }
    }
    Ok(match step::know(ctx, step, input_digest, retry)? {
        step::Known::Finished(seq) => Known::Finished(seq),
        step::Known::Failed(error) => Known::Failed(error),
        step::Known::Run { attempt, wait } => Known::Run { attempt, wait },
    })
}

/// Waits until whoever announced a write under `epoch` cannot be about to make it any more: it is
/// known dead or gave its lease back, or the write's timeout and one lease have passed since the run was
/// taken from it, by this driver or, where the store tells, by an earlier one. So a driver that is lost
/// while it waits does not make the next one begin anew, and a run that often loses its driver settles
/// its writes all the same. `false` when there is no timeout to wait for.
pub(crate) async fn has_settled(
    ctx: &Ctx,
    epoch: Epoch,
    timeout: Option<Duration>,
) -> Result<bool, TaskError> {
    let (journal, pulse) = (&ctx.0.journal, &ctx.0.pulse);
    let mut outage = Outage::default();
    let mut settled_at = None;
    loop {
        let left = match journal.store.lapsed(&journal.run).await {
            Ok(lapsed) => {
                let Some(silent) = lapsed.iter().find(|it| it.epoch == epoch) else {
                    return Ok(true);
                };
                let Some(timeout) = timeout else {
                    return Ok(false);
                };
                let now = journal.env.monotonic();
                // Asked once, for the store's clock may be set forward while this waits.
                let settled_at = *settled_at.get_or_insert_with(|| {
                    let passed = silent.taken_ago.unwrap_or_default();
                    let passed = passed.max(now.saturating_sub(ctx.0.began));
                    now.saturating_add(timeout.saturating_add(pulse.lease()).saturating_sub(passed))
                });
                let left = settled_at.saturating_sub(now);
                if left.is_zero() {
                    return Ok(true);
                }
                left
            }
            Err(error) => {
                outage.tell(&journal.run, &error.into(), "who drove before is not known");
                LOOK_EVERY
            }
        };
        tokio::select! {
            () = journal.env.sleep(left.min(LOOK_EVERY)) => {}
            stopped = ctx.0.until_stopped() => return Err(stopped),
        }
    }
}

/// Waits one lease after a write of our own whose outcome did not come back: what it set off outside may
/// still be under way, and `reconcile` is asked next.
async fn settled(ctx: &Ctx) -> Result<(), TaskError> {
    if ctx.0.engine.stage.is_some() {
        return Ok(());
    }
    tokio::select! {
        () = ctx.0.journal.env.sleep(ctx.0.pulse.lease()) => Ok(()),
        stopped = ctx.0.until_stopped() => Err(stopped),
    }
}

/// A new write is refused when the log holds one that this execution has not asked for: the code is
/// not the one that made it, and might be about to do the same thing under another name.
fn refuse_if_code_changed(ctx: &Ctx, step: &StepId) -> Result<(), TaskError> {
    match ctx.0.unasked_write() {
        None => Ok(()),
        Some(unasked) => {
            let message = format!(
                "write `{step}` is refused: the log holds write `{unasked}`, which this code has \
                 not asked for; accept the changed code to go on"
            );
            Err(TaskError::of_kind("spec_changed", message)
                .permanent()
                .in_step(step))
        }
    }
}

/// Records that a failed write will be tried again, or gives its failure.
async fn try_again(
    ctx: &Ctx,
    step: &StepId,
    retry: &Retry,
    attempt: u32,
    error: TaskError,
) -> Result<(), TaskError> {
    if !error.is_retryable() || attempt >= retry.limit() {
        return Err(error);
    }
    let retrying = retry.next(step, attempt, &ctx.0.journal);
    ctx.0.record(retrying.into(), Vec::new()).await?;
    ctx.0.forget_inside(step);
    Ok(())
}

/// Announces and runs the write.
async fn write<F, Fut, T, E>(
    running: &Running<'_>,
    attempt: u32,
    key: Digest,
    reconciles: bool,
    work: &F,
) -> Result<Wrote<T>, TaskError>
where
    F: Fn(Digest) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: Into<TaskError>,
{
    let ctx = running.ctx;
    running.may_begin().await?;
    let started = StepStarted {
        attempt,
        effect: Effect::Write,
        input_digest: running.input_digest,
        key: Some(key),
        step: running.step.clone(),
    };
    let given_up = GivenUp::armed(running, attempt).reconciles(reconciles);
    ctx.0.record(started.into(), Vec::new()).await?;
    crate::lease::check_lease(&ctx.0).await?;
    let outcome = match &ctx.0.engine.stage {
        Some(stage) => running.guarded(Ok(stage.step(running.step))).await,
        None => running.guarded(call(running.step, || work(key))).await,
    };
    given_up.disarm();
    match outcome {
        Ok(value) => {
            // The write happened: a result that cannot be recorded is a failure, not a repetition.
            let written = running.written(&value).and_then(|(json, payload, blobs)| {
                let value = json
                    .decode()
                    .map_err(|error| TaskError::from(error).permanent())?;
                Ok((value, payload, blobs))
            });
            match written {
                Ok((value, payload, blobs)) => {
                    let finished = running.finish(attempt, payload, blobs, None).await?;
                    Ok(match finished {
                        Ok(()) => Wrote::Done(value),
                        Err(error) => Wrote::Failed(error),
                    })
                }
                Err(error) => failed(running, attempt, error).await,
            }
        }
        // The run has ended; what became of the write is not known, and nothing claims that it is.
        Err(error) if error.is_cancelled() => Err(error),
        Err(error) if is_doubtful(&error) => Ok(Wrote::Unknown),
        Err(error) => failed(running, attempt, error).await,
    }
}

async fn failed<T>(
    running: &Running<'_>,
    attempt: u32,
    error: TaskError,
) -> Result<Wrote<T>, TaskError> {
    match running.fail::<T>(attempt, error, None).await? {
        Ok(value) => Ok(Wrote::Done(value)),
        Err(error) => Ok(Wrote::Failed(error)),
    }
}

/// A timeout, a panic or a killed process of a write is doubt, not failure.
pub(crate) fn is_doubtful(error: &TaskError) -> bool {
    let kind = error.cause().kind;
    matches!(kind.as_str(), "timeout" | "panic" | "signal" | "lost")
}

/// Records what reconcile found out about an interrupted write.
async fn settle(
    ctx: &Ctx,
    step: &StepId,
    epoch: Epoch,
    key: Digest,
    resolution: Resolution,
    blobs: Vec<logreel_core::Blob>,
) -> Result<(), TaskError> {
    let in_doubt = StepInDoubt {
        epoch,
        key: Some(key),
        reason: match epoch == ctx.0.journal.epoch {
            true => NO_OUTCOME.to_owned(),
            false => INTERRUPTED.to_owned(),
        },
        step: step.clone(),
    };
    let resolved = StepResolved {
        by: "reconcile".to_owned(),
        resolution,
        step: step.clone(),
    };
    let commands = vec![Body::from(in_doubt).into(), Body::from(resolved).into()];
    recorded_together(ctx, commands, blobs).await
}

/// A write in doubt, and the wait for a person.
pub(crate) fn in_doubt(step: &StepId, epoch: Epoch, key: Digest, reason: &str) -> Vec<Command> {
    let in_doubt = StepInDoubt {
        epoch,
        key: Some(key),
        reason: reason.to_owned(),
        step: step.clone(),
    };
    let wait = WaitStarted {
        prompt: Some(format!("did `{step}` happen? {reason}")),
        step: Some(step.clone()),
        ..plain_wait(WaitKind::InDoubt, NEW_WAIT)
    };
    vec![Body::from(in_doubt).into(), Body::from(wait).into()]
}

/// Puts a write in doubt, and the run in wait for a person.
async fn doubt(ctx: &Ctx, step: &StepId, key: Digest, reason: &str) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let epoch = journal.with_state(|state| state.open_step(step).map(|open| open.epoch));
    let epoch = epoch.unwrap_or(journal.epoch);
    recorded_together(ctx, in_doubt(step, epoch, key, reason), Vec::new()).await
}

/// Records facts in one append.
async fn recorded_together(
    ctx: &Ctx,
    commands: Vec<Command>,
    blobs: Vec<logreel_core::Blob>,
) -> Result<(), TaskError> {
    match ctx.0.journal.record(commands, blobs).await {
        Ok(_) => Ok(()),
        Err(error) => Err(ctx.0.refused(error).await),
    }
}

/// Waits until a person has said what became of the write.
async fn resolved(ctx: &Ctx, step: &StepId) -> Result<(), TaskError> {
    let in_doubt = |ctx: &Ctx| {
        ctx.0.journal.with_state(|state| {
            state
                .open_step(step)
                .is_some_and(|open| open.doing == Doing::InDoubt)
        })
    };
    crate::wait::idle_until(ctx, || !in_doubt(ctx)).await
}
