//! The fold: the only place where a run's state comes from, live and after a crash alike.
//!
//! [`Row::apply`] folds the bounded part, this module the rest. An event that contradicts the log
//! before it is refused by name, and nothing changes; `decide` asks the same `admit` first.

use crate::event::{Body, Effect, Event, Resolution, WaitOutcome, WaitStarted};
use crate::id::{CallId, Epoch, RunId, Seq, StepId, WaitId};
use crate::row::Row;
use crate::state::{CallState, Doing, OpenChild, OpenStep, RunState, StepState};

/// An event that cannot follow the log before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} ({kind}) cannot follow: {why}")]
pub struct IllegalEvent {
    /// Its position.
    pub seq: Seq,
    /// Its kind.
    pub kind: String,
    /// Why not.
    pub why: Illegal,
}

impl IllegalEvent {
    pub(crate) fn new(event: &Event, why: Illegal) -> Self {
        Self {
            seq: event.seq,
            kind: event.body.kind().to_owned(),
            why,
        }
    }
}

/// Why an event cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// Event 1 must be `run.started`.
    #[error("a log begins with run.started")]
    NotStarted,
    /// A gap, a duplicate, or the wrong order.
    #[error("event {expected} is next")]
    OutOfOrder {
        /// The seq that is next.
        expected: Seq,
    },
    /// Times never decrease within a run.
    #[error("its time is before that of the event before it")]
    TimeWentBack,
    /// An event of an earlier driver after the first of a later one.
    #[error("its epoch is older than {current}")]
    StaleEpoch {
        /// The latest epoch in the log.
        current: Epoch,
    },
    /// A newer build wrote it.
    #[error("this build does not know the kind; use a newer logreel")]
    UnknownKind,
    /// Only late facts follow the end.
    #[error("the run has ended and the event is not marked late")]
    AfterEnd,
    /// Late facts follow the end only.
    #[error("it is marked late, but the run has not ended")]
    LateBeforeEnd,
    /// A step's result is recorded once.
    #[error("step {0} has its result already")]
    StepHasResult(StepId),
    /// A step starts once per driver and attempt.
    #[error("step {0} is running already")]
    StepIsRunning(StepId),
    /// An end without `started_at` needs a `step.started`.
    #[error("the step was not announced by a step.started of this driver; give its started_at")]
    StepNotRunning,
    /// A write in doubt, or one that an earlier driver announced and nobody settled.
    #[error("nobody knows whether write step {0} happened; it must be resolved first")]
    StepUnsettled(StepId),
    /// A write is announced before it runs, never afterwards.
    #[error("write step {0} was not announced by a step.started of this driver")]
    WriteNotAnnounced(StepId),
    /// An end with `started_at` cannot follow a `step.started`.
    #[error("step {0} was announced by step.started; leave out started_at")]
    StepWasAnnounced(StepId),
    /// Only a failed step is tried again.
    #[error("step {0} has not failed")]
    StepHasNotFailed(StepId),
    /// Only an announced write can be in doubt.
    #[error("step {0} is not a write under way")]
    NotAnOpenWrite(StepId),
    /// Only what is in doubt can be resolved.
    #[error("it is not in doubt")]
    NotInDoubt,
    /// A call has one result.
    #[error("call {0} has its result already")]
    CallHasResult(CallId),
    /// A call is issued once per driver.
    #[error("call {0} is under way already")]
    CallIsOpen(CallId),
    /// A result needs its call.
    #[error("call {0} is not under way")]
    CallNotOpen(CallId),
    /// A write in doubt, or one that an earlier driver issued and nobody settled.
    #[error("nobody knows whether write call {0} happened; it must be resolved first")]
    CallUnsettled(CallId),
    /// The patch does not fit the document.
    #[error("the patch does not apply: {0}")]
    Patch(String),
    /// Waits are numbered in order.
    #[error("the next wait is {expected}")]
    WaitOutOfOrder {
        /// The id that is next.
        expected: WaitId,
    },
    /// Only an open wait ends.
    #[error("wait {0} is not open")]
    WaitNotOpen(WaitId),
    /// A child's end needs its start.
    #[error("child {0} is not under way")]
    ChildNotOpen(RunId),
    /// A child starts once.
    #[error("child {0} was started already")]
    ChildIsOpen(RunId),
    /// A fork's relation is fork or retry.
    #[error("a fork cannot have the relation `child`")]
    ForkIsNoChild,
    /// `run.forked` follows the shared events and names the last of them.
    #[error("it does not name the event before it as the one it forks from")]
    ForkElsewhere,
}

/// The state after the next event.
pub fn fold(mut state: RunState, event: &Event) -> Result<RunState, IllegalEvent> {
    state.apply(event)?;
    Ok(state)
}

/// The state after a whole log; `None` for an empty one.
pub fn replay<'a>(
    run: RunId,
    events: impl IntoIterator<Item = &'a Event>,
) -> Result<Option<RunState>, IllegalEvent> {
    let mut state: Option<RunState> = None;
    for event in events {
        match &mut state {
            None => state = Some(RunState::begin(run, event)?),
            Some(state) => state.apply(event)?,
        }
    }
    Ok(state)
}

impl RunState {
    /// The state after event 1.
    pub fn begin(run: RunId, event: &Event) -> Result<Self, IllegalEvent> {
        Self::start(run, event)
    }

    /// [`fold`] in place. On an error nothing has changed.
    pub fn apply(&mut self, event: &Event) -> Result<(), IllegalEvent> {
        // First, so that a doubled event is called that, and not what its body would contradict.
        self.row.check_envelope(event)?;
        if self.row.facts.ended.is_some() {
            return self.row.apply_checked(event);
        }
        admit(self, &event.body, event.epoch).map_err(|why| IllegalEvent::new(event, why))?;
        let closing = match &event.body {
            Body::WaitEnded(ended) => self.row.wait(ended.wait).map(|open| open.wait.clone()),
            _ => None,
        };
        self.row.apply_checked(event)?;
        self.apply_body(event);
        if let (Some(wait), Body::WaitEnded(ended)) = (closing, &event.body) {
            self.end_wait(&wait, ended.outcome, event);
        }
        Ok(())
    }

    /// One match, no `_` arm: a new kind costs an edit here, and that is intended.
    fn apply_body(&mut self, event: &Event) {
        match &event.body {
            Body::RunForked(forked) => self.fork(forked),
            Body::StepStarted(started) => {
                if started.effect == Effect::Write {
                    self.writes.insert(started.step.clone());
                }
                let open = OpenStep {
                    doing: Doing::Running,
                    attempt: started.attempt,
                    effect: started.effect,
                    epoch: event.epoch,
                    started_at: event.at,
                    input_digest: started.input_digest,
                    key: started.key,
                };
                self.steps
                    .insert(started.step.clone(), StepState::Open(Box::new(open)));
            }
            Body::StepFinished(finished) => {
                let done = StepState::Finished {
                    seq: event.seq,
                    attempt: finished.attempt,
                };
                self.steps.insert(finished.step.clone(), done);
            }
            Body::StepFailed(failed) => {
                let started_at = failed.started_at.unwrap_or(event.at);
                let open = self.open_mut(&failed.step, event, started_at);
                open.started_at = failed.started_at.unwrap_or(open.started_at);
                open.attempt = failed.attempt;
                open.doing = Doing::Failed(failed.error.clone());
            }
            Body::StepRetrying(retrying) => {
                let open = self.open_mut(&retrying.step, event, event.at);
                open.doing = Doing::Retrying {
                    delay_ms: retrying.delay_ms,
                    since: event.at,
                };
            }
            Body::StepSkipped(skipped) => {
                self.open_mut(&skipped.step, event, event.at).doing = Doing::Skipped;
            }
            Body::StepInDoubt(doubt) => {
                self.open_mut(&doubt.step, event, event.at).doing = Doing::InDoubt;
            }
            Body::StepResolved(resolved) => match &resolved.resolution {
                Resolution::Returned(_) => {
                    let attempt = self.open_mut(&resolved.step, event, event.at).attempt;
                    let done = StepState::Finished {
                        seq: event.seq,
                        attempt,
                    };
                    self.steps.insert(resolved.step.clone(), done);
                }
                Resolution::Failed(message) => {
                    let cause = crate::event::Cause {
                        exit_code: None,
                        kind: "resolved".to_owned(),
                        message: message.clone(),
                        retryable: false,
                        step: Some(resolved.step.clone()),
                    };
                    self.open_mut(&resolved.step, event, event.at).doing = Doing::Failed(cause);
                }
                Resolution::Retry => {
                    self.open_mut(&resolved.step, event, event.at).doing = Doing::Retrying {
                        delay_ms: 0,
                        since: event.at,
                    };
                }
            },
            Body::TurnStarted(turn) => self.turn = turn.turn,
            Body::ModelCalled(called) => {
                let open = CallState::Open {
                    seq: event.seq,
                    attempt: called.attempt,
                    // Issued again after a crash, and paid for again.
                    effect: Effect::Idempotent,
                    epoch: event.epoch,
                };
                self.models.insert(called.call.clone(), open);
            }
            Body::ModelAnswered(answered) => {
                self.models.insert(
                    answered.call.clone(),
                    CallState::Returned { seq: event.seq },
                );
            }
            Body::ModelFailed(failed) => {
                self.models
                    .insert(failed.call.clone(), CallState::Failed { seq: event.seq });
            }
            Body::ToolCalled(called) => {
                let open = CallState::Open {
                    seq: event.seq,
                    attempt: called.attempt,
                    effect: called.effect,
                    epoch: event.epoch,
                };
                self.tools.insert(called.call.clone(), open);
            }
            Body::ToolReturned(returned) => {
                self.tools.insert(
                    returned.call.clone(),
                    CallState::Returned { seq: event.seq },
                );
            }
            Body::ToolFailed(failed) => {
                self.tools
                    .insert(failed.call.clone(), CallState::Failed { seq: event.seq });
            }
            Body::ToolInDoubt(doubt) => {
                let (seq, attempt) = (event.seq, self.tool_attempts(&doubt.call));
                let in_doubt = CallState::InDoubt { seq, attempt };
                self.tools.insert(doubt.call.clone(), in_doubt);
            }
            Body::ToolResolved(resolved) => {
                let state = match resolved.resolution {
                    Resolution::Returned(_) => CallState::Returned { seq: event.seq },
                    Resolution::Failed(_) => CallState::Failed { seq: event.seq },
                    Resolution::Retry => CallState::Again {
                        seq: event.seq,
                        attempt: self.tool_attempts(&resolved.call),
                    },
                };
                self.tools.insert(resolved.call.clone(), state);
            }
            Body::MessageQueued(_) => self.queued.push_back(event.seq),
            Body::MessageAdded(added) => {
                if let Some(taken) = added.queued {
                    self.queued.retain(|seq| *seq != taken);
                }
            }
            Body::CheckpointSaved(_) => self.checkpoint = Some(event.seq),
            Body::WaitStarted(wait) => {
                // A step that waits for its retry or its child stays what it was.
                if let (Some(step), true) =
                    (&wait.step, wait.suspends || wait.kind.is_work_of_step())
                {
                    self.open_mut(step, event, event.at).doing = Doing::Waiting(wait.wait);
                }
            }
            Body::SignalReceived(signal) => match signal.wait {
                None => self.signals.push_back((signal.name.clone(), event.seq)),
                Some(wait) => self.signalled.push(wait),
            },
            Body::ChildStarted(child) => {
                let open = OpenChild {
                    step: child.step.clone(),
                    seq: event.seq,
                };
                self.children.insert(child.child, open);
            }
            Body::ChildFinished(child) => {
                self.children.remove(&child.child);
            }
            Body::SpecChanged(changed) => {
                self.spec = changed.spec.clone();
                // Someone accepted that the new code does not ask for the old writes.
                self.writes.clear();
                // Nor to what they were about to do: a step without a result is not bound yet.
                for step in self.steps.values_mut() {
                    if let StepState::Open(open) = step {
                        open.input_digest = None;
                    }
                }
            }
            // These are in the row, or say nothing a driver must know.
            Body::RunStarted(_)
            | Body::RunResumed(_)
            | Body::RunCompleted(_)
            | Body::RunFailed(_)
            | Body::RunCancelled(_)
            | Body::PhaseEntered(_)
            | Body::PlanMade(_)
            | Body::TurnFinished(_)
            | Body::ContextCompacted(_)
            | Body::StatePatched(_)
            | Body::CheckpointRestored(_)
            | Body::CheckpointDeleted(_)
            | Body::BudgetChanged(_)
            | Body::VerificationFinished(_)
            | Body::OutputWritten(_)
            | Body::Custom(_)
            | Body::Unknown(_) => {}
            // `end_wait`, which must know what the row forgets here.
            Body::WaitEnded(_) => {}
        }
    }

    fn end_wait(&mut self, wait: &WaitStarted, outcome: WaitOutcome, event: &Event) {
        if let Some(step) = &wait.step
            && self.wait_of(step) == Some(wait.wait)
        {
            if wait.kind.is_work_of_step() {
                self.steps
                    .insert(step.clone(), StepState::Answered { seq: event.seq });
            } else {
                self.open_mut(step, event, event.at).doing = Doing::Retrying {
                    delay_ms: 0,
                    since: event.at,
                };
            }
        }
        // A signal that came for this wait was never kept; a wait that ended as signalled without
        // one took the oldest that was.
        let came_for_it = self.signalled.contains(&wait.wait);
        self.signalled.retain(|other| *other != wait.wait);
        if outcome == WaitOutcome::Signalled && !came_for_it {
            let kept = self
                .signals
                .iter()
                .position(|(name, _)| Some(name) == wait.name.as_ref());
            if let Some(index) = kept {
                self.signals.remove(index);
            }
        }
    }

    fn open_mut(
        &mut self,
        step: &StepId,
        event: &Event,
        started_at: crate::Timestamp,
    ) -> &mut OpenStep {
        let fresh = || {
            StepState::Open(Box::new(OpenStep {
                doing: Doing::Running,
                attempt: 1,
                effect: Effect::Idempotent,
                epoch: event.epoch,
                started_at,
                input_digest: None,
                key: None,
            }))
        };
        let state = self.steps.entry(step.clone()).or_insert_with(fresh);
        if !matches!(state, StepState::Open(_)) {
            *state = fresh();
        }
        match state {
            StepState::Open(open) => {
                open.epoch = event.epoch;
                open
            }
            StepState::Finished { .. } | StepState::Answered { .. } => {
                unreachable!("replaced just above")
            }
        }
    }
}

/// Whether a fact may follow the log so far, as far as steps, calls and children know. The row
/// checks the rest.
pub(crate) fn admit(state: &RunState, body: &Body, epoch: Epoch) -> Result<(), Illegal> {
    match body {
        Body::StepStarted(started) => {
            let running = running_in(state, &started.step, epoch)?;
            if running {
                Err(Illegal::StepIsRunning(started.step.clone()))
            } else {
                Ok(())
            }
        }
        Body::StepFinished(finished) => {
            let running = running_in(state, &finished.step, epoch)?;
            if finished.effect == Effect::Write && !running {
                return Err(Illegal::WriteNotAnnounced(finished.step.clone()));
            }
            announced(&finished.step, running, finished.started_at.is_none())
        }
        Body::StepFailed(failed) => {
            let running = running_in(state, &failed.step, epoch)?;
            announced(&failed.step, running, failed.started_at.is_none())
        }
        Body::StepRetrying(retrying) => match state.open_step(&retrying.step) {
            Some(OpenStep {
                doing: Doing::Failed(_),
                ..
            }) => Ok(()),
            _ => Err(Illegal::StepHasNotFailed(retrying.step.clone())),
        },
        Body::StepSkipped(skipped) => match running_in(state, &skipped.step, epoch)? {
            true => Err(Illegal::StepIsRunning(skipped.step.clone())),
            false => Ok(()),
        },
        Body::StepInDoubt(doubt) => match state.open_step(&doubt.step) {
            Some(OpenStep {
                doing: Doing::Running,
                effect: Effect::Write,
                epoch,
                ..
            }) if *epoch == doubt.epoch => Ok(()),
            _ => Err(Illegal::NotAnOpenWrite(doubt.step.clone())),
        },
        Body::WaitStarted(wait) => match (suspends(state, wait, epoch)?, wait.suspends, &wait.step)
        {
            (true, false, Some(step)) => Err(Illegal::StepIsRunning(step.clone())),
            (false, true, _) => Err(Illegal::StepNotRunning),
            (true, _, _) | (false, false, _) => Ok(()),
        },
        Body::ToolCalled(called) => may_call(state.tools.get(&called.call), &called.call, epoch),
        Body::ToolReturned(returned) => {
            must_be_open(state.tools.get(&returned.call), &returned.call)
        }
        Body::ToolFailed(failed) if failed.error.kind == DENIED => {
            match state.tools.get(&failed.call) {
                None | Some(CallState::Open { .. }) => Ok(()),
                Some(_) => Err(Illegal::CallHasResult(failed.call.clone())),
            }
        }
        Body::ToolFailed(failed) => must_be_open(state.tools.get(&failed.call), &failed.call),
        Body::ToolInDoubt(doubt) => must_be_open(state.tools.get(&doubt.call), &doubt.call),
        Body::ModelCalled(called) => may_call(state.models.get(&called.call), &called.call, epoch),
        Body::ModelAnswered(answered) => {
            must_be_open_here(state.models.get(&answered.call), &answered.call, epoch)
        }
        Body::ModelFailed(failed) => {
            must_be_open_here(state.models.get(&failed.call), &failed.call, epoch)
        }
        Body::ChildStarted(child) if state.children.contains_key(&child.child) => {
            Err(Illegal::ChildIsOpen(child.child))
        }
        Body::ChildFinished(child) if !state.children.contains_key(&child.child) => {
            Err(Illegal::ChildNotOpen(child.child))
        }
        // The row checks these, or nothing can contradict them.
        Body::RunStarted(_)
        | Body::RunResumed(_)
        | Body::RunCompleted(_)
        | Body::RunFailed(_)
        | Body::RunCancelled(_)
        | Body::RunForked(_)
        | Body::PhaseEntered(_)
        | Body::PlanMade(_)
        | Body::StepResolved(_)
        | Body::TurnStarted(_)
        | Body::TurnFinished(_)
        | Body::ToolResolved(_)
        | Body::MessageAdded(_)
        | Body::MessageQueued(_)
        | Body::ContextCompacted(_)
        | Body::StatePatched(_)
        | Body::CheckpointSaved(_)
        | Body::CheckpointRestored(_)
        | Body::CheckpointDeleted(_)
        | Body::WaitEnded(_)
        | Body::SignalReceived(_)
        | Body::ChildStarted(_)
        | Body::ChildFinished(_)
        | Body::BudgetChanged(_)
        | Body::SpecChanged(_)
        | Body::VerificationFinished(_)
        | Body::OutputWritten(_)
        | Body::Custom(_) => Ok(()),
        Body::Unknown(_) => Err(Illegal::UnknownKind),
    }
}

/// The `error.kind` of a tool call that policy or a person refused.
pub const DENIED: &str = "denied";

/// Whether the step was announced under this driver; an error when it has its result, or when a
/// write must be settled before anything else is said about it.
fn running_in(state: &RunState, step: &StepId, epoch: Epoch) -> Result<bool, Illegal> {
    match state.steps.get(step) {
        Some(StepState::Finished { .. }) => Err(Illegal::StepHasResult(step.clone())),
        Some(StepState::Open(open)) => match open.doing {
            Doing::InDoubt => Err(Illegal::StepUnsettled(step.clone())),
            Doing::Running if open.epoch == epoch => Ok(true),
            Doing::Running if open.effect == Effect::Write => {
                Err(Illegal::StepUnsettled(step.clone()))
            }
            Doing::Running
            | Doing::Failed(_)
            | Doing::Retrying { .. }
            | Doing::Skipped
            | Doing::Waiting(_) => Ok(false),
        },
        Some(StepState::Answered { .. }) | None => Ok(false),
    }
}

/// Whether the step that the wait names runs under this driver and so stops running.
pub(crate) fn suspends(
    state: &RunState,
    wait: &WaitStarted,
    epoch: Epoch,
) -> Result<bool, Illegal> {
    match &wait.step {
        Some(step) if wait.kind.can_suspend() => running_in(state, step, epoch),
        Some(_) | None => Ok(false),
    }
}

fn announced(step: &StepId, running: bool, says_so: bool) -> Result<(), Illegal> {
    match (running, says_so) {
        (true, true) | (false, false) => Ok(()),
        (true, false) => Err(Illegal::StepWasAnnounced(step.clone())),
        (false, true) => Err(Illegal::StepNotRunning),
    }
}

fn may_call(state: Option<&CallState>, call: &CallId, now: Epoch) -> Result<(), Illegal> {
    match state {
        Some(CallState::Open { epoch, .. }) if *epoch == now => {
            Err(Illegal::CallIsOpen(call.clone()))
        }
        Some(CallState::Returned { .. }) => Err(Illegal::CallHasResult(call.clone())),
        Some(
            CallState::InDoubt { .. }
            | CallState::Open {
                effect: Effect::Write,
                ..
            },
        ) => Err(Illegal::CallUnsettled(call.clone())),
        Some(CallState::Open { .. } | CallState::Failed { .. } | CallState::Again { .. })
        | None => Ok(()),
    }
}

/// The row counts the model calls of this driver only, so only their results can follow.
fn must_be_open_here(state: Option<&CallState>, call: &CallId, now: Epoch) -> Result<(), Illegal> {
    match state {
        Some(CallState::Open { epoch, .. }) if *epoch != now => {
            Err(Illegal::CallNotOpen(call.clone()))
        }
        state => must_be_open(state, call),
    }
}

fn must_be_open(state: Option<&CallState>, call: &CallId) -> Result<(), Illegal> {
    match state {
        Some(CallState::Open { .. }) => Ok(()),
        Some(CallState::Returned { .. }) => Err(Illegal::CallHasResult(call.clone())),
        Some(CallState::Failed { .. } | CallState::InDoubt { .. } | CallState::Again { .. })
        | None => Err(Illegal::CallNotOpen(call.clone())),
    }
}

impl From<&RunState> for Row {
    fn from(state: &RunState) -> Self {
        state.row.clone()
    }
}
