//! The fold of the row: what each event changes in it.

use std::sync::Arc;

use super::{ActiveTool, Doubt, End, Ended, Facts, OpenWait, Pulse, Row};
use crate::budget::Before;
use crate::event::{Body, Event, Phase, Resolution};
use crate::fold::{Illegal, IllegalEvent};
use crate::id::{CallId, Head};
use crate::{Digest, Timestamp};

impl Row {
    /// Applies the next event. On an error nothing has changed.
    pub fn apply(&mut self, event: &Event) -> Result<(), IllegalEvent> {
        self.check_envelope(event)?;
        self.apply_checked(event)
    }

    /// [`Row::apply`] for an event whose envelope was checked.
    pub(crate) fn apply_checked(&mut self, event: &Event) -> Result<(), IllegalEvent> {
        let was = self.facts.ended.is_none().then(|| Before::of(self));
        if was.is_some() {
            let Pulse {
                running,
                stirred,
                models_open,
                beside,
                ..
            } = self.pulse;
            let mut left_open = Vec::new();
            if event.epoch > self.epoch {
                // What the driver before had under way is under way no more, and the new one looks at
                // everything.
                (self.pulse.running, self.pulse.models_open) = (0, 0);
                self.pulse.stirred = false;
                left_open = std::mem::take(&mut self.pulse.reserved);
                self.write_off(&left_open);
            }
            if let Err(why) = self.apply_body(event) {
                (self.pulse.running, self.pulse.models_open) = (running, models_open);
                self.pulse.stirred = stirred;
                self.pulse.beside = beside;
                if event.epoch > self.epoch {
                    self.pulse.reserved = left_open;
                }
                return Err(IllegalEvent::new(event, why));
            }
            // Without another wait there is nothing beside which it could be overlooked.
            self.pulse.stirred &= !self.facts.waits.is_empty();
        } else if let Body::ModelAnswered(crate::event::ModelAnswered { call, spent, .. })
        | Body::ModelFailed(crate::event::ModelFailed { call, spent, .. }) = &event.body
        {
            self.settle(call, spent);
        }
        self.head = Head {
            seq: event.seq,
            digest: event.digest,
        };
        self.updated_at = event.at;
        self.epoch = event.epoch;
        if let Some(was) = was {
            self.count_driven(event, was);
        }
        Ok(())
    }

    /// Whether the event's place, time, epoch, kind and mark let it follow.
    pub(crate) fn check_envelope(&self, event: &Event) -> Result<(), IllegalEvent> {
        self.envelope(event)
            .map_err(|why| IllegalEvent::new(event, why))
    }

    fn envelope(&self, event: &Event) -> Result<(), Illegal> {
        let expected = self.head.seq.next();
        if event.seq != expected {
            return Err(Illegal::OutOfOrder { expected });
        }
        if event.at < self.updated_at {
            return Err(Illegal::TimeWentBack);
        }
        // A fork has drivers of its own, counted from the first.
        let is_fork = matches!(event.body, Body::RunForked(_));
        if event.epoch < self.epoch && !is_fork {
            return Err(Illegal::StaleEpoch {
                current: self.epoch,
            });
        }
        if let Body::Unknown(_) = event.body {
            return Err(Illegal::UnknownKind);
        }
        match (&self.facts.ended, event.late) {
            (Some(_), false) => Err(Illegal::AfterEnd),
            (None, true) => Err(Illegal::LateBeforeEnd),
            (Some(_), true) | (None, false) => Ok(()),
        }
    }

    /// One match, no `_` arm: a new kind costs an edit here, and that is intended.
    fn apply_body(&mut self, event: &Event) -> Result<(), Illegal> {
        match &event.body {
            Body::RunStarted(started) => {
                // Fills an empty input, never replaces one.
                if self.facts.input.is_null() && !started.input.is_null() {
                    self.facts_mut().input = started.input.clone();
                }
            }
            Body::RunResumed(resumed) => match resumed.reason {
                crate::event::ClaimReason::Orphaned => self.pulse.takeovers += 1,
                crate::event::ClaimReason::Ready => {}
            },
            Body::RunCompleted(completed) => {
                self.end(
                    event.at,
                    completed.final_state_digest,
                    End::Completed {
                        output: completed.output.clone(),
                    },
                );
            }
            Body::RunFailed(failed) => {
                self.end(
                    event.at,
                    failed.final_state_digest,
                    End::Failed {
                        cause: failed.error.clone(),
                    },
                );
            }
            Body::RunCancelled(cancelled) => {
                self.end(
                    event.at,
                    cancelled.final_state_digest,
                    End::Cancelled {
                        reason: cancelled.reason.clone(),
                    },
                );
            }
            Body::RunForked(forked) => self.fork(event.at, forked)?,
            Body::PhaseEntered(entered) => {
                if self.facts.phase != Some(entered.phase) {
                    self.facts_mut().phase = Some(entered.phase);
                }
            }
            Body::StepStarted(_) => {
                self.begin_executing();
                self.pulse.stirred = false;
                self.pulse.running += 1;
            }
            Body::StepFinished(finished) => {
                self.step_ended(finished.started_at.is_none())?;
                self.begin_executing();
                self.pulse.takeovers = 0;
            }
            Body::StepFailed(failed) => {
                self.step_ended(failed.started_at.is_none())?;
                self.begin_executing();
            }
            Body::StepInDoubt(doubt) => {
                self.step_ended(doubt.epoch == event.epoch)?;
                self.facts_mut()
                    .in_doubt
                    .push(Doubt::Step(doubt.step.clone()));
            }
            Body::StepResolved(resolved) => {
                self.resolve(&Doubt::Step(resolved.step.clone()), &resolved.resolution)?;
                self.pulse.stirred = true;
            }
            Body::TurnStarted(_) => {
                self.begin_executing();
                self.pulse.stirred = false;
            }
            Body::ModelCalled(called) => {
                self.pulse.stirred = false;
                self.pulse.models_open += 1;
                self.pulse.usage.model_calls += 1;
                self.reserve(&called.call, &called.reserved);
                self.note_model(&called.model);
            }
            Body::ModelAnswered(answered) => {
                self.pulse.models_open = self.pulse.models_open.saturating_sub(1);
                self.settle(&answered.call, &answered.spent);
                self.pulse.takeovers = 0;
            }
            Body::ModelFailed(failed) => {
                self.pulse.models_open = self.pulse.models_open.saturating_sub(1);
                self.settle(&failed.call, &failed.spent);
            }
            Body::ToolCalled(called) => {
                self.begin_executing();
                self.pulse.stirred = false;
                self.pulse.usage.tool_calls += 1;
                self.pulse
                    .active_tools
                    .retain(|tool| tool.call != called.call);
                self.pulse.active_tools.push(ActiveTool {
                    call: called.call.clone(),
                    epoch: event.epoch,
                    name: called.name.clone(),
                    since: event.at,
                });
                self.note_tool(&called.name);
            }
            Body::ToolReturned(returned) => {
                self.tool_ended(&returned.call);
                self.pulse.takeovers = 0;
            }
            Body::ToolFailed(failed) => self.tool_ended(&failed.call),
            Body::ToolInDoubt(doubt) => {
                self.tool_ended(&doubt.call);
                self.facts_mut()
                    .in_doubt
                    .push(Doubt::Call(doubt.call.clone()));
            }
            Body::ToolResolved(resolved) => {
                self.resolve(&Doubt::Call(resolved.call.clone()), &resolved.resolution)?;
                self.pulse.stirred = true;
            }
            Body::MessageAdded(added) => self.pulse.context = Some(added.node),
            Body::ContextCompacted(compacted) => self.pulse.context = Some(compacted.node),
            Body::StatePatched(patched) => {
                let document = patch(&self.facts.document, &patched.patch)?;
                self.facts_mut().document = document;
            }
            Body::WaitStarted(wait) => {
                let expected = self.next_wait();
                if wait.wait != expected {
                    return Err(Illegal::WaitOutOfOrder { expected });
                }
                self.step_ended(wait.suspends)?;
                self.pulse.stirred = false;
                let open = OpenWait {
                    since: event.at,
                    wait: wait.clone(),
                };
                let facts = self.facts_mut();
                facts.waits_started += 1;
                facts.waits.push(open);
            }
            Body::WaitEnded(ended) => {
                if self.wait(ended.wait).is_none() {
                    return Err(Illegal::WaitNotOpen(ended.wait));
                }
                self.facts_mut()
                    .waits
                    .retain(|open| open.wait.wait != ended.wait);
                self.pulse.stirred = true;
                self.pulse.takeovers = 0;
            }
            Body::SignalReceived(signal) => match signal.wait {
                Some(wait) if self.wait(wait).is_none() => return Err(Illegal::WaitNotOpen(wait)),
                Some(_) | None => {}
            },
            Body::ChildStarted(started) => {
                self.child_started(started);
                self.pulse.stirred = false;
            }
            Body::ChildFinished(finished) => {
                self.child_finished(finished);
                self.pulse.takeovers = 0;
            }
            Body::BudgetChanged(changed) => self.budget_changed(changed),
            Body::SpecChanged(changed) => self.facts_mut().spec_digest = changed.spec_digest,
            Body::VerificationFinished(verification) => {
                self.facts_mut().verification = Some(verification.clone());
            }
            // These say nothing about the row.
            Body::PlanMade(_)
            | Body::StepRetrying(_)
            | Body::StepSkipped(_)
            | Body::TurnFinished(_)
            | Body::MessageQueued(_)
            | Body::CheckpointSaved(_)
            | Body::CheckpointRestored(_)
            | Body::CheckpointDeleted(_)
            | Body::OutputWritten(_)
            | Body::Custom(_) => {}
            Body::Unknown(_) => return Err(Illegal::UnknownKind),
        }
        Ok(())
    }

    pub(crate) fn facts_mut(&mut self) -> &mut Facts {
        Arc::make_mut(&mut self.facts)
    }

    fn end(&mut self, at: Timestamp, final_state_digest: Digest, end: End) {
        self.pulse.running = 0;
        self.pulse.models_open = 0;
        self.pulse.active_tools.clear();
        let facts = self.facts_mut();
        facts.waits.clear();
        facts.ended = Some(Ended {
            at,
            end,
            final_state_digest,
        });
    }

    /// The first executing phase, step, tool or turn start, but not while planning is open.
    fn begin_executing(&mut self) {
        if self.facts.phase.is_none() {
            self.facts_mut().phase = Some(Phase::Executing);
        }
    }

    /// Only a step that was announced under this driver was counted: one with its own `started_at`
    /// never was, and the first event of a new driver forgot those of the one before.
    fn step_ended(&mut self, counted: bool) -> Result<(), Illegal> {
        if counted {
            self.pulse.running = self
                .pulse
                .running
                .checked_sub(1)
                .ok_or(Illegal::StepNotRunning)?;
        }
        Ok(())
    }

    fn tool_ended(&mut self, call: &CallId) {
        self.pulse.active_tools.retain(|tool| tool.call != *call);
    }

    fn resolve(&mut self, doubt: &Doubt, resolution: &Resolution) -> Result<(), Illegal> {
        if !self.facts.in_doubt.contains(doubt) {
            return Err(Illegal::NotInDoubt);
        }
        self.facts_mut().in_doubt.retain(|other| other != doubt);
        match resolution {
            Resolution::Returned(_) | Resolution::Failed(_) => self.pulse.takeovers = 0,
            Resolution::Retry => {}
        }
        Ok(())
    }

    fn note_model(&mut self, name: &str) {
        if !self
            .facts
            .provenance
            .models
            .iter()
            .any(|known| known == name)
        {
            self.facts_mut().provenance.models.push(name.to_owned());
        }
    }

    fn note_tool(&mut self, name: &str) {
        if !self
            .facts
            .provenance
            .tools
            .iter()
            .any(|known| known == name)
        {
            self.facts_mut().provenance.tools.push(name.to_owned());
        }
    }
}

/// How deep the document may nest. A JSON parser stops at 128, and whoever stores or shows a row puts
/// the document inside something.
const DOCUMENT_DEPTH_MAX: usize = 100;
/// How large it may be, about.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// The document after a patch.
pub(crate) fn patch(
    document: &serde_json::Value,
    patch: &json_patch::Patch,
) -> Result<serde_json::Value, Illegal> {
    let refused = |error: json_patch::PatchError| Illegal::Patch(error.to_string());
    let mut document = document.clone();
    if patch.iter().any(takes_from_the_document) {
        // A few copies of copies fill any memory, and moves nest it without end.
        for operation in patch.iter() {
            let one = std::slice::from_ref(operation);
            json_patch::patch(&mut document, one).map_err(refused)?;
            if takes_from_the_document(operation) {
                check_document(&document)?;
            }
        }
    } else {
        json_patch::patch(&mut document, patch).map_err(refused)?;
    }
    check_document(&document)?;
    Ok(document)
}

fn takes_from_the_document(operation: &json_patch::PatchOperation) -> bool {
    use json_patch::PatchOperation as P;
    match operation {
        P::Copy(_) | P::Move(_) => true,
        P::Add(_) | P::Remove(_) | P::Replace(_) | P::Test(_) => false,
    }
}

/// Refuses a document that is too deep or too large.
fn check_document(document: &serde_json::Value) -> Result<(), Illegal> {
    /// What is left of `room` behind the value.
    fn room_behind(value: &serde_json::Value, levels: usize, room: usize) -> Result<usize, String> {
        use serde_json::Value;
        let deep = || format!("the document would nest deeper than {DOCUMENT_DEPTH_MAX} levels");
        let large = || {
            let mib = DOCUMENT_BYTES_MAX >> 20;
            format!("the document would be larger than {mib} MiB")
        };
        let spend = |room: usize, bytes: usize| room.checked_sub(bytes).ok_or_else(large);
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => spend(room, 8),
            Value::String(text) => spend(room, text.len() + 2),
            Value::Array(items) => {
                let levels = levels.checked_sub(1).ok_or_else(deep)?;
                let each = |room, item| room_behind(item, levels, room);
                items.iter().try_fold(spend(room, 2)?, each)
            }
            Value::Object(fields) => {
                let levels = levels.checked_sub(1).ok_or_else(deep)?;
                fields
                    .iter()
                    .try_fold(spend(room, 2)?, |room, (name, field)| {
                        room_behind(field, levels, spend(room, name.len() + 4)?)
                    })
            }
        }
    }
    match room_behind(document, DOCUMENT_DEPTH_MAX, DOCUMENT_BYTES_MAX) {
        Ok(_) => Ok(()),
        Err(why) => Err(Illegal::Patch(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_that_copies_copies_is_refused_before_it_fills_the_memory() {
        let double = json!([
            {"op": "add", "path": "/y", "value": []},
            {"op": "copy", "from": "/x", "path": "/y/0"},
            {"op": "copy", "from": "/x", "path": "/y/1"},
            {"op": "move", "from": "/y", "path": "/x"},
        ]);
        let rounds = |count: usize| {
            let rounds = std::iter::repeat_n(double.as_array().unwrap().clone(), count);
            serde_json::from_value::<json_patch::Patch>(rounds.flatten().collect()).unwrap()
        };
        let start = json!({"x": "0123456789"});
        assert!(patch(&start, &rounds(5)).is_ok());
        for (count, why) in [(60, "larger than 16 MiB"), (5000, "larger than 16 MiB")] {
            let refused = patch(&start, &rounds(count)).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        let nest = json!([
            {"op": "add", "path": "/b", "value": {}},
            {"op": "move", "from": "/x", "path": "/b/x"},
            {"op": "move", "from": "/b", "path": "/x"},
        ]);
        let nested = std::iter::repeat_n(nest.as_array().unwrap().clone(), 100_000).flatten();
        let nested = serde_json::from_value(nested.collect()).unwrap();
        let refused = patch(&start, &nested).unwrap_err();
        assert!(refused.to_string().contains("deeper than 100"), "{refused}");
    }
}
