//! Examples of what is sent, for whoever reads the description and for tools that try them.

use logreel::Digest;
use serde_json::{Map, Value, json};

/// Bytes to put as a blob.
const BLOB: &str = "Logreel keeps what agents do.";

/// A run that the caller drives, by an id of the caller's own: later requests can name it.
const OWN_RUN: &str = "run_0197b0a0-7c00-7000-8000-00000000002a";

/// At most so many specs are examples; all of them are listed.
const SPECS_MAX: usize = 8;

/// An example of a parameter, when one can be given for any server.
pub(super) fn of_parameter(name: &str) -> Option<Value> {
    Some(match name {
        "id" | "other" => json!("@last"),
        "run" => json!(OWN_RUN),
        "session" => json!("support-42"),
        "name" => json!("go"),
        "digest" => json!(Digest::of(BLOB.as_bytes())),
        _ => return None,
    })
}

/// Examples of an operation's body, by what they are of.
pub(super) fn of_body(operation: &str) -> Map<String, Value> {
    let examples: Vec<(&str, Value)> = match operation {
        "startRun" => vec![
            (
                "driven by the caller",
                json!({
                    "spec": "importer", "input": {"file": "orders.csv"}, "driver": "external",
                    "id": OWN_RUN,
                }),
            ),
            (
                "driven by the caller, in a session",
                json!({"spec": "importer", "session": "support-42", "driver": "external"}),
            ),
        ],
        "cancelRun" | "cancelSession" => {
            vec![("with a reason", json!({"reason": "no longer needed"}))]
        }
        "pauseRun" => vec![("with a reason", json!({"reason": "until tomorrow"}))],
        "resumeRun" => vec![
            ("as it is", json!({})),
            (
                "with more to spend",
                json!({"add_budget": {"tokens": 50_000}}),
            ),
        ],
        "answerRun" => vec![
            ("yes", json!({"approve": true})),
            ("no", json!({"deny": true, "reason": "not on a Friday"})),
        ],
        "resolveCall" => vec![
            ("it was not done", json!({"call": "publish", "retry": true})),
            (
                "it was done",
                json!({"call": "publish", "returned": {"url": "https://example.org/1"}}),
            ),
        ],
        "sayToRun" => vec![("a hint", json!({"text": "Look at the tests first."}))],
        "signalRun" => vec![("with a value", json!({"value": {"paid": true}}))],
        "retryRun" => vec![
            ("as it was", json!({})),
            ("only asked about", json!({"dry_run": true})),
        ],
        "forkRun" => vec![
            ("from its beginning", json!({"at": 1})),
            ("from its last event", json!({"at": "last"})),
            ("only asked about", json!({"at": 1, "dry_run": true})),
        ],
        "appendEvents" => vec![(
            "a step and a note",
            json!({
                "epoch": 1,
                "expect": {"seq": 1, "digest": Digest::of(BLOB.as_bytes())},
                "append_id": "0b7c6a52",
                "events": [
                    {"kind": "step.finished", "body": {"step": "read", "output": 3}},
                    {"kind": "custom", "body": {"name": "note", "data": "three orders"}},
                ],
            }),
        )],
        "runForAgUi" => vec![(
            "a message",
            json!({
                "threadId": "support-43", "runId": "1",
                "messages": [{"id": "1", "role": "user", "content": "Good morning"}],
            }),
        )],
        "putBlob" => vec![("a text", json!(BLOB))],
        _ => Vec::new(),
    };
    let examples = examples.into_iter();
    examples
        .map(|(about, value)| {
            let name = about.replace(' ', "-").replace(',', "");
            (name, json!({"summary": about, "value": value}))
        })
        .collect()
}

/// Examples of starting what this server has.
pub(super) fn of_specs(names: &[String]) -> Map<String, Value> {
    let names = names.iter().take(SPECS_MAX);
    names
        .map(|name| {
            let value = json!({"spec": name});
            (
                format!("spec-{name}"),
                json!({"summary": name, "value": value}),
            )
        })
        .collect()
}
