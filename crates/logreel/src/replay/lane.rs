//! What a fact is about. Facts about the same thing have an order; those about things side by side have
//! none that matters.

use std::collections::HashMap;
use std::fmt;

use logreel_core::event::{WaitKind, WaitStarted};
use logreel_core::{Body, CallId, Event, StepId, WaitId};

/// What a fact is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// The run itself, and the conversation: one thing after the other.
    Run,
    Step(StepId),
    Call(CallId),
    /// Facts of the embedder, and waits for what is neither a step nor a call.
    Named(String),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("the run"),
            Self::Step(step) => write!(f, "step `{step}`"),
            Self::Call(call) => write!(f, "call `{call}`"),
            Self::Named(name) => write!(f, "`{name}`"),
        }
    }
}

/// The waits of a log, by their number.
#[derive(Debug, Default)]
pub(crate) struct Waits(HashMap<WaitId, WaitStarted>);

impl Waits {
    pub(crate) fn of(events: &[Event]) -> Self {
        let mut waits = Self::default();
        events.iter().for_each(|event| waits.note(&event.body));
        waits
    }

    pub(crate) fn note(&mut self, body: &Body) {
        if let Body::WaitStarted(started) = body {
            self.0.insert(started.wait, started.clone());
        }
    }

    pub(crate) fn get(&self, wait: WaitId) -> Option<&WaitStarted> {
        self.0.get(&wait)
    }

    pub(crate) fn kind(&self, wait: WaitId) -> Option<WaitKind> {
        self.get(wait).map(|started| started.kind)
    }
}

/// What a wait is about.
pub(crate) fn of_wait(wait: &WaitStarted) -> Lane {
    match (&wait.step, &wait.call) {
        (Some(step), _) => Lane::Step(step.clone()),
        (None, Some(call)) => Lane::Call(call.clone()),
        (None, None) => {
            let name = wait.name.as_deref().unwrap_or_default();
            Lane::Named(format!("{:?} {name}", wait.kind))
        }
    }
}

/// What a fact is about. `waits` are those before it.
pub(crate) fn of(body: &Body, waits: &Waits) -> Lane {
    match body {
        Body::StepStarted(it) => Lane::Step(it.step.clone()),
        Body::StepFinished(it) => Lane::Step(it.step.clone()),
        Body::StepFailed(it) => Lane::Step(it.step.clone()),
        Body::StepRetrying(it) => Lane::Step(it.step.clone()),
        Body::StepSkipped(it) => Lane::Step(it.step.clone()),
        Body::StepInDoubt(it) => Lane::Step(it.step.clone()),
        Body::StepResolved(it) => Lane::Step(it.step.clone()),
        Body::ChildStarted(it) => Lane::Step(it.step.clone()),
        Body::ChildFinished(it) => Lane::Step(it.step.clone()),
        Body::ToolCalled(it) => Lane::Call(it.call.clone()),
        Body::ToolReturned(it) => Lane::Call(it.call.clone()),
        Body::ToolFailed(it) => Lane::Call(it.call.clone()),
        Body::ToolInDoubt(it) => Lane::Call(it.call.clone()),
        Body::ToolResolved(it) => Lane::Call(it.call.clone()),
        Body::WaitStarted(it) => of_wait(it),
        Body::WaitEnded(it) => waits.get(it.wait).map_or(Lane::Run, of_wait),
        Body::Custom(it) => Lane::Named(it.name.clone()),
        Body::RunStarted(_)
        | Body::RunResumed(_)
        | Body::RunCompleted(_)
        | Body::RunFailed(_)
        | Body::RunCancelled(_)
        | Body::RunForked(_)
        | Body::PhaseEntered(_)
        | Body::PlanMade(_)
        | Body::TurnStarted(_)
        | Body::TurnFinished(_)
        | Body::ModelCalled(_)
        | Body::ModelAnswered(_)
        | Body::ModelFailed(_)
        | Body::MessageAdded(_)
        | Body::MessageQueued(_)
        | Body::ContextCompacted(_)
        | Body::StatePatched(_)
        | Body::CheckpointSaved(_)
        | Body::CheckpointRestored(_)
        | Body::CheckpointDeleted(_)
        | Body::SignalReceived(_)
        | Body::BudgetChanged(_)
        | Body::SpecChanged(_)
        | Body::VerificationFinished(_)
        | Body::OutputWritten(_)
        | Body::Unknown(_) => Lane::Run,
    }
}
