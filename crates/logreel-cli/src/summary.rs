//! An event in a few words.

use logreel::core::event::{Cause, Change, ClaimReason, Resolution, Spend, WaitOutcome};
use logreel::core::{DecodeError, Record};
use logreel::{Body, Timestamp};

use crate::plain::verdict;
use crate::said;
use crate::text::{bytes, duration, moment, one_line, preview};

/// What the event says beyond its kind.
pub fn of(record: &Record) -> String {
    let text = match record.decode() {
        Ok(event) => of_body(&event.body, event.at),
        Err(DecodeError::Erased(_)) => "(erased)".to_owned(),
        Err(error) => format!("({error})"),
    };
    if record.late {
        format!("(late) {text}")
    } else {
        text
    }
}

fn shown<T: ToString>(list: &[T]) -> String {
    let names: Vec<String> = list.iter().map(|it| one_line(&it.to_string())).collect();
    names.join(", ")
}

/// What is changed in a fork.
fn changes(changes: &[Change]) -> String {
    let changes = changes.iter().map(|change| match change {
        Change::Input => "input".to_owned(),
        Change::Message => "message".to_owned(),
        Change::Model(model) => format!("model {}", one_line(model)),
        Change::Result(call) => format!("result of {}", one_line(call)),
        Change::Spec => "spec".to_owned(),
    });
    changes.collect::<Vec<_>>().join(", ")
}

fn of_body(body: &Body, at: Timestamp) -> String {
    match body {
        Body::RunStarted(started) if started.input.is_null() => one_line(&started.agent),
        Body::RunStarted(started) => {
            format!("{} {}", one_line(&started.agent), preview(&started.input))
        }
        Body::RunResumed(resumed) => {
            let why = match resumed.reason {
                ClaimReason::Orphaned => "its driver was gone",
                ClaimReason::Ready => "it was ready",
            };
            format!("by {}: {why}", one_line(&resumed.owner))
        }
        Body::RunCompleted(completed) => preview(&completed.output),
        Body::RunFailed(failed) => cause(&failed.error),
        Body::RunCancelled(cancelled) => optional(cancelled.reason.as_deref()),
        Body::RunForked(forked) => {
            let mut text = format!("from {} at {}", forked.parent.run, forked.parent.seq);
            let listed = [
                ("with another", changes(&forked.changes)),
                ("again", shown(&forked.forgotten)),
                ("may have happened", shown(&forked.may_have_happened)),
            ];
            for (what, list) in listed.iter().filter(|(_, list)| !list.is_empty()) {
                text.push_str(&format!("; {what}: {list}"));
            }
            text
        }
        Body::PhaseEntered(entered) => format!("{:?}", entered.phase).to_lowercase(),
        Body::PlanMade(plan) => preview(&plan.plan),
        Body::StepStarted(started) => {
            format!(
                "{}{}{}",
                started.step,
                attempt(started.attempt),
                write(started.effect)
            )
        }
        Body::StepFinished(finished) => {
            let took = finished
                .started_at
                .map(|began| format!(" ({})", duration(at.since(began))));
            format!(
                "{}{}{} → {}",
                finished.step,
                attempt(finished.attempt),
                took.unwrap_or_default(),
                preview(&finished.output)
            )
        }
        Body::StepFailed(failed) => {
            let error = Cause {
                step: None,
                ..failed.error.clone()
            };
            format!(
                "{}{}: {}",
                failed.step,
                attempt(failed.attempt),
                cause(&error)
            )
        }
        Body::StepRetrying(retrying) => {
            let delay = duration(std::time::Duration::from_millis(retrying.delay_ms));
            format!("{}{} in {delay}", retrying.step, attempt(retrying.attempt))
        }
        Body::StepSkipped(skipped) => format!("{}: {}", skipped.step, one_line(&skipped.reason)),
        Body::StepInDoubt(doubt) => format!("{}: {}", doubt.step, one_line(&doubt.reason)),
        Body::StepResolved(resolved) => {
            let (by, outcome) = (one_line(&resolved.by), resolution(&resolved.resolution));
            format!("{} by {by}: {outcome}", resolved.step)
        }
        Body::TurnStarted(turn) => turn.turn.to_string(),
        Body::TurnFinished(turn) => turn.turn.to_string(),
        Body::ModelCalled(called) => {
            format!(
                "{} {}{}",
                called.call,
                one_line(&called.model),
                attempt(called.attempt)
            )
        }
        Body::ModelAnswered(answered) => {
            format!(
                "{} {} {}",
                answered.call,
                spend(&answered.spent),
                said::with_calls(said::message(&answered.message))
            )
        }
        Body::ModelFailed(failed) => format!("{}: {}", failed.call, cause(&failed.error)),
        Body::ToolCalled(called) => format!(
            "{} {} {}{}",
            called.call,
            one_line(&called.name),
            said::about(&called.name, &called.arguments),
            write(called.effect)
        ),
        Body::ToolReturned(returned) => {
            format!("{} → {}", returned.call, said::result(&returned.output))
        }
        Body::ToolFailed(failed) => format!("{}: {}", failed.call, cause(&failed.error)),
        Body::ToolInDoubt(doubt) => format!("{}: {}", doubt.call, one_line(&doubt.reason)),
        Body::ToolResolved(resolved) => {
            let (by, outcome) = (one_line(&resolved.by), resolution(&resolved.resolution));
            format!("{} by {by}: {outcome}", resolved.call)
        }
        Body::MessageAdded(added) => format!("{} ({})", one_line(&added.role), bytes(added.length)),
        Body::MessageQueued(queued) => one_line(&queued.text),
        Body::ContextCompacted(_) => String::new(),
        Body::StatePatched(patched) => {
            let paths = patched.patch.iter().map(|operation| {
                let path = operation.path().to_string();
                if path.is_empty() {
                    "/".to_owned()
                } else {
                    one_line(&path)
                }
            });
            paths.collect::<Vec<_>>().join(" ")
        }
        Body::CheckpointSaved(saved) => one_line(&saved.checkpoint),
        Body::CheckpointRestored(restored) => one_line(&restored.checkpoint),
        Body::CheckpointDeleted(deleted) => one_line(&deleted.checkpoint),
        Body::WaitStarted(wait) => {
            let call = wait.tool.as_deref().map(|tool| {
                let about = wait.arguments.as_ref().map(|it| said::about(tool, it));
                format!("{} {}", one_line(tool), about.unwrap_or_default())
            });
            let what = wait.prompt.as_deref().or(wait.name.as_deref());
            let what = call.or_else(|| what.map(one_line));
            let until = wait.deadline.map(|at| format!(" until {}", moment(at)));
            let (what, until) = (what.unwrap_or_default(), until.unwrap_or_default());
            format!("{} {}{until} {what}", wait.wait, wait.kind)
                .trim_end()
                .to_owned()
        }
        Body::WaitEnded(ended) => {
            let outcome = match (ended.outcome, ended.approved) {
                (WaitOutcome::Answered, Some(true)) => "approved",
                (WaitOutcome::Answered, Some(false)) => "denied",
                (WaitOutcome::Answered, None) => "answered",
                (WaitOutcome::Signalled, _) => "signalled",
                (WaitOutcome::TimedOut, _) => "out of time",
                (WaitOutcome::Elapsed, _) => "elapsed",
                (WaitOutcome::Resumed, _) => "resumed",
                (WaitOutcome::Resolved, _) => "resolved",
                (WaitOutcome::Raised, _) => "limit raised",
                (WaitOutcome::Finished, _) => "child finished",
            };
            let by = ended
                .by
                .as_deref()
                .map(|by| format!(" by {}", one_line(by)));
            let reason = ended
                .reason
                .as_deref()
                .map(|why| format!(": {}", one_line(why)));
            let (by, reason) = (by.unwrap_or_default(), reason.unwrap_or_default());
            format!("{} {outcome}{by}{reason}", ended.wait)
        }
        Body::SignalReceived(signal) => {
            format!("{} {}", one_line(&signal.name), preview(&signal.value))
        }
        Body::ChildStarted(child) => format!("{} as {}", child.child, child.step),
        Body::ChildFinished(child) => {
            let status = logreel::Status::from(child.status);
            format!("{} ({}) {status}", child.child, child.step)
        }
        Body::BudgetChanged(changed) => {
            let limits = crate::budget::written(&changed.budget);
            let by = changed.by.as_deref().map(one_line);
            let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
            let child = changed.child.map(|child| format!(" for {}", child.short()));
            format!("{limits}{by}{}", child.unwrap_or_default())
        }
        Body::SpecChanged(changed) => changed.spec_digest.to_string(),
        Body::VerificationFinished(verification) => {
            let checks = verification.checks.iter();
            let checks = checks.map(|it| format!("{} {}", one_line(&it.name), verdict(it.verdict)));
            let all = checks.collect::<Vec<_>>().join(", ");
            format!("{}: {all}", verdict(verification.verdict))
        }
        Body::OutputWritten(written) => {
            let text = written
                .text
                .as_deref()
                .map_or_else(|| "(bytes)".to_owned(), one_line);
            format!("{} {text}", one_line(&written.stream))
        }
        Body::Custom(custom) => format!("{} {}", one_line(&custom.name), preview(&custom.data)),
        Body::Unknown(unknown) => one_line(unknown.raw.text()),
    }
}

fn optional(text: Option<&str>) -> String {
    text.map(one_line).unwrap_or_default()
}

/// Why something failed. The plain kind, `error`, says nothing that the reader does not know.
pub fn cause(cause: &Cause) -> String {
    let step = cause
        .step
        .as_ref()
        .map(|step| format!(" (step {step})"))
        .unwrap_or_default();
    let kind = match cause.kind.as_str() {
        "error" => String::new(),
        kind if cause.message.starts_with(&format!("{kind}: ")) => String::new(),
        kind => format!("{}: ", one_line(kind)),
    };
    format!("{kind}{}{step}", one_line(&cause.message))
}

fn attempt(attempt: u32) -> String {
    if attempt > 1 {
        format!(" #{attempt}")
    } else {
        String::new()
    }
}

fn write(effect: logreel::core::event::Effect) -> &'static str {
    match effect {
        logreel::core::event::Effect::Write => " (write)",
        logreel::core::event::Effect::Read | logreel::core::event::Effect::Idempotent => "",
    }
}

pub fn resolution(resolution: &Resolution) -> String {
    match resolution {
        Resolution::Returned(output) => format!("it happened → {}", preview(output)),
        Resolution::Failed(message) => format!("it failed: {}", one_line(message)),
        Resolution::Retry => "run it again".to_owned(),
    }
}

fn spend(spend: &Spend) -> String {
    format!("{}+{} tokens", spend.input_tokens, spend.output_tokens)
}
