//! Several decisions for one append.

use crate::command::{Command, Draft};
use crate::decide::{Rejected, decide};
use crate::event::{Body, Event};
use crate::fold::IllegalEvent;
use crate::id::{CallId, Epoch, StepId, WaitId};
use crate::meaning::ResultSet;
use crate::row::Row;
use crate::state::{Doing, RunState, StepState};

/// Decides what goes into one append: each command on the state that the ones before it lead to. So
/// what a batch decides, `fold` accepts.
///
/// It copies only what the commands speak of, so that it costs the same in a run of a million steps, and for the
/// first nothing but the row: most appends have no other.
/// Clone it before a group of commands that must be decided together, and go back to the clone when
/// one of them is refused.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    base: &'a RunState,
    /// The first fact, as long as nothing follows it, and the row after it.
    first: Option<(Row, Event)>,
    /// What several facts lead to: the row, and those entries of `base` that were spoken of.
    ahead: Option<Box<RunState>>,
    results: ResultSet,
    /// Facts whose results are not among these yet: only an end asks for the sum, and each costs a hash.
    unsummed: Vec<Body>,
    epoch: Epoch,
}

impl<'a> Batch<'a> {
    /// Begins on the state that the append will land on.
    pub fn new(base: &'a RunState, results: &ResultSet, epoch: Epoch) -> Self {
        Self {
            base,
            first: None,
            ahead: None,
            results: *results,
            unsummed: Vec::new(),
            epoch,
        }
    }

    /// Decides the next command. A refused one leaves the batch as it was.
    pub fn decide(&mut self, command: Command) -> Result<Draft, Rejected> {
        self.fold_first();
        let ends = match &command {
            Command::Record { body, .. } => body.is_terminal(),
            Command::StartChild { .. } => false,
            Command::Complete { .. } | Command::Fail { .. } => true,
        };
        if ends {
            self.sum_up();
        }
        let Some(ahead) = &mut self.ahead else {
            let draft = decide(self.base, &self.results, self.epoch, command)?;
            let event = event_of(&draft, &self.base.row, self.epoch);
            let mut row = self.base.row.clone();
            row.apply(&event).map_err(refused)?;
            self.first = Some((row, event));
            return Ok(draft);
        };
        if let Command::Record { body, .. } = &command {
            ahead.copy_named_by(body, self.base);
        }
        let draft = decide(ahead, &self.results, self.epoch, command)?;
        let event = event_of(&draft, &ahead.row, self.epoch);
        ahead.apply(&event).map_err(refused)?;
        if !event.late {
            self.unsummed.push(event.body);
        }
        Ok(draft)
    }

    /// Something follows the first fact, or looks at what it led to.
    fn fold_first(&mut self) {
        let Some((_, first)) = self.first.take() else {
            return;
        };
        let mut ahead = RunState {
            // Few, and one that ends in this batch must not come back.
            children: self.base.children.clone(),
            // Whoever completes must have heard them.
            queued: self.base.queued.clone(),
            ..RunState::around(self.base.row.clone())
        };
        ahead.copy_named_by(&first.body, self.base);
        let folded = ahead.apply(&first);
        folded.expect("what the whole state admits, its copy admits");
        self.ahead = Some(Box::new(ahead));
        if !first.late {
            self.unsummed.push(first.body);
        }
    }

    fn sum_up(&mut self) {
        for body in self.unsummed.drain(..) {
            self.results = self.results.plus(ResultSet::of(&body));
        }
    }

    /// The id the next wait gets.
    pub fn next_wait(&self) -> WaitId {
        let ahead = self.ahead.as_ref().map(|ahead| &ahead.row);
        let row = ahead.or(self.first.as_ref().map(|(row, _)| row));
        row.unwrap_or(&self.base.row).next_wait()
    }

    /// Whether the step was announced by this driver and has no outcome yet.
    pub fn is_running(&mut self, step: &StepId) -> bool {
        self.fold_first();
        let ahead = self.ahead.as_ref().and_then(|ahead| ahead.steps.get(step));
        match ahead.or_else(|| self.base.steps.get(step)) {
            Some(StepState::Open(open)) => open.doing == Doing::Running && open.epoch == self.epoch,
            Some(StepState::Finished { .. } | StepState::Answered { .. }) | None => false,
        }
    }
}

/// The draft as the next event of a log whose row is this one.
fn event_of(draft: &Draft, row: &Row, epoch: Epoch) -> Event {
    Event {
        seq: row.head.seq.next(),
        at: row.updated_at,
        caller_at: draft.caller_at,
        epoch,
        late: draft.late,
        digest: row.head.digest,
        body: draft.body.clone(),
    }
}

fn refused(illegal: IllegalEvent) -> Rejected {
    Rejected::Illegal(illegal.why)
}

/// What a batch copies.
impl RunState {
    /// Copies what the fold of this body reads. The fold reads the entries a body names and no
    /// others, so with these the batch's state answers as the whole one would.
    fn copy_named_by(&mut self, body: &Body, base: &Self) {
        match body {
            Body::StepStarted(body) => self.copy_step(base, &body.step),
            Body::StepFinished(body) => self.copy_step(base, &body.step),
            Body::StepFailed(body) => self.copy_step(base, &body.step),
            Body::StepRetrying(body) => self.copy_step(base, &body.step),
            Body::StepSkipped(body) => self.copy_step(base, &body.step),
            Body::StepInDoubt(body) => self.copy_step(base, &body.step),
            Body::StepResolved(body) => self.copy_step(base, &body.step),
            Body::WaitStarted(body) => {
                if let Some(step) = &body.step {
                    self.copy_step(base, step);
                }
            }
            Body::WaitEnded(body) => {
                let open = self.row.wait(body.wait);
                if let Some(step) = open.and_then(|open| open.wait.step.clone()) {
                    self.copy_step(base, &step);
                }
            }
            Body::ModelCalled(body) => self.copy_model(base, &body.call),
            Body::ModelAnswered(body) => self.copy_model(base, &body.call),
            Body::ModelFailed(body) => self.copy_model(base, &body.call),
            Body::ToolCalled(body) => self.copy_tool(base, &body.call),
            Body::ToolReturned(body) => self.copy_tool(base, &body.call),
            Body::ToolFailed(body) => self.copy_tool(base, &body.call),
            Body::ToolInDoubt(body) => self.copy_tool(base, &body.call),
            Body::ToolResolved(body) => self.copy_tool(base, &body.call),
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

    fn copy_step(&mut self, base: &Self, step: &StepId) {
        if let (None, Some(state)) = (self.steps.get(step), base.steps.get(step)) {
            self.steps.insert(step.clone(), state.clone());
        }
    }

    fn copy_tool(&mut self, base: &Self, call: &CallId) {
        if let (None, Some(state)) = (self.tools.get(call), base.tools.get(call)) {
            self.tools.insert(call.clone(), state.clone());
        }
    }

    fn copy_model(&mut self, base: &Self, call: &CallId) {
        if let (None, Some(state)) = (self.models.get(call), base.models.get(call)) {
            self.models.insert(call.clone(), state.clone());
        }
    }
}
