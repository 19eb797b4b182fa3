//! Every operation there is: the routes and the description are made of this table.

use axum::http::Method;
use serde_json::{Value, json};

use crate::call::KEY_BYTES_MAX;
use crate::operation::{Given, Operation};
use crate::say::{RECEIPT, WARNING};
use crate::{
    again, agui, blobs, diff, events, export, external, feed, health, metrics, openapi, runs, say,
    sessions, start,
};

const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";
const BYTES: &str = "application/octet-stream";
const PROTOBUF: &str = "application/x-protobuf";
const LINES: &str = "application/jsonl";

/// Hands a call to a function of it.
macro_rules! by {
    ($handler:path) => {
        |call| Box::pin($handler(call))
    };
}

pub(crate) fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    all.extend(about_the_server());
    all.extend(about_runs());
    all.extend(said_to_runs());
    all.extend(driven_from_outside());
    all.extend(about_sessions());
    all.push(for_agui());
    all
}

fn get(
    path: &'static str,
    id: &'static str,
    does: &'static str,
    handler: crate::operation::Handler,
) -> Operation {
    Operation::new(Method::GET, path, id, does, handler)
}

/// A command: it may be sent again under the same key.
fn post(
    path: &'static str,
    id: &'static str,
    does: &'static str,
    handler: crate::operation::Handler,
) -> Operation {
    let about = "Sent again under the same key, the command gets the same answer and is done once";
    let key = json!({
        "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]+$",
    });
    Operation::new(Method::POST, path, id, does, handler).header("Idempotency-Key", key, about)
}

/// A command to a run, which answers the run as it is after.
fn tell(
    path: &'static str,
    id: &'static str,
    does: &'static str,
    schema: &'static str,
    required: bool,
    handler: crate::operation::Handler,
) -> Operation {
    post(path, id, does, handler)
        .takes(Given::Json { schema, required })
        .answers(200, "The run as it is after", &[(JSON, "Run")])
        .with("ETag", "Changes when the run does")
        .may(&[404, 409])
}

/// A command that makes a run of another.
fn make(
    path: &'static str,
    id: &'static str,
    does: &'static str,
    schema: &'static str,
    required: bool,
    handler: crate::operation::Handler,
) -> Operation {
    post(path, id, does, handler)
        .takes(Given::Json { schema, required })
        .answers(201, "The new run", &[(JSON, "Run")])
        .with("Location", "Where it is")
        .with("ETag", "Changes when the run does")
        .answers(
            200,
            "With `dry_run`: what it would write outside again; nothing was made",
            &[(JSON, "Outlook")],
        )
        .may(&[404, 409])
}

fn text() -> Value {
    json!({"type": "string"})
}

fn number(from: u64, to: u64) -> Value {
    match to {
        u64::MAX => json!({"type": "integer", "minimum": from}),
        _ => json!({"type": "integer", "minimum": from, "maximum": to}),
    }
}

fn about_the_server() -> Vec<Operation> {
    vec![
        get(
            "/health",
            "health",
            "Whether the store can be read and written",
            by!(health::answer),
        )
        .open()
        .answers(200, "All is well", &[(JSON, "Health")])
        .answers(
            503,
            "The store cannot be read or written",
            &[(JSON, "Health")],
        ),
        get(
            "/metrics",
            "metrics",
            "Figures for Prometheus",
            by!(metrics::answer),
        )
        .answers(
            200,
            "OpenMetrics text",
            &[("application/openmetrics-text", "Text")],
        ),
        get(
            "/openapi.json",
            "openapi",
            "This description",
            by!(openapi::answer),
        )
        .open()
        .answers(200, "OpenAPI 3.1", &[(JSON, "Anything")]),
        get(
            "/v1/specs",
            "listSpecs",
            "What can be started by name",
            by!(start::specs),
        )
        .answers(200, "All of it", &[(JSON, "SpecPage")]),
        get(
            "/v1/blobs/{digest}",
            "getBlob",
            "A large value, by its digest",
            by!(blobs::get),
        )
        .header("If-None-Match", text(), "The `ETag` of what the caller has")
        .answers(200, "Its bytes", &[(BYTES, "Bytes")])
        .with("ETag", "The digest")
        .answers(304, "The caller has it", &[])
        .may(&[404]),
    ]
}

fn about_runs() -> Vec<Operation> {
    let status = json!({"type": "string"});
    vec![
        post(
            "/v1/runs",
            "startRun",
            "Starts a run, or finds it by its id or key",
            by!(start::run),
        )
        .takes(Given::Json {
            schema: "NewRun",
            required: true,
        })
        .answers(201, "It was started", &[(JSON, "Started")])
        .with("Location", "Where it is")
        .with("ETag", "Changes when the run does")
        .answers(200, "It was there already", &[(JSON, "Started")])
        .with("ETag", "Changes when the run does")
        .may(&[404, 409]),
        get(
            "/v1/runs",
            "listRuns",
            "Runs, newest first",
            by!(runs::list),
        )
        .queries(
            "status",
            status,
            "Any of these, or `orphaned`: at work, and the driver is gone. Several by commas or by saying it again",
        )
        .query("session", text(), "Of this session")
        .query("agent", text(), "Of this agent, workflow or task")
        .queries("label", text(), "With this label, NAME=VALUE")
        .query(
            "since",
            text(),
            "Created since: a span (1h, 2d), a day, or RFC 3339",
        )
        .query(
            "search",
            text(),
            "With all these words in input, output, agent or labels",
        )
        .query("parent", text(), "Started by this run, or forked from it")
        .query(
            "same_state",
            text(),
            "That ended in the same state as this run",
        )
        .query("same_spec", text(), "Of the same spec as this run")
        .query(
            "limit",
            number(1, runs::LIMIT_MAX),
            "At most this many; 50 when nothing is said",
        )
        .query("cursor", text(), "Where the page before ended: its `next`")
        .answers(
            200,
            "A page of them, without their steps",
            &[(JSON, "RunPage")],
        )
        .may(&[404, 409]),
        get(
            "/v1/runs/{id}",
            "getRun",
            "A run with its steps",
            by!(runs::one),
        )
        .query("at", number(1, u64::MAX), "As it was after this event")
        .query(
            "steps",
            json!({"type": "boolean"}),
            "false leaves its steps out: of a long run they take a while",
        )
        .header("If-None-Match", text(), "The `ETag` of what the caller has")
        .answers(200, "The run", &[(JSON, "RunAsAsked")])
        .with("ETag", "Changes when the run does, also with who drives it")
        .answers(304, "The caller has it", &[])
        .may(&[404, 409]),
        get(
            "/v1/runs/{id}/events",
            "listEvents",
            "A run's events: a page, or live as a stream (`Accept: text/event-stream`)",
            by!(events::of_run),
        )
        .query("from", number(1, u64::MAX), "From this event on")
        .query(
            "limit",
            number(1, events::LIMIT_MAX),
            "At most this many; 100 when nothing is said",
        )
        .header(
            "Last-Event-ID",
            text(),
            "Of a stream: from the event after this one on",
        )
        .answers(
            200,
            "A page, or the stream",
            &[(JSON, "EventPage"), (STREAM, "StreamEvent")],
        )
        .answers(
            204,
            "Of a stream: the caller has the run's end, and nothing follows",
            &[],
        )
        .may(&[404, 409]),
        get(
            "/v1/events",
            "listAllEvents",
            "The events of all runs, in the order they were stored: a page, or live as a stream",
            by!(feed::all),
        )
        .query(
            "cursor",
            text(),
            "Where the page before ended: its `next`. Without one a page begins with the first \\
             event there is, and a stream with what comes now",
        )
        .query(
            "limit",
            number(1, feed::LIMIT_MAX),
            "At most this many; 100 when nothing is said",
        )
        .header(
            "Last-Event-ID",
            text(),
            "Of a stream: from the event after this one on",
        )
        .answers(
            200,
            "A page, or the stream; the `id` of an event there is a cursor",
            &[(JSON, "FeedPage"), (STREAM, "StreamEvent")],
        )
        .may(&[409]),
        get(
            "/v1/runs/{id}/diff/{other}",
            "diffRuns",
            "What differs between two runs",
            by!(diff::between),
        )
        .answers(200, "What differs", &[(JSON, "Diff")])
        .may(&[404, 409]),
        get(
            "/v1/runs/{id}/export",
            "exportRun",
            "A run as a file",
            by!(export::run),
        )
        .query(
            "format",
            json!({"enum": ["jsonl", "reel", "otlp", "checkpoint"]}),
            "jsonl when nothing is said; otlp is a trace, an `ExportTraceServiceRequest`",
        )
        .query(
            "content",
            json!({"type": "boolean"}),
            "Of otlp: true for what was said, too",
        )
        .answers(
            200,
            "The file",
            &[
                (LINES, "Text"),
                (BYTES, "Bytes"),
                (PROTOBUF, "Bytes"),
                (JSON, "Anything"),
            ],
        )
        .may(&[404, 409]),
    ]
}

fn said_to_runs() -> Vec<Operation> {
    vec![
        tell(
            "/v1/runs/{id}/cancel",
            "cancelRun",
            "Ends a run now, and its children",
            "Reason",
            false,
            by!(say::cancel),
        ),
        tell(
            "/v1/runs/{id}/pause",
            "pauseRun",
            "Stops a run's work until someone resumes it",
            "Reason",
            false,
            by!(say::pause),
        ),
        tell(
            "/v1/runs/{id}/resume",
            "resumeRun",
            "Goes on with a run that was paused, lost its driver, or ran out of something",
            "Resume",
            false,
            by!(say::resume),
        ),
        tell(
            "/v1/runs/{id}/answer",
            "answerRun",
            "Says yes or no to a run that waits, or gives it a value",
            "Answer",
            true,
            by!(say::answer),
        ),
        tell(
            "/v1/runs/{id}/resolve",
            "resolveCall",
            "Says what became of a write that was interrupted",
            "Resolve",
            true,
            by!(say::resolve),
        )
        .with(WARNING, "Who may still make the write"),
        tell(
            "/v1/runs/{id}/messages",
            "sayToRun",
            "Steers an agent, which hears it at its next turn",
            "Message",
            true,
            by!(say::message),
        )
        .with(RECEIPT, "The number of the event that has the message"),
        tell(
            "/v1/runs/{id}/signals/{name}",
            "signalRun",
            "Sends a run a signal, which is kept until it is awaited",
            "Signal",
            false,
            by!(say::signal),
        ),
        make(
            "/v1/runs/{id}/retry",
            "retryRun",
            "Goes on with a failed or cancelled run in a new one that shares what finished",
            "Retry",
            false,
            by!(again::retry),
        ),
        make(
            "/v1/runs/{id}/fork",
            "forkRun",
            "Goes another way from an earlier event, in a new run that shares what came before",
            "Fork",
            true,
            by!(again::fork),
        ),
    ]
}

/// For runs that the caller drives.
fn driven_from_outside() -> Vec<Operation> {
    let secret = |operation: Operation| {
        let about = "The lease's secret, as it was given out";
        operation
            .header("Logreel-Lease", text(), about)
            .needs("Logreel-Lease")
    };
    let lease = "/v1/runs/{id}/lease";
    let put = |path, id, does, handler| Operation::new(Method::PUT, path, id, does, handler);
    let give_back = "Gives a lease back";
    vec![
        Operation::new(
            Method::POST,
            lease,
            "claimLease",
            "Gives the caller a run to drive, under the next epoch; asked again, it gives another lease (an `Idempotency-Key` changes nothing: a secret is given out once)",
            by!(external::claim),
        )
        .answers(200, "The run and its lease", &[(JSON, "ExternalRun")])
        .may(&[404, 409]),
        secret(put(
            lease,
            "renewLease",
            "Says that the caller lives",
            by!(external::renew),
        ))
        .answers(200, "The run and its lease", &[(JSON, "ExternalRun")])
        .may(&[404, 409]),
        secret(Operation::new(
            Method::DELETE,
            lease,
            "releaseLease",
            give_back,
            by!(external::release),
        ))
        .answers(200, "The run as it is after", &[(JSON, "Run")])
        .with("ETag", "Changes when the run does")
        .may(&[404, 409]),
        secret(Operation::new(
            Method::POST,
            "/v1/runs/{id}/events",
            "appendEvents",
            "Records what the caller did: all of it, or nothing",
            by!(external::append),
        ))
        .takes(Given::Json {
            schema: "NewEvents",
            required: true,
        })
        .answers(200, "What was recorded", &[(JSON, "Appended")])
        .may(&[404, 409]),
        put(
            "/v1/blobs/{digest}",
            "putBlob",
            "Keeps bytes for an hour, for an event to come that names them",
            by!(blobs::put),
        )
        .query("run", text(), "Whose event will name it")
        .needs("run")
        .takes(Given::Bytes)
        .answers(204, "They are kept", &[])
        .may(&[404, 409]),
    ]
}

fn about_sessions() -> Vec<Operation> {
    vec![
        get(
            "/v1/sessions",
            "listSessions",
            "Sessions, latest first",
            by!(sessions::list),
        )
        .query(
            "limit",
            number(1, sessions::LIMIT_MAX),
            "At most this many; 50 when nothing is said",
        )
        .query("cursor", text(), "Where the page before ended: its `next`")
        .answers(200, "A page of them", &[(JSON, "SessionPage")]),
        tell(
            "/v1/sessions/{session}/cancel",
            "cancelSession",
            "Cancels the active run of a session",
            "Reason",
            false,
            by!(sessions::cancel),
        ),
        post(
            "/v1/sessions/{session}/close",
            "closeSession",
            "Refuses new runs in a session, and ends its active one",
            by!(sessions::close),
        )
        .answers(200, "The session as it is after", &[(JSON, "Session")])
        .may(&[404, 409]),
    ]
}

/// Its `threadId` and `runId` say what an `Idempotency-Key` would.
fn for_agui() -> Operation {
    Operation::new(
        Method::POST,
        "/v1/agui/{spec}",
        "runForAgUi",
        "Starts, answers or joins a run for an AG-UI 1.0 client, and streams it as AG-UI's events",
        by!(agui::run),
    )
    .takes(Given::Json {
        schema: "RunAgentInput",
        required: true,
    })
    .answers(
        200,
        "Events of AG-UI, until the run ends or waits for a person",
        &[(STREAM, "StreamEvent")],
    )
    .with(agui::RUN, "The run's id")
    .may(&[404, 409])
}
