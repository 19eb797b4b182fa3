//! Waits: approvals, signals and timers, which outlive the process.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use logreel_core::decide::{plain_wait, timed_out};
use logreel_core::event::{OnDeadline, WaitEnded, WaitKind, WaitOutcome, WaitStarted};
use logreel_core::fold::Illegal;
use logreel_core::row::OpenWait;
use logreel_core::{
    Body, CallId, Digest, IdError, Json, Rejected, RunState, StepId, StepState, Timestamp, WaitId,
};
use serde::de::DeserializeOwned;

use crate::ctx::{Counted, Ctx};
use crate::error::TaskError;
use crate::journal::{NEW_WAIT, RecordError};

/// A timer that ends sooner keeps its driver; a later one gives the lease back.
const STAY_MAX: Duration = Duration::from_secs(5);

/// This many seconds.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// This many minutes.
pub const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

/// This many hours.
pub const fn hours(n: u64) -> Duration {
    Duration::from_secs(n * 3600)
}

/// The answer to an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Yes or no.
    pub approved: bool,
    /// Who said so; `None` when the deadline did.
    pub by: Option<String>,
    /// What they added.
    pub value: Json,
    /// Why they said so.
    pub reason: Option<String>,
    /// Whether someone answered; if not, the deadline did.
    pub in_time: bool,
}

/// An approval about to be asked for; made by [`Ctx::approval`], awaited to ask.
#[must_use = "an approval is asked for when it is awaited"]
pub struct ApprovalWait<'c> {
    ctx: &'c Ctx,
    name: Option<Result<StepId, IdError>>,
    prompt: String,
    deadline: Option<Duration>,
    on_deadline: OnDeadline,
}

impl<'c> ApprovalWait<'c> {
    pub(crate) fn new(ctx: &'c Ctx, prompt: String) -> Self {
        Self {
            ctx,
            name: None,
            prompt,
            deadline: None,
            on_deadline: OnDeadline::Fail,
        }
    }

    /// Names the wait; without it the prompt is its name.
    pub fn id(mut self, name: impl crate::StepName) -> Self {
        self.name = Some(name.step_id());
        self
    }

    /// How long the answer may take. Counted from now, kept over restarts.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Without an answer in time it counts as approved.
    pub fn else_approve(mut self) -> Self {
        self.on_deadline = OnDeadline::Approve;
        self
    }

    /// Without an answer in time it counts as denied.
    pub fn else_deny(mut self) -> Self {
        self.on_deadline = OnDeadline::Deny;
        self
    }
}

impl<'c> IntoFuture for ApprovalWait<'c> {
    type Output = Result<Approval, TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            ctx,
            name,
            prompt,
            deadline,
            on_deadline,
        } = self;
        Box::pin(async move {
            let name = name.unwrap_or_else(|| name_of(&prompt));
            let wait = WaitStarted {
                deadline: deadline.map(|after| ctx.0.journal.env.now() + after),
                on_deadline: deadline.map(|_| on_deadline),
                prompt: Some(prompt),
                ..plain_wait(WaitKind::Approval, NEW_WAIT)
            };
            let ended = wait_for(ctx, name, wait).await?;
            let approved = ended.approved.ok_or_else(|| {
                TaskError::of_kind("timeout", "nobody answered in time").permanent()
            })?;
            let value = ctx.0.journal.value(&ended.value).await?;
            Ok(Approval {
                approved,
                by: ended.by,
                value,
                reason: ended.reason,
                in_time: ended.outcome == WaitOutcome::Answered,
            })
        })
    }
}

/// A prompt that is no step id is known by its digest.
fn name_of(prompt: &str) -> Result<StepId, IdError> {
    StepId::from_parts([prompt])
        .or_else(|_| StepId::from_parts([&Digest::of(prompt.as_bytes()).hex()]))
}

/// A signal about to be awaited; made by [`Ctx::signal`].
#[must_use = "a signal is awaited, or it is not taken"]
pub struct SignalWait<'c> {
    ctx: &'c Ctx,
    name: Option<Result<StepId, IdError>>,
    signal: String,
    deadline: Option<Duration>,
}

impl<'c> SignalWait<'c> {
    pub(crate) fn new(ctx: &'c Ctx, signal: String) -> Self {
        Self {
            ctx,
            name: None,
            signal,
            deadline: None,
        }
    }

    /// Names the wait, for a run that awaits the same signal more than once.
    pub fn id(mut self, name: impl crate::StepName) -> Self {
        self.name = Some(name.step_id());
        self
    }

    /// How long it may take; after that it is an error.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Waits, and decodes the signal's value.
    pub async fn value<T: DeserializeOwned>(self) -> Result<T, TaskError> {
        Ok(self.await?.decode()?)
    }
}

impl<'c> IntoFuture for SignalWait<'c> {
    type Output = Result<Json, TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            ctx,
            name,
            signal,
            deadline,
        } = self;
        Box::pin(async move {
            let name = name.unwrap_or_else(|| StepId::from_parts(["signal", &signal]));
            let wait = WaitStarted {
                deadline: deadline.map(|after| ctx.0.journal.env.now() + after),
                on_deadline: deadline.map(|_| OnDeadline::Fail),
                name: Some(signal.clone()),
                ..plain_wait(WaitKind::Signal, NEW_WAIT)
            };
            let ended = wait_for(ctx, name, wait).await?;
            if ended.outcome == WaitOutcome::TimedOut {
                let message = format!("signal `{signal}` did not come in time");
                return Err(TaskError::of_kind("timeout", message).permanent());
            }
            Ok(ctx.0.journal.value(&ended.value).await?)
        })
    }
}

/// Waits until the time is over.
pub(crate) async fn sleep(
    ctx: &Ctx,
    name: Result<StepId, IdError>,
    duration: Duration,
) -> Result<(), TaskError> {
    sleep_until(ctx, name, ctx.0.journal.env.now() + duration).await
}

/// Waits until this time.
pub(crate) async fn sleep_until(
    ctx: &Ctx,
    name: Result<StepId, IdError>,
    until: Timestamp,
) -> Result<(), TaskError> {
    let wait = self::until(until, plain_wait(WaitKind::Timer, NEW_WAIT));
    wait_for(ctx, name, wait).await.map(|_| ())
}

/// Waits before a step's next attempt.
pub(crate) async fn back_off(ctx: &Ctx, step: &StepId, delay: Duration) -> Result<(), TaskError> {
    let no_wait = |state: &RunState| state.row.facts.waits.is_empty();
    if delay.is_zero() && ctx.0.journal.with_state(no_wait) {
        // As good as every step, which need not pay for what follows.
        return Ok(());
    }
    let retry = WaitStarted {
        step: Some(step.clone()),
        ..plain_wait(WaitKind::Retry, NEW_WAIT)
    };
    Box::pin(until_next_attempt(ctx, retry, delay)).await
}

/// Waits before a call's next attempt.
pub(crate) async fn back_off_call(
    ctx: &Ctx,
    call: &CallId,
    delay: Duration,
) -> Result<(), TaskError> {
    let retry = WaitStarted {
        call: Some(call.clone()),
        ..plain_wait(WaitKind::Retry, NEW_WAIT)
    };
    until_next_attempt(ctx, retry, delay).await
}

/// A short wait keeps the driver; a long one is a wait of the run, which gives the lease back. One that
/// an earlier driver began is ended here, however little of it is left.
async fn until_next_attempt(
    ctx: &Ctx,
    retry: WaitStarted,
    delay: Duration,
) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    if ctx.0.engine.stage.is_some() {
        return Ok(());
    }
    let is_ours = |wait: &WaitStarted| wait.step == retry.step && wait.call == retry.call;
    if delay > STAY_MAX && open_retry(ctx, is_ours).is_none() {
        let wait = until(journal.env.now() + delay, retry.clone());
        ctx.0.record(wait.into(), Vec::new()).await?;
    }
    if let Some(open) = open_retry(ctx, is_ours) {
        return until_retry_is_over(ctx, &open).await;
    }
    if delay.is_zero() {
        // Not even a timer of zero: it would cost every step a tick of the runtime's clock.
        return Ok(());
    }
    let _busy = Counted::new(&ctx.0.activity.busy);
    tokio::select! {
        () = journal.env.sleep(delay) => Ok(()),
        stopped = ctx.0.until_stopped() => Err(stopped),
    }
}

/// Records that something the run needs is away, and why: everybody sees it, however short the wait.
/// Without a delay nobody looks for it any more until a person resumes the run.
pub(crate) async fn record_away(
    ctx: &Ctx,
    name: String,
    why: String,
    delay: Option<Duration>,
) -> Result<(), TaskError> {
    let away = WaitStarted {
        name: Some(name),
        prompt: Some(why),
        ..plain_wait(WaitKind::Retry, NEW_WAIT)
    };
    let away = match delay {
        Some(delay) => until(ctx.0.journal.env.now() + delay, away),
        None => away,
    };
    ctx.0.record(away.into(), Vec::new()).await.map(drop)
}

/// Waits as long as something the run needs is said to be away, by this driver or one before it.
pub(crate) async fn while_away(ctx: &Ctx) -> Result<(), TaskError> {
    while let Some(open) = open_retry(ctx, WaitStarted::is_for_what_is_away) {
        until_retry_is_over(ctx, &open).await?;
    }
    Ok(())
}

fn open_retry(ctx: &Ctx, is_ours: impl Fn(&WaitStarted) -> bool) -> Option<OpenWait> {
    ctx.0.journal.with_state(|state| {
        let mut waits = state.row.facts.waits.iter();
        let ours = |open: &&OpenWait| open.wait.kind == WaitKind::Retry && is_ours(&open.wait);
        waits.find(ours).cloned()
    })
}

async fn until_retry_is_over(ctx: &Ctx, open: &OpenWait) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let is_open = || journal.with_state(|state| state.row.wait(open.wait.wait).is_some());
    until_over(ctx, open, is_open).await
}

fn until(deadline: Timestamp, wait: WaitStarted) -> WaitStarted {
    WaitStarted {
        deadline: Some(deadline),
        on_deadline: Some(OnDeadline::Continue),
        ..wait
    }
}

/// Starts the wait unless the log has it, and gives its end.
async fn wait_for(
    ctx: &Ctx,
    name: Result<StepId, IdError>,
    wait: WaitStarted,
) -> Result<WaitEnded, TaskError> {
    let step = ctx.0.ask(name)?;
    let is_known = ctx
        .0
        .journal
        .with_state(|state| state.steps.contains_key(&step));
    if !is_known {
        let step = Some(step.clone());
        start(ctx, WaitStarted { step, ..wait }).await?;
    }
    let open = ctx.0.journal.with_state(|state| {
        state
            .wait_of(&step)
            .and_then(|id| state.row.wait(id))
            .cloned()
    });
    if let Some(open) = open {
        until_ended(ctx, &step, &open).await?;
    }
    let seq = ctx
        .0
        .journal
        .with_state(|state| match state.steps.get(&step) {
            Some(StepState::Answered { seq }) => Some(*seq),
            Some(StepState::Finished { .. } | StepState::Open(_)) | None => None,
        });
    let Some(seq) = seq else {
        let message = format!("`{step}` was a step when this run began; it is a wait now");
        return Err(TaskError::of_kind("spec_changed", message)
            .permanent()
            .in_step(&step));
    };
    match ctx.0.journal.result(seq).await?.body {
        Body::WaitEnded(ended) => Ok(ended),
        other => {
            let message = format!("event {seq} should end a wait but is {}", other.kind());
            Err(TaskError::of_kind("bug", message).permanent())
        }
    }
}

/// Records the wait. A signal that was kept for it ends it in the same append, whenever it came: the
/// journal looks once more when it decides. One wait at a time, so that a signal ends one wait only.
async fn start(ctx: &Ctx, wait: WaitStarted) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let _one_at_a_time = ctx.0.taking.lock().await;
    loop {
        let kept = journal.with_state(|state| {
            let mut kept = state.signals.iter();
            let kept = kept.find(|(name, _)| Some(name) == wait.name.as_ref());
            kept.filter(|_| wait.kind == WaitKind::Signal)
                .map(|(_, seq)| *seq)
        });
        let mut commands = vec![Body::from(wait.clone()).into()];
        if let Some(seq) = kept {
            let Body::SignalReceived(signal) = journal.result(seq).await?.body else {
                let message = format!("event {seq} should be a signal");
                return Err(TaskError::of_kind("bug", message).permanent());
            };
            let ended = WaitEnded {
                approved: None,
                by: None,
                outcome: WaitOutcome::Signalled,
                reason: None,
                step: wait.step.clone(),
                value: signal.value,
                wait: NEW_WAIT,
            };
            commands.push(Body::from(ended).into());
        }
        match journal.record(commands, Vec::new()).await {
            Ok(_) => return Ok(()),
            Err(RecordError::SignalIsKept) => {}
            Err(error) => return Err(ctx.0.refused(error).await),
        }
    }
}

/// Records a wait's end. Someone outside may have ended it first; then theirs stands.
async fn end(ctx: &Ctx, ended: WaitEnded) -> Result<(), TaskError> {
    match ctx
        .0
        .journal
        .record(vec![Body::from(ended).into()], Vec::new())
        .await
    {
        Ok(_) | Err(RecordError::Rejected(Rejected::Illegal(Illegal::WaitNotOpen(_)))) => Ok(()),
        Err(error) => Err(ctx.0.refused(error).await),
    }
}

/// Waits until the log has the wait's end, and records it when the deadline passes first.
async fn until_ended(ctx: &Ctx, step: &StepId, open: &OpenWait) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let is_open = || journal.with_state(|state| state.wait_of(step) == Some(open.wait.wait));
    until_over(ctx, open, is_open).await
}

async fn until_over(
    ctx: &Ctx,
    open: &OpenWait,
    is_open: impl Fn() -> bool,
) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let Some(deadline) = open.wait.deadline else {
        return idle_until(ctx, || !is_open()).await;
    };
    // From here on the monotonic clock counts: a jump of the wall clock neither delays nor hurries a
    // driven timer.
    let left = deadline.since(journal.env.now());
    let stays = left <= STAY_MAX;
    let _busy = stays.then(|| Counted::new(&ctx.0.activity.busy));
    tokio::select! {
        ended = idle_until(ctx, || !is_open()) => ended,
        () = journal.env.sleep(left) => expire(ctx, open.wait.wait).await,
    }
}

async fn expire(ctx: &Ctx, wait: WaitId) -> Result<(), TaskError> {
    let open = ctx
        .0
        .journal
        .with_state(|state| state.row.wait(wait).cloned());
    match open {
        Some(open) => end(ctx, timed_out(&open)).await,
        None => Ok(()),
    }
}

/// Waits for the log to change until something holds. It can outlive the lease: when nothing else
/// goes on, the driver gives the lease back and drops the function here.
pub(crate) async fn idle_until(ctx: &Ctx, holds: impl Fn() -> bool) -> Result<(), TaskError> {
    let _waiting = Counted::new(&ctx.0.activity.waiting);
    ctx.0.activity.wait_began.notify_one();
    let mut changes = ctx.0.journal.changes();
    loop {
        changes.borrow_and_update();
        if holds() {
            return Ok(());
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
            stopped = ctx.0.until_stopped() => return Err(stopped),
        }
    }
}
