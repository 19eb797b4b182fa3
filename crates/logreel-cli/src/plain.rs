//! A run as lines, where no terminal shows it live: one for each thing that a person waits for.

use std::collections::HashMap;

use logreel::core::CallId;
use logreel::core::event::{Cause, Phase, RunKind, Verdict, WaitKind};
use logreel::core::fold::DENIED;
use logreel::{Body, Event, StepId, Timestamp};

use crate::said::{self, Part};
use crate::text;

/// What the lines of a run need to know of what came before.
#[derive(Default)]
pub struct Plain {
    /// When the steps under way were announced.
    began: HashMap<StepId, Timestamp>,
    is_agent: bool,
    turn: u32,
    /// Calls of tools, in words, by who made them.
    calls: HashMap<CallId, String>,
}

impl Plain {
    /// The line for an event, when a person waits for it.
    pub fn line(&mut self, event: &Event) -> Option<String> {
        if let Body::RunStarted(started) = &event.body {
            self.is_agent = started.kind == RunKind::Agent;
        }
        match self.is_agent {
            true => self.of_agent(event).unwrap_or_else(|| self.of_any(event)),
            false => self.of_any(event),
        }
    }

    /// What is told of an agent in another way than of others; `None` for the rest.
    fn of_agent(&mut self, event: &Event) -> Option<Option<String>> {
        let line = match &event.body {
            Body::PhaseEntered(entered) => match entered.phase {
                Phase::Planning => "planning",
                Phase::Executing => "executing",
                Phase::Verifying => "verifying",
            }
            .to_owned(),
            Body::PlanMade(plan) => format!("plan: {}", text::preview(&plan.plan)),
            Body::TurnStarted(turn) => {
                self.turn = turn.turn;
                return Some(None);
            }
            Body::ModelCalled(called) if called.attempt > 1 => {
                format!(
                    "{} is asked again, attempt {}",
                    called.model, called.attempt
                )
            }
            // The plan has a line of its own.
            Body::ModelAnswered(answered) if !is_plan(&answered.call) => {
                // Its calls have lines of their own.
                let (words, _) = said::message(&answered.message);
                match words.is_empty() {
                    true => format!("turn {}", self.turn),
                    false => format!("turn {}: {words}", self.turn),
                }
            }
            Body::ModelFailed(failed) => format!("the model failed: {}", why(&failed.error)),
            Body::ToolCalled(called) => {
                let name = text::one_line(&called.name);
                let call = format!("{name} {}", said::about(&called.name, &called.arguments));
                let call = call.trim_end().to_owned();
                self.calls.insert(called.call.clone(), call.clone());
                match called.attempt {
                    1 => call,
                    attempt => format!("{call}, attempt {attempt}"),
                }
            }
            Body::ToolReturned(returned) => {
                let call = self.calls.remove(&returned.call);
                match said::exit_code(&returned.output) {
                    Some((code, printed)) if code != 0 => {
                        let call = call.unwrap_or_else(|| returned.call.to_string());
                        format!("{call} → exit {code}: {printed}")
                    }
                    _ => return Some(None),
                }
            }
            Body::ToolFailed(failed) => {
                let call = self.calls.remove(&failed.call);
                let call = call.unwrap_or_else(|| failed.call.to_string());
                match failed.error.kind.as_str() {
                    DENIED => format!("{call} {}", why(&failed.error)),
                    _ => format!("{call} failed: {}", why(&failed.error)),
                }
            }
            Body::ToolInDoubt(doubt) => {
                let call = self.calls.get(&doubt.call).cloned();
                let call = call.unwrap_or_else(|| doubt.call.to_string());
                format!("{call} is in doubt: {}", text::one_line(&doubt.reason))
            }
            Body::MessageQueued(queued) => {
                let by = queued.by.as_deref().map(text::one_line);
                let by = by.unwrap_or_else(|| "someone".to_owned());
                format!("{by} says: {}", text::one_line(&queued.text))
            }
            Body::ContextCompacted(_) => "the conversation goes on from a summary".to_owned(),
            Body::VerificationFinished(report) => {
                let checks = report.checks.iter();
                let checks = checks.map(|it| format!("{} {}", it.name, verdict(it.verdict)));
                let checks = text::one_line(&checks.collect::<Vec<_>>().join(", "));
                format!("checks {}: {checks}", verdict(report.verdict))
            }
            Body::WaitStarted(wait) if wait.kind == WaitKind::Approval && wait.tool.is_some() => {
                let tool = wait.tool.as_deref().unwrap_or_default();
                let arguments = wait.arguments.as_ref();
                let about = arguments
                    .map(|it| said::about(tool, it))
                    .unwrap_or_default();
                let call = format!("{} {about}", text::one_line(tool));
                let call = call.trim_end().to_owned();
                if let Some(id) = &wait.call {
                    self.calls.insert(id.clone(), call.clone());
                }
                format!("waits for approval: {call}")
            }
            Body::StepStarted(it) => match Part::of(&it.step)? {
                Part::Check(check) => format!("check {check}"),
                Part::Agent(_) => return Some(None),
            },
            Body::StepFinished(it) => match Part::of(&it.step)? {
                Part::Check(_) => return Some(None),
                Part::Agent(agent) => format!("{agent} answered: {}", text::preview(&it.output)),
            },
            Body::StepFailed(it) => match Part::of(&it.step)? {
                Part::Check(check) => format!("check {check} failed: {}", why(&it.error)),
                Part::Agent(agent) => format!("{agent} failed: {}", why(&it.error)),
            },
            Body::ChildStarted(it) => match Part::of(&it.step)? {
                Part::Agent(agent) => format!("{agent} started as {}", it.child.short()),
                Part::Check(_) => return Some(None),
            },
            _ => return None,
        };
        Some(Some(line))
    }

    fn of_any(&mut self, event: &Event) -> Option<String> {
        if let Body::StepStarted(started) = &event.body {
            self.began.insert(started.step.clone(), event.at);
        }
        Some(match &event.body {
            Body::RunStarted(started) => format!("{} started", text::one_line(&started.agent)),
            Body::StepStarted(it) if it.attempt > 1 => {
                format!("{} started, attempt {}", shown(&it.step), it.attempt)
            }
            Body::StepStarted(it) => format!("{} started", shown(&it.step)),
            Body::StepFinished(it) => {
                let began = it.started_at.or_else(|| self.began.remove(&it.step));
                let took = began.map(|began| event.at.since(began));
                let took = took.map(|took| format!(" in {}", text::duration(took)));
                format!("{} finished{}", shown(&it.step), took.unwrap_or_default())
            }
            Body::StepFailed(it) => {
                format!(
                    "{} failed: {}",
                    shown(&it.step),
                    text::one_line(&it.error.message)
                )
            }
            Body::StepRetrying(it) => {
                let delay = text::duration(std::time::Duration::from_millis(it.delay_ms));
                format!("{} is tried again in {delay}", shown(&it.step))
            }
            Body::StepSkipped(it) => format!(
                "{} skipped: {}",
                shown(&it.step),
                text::one_line(&it.reason)
            ),
            Body::StepInDoubt(it) => {
                format!(
                    "{} is in doubt: {}",
                    shown(&it.step),
                    text::one_line(&it.reason)
                )
            }
            Body::WaitStarted(wait) => match wait.kind {
                WaitKind::Approval | WaitKind::Signal | WaitKind::Timer => {
                    let what = wait.prompt.as_deref().or(wait.name.as_deref());
                    let until = wait
                        .deadline
                        .map(|at| format!("until {}", text::moment(at)));
                    let what = what.map(text::one_line).or(until).unwrap_or_default();
                    let step = wait.step.as_ref().map(|step| format!("{} ", shown(step)));
                    format!(
                        "{}waits for {}: {what}",
                        step.unwrap_or_default(),
                        wait.kind
                    )
                }
                WaitKind::Paused => "paused".to_owned(),
                WaitKind::Budget => {
                    let step = wait.step.as_ref().map(|step| format!("{} ", shown(step)));
                    let used = wait.prompt.as_deref().or(wait.name.as_deref());
                    let used = used.map(text::one_line).unwrap_or_default();
                    format!("{}waits for budget: {used}", step.unwrap_or_default())
                }
                WaitKind::CrashLoop => "waits: its drivers keep dying".to_owned(),
                WaitKind::Retry if wait.is_for_what_is_away() => {
                    let why = wait.prompt.as_deref().map(text::one_line);
                    let again = match wait.deadline {
                        Some(at) => format!("trying again at {}", text::moment(at)),
                        None => "nobody tries again".to_owned(),
                    };
                    format!("{}; {again}", why.unwrap_or_default())
                }
                // The step's own line says it.
                WaitKind::Retry | WaitKind::Child | WaitKind::InDoubt => return None,
            },
            Body::ChildStarted(it) => {
                format!("{} started as {}", shown(&it.step), it.child.short())
            }
            _ => return None,
        })
    }
}

fn is_plan(call: &CallId) -> bool {
    call.as_str().ends_with(".plan")
}

fn why(cause: &Cause) -> String {
    text::one_line(&cause.message)
}

/// How a check came out, in a word or two.
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::NeedsReview => "needs review",
        Verdict::Skipped => "skipped",
    }
}

fn shown(step: &StepId) -> String {
    text::one_line(&step.to_string())
}
