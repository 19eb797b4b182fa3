//! How an event is stored: kind and body as text, beside the header's fields.
//!
//! The version check is inside [`Stored::decode`], so that nobody can forget it. Upcasting happens
//! after reading and is never written back.

mod quick;

use std::collections::BTreeMap;

use crate::event::Unknown;
use crate::{BlobRef, Body, Digest, Epoch, Event, Json, Payload, RunId, Seq, Timestamp};

/// The format this build writes, and the newest it reads.
pub const FORMAT: u16 = 1;

/// An event as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its position in the run.
    pub seq: Seq,
    /// When it was appended.
    pub at: Timestamp,
    /// The caller's own time.
    pub caller_at: Option<Timestamp>,
    /// The driver's epoch.
    pub epoch: Epoch,
    /// Recorded after the end.
    pub late: bool,
    /// The format the body was written in.
    pub format: u16,
    /// The kind's name.
    pub kind: String,
    /// The body exactly as stored, or its digest once it was erased.
    pub body: StoredBody,
    /// The chain's digest.
    pub digest: Digest,
    /// The run that it was written for, when that is not the one whose log is read: a fork shares
    /// the events before its own.
    pub origin: Option<RunId>,
}

/// A body, or what is left of it.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredBody {
    /// The text exactly as stored.
    Text(String),
    /// Erased; the keyed digest stays, so that the chain still verifies.
    Erased(Digest),
}

/// Why a stored event cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A newer build wrote it.
    #[error(
        "event {seq} is in log format {found}, this build reads up to {FORMAT}; use a newer logreel"
    )]
    NewerFormat {
        /// Which event.
        seq: Seq,
        /// Its format.
        found: u16,
    },
    /// The body was erased.
    #[error("the body of event {0} was erased")]
    Erased(Seq),
    /// The body is not what its kind says.
    #[error("event {seq} ({kind}) does not decode")]
    Body {
        /// Which event.
        seq: Seq,
        /// Its kind.
        kind: String,
        /// What the parser said.
        source: serde_json::Error,
    },
}

impl Record {
    /// Reads the event. An unknown kind reads as [`Body::Unknown`].
    pub fn decode(&self) -> Result<Event, DecodeError> {
        self.stored().decode()
    }

    /// The same event, where it is stored.
    pub fn stored(&self) -> Stored<'_> {
        Stored {
            seq: self.seq,
            at: self.at,
            caller_at: self.caller_at,
            epoch: self.epoch,
            late: self.late,
            format: self.format,
            kind: &self.kind,
            body: match &self.body {
                StoredBody::Text(text) => Some(text),
                StoredBody::Erased(_) => None,
            },
            digest: self.digest,
        }
    }
}

/// A context node as far as it says what comes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRef {
    /// The node, which is a blob.
    pub node: Digest,
    /// Where it goes on from, when the event says so.
    pub previous: Option<Digest>,
}

impl Record {
    /// The blobs that its body refers to, but for context nodes. None when the body was erased.
    ///
    /// A body's own fields may be references, and what a resolution returned. Anything deeper is a user's
    /// value, whatever it looks like.
    pub fn blobs(&self) -> Vec<BlobRef> {
        let StoredBody::Text(text) = &self.body else {
            return Vec::new();
        };
        // An escaped key is not one that we write, but it is one that we would read.
        if !text.contains("\"blob\"") && !text.contains('\\') {
            return Vec::new();
        }
        let mut blobs = Vec::new();
        for (name, value) in fields(text) {
            match value {
                Payload::Blob(reference) => blobs.push(reference),
                Payload::Inline(json) if name == "resolution" => {
                    blobs.extend(fields(json.text()).into_values().filter_map(
                        |value| match value {
                            Payload::Blob(reference) => Some(reference),
                            Payload::Inline(_) => None,
                        },
                    ));
                }
                Payload::Inline(_) => {}
            }
        }
        blobs
    }

    /// The blob that the event names by its digest alone: the context node that it makes or, as event 1,
    /// goes on from; of a model call what was asked beside the conversation.
    pub fn node(&self) -> Option<NodeRef> {
        #[derive(serde::Deserialize)]
        struct Body {
            node: Option<Digest>,
            previous: Option<Digest>,
            context: Option<Digest>,
            request: Option<Digest>,
        }
        let StoredBody::Text(text) = &self.body else {
            return None;
        };
        let read = || serde_json::from_str::<Body>(text).ok();
        let (node, previous) = match self.kind.as_str() {
            "message.added" => read().map(|body| (body.node, body.previous))?,
            // What it goes on from is not what its node follows.
            "context.compacted" => (read()?.node, None),
            "run.started" => (read()?.context, None),
            "model.called" => (read()?.request, None),
            _ => return None,
        };
        node.map(|node| NodeRef { node, previous })
    }
}

fn fields(text: &str) -> BTreeMap<String, Payload> {
    serde_json::from_str(text).unwrap_or_default()
}

/// An event as stored, where it is stored: what a store that only wants it decoded need not copy.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// Its position in the run.
    pub seq: Seq,
    /// When it was appended.
    pub at: Timestamp,
    /// The caller's own time.
    pub caller_at: Option<Timestamp>,
    /// The driver's epoch.
    pub epoch: Epoch,
    /// Recorded after the end.
    pub late: bool,
    /// The format the body was written in.
    pub format: u16,
    /// The kind's name.
    pub kind: &'a str,
    /// The body exactly as stored; `None` once it was erased.
    pub body: Option<&'a str>,
    /// The chain's digest.
    pub digest: Digest,
}

impl Stored<'_> {
    /// Reads the event. An unknown kind reads as [`Body::Unknown`].
    pub fn decode(self) -> Result<Event, DecodeError> {
        if self.format > FORMAT {
            return Err(DecodeError::NewerFormat {
                seq: self.seq,
                found: self.format,
            });
        }
        let Some(text) = self.body else {
            return Err(DecodeError::Erased(self.seq));
        };
        let body =
            decode_body(self.format, self.kind, text).map_err(|source| DecodeError::Body {
                seq: self.seq,
                kind: self.kind.to_owned(),
                source,
            })?;
        Ok(Event {
            seq: self.seq,
            at: self.at,
            caller_at: self.caller_at,
            epoch: self.epoch,
            late: self.late,
            digest: self.digest,
            body,
        })
    }
}

/// Writes a body as it is stored.
pub fn encode_body(body: &Body) -> Result<String, serde_json::Error> {
    match body {
        Body::StepFinished(finished) => quick::write(finished).map_or_else(|| body.write(), Ok),
        _ => body.write(),
    }
}

/// Reads a body written in `format`; one newer than [`FORMAT`] is refused here too.
pub fn decode_body(format: u16, kind: &str, text: &str) -> Result<Body, serde_json::Error> {
    if format > FORMAT {
        let message = format!("log format {format} is newer than {FORMAT}");
        return Err(serde::de::Error::custom(message));
    }
    let upcast = upcast(format, kind, text)?;
    let text = upcast.as_deref().unwrap_or(text);
    if kind == "step.finished"
        && let Some(finished) = quick::step_finished(text)
    {
        return Ok(finished.into());
    }
    match Body::read(kind, text) {
        Some(body) => body,
        None => Ok(Body::Unknown(Unknown {
            kind: kind.to_owned(),
            raw: Json::parse(text.to_owned())?,
        })),
    }
}

/// Brings a body of an older format to today's shape; `None` when it is already in it.
///
/// Format 0 is what the prototypes wrote and lives on as the proof that upcasting works: there a
/// cancelled run had its reason as `message`.
fn upcast(format: u16, kind: &str, text: &str) -> Result<Option<String>, serde_json::Error> {
    if format > 0 || kind != "run.cancelled" {
        return Ok(None);
    }
    let mut body: serde_json::Value = serde_json::from_str(text)?;
    if let Some(fields) = body.as_object_mut()
        && let Some(message) = fields.remove("message")
    {
        fields.insert("reason".to_owned(), message);
    }
    Ok(Some(body.to_string()))
}
