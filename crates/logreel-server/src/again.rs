//! New runs out of others: retry and fork, and what they would write outside a second time.

use std::collections::BTreeMap;

use logreel::core::Payload;
use logreel::{ForkPoint, GoneChild, Json, Outlook, RunId, Seq, Write, WriteOutcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::Call;
use crate::operation::Answered;
use crate::say::said;
use crate::{Problem, answer};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Retry {
    from: Option<String>,
    #[serde(deserialize_with = "said")]
    input: Option<Json>,
    model: Option<String>,
    dry_run: bool,
}

/// `POST /v1/runs/{id}/retry`
pub(crate) async fn retry(call: Call) -> Answered {
    let given: Retry = call.json()?;
    let run = call.run().await?;
    let engine = &call.app.engine;
    let mut retry = engine.retry(&run);
    if let Some(from) = given.from {
        retry = retry.from(from);
    }
    if let Some(input) = given.input {
        retry = retry.input(&input);
    }
    if let Some(model) = given.model {
        retry = retry.under_agent(call.app.specs.on_model(&run, &model).await?);
    }
    if let Some(key) = call.idempotency_key()? {
        retry = retry.request(key);
    }
    if engine.is_worker() {
        retry = retry.queue();
    }
    if given.dry_run {
        return answer::json(&View::of(&retry.look().await?));
    }
    let made = retry.await?;
    answer::made(&call.app, &made.id()).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fork {
    at: Value,
    #[serde(default, deserialize_with = "said")]
    input: Option<Json>,
    model: Option<String>,
    message: Option<String>,
    #[serde(default)]
    results: BTreeMap<String, Json>,
    #[serde(default)]
    dry_run: bool,
}

/// `POST /v1/runs/{id}/fork`
pub(crate) async fn fork(call: Call) -> Answered {
    let given: Fork = call.required_json()?;
    let at = match &given.at {
        Value::String(text) => text.parse(),
        other => other.to_string().parse(),
    };
    let at: ForkPoint = at.map_err(|error| Problem::invalid(format!("`at`: {error}")))?;
    let run = call.run().await?;
    let engine = &call.app.engine;
    let mut fork = engine.fork(&run, at).by(call.by());
    if let Some(input) = given.input {
        fork = fork.input(&input);
    }
    if let Some(model) = given.model {
        let spec = call.app.specs.on_model(&run, &model).await?;
        fork = fork.under_agent(spec).model(model);
    }
    if let Some(text) = given.message {
        fork = fork.message(text);
    }
    for (of, result) in &given.results {
        fork = fork.result(of, result);
    }
    if let Some(key) = call.idempotency_key()? {
        fork = fork.request(key);
    }
    if engine.is_worker() {
        fork = fork.queue();
    }
    if given.dry_run {
        return answer::json(&View::of(&fork.look().await?));
    }
    let made = fork.await?;
    answer::made(&call.app, &made.id()).await
}

/// What the new run would write again, as [`Outlook`] has it.
#[derive(Serialize)]
struct View<'o> {
    at: Seq,
    harmless: bool,
    again: Vec<WriteView<'o>>,
    may_have_happened: Vec<WriteView<'o>>,
    forgotten: Vec<WriteView<'o>>,
    gone: Vec<GoneView>,
    /// How many are not told.
    left_out: usize,
}

/// Writes that are told of each sort, and bytes of what each was called with.
const TOLD_MAX: usize = 1000;
const ARGUMENTS_BYTES_MAX: u64 = 4096;

#[derive(Serialize)]
struct WriteView<'o> {
    run: RunId,
    id: &'o str,
    tool: Option<&'o str>,
    /// Longer ones are in the event.
    arguments: Option<&'o Payload>,
    seq: Seq,
    outcome: &'static str,
    ended: Option<Seq>,
}

#[derive(Serialize)]
struct GoneView {
    run: RunId,
    step: String,
    erased: bool,
}

impl<'o> View<'o> {
    fn of(outlook: &'o Outlook) -> Self {
        let mut left_out = outlook.gone.len().saturating_sub(TOLD_MAX);
        let mut told = |writes: &'o [Write]| -> Vec<WriteView<'o>> {
            left_out += writes.len().saturating_sub(TOLD_MAX);
            writes.iter().take(TOLD_MAX).map(WriteView::of).collect()
        };
        let again = told(&outlook.again);
        let may_have_happened = told(&outlook.may_have_happened);
        let forgotten = told(&outlook.forgotten);
        Self {
            at: outlook.at,
            harmless: outlook.is_harmless(),
            again,
            may_have_happened,
            forgotten,
            gone: outlook
                .gone
                .iter()
                .take(TOLD_MAX)
                .map(GoneView::of)
                .collect(),
            left_out,
        }
    }
}

impl<'o> WriteView<'o> {
    fn of(write: &'o Write) -> Self {
        let (outcome, ended) = match write.outcome {
            WriteOutcome::Finished(seq) => ("finished", Some(seq)),
            WriteOutcome::Failed(seq) => ("failed", Some(seq)),
            WriteOutcome::Unknown => ("unknown", None),
        };
        let is_short = |it: &&Payload| match it {
            Payload::Inline(json) => json.text().len() as u64 <= ARGUMENTS_BYTES_MAX,
            // It says how long it is, and where.
            Payload::Blob(_) => true,
        };
        Self {
            run: write.run,
            id: &write.id,
            tool: write.tool.as_deref(),
            arguments: write.arguments.as_ref().filter(is_short),
            seq: write.seq,
            outcome,
            ended,
        }
    }
}

impl GoneView {
    fn of(gone: &GoneChild) -> Self {
        Self {
            run: gone.child,
            step: gone.step.to_string(),
            erased: gone.erased,
        }
    }
}
