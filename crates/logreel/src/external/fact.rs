//! Facts as clients write them, on their way to bodies of the log.
//!
//! A client says what it knows. What only the engine can know it fills in: the digest of a final state,
//! the nodes of a conversation, the number of a wait, where a large value is. A field that the kind does
//! not have is refused, because nothing is dropped in silence.

use std::collections::BTreeMap;

use logreel_core::codec::{decode_body, encode_body};
use logreel_core::event::{ContextCompacted, MessageAdded};
use logreel_core::json::BlobRef;
use logreel_core::{
    Batch, Blob, Body, Command, Digest, Draft, FORMAT, Json, Payload, Rejected, Seq, StepId,
    Timestamp,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::message::{self, Node};

/// A fact that a client wants recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExternalFact {
    /// Its kind, such as `step.finished`.
    pub kind: String,
    /// Its body.
    pub body: Json,
    /// When the client says it happened.
    pub caller_at: Option<Timestamp>,
}

/// Why a fact cannot be recorded.
pub(super) enum Refusal {
    /// It is not what its kind says.
    Unfit(String),
    /// It contradicts the log.
    Rejected(Rejected),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Unfit(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::Unfit(why.to_owned())
    }
}

/// The facts of one append so far, each decided on the state that the ones before it lead to.
pub(super) struct Facts<'a> {
    batch: Batch<'a>,
    /// The end of the conversation.
    context: Option<Digest>,
    now: Timestamp,
    pub(super) drafts: Vec<Draft>,
    pub(super) blobs: Vec<Blob>,
    /// Blobs that were not made here and that a fact refers to.
    pub(super) named: Vec<Digest>,
}

type Fields = BTreeMap<String, Json>;

/// The fields that hold values: a large one moves to a blob.
const VALUES: [&str; 8] = [
    "arguments",
    "data",
    "input",
    "message",
    "output",
    "plan",
    "spec",
    "value",
];

/// What the engine records, or people through calls of their own.
const NOT_A_DRIVERS: [&str; 6] = [
    "run.resumed",
    "run.forked",
    "budget.changed",
    "message.queued",
    "signal.received",
    "spec.changed",
];

/// The kinds that say how many secrets were taken out of them.
const COUNT_SECRETS: [&str; 6] = [
    "model.answered",
    "model.failed",
    "output.written",
    "tool.called",
    "tool.failed",
    "tool.returned",
];

impl<'a> Facts<'a> {
    pub(super) fn new(batch: Batch<'a>, context: Option<Digest>, now: Timestamp) -> Self {
        Self {
            batch,
            context,
            now,
            drafts: Vec::new(),
            blobs: Vec::new(),
            named: Vec::new(),
        }
    }

    /// Decides the next fact, from which so many secrets were taken out.
    pub(super) fn add(&mut self, fact: &ExternalFact, redacted: u32) -> Result<(), Refusal> {
        let kind = fact.kind.as_str();
        if !Body::KINDS.contains(&kind) {
            return Err("there is no such kind of event".into());
        }
        if NOT_A_DRIVERS.contains(&kind) {
            return Err("this is not a driver's to record".into());
        }
        let said: Fields = fact
            .body
            .decode()
            .map_err(|error| format!("the body is no object: {error}"))?;
        let mut fields = said.clone();
        match kind {
            "message.added" if !said.contains_key("node") => {
                let added = self.message(&mut fields)?;
                let added = MessageAdded { redacted, ..added };
                return self.decide(added.into(), fact.caller_at);
            }
            "message.added" | "context.compacted" => self.names(&fields, "node")?,
            "model.called" => self.conversation(&mut fields)?,
            "model.answered" => {
                if let Some(said) = fields.get("message")
                    && said.decode::<BlobRef>().is_err()
                {
                    let message = message::answer(said)?;
                    fields.insert("message".to_owned(), message);
                }
            }
            _ => {}
        }
        if redacted > 0 && COUNT_SECRETS.contains(&kind) {
            fields.insert("redacted".to_owned(), json_of(&redacted)?);
        }
        self.fill_in(kind, &mut fields, fact.caller_at)?;
        self.move_values(&mut fields)?;
        let text = json_of(&fields)?;
        let body = decode_body(FORMAT, kind, text.text()).map_err(|error| {
            // Where that is in a text that the client has not written helps nobody.
            let words = error.to_string();
            let end = words.find(" at line ").unwrap_or(words.len());
            words[..end].to_owned()
        })?;
        check_all_used(&said, &body)?;
        self.decide(body, fact.caller_at)
    }

    fn decide(&mut self, body: Body, caller_at: Option<Timestamp>) -> Result<(), Refusal> {
        let draft = self.batch.decide(Command::Record { body, caller_at });
        let draft = draft.map_err(Refusal::Rejected)?;
        match &draft.body {
            Body::MessageAdded(added) => self.context = Some(added.node),
            Body::ContextCompacted(compacted) => self.context = Some(compacted.node),
            _ => {}
        }
        self.drafts.push(draft);
        Ok(())
    }

    /// A message that a client has, as the next of the conversation: `{message}`, or the message itself.
    fn message(&mut self, fields: &mut Fields) -> Result<MessageAdded, Refusal> {
        let queued = fields.remove("queued");
        let queued = queued.map(|queued| queued.decode::<Option<Seq>>());
        let queued = queued
            .transpose()
            .map_err(|error| format!("`queued`: {error}"))?;
        let message = match fields.remove("message") {
            Some(message) if fields.is_empty() => message.to_value(),
            Some(_) => return Err("beside `message` there is only `queued`".into()),
            None => json_of(fields)?.to_value(),
        };
        let node = Node::after(self.context, &message)?;
        Ok(MessageAdded {
            queued: queued.flatten(),
            ..self.joins(node)
        })
    }

    fn joins(&mut self, node: Node) -> MessageAdded {
        let added = MessageAdded {
            length: node.length,
            node: node.digest(),
            previous: node.previous,
            queued: None,
            redacted: 0,
            role: node.role,
        };
        self.blobs.push(node.blob);
        added
    }

    /// What a model call is made from: a node, or all messages, of which those that are new join the
    /// conversation here; else the conversation as it is.
    fn conversation(&mut self, fields: &mut Fields) -> Result<(), Refusal> {
        let Some(messages) = fields.remove("messages") else {
            match fields.get("context") {
                Some(context) if !context.is_null() => self.names(fields, "context")?,
                _ => {
                    fields.insert("context".to_owned(), json_of(&self.context)?);
                }
            }
            return self.names(fields, "request");
        };
        if fields
            .get("context")
            .is_some_and(|context| !context.is_null())
        {
            return Err("name a `context` or carry `messages`, not both".into());
        }
        let messages: Vec<Value> = messages
            .decode()
            .map_err(|error| format!("`messages` is a list: {error}"))?;
        let mut nodes: Vec<Node> = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let previous = nodes.last().map(Node::digest);
            let node = Node::after(previous, message);
            nodes.push(node.map_err(|why| format!("message {at}: {why}"))?);
        }
        let last = nodes.last().map(Node::digest);
        let known = nodes
            .iter()
            .position(|node| Some(node.digest()) == self.context);
        match (known, last, self.context) {
            (Some(known), _, _) => self.join_all(nodes.split_off(known + 1))?,
            (None, Some(_), None) => self.join_all(nodes)?,
            // What was said before is told in other words now.
            (None, Some(node), previous @ Some(_)) => {
                self.blobs.extend(nodes.into_iter().map(|node| node.blob));
                self.decide(ContextCompacted { node, previous }.into(), None)?;
            }
            (None, None, _) => {}
        }
        fields.insert("context".to_owned(), json_of(&last)?);
        self.names(fields, "request")
    }

    fn join_all(&mut self, nodes: Vec<Node>) -> Result<(), Refusal> {
        for node in nodes {
            let added = self.joins(node);
            self.decide(added.into(), None)?;
        }
        Ok(())
    }

    /// What is left out and follows from the rest.
    fn fill_in(
        &mut self,
        kind: &str,
        fields: &mut Fields,
        caller_at: Option<Timestamp>,
    ) -> Result<(), Refusal> {
        let mut fill = |name: &str, value: Value| {
            fields
                .entry(name.to_owned())
                .or_insert_with(|| Json::from(value));
        };
        match kind {
            "run.completed" => fill("output", Value::Null),
            "step.started" => {
                fill("attempt", 1.into());
                fill("effect", "idempotent".into());
            }
            "step.finished" => {
                fill("attempt", 1.into());
                fill("effect", "idempotent".into());
                fill("output", Value::Null);
            }
            "step.failed" => fill("attempt", 1.into()),
            "model.called" => {
                fill("attempt", 1.into());
                fill("reserved", json!({}));
            }
            "model.answered" => {
                fill("message", Value::Null);
                fill("spent", json!({}));
            }
            "model.failed" => fill("spent", json!({})),
            "tool.called" => {
                fill("arguments", Value::Null);
                fill("attempt", 1.into());
                // Nobody declared it, and a write must never be repeated blind.
                fill("effect", "write".into());
            }
            "tool.returned" => fill("output", Value::Null),
            "checkpoint.saved" | "custom" => fill("data", Value::Null),
            "wait.started" => fill("wait", self.batch.next_wait().to_string().into()),
            "wait.ended" => fill("value", Value::Null),
            "child.started" => {
                fill("budget", json!({}));
                fill("detached", false.into());
            }
            _ => {}
        }
        match kind {
            // Whoever ends a run cannot know its digest; `decide` does.
            "run.completed" | "run.failed" | "run.cancelled" => {
                let unknown = json_of(&Digest([0; 32]))?;
                fields.insert("final_state_digest".to_owned(), unknown);
            }
            "step.finished" | "step.failed" if !fields.contains_key("started_at") => {
                let step = fields.get("step").and_then(|step| step.decode().ok());
                let is_running = |step: StepId| self.batch.is_running(&step);
                if !step.is_some_and(is_running) {
                    let at = json_of(&caller_at.unwrap_or(self.now))?;
                    fields.insert("started_at".to_owned(), at);
                }
            }
            _ => {}
        }
        for name in ["reserved", "spent"] {
            complete(
                fields,
                name,
                &json!({
                    "cache_read_tokens": 0, "cache_write_tokens": 0, "input_tokens": 0,
                    "output_tokens": 0, "reasoning_tokens": 0,
                }),
            );
        }
        if let Some(words) = fields
            .get("error")
            .and_then(|error| error.decode::<String>().ok())
        {
            fields.insert("error".to_owned(), Json::from(json!({"message": words})));
        }
        complete(
            fields,
            "error",
            &json!({"kind": "error", "message": "", "retryable": false}),
        );
        Ok(())
    }

    /// A large value moves to a blob. What looks like the place of one is the place of one that was put
    /// there before.
    fn move_values(&mut self, fields: &mut Fields) -> Result<(), Refusal> {
        for name in VALUES {
            let Some(value) = fields.get_mut(name) else {
                continue;
            };
            if let Ok(reference) = value.decode::<BlobRef>() {
                self.named.push(reference.blob);
                continue;
            }
            let (payload, blob) = Payload::of(value.clone());
            self.blobs.extend(blob);
            *value = json_of(&payload)?;
        }
        Ok(())
    }

    /// Notes the blob that a field names, if it names one.
    fn names(&mut self, fields: &Fields, field: &str) -> Result<(), Refusal> {
        if let Some(digest) = fields.get(field).filter(|digest| !digest.is_null()) {
            let digest = digest.decode::<Digest>();
            self.named
                .push(digest.map_err(|error| format!("`{field}`: {error}"))?);
        }
        Ok(())
    }
}

/// Adds what an object lacks of this; what is there stays.
fn complete(fields: &mut Fields, name: &str, with: &Value) {
    let Some(mut object) = fields
        .get(name)
        .and_then(|json| json.decode::<Fields>().ok())
    else {
        return;
    };
    for (key, value) in with.as_object().into_iter().flatten() {
        object
            .entry(key.clone())
            .or_insert_with(|| Json::from(value.clone()));
    }
    if let Ok(json) = Json::of(&object) {
        fields.insert(name.to_owned(), json);
    }
}

/// Refuses a body with a field that its kind does not have.
fn check_all_used(said: &Fields, body: &Body) -> Result<(), Refusal> {
    let written = encode_body(body).map_err(|error| error.to_string())?;
    let written: Fields = serde_json::from_str(&written).map_err(|error| error.to_string())?;
    // Fields that mean nothing when they are empty are not written.
    let says_nothing = |value: &Json| matches!(value.text(), "null" | "0" | "[]" | "false");
    let is_lost = |(name, value): &(&String, &Json)| {
        !written.contains_key(*name) && !says_nothing(value) && *name != "messages"
    };
    match said.iter().find(is_lost) {
        None => Ok(()),
        Some((name, _)) => {
            let known: Vec<&str> = written.keys().map(String::as_str).collect();
            Err(format!("it has no field `{name}`; it has {}", known.join(", ")).into())
        }
    }
}

fn json_of(value: &impl Serialize) -> Result<Json, Refusal> {
    Json::of(value).map_err(|error| error.to_string().into())
}
