//! Child runs: announced in the parent's log before they exist, awaited without holding a lease.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::decide::plain_wait;
use logreel_core::event::{
    ChildFinished, ChildStarted, Effect, OnDeadline, Parent, Provenance, Relation, RunKind,
    RunStarted, StepFailed, StepFinished, TerminalStatus, Used, WaitEnded, WaitKind, WaitOutcome,
    WaitStarted,
};
use logreel_core::row::{End, Ended, OpenWait};
use logreel_core::{Blob, Body, Command, Digest, Json, Payload, RunId, Seq, StepId, Timestamp};
use logreel_store::{CreateError, Entry, NewRun};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::begin::Begin;
use crate::budget;
use crate::ctx::{Counted, Ctx};
use crate::engine::Inner;
use crate::error::{ErrorKind, TaskError};
use crate::journal::NEW_WAIT;
use crate::outage::Outage;
use crate::owner::LOOK_EVERY;
use crate::program::Program;
use crate::replay::ChildCall;
use crate::step::{Known, Retry, know, recorded};
use crate::task::Task;

/// A run to be started as the work of a step.
pub(crate) struct Child<'a> {
    pub(crate) program: &'a Arc<Program>,
    pub(crate) input: Json,
    /// What the result is bound to.
    pub(crate) input_digest: Option<Digest>,
    pub(crate) retry: Retry,
    /// How long it may take, from when it was announced.
    pub(crate) timeout: Option<Duration>,
    /// Refuses an output, in words.
    pub(crate) check: &'a (dyn Fn(&serde_json::Value) -> Result<(), String> + Sync),
}

/// How a child ended, as its parent needs to know it.
#[derive(Debug, Clone)]
pub(crate) struct ChildEnd {
    pub(crate) child: RunId,
    pub(crate) since: Timestamp,
    pub(crate) ended: Ended,
    /// By it and everyone below it.
    pub(crate) used: Used,
}

impl Ctx {
    /// Runs another task as a child run of this one, and gives its output. A cancel of this run
    /// cancels the child; while nothing but the child goes on, this run holds no lease.
    pub async fn child<I, O>(
        &self,
        name: impl crate::StepName,
        task: &Task<I, O>,
        input: &I,
    ) -> Result<O, TaskError>
    where
        I: Serialize,
        O: DeserializeOwned,
    {
        let step = self.0.ask(name.step_id())?;
        let input = Json::of(input)?;
        let child = Child {
            program: task.program(),
            input_digest: Some(logreel_core::meaning::digest_of(&input)?),
            input,
            retry: Retry::attempts(1),
            timeout: None,
            check: &|_| Ok(()),
        };
        Ok(run(self, &step, child).await?.decode()?)
    }
}

/// Runs a program as a child run, or gives its recorded output. The step was asked for already.
pub(crate) async fn run(ctx: &Ctx, step: &StepId, child: Child<'_>) -> Result<Json, TaskError> {
    loop {
        let (attempt, wait) = match know(ctx, step, child.input_digest, &child.retry)? {
            Known::Finished(seq) => return recorded(ctx, step, seq, child.input_digest).await,
            Known::Failed(error) => return Err(error),
            Known::Run { attempt, wait } => (attempt, wait),
        };
        let (id, seq) = match open_child(ctx, step) {
            Some(open) => open,
            None => {
                crate::wait::back_off(ctx, step, wait).await?;
                announce(ctx, step, &child).await?
            }
        };
        let end = match &ctx.0.engine.stage {
            Some(stage) => {
                let started = ChildCall {
                    step: step.clone(),
                    child: id,
                    program: Arc::clone(child.program),
                    input: child.input.clone(),
                };
                stage.child(started).await?
            }
            None => {
                create(ctx, id, seq, &child).await?;
                ended(ctx, &until_ended(ctx, id).await?).await?
            }
        };
        record_end(ctx, step, &child, attempt, &end).await?;
    }
}

/// The step's child that has not ended as far as this log knows, and where it was announced.
fn open_child(ctx: &Ctx, step: &StepId) -> Option<(RunId, Seq)> {
    ctx.0.journal.with_state(|state| {
        let mut children = state.children.iter();
        let found = children.find(|(_, open)| open.step == *step);
        found.map(|(child, open)| (*child, open.seq))
    })
}

/// Records that the child is about to exist and that the step waits for it.
async fn announce(ctx: &Ctx, step: &StepId, child: &Child<'_>) -> Result<(RunId, Seq), TaskError> {
    let journal = &ctx.0.journal;
    let recorded = ctx.0.engine.stage.as_ref();
    let recorded = recorded.and_then(|stage| stage.child_id(step));
    let id = recorded.unwrap_or_else(|| journal.env.run_id());
    let started = ChildStarted {
        budget: child.program.budget.clone(),
        child: id,
        detached: false,
        step: step.clone(),
    };
    let wait = || WaitStarted {
        deadline: child.timeout.map(|after| journal.env.now() + after),
        on_deadline: child.timeout.map(|_| OnDeadline::Fail),
        name: Some(id.to_string()),
        prompt: Some(format!("{} {}", child.program.kind, child.program.name)),
        step: Some(step.clone()),
        ..plain_wait(WaitKind::Child, NEW_WAIT)
    };
    match child.program.kind {
        RunKind::Agent => budget::before_agent(ctx, step).await?,
        RunKind::Record => budget::before_stream(ctx, step).await?,
        RunKind::Workflow | RunKind::Task | RunKind::External => {}
    }
    let starting = budget::Starting::new(ctx).await;
    let commands = || {
        let started = Command::StartChild {
            started: started.clone(),
            together: starting.together(),
        };
        vec![started, Body::from(wait()).into()]
    };
    let about = budget::About::step(step);
    let events = budget::record(ctx, &about, commands, Vec::new()).await?;
    Ok((id, events.first().map_or(Seq::FIRST, |event| event.seq)))
}

/// Creates the child, or finds the one that was created before a crash, and has it driven.
async fn create(ctx: &Ctx, id: RunId, seq: Seq, child: &Child<'_>) -> Result<(), TaskError> {
    let (journal, engine) = (&ctx.0.journal, &ctx.0.engine);
    let (input, input_blob) = Payload::of(child.input.clone());
    let (spec, spec_blob) = Payload::of(child.program.spec.clone());
    let named = engine.named_in(child.program);
    let started = journal.with_state(|state| RunStarted {
        agent: Arc::clone(&child.program.name),
        budget: budget::moved_to(&state.row, &id),
        context: None,
        dir: state.row.facts.dir.clone(),
        durability: state.row.facts.durability,
        git: state.row.facts.git.clone(),
        input,
        key: None,
        kind: child.program.kind,
        labels: state.row.facts.labels.clone(),
        limit: child.program.limit.clone(),
        parent: Some(Parent {
            relation: Relation::Child,
            run: journal.run,
            seq,
        }),
        provenance: Provenance {
            models: named.models,
            tools: named.tools,
            ..engine.provenance()
        },
        session: None,
        spec,
        spec_digest: child.program.spec_digest,
        spec_file: None,
    });
    // A worker's children wait in line like any run, so that they take no slot beyond its limit.
    // A command is the work of this step, whoever does it.
    let is_command = child.program.kind == RunKind::Record;
    let owner = match engine.is_worker() && !is_command {
        true => None,
        false => Some(reach(ctx, || engine.owner()).await?.id()),
    };
    let new = NewRun {
        run: id,
        started,
        blobs: input_blob.into_iter().chain(spec_blob).collect(),
        owner,
        then: Vec::new(),
    };
    let created = match journal.patiently(|| engine.create(new.clone())).await {
        // The parent was cancelled meanwhile; the driver is about to be told.
        Err(crate::Error::Create(CreateError::ParentEnded(_))) => {
            return Err(ctx.0.until_stopped().await);
        }
        created => reached(ctx, created).await?,
    };
    let entry = created.entry();
    // Also when the answer to its creation was lost: nobody has driven it yet.
    if entry.row.head.seq == Seq::FIRST {
        reach(ctx, || engine.pause_with_parent(entry)).await?;
    }
    engine.adopt::<Json>(created, owner, child.program).await;
    Ok(())
}

/// What the store answers, however long it is away: that is no failure of this run.
async fn reach<T, F>(ctx: &Ctx, ask: impl Fn() -> F) -> Result<T, TaskError>
where
    F: Future<Output = Result<T, crate::Error>>,
{
    reached(ctx, ctx.0.journal.patiently(ask).await).await
}

async fn reached<T>(ctx: &Ctx, answer: Result<T, crate::Error>) -> Result<T, TaskError> {
    match answer {
        Ok(answer) => Ok(answer),
        // Only a run that was cancelled waits no longer.
        Err(error) if error.kind() == ErrorKind::Unavailable => Err(ctx.0.until_stopped().await),
        Err(error) => Err(TaskError::from(error)),
    }
}

/// Waits until the child has ended, whoever drives it.
async fn until_ended(ctx: &Ctx, child: RunId) -> Result<Entry, TaskError> {
    let (journal, activity) = (&ctx.0.journal, &ctx.0.activity);
    let deadline = wait_for(ctx, child).and_then(|open| open.wait.deadline);
    let mut doorbell = journal.store.watch(&child);
    let _waiting = Counted::new(&activity.waiting);
    activity.wait_began.notify_one();
    let is_late = || deadline.is_some_and(|deadline| deadline <= journal.env.now());
    let mut outage = Outage::default();
    loop {
        let looked = async {
            let entry = journal.store.entry(&child).await?;
            if !entry.row.status().is_terminal() && is_late() {
                let reason = Some(TOO_LONG.to_owned());
                ctx.0.engine.cancel(&child, reason).await?;
                return Ok(journal.store.entry(&child).await?);
            }
            Ok::<_, crate::Error>(entry)
        };
        let again = match looked.await {
            Ok(entry) if entry.row.status().is_terminal() => return Ok(entry),
            Ok(_) => {
                outage.is_over();
                deadline.map_or(LOOK_EVERY, |deadline| deadline.since(journal.env.now()))
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                outage.tell(&child, &error, "a child could not be looked at");
                LOOK_EVERY
            }
            Err(error) => return Err(TaskError::from(error).permanent()),
        };
        tokio::select! {
            _ = doorbell.rung() => {}
            () = journal.env.sleep(again.min(LOOK_EVERY)) => {}
            stopped = ctx.0.until_stopped() => return Err(stopped),
        }
    }
}

/// The end of a child that has ended.
async fn ended(ctx: &Ctx, entry: &Entry) -> Result<ChildEnd, TaskError> {
    let _busy = Counted::new(&ctx.0.activity.busy);
    let child = entry.row.run;
    let Some(ended) = entry.row.facts.ended.clone() else {
        let message = format!("{child} has ended and has no end");
        return Err(TaskError::of_kind("bug", message).permanent());
    };
    let store = &*ctx.0.journal.store;
    Ok(ChildEnd {
        child,
        since: entry.row.facts.created_at,
        ended,
        used: reach(ctx, || budget::used_by(store, &entry.row)).await?,
    })
}

/// Records how the child ended, that the wait is over, and what that makes of the step: one append.
async fn record_end(
    ctx: &Ctx,
    step: &StepId,
    child: &Child<'_>,
    attempt: u32,
    end: &ChildEnd,
) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let _busy = Counted::new(&ctx.0.activity.busy);
    let (id, used) = (end.child, end.used);
    let mut commands: Vec<Command> = vec![finished(step, id, &end.ended, used).into()];
    commands.extend(over(ctx, step, id).map(Command::from));
    let (result, blobs) = result(ctx, step, child, attempt, &end.ended, end.since).await?;
    let retries = match &result {
        Body::StepFailed(failed) => failed.error.retryable && attempt < child.retry.limit(),
        _ => false,
    };
    commands.push(result.into());
    if retries {
        let retrying = child.retry.next(step, attempt, journal);
        commands.push(Body::from(retrying).into());
    }
    match journal.record(commands, blobs).await {
        Ok(_) => Ok(()),
        Err(error) => Err(ctx.0.refused(error).await),
    }
}

fn finished(step: &StepId, child: RunId, ended: &Ended, used: Used) -> Body {
    let status = match ended.end {
        End::Completed { .. } => TerminalStatus::Completed,
        End::Failed { .. } => TerminalStatus::Failed,
        End::Cancelled { .. } => TerminalStatus::Cancelled,
    };
    ChildFinished {
        child,
        final_state_digest: ended.final_state_digest,
        status,
        step: step.clone(),
        used: Some(used),
    }
    .into()
}

/// The end of the wait for this child.
fn over(ctx: &Ctx, step: &StepId, child: RunId) -> Option<Body> {
    wait_for(ctx, child).map(|open| {
        WaitEnded {
            approved: None,
            by: None,
            outcome: WaitOutcome::Finished,
            reason: None,
            step: Some(step.clone()),
            value: Payload::null(),
            wait: open.wait.wait,
        }
        .into()
    })
}

/// The open wait for this child.
fn wait_for(ctx: &Ctx, child: RunId) -> Option<OpenWait> {
    let name = child.to_string();
    ctx.0.journal.with_state(|state| {
        let mut waits = state.row.facts.waits.iter();
        let is_for_it = |open: &&OpenWait| {
            open.wait.kind == WaitKind::Child && open.wait.name.as_deref() == Some(&*name)
        };
        waits.find(is_for_it).cloned()
    })
}

/// Cancels the step's child, if it has one that has not ended.
pub(crate) async fn cancel_open(ctx: &Ctx, step: &StepId, why: &str) -> Result<(), TaskError> {
    if let Some((child, _)) = open_child(ctx, step) {
        let cancel = || ctx.0.engine.cancel(&child, Some(why.to_owned()));
        reach(ctx, cancel).await?;
    }
    Ok(())
}

/// What the child's end makes of the step.
async fn result(
    ctx: &Ctx,
    step: &StepId,
    child: &Child<'_>,
    attempt: u32,
    ended: &Ended,
    since: Timestamp,
) -> Result<(Body, Vec<Blob>), TaskError> {
    let error = match &ended.end {
        End::Completed { output } => {
            let output = ctx.0.journal.value(output).await?;
            match (child.check)(&output.to_value()) {
                Err(misses) => {
                    let message = format!("the output misses its schema: {misses}");
                    TaskError::of_kind("schema", message)
                }
                Ok(()) => {
                    let (output, blob) = Payload::of(output);
                    let finished = StepFinished {
                        attempt,
                        effect: Effect::Idempotent,
                        input_digest: child.input_digest,
                        output,
                        started_at: Some(since),
                        step: step.clone(),
                    };
                    return Ok((finished.into(), blob.into_iter().collect()));
                }
            }
        }
        End::Failed { cause } => {
            let message = format!("its {} failed: {}", child.program.kind, cause.message);
            TaskError::of_kind("child_failed", message)
        }
        End::Cancelled { reason } if reason.as_deref() == Some(TOO_LONG) => {
            let message = format!("its {} {TOO_LONG}", child.program.kind);
            TaskError::of_kind("timeout", message)
        }
        End::Cancelled { reason } => {
            let why = reason.as_deref().map(|why| format!(": {why}"));
            let why = why.unwrap_or_default();
            let message = format!("its {} was cancelled{why}", child.program.kind);
            TaskError::of_kind("child_cancelled", message).permanent()
        }
    };
    let failed = StepFailed {
        attempt,
        error: error.in_step(step).cause(),
        started_at: Some(since),
        step: step.clone(),
    };
    Ok((failed.into(), Vec::new()))
}

impl Inner {
    /// Drives the children of a run that is kept here: a process that died may have left them to
    /// nobody, and the run goes on only when they have ended. A worker takes them from the queue.
    ///
    /// The error is that of a store that cannot be reached; then it is worth another try.
    pub(crate) async fn keep_children(self: &Arc<Self>, run: &RunId) -> Result<(), crate::Error> {
        if self.is_worker() {
            return Ok(());
        }
        let keep = async {
            for child in self.live_children(run).await? {
                let entry = self.store.entry(&child).await?;
                let program = self.program_of(&entry).await?;
                self.spawn_driver(child, program, Begin::Keep, true);
            }
            Ok::<_, crate::Error>(())
        };
        match keep.await {
            Err(error) if error.kind() != ErrorKind::Unavailable => {
                tracing::warn!(%run, %error, "its children could not all be driven here");
                Ok(())
            }
            kept => kept,
        }
    }

    /// Whether the run is a child whose parent has ended without it: it must not go on.
    pub(crate) async fn is_forsaken(&self, entry: &Entry) -> Result<bool, crate::Error> {
        let Some(parent) = &entry.row.facts.parent else {
            return Ok(false);
        };
        // Whose parent is elsewhere is driven there.
        if parent.relation != Relation::Child || entry.read_only {
            return Ok(false);
        }
        match self.store.entry(&parent.run).await {
            Ok(parent) => Ok(parent.row.status().is_terminal()),
            // A pruned parent had ended.
            Err(logreel_store::Error::NotFound(_)) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Cancels a run that is driven here and whose parent has ended: its cancel may have died before
    /// it came to this child.
    pub(crate) async fn cancel_if_forsaken(&self, entry: &Entry) -> Result<(), crate::Error> {
        if !entry.row.status().is_terminal() && self.is_forsaken(entry).await? {
            self.cancel(&entry.row.run, Some(FORSAKEN.to_owned()))
                .await?;
        }
        Ok(())
    }

    /// Cancels children that wait and whose parent has ended: what a crash in the middle of a
    /// cancel's cascade left. Those that are driven or ready are found by whoever drives them.
    pub(crate) async fn cancel_forsaken(&self) -> Result<(), crate::Error> {
        for run in self.store.forsaken(FORSAKEN_AT_ONCE).await? {
            match self.cancel(&run, Some(FORSAKEN.to_owned())).await {
                Ok(_) => {}
                Err(error) if error.kind() == crate::ErrorKind::Unavailable => return Err(error),
                Err(error) => tracing::warn!(%run, %error, "a forsaken child was not cancelled"),
            }
        }
        Ok(())
    }
}

/// How many forsaken children a sweep cancels: the next one finds the others.
const FORSAKEN_AT_ONCE: usize = 100;
/// Why a child is cancelled whose time is over.
const TOO_LONG: &str = "took longer than it may";
/// Why a child is cancelled that outlived its parent.
pub(crate) const FORSAKEN: &str = "its parent has ended";
