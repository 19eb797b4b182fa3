//! A log as a file of JSON Lines: an export, or what `log --json` prints. Read line by line; whether its
//! chain holds is not asked here.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use logreel_core::codec::StoredBody;
use logreel_core::{Digest, Epoch, Event, Payload, Record, RunId, Seq, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::trace;
use crate::Error;
use crate::carry::REEL_MAGIC;

/// A log in a file.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
}

/// What a line may be; a line of another type is passed over.
#[derive(Deserialize)]
struct Tagged {
    #[serde(default)]
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct EventLine {
    run: RunId,
    seq: Seq,
    at: Timestamp,
    caller_at: Option<Timestamp>,
    epoch: Epoch,
    kind: String,
    late: bool,
    format: u16,
    body: Option<Box<RawValue>>,
    body_digest: Option<Digest>,
    digest: Digest,
    origin: Option<RunId>,
}

#[derive(Deserialize)]
struct BlobLine {
    digest: Digest,
    base64: String,
}

impl LogFile {
    /// The log in this file.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        Self { path }
    }

    pub(super) fn error(&self, line: u64, why: impl ToString) -> Error {
        Error::LogFile {
            path: self.path.display().to_string(),
            line,
            why: why.to_string(),
        }
    }

    /// Shows each line to someone, with its type and its number, until they have seen enough.
    fn each_line(
        &self,
        mut look: impl FnMut(&str, &str, u64) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let file = File::open(&self.path).map_err(|error| self.error(0, error))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let first = reader.fill_buf().map_err(|error| self.error(0, error))?;
        if first.starts_with(&REEL_MAGIC) {
            let why =
                "it is a reel, which is compressed; `logreel import` it, or take a jsonl export";
            return Err(self.error(0, why));
        }
        let (mut line, mut number) = (String::new(), 0);
        loop {
            line.clear();
            number += 1;
            let read = reader.read_line(&mut line);
            if read.map_err(|error| self.error(number, error))? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                continue;
            }
            let tagged: Tagged =
                serde_json::from_str(&line).map_err(|error| self.error(number, error))?;
            let tag = tagged.r#type.as_deref().unwrap_or("event");
            if look(tag, &line, number)?.is_break() {
                return Ok(());
            }
        }
    }

    /// The first event.
    pub(super) fn first(&self) -> Result<Option<Event>, Error> {
        let mut first = None;
        self.each_event(|_, event| {
            first = Some(event);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(first)
    }

    /// The context nodes that the file has: what each says, as a hash, and the one before it.
    pub(super) fn nodes(&self) -> Result<HashMap<Digest, (u64, Option<Digest>)>, Error> {
        let mut nodes = HashMap::new();
        self.each_line(|tag, line, number| {
            if tag != "blob" {
                return Ok(ControlFlow::Continue(()));
            }
            let wrong = |why: String| self.error(number, why);
            let blob: BlobLine =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let bytes = base64::engine::general_purpose::STANDARD.decode(blob.base64);
            let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
            nodes.extend(trace::of_node(&bytes).map(|node| (blob.digest, node)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(nodes)
    }

    /// Shows each event to someone.
    pub(super) fn each_event(
        &self,
        mut look: impl FnMut(RunId, Event) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let mut of_run = None;
        self.each_line(|tag, line, number| {
            if tag != "event" {
                return Ok(ControlFlow::Continue(()));
            }
            let wrong = |why: String| self.error(number, why);
            let line: EventLine =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let run = *of_run.get_or_insert(line.run);
            if run != line.run {
                return Err(wrong(format!("{} follows in a log of {run}", line.run)));
            }
            let body = match (line.body, line.body_digest) {
                (Some(text), _) => StoredBody::Text(text.get().to_owned()),
                (None, Some(digest)) => StoredBody::Erased(digest),
                (None, None) => return Err(wrong("the event has no body".to_owned())),
            };
            let record = Record {
                seq: line.seq,
                at: line.at,
                caller_at: line.caller_at,
                epoch: line.epoch,
                late: line.late,
                format: line.format,
                kind: line.kind,
                body,
                digest: line.digest,
                origin: line.origin,
            };
            look(
                run,
                record.decode().map_err(|error| wrong(error.to_string()))?,
            )
        })
    }

    /// The events at these places.
    pub(super) fn events(&self, wanted: &[Seq]) -> Result<HashMap<Seq, Event>, Error> {
        let wanted: HashSet<Seq> = wanted.iter().copied().collect();
        let mut events = HashMap::new();
        self.each_event(|_, event| {
            if wanted.contains(&event.seq) {
                events.insert(event.seq, event);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(events)
    }

    /// A value, from its blob when it is in one; the reference when the file has no such blob.
    pub(super) fn value(&self, payload: &Payload) -> Result<logreel_core::Json, Error> {
        let Payload::Blob(reference) = payload else {
            return Ok(payload.to_json());
        };
        let mut found = None;
        self.each_line(|tag, line, number| {
            if tag != "blob" {
                return Ok(ControlFlow::Continue(()));
            }
            let wrong = |why: String| self.error(number, why);
            let blob: BlobLine =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if blob.digest == reference.blob {
                let bytes = base64::engine::general_purpose::STANDARD.decode(blob.base64);
                let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
                let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
                let json = logreel_core::Json::parse(text);
                found = Some(json.map_err(|error| wrong(error.to_string()))?);
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found.unwrap_or_else(|| payload.to_json()))
    }
}
