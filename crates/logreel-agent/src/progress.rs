//! Where an agent's run is, folded from its log: what was asked, answered, called and decided. Together
//! with the conversation it says what comes next.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use logreel::core::event::{Cause, Phase, Resolution, Verdict, Verification, WaitOutcome};
use logreel::core::{CallId, Epoch, Payload};
use logreel::{Body, Digest, Event, Log, Timestamp, WaitId};

use crate::message::Message;

/// What a model is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// A plan, before the work.
    Plan,
    /// The next step of the work.
    Turn,
    /// An answer again, because the last one missed its schema.
    Repair,
    /// A summary, to go on from.
    Compact,
}

impl Purpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Turn => "turn",
            Self::Repair => "repair",
            Self::Compact => "compact",
        }
    }
}

/// A model call: its number in the run, and what for. In the log it is `m3.turn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ModelCall {
    pub(crate) number: u64,
    pub(crate) purpose: Purpose,
}

impl ModelCall {
    pub(crate) fn id(self) -> CallId {
        CallId::new(self.to_string()).expect("a number and a word are a call id")
    }
}

impl fmt::Display for ModelCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}.{}", self.number, self.purpose.as_str())
    }
}

impl FromStr for ModelCall {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, purpose) = text
            .strip_prefix('m')
            .and_then(|rest| rest.split_once('.'))
            .ok_or(())?;
        let all = [
            Purpose::Plan,
            Purpose::Turn,
            Purpose::Repair,
            Purpose::Compact,
        ];
        let purpose = all.into_iter().find(|it| it.as_str() == purpose);
        Ok(Self {
            number: number.parse().map_err(|_| ())?,
            purpose: purpose.ok_or(())?,
        })
    }
}

/// A model call without an outcome.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OpenCall {
    pub(crate) call: ModelCall,
    pub(crate) attempt: u32,
    pub(crate) epoch: Epoch,
}

/// A failed model call that was not made up for yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) call: ModelCall,
    pub(crate) cause: Cause,
    pub(crate) at: Timestamp,
    /// How long the provider asked to be left alone.
    pub(crate) retry_after: Option<Duration>,
    /// Failures in a row, this one with them.
    pub(crate) in_a_row: u32,
    /// A person does not want to wait for it.
    pub(crate) is_hurried: bool,
}

/// The same call with the same arguments and the same result, this often in a row, is a loop; so are two
/// or three by turns, but whoever waits for something that takes long calls by turns too.
const REPEATS_MAX: [(usize, usize); 3] = [(1, 5), (2, 8), (3, 8)];
/// What must be remembered to see that.
const RECENT_MAX: usize = 24;

/// What came of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Returned(Payload),
    Failed(Cause),
}

/// What a person said about a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Said {
    pub(crate) approved: bool,
    pub(crate) reason: Option<String>,
}

/// An answer that is recorded, and what is made of it is not. One append has both, so only a fork can
/// leave its parent in between.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unfinished {
    pub(crate) call: ModelCall,
    pub(crate) message: Payload,
    /// How many messages of it joined the conversation.
    pub(crate) joined: usize,
}

/// Where the run is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The input is in the conversation.
    pub(crate) opened: bool,
    /// It goes on under another input: the conversation begins again.
    pub(crate) begins_again: bool,
    input: Payload,
    /// A plan was made.
    pub(crate) planned: bool,
    pub(crate) phase: Option<Phase>,
    /// Turns and rounds of checks of the run that this one was forked from.
    pub(crate) turns_before: u32,
    pub(crate) verified_before: u32,
    /// Turns that began.
    pub(crate) turns: u32,
    /// The last turn has its results, or its answer.
    pub(crate) turn_is_over: bool,
    /// Model calls that were numbered.
    pub(crate) model_calls: u64,
    pub(crate) open: Option<OpenCall>,
    pub(crate) failure: Option<Failure>,
    /// The last answer of all.
    pub(crate) answered: Option<ModelCall>,
    pub(crate) unfinished: Option<Unfinished>,
    /// Input tokens of the last answer, and its output: what the next request has at least.
    pub(crate) context_tokens: u64,
    /// Every id that a tool call ever had.
    pub(crate) calls_seen: HashSet<String>,
    pub(crate) outcomes: HashMap<String, Outcome>,
    /// Questions about calls, and what was said.
    asked: HashMap<WaitId, String>,
    pub(crate) said: HashMap<String, Said>,
    /// Rounds of checks that were made.
    pub(crate) verified: u32,
    pub(crate) verification: Option<Verification>,
    /// Checks were made of the last answer.
    pub(crate) answer_is_checked: bool,
    /// The last tool calls, each with its result.
    recent: VecDeque<Digest>,
    calls: HashMap<String, (String, String)>,
    /// Waits for what is away, one after the other with nothing between them that shows it was there.
    pub(crate) away: u32,
    away_wait: Option<WaitId>,
}

impl Progress {
    /// Takes everything in that the log has by now.
    pub(crate) fn catch_up(&mut self, log: &Log<'_>) {
        for event in log.unread() {
            self.apply(&event);
        }
    }

    /// Takes the next event in.
    fn apply(&mut self, event: &Event) {
        match &event.body {
            Body::PhaseEntered(entered) => self.phase = Some(entered.phase),
            Body::PlanMade(_) => {
                self.planned = true;
                self.unfinished = None;
            }
            Body::MessageAdded(_) => {
                self.opened = true;
                if let Some(answer) = &mut self.unfinished {
                    answer.joined += 1;
                }
                // Only a plan has more than its message.
                let is_all = |answer: &mut Unfinished| answer.call.purpose != Purpose::Plan;
                self.unfinished.take_if(is_all);
            }
            Body::ContextCompacted(_) => {
                self.context_tokens = 0;
                self.unfinished = None;
                (self.opened, self.begins_again) = (true, false);
            }
            Body::TurnStarted(turn) => {
                self.turns = turn.turn;
                self.turn_is_over = false;
            }
            Body::TurnFinished(_) => self.turn_is_over = true,
            Body::ModelCalled(called) => {
                self.away = 0;
                if let Ok(call) = called.call.as_str().parse::<ModelCall>() {
                    self.model_calls = self.model_calls.max(call.number);
                    self.open = Some(OpenCall {
                        call,
                        attempt: called.attempt,
                        epoch: event.epoch,
                    });
                }
            }
            Body::ModelAnswered(answered) => {
                let open = self.open.take();
                self.answered = open.map(|open| open.call);
                self.unfinished = self.answered.map(|call| Unfinished {
                    call,
                    message: answered.message.clone(),
                    joined: 0,
                });
                self.note_calls(&answered.message);
                self.failure = None;
                self.answer_is_checked = false;
                self.context_tokens = answered
                    .spent
                    .input_tokens
                    .saturating_add(answered.spent.output_tokens);
            }
            Body::ModelFailed(failed) => {
                let before = self.failure.as_ref().map_or(0, |failure| failure.in_a_row);
                if let Some(open) = self.open.take() {
                    self.failure = Some(Failure {
                        call: open.call,
                        cause: failed.error.clone(),
                        at: event.at,
                        retry_after: failed.retry_after_ms.map(Duration::from_millis),
                        in_a_row: before + 1,
                        is_hurried: false,
                    });
                }
            }
            Body::ToolCalled(called) => {
                let arguments = called.arguments.to_json().text().to_owned();
                let call = called.call.to_string();
                self.calls_seen.insert(call.clone());
                self.calls.insert(call, (called.name.clone(), arguments));
            }
            Body::ToolReturned(returned) => {
                self.returned(returned.call.as_str(), &returned.output);
            }
            Body::ToolFailed(failed) => self.failed(failed.call.as_str(), &failed.error),
            Body::ToolResolved(resolved) => match &resolved.resolution {
                Resolution::Returned(output) => self.returned(resolved.call.as_str(), output),
                Resolution::Failed(message) => {
                    let error = logreel::TaskError::new(message.clone()).permanent();
                    self.failed(resolved.call.as_str(), &error.cause());
                }
                Resolution::Retry => {}
            },
            // A sub-agent's call is a step: its id is [agent, call].
            Body::StepFinished(finished) => {
                if let Some(call) = sub_agent_call(&finished.step) {
                    self.returned(&call, &finished.output);
                }
            }
            Body::StepFailed(failed) => {
                if let Some(call) = sub_agent_call(&failed.step) {
                    self.failed(&call, &failed.error);
                }
            }
            Body::WaitStarted(wait) => {
                if wait.is_for_what_is_away() {
                    self.away += 1;
                    self.away_wait = Some(wait.wait);
                }
                if let Some(call) = &wait.call {
                    self.asked.insert(wait.wait, call.to_string());
                }
            }
            Body::WaitEnded(ended) => {
                if self.away_wait == Some(ended.wait) && ended.outcome == WaitOutcome::Resumed {
                    // Someone thinks that it is back.
                    self.away = 0;
                }
                if let (Some(failure), Some(call)) =
                    (&mut self.failure, self.asked.get(&ended.wait))
                    && ended.outcome == WaitOutcome::Resumed
                    && failure.call.to_string() == *call
                {
                    failure.is_hurried = true;
                }
                if let (Some(call), Some(approved)) = (self.asked.get(&ended.wait), ended.approved)
                {
                    let reason = ended.reason.clone();
                    self.said.insert(call.clone(), Said { approved, reason });
                }
            }
            Body::VerificationFinished(verification) => {
                self.verified += 1;
                self.answer_is_checked = true;
                self.verification = Some(verification.clone());
            }
            Body::RunStarted(started) => self.input = started.input.clone(),
            Body::RunForked(forked) => {
                // The prefix's failures, rounds and loops are the parent's; what it said and did stays.
                self.failure = None;
                if let Some(open) = self.open.take() {
                    // The fork dropped the call: the next one is this one, made again.
                    self.model_calls = open.call.number - 1;
                }
                self.answered = self.unfinished.as_ref().map(|answer| answer.call);
                self.answer_is_checked = false;
                self.recent.clear();
                (self.turns_before, self.verified_before) = (self.turns, self.verified);
                if forked.input != self.input {
                    (self.unfinished, self.answered) = (None, None);
                    (self.opened, self.planned, self.begins_again) = (false, false, true);
                    self.input = forked.input.clone();
                }
            }
            _ => {}
        }
    }

    fn returned(&mut self, call: &str, output: &Payload) {
        self.note_repeat(call, output.to_json().text());
        self.ended(call, Outcome::Returned(output.clone()));
    }

    fn failed(&mut self, call: &str, error: &Cause) {
        self.note_repeat(call, &error.message);
        self.ended(call, Outcome::Failed(error.clone()));
    }

    fn ended(&mut self, call: &str, outcome: Outcome) {
        self.calls_seen.insert(call.to_owned());
        self.outcomes.insert(call.to_owned(), outcome);
    }

    /// Notes what an answer calls: one that is denied, or is a sub-agent's, is never announced as a tool's.
    fn note_calls(&mut self, message: &Payload) {
        self.calls.clear();
        // One too large to be in the event is known by its announcements.
        let Ok(message) = message.to_json().decode::<Message>() else {
            return;
        };
        for call in message.tool_calls() {
            let arguments = call.arguments.text().to_owned();
            self.calls
                .insert(call.call.clone(), (call.name.clone(), arguments));
        }
    }

    /// Notes a call with its result.
    fn note_repeat(&mut self, call: &str, result: &str) {
        let Some((name, arguments)) = self.calls.remove(call) else {
            return;
        };
        let same = Digest::of(format!("{name}\0{arguments}\0{result}").as_bytes());
        self.recent.push_back(same);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
    }

    /// How many calls the model makes over and over again with the same results, and how often in a row.
    pub(crate) fn repeats(&self) -> Option<(usize, usize)> {
        let calls: Vec<&Digest> = self.recent.iter().rev().collect();
        REPEATS_MAX.into_iter().find(|(period, times)| {
            let all = period * times;
            calls.len() >= all && (*period..all).all(|at| calls[at] == calls[at - period])
        })
    }

    /// The outcome of the last round of checks.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verification.as_ref().map(|it| it.verdict)
    }
}

/// The first part of the step that a sub-agent's call is.
pub(crate) const SUB_AGENT: &str = "agent";

/// The call that a step is the work of.
fn sub_agent_call(step: &logreel::StepId) -> Option<String> {
    let parts: Vec<String> = serde_json::from_str(&step.canonical()).ok()?;
    match parts.as_slice() {
        [kind, _, call] if kind == SUB_AGENT => Some(call.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_call_says_its_number_and_purpose_in_its_id() {
        for purpose in [
            Purpose::Plan,
            Purpose::Turn,
            Purpose::Repair,
            Purpose::Compact,
        ] {
            let call = ModelCall {
                number: 12,
                purpose,
            };
            assert_eq!(call.id().as_str().parse(), Ok(call));
        }
        assert!("call_1".parse::<ModelCall>().is_err());
    }
}
