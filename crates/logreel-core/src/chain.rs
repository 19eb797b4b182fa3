//! The chain: every event's digest covers the one before it and a header that holds the digest of
//! its body. So any change, drop, swap or insertion of stored bytes is named at its seq, and a body
//! can be erased without breaking what follows.

use crate::codec::{FORMAT, Record, StoredBody, encode_body};
use crate::command::Draft;
use crate::id::{Epoch, Head, RunId, Seq};
use crate::{Digest, Event, Timestamp};

/// The run's random key. Bodies are hashed with it, so that an erased body cannot be guessed from
/// its digest once the key is gone too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RunKey(pub [u8; 32]);

impl std::fmt::Debug for RunKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunKey(..)")
    }
}

impl RunKey {
    /// 64 hex digits, as a file carries it.
    pub fn to_hex(&self) -> String {
        Digest(self.0).hex()
    }

    /// The key that [`RunKey::to_hex`] wrote.
    pub fn from_hex(hex: &str) -> Option<Self> {
        Some(Self(*blake3::Hash::from_hex(hex).ok()?.as_bytes()))
    }

    /// The digest of a body exactly as stored.
    pub fn body_digest(&self, body: &str) -> Digest {
        Digest(*blake3::keyed_hash(&self.0, body.as_bytes()).as_bytes())
    }
}

/// What an event's digest covers, beside the digest before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Header<'a> {
    /// The format of the body.
    pub format: u16,
    /// The position.
    pub seq: Seq,
    /// When it was appended.
    pub at: Timestamp,
    /// The caller's own time.
    pub caller_at: Option<Timestamp>,
    /// The driver's epoch.
    pub epoch: Epoch,
    /// The kind.
    pub kind: &'a str,
    /// Recorded after the end.
    pub late: bool,
    /// The keyed digest of the body.
    pub body_digest: Digest,
}

impl Header<'_> {
    /// The canonical text (RFC 8785): keys sorted, no blanks. Written by hand, on every append.
    pub fn canonical(&self) -> String {
        let mut text = String::with_capacity(320);
        text.push_str(r#"{"at":""#);
        self.at.push_to(&mut text);
        text.push_str(r#"","body_digest":""#);
        self.body_digest.push_to(&mut text);
        text.push_str(r#"","caller_at":"#);
        match self.caller_at {
            Some(time) => {
                text.push('"');
                time.push_to(&mut text);
                text.push('"');
            }
            None => text.push_str("null"),
        }
        text.push_str(r#","epoch":"#);
        push_number(&mut text, self.epoch.0);
        text.push_str(r#","format":"#);
        push_number(&mut text, self.format.into());
        text.push_str(r#","kind":"#);
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'.' | b'_');
        if self.kind.bytes().all(is_plain) {
            text.push('"');
            text.push_str(self.kind);
            text.push('"');
        } else {
            text.push_str(&serde_json::to_string(self.kind).expect("a string serializes"));
        }
        text.push_str(r#","late":"#);
        text.push_str(if self.late { "true" } else { "false" });
        text.push_str(r#","seq":"#);
        push_number(&mut text, self.seq.0);
        text.push('}');
        text
    }

    /// The chain's digest at this event.
    pub fn digest(&self, previous: &Digest) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(previous.as_bytes())
            .update(self.canonical().as_bytes());
        Digest(*hasher.finalize().as_bytes())
    }
}

/// Writes what `Display` does, on the path of every append.
pub(crate) fn push_number(text: &mut String, mut number: u64) {
    // As many as the largest has.
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&digits[at..]).expect("digits are text"));
}

/// The head of a log without events: what event 1 is chained to.
pub fn origin(run: &RunId) -> Head {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(b"logreel.run.v1\0")
        .update(run.to_string().as_bytes());
    Head {
        seq: Seq::NONE,
        digest: Digest(*hasher.finalize().as_bytes()),
    }
}

/// Where the next events go: the end of a log, and what they share.
#[derive(Debug, Clone)]
pub struct Sealer {
    /// The end of the log so far.
    pub head: Head,
    /// The last event's time.
    pub at: Timestamp,
    /// The run's key.
    pub key: RunKey,
}

/// A sealed event, decoded and as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Sealed {
    /// The event.
    pub event: Event,
    /// Its body's text.
    pub text: String,
}

impl Sealed {
    /// The event as stored.
    pub fn record(&self) -> Record {
        Record {
            seq: self.event.seq,
            at: self.event.at,
            caller_at: self.event.caller_at,
            epoch: self.event.epoch,
            late: self.event.late,
            format: FORMAT,
            kind: self.event.body.kind().to_owned(),
            body: StoredBody::Text(self.text.clone()),
            digest: self.event.digest,
            origin: None,
        }
    }
}

impl Sealer {
    /// The sealer of a run without events.
    pub fn start(run: &RunId, key: RunKey) -> Self {
        Self {
            head: origin(run),
            at: Timestamp::from_micros(i64::MIN),
            key,
        }
    }

    /// Gives a draft its place in the log. `now` is the appending engine's clock (the database's in
    /// PostgreSQL); a clock that went back does not take the log back.
    pub fn seal(&mut self, draft: Draft, text: String, epoch: Epoch, now: Timestamp) -> Sealed {
        self.at = self.at.max(now);
        let seq = self.head.seq.next();
        let header = Header {
            format: FORMAT,
            seq,
            at: self.at,
            caller_at: draft.caller_at,
            epoch,
            kind: draft.body.kind(),
            late: draft.late,
            body_digest: self.key.body_digest(&text),
        };
        let digest = header.digest(&self.head.digest);
        self.head = Head { seq, digest };
        let Draft {
            body,
            caller_at,
            late,
        } = draft;
        Sealed {
            event: Event {
                seq,
                at: self.at,
                caller_at,
                epoch,
                late,
                digest,
                body,
            },
            text,
        }
    }

    /// [`Sealer::seal`] for a draft whose body was not written yet.
    pub fn seal_draft(
        &mut self,
        draft: Draft,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<Sealed, serde_json::Error> {
        let text = encode_body(&draft.body)?;
        Ok(self.seal(draft, text, epoch, now))
    }
}

/// Where and how stored bytes are not what was appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// An event is missing, doubled or out of its place.
    #[error("event {expected} should follow, but event {found} was found")]
    Position {
        /// The seq that should come.
        expected: Seq,
        /// The seq that came.
        found: Seq,
    },
    /// The stored digest is not that of the stored bytes.
    #[error("event {0} is not what was appended: its digest does not match its bytes")]
    Digest(Seq),
    /// The time went back.
    #[error("event {0} is earlier than the one before it")]
    Time(Seq),
    /// The writer changed without a fork.
    #[error("event {0} is of another run than the one before it, and is no run.forked")]
    Origin(Seq),
    /// The log holds nothing that was written for its run.
    #[error("the log ends with event {0}, which is of another run")]
    NotItsOwn(Seq),
    /// The log ends elsewhere than its run's head says.
    #[error("the log ends at event {found}, but its head is event {expected}")]
    Head {
        /// What the head says.
        expected: Seq,
        /// Where the log ends.
        found: Seq,
    },
}

/// Checks a log event by event, from the first. The events that a fork shares are checked with the
/// keys of the runs they were written for.
#[derive(Debug, Clone)]
pub struct Verifier {
    run: RunId,
    head: Head,
    at: Timestamp,
    /// Whose event was checked last.
    writer: RunId,
    /// A run's own and those of the runs it was forked from: a handful.
    keys: Vec<(RunId, Option<RunKey>)>,
}

impl Verifier {
    /// Begins before event 1. Without the key only erased bodies can be checked.
    pub fn new(run: &RunId, key: Option<RunKey>) -> Self {
        Self {
            run: *run,
            head: origin(run),
            at: Timestamp::from_micros(i64::MIN),
            writer: *run,
            keys: vec![(*run, key)],
        }
    }

    /// Begins after an event of the run's own that was checked before, with all keys that are needed.
    pub fn after(run: &RunId, head: Head, at: Timestamp, key: Option<RunKey>) -> Self {
        Self {
            head,
            at,
            ..Self::new(run, key)
        }
    }

    /// The run whose key must be [added](Self::add_key) before this event can be checked.
    pub fn needs_key_of(&self, record: &Record) -> Option<RunId> {
        let is_known = |run: &RunId| self.keys.iter().any(|(known, _)| known == run);
        record.origin.filter(|run| !is_known(run))
    }

    /// The key of a run that this log shares events with; `None` when it was erased.
    pub fn add_key(&mut self, run: RunId, key: Option<RunKey>) {
        self.keys.push((run, key));
    }

    /// Checks the next event.
    pub fn check(&mut self, record: &Record) -> Result<(), ChainError> {
        let expected = self.head.seq.next();
        if record.seq != expected {
            return Err(ChainError::Position {
                expected,
                found: record.seq,
            });
        }
        let writer = record.origin.unwrap_or(self.run);
        let previous = match self.head.seq {
            Seq::NONE => origin(&writer).digest,
            _ => self.head.digest,
        };
        let key = self.keys.iter().find(|(run, _)| *run == writer);
        let key = key.and_then(|(_, key)| *key);
        let body_digest = match (&record.body, &key) {
            (StoredBody::Text(text), Some(key)) => key.body_digest(text),
            (StoredBody::Text(_), None) => return Err(ChainError::Digest(record.seq)),
            (StoredBody::Erased(digest), _) => *digest,
        };
        let header = Header {
            format: record.format,
            seq: record.seq,
            at: record.at,
            caller_at: record.caller_at,
            epoch: record.epoch,
            kind: &record.kind,
            late: record.late,
            body_digest,
        };
        let digest = header.digest(&previous);
        if digest != record.digest {
            return Err(ChainError::Digest(record.seq));
        }
        // The key says whose event it is, but not once the body was erased.
        let begins = record.seq == Seq::FIRST || record.kind == "run.forked";
        if writer != self.writer && !begins {
            return Err(ChainError::Origin(record.seq));
        }
        if record.at < self.at {
            return Err(ChainError::Time(record.seq));
        }
        self.head = Head {
            seq: record.seq,
            digest,
        };
        self.at = record.at;
        self.writer = writer;
        Ok(())
    }

    /// Checks that the log ends where the run's head says.
    pub fn finish(self, head: &Head) -> Result<Head, ChainError> {
        if self.head.seq != head.seq {
            return Err(ChainError::Head {
                expected: head.seq,
                found: self.head.seq,
            });
        }
        if self.head.digest != head.digest {
            return Err(ChainError::Digest(head.seq));
        }
        if self.writer != self.run {
            return Err(ChainError::NotItsOwn(self.head.seq));
        }
        Ok(self.head)
    }

    /// The end of what was checked so far.
    pub fn head(&self) -> Head {
        self.head
    }
}
