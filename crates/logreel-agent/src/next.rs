//! What comes next: decided from the folded log and the conversation alone, so that a run goes on after
//! a crash as it would have without one.

use std::time::Duration;

use logreel::TaskError;
use logreel::core::event::Verdict;
use serde_json::Value;

use crate::context::Context;
use crate::message::{Message, Role};
use crate::output;
use crate::progress::{Progress, Purpose};
use crate::spec::AgentSpec;

/// A model that fails this often in a row fails the run: with what is between two tries, after some ten
/// minutes, or later when the provider asks for more time.
const MODEL_TRIES: u32 = 16;
/// A provider that asks to be left alone for longer than this will not be asked again by this run.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What an agent does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// The input joins the conversation.
    Open,
    /// A model is asked.
    Ask(Purpose),
    /// What is made of an answer that is recorded already.
    Follow,
    /// The last answer's tools are called.
    Call,
    /// Their results join the conversation.
    Report,
    /// The model is told what its answer misses, and asked again.
    Repair(String),
    /// The checks are made.
    Verify,
    /// The run completes with this.
    Complete(Value),
    /// The run fails with this.
    Fail(TaskError),
}

/// What comes next. `steered`: a person said something that was not taken yet.
pub(crate) fn next(
    spec: &AgentSpec,
    progress: &Progress,
    context: &Context,
    steered: bool,
) -> Next {
    if let Some(open) = &progress.open {
        return Next::Ask(open.call.purpose);
    }
    if progress.unfinished.is_some() {
        return Next::Follow;
    }
    if let Some(failure) = &progress.failure {
        let purpose = failure.call.purpose;
        if failure.cause.kind == "too_long" && purpose != Purpose::Compact {
            return Next::Ask(Purpose::Compact);
        }
        if let Some(delay) = failure.retry_after.filter(|it| *it > RETRY_AFTER_MAX) {
            let (message, seconds) = (&failure.cause.message, delay.as_secs());
            let message = format!(
                "the provider asks to wait for {seconds} s, which is longer than a run waits (24 h): {message}"
            );
            let kind = failure.cause.kind.clone();
            return Next::Fail(TaskError::of_kind(kind, message).permanent());
        }
        if failure.cause.retryable && failure.in_a_row < MODEL_TRIES {
            return Next::Ask(purpose);
        }
        return Next::Fail(TaskError::from_cause(&failure.cause).permanent());
    }
    if !progress.opened {
        return Next::Open;
    }
    if spec.plan && !progress.planned {
        return Next::Ask(Purpose::Plan);
    }
    match context.last() {
        Some(answer) if answer.role == Role::Assistant => {
            after_answer(spec, progress, answer, steered)
        }
        Some(_) | None => before_turn(spec, progress, context),
    }
}

fn after_answer(spec: &AgentSpec, progress: &Progress, answer: &Message, steered: bool) -> Next {
    let mut calls = answer.tool_calls().peekable();
    if calls.peek().is_some() {
        let done = calls.all(|call| progress.outcomes.contains_key(&call.call));
        return if done { Next::Report } else { Next::Call };
    }
    if steered {
        return Next::Ask(Purpose::Turn);
    }
    let output = match output::of(spec, answer) {
        Ok(output) => output,
        Err(misses) => {
            let again = progress.answered.map(|call| call.purpose) == Some(Purpose::Repair);
            return if again {
                let message =
                    format!("the answer misses its schema, also when asked again: {misses}");
                Next::Fail(TaskError::of_kind("schema", message).permanent())
            } else {
                Next::Repair(misses)
            };
        }
    };
    if spec.verify.is_empty() {
        return Next::Complete(output);
    }
    match (progress.answer_is_checked, progress.verdict()) {
        (false, _) => Next::Verify,
        (true, Some(Verdict::Failed)) => Next::Fail(crate::verify::failure(progress)),
        (true, _) => Next::Complete(output),
    }
}

fn before_turn(spec: &AgentSpec, progress: &Progress, context: &Context) -> Next {
    let turns_max = spec.turns_max();
    if progress.turns - progress.turns_before >= turns_max && progress.turn_is_over {
        let message = format!("no answer after {turns_max} turns (`max_turns`)");
        return Next::Fail(TaskError::of_kind("max_turns", message).permanent());
    }
    if let Some((calls, times)) = progress.repeats() {
        let what = match calls {
            1 => "the same call with the same result".to_owned(),
            calls => format!("the same {calls} calls by turns with the same results"),
        };
        let message = format!("the model makes {what}, {times} times in a row");
        return Next::Fail(TaskError::of_kind("loop", message).permanent());
    }
    let is_long = spec
        .context
        .as_ref()
        .is_some_and(|context| progress.context_tokens > context.compact_at);
    if is_long && context.messages().len() > 1 {
        return Next::Ask(Purpose::Compact);
    }
    Next::Ask(Purpose::Turn)
}
