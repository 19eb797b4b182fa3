//! What is open in one of their runs: steps and children. All of it is closed before the end.

use std::collections::HashSet;

use logreel::core::event::{ChildFinished, TerminalStatus};
use logreel::{RunId, StepId};

use super::super::sent::{Interrupt, Sent, SubagentOutcome};

#[derive(Default)]
pub(super) struct Open {
    /// Oldest first.
    steps: Vec<String>,
    children: Vec<Child>,
    /// Children that have ended in their run: nobody may begin twice.
    gone: HashSet<RunId>,
}

pub(super) struct Child {
    pub(super) run: RunId,
    pub(super) name: String,
    /// The tool call that it is, as clients know it.
    pub(super) call: Option<String>,
}

/// Why everything is closed.
pub(super) enum Closing<'c> {
    Done,
    Suspended(&'c [Interrupt]),
    Stopped(&'static str),
}

impl Open {
    /// Opens in another of their runs what is open.
    pub(super) fn begin(&mut self, out: &mut Vec<Sent>) {
        self.gone.clear();
        let steps = self.steps.iter().cloned();
        out.extend(steps.map(|step_name| Sent::StepStarted { step_name }));
        out.extend(self.children.iter().map(Child::started));
    }

    pub(super) fn step_started(&mut self, step_name: String, out: &mut Vec<Sent>) {
        if !self.steps.contains(&step_name) {
            self.steps.push(step_name.clone());
            out.push(Sent::StepStarted { step_name });
        }
    }

    /// A step has its outcome; a short one was not announced.
    pub(super) fn step_over(&mut self, step: &StepId, out: &mut Vec<Sent>) {
        let name = step.to_string();
        self.step_started(name.clone(), out);
        self.step_closed(&name, out);
    }

    pub(super) fn step_closed(&mut self, name: &str, out: &mut Vec<Sent>) {
        if let Some(place) = self.steps.iter().position(|it| it == name) {
            let step_name = self.steps.remove(place);
            out.push(Sent::StepFinished { step_name });
        }
    }

    pub(super) fn child_started(&mut self, child: Child, out: &mut Vec<Sent>) {
        let is_open = self.children.iter().any(|it| it.run == child.run);
        if !is_open && !self.gone.contains(&child.run) {
            out.push(child.started());
            self.children.push(child);
        }
    }

    pub(super) fn child_finished(&mut self, finished: &ChildFinished, out: &mut Vec<Sent>) {
        let place = self.children.iter().position(|it| it.run == finished.child);
        if let Some(place) = place {
            let child = self.children.remove(place);
            self.gone.insert(child.run);
            out.push(child.closed(&match finished.status {
                TerminalStatus::Completed => Closing::Done,
                TerminalStatus::Failed => Closing::Stopped("failed"),
                TerminalStatus::Cancelled => Closing::Stopped("cancelled"),
            }));
        }
    }

    pub(super) fn close(&mut self, why: &Closing<'_>, out: &mut Vec<Sent>) {
        let steps = std::mem::take(&mut self.steps).into_iter().rev();
        out.extend(steps.map(|step_name| Sent::StepFinished { step_name }));
        let children = std::mem::take(&mut self.children).into_iter().rev();
        out.extend(children.map(|child| child.closed(why)));
    }
}

impl Child {
    fn started(&self) -> Sent {
        Sent::SubagentStarted {
            subagent_run_id: self.run.to_string(),
            name: self.name.clone(),
            parent_tool_call_id: self.call.clone(),
        }
    }

    fn closed(&self, why: &Closing<'_>) -> Sent {
        let subagent_run_id = self.run.to_string();
        let outcome = match why {
            Closing::Done => SubagentOutcome::Success,
            Closing::Suspended(interrupts) => {
                let its_own = interrupts.iter().map(|it| it.id.clone());
                let its_own = its_own.filter(|id| id.starts_with(&subagent_run_id));
                let interrupt_ids = its_own.collect();
                SubagentOutcome::Suspended { interrupt_ids }
            }
            Closing::Stopped(code) => {
                return Sent::SubagentError {
                    subagent_run_id,
                    message: format!("it did not complete ({code})"),
                    code,
                };
            }
        };
        Sent::SubagentFinished {
            subagent_run_id,
            outcome,
        }
    }
}
