//! Decisions: which facts follow from a request. Pure; what it emits, `fold` accepts.

use crate::budget::{Limit, OverBudget};
use crate::command::{Command, Draft, Outside};
use crate::event::{
    Body, BudgetChanged, ClaimReason, MessageQueued, OnDeadline, RunCancelled, RunCompleted,
    RunFailed, RunKind, RunResumed, SignalReceived, StepResolved, ToolResolved, WaitEnded,
    WaitKind, WaitOutcome, WaitStarted,
};
use crate::fold::{Illegal, admit, suspends};
use crate::id::{Epoch, WaitId};
use crate::meaning::ResultSet;
use crate::row::{Doubt, End, OpenWait, Row, Status, patch};
use crate::state::RunState;
use crate::{Digest, Payload, Timestamp};

/// Takeovers of a dead driver's run, without a new result, that make a crash loop.
pub const TAKEOVERS_MAX: u32 = 5;

/// The reason of the end of a run that goes on elsewhere.
pub const MOVED: &str = "moved";

/// Why a request is refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The run has ended.
    #[error("the run has {0}")]
    Ended(Status),
    /// It is not where it was when this was asked for.
    #[error("the run has gone on since")]
    WentOn,
    /// The fact contradicts the log.
    #[error("{0}")]
    Illegal(Illegal),
    /// Nothing to answer.
    #[error("the run does not wait for an answer")]
    NotWaiting,
    /// Several waits are open.
    #[error("several waits are open, name one: {}", .0.iter().map(WaitId::to_string).collect::<Vec<_>>().join(", "))]
    NameTheWait(Vec<WaitId>),
    /// Never heard of it.
    #[error("the run has no wait {0}")]
    UnknownWait(WaitId),
    /// Someone else answered, or it timed out.
    #[error("wait {0} has ended already")]
    WaitHasEnded(WaitId),
    /// The deadline passed; the timeout is recorded now.
    #[error("the deadline of wait {wait} passed at {deadline}")]
    TooLate {
        /// Which wait.
        wait: WaitId,
        /// When it ended.
        deadline: Timestamp,
    },
    /// The wait takes another kind of answer.
    #[error("wait {wait} is for {kind}: {hint}")]
    WrongAnswer {
        /// Which wait.
        wait: WaitId,
        /// What it is for.
        kind: WaitKind,
        /// What would end it.
        hint: &'static str,
    },
    /// Nothing of that name is in doubt, or more than one thing.
    #[error("`{0}` names no call or step in doubt, or several; a step is also named by its array")]
    NotInDoubt(String),
    /// There is no such limit to raise.
    #[error("the run has no limit on `{0}` to raise")]
    NoSuchLimit(Limit),
    /// Nothing is to be added to any limit.
    #[error("nothing to add to any limit")]
    NothingToAdd,
    /// Someone said something to an agent that it has not heard yet, and was given a receipt.
    #[error("someone said something that was not heard yet")]
    Unheard,
    /// A limit leaves no room. It can be raised, and a child that ends returns what it did not use.
    #[error("the budget is used up: {0}")]
    OverBudget(OverBudget),
}

/// What an outside command leads to. A refusal may still leave facts: an answer that comes after its
/// deadline records the timeout.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What to append; empty when there is nothing to do.
    pub drafts: Vec<Draft>,
    /// What to tell the caller.
    pub answer: Result<(), Rejected>,
}

impl Decision {
    fn append(bodies: Vec<Body>) -> Self {
        Self {
            drafts: bodies.into_iter().map(Draft::new).collect(),
            answer: Ok(()),
        }
    }

    fn nothing() -> Self {
        Self::append(Vec::new())
    }

    fn refuse(why: Rejected) -> Self {
        Self {
            drafts: Vec::new(),
            answer: Err(why),
        }
    }
}

/// What a driver's request leads to, when it is the only one in its append. Several go through a
/// [`crate::Batch`]: what a wait is numbered and whether something is in doubt may depend on the
/// ones before.
///
/// After the end nothing starts; what was under way may still be recorded, as late facts.
pub fn decide(
    state: &RunState,
    results: &ResultSet,
    epoch: Epoch,
    command: Command,
) -> Result<Draft, Rejected> {
    let mut together = 1;
    let (mut body, caller_at) = match command {
        Command::Record { body, caller_at } => (body, caller_at),
        Command::StartChild {
            started,
            together: siblings,
        } => {
            together = siblings;
            (started.into(), None)
        }
        Command::Complete { output } => {
            let is_steered = state.row.facts.kind == RunKind::Agent && !state.queued.is_empty();
            if is_steered && state.row.facts.ended.is_none() {
                return Err(Rejected::Unheard);
            }
            let final_state_digest = UNKNOWN;
            (
                RunCompleted {
                    final_state_digest,
                    output,
                }
                .into(),
                None,
            )
        }
        Command::Fail { cause } => {
            let final_state_digest = UNKNOWN;
            (
                RunFailed {
                    error: cause,
                    final_state_digest,
                }
                .into(),
                None,
            )
        }
    };
    if epoch < state.row.epoch {
        let current = state.row.epoch;
        return Err(Rejected::Illegal(Illegal::StaleEpoch { current }));
    }
    stamp_end(&state.row, results, &mut body);
    if state.row.facts.ended.is_some() {
        return if may_be_late(&body) {
            Ok(Draft {
                body,
                caller_at,
                late: true,
            })
        } else {
            Err(Rejected::Ended(state.row.status()))
        };
    }
    match &mut body {
        // Whoever makes the copy writes it, not a driver.
        Body::RunForked(_) => return Err(Rejected::Illegal(Illegal::ForkElsewhere)),
        Body::StatePatched(patched) => {
            patch(&state.row.facts.document, &patched.patch).map_err(Rejected::Illegal)?;
        }
        Body::WaitStarted(wait) => {
            wait.suspends = suspends(state, wait, epoch).map_err(Rejected::Illegal)?;
        }
        Body::ChildStarted(started) => started.budget = state.row.lend(&started.budget, together),
        _ => {}
    }
    admit(state, &body, epoch).map_err(Rejected::Illegal)?;
    // Last: whoever is told of a limit waits for it, and would find out only then that it was wrong.
    // What a program that is only watched does has happened already: it counts, and nothing waits.
    if state.row.facts.kind != RunKind::Record {
        state
            .row
            .check_budget(&body)
            .map_err(Rejected::OverBudget)?;
    }
    Ok(Draft {
        body,
        caller_at,
        late: false,
    })
}

/// In an end that has not been stamped yet.
const UNKNOWN: Digest = Digest([0; 32]);

/// An end carries the digest of the state it ends, whoever records it.
fn stamp_end(row: &Row, results: &ResultSet, body: &mut Body) {
    match body {
        Body::RunCompleted(completed) => {
            let output = completed.output.clone();
            completed.final_state_digest =
                row.final_state_digest(results, &End::Completed { output });
        }
        Body::RunFailed(failed) => {
            let cause = failed.error.clone();
            failed.final_state_digest = row.final_state_digest(results, &End::Failed { cause });
        }
        Body::RunCancelled(cancelled) => {
            let reason = cancelled.reason.clone();
            cancelled.final_state_digest =
                row.final_state_digest(results, &End::Cancelled { reason });
        }
        _ => {}
    }
}

/// Results, failures and spend of what was under way, and a second end. Never a start.
pub fn may_be_late(body: &Body) -> bool {
    match body {
        Body::RunCompleted(_)
        | Body::RunFailed(_)
        | Body::RunCancelled(_)
        | Body::StepFinished(_)
        | Body::StepFailed(_)
        | Body::StepInDoubt(_)
        | Body::TurnFinished(_)
        | Body::ModelAnswered(_)
        | Body::ModelFailed(_)
        | Body::ToolReturned(_)
        | Body::ToolFailed(_)
        | Body::ToolInDoubt(_)
        | Body::ChildFinished(_)
        | Body::VerificationFinished(_)
        | Body::OutputWritten(_)
        | Body::Custom(_) => true,
        Body::RunStarted(_)
        | Body::RunResumed(_)
        | Body::RunForked(_)
        | Body::PhaseEntered(_)
        | Body::PlanMade(_)
        | Body::StepStarted(_)
        | Body::StepRetrying(_)
        | Body::StepSkipped(_)
        | Body::StepResolved(_)
        | Body::TurnStarted(_)
        | Body::ModelCalled(_)
        | Body::ToolCalled(_)
        | Body::ToolResolved(_)
        | Body::MessageAdded(_)
        | Body::MessageQueued(_)
        | Body::ContextCompacted(_)
        | Body::StatePatched(_)
        | Body::CheckpointSaved(_)
        | Body::CheckpointRestored(_)
        | Body::CheckpointDeleted(_)
        | Body::WaitStarted(_)
        | Body::WaitEnded(_)
        | Body::SignalReceived(_)
        | Body::ChildStarted(_)
        | Body::BudgetChanged(_)
        | Body::SpecChanged(_)
        | Body::Unknown(_) => false,
    }
}

/// What taking a run over leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimDecision {
    /// The claimer drives it; append this first.
    Drive(Vec<Draft>),
    /// Its drivers keep dying: append this, and nobody drives it.
    CrashLoop(Vec<Draft>),
}

/// What taking a run over leads to. The caller has seen that it is ready or orphaned. `epoch` is the last driver's; 0 = it was never driven.
pub fn decide_claim(row: &Row, epoch: Epoch, reason: ClaimReason, owner: &str) -> ClaimDecision {
    if epoch == Epoch::NONE {
        return ClaimDecision::Drive(Vec::new());
    }
    if reason == ClaimReason::Orphaned && row.pulse.takeovers >= TAKEOVERS_MAX {
        let wait = WaitStarted {
            name: Some(format!("{TAKEOVERS_MAX} takeovers without a new result")),
            ..plain_wait(WaitKind::CrashLoop, row.next_wait())
        };
        return ClaimDecision::CrashLoop(vec![Draft::new(wait)]);
    }
    ClaimDecision::Drive(vec![Draft::new(RunResumed {
        owner: owner.to_owned(),
        reason,
    })])
}

/// What an outside command leads to, from the row alone.
pub fn decide_outside(
    row: &Row,
    results: &ResultSet,
    command: &Outside,
    now: Timestamp,
) -> Decision {
    if let Some(ended) = &row.facts.ended {
        let already = matches!(
            (command, &ended.end),
            (Outside::Cancel { .. }, End::Cancelled { .. })
        );
        return if already {
            Decision::nothing()
        } else {
            Decision::refuse(Rejected::Ended(row.status()))
        };
    }
    match command {
        Outside::Cancel { reason } => {
            let mut end = RunCancelled {
                final_state_digest: UNKNOWN,
                reason: reason.clone(),
            }
            .into();
            stamp_end(row, results, &mut end);
            Decision::append(vec![end])
        }
        Outside::Move { expect } if *expect != row.head => Decision::refuse(Rejected::WentOn),
        Outside::Move { .. } => {
            let mut end = RunCancelled {
                final_state_digest: UNKNOWN,
                reason: Some(MOVED.to_owned()),
            }
            .into();
            stamp_end(row, results, &mut end);
            Decision::append(vec![end])
        }
        Outside::Pause { reason } => {
            if row
                .facts
                .waits
                .iter()
                .any(|open| open.wait.kind == WaitKind::Paused)
            {
                return Decision::nothing();
            }
            let wait = WaitStarted {
                name: reason.clone(),
                ..plain_wait(WaitKind::Paused, row.next_wait())
            };
            Decision::append(vec![wait.into()])
        }
        Outside::Resume { by } => Decision::append(
            end_waits(row, |open| open.wait.ends_with_resume(now))
                .map(|open| ended(open, WaitOutcome::Resumed, by.clone()).into())
                .collect(),
        ),
        Outside::Answer {
            wait,
            approved,
            value,
            reason,
            by,
        } => {
            let open = match find_answerable(row, *wait) {
                Ok(open) => open,
                Err(why) => return Decision::refuse(why),
            };
            if let Some(deadline) = open.wait.deadline.filter(|deadline| *deadline <= now) {
                let wait = open.wait.wait;
                return Decision {
                    drafts: vec![Draft::new(timed_out(open))],
                    answer: Err(Rejected::TooLate { wait, deadline }),
                };
            }
            if open.wait.kind == WaitKind::Signal && approved.is_some() {
                return Decision::refuse(Rejected::WrongAnswer {
                    wait: open.wait.wait,
                    kind: open.wait.kind,
                    hint: "send the signal, or answer with a value",
                });
            }
            if open.wait.kind == WaitKind::Approval && approved.is_none() {
                return Decision::refuse(Rejected::WrongAnswer {
                    wait: open.wait.wait,
                    kind: open.wait.kind,
                    hint: "approve or deny it",
                });
            }
            Decision::append(vec![
                WaitEnded {
                    approved: *approved,
                    reason: reason.clone(),
                    value: value.clone(),
                    ..ended(open, WaitOutcome::Answered, by.clone())
                }
                .into(),
            ])
        }
        Outside::Signal { name, value } => {
            let awaiting = |open: &OpenWait| {
                open.wait.kind == WaitKind::Signal && open.wait.name.as_deref() == Some(name)
            };
            // Too late for a wait whose deadline has passed, as an answer would be; it is kept.
            let (passed, open): (Vec<_>, Vec<_>) = end_waits(row, awaiting)
                .partition(|open| open.wait.deadline.is_some_and(|deadline| deadline <= now));
            let awaited = open.first();
            let mut bodies: Vec<Body> = passed
                .into_iter()
                .map(|open| timed_out(open).into())
                .collect();
            bodies.push(
                SignalReceived {
                    name: name.clone(),
                    value: value.clone(),
                    wait: awaited.map(|open| open.wait.wait),
                }
                .into(),
            );
            if let Some(open) = awaited {
                let end = ended(open, WaitOutcome::Signalled, None);
                bodies.push(
                    WaitEnded {
                        value: value.clone(),
                        ..end
                    }
                    .into(),
                );
            }
            Decision::append(bodies)
        }
        Outside::Say { text, by } => Decision::append(vec![
            MessageQueued {
                by: by.clone(),
                text: text.clone(),
            }
            .into(),
        ]),
        Outside::Resolve {
            call,
            resolution,
            by,
        } => {
            let mut named = row
                .facts
                .in_doubt
                .iter()
                .filter(|doubt| doubt.is_named(call));
            // Two writes may be shown alike; settling the wrong one would be worse than asking.
            let (Some(doubt), None) = (named.next(), named.next()) else {
                return Decision::refuse(Rejected::NotInDoubt(call.clone()));
            };
            let (by, resolution) = (by.clone(), resolution.clone());
            let resolved = match doubt.clone() {
                Doubt::Call(call) => ToolResolved {
                    by: by.clone(),
                    call,
                    resolution,
                }
                .into(),
                Doubt::Step(step) => StepResolved {
                    by: by.clone(),
                    resolution,
                    step,
                }
                .into(),
            };
            let waits = end_waits(row, |open| {
                open.wait.kind == WaitKind::InDoubt
                    && match doubt {
                        Doubt::Call(call) => open.wait.call.as_ref() == Some(call),
                        Doubt::Step(step) => open.wait.step.as_ref() == Some(step),
                    }
            });
            let ends =
                waits.map(|open| ended(open, WaitOutcome::Resolved, Some(by.clone())).into());
            Decision::append(std::iter::once(resolved).chain(ends).collect())
        }
        Outside::AddBudget {
            add,
            by,
            child,
            wait,
        } => {
            if let Some(Err(why)) = wait.map(|wait| find_for_budget(row, wait)) {
                return Decision::refuse(why);
            }
            let mut budget = row.facts.budget.clone();
            for limit in Limit::ALL {
                match (budget.get_mut(limit), add.get(limit)) {
                    (Some(allowed), Some(add)) => *allowed = allowed.saturating_add(add),
                    (None, Some(_)) => return Decision::refuse(Rejected::NoSuchLimit(limit)),
                    (_, None) => {}
                }
            }
            if add.is_empty() {
                return Decision::refuse(Rejected::NothingToAdd);
            }
            let changed = BudgetChanged {
                budget,
                by: by.clone(),
                child: *child,
            }
            .into();
            // What goes on to a child leaves as little room here as there was.
            let has_room = |open: &OpenWait| {
                let named = |limit: &Limit| open.wait.name.as_deref() == Some(limit.as_str());
                let about = Limit::ALL.into_iter().find(named);
                child.is_none() && about.is_none_or(|limit| add.get(limit).is_some())
            };
            let ends = end_waits(row, |open| {
                open.wait.kind == WaitKind::Budget && has_room(open)
            })
            .map(|open| ended(open, WaitOutcome::Raised, by.clone()).into());
            Decision::append(std::iter::once(changed).chain(ends).collect())
        }
    }
}

fn find_open(row: &Row, id: WaitId) -> Result<&OpenWait, Rejected> {
    let missing = match id.0 <= row.facts.waits_started && id.0 > 0 {
        true => Rejected::WaitHasEnded(id),
        false => Rejected::UnknownWait(id),
    };
    row.wait(id).ok_or(missing)
}

/// The open wait for budget that someone means who raises a limit for it.
pub fn find_for_budget(row: &Row, wait: WaitId) -> Result<&OpenWait, Rejected> {
    let open = find_open(row, wait)?;
    match open.wait.kind {
        WaitKind::Budget => Ok(open),
        kind => Err(Rejected::WrongAnswer {
            wait,
            kind,
            hint: "it does not wait for budget",
        }),
    }
}

fn find_answerable(row: &Row, wait: Option<WaitId>) -> Result<&OpenWait, Rejected> {
    let answerable = |open: &OpenWait| open.wait.kind.is_answerable();
    match wait {
        Some(id) => {
            let open = find_open(row, id)?;
            if answerable(open) {
                return Ok(open);
            }
            let hint = match open.wait.kind {
                WaitKind::Paused | WaitKind::CrashLoop => "resume the run",
                WaitKind::InDoubt => "resolve the call",
                WaitKind::Budget => "raise the budget",
                WaitKind::Retry if open.wait.needs_person() => "resume the run",
                WaitKind::Timer | WaitKind::Retry | WaitKind::Child => "it ends by itself",
                WaitKind::Approval | WaitKind::Signal => "answer it",
            };
            Err(Rejected::WrongAnswer {
                wait: id,
                kind: open.wait.kind,
                hint,
            })
        }
        None => {
            let open: Vec<_> = row
                .facts
                .waits
                .iter()
                .filter(|open| answerable(open))
                .collect();
            match open.as_slice() {
                [] => Err(Rejected::NotWaiting),
                [only] => Ok(only),
                several => Err(Rejected::NameTheWait(
                    several.iter().map(|open| open.wait.wait).collect(),
                )),
            }
        }
    }
}

fn end_waits<'a>(
    row: &'a Row,
    which: impl Fn(&OpenWait) -> bool + 'a,
) -> impl Iterator<Item = &'a OpenWait> {
    row.facts.waits.iter().filter(move |open| which(open))
}

fn ended(open: &OpenWait, outcome: WaitOutcome, by: Option<String>) -> WaitEnded {
    WaitEnded {
        approved: None,
        by,
        outcome,
        reason: None,
        step: open.wait.step.clone(),
        value: Payload::null(),
        wait: open.wait.wait,
    }
}

/// How a wait ends whose deadline has passed.
pub fn timed_out(open: &OpenWait) -> WaitEnded {
    let (outcome, approved) = match open.wait.on_deadline {
        Some(OnDeadline::Continue) => (WaitOutcome::Elapsed, None),
        Some(OnDeadline::Approve) => (WaitOutcome::TimedOut, Some(true)),
        Some(OnDeadline::Deny) => (WaitOutcome::TimedOut, Some(false)),
        Some(OnDeadline::Fail) | None => (WaitOutcome::TimedOut, None),
    };
    WaitEnded {
        approved,
        ..ended(open, outcome, None)
    }
}

/// A wait with nothing but its kind.
pub fn plain_wait(kind: WaitKind, wait: WaitId) -> WaitStarted {
    WaitStarted {
        arguments: None,
        call: None,
        deadline: None,
        kind,
        name: None,
        on_deadline: None,
        prompt: None,
        step: None,
        suspends: false,
        tool: None,
        wait,
    }
}
