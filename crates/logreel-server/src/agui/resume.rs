//! `resume` of an AG-UI client: what it says to the waits that it was told of.

use std::ops::ControlFlow;

use logreel::core::event::{Budget, Resolution, WaitKind, WaitStarted};
use logreel::core::{AppendId, Payload, RequestId};
use logreel::store::Error;
use logreel::{
    Answer, Body, Digest, ErrorKind, Event, Json, RunId, RunStore, Seq, Status, WaitId, tree,
};
use serde::Serialize;
use serde_json::Value;

use super::input::{ResumeEntry, ResumeStatus};
use super::waits;
use crate::Problem;
use crate::call::Call;
use crate::say;

/// What is done about one wait.
pub(crate) struct Act {
    run: RunId,
    wait: WaitId,
    what: What,
}

enum What {
    Answer(Answer),
    Resolve(String, Resolution),
    Raise(Budget),
    /// Drives it on.
    Resume,
    /// Someone will not give what it waits for.
    Cancel,
    /// It was done before, by this request or someone else.
    Nothing,
}

/// What the entries of a request mean; refused as a whole when one makes no sense.
pub(crate) async fn understood(
    call: &Call,
    root: &RunId,
    entries: &[ResumeEntry],
) -> Result<Vec<Act>, Problem> {
    let mut acts = Vec::new();
    for entry in entries {
        acts.push(act(call, root, entry).await?);
    }
    Ok(acts)
}

/// Says it to the run, and to those below it. The same again changes nothing.
pub(crate) async fn apply(call: &Call, root: &RunId, acts: Vec<Act>) -> Result<(), Problem> {
    let engine = &call.app.engine;
    for Act { run, wait, what } in acts {
        match what {
            What::Answer(answer) => {
                engine.answer(&run, answer.to(wait).by(call.by())).await?;
            }
            What::Resolve(of, resolution) => {
                let request = request(wait, &(&of, &resolution))?;
                let resolve = engine.resolve(&run, of, resolution, call.by());
                resolve.request(request).await?;
            }
            What::Raise(budget) => {
                // First, so that a refusal leaves the limits as they were.
                call.app.specs.check_resume(&run, false).await?;
                let request = request(wait, &budget)?;
                let raise = engine.add_budget_for(&run, wait, budget, call.by());
                raise.request(request).await?;
                go_on(call, &run).await?;
            }
            What::Resume => go_on(call, &run).await?,
            What::Cancel => {
                let reason = format!("by {}: it will not get what it waits for", call.by());
                // Nothing else is left to be said to it.
                return say::stop(call, root, Some(reason)).await;
            }
            What::Nothing => {}
        }
    }
    Ok(())
}

/// What a request is known by when it comes again: what it says to which wait.
fn request(wait: WaitId, says: &impl Serialize) -> Result<String, Problem> {
    let says = Json::of(says).map_err(|error| Problem::invalid(error.to_string()))?;
    let says = Digest::of(says.text().as_bytes());
    Ok(format!("agui:{wait}:{}", says.hex()))
}

/// Drives a run on. Whoever was quicker, this or another process, did what was asked for; what came of it is
/// told.
async fn go_on(call: &Call, run: &RunId) -> Result<(), Problem> {
    match call.app.specs.resume(run, false, None).await {
        Err(problem) if matches!(problem.kind(), ErrorKind::Driven | ErrorKind::Terminal) => Ok(()),
        gone_on => gone_on,
    }
}

async fn act(call: &Call, root: &RunId, entry: &ResumeEntry) -> Result<Act, Problem> {
    let store = &**call.app.engine.store();
    let id = &entry.interrupt_id;
    let unknown = || Problem::not_found(format!("{root} has no wait {id:?}"));
    let (run, wait) = waits::parse(root, id).ok_or_else(unknown)?;
    if run != *root && tree::root(store, run).await? != *root {
        return Err(unknown());
    }
    let row = store.entry(&run).await?.row;
    let open = row.facts.waits.iter().find(|open| open.wait.wait == wait);
    let what = match open {
        Some(open) => said(&open.wait, entry)?,
        None => {
            let was = started(store, &run, wait).await?.ok_or_else(unknown)?;
            too_late(store, root, &run, &was, entry).await?
        }
    };
    Ok(Act { run, wait, what })
}

/// What is left to be done about a wait that is over: nothing when this was said to it, also by someone else. Whoever
/// says something else is told that it came too late.
async fn too_late(
    store: &dyn RunStore,
    root: &RunId,
    run: &RunId,
    was: &WaitStarted,
    entry: &ResumeEntry,
) -> Result<What, Problem> {
    let gives_up = entry.status == ResumeStatus::Cancelled;
    if gives_up && store.entry(root).await?.row.status() == Status::Cancelled {
        return Ok(What::Nothing);
    }
    let wait = was.wait;
    let what = said(was, entry)?;
    let is_done = match &what {
        // The same answer gets the same receipt, another is a conflict.
        What::Answer(_) => return Ok(what),
        What::Resume | What::Nothing => true,
        What::Cancel => false,
        What::Raise(budget) => has_landed(store, run, &request(wait, budget)?).await?,
        What::Resolve(of, resolution) => {
            let request = request(wait, &(of, resolution))?;
            has_landed(store, run, &request).await?
                || resolved(store, run, was).await?.as_ref() == Some(resolution)
        }
    };
    match is_done {
        true => Ok(What::Nothing),
        false => {
            let kind = was.kind.as_str();
            let detail = format!("the wait {wait} ({kind}) of {run} is over, and not by this");
            let hint = "ask without `resume` to be told how the run stands";
            Err(Problem::new(ErrorKind::Conflict, detail).hint(hint))
        }
    }
}

/// Whether a request of this name was done. The name says what it asked for.
async fn has_landed(store: &dyn RunStore, run: &RunId, request: &str) -> Result<bool, Problem> {
    let name = RequestId::new(request).map_err(|error| Problem::invalid(error.to_string()))?;
    let id = AppendId::request(&name, &Digest::of(b""));
    match store.landed(run, &id).await {
        Ok(landed) => Ok(landed.is_some()),
        Err(Error::RequestIdTaken(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// What ended a wait for what became of a write.
async fn resolved(
    store: &dyn RunStore,
    run: &RunId,
    was: &WaitStarted,
) -> Result<Option<Resolution>, Problem> {
    let mut last = None;
    let mut each = |event: Event| {
        match event.body {
            Body::StepResolved(it) if Some(&it.step) == was.step.as_ref() => {
                last = Some(it.resolution);
            }
            Body::ToolResolved(it) if Some(&it.call) == was.call.as_ref() => {
                last = Some(it.resolution);
            }
            Body::WaitEnded(ended) if ended.wait == was.wait => return ControlFlow::Break(()),
            _ => {}
        }
        ControlFlow::Continue(())
    };
    store.scan(run, Seq::FIRST, &mut each).await?;
    Ok(last)
}

/// A wait that is over.
async fn started(
    store: &dyn RunStore,
    run: &RunId,
    wait: WaitId,
) -> Result<Option<WaitStarted>, Problem> {
    let mut found = None;
    let mut each = |event: Event| match event.body {
        Body::WaitStarted(started) if started.wait == wait => {
            found = Some(started);
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    };
    store.scan(run, Seq::FIRST, &mut each).await?;
    Ok(found)
}

fn said(wait: &WaitStarted, entry: &ResumeEntry) -> Result<What, Problem> {
    let (id, payload) = (&entry.interrupt_id, &entry.payload);
    if entry.status == ResumeStatus::Cancelled {
        return Ok(match wait.kind {
            WaitKind::Approval => What::Answer(Answer::deny()),
            _ => What::Cancel,
        });
    }
    let refused = |expected: &str| {
        let detail = format!("`payload` for {id:?} is {payload}; expected {expected}");
        Problem::invalid(detail)
    };
    match wait.kind {
        WaitKind::Approval => approval(payload)
            .map(What::Answer)
            .ok_or_else(|| refused("{\"approved\": true} or {\"approved\": false}")),
        WaitKind::Signal => {
            let value = Json::from(payload.clone());
            Ok(What::Answer(Answer::value(value)))
        }
        WaitKind::InDoubt => {
            let step = wait.step.as_ref().map(ToString::to_string);
            let of = step.or_else(|| wait.call.as_ref().map(ToString::to_string));
            let resolution = resolution(payload);
            let expected = "one of {\"returned\": …}, {\"failed\": …} and {\"retry\": true}";
            match (of, resolution) {
                (Some(of), Some(resolution)) => Ok(What::Resolve(of, resolution)),
                _ => Err(refused(expected)),
            }
        }
        WaitKind::Budget => {
            let add: say::AddBudget = serde_json::from_value(payload.clone())
                .map_err(|_| refused("what to add, such as {\"tokens\": 50000}"))?;
            Ok(What::Raise(add.budget()?))
        }
        WaitKind::Paused | WaitKind::CrashLoop | WaitKind::Retry => Ok(What::Resume),
        WaitKind::Timer | WaitKind::Child => {
            let detail = format!("{id:?} is nothing that someone can answer");
            Err(Problem::new(ErrorKind::NotApplicable, detail))
        }
    }
}

/// Yes or no, in the shapes that clients use. Nothing is never a yes.
fn approval(payload: &Value) -> Option<Answer> {
    let yes = match payload {
        Value::Bool(yes) => *yes,
        Value::String(word) => match &*word.to_ascii_lowercase() {
            "approve" | "approved" | "yes" => true,
            "deny" | "denied" | "no" => false,
            _ => return None,
        },
        Value::Object(fields) => {
            let said = |name: &str| fields.get(name).and_then(Value::as_bool);
            let yes = said("approved").or_else(|| said("approve"));
            match (yes, said("denied").or_else(|| said("deny"))) {
                (Some(yes), None) => yes,
                (None, Some(no)) => !no,
                _ => return None,
            }
        }
        _ => return None,
    };
    let mut answer = match yes {
        true => Answer::approve(),
        false => Answer::deny(),
    };
    if let Some(value) = payload.get("value") {
        answer = answer.with(Json::from(value.clone()));
    }
    if let Some(reason) = payload.get("reason").and_then(Value::as_str) {
        answer = answer.because(reason);
    }
    Some(answer)
}

fn resolution(payload: &Value) -> Option<Resolution> {
    let fields = payload.as_object().filter(|fields| fields.len() == 1)?;
    match fields.iter().next()? {
        (name, value) if name == "returned" => {
            let (value, blob) = Payload::of(Json::from(value.clone()));
            // One that is too large is not said by hand.
            blob.is_none().then_some(Resolution::Returned(value))
        }
        (name, Value::String(why)) if name == "failed" => Some(Resolution::Failed(why.clone())),
        (name, Value::Bool(true)) if name == "retry" => Some(Resolution::Retry),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_yes_is_said_and_never_guessed() {
        for yes in [
            json!(true),
            json!({"approved": true}),
            json!("approve"),
            json!({"deny": false}),
        ] {
            assert_eq!(approval(&yes), Some(Answer::approve()), "{yes}");
        }
        for no in [
            json!(false),
            json!({"approve": false}),
            json!("no"),
            json!({"denied": true}),
        ] {
            assert_eq!(approval(&no), Some(Answer::deny()), "{no}");
        }
        for nothing in [
            json!(null),
            json!({}),
            json!("maybe"),
            json!(1),
            json!({"value": 1}),
            json!({"approved": true, "deny": true}),
            json!({"approved": "true"}),
        ] {
            assert_eq!(approval(&nothing), None, "{nothing}");
        }
        let more = json!({"approved": true, "value": 3, "reason": "fine"});
        let expected = Answer::approve().with(Json::from(json!(3))).because("fine");
        assert_eq!(approval(&more), Some(expected));
    }
}
