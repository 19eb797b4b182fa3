//! What is said to a run: stop, go on, yes, no, here is what you wait for.

use axum::http::HeaderValue;
use logreel::core::Payload;
use logreel::core::event::{Budget, Resolution, WaitKind, WaitStarted};
use logreel::{Answer, CancelOutcome, ErrorKind, Json, RunId, Status, WaitId, tree};
use serde::{Deserialize, Deserializer};

use crate::call::Call;
use crate::operation::Answered;
use crate::{Problem, answer};

/// Where a message stands in the log.
pub(crate) const RECEIPT: &str = "logreel-receipt";
/// What to beware of.
pub(crate) const WARNING: &str = "logreel-warning";

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Reason {
    reason: Option<String>,
}

/// `null` that is said is not the same as nothing said.
pub(crate) fn said<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// A yes; nobody means anything by `false`.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Yes(bool);

impl<'de> Deserialize<'de> for Yes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match bool::deserialize(deserializer)? {
            true => Ok(Self(true)),
            false => Err(serde::de::Error::custom("expected true, or leave it out")),
        }
    }
}

/// `POST /v1/runs/{id}/cancel`
pub(crate) async fn cancel(call: Call) -> Answered {
    let Reason { reason } = call.json()?;
    let run = call.run().await?;
    stop(&call, &run, reason).await?;
    answer::run(&call.app, &run).await
}

/// Cancels a run; one that was cancelled before stays so.
pub(crate) async fn stop(call: &Call, run: &RunId, reason: Option<String>) -> Result<(), Problem> {
    let reason = reason.unwrap_or_else(|| format!("by {}", call.by()));
    let cancel = call.under_key(call.app.engine.cancel(run, reason))?;
    stopped(run, cancel.await?)
}

/// What came of a cancel; refused when the run had ended in another way.
pub(crate) fn stopped(run: &RunId, outcome: CancelOutcome) -> Result<(), Problem> {
    match outcome {
        CancelOutcome::Requested | CancelOutcome::AlreadyTerminal(Status::Cancelled) => Ok(()),
        CancelOutcome::AlreadyTerminal(status) => {
            let detail = format!("{run} has {status}; there is nothing to cancel");
            Err(Problem::new(ErrorKind::Terminal, detail))
        }
        CancelOutcome::NotFound => Err(logreel::store::Error::NotFound(*run).into()),
    }
}

/// `POST /v1/runs/{id}/pause`
pub(crate) async fn pause(call: Call) -> Answered {
    let Reason { reason } = call.json()?;
    let run = call.run().await?;
    let reason = reason.unwrap_or_else(|| format!("by {}", call.by()));
    call.under_key(call.app.engine.pause(&run, reason))?.await?;
    answer::run(&call.app, &run).await
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Resume {
    add_budget: Option<AddBudget>,
    wait: Option<WaitId>,
    accept_spec_change: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AddBudget {
    tokens: Option<u64>,
    usd: Option<f64>,
    wall_ms: Option<u64>,
    tool_calls: Option<u64>,
    children: Option<u64>,
}

impl AddBudget {
    pub(crate) fn budget(&self) -> Result<Budget, Problem> {
        let usd_micros = match self.usd.map(|usd| (usd * 1e6).round()) {
            None => None,
            Some(micros) if micros.is_finite() && (0.0..1e18).contains(&micros) => {
                Some(micros as u64)
            }
            Some(_) => return Err(Problem::invalid("`add_budget.usd` must be dollars above 0")),
        };
        let budget = Budget {
            children: self.children,
            tokens: self.tokens,
            tool_calls: self.tool_calls,
            usd_micros,
            wall_ms: self.wall_ms,
        };
        let amounts = [
            budget.children,
            budget.tokens,
            budget.tool_calls,
            budget.usd_micros,
            budget.wall_ms,
        ];
        match amounts.contains(&Some(0)) {
            true => Err(Problem::invalid(
                "`add_budget` raises limits; an amount must be above 0",
            )),
            false => Ok(budget),
        }
    }
}

/// `POST /v1/runs/{id}/resume`
pub(crate) async fn resume(call: Call) -> Answered {
    let Resume {
        add_budget,
        wait,
        accept_spec_change,
    } = call.json()?;
    if wait.is_some() && add_budget.is_none() {
        let detail = "`wait` says what `add_budget` is for, which is missing";
        return Err(Problem::invalid(detail));
    }
    let run = call.run().await?;
    let engine = &call.app.engine;
    let raises = add_budget.is_some();
    if let Some(add) = add_budget {
        let add = add.budget()?;
        // First, so that a refusal leaves the limits as they were.
        let specs = &call.app.specs;
        specs.check_resume(&run, accept_spec_change).await?;
        let for_budget = |wait: &WaitStarted| wait.kind == WaitKind::Budget;
        // Of the two commands that this is, each has a name of its own.
        let key = call.idempotency_key()?.map(|key| format!("{key}:budget"));
        let mut raise = match wait {
            // Of this run, as in an answer.
            Some(wait) => engine.add_budget_for(&run, wait, add, call.by()),
            None => {
                let store = &**engine.store();
                let meant = tree::raised_by(store, run, key.as_deref(), for_budget).await?;
                engine.add_budget(&meant, add, call.by())
            }
        };
        if let Some(key) = key {
            raise = raise.request(key);
        }
        raise.await?;
    }
    let key = call.idempotency_key()?;
    let resumed = call.app.specs.resume(&run, accept_spec_change, key);
    match resumed.await {
        // The limit is raised; who drives the run already goes on by itself, or has ended it since.
        Err(problem)
            if raises && matches!(problem.kind, ErrorKind::Driven | ErrorKind::Terminal) => {}
        resumed => resumed?,
    }
    answer::run(&call.app, &run).await
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Given {
    wait: Option<WaitId>,
    approve: Yes,
    deny: Yes,
    #[serde(deserialize_with = "said")]
    value: Option<Json>,
    reason: Option<String>,
}

/// `POST /v1/runs/{id}/answer`
pub(crate) async fn answer(call: Call) -> Answered {
    let given: Given = call.required_json()?;
    let run = call.run().await?;
    let engine = &call.app.engine;
    let answer = match (given.approve, given.deny, given.value) {
        (Yes(true), Yes(true), _) => {
            return Err(Problem::invalid(
                "`approve` and `deny` contradict each other",
            ));
        }
        (Yes(false), Yes(false), None) => {
            return Err(Problem::invalid("say `approve`, `deny` or `value`"));
        }
        (Yes(true), _, value) => with(Answer::approve(), value),
        (_, Yes(true), value) => with(Answer::deny(), value),
        (_, _, Some(value)) => Answer::value(value),
    };
    let mut answer = answer.by(call.by());
    let meant = match given.wait {
        Some(wait) => {
            answer = answer.to(wait);
            run
        }
        None => {
            let answerable = |wait: &WaitStarted| wait.kind.is_answerable();
            meant(&call, run, answerable).await?
        }
    };
    if let Some(reason) = given.reason {
        answer = answer.because(reason);
    }
    call.under_key(engine.answer(&meant, answer))?.await?;
    crate::answer::run(&call.app, &run).await
}

/// The run itself, or the one of its children that such a thing is for; of a command that is sent again, the one
/// that it reached.
async fn meant(
    call: &Call,
    run: RunId,
    waits_for_it: impl Fn(&WaitStarted) -> bool,
) -> Result<RunId, Problem> {
    let (store, key) = (call.app.engine.store(), call.idempotency_key()?);
    Ok(tree::meant_by(&**store, run, key.as_deref(), waits_for_it).await?)
}

fn with(answer: Answer, value: Option<Json>) -> Answer {
    match value {
        Some(value) => answer.with(value),
        None => answer,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolve {
    call: String,
    #[serde(default, deserialize_with = "said")]
    returned: Option<Json>,
    failed: Option<String>,
    #[serde(default)]
    retry: Yes,
}

/// `POST /v1/runs/{id}/resolve`
pub(crate) async fn resolve(call: Call) -> Answered {
    let given: Resolve = call.required_json()?;
    let resolution = match (given.returned, given.failed, given.retry) {
        (Some(value), None, Yes(false)) => match Payload::of(value) {
            (value, None) => Resolution::Returned(value),
            (_, Some(_)) => {
                let detail = "`returned` is too large for a value said by hand (64 KiB)";
                return Err(Problem::new(ErrorKind::TooLarge, detail));
            }
        },
        (None, Some(why), Yes(false)) => Resolution::Failed(why),
        (None, None, Yes(true)) => Resolution::Retry,
        _ => {
            return Err(Problem::invalid(
                "say one of `returned`, `failed` and `retry`",
            ));
        }
    };
    let run = call.run().await?;
    let engine = &call.app.engine;
    let in_doubt = |wait: &WaitStarted| {
        let step = wait.step.as_ref().map(ToString::to_string);
        let name = step.or_else(|| wait.call.as_ref().map(ToString::to_string));
        wait.kind == WaitKind::InDoubt && name.is_none_or(|name| name == given.call)
    };
    let meant = meant(&call, run, in_doubt).await?;
    let again = matches!(resolution, Resolution::Retry);
    let resolve = engine.resolve(&meant, &*given.call, resolution, call.by());
    let resolved = call.under_key(resolve)?.await?;
    let mut response = answer::run(&call.app, &run).await?;
    if again && let Some(owner) = resolved.not_known_dead.first() {
        let warning = format!("{owner} is not known to be dead; it may still make the write");
        if let Ok(warning) = HeaderValue::from_str(&warning) {
            response.headers_mut().insert(WARNING, warning);
        }
    }
    Ok(response)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    text: String,
    request_id: Option<String>,
}

/// `POST /v1/runs/{id}/messages`
pub(crate) async fn message(call: Call) -> Answered {
    let Message { text, request_id } = call.required_json()?;
    if text.trim().is_empty() {
        return Err(Problem::invalid("`text` says nothing"));
    }
    let request_id = match request_id {
        Some(id) => Some(id),
        None => call.idempotency_key()?,
    };
    let run = call.run().await?;
    let engine = &call.app.engine;
    let mut say = engine.say(&run, text, Some(call.by()));
    if let Some(id) = request_id {
        say = say.request(id);
    }
    let seq = say.await?;
    let mut response = answer::run(&call.app, &run).await?;
    response
        .headers_mut()
        .insert(RECEIPT, HeaderValue::from(seq.0));
    Ok(response)
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Signal {
    #[serde(deserialize_with = "said")]
    value: Option<Json>,
}

/// `POST /v1/runs/{id}/signals/{name}`
pub(crate) async fn signal(call: Call) -> Answered {
    let Signal { value } = call.json()?;
    let value = value.unwrap_or_else(Json::null);
    let name = call.param("name").to_owned();
    let run = call.run().await?;
    let engine = &call.app.engine;
    let awaits =
        |wait: &WaitStarted| wait.kind == WaitKind::Signal && wait.name.as_deref() == Some(&*name);
    let meant = meant(&call, run, awaits).await?;
    call.under_key(engine.signal(&meant, &*name, &value))?
        .await?;
    answer::run(&call.app, &run).await
}
