//! The shapes that travel. What is answered is closed; a test holds every answer against them.

use logreel::core::event::WaitKind;
use logreel::{ErrorKind, Status};
use serde_json::{Map, Value, json};

use super::reference;

const RUN_ID: &str = "^run_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
const TIME: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z$";

/// Every schema by its name.
pub(super) fn all() -> Value {
    let mut all = Map::new();
    all.extend(words());
    all.extend(of_runs());
    all.extend(of_requests());
    all.extend(of_copies());
    all.extend(of_diffs());
    all.extend(of_agui());
    Value::Object(all)
}

type Named = Vec<(String, Value)>;

fn named<const N: usize>(schemas: [(&str, Value); N]) -> Named {
    let schemas = schemas.into_iter();
    schemas
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}

/// An object that has these and nothing else.
fn closed(properties: Value) -> Value {
    let names: Vec<String> = match &properties {
        Value::Object(fields) => fields.keys().cloned().collect(),
        _ => Vec::new(),
    };
    json!({
        "type": "object", "properties": properties, "required": names,
        "additionalProperties": false,
    })
}

/// [`closed`], with some that it may lack.
fn closed_but_for(properties: Value, optional: Value) -> Value {
    let mut schema = closed(properties);
    for (name, property) in optional.as_object().into_iter().flatten() {
        schema["properties"][name] = property.clone();
    }
    schema
}

/// What a request says: nothing else than these, and those of `required` at least.
fn said(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

/// [`said`], and which of it goes together.
fn with(mut schema: Value, keyword: &str, which: Value) -> Value {
    schema[keyword] = which;
    schema
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn or_null(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn page(items: &str, next: Value) -> Value {
    closed(json!({
        "items": list(reference(items)), "next": next, "has_more": {"type": "boolean"},
    }))
}

fn text() -> Value {
    json!({"type": "string"})
}

fn text_or_null() -> Value {
    json!({"type": ["string", "null"]})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn count_or_null() -> Value {
    json!({"type": ["integer", "null"], "minimum": 0})
}

fn yes_or_no() -> Value {
    json!({"type": "boolean"})
}

/// What users, models and tools said.
fn anything() -> Value {
    json!({})
}

fn words() -> Named {
    let kinds: Vec<&str> = ErrorKind::ALL.map(ErrorKind::as_str).to_vec();
    let statuses: Vec<&str> = Status::ALL.map(Status::as_str).to_vec();
    let waits = [
        WaitKind::Approval,
        WaitKind::Signal,
        WaitKind::Timer,
        WaitKind::Retry,
        WaitKind::Child,
        WaitKind::Paused,
        WaitKind::InDoubt,
        WaitKind::Budget,
        WaitKind::CrashLoop,
    ];
    named([
        ("Anything", anything()),
        ("Text", text()),
        // What tools hold against each event of a stream, as the browser hands it out.
        (
            "StreamEvent",
            json!({
                "type": "object",
                "properties": {"id": text(), "event": text(), "data": text()},
                "additionalProperties": false,
            }),
        ),
        (
            "Bytes",
            json!({"type": "string", "contentEncoding": "binary"}),
        ),
        ("RunId", json!({"type": "string", "pattern": RUN_ID})),
        (
            "Digest",
            json!({"type": "string", "pattern": "^blake3:[0-9a-f]{64}$"}),
        ),
        (
            "Time",
            json!({"type": "string", "pattern": TIME, "format": "date-time"}),
        ),
        ("Status", json!({"enum": statuses})),
        ("WaitKind", json!({"enum": waits.map(WaitKind::as_str)})),
        ("Effect", json!({"enum": ["read", "idempotent", "write"]})),
        (
            "Verdict",
            json!({"enum": ["passed", "failed", "needs_review", "skipped"]}),
        ),
        (
            "Problem",
            // The last three tell a client that drives a run where its log ends, and what it has not seen.
            closed_but_for(
                json!({
                    "type": text(), "title": text(), "status": count(), "kind": {"enum": kinds},
                    "detail": text(), "hint": text_or_null(),
                }),
                json!({
                    "head": reference("Head"), "events": list(reference("Event")),
                    "has_more": yes_or_no(),
                }),
            ),
        ),
        (
            "Head",
            closed(json!({"seq": count(), "digest": reference("Digest")})),
        ),
        (
            "Health",
            closed(json!({
                "status": {"enum": ["ok", "unavailable"]},
                "store": {"enum": ["reachable", "unreachable"]},
                "writer": {"enum": ["alive", "stuck"]},
                "version": text(), "driving": count(),
            })),
        ),
        (
            "Spec",
            closed(json!({
                "name": text(), "kind": {"enum": ["agent", "workflow", "task", null]},
                "spec_digest": or_null(reference("Digest")), "error": text_or_null(),
            })),
        ),
        ("SpecPage", page("Spec", json!({"type": "null"}))),
        (
            "Session",
            closed(json!({
                "session": text(), "runs": count(), "active": or_null(reference("RunId")),
                "last_created_at": or_null(reference("Time")), "closed": yes_or_no(),
            })),
        ),
        ("SessionPage", page("Session", text_or_null())),
    ])
}

fn of_runs() -> Named {
    let time_or_null = || or_null(reference("Time"));
    let digest_or_null = || or_null(reference("Digest"));
    let money_or_null = json!({"type": ["number", "null"], "minimum": 0});
    let cause = || or_null(reference("Cause"));
    let run = json!({
        "id": reference("RunId"),
        "session": text_or_null(),
        "kind": {"enum": ["agent", "workflow", "task", "external", "record"]},
        "agent": text(),
        "status": reference("Status"),
        "spec_digest": reference("Digest"),
        "git": or_null(closed(json!({
            "branch": text_or_null(), "commit": text(), "dirty": yes_or_no(),
        }))),
        "dir": text_or_null(),
        "input": anything(),
        "output": anything(),
        "error": cause(),
        "created_at": reference("Time"),
        "updated_at": reference("Time"),
        "finished_at": time_or_null(),
        "event_count": count(),
        "head_digest": reference("Digest"),
        "final_state_digest": digest_or_null(),
        "verification": or_null(closed(json!({
            "checks": list(closed(json!({
                "message": text_or_null(), "name": text(), "required": yes_or_no(),
                "verdict": reference("Verdict"),
            }))),
            "verdict": reference("Verdict"),
        }))),
        "labels": {"type": "object", "additionalProperties": text()},
        "parent": or_null(closed(json!({
            "relation": {"enum": ["child", "fork", "retry"]}, "run": reference("RunId"),
            "seq": count(),
        }))),
        "usage": closed(json!({
            "input_tokens": count(), "output_tokens": count(), "cache_read_tokens": count(),
            "cache_write_tokens": count(), "reasoning_tokens": count(),
            "usd": money_or_null, "model_calls": count(), "tool_calls": count(),
        })),
        "state": anything(),
        "reason": text_or_null(),
        "erased": yes_or_no(),
        "read_only": yes_or_no(),
        "provenance": closed(json!({
            "host": text_or_null(), "logreel": text_or_null(), "models": list(text()),
            "tools": list(text()),
        })),
        "budget": closed(json!({
            "tokens": count_or_null(), "usd": money_or_null, "wall_ms": count_or_null(),
            "tool_calls": count_or_null(), "children": count_or_null(),
            "used": reference("Used"), "set_aside": reference("Used"),
        })),
        "waiting": list(reference("Wait")),
        "active_tools": list(closed(json!({
            "call": text(), "name": text(), "since": reference("Time"),
        }))),
        "driver": or_null(closed(json!({
            "host": text(), "pid": count(), "since": reference("Time"),
        }))),
        "orphaned": yes_or_no(),
        "ready_at": time_or_null(),
        "durability": {"enum": ["full", "relaxed"]},
    });
    let mut with_steps = run.clone();
    with_steps["steps"] = list(reference("Step"));
    named([
        ("Run", closed(with_steps)),
        ("RunInList", closed(run)),
        (
            "RunAsAsked",
            json!({"anyOf": [reference("Run"), reference("RunInList")]}),
        ),
        ("RunPage", page("RunInList", text_or_null())),
        (
            "Cause",
            closed(json!({
                "kind": text(), "message": text(), "step": text_or_null(),
                "retryable": yes_or_no(),
            })),
        ),
        (
            "Used",
            closed(json!({
                "tokens": count(), "usd": {"type": "number"}, "wall_ms": count_or_null(),
                "tool_calls": count(), "children": count(),
            })),
        ),
        (
            "Wait",
            closed(json!({
                "id": {"type": "string", "pattern": "^w[0-9]+$"}, "kind": reference("WaitKind"),
                "step": text_or_null(), "call": text_or_null(), "name": text_or_null(),
                "prompt": text_or_null(), "tool": text_or_null(), "arguments": anything(),
                "since": reference("Time"), "deadline": time_or_null(),
                "on_deadline": {"enum": ["fail", "approve", "deny", "continue", null]},
            })),
        ),
        (
            "Step",
            closed(json!({
                "id": text(),
                "status": {"enum": [
                    "pending", "running", "waiting", "finished", "failed", "skipped", "in_doubt",
                ]},
                "attempts": count(), "effect": or_null(reference("Effect")),
                "started_at": time_or_null(), "finished_at": time_or_null(),
                "output": anything(), "error": cause(),
            })),
        ),
        (
            "Event",
            closed(json!({
                "run": reference("RunId"), "seq": count(), "at": reference("Time"),
                "caller_at": time_or_null(), "epoch": count(), "kind": text(),
                "late": yes_or_no(), "format": count(), "body": anything(),
                "body_digest": digest_or_null(), "digest": reference("Digest"),
                "origin": or_null(reference("RunId")),
            })),
        ),
        ("EventPage", page("Event", count())),
        (
            "Started",
            json!({"anyOf": [reference("Run"), reference("ExternalRun")]}),
        ),
        (
            "ExternalRun",
            closed(json!({
                "run": reference("RunInList"), "head": reference("Head"),
                "lease": or_null(closed(json!({
                    "epoch": count(), "secret": text(), "expires_at": reference("Time"),
                }))),
                "checkpoint": or_null(closed(json!({
                    "checkpoint": text(), "seq": count(), "step": text_or_null(),
                    "data": anything(),
                }))),
            })),
        ),
        (
            "Appended",
            closed(json!({
                "head": reference("Head"), "events": list(reference("Event")),
                "repeated": yes_or_no(),
            })),
        ),
        ("FeedPage", page("Event", text())),
    ])
}

/// A run to start: of a spec, or one that the caller drives and names as it likes.
fn new_run() -> Value {
    let new = |spec: Value, driver: &str, required: &[&str]| {
        said(
            json!({
                "spec": spec,
                "input": anything(),
                "session": {"type": ["string", "null"], "minLength": 1},
                "labels": {"type": "object", "additionalProperties": text()},
                "key": {"type": ["string", "null"], "minLength": 1},
                "id": or_null(reference("RunId")),
                "if_busy": {"enum": ["reject", "wait", "interrupt"]},
                "driver": {"const": driver},
            }),
            required,
        )
    };
    let name = || json!({"type": "string", "pattern": "\\S"});
    let inline = json!({"type": "object", "description": "A spec itself, where it is allowed"});
    let named = json!({"type": "object", "properties": {"name": name()}, "required": ["name"]});
    json!({"anyOf": [
        new(json!({"anyOf": [reference("SpecName"), inline]}), "worker", &["spec"]),
        new(json!({"anyOf": [name(), named]}), "external", &["spec", "driver"]),
    ]})
}

/// A fact as a client writes it: some that most clients have, and any other kind. What a kind's body is,
/// docs/log-format.md says.
fn new_event() -> Value {
    let fact = |kind: Value, body: Value| {
        let caller_at = or_null(reference("Time"));
        said(
            json!({"kind": kind, "body": body, "caller_at": caller_at}),
            &["kind", "body"],
        )
    };
    let some_text = || json!({"type": "string", "minLength": 1});
    let of = |kind: &str, body: Value, required: &[&str]| {
        fact(json!({"const": kind}), said(body, required))
    };
    json!({"anyOf": [
        of("custom", json!({"name": some_text(), "data": anything()}), &["name"]),
        of("step.started", json!({"step": some_text()}), &["step"]),
        of("step.finished", json!({"step": some_text(), "output": anything()}), &["step"]),
        of(
            "message.added",
            json!({"role": {"enum": ["user", "assistant", "system"]}, "content": some_text()}),
            &["role", "content"],
        ),
        fact(json!({"enum": logreel::core::Body::KINDS}), json!({"type": "object"})),
    ]})
}

fn of_requests() -> Named {
    let yes = json!({"const": true});
    let some_text = || json!({"type": "string", "minLength": 1});
    let some = || json!({"type": ["integer", "null"], "minimum": 1});
    named([
        (
            "SpecName",
            json!({"type": "string", "description": "The name of something that GET /v1/specs has"}),
        ),
        ("NewRun", new_run()),
        ("Reason", said(json!({"reason": text_or_null()}), &[])),
        (
            "NewEvents",
            said(
                json!({
                    "epoch": count(), "expect": reference("Head"),
                    "append_id": {"type": "string", "minLength": 1, "maxLength": 256},
                    "events": {
                        "type": "array", "minItems": 1, "items": reference("NewEvent"),
                    },
                }),
                &["epoch", "expect", "append_id", "events"],
            ),
        ),
        ("NewEvent", new_event()),
        (
            "Resume",
            said(
                json!({
                    "add_budget": or_null(said(
                        json!({
                            "tokens": some(), "wall_ms": some(), "tool_calls": some(),
                            "children": some(),
                            "usd": {"type": ["number", "null"], "exclusiveMinimum": 0},
                        }),
                        &[],
                    )),
                    "wait": {
                        "type": ["string", "null"], "pattern": "^w[1-9][0-9]*$",
                        "description": "The wait for budget that `add_budget` answers: when it is over, 409, and nothing is raised",
                    },
                    "accept_spec_change": yes_or_no(),
                }),
                &[],
            ),
        ),
        (
            "Answer",
            with(
                said(
                    json!({
                        "wait": {"type": ["string", "null"], "pattern": "^w[1-9][0-9]*$"},
                        "approve": yes, "deny": yes, "value": anything(),
                        "reason": text_or_null(),
                    }),
                    &[],
                ),
                "anyOf",
                json!([
                    {"required": ["approve"], "properties": {"deny": false}},
                    {"required": ["deny"], "properties": {"approve": false}},
                    {"required": ["value"], "properties": {"approve": false, "deny": false}},
                ]),
            ),
        ),
        (
            "Resolve",
            with(
                said(
                    json!({
                        "call": some_text(), "returned": anything(), "failed": text_or_null(),
                        "retry": yes,
                    }),
                    &["call"],
                ),
                "oneOf",
                json!([
                    {"required": ["returned"]},
                    {"required": ["failed"], "properties": {"failed": {"type": "string"}}},
                    {"required": ["retry"]},
                ]),
            ),
        ),
        (
            "Message",
            said(
                json!({
                    "text": some_text(),
                    "request_id": {"type": ["string", "null"], "minLength": 1, "maxLength": 256},
                }),
                &["text"],
            ),
        ),
        ("Signal", said(json!({"value": anything()}), &[])),
        (
            "Retry",
            said(
                json!({
                    "from": text_or_null(), "input": anything(), "model": text_or_null(),
                    "dry_run": dry_run(),
                }),
                &[],
            ),
        ),
        (
            "Fork",
            said(
                json!({
                    "at": {
                        "description": "The last event to share: its number, `step:ID` for the one before a step or call, or `last`",
                        "anyOf": [
                            {"type": "integer", "minimum": 1},
                            {"type": "string", "pattern": "^(last|step:.+|[1-9][0-9]*)$"},
                        ],
                    },
                    "input": anything(), "model": text_or_null(), "message": text_or_null(),
                    "results": {"type": "object", "additionalProperties": anything()},
                    "dry_run": dry_run(),
                }),
                &["at"],
            ),
        ),
    ])
}

fn dry_run() -> Value {
    json!({
        "type": "boolean",
        "description": "true makes nothing, and answers what would be written again",
    })
}

fn of_copies() -> Named {
    let writes = || list(reference("WrittenAgain"));
    named([
        (
            "Outlook",
            closed(json!({
                "at": count(), "harmless": yes_or_no(), "again": writes(),
                "may_have_happened": writes(), "forgotten": writes(),
                "gone": list(closed(json!({
                    "run": reference("RunId"), "step": text(), "erased": yes_or_no(),
                }))),
                "left_out": count(),
            })),
        ),
        (
            "WrittenAgain",
            closed(json!({
                "run": reference("RunId"), "id": text(), "tool": text_or_null(),
                "arguments": anything(), "seq": count(),
                "outcome": {"enum": ["finished", "failed", "unknown"]},
                "ended": count_or_null(),
            })),
        ),
    ])
}

fn of_diffs() -> Named {
    let changes = || list(json!({"enum": ["added", "removed", "moved", "changed"]}));
    let values = || list(reference("ValueChange"));
    let side = |name: &str| or_null(reference(name));
    let section = |items: &str| {
        closed(json!({
            "same": count(), "added": count(), "removed": count(), "moved": count(),
            "changed": count(), "items": list(reference(items)), "left_out": count(),
        }))
    };
    let two = |of: Value| closed(json!({"a": of, "b": of}));
    let figure = || two(json!({"type": ["number", "null"]}));
    named([
        (
            "Diff",
            closed(json!({
                "equal": yes_or_no(), "a": reference("DiffSide"), "b": reference("DiffSide"),
                "divergence": or_null(closed(json!({"a": side("Place"), "b": side("Place")}))),
                "spec": values(), "input": values(), "steps": section("StepChange"),
                "tool_calls": section("ToolChange"), "model_calls": section("ModelChange"),
                "events": section("OtherChange"), "state": values(), "verification": values(),
                "outcome": values(), "time_ms": two(count()),
                "usage": closed(json!({
                    "input_tokens": figure(), "output_tokens": figure(),
                    "cache_read_tokens": figure(), "cache_write_tokens": figure(),
                    "reasoning_tokens": figure(), "usd": figure(), "model_calls": figure(),
                    "tool_calls": figure(),
                })),
            })),
        ),
        (
            "DiffSide",
            closed(json!({
                "run": reference("RunId"), "agent": text(), "kind": text(),
                "status": reference("Status"), "spec_digest": reference("Digest"),
                "final_state_digest": or_null(reference("Digest")), "event_count": count(),
            })),
        ),
        (
            "Place",
            closed(json!({"seq": count(), "kind": text(), "what": text()})),
        ),
        (
            "ValueChange",
            closed(json!({
                "pointer": text(), "change": {"enum": ["added", "removed", "changed"]},
                "a": anything(), "b": anything(),
            })),
        ),
        (
            "StepChange",
            closed(json!({
                "id": text(), "changes": changes(), "a": side("StepSide"), "b": side("StepSide"),
            })),
        ),
        (
            "StepSide",
            closed(json!({
                "seq": count(), "status": text(), "output": anything(), "error": text_or_null(),
            })),
        ),
        (
            "ToolChange",
            closed(json!({
                "name": text(), "changes": changes(), "what": list(text()),
                "a": side("CallSide"), "b": side("CallSide"),
            })),
        ),
        (
            "CallSide",
            closed(json!({
                "seq": count(), "call": text(), "arguments": anything(), "result": anything(),
                "error": text_or_null(),
            })),
        ),
        (
            "ModelChange",
            closed(json!({
                "purpose": text(), "changes": changes(), "what": list(text()),
                "a": side("ModelSide"), "b": side("ModelSide"),
            })),
        ),
        (
            "ModelSide",
            closed(json!({
                "seq": count(), "call": text(), "model": text(),
                "context": or_null(reference("Digest")), "message": anything(),
            })),
        ),
        (
            "OtherChange",
            closed(json!({
                "kind": text(), "changes": changes(), "a": side("OtherSide"),
                "b": side("OtherSide"),
            })),
        ),
        (
            "OtherSide",
            closed(json!({"seq": count(), "body": anything()})),
        ),
    ])
}

/// What an AG-UI client sends; open, because newer ones say more.
fn of_agui() -> Named {
    let some_text = || json!({"type": "string", "minLength": 1});
    let open = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required});
    named([
        (
            "RunAgentInput",
            open(
                json!({
                    "threadId": {"type": "string", "minLength": 1, "maxLength": 512},
                    "runId": some_text(),
                    "messages": list(open(json!({"id": text(), "role": text()}), &["id", "role"])),
                    "state": anything(), "tools": anything(), "context": anything(),
                    "forwardedProps": anything(),
                    "resume": or_null(list(reference("ResumeEntry"))),
                }),
                &["threadId", "runId", "messages"],
            ),
        ),
        (
            "ResumeEntry",
            open(
                json!({
                    "interruptId": some_text(), "status": {"enum": ["resolved", "cancelled"]},
                    "payload": anything(),
                }),
                &["interruptId", "status"],
            ),
        ),
    ])
}
