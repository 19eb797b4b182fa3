//! Several decisions for one append.

use crate::command::{Command, Draft};
use crate::decide::{Rejected, decide};
use crate::event::{Body, Event};
use crate::id::{CallId, Epoch, StepId, WaitId};
use crate::meaning::ResultSet;
use crate::state::{Doing, RunState, StepState};

/// Decides what goes into one append: each command on the state that the ones before it lead to. So
/// what a batch decides, `fold` accepts.
///
/// It copies only what the commands speak of, so that it costs the same in a run of a million steps.
/// Clone it before a group of commands that must be decided together, and go back to the clone when
/// one of them is refused.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    base: &'a RunState,
    /// The row, and those entries of `base` that were spoken of.
    ahead: RunState,
    results: ResultSet,
    /// Facts whose results are not among these yet: only an end asks for the sum, and each costs a hash.
    unsummed: Vec<Body>,
    epoch: Epoch,
}

impl<'a> Batch<'a> {
    /// Begins on the state that the append will land on.
    pub fn new(base: &'a RunState, results: &ResultSet, epoch: Epoch) -> Self {
        let ahead = RunState {
            // Few, and one that ends in this batch must not come back.
            children: base.children.clone(),
            // Whoever completes must have heard them.
            queued: base.queued.clone(),
            ..RunState::around(base.row.clone())
        };
        Self {
            base,
            ahead,
            results: *results,
            unsummed: Vec::new(),
            epoch,
        }
    }

    /// Decides the next command. A refused one leaves the batch as it was.
    pub fn decide(&mut self, command: Command) -> Result<Draft, Rejected> {
        match &command {
            Command::Record { body, .. } if !body.is_terminal() => self.look_up(body),
            Command::Record { body, .. } => {
                self.look_up(body);
                self.sum_up();
            }
            Command::StartChild { .. } | Command::Complete { .. } | Command::Fail { .. } => {
                self.sum_up();
            }
        }
        let draft = decide(&self.ahead, &self.results, self.epoch, command)?;
        let row = &self.ahead.row;
        let event = Event {
            seq: row.head.seq.next(),
            at: row.updated_at,
            caller_at: draft.caller_at,
            epoch: self.epoch,
            late: draft.late,
            digest: row.head.digest,
            body: draft.body.clone(),
        };
        self.ahead
            .apply(&event)
            .map_err(|illegal| Rejected::Illegal(illegal.why))?;
        if !draft.late {
            self.unsummed.push(event.body);
        }
        Ok(draft)
    }

    fn sum_up(&mut self) {
        for body in self.unsummed.drain(..) {
            self.results = self.results.plus(ResultSet::of(&body));
        }
    }

    /// The id the next wait gets.
    pub fn next_wait(&self) -> WaitId {
        self.ahead.row.next_wait()
    }

    /// Whether the step was announced by this driver and has no outcome yet.
    pub fn is_running(&self, step: &StepId) -> bool {
        let ahead = self.ahead.steps.get(step);
        match ahead.or_else(|| self.base.steps.get(step)) {
            Some(StepState::Open(open)) => open.doing == Doing::Running && open.epoch == self.epoch,
            Some(StepState::Finished { .. } | StepState::Answered { .. }) | None => false,
        }
    }

    /// Copies what the fold of this body reads. The fold reads the entries a body names and no
    /// others, so with these the batch's state answers as the whole one would.
    fn look_up(&mut self, body: &Body) {
        match body {
            Body::StepStarted(body) => self.look_up_step(&body.step),
            Body::StepFinished(body) => self.look_up_step(&body.step),
            Body::StepFailed(body) => self.look_up_step(&body.step),
            Body::StepRetrying(body) => self.look_up_step(&body.step),
            Body::StepSkipped(body) => self.look_up_step(&body.step),
            Body::StepInDoubt(body) => self.look_up_step(&body.step),
            Body::StepResolved(body) => self.look_up_step(&body.step),
            Body::WaitStarted(body) => {
                if let Some(step) = &body.step {
                    self.look_up_step(step);
                }
            }
            Body::WaitEnded(body) => {
                let open = self.ahead.row.wait(body.wait);
                if let Some(step) = open.and_then(|open| open.wait.step.clone()) {
                    self.look_up_step(&step);
                }
            }
            Body::ModelCalled(body) => self.look_up_model(&body.call),
            Body::ModelAnswered(body) => self.look_up_model(&body.call),
            Body::ModelFailed(body) => self.look_up_model(&body.call),
            Body::ToolCalled(body) => self.look_up_tool(&body.call),
            Body::ToolReturned(body) => self.look_up_tool(&body.call),
            Body::ToolFailed(body) => self.look_up_tool(&body.call),
            Body::ToolInDoubt(body) => self.look_up_tool(&body.call),
            Body::ToolResolved(body) => self.look_up_tool(&body.call),
            Body::ChildStarted(_)
            | Body::ChildFinished(_)
            | Body::RunStarted(_)
            | Body::RunResumed(_)
            | Body::RunCompleted(_)
            | Body::RunFailed(_)
            | Body::RunCancelled(_)
            | Body::RunForked(_)
            | Body::PhaseEntered(_)
            | Body::PlanMade(_)
            | Body::TurnStarted(_)
            | Body::TurnFinished(_)
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
            | Body::Custom(_)
            | Body::Unknown(_) => {}
        }
    }

    fn look_up_step(&mut self, step: &StepId) {
        if let (None, Some(state)) = (self.ahead.steps.get(step), self.base.steps.get(step)) {
            self.ahead.steps.insert(step.clone(), state.clone());
        }
    }

    fn look_up_tool(&mut self, call: &CallId) {
        if let (None, Some(state)) = (self.ahead.tools.get(call), self.base.tools.get(call)) {
            self.ahead.tools.insert(call.clone(), state.clone());
        }
    }

    fn look_up_model(&mut self, call: &CallId) {
        if let (None, Some(state)) = (self.ahead.models.get(call), self.base.models.get(call)) {
            self.ahead.models.insert(call.clone(), state.clone());
        }
    }
}
