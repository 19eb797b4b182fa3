//! Durable steps: a finished one gives its recorded result, any other runs and is recorded before
//! anyone sees its result.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use logreel_core::event::{Effect, StepFailed, StepFinished, StepRetrying, StepStarted};
use logreel_core::meaning::{digest_of, effect_key};
use logreel_core::state::Doing;
use logreel_core::{Body, Digest, IdError, Json, Payload, Seq, StepId, StepState, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ctx::{Counted, Ctx, Key, OUTER, Outer};
use crate::error::TaskError;
use crate::journal::{Announce, Journal, RecordError, Stop};

/// A step that takes longer is announced, so that watchers see it; a shorter one costs one append.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(20);

/// What can name a step: a text, or a tuple of texts and numbers.
pub trait StepName {
    /// The id.
    fn step_id(self) -> Result<StepId, IdError>;
}

impl StepName for StepId {
    fn step_id(self) -> Result<StepId, IdError> {
        Ok(self)
    }
}

impl StepName for &str {
    fn step_id(self) -> Result<StepId, IdError> {
        StepId::from_parts([self])
    }
}

impl StepName for String {
    fn step_id(self) -> Result<StepId, IdError> {
        StepId::from_parts([self])
    }
}

impl StepName for &String {
    fn step_id(self) -> Result<StepId, IdError> {
        StepId::from_parts([self])
    }
}

impl<A: ToString, B: ToString> StepName for (A, B) {
    fn step_id(self) -> Result<StepId, IdError> {
        StepId::from_parts([self.0.to_string(), self.1.to_string()])
    }
}

impl<A: ToString, B: ToString, C: ToString> StepName for (A, B, C) {
    fn step_id(self) -> Result<StepId, IdError> {
        StepId::from_parts([self.0.to_string(), self.1.to_string(), self.2.to_string()])
    }
}

/// How often a failing step is tried, and how long it waits in between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    attempts: u32,
    first: Duration,
    longest: Duration,
}

impl Retry {
    /// At most this many attempts in all (0 means 1), one second to thirty apart.
    pub fn attempts(attempts: u32) -> Self {
        Self {
            attempts: attempts.max(1),
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
        }
    }

    /// How many attempts in all.
    pub(crate) fn limit(&self) -> u32 {
        self.attempts
    }

    /// The first and the longest wait; it doubles in between, with jitter.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first;
        self.longest = longest.max(first);
        self
    }

    /// What says that the attempt after this one will come, and when.
    pub(crate) fn next(&self, step: &StepId, attempt: u32, journal: &Journal) -> StepRetrying {
        let attempt = attempt + 1;
        let delay = self.delay(attempt, journal.env.random_u64());
        StepRetrying {
            attempt,
            delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            step: step.clone(),
        }
    }

    /// The wait before this attempt: half of it fixed, half drawn.
    fn delay(&self, attempt: u32, random: u64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << attempt.saturating_sub(2).min(20));
        let full = doubled.min(self.longest);
        full / 2 + full.mul_f64((random % 1024) as f64 / 2048.0)
    }
}

/// A step about to run; made by [`Ctx::step`].
#[must_use = "a step does nothing until it is run"]
pub struct Step<'c> {
    ctx: &'c Ctx,
    name: Result<StepId, IdError>,
    input: Result<Option<Digest>, serde_json::Error>,
    effect: Effect,
    retry: Retry,
    timeout: Option<Duration>,
}

/// What the log says about a step that is asked for.
pub(crate) enum Known {
    Finished(Seq),
    Failed(TaskError),
    Run { attempt: u32, wait: Duration },
}

impl<'c> Step<'c> {
    pub(crate) fn new(ctx: &'c Ctx, name: Result<StepId, IdError>) -> Self {
        Self {
            ctx,
            name,
            input: Ok(None),
            effect: Effect::Idempotent,
            retry: Retry::attempts(1),
            timeout: None,
        }
    }

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

    /// The step changes nothing outside.
    pub fn reads(mut self) -> Self {
        self.effect = Effect::Read;
        self
    }

    /// Tries again when it fails.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Fails an attempt that takes longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs the step, or gives its recorded result.
    pub async fn run<F, Fut, T, E>(self, work: F) -> Result<T, TaskError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<TaskError>,
    {
        let Self {
            ctx,
            name,
            input,
            effect,
            retry,
            timeout,
        } = self;
        let step = ctx.0.ask(name)?;
        let input_digest = input?;
        let known = know(ctx, &step, input_digest, &retry)?;
        let (mut attempt, mut wait) = match known {
            // What few steps need is boxed, here and below: a step's future is moved around as a whole.
            Known::Finished(seq) => {
                return Box::pin(recorded(ctx, &step, seq, input_digest)).await;
            }
            Known::Failed(error) => return Err(error),
            Known::Run { attempt, wait } => (attempt, wait),
        };
        let running = Running {
            ctx,
            step: &step,
            input_digest,
            effect,
            timeout,
        };
        loop {
            crate::wait::back_off(ctx, &step, wait).await?;
            crate::budget::before_step(ctx, &step).await?;
            running.may_begin().await?;
            let _busy = Counted::new(&ctx.0.activity.busy);
            let outcome = match &ctx.0.engine.stage {
                Some(stage) => running.attempt(attempt, Ok(stage.step(&step))).await?,
                None => running.attempt(attempt, call(&step, &work)).await?,
            };
            let again = match outcome {
                Ok(value) => return Ok(value),
                Err(error) if error.is_retryable() && attempt < retry.attempts => attempt + 1,
                Err(error) => return Err(error),
            };
            let retrying = retry.next(&step, attempt, &ctx.0.journal);
            wait = Duration::from_millis(retrying.delay_ms);
            Box::pin(ctx.0.record(retrying.into(), Vec::new())).await?;
            ctx.0.forget_inside(&step);
            attempt = again;
        }
    }
}

/// Asks the log. A failure is final when it was final then: a crash between a step's failure and the
/// run's end must not change the end.
pub(crate) fn know(
    ctx: &Ctx,
    step: &StepId,
    input_digest: Option<Digest>,
    retry: &Retry,
) -> Result<Known, TaskError> {
    let journal = &ctx.0.journal;
    journal.with_state(|state| match state.steps.get(step) {
        None => Ok(Known::Run {
            attempt: 1,
            wait: Duration::ZERO,
        }),
        Some(StepState::Finished { seq, .. }) => Ok(Known::Finished(*seq)),
        Some(StepState::Answered { .. }) => {
            let message = format!("`{step}` was a wait when this run began; it is a step now");
            Err(TaskError::of_kind("spec_changed", message)
                .permanent()
                .in_step(step))
        }
        Some(StepState::Open(open)) => {
            check_input(step, open.input_digest, input_digest)?;
            match &open.doing {
                // Its future was dropped, by a `select!` or a timeout around it: it never failed.
                Doing::Failed(cause) if cause.kind == GIVEN_UP => Ok(Known::Run {
                    attempt: open.attempt,
                    wait: Duration::ZERO,
                }),
                Doing::Failed(cause) if !cause.retryable || open.attempt >= retry.attempts => {
                    Ok(Known::Failed(TaskError::from_cause(cause)))
                }
                Doing::Failed(_) => Ok(Known::Run {
                    attempt: open.attempt + 1,
                    wait: Duration::ZERO,
                }),
                Doing::Retrying { delay_ms, since } => Ok(Known::Run {
                    attempt: open.attempt + 1,
                    wait: retry_wait(*since, *delay_ms, journal.env.now()),
                }),
                Doing::Running | Doing::Skipped | Doing::InDoubt | Doing::Waiting(_) => {
                    Ok(Known::Run {
                        attempt: open.attempt,
                        wait: Duration::ZERO,
                    })
                }
            }
        }
    })
}

/// What is left of the wait before an attempt. A clock that jumped back makes nobody wait longer than
/// was said.
fn retry_wait(since: Timestamp, delay_ms: u64, now: Timestamp) -> Duration {
    let delay = Duration::from_millis(delay_ms);
    (since + delay).since(now).min(delay)
}

/// A result is bound to its input: the same id with another one is refused, never answered with the
/// old result.
pub(crate) fn check_input(
    step: &StepId,
    recorded: Option<Digest>,
    asked: Option<Digest>,
) -> Result<(), TaskError> {
    if recorded == asked || recorded.is_none() {
        return Ok(());
    }
    let message = format!(
        "step `{step}` was recorded with another input; give the step another id, or accept the \
         change by starting a new run"
    );
    Err(TaskError::of_kind("input_changed", message)
        .permanent()
        .in_step(step))
}

/// The recorded result of a finished step.
pub(crate) async fn recorded<T: DeserializeOwned>(
    ctx: &Ctx,
    step: &StepId,
    seq: Seq,
    input_digest: Option<Digest>,
) -> Result<T, TaskError> {
    let event = ctx.0.journal.result(seq).await?;
    let output = match event.body {
        Body::StepFinished(finished) => {
            check_input(step, finished.input_digest, input_digest)?;
            finished.output
        }
        Body::StepResolved(logreel_core::event::StepResolved {
            resolution: logreel_core::event::Resolution::Returned(output),
            ..
        }) => output,
        other => {
            let message = format!("event {seq} should hold a result but is {}", other.kind());
            return Err(TaskError::of_kind("bug", message).permanent());
        }
    };
    let json = ctx.0.journal.value(&output).await?;
    decode(step, &json)
}

fn decode<T: DeserializeOwned>(step: &StepId, json: &Json) -> Result<T, TaskError> {
    json.decode().map_err(|error| {
        let message = format!("the result of step `{step}` does not decode back: {error}");
        TaskError::of_kind("value", message)
            .permanent()
            .in_step(step)
    })
}

/// One step being run.
pub(crate) struct Running<'a> {
    pub(crate) ctx: &'a Ctx,
    pub(crate) step: &'a StepId,
    pub(crate) input_digest: Option<Digest>,
    pub(crate) effect: Effect,
    pub(crate) timeout: Option<Duration>,
}

impl Running<'_> {
    /// Nothing new starts once the driver was told to stop, or when the lease may be gone.
    pub(crate) async fn may_begin(&self) -> Result<(), TaskError> {
        let journal = &self.ctx.0.journal;
        if journal.is_stopped() {
            return Err(self.ctx.0.until_stopped().await);
        }
        if journal.with_state(|state| state.row.facts.ended.is_some()) {
            return Err(crate::ctx::cancelled());
        }
        crate::lease::check_lease(&self.ctx.0).await
    }

    /// One attempt. The outer error ends the step without a record: the run was cancelled.
    async fn attempt<Fut, T, E>(
        &self,
        attempt: u32,
        work: Result<Fut, TaskError>,
    ) -> Result<Result<T, TaskError>, TaskError>
    where
        Fut: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<TaskError>,
    {
        let journal = &self.ctx.0.journal;
        let started_at = journal.env.now();
        let mut work = std::pin::pin!(self.guarded(work));
        let given_up = GivenUp::armed(self, attempt);
        let (_quiet, announce) = journal.begin_step(self.started(attempt));
        let quick = match announce {
            Announce::Now => None,
            Announce::Later => tokio::select! {
                biased;
                outcome = &mut work => Some(outcome),
                // Made only when it is needed.
                () = async { journal.env.sleep(ANNOUNCE_AFTER).await } => None,
            },
        };
        let (outcome, announced) = match quick {
            Some(outcome) => (outcome, false),
            None => {
                let announcing = Box::pin(self.announce(attempt));
                let (said, outcome) = tokio::join!(announcing, &mut work);
                (outcome, said.is_ok())
            }
        };
        given_up.disarm();
        let started_at = (!announced).then_some(started_at);
        match outcome.and_then(|value| self.written(&value)) {
            Ok((json, payload, blobs)) => match decode(self.step, &json) {
                Ok(value) => {
                    let finished = self.finish(attempt, payload, blobs, started_at).await?;
                    Ok(finished.map(|()| value))
                }
                Err(error) => Box::pin(self.fail(attempt, error, started_at)).await,
            },
            Err(error) if error.is_cancelled() => Err(error),
            Err(error) => Box::pin(self.fail(attempt, error, started_at)).await,
        }
    }

    /// The work, with its panic as a labelled failure, its timeout, and itself as the outer step.
    pub(crate) async fn guarded<Fut, T, E>(
        &self,
        work: Result<Fut, TaskError>,
    ) -> Result<T, TaskError>
    where
        Fut: Future<Output = Result<T, E>>,
        E: Into<TaskError>,
    {
        let outer = Outer {
            step: self.step.clone(),
            key: Key::BoundTo(self.ctx.run_id(), self.input_digest),
            gives_up: false,
        };
        let work = OUTER.scope(outer, AssertUnwindSafe(work?).catch_unwind());
        let outcome = match self.timeout {
            None => work.await,
            Some(timeout) => tokio::select! {
                biased;
                outcome = work => outcome,
                () = self.ctx.0.journal.env.sleep(timeout) => {
                    let message = format!("step `{}` took longer than {timeout:?}", self.step);
                    return Err(TaskError::of_kind("timeout", message));
                }
            },
        };
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error.into()),
            Err(panic) => Err(panicked(self.step, &*panic)),
        }
    }

    /// The idempotency key.
    pub(crate) fn key(&self) -> Digest {
        let run = &self.ctx.0.journal.run;
        effect_key(run, &self.step.canonical(), self.input_digest.as_ref())
    }

    /// That it started, without its key: most are never announced, and a key is a hash.
    fn started(&self, attempt: u32) -> StepStarted {
        StepStarted {
            attempt,
            effect: self.effect,
            input_digest: self.input_digest,
            key: None,
            step: self.step.clone(),
        }
    }

    async fn announce(&self, attempt: u32) -> Result<(), TaskError> {
        let started = StepStarted {
            key: Some(self.key()),
            ..self.started(attempt)
        };
        self.ctx.0.record(started.into(), Vec::new()).await?;
        Ok(())
    }

    /// The result as it will be recorded.
    pub(crate) fn written<T: Serialize>(
        &self,
        value: &T,
    ) -> Result<(Json, Payload, Vec<logreel_core::Blob>), TaskError> {
        let json = Json::of(value).map_err(|error| {
            let message = format!("the result of step `{}` is no JSON: {error}", self.step);
            TaskError::of_kind("value", message).permanent()
        })?;
        let (payload, blob) = Payload::of(json.clone());
        Ok((json, payload, blob.into_iter().collect()))
    }

    /// Records the result. One that is too large to record is how the step failed.
    pub(crate) async fn finish(
        &self,
        attempt: u32,
        output: Payload,
        blobs: Vec<logreel_core::Blob>,
        started_at: Option<Timestamp>,
    ) -> Result<Result<(), TaskError>, TaskError> {
        let finished = StepFinished {
            attempt,
            effect: self.effect,
            input_digest: self.input_digest,
            output,
            started_at,
            step: self.step.clone(),
        };
        let finished = vec![Body::from(finished).into()];
        match self.ctx.0.journal.record(finished, blobs).await {
            Ok(_) => {}
            Err(RecordError::Refused(why)) => {
                let error = TaskError::from(why).permanent();
                return Box::pin(self.fail(attempt, error, started_at)).await;
            }
            Err(error) => return Err(self.ctx.0.refused(error).await),
        }
        // After the end the result is kept as a late fact, and the function learns of the end.
        if self
            .ctx
            .0
            .journal
            .with_state(|state| state.row.facts.ended.is_some())
        {
            return Err(crate::ctx::cancelled());
        }
        Ok(Ok(()))
    }

    /// Records a failed attempt and gives the error back as the step's own.
    pub(crate) async fn fail<T>(
        &self,
        attempt: u32,
        error: TaskError,
        started_at: Option<Timestamp>,
    ) -> Result<Result<T, TaskError>, TaskError> {
        let error = error.in_step(self.step);
        let failed = StepFailed {
            attempt,
            error: error.cause(),
            started_at,
            step: self.step.clone(),
        };
        self.ctx.0.record(failed.into(), Vec::new()).await?;
        Ok(Err(error))
    }
}

/// The `error.kind` of a step whose future was dropped before it had an outcome.
pub(crate) const GIVEN_UP: &str = "given_up";

/// An announced step whose future is dropped half-way, while its driver lives on, must not look as if
/// it were still running: the run would never count as waiting. A write is in doubt from then on.
pub(crate) struct GivenUp<'a, 'b> {
    running: &'a Running<'b>,
    attempt: u32,
    /// Whether something can find out what became of it.
    reconciles: bool,
    armed: bool,
}

impl<'a, 'b> GivenUp<'a, 'b> {
    pub(crate) fn armed(running: &'a Running<'b>, attempt: u32) -> Self {
        Self {
            running,
            attempt,
            reconciles: false,
            armed: true,
        }
    }

    /// For a write that may be asked about when it was interrupted.
    pub(crate) fn reconciles(mut self, reconciles: bool) -> Self {
        self.reconciles = reconciles;
        self
    }

    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for GivenUp<'_, '_> {
    fn drop(&mut self) {
        let Running {
            ctx, step, effect, ..
        } = self.running;
        let journal = &ctx.0.journal;
        if !self.armed {
            return;
        }
        let reason = match journal.stopped() {
            None => "its future was dropped",
            // Its grace time is over, and the run may stay paused for long: whoever looks at it must
            // see that the write may have happened.
            Some(Stop::Paused) if *effect == Effect::Write && !self.reconciles => {
                "the run was paused before its outcome came back"
            }
            // A driver that stops leaves its steps as they are; the next one runs them again.
            Some(_) => return,
        };
        let commands = match effect {
            Effect::Write => {
                let key = self.running.key();
                crate::write_step::in_doubt(step, journal.epoch, key, reason)
            }
            Effect::Read | Effect::Idempotent => {
                let error = TaskError::of_kind(GIVEN_UP, "the step's future was dropped");
                let failed = StepFailed {
                    attempt: self.attempt,
                    error: error.in_step(step).cause(),
                    started_at: None,
                    step: (*step).clone(),
                };
                vec![Body::from(failed).into()]
            }
        };
        // It goes out with the next append, or when the driver gives its lease back.
        if let Err(error) = journal.submit(commands, Vec::new()) {
            tracing::warn!(run = %journal.run, %step, ?error, "a dropped step was not recorded");
        }
    }
}

/// Calls a step's function, which may panic before it gives a future.
pub(crate) fn call<Fut>(step: &StepId, work: impl FnOnce() -> Fut) -> Result<Fut, TaskError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panicked(step, &*panic))
}

fn panicked(step: &StepId, panic: &(dyn std::any::Any + Send)) -> TaskError {
    TaskError::of_kind(
        "panic",
        format!("step `{step}` panicked: {}", panic_text(panic)),
    )
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
