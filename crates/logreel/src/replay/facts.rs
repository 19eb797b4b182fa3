//! What of a log must be the same when it is decided again: not times, ids, drivers, attempts and
//! announcements, which are chance, and not what was said about limits.

use std::collections::{HashMap, HashSet};

use logreel_core::codec::encode_body;
use logreel_core::event::{Effect, WaitKind};
use logreel_core::{Body, Event, Seq, StepId};
use serde_json::{Map, Value, json};

use super::lane::{self, Lane, Waits};
use super::recording::is_nested;
use crate::step::GIVEN_UP;

/// A fact as it is compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fact {
    /// Where: in the recorded log, or in that of the replay.
    pub(crate) seq: Seq,
    pub(crate) kind: String,
    pub(crate) says: Value,
    /// How many cues had been given by then; of a recorded fact it is not known.
    pub(crate) cues: usize,
}

/// The facts of a log by what they are about, each lane in its order.
pub(crate) type Facts = HashMap<Lane, Vec<Fact>>;

/// The facts after `given`. `children` are the steps whose child is compared by itself.
pub(crate) fn facts<'a>(
    log: impl IntoIterator<Item = (&'a Event, usize)>,
    given: Seq,
    children: &HashSet<StepId>,
) -> Facts {
    let mut facts = Facts::new();
    let mut waits = Waits::default();
    for (event, cues) in log {
        waits.note(&event.body);
        if event.late || (event.seq <= given && event.seq > Seq::FIRST) {
            continue;
        }
        let lane = lane::of(&event.body, &waits);
        if is_nested(&lane) {
            continue;
        }
        let Some(mut says) = says(&event.body, &waits) else {
            continue;
        };
        if matches!(&lane, Lane::Step(step) if children.contains(step))
            && let Some(fields) = says.as_object_mut()
        {
            fields.remove("input_digest");
        }
        let fact = Fact {
            seq: event.seq,
            kind: event.body.kind().to_owned(),
            says,
            cues,
        };
        let of_lane = facts.entry(lane).or_default();
        if !of_lane.last().is_some_and(|last| is_repeated(last, &fact)) {
            of_lane.push(fact);
        }
    }
    facts
}

/// What was under way when a driver died is started again by the next.
fn is_repeated(last: &Fact, fact: &Fact) -> bool {
    let starts = matches!(
        fact.kind.as_str(),
        "step.started" | "tool.called" | "model.called"
    );
    starts && last.kind == fact.kind && last.says["call"] == fact.says["call"]
}

/// What the fact says that must be the same; `None` when nothing of it must.
fn says(body: &Body, waits: &Waits) -> Option<Value> {
    Some(match body {
        Body::RunStarted(_) => only(body, &["input"]),
        Body::RunResumed(_)
        | Body::RunCancelled(_)
        | Body::RunForked(_)
        | Body::SpecChanged(_)
        | Body::BudgetChanged(_)
        | Body::MessageQueued(_)
        | Body::SignalReceived(_)
        | Body::OutputWritten(_) => return None,
        Body::StepStarted(started) if started.effect != Effect::Write => return None,
        Body::StepStarted(_) => only(body, &["effect", "input_digest"]),
        Body::StepFinished(_) => only(body, &["effect", "input_digest", "output"]),
        Body::StepFailed(failed) if failed.error.kind == GIVEN_UP => return None,
        Body::StepFailed(_) | Body::ToolFailed(_) => only(body, &["error"]),
        Body::StepSkipped(_) => only(body, &["reason"]),
        Body::StepRetrying(_)
        | Body::StepInDoubt(_)
        | Body::ToolInDoubt(_)
        | Body::ChildStarted(_) => json!({}),
        Body::StepResolved(_) | Body::ToolResolved(_) => only(body, &["resolution"]),
        Body::ModelCalled(_) => only(body, &["call", "context", "model", "request"]),
        Body::ModelAnswered(_) => only(body, &["call", "finish_reason", "message"]),
        Body::ModelFailed(_) => only(body, &["call", "error"]),
        Body::ToolCalled(_) => only(body, &["arguments", "effect", "name"]),
        Body::ToolReturned(_) => only(body, &["output"]),
        Body::MessageAdded(_) => only(body, &["node", "role"]),
        Body::ContextCompacted(_) => only(body, &["node"]),
        Body::WaitStarted(wait) => match wait.kind {
            WaitKind::Approval | WaitKind::Signal | WaitKind::Timer => {
                let mut says = only(
                    body,
                    &["arguments", "kind", "name", "on_deadline", "prompt", "tool"],
                );
                says["has_deadline"] = Value::from(wait.deadline.is_some());
                says
            }
            WaitKind::InDoubt => only(body, &["kind"]),
            WaitKind::Retry
            | WaitKind::Child
            | WaitKind::Paused
            | WaitKind::Budget
            | WaitKind::CrashLoop => return None,
        },
        Body::WaitEnded(ended) => match waits.kind(ended.wait)? {
            WaitKind::Approval | WaitKind::Signal | WaitKind::Timer | WaitKind::InDoubt => {
                only(body, &["approved", "outcome", "reason", "value"])
            }
            WaitKind::Retry
            | WaitKind::Child
            | WaitKind::Paused
            | WaitKind::Budget
            | WaitKind::CrashLoop => return None,
        },
        Body::ChildFinished(_) => only(body, &["final_state_digest", "status"]),
        Body::RunCompleted(_)
        | Body::RunFailed(_)
        | Body::PhaseEntered(_)
        | Body::PlanMade(_)
        | Body::TurnStarted(_)
        | Body::TurnFinished(_)
        | Body::StatePatched(_)
        | Body::CheckpointSaved(_)
        | Body::CheckpointRestored(_)
        | Body::CheckpointDeleted(_)
        | Body::VerificationFinished(_)
        | Body::Custom(_)
        | Body::Unknown(_) => whole(body),
    })
}

fn whole(body: &Body) -> Value {
    let text = encode_body(body).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// The body with these fields only.
fn only(body: &Body, keys: &[&str]) -> Value {
    let Value::Object(mut fields) = whole(body) else {
        return Value::Null;
    };
    let kept = keys.iter().map(|key| {
        let value = fields.remove(*key).unwrap_or(Value::Null);
        ((*key).to_owned(), value)
    });
    Value::Object(kept.collect::<Map<_, _>>())
}
