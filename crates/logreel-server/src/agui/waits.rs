//! What runs wait for, as AG-UI's interrupts.

use logreel::core::event::{Relation, WaitKind, WaitStarted};
use logreel::core::row::OpenWait;
use logreel::{Entry, RunId, RunStore, WaitId, tree};
use serde_json::{Value, json};

use super::sent::Interrupt;
use super::translate::Translator;
use crate::Problem;

/// The waits of a run and of those below it that only a person can end.
pub(crate) async fn interrupts(
    store: &dyn RunStore,
    run: &RunId,
    told: &Translator,
) -> Result<Vec<Interrupt>, Problem> {
    let tree = tree::of(store, run).await?;
    let open = tree.iter().flat_map(|entry| {
        let waits = entry.row.facts.waits.iter();
        waits.map(move |open| (entry, open))
    });
    let open = open.filter(|(_, open)| open.wait.needs_person());
    Ok(open
        .map(|(entry, open)| interrupt(run, entry, open, told))
        .collect())
}

/// A wait of the run itself goes by its own name, one of a run below it by both.
pub(crate) fn id(root: &RunId, run: &RunId, wait: WaitId) -> String {
    match root == run {
        true => wait.to_string(),
        false => format!("{run}/{wait}"),
    }
}

/// Whose wait is meant by such an id.
pub(crate) fn parse(root: &RunId, id: &str) -> Option<(RunId, WaitId)> {
    match id.split_once('/') {
        None => Some((*root, id.parse().ok()?)),
        Some((run, wait)) => Some((run.parse().ok()?, wait.parse().ok()?)),
    }
}

/// The run that such an id, or that of a message, begins with.
pub(crate) fn run(id: &str) -> Option<RunId> {
    id.split_once('/')?.0.parse().ok()
}

fn interrupt(root: &RunId, entry: &Entry, open: &OpenWait, told: &Translator) -> Interrupt {
    let (run, wait) = (entry.row.run, &open.wait);
    let call = wait.call.as_ref().filter(|_| run == *root);
    let parent = entry.row.facts.parent.as_ref();
    let is_told = parent.is_some_and(|it| it.run == *root && it.relation == Relation::Child);
    Interrupt {
        id: id(root, &run, wait.wait),
        subagent_run_id: is_told.then(|| run.to_string()),
        reason: wait.kind.as_str(),
        message: message(wait),
        tool_call_id: call.and_then(|call| told.told_call(call)),
        response_schema: schema(wait.kind),
        expires_at: wait.deadline.map(|deadline| deadline.to_string()),
        metadata: json!({"logreel": {
            "run": run, "wait": wait.wait, "kind": wait.kind.as_str(), "name": wait.name,
            "step": wait.step.as_ref().map(ToString::to_string), "call": wait.call,
            "tool": wait.tool,
            "arguments": wait.arguments.as_ref().map(|it| it.to_json().to_value()),
        }}),
    }
}

fn message(wait: &WaitStarted) -> String {
    if let Some(prompt) = &wait.prompt {
        return prompt.clone();
    }
    let name = wait.name.as_deref();
    match (wait.kind, &wait.tool) {
        (WaitKind::Approval, Some(tool)) => format!("May {tool} be called?"),
        (WaitKind::Approval, None) => "Yes or no?".to_owned(),
        (WaitKind::Signal, _) => format!("It waits for {}", name.unwrap_or("a signal")),
        (WaitKind::Paused, _) => match name {
            Some(why) => format!("It is paused: {why}"),
            None => "It is paused".to_owned(),
        },
        (WaitKind::InDoubt, _) => "Nobody knows whether a write happened".to_owned(),
        (WaitKind::Budget, _) => "A limit is reached".to_owned(),
        (WaitKind::CrashLoop, _) => "Its drivers keep dying".to_owned(),
        (WaitKind::Timer | WaitKind::Retry | WaitKind::Child, _) => {
            format!("It waits for {}", name.unwrap_or(wait.kind.as_str()))
        }
    }
}

/// What an answer looks like.
fn schema(kind: WaitKind) -> Option<Value> {
    let object = |properties: Value, required: &[&str]| {
        Some(json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        }))
    };
    let count = json!({"type": "integer", "minimum": 1});
    match kind {
        WaitKind::Approval => object(
            json!({
                "approved": {"type": "boolean"}, "value": {}, "reason": {"type": "string"},
            }),
            &["approved"],
        ),
        WaitKind::InDoubt => object(
            json!({
                "returned": {}, "failed": {"type": "string"}, "retry": {"const": true},
            }),
            &[],
        ),
        WaitKind::Budget => object(
            json!({
                "tokens": count, "usd": {"type": "number"}, "wall_ms": count,
                "tool_calls": count, "children": count,
            }),
            &[],
        ),
        // A signal brings any value; the others need none.
        WaitKind::Signal
        | WaitKind::Paused
        | WaitKind::CrashLoop
        | WaitKind::Timer
        | WaitKind::Retry
        | WaitKind::Child => None,
    }
}
