//! Tool calls: announced, run by their effect, never repeated blind. What [`crate::WriteStep`] is to a
//! task's code, this is to a program that goes on by the fold: calls are known by their id.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Either;
use logreel_core::decide::plain_wait;
use logreel_core::event::{
    Cause, Effect, Resolution, ToolCalled, ToolFailed, ToolInDoubt, ToolResolved, ToolReturned,
    WaitKind, WaitStarted,
};
use logreel_core::meaning::{digest_of, effect_key};
use logreel_core::state::CallState;
use logreel_core::{Blob, Body, CallId, Digest, Epoch, Json, Payload, Seq};

use crate::ctx::{Counted, Ctx, Key, OUTER, Outer};
use crate::error::TaskError;
use crate::journal::{NEW_WAIT, RecordError, Stop};
use crate::step::panic_text;
use crate::write_step::{Reconciled, has_settled, is_doubtful};

/// A start goes out by itself after this, so that watchers see it; a shorter call costs one append.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(20);

/// A tool call about to be made; made by [`Ctx::tool_call`].
pub struct ToolCall<'c> {
    ctx: &'c Ctx,
    call: CallId,
    name: String,
    arguments: Json,
    effect: Effect,
    timeout: Option<Duration>,
    reconciles: bool,
    redact: Option<Redact<'c>>,
}

/// Takes secrets out of a text, and counts them.
type Redact<'c> = &'c (dyn Fn(&str) -> (String, u32) + Sync);

/// What came of a call, as the log has it.
#[derive(Debug, Clone, PartialEq)]
pub enum CallOutcome {
    /// It returned this.
    Returned(Payload),
    /// It failed.
    Failed(Cause),
}

/// A value to record.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The value.
    pub output: Payload,
    /// What it needs beside it.
    pub blobs: Vec<Blob>,
    /// Secrets that were taken out of it.
    pub redacted: u32,
}

impl Ctx {
    /// A durable tool call: its result, once recorded, is never computed again.
    pub fn tool_call(
        &self,
        call: CallId,
        name: impl Into<String>,
        arguments: Json,
    ) -> ToolCall<'_> {
        ToolCall {
            ctx: self,
            call,
            name: name.into(),
            arguments,
            effect: Effect::Write,
            timeout: None,
            reconciles: false,
            redact: None,
        }
    }
}

impl<'c> ToolCall<'c> {
    /// What an interruption means; a write when nothing is said.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// How long it may take; a write that takes longer is in doubt.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether `reconcile` can find out what became of an interrupted write.
    #[must_use]
    pub fn reconciles(mut self, reconciles: bool) -> Self {
        self.reconciles = reconciles;
        self
    }

    /// Takes secrets out of why it failed, or why nobody knows whether it happened.
    #[must_use]
    pub fn redact(mut self, redact: &'c (dyn Fn(&str) -> (String, u32) + Sync)) -> Self {
        self.redact = Some(redact);
        self
    }

    /// Makes the call with its key, or gives its recorded outcome. A write that was interrupted is
    /// asked about with `reconcile`, or waits for a person.
    ///
    /// `work` gives the value as it is to be recorded: what must not be in a log is gone from it.
    pub async fn run<F, Fut, R, RFut>(self, work: F, reconcile: R) -> Result<CallOutcome, TaskError>
    where
        F: Fn(Digest) -> Fut,
        Fut: Future<Output = Result<Recorded, TaskError>>,
        R: Fn(Digest) -> RFut,
        RFut: Future<Output = Result<Reconciled<Recorded>, TaskError>>,
    {
        let run = &self.ctx.0.journal.run;
        let bound = digest_of(&self.arguments)?;
        let key = effect_key(run, self.call.as_str(), Some(&bound));
        loop {
            let known = self.ctx.0.journal.with_state(|state| {
                let known = state.tools.get(&self.call);
                known.cloned()
            });
            match known {
                Some(CallState::Returned { seq } | CallState::Failed { seq }) => {
                    return self.recorded(seq).await;
                }
                Some(CallState::InDoubt { .. }) => self.resolved().await?,
                Some(CallState::Open {
                    effect: Effect::Write,
                    epoch,
                    ..
                }) if epoch < self.ctx.0.journal.epoch || self.is_staged() => {
                    let _busy = Counted::new(&self.ctx.0.activity.busy);
                    self.settle(epoch, key, &reconcile).await?;
                }
                Some(CallState::Open { attempt, .. } | CallState::Again { attempt, .. }) => {
                    self.make(attempt + 1, key, &work).await?;
                }
                None => self.make(1, key, &work).await?,
            }
        }
    }

    /// In a replay a write that is made and open was interrupted, whoever drives it.
    fn is_staged(&self) -> bool {
        self.ctx.0.engine.stage.is_some()
    }

    /// Announces and makes the call, and records its outcome.
    async fn make<F, Fut>(&self, attempt: u32, key: Digest, work: &F) -> Result<(), TaskError>
    where
        F: Fn(Digest) -> Fut,
        Fut: Future<Output = Result<Recorded, TaskError>>,
    {
        let (ctx, journal) = (self.ctx, &self.ctx.0.journal);
        let (arguments, blob) = Payload::of(self.arguments.clone());
        let called = ToolCalled {
            arguments,
            attempt,
            call: self.call.clone(),
            effect: self.effect,
            key: Some(key),
            name: self.name.clone(),
            // Whoever calls does not call with what was taken out.
            redacted: 0,
        };
        let (called, blobs) = (Body::from(called), Vec::from_iter(blob));
        let mut unannounced = false;
        let waits_open = journal.with_state(|state| !state.row.facts.waits.is_empty());
        // One that a limit may refuse is not made before it was not.
        let limited = journal.with_state(|state| {
            let budget = &state.row.facts.budget;
            budget.tool_calls.is_some() || budget.wall_ms.is_some()
        });
        let announced = self.effect == Effect::Write || waits_open || limited;
        let _busy = if announced {
            ctx.log()
                .record_in_budget(vec![called.clone()], blobs.clone())
                .await?;
            Counted::new(&ctx.0.activity.busy)
        } else {
            let busy = Counted::new(&ctx.0.activity.busy);
            ctx.log().may_begin().await?;
            busy
        };
        if announced {
            crate::lease::check_lease(&ctx.0).await?;
        } else {
            // It goes out with its result, or by itself when that takes longer.
            if let Err(error) = journal.submit(vec![called.into()], blobs) {
                return Err(ctx.0.refused(error).await);
            }
            unannounced = true;
        }
        let work = match &ctx.0.engine.stage {
            Some(stage) => Either::Left(stage.call(&self.call)),
            None => Either::Right(self.guarded(key, work)),
        };
        let mut work = std::pin::pin!(work);
        let mut outcome = None;
        if unannounced {
            tokio::select! {
                biased;
                done = &mut work => outcome = Some(done),
                () = journal.env.sleep(ANNOUNCE_AFTER) => journal.flush().await,
            }
        }
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => work.await,
        };
        let (body, blobs) = match outcome {
            Ok(Recorded {
                output,
                blobs,
                redacted,
            }) => {
                let returned = ToolReturned {
                    call: self.call.clone(),
                    output,
                    redacted,
                };
                (returned.into(), blobs)
            }
            // The run has ended; what became of the call is not known.
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error)
                if self.effect == Effect::Write && is_doubtful(&error) && self.is_staged() =>
            {
                return Ok(());
            }
            Err(error) if self.effect == Effect::Write && is_doubtful(&error) => {
                return self.doubt(&error.to_string()).await;
            }
            Err(error) => (self.failed(&error), Vec::new()),
        };
        let returned = matches!(body, Body::ToolReturned(_));
        match journal.record(vec![body.into()], blobs).await {
            Ok(_) => Ok(()),
            // It was made, whatever it said.
            Err(RecordError::Refused(why)) if returned && self.effect == Effect::Write => {
                let (output, _) = Payload::of(Json::of(&format!("(not recorded: {why})"))?);
                let returned = ToolReturned {
                    call: self.call.clone(),
                    output,
                    redacted: 0,
                };
                ctx.log().record(vec![returned.into()], Vec::new()).await?;
                Ok(())
            }
            Err(RecordError::Refused(why)) => {
                let error = TaskError::from(why).permanent();
                ctx.log()
                    .record(vec![self.failed(&error)], Vec::new())
                    .await?;
                Ok(())
            }
            Err(error) => Err(ctx.0.refused(error).await),
        }
    }

    fn failed(&self, error: &TaskError) -> Body {
        let mut error = error.cause();
        let redacted = match self.redact {
            Some(redact) => {
                let (message, redacted) = redact(&error.message);
                error.message = message;
                redacted
            }
            None => 0,
        };
        ToolFailed {
            call: self.call.clone(),
            error,
            redacted,
        }
        .into()
    }

    /// The work, with its panic as a labelled failure and its timeout. A stop of the driver ends a read;
    /// a write has the driver's grace time.
    async fn guarded<F, Fut>(&self, key: Digest, work: &F) -> Result<Recorded, TaskError>
    where
        F: Fn(Digest) -> Fut,
        Fut: Future<Output = Result<Recorded, TaskError>>,
    {
        let journal = &self.ctx.0.journal;
        let step = logreel_core::StepId::from_parts([self.call.as_str()])?;
        let work = async { AssertUnwindSafe(work(key)).catch_unwind().await };
        let outer = Outer {
            step,
            key: Key::Is(key),
            gives_up: self.effect != Effect::Write,
        };
        let work = OUTER.scope(outer, work);
        let too_long = async {
            match self.timeout {
                Some(timeout) => journal.env.sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let stopped = async {
            match journal.told_to_stop().await {
                Stop::Cancelled => crate::ctx::cancelled(),
                Stop::Paused | Stop::Drained | Stop::Parked if self.effect == Effect::Write => {
                    std::future::pending().await
                }
                Stop::Paused | Stop::Drained | Stop::Parked | Stop::Lost(_) => {
                    // The driver need not wait for what will never come.
                    let _given_up = Counted::new(&self.ctx.0.activity.given_up);
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            biased;
            outcome = work => match outcome {
                Ok(outcome) => outcome,
                Err(panic) => {
                    let message = format!("`{}` panicked: {}", self.name, panic_text(&*panic));
                    Err(TaskError::of_kind("panic", message))
                }
            },
            () = too_long => {
                let timeout = self.timeout.unwrap_or_default();
                let message = format!("`{}` took longer than {timeout:?}", self.name);
                Err(TaskError::of_kind("timeout", message))
            }
            stopped = stopped => Err(stopped),
        }
    }

    /// Finds out what became of a write that an earlier driver announced.
    async fn settle<R, RFut>(
        &self,
        epoch: Epoch,
        key: Digest,
        reconcile: &R,
    ) -> Result<(), TaskError>
    where
        R: Fn(Digest) -> RFut,
        RFut: Future<Output = Result<Reconciled<Recorded>, TaskError>>,
    {
        if !self.reconciles {
            return self.doubt("it was interrupted").await;
        }
        if !has_settled(self.ctx, epoch, self.timeout).await? {
            let why = "it was interrupted, its driver is not known to be dead, and it has no timeout \
                       after which it could be";
            return self.doubt(why).await;
        }
        let said = match &self.ctx.0.engine.stage {
            Some(stage) => Ok(stage.reconciled_call(&self.call).await),
            None => AssertUnwindSafe(reconcile(key)).catch_unwind().await,
        };
        let (resolution, blobs) = match said {
            Ok(Ok(Reconciled::Done(done))) => (Resolution::Returned(done.output), done.blobs),
            Ok(Ok(Reconciled::NotDone)) => (Resolution::Retry, Vec::new()),
            Ok(Ok(Reconciled::Unknown)) => return self.doubt("it was interrupted").await,
            Ok(Err(error)) => {
                let why = format!("it was interrupted, and reconcile failed: {error}");
                return self.doubt(&why).await;
            }
            Err(panic) => {
                let why = format!("reconcile panicked: {}", panic_text(&*panic));
                return self.doubt(&why).await;
            }
        };
        let in_doubt = ToolInDoubt {
            call: self.call.clone(),
            reason: "it was interrupted".to_owned(),
        };
        let resolved = ToolResolved {
            by: "reconcile".to_owned(),
            call: self.call.clone(),
            resolution,
        };
        let bodies = vec![in_doubt.into(), resolved.into()];
        self.ctx.log().record(bodies, blobs).await?;
        Ok(())
    }

    /// Puts the call in doubt, and the run in wait for a person.
    async fn doubt(&self, reason: &str) -> Result<(), TaskError> {
        let reason = match self.redact {
            Some(redact) => redact(reason).0,
            None => reason.to_owned(),
        };
        let bodies = in_doubt(&self.call, &self.name, &reason);
        self.ctx.log().record(bodies, Vec::new()).await?;
        Ok(())
    }

    /// Waits until a person has said what became of the call.
    async fn resolved(&self) -> Result<(), TaskError> {
        let log = self.ctx.log();
        log.idle_until(|state| {
            !matches!(state.tools.get(&self.call), Some(CallState::InDoubt { .. }))
        })
        .await
    }

    /// The outcome in the log.
    async fn recorded(&self, seq: Seq) -> Result<CallOutcome, TaskError> {
        let event = self.ctx.0.journal.result(seq).await?;
        Ok(match event.body {
            Body::ToolReturned(ToolReturned { output, .. })
            | Body::ToolResolved(ToolResolved {
                resolution: Resolution::Returned(output),
                ..
            }) => CallOutcome::Returned(output),
            Body::ToolFailed(failed) => CallOutcome::Failed(failed.error),
            Body::ToolResolved(ToolResolved {
                resolution: Resolution::Failed(message),
                ..
            }) => CallOutcome::Failed(TaskError::new(message).permanent().cause()),
            other => {
                let message = format!("event {seq} should end a call but is {}", other.kind());
                return Err(TaskError::of_kind("bug", message).permanent());
            }
        })
    }
}

/// What puts a call in doubt, and the run in wait for a person.
pub(crate) fn in_doubt(call: &CallId, name: &str, reason: &str) -> Vec<Body> {
    let in_doubt = ToolInDoubt {
        call: call.clone(),
        reason: reason.to_owned(),
    };
    let wait = WaitStarted {
        call: Some(call.clone()),
        prompt: Some(format!("did `{name}` happen? {reason}")),
        tool: Some(name.to_owned()),
        ..plain_wait(WaitKind::InDoubt, NEW_WAIT)
    };
    vec![in_doubt.into(), wait.into()]
}
