//! What of an answer goes into which request next: OpenAPI's links. Tools follow them, people read them.
//!
//! A link says where the values are, not that the request will apply: a run that has ended cannot be paused.

use serde_json::{Map, Value, json};

/// The links of an answer, by their names.
pub(super) fn of(operation: &str, status: u16) -> Map<String, Value> {
    let mut links = Links::default();
    match (operation, status) {
        ("listSpecs", 200) => links.add(
            "startRun",
            "Starts the first of them",
            json!({}),
            Some(json!({"spec": "$response.body#/items/0/name"})),
        ),
        ("startRun", 200 | 201) => {
            links.of_run("$response.body#/id");
            links.of_session("$response.body#/session");
            links.of_external("$response.body#/run/id");
        }
        ("listRuns", 200) => links.of_run("$response.body#/items/0/id"),
        ("retryRun" | "forkRun", 201) => links.of_run("$response.body#/id"),
        ("cancelRun", 200) => links.by_id("retryRun", "$response.body#/id"),
        ("pauseRun", 200) => links.by_id("resumeRun", "$response.body#/id"),
        ("claimLease", 200) => links.of_lease("$response.body#/run/id"),
        ("releaseLease", 200) => links.by_id("claimLease", "$response.body#/id"),
        ("putBlob", 204) => links.add(
            "getBlob",
            "Reads it back",
            json!({"digest": "$request.path.digest"}),
            None,
        ),
        ("listSessions", 200) => links.of_session("$response.body#/items/0/session"),
        _ => {}
    }
    links.0
}

/// What is said to a run, or asked of it, by its id alone.
const OF_RUN: [&str; 12] = [
    "getRun",
    "listEvents",
    "exportRun",
    "cancelRun",
    "pauseRun",
    "resumeRun",
    "answerRun",
    "resolveCall",
    "sayToRun",
    "signalRun",
    "retryRun",
    "forkRun",
];

#[derive(Default)]
struct Links(Map<String, Value>);

impl Links {
    /// All that can be asked of a run.
    fn of_run(&mut self, id: &str) {
        for operation in OF_RUN {
            self.by_id(operation, id);
        }
        let both = json!({"id": id, "other": id});
        self.add("diffRuns", "Holds it against itself", both, None);
    }

    /// A run that the caller drives.
    fn of_external(&mut self, id: &str) {
        self.of_lease(id);
        for operation in ["getRun", "cancelRun", "pauseRun", "signalRun"] {
            let name = format!("{operation}OfCaller");
            let about = "The same, of a run that the caller drives";
            self.named(name, operation, about, json!({"id": id}), None);
        }
        let about = "Of a run that the caller drives";
        let session = json!({"session": "$response.body#/run/session"});
        for operation in ["cancelSession", "closeSession"] {
            let name = format!("{operation}OfCaller");
            self.named(name, operation, about, session.clone(), None);
        }
    }

    /// What its lease is for.
    fn of_lease(&mut self, id: &str) {
        let proof = json!({"id": id, "Logreel-Lease": "$response.body#/lease/secret"});
        let head = json!({
            "epoch": "$response.body#/lease/epoch", "expect": "$response.body#/head",
        });
        let about = "With the lease that was given out";
        self.add("appendEvents", about, proof.clone(), Some(head));
        self.add("renewLease", about, proof.clone(), None);
        self.add("releaseLease", about, proof, None);
        let about = "Keeps what an event of the run will name";
        self.add("putBlob", about, json!({"run": id}), None);
    }

    fn of_session(&mut self, session: &str) {
        let session = json!({"session": session});
        self.add("cancelSession", "Its session", session.clone(), None);
        self.add("closeSession", "Its session", session, None);
    }

    fn by_id(&mut self, operation: &str, id: &str) {
        self.add(operation, "The same run", json!({"id": id}), None);
    }

    /// A link that is called as what it leads to.
    fn add(&mut self, operation: &str, about: &str, parameters: Value, body: Option<Value>) {
        self.named(operation.to_owned(), operation, about, parameters, body);
    }

    fn named(
        &mut self,
        name: String,
        operation: &str,
        about: &str,
        parameters: Value,
        body: Option<Value>,
    ) {
        let mut link = json!({
            "operationId": operation, "description": about, "parameters": parameters,
        });
        if let Some(body) = body {
            link["requestBody"] = body;
        }
        self.0.insert(name, link);
    }
}
