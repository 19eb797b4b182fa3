//! A log as lines of JSON (INTERFACES C): a header, its events, the blobs that they refer to. Bodies are
//! embedded as they are stored, to the byte.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use logreel_core::codec::StoredBody;
use logreel_core::{Digest, Epoch, FORMAT, Head, Record, RunId, RunKey, Seq, Timestamp};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The first line: whose log it is, how to check it, and where it ends.
#[derive(Debug, Clone)]
pub(super) struct LogHeader {
    pub format: u64,
    pub run: RunId,
    /// Of everyone whose events the log has, but for those that were erased.
    pub keys: Vec<(RunId, RunKey)>,
    pub head: Head,
}

/// A line of a log.
#[derive(Debug)]
pub(super) enum Line {
    Log(LogHeader),
    Event(Box<EventLine>),
    Blob(BlobLine),
    /// Of a type that this build does not know.
    Other,
}

#[derive(Debug)]
pub(super) struct EventLine {
    pub run: RunId,
    pub record: Record,
    /// What the line says about a body that it has.
    pub body_digest: Option<Digest>,
}

#[derive(Debug)]
pub(super) struct BlobLine {
    pub digest: Digest,
    pub bytes: Vec<u8>,
}

impl LogHeader {
    pub fn write(&self) -> String {
        #[derive(Serialize)]
        struct Header<'a> {
            r#type: &'static str,
            format: u64,
            run: &'a RunId,
            keys: BTreeMap<String, String>,
            head: &'a Head,
        }
        let keys = self.keys.iter();
        let header = Header {
            r#type: "log",
            format: self.format,
            run: &self.run,
            keys: keys
                .map(|(run, key)| (run.to_string(), key.to_hex()))
                .collect(),
            head: &self.head,
        };
        serde_json::to_string(&header).expect("ids and digests always serialize")
    }

    /// Whether this build knows the format.
    pub fn is_known(&self) -> bool {
        self.format <= u64::from(FORMAT)
    }
}

/// Writes an event's line into `line`, which is emptied first. Fields as `log --json` has them.
pub(super) fn write_event(line: &mut String, run: &RunId, record: &Record, key: Option<&RunKey>) {
    line.clear();
    let time = |time: Option<Timestamp>| match time {
        Some(time) => format!("\"{time}\""),
        None => "null".to_owned(),
    };
    let kind = serde_json::to_string(&record.kind).expect("a string always serializes");
    let (body, body_digest) = match &record.body {
        StoredBody::Text(text) => (text.as_str(), key.map(|key| key.body_digest(text))),
        StoredBody::Erased(digest) => ("null", Some(*digest)),
    };
    let quoted = |text: Option<String>| match text {
        Some(text) => format!("\"{text}\""),
        None => "null".to_owned(),
    };
    write!(
        line,
        r#"{{"run":"{run}","seq":{},"at":"{}","caller_at":{},"epoch":{},"kind":{kind},"late":{},"format":{},"body":{body},"body_digest":{},"digest":"{}","origin":{}}}"#,
        record.seq,
        record.at,
        time(record.caller_at),
        record.epoch,
        record.late,
        record.format,
        quoted(body_digest.map(|digest| digest.to_string())),
        record.digest,
        quoted(record.origin.map(|run| run.to_string())),
    )
    .expect("writing to a String");
}

pub(super) fn write_blob(line: &mut String, digest: &Digest, bytes: &[u8]) {
    line.clear();
    write!(line, r#"{{"type":"blob","digest":"{digest}","base64":""#).expect("writing to a String");
    BASE64.encode_string(bytes, line);
    line.push_str("\"}");
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Log<'a> {
    format: u64,
    run: RunId,
    #[serde(borrow)]
    keys: &'a RawValue,
    head: Head,
}

#[derive(Deserialize)]
struct Event<'a> {
    run: RunId,
    seq: Seq,
    at: Timestamp,
    caller_at: Option<Timestamp>,
    epoch: Epoch,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    late: bool,
    format: u16,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    body_digest: Option<Digest>,
    digest: Digest,
    origin: Option<RunId>,
}

#[derive(Deserialize)]
struct Blob<'a> {
    digest: Digest,
    #[serde(borrow)]
    base64: Cow<'a, str>,
}

/// Reads a line of a log.
pub(super) fn read_line(text: &str) -> Result<Line, serde_json::Error> {
    // What we write ourselves need not be looked at twice.
    if text.starts_with("{\"run\":") {
        return read_event(text);
    }
    let typed: Typed<'_> = serde_json::from_str(text)?;
    match typed.kind.as_deref() {
        Some("log") => read_header(text),
        Some("blob") => {
            let blob: Blob<'_> = serde_json::from_str(text)?;
            let bytes = BASE64.decode(blob.base64.as_bytes());
            let bytes = bytes.map_err(|error| {
                serde_json::Error::custom(format!("blob {} is no base64: {error}", blob.digest))
            })?;
            Ok(Line::Blob(BlobLine {
                digest: blob.digest,
                bytes,
            }))
        }
        Some("event") | None => read_event(text),
        Some(_) => Ok(Line::Other),
    }
}

fn read_header(text: &str) -> Result<Line, serde_json::Error> {
    let log: Log<'_> = serde_json::from_str(text)?;
    let mut keys = Vec::new();
    for (run, hex) in unique(log.keys.get())? {
        let key = RunKey::from_hex(&hex);
        keys.push((
            run,
            key.ok_or_else(|| {
                serde_json::Error::custom(format!("the key of {run} is not 64 hex digits"))
            })?,
        ));
    }
    Ok(Line::Log(LogHeader {
        format: log.format,
        run: log.run,
        keys,
        head: log.head,
    }))
}

/// The members of an object, each of which may come once.
fn unique(text: &str) -> Result<BTreeMap<RunId, String>, serde_json::Error> {
    struct Members;
    impl<'de> serde::de::Visitor<'de> for Members {
        type Value = BTreeMap<RunId, String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of keys by run")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Self::Value, A::Error> {
            let mut members = BTreeMap::new();
            while let Some((run, key)) = map.next_entry::<RunId, String>()? {
                if members.insert(run, key).is_some() {
                    return Err(A::Error::custom(format!("the key of {run} comes twice")));
                }
            }
            Ok(members)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde::Deserializer::deserialize_map(&mut deserializer, Members)
}

fn read_event(text: &str) -> Result<Line, serde_json::Error> {
    let event: Event<'_> = serde_json::from_str(text)?;
    let body = match (event.body, event.body_digest) {
        (Some(body), _) if body.get().starts_with('{') => StoredBody::Text(body.get().to_owned()),
        (None, Some(digest)) => StoredBody::Erased(digest),
        (Some(_), _) => {
            let what = format!("the body of event {} is no object", event.seq);
            return Err(serde_json::Error::custom(what));
        }
        (None, None) => {
            let what = format!("event {} has neither a body nor its digest", event.seq);
            return Err(serde_json::Error::custom(what));
        }
    };
    let body_digest = match &body {
        StoredBody::Text(_) => event.body_digest,
        StoredBody::Erased(_) => None,
    };
    let record = Record {
        seq: event.seq,
        at: event.at,
        caller_at: event.caller_at,
        epoch: event.epoch,
        late: event.late,
        format: event.format,
        kind: event.kind.into_owned(),
        body,
        digest: event.digest,
        origin: event.origin.filter(|origin| *origin != event.run),
    };
    Ok(Line::Event(Box::new(EventLine {
        run: event.run,
        record,
        body_digest,
    })))
}
