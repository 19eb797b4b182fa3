//! Taking a log in that was written elsewhere, as far as it is the same in every store (SEMANTICS 34).
//!
//! Whoever imports has read the whole log once, checked it and folded it. The events come by once more
//! while they are written, and are chained to the head that was folded: so what is stored is what was
//! checked, though the file may have changed in between.

use std::sync::Arc;

use logreel_core::codec::StoredBody;
use logreel_core::meaning::ResultSet;
use logreel_core::{
    Blob, ChainError, Digest, Epoch, Head, Record, Row, RunId, RunKey, Session, Timestamp, Verifier,
};

use crate::Error;

/// A log on its way in.
pub struct Import {
    /// The fold of all of it.
    pub row: Row,
    /// The sum of its results.
    pub results: ResultSet,
    /// The keys of the run and of those that it shares events with.
    pub keys: Vec<(RunId, RunKey)>,
    /// How much of it is here already; `None` when the run is not.
    pub after: Option<Head>,
    /// What is not here yet.
    pub source: Box<dyn Source>,
}

/// Where the events and blobs of an import come from, one at a time.
pub trait Source: Send {
    /// The next event after [`Import::after`]; `None` after the last.
    fn next_event(&mut self) -> Result<Option<Record>, Fault>;

    /// The next blob that the log refers to, once there are no more events; `None` after the last.
    fn next_blob(&mut self) -> Result<Option<ImportedBlob>, Fault>;
}

/// A blob of an import.
#[derive(Debug, Clone)]
pub struct ImportedBlob {
    /// The blob.
    pub blob: Blob,
    /// The context node before it, when it is one.
    pub previous: Option<Digest>,
}

/// Why a source stopped.
pub type Fault = Arc<dyn std::error::Error + Send + Sync>;

/// Why a log was not taken in. Nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImportError {
    /// The run is not, or no longer, as whoever imports has seen it: look again.
    #[error("the run has changed here meanwhile; import it again")]
    Changed {
        /// The end of what is here; `None` when there is nothing.
        head: Option<Head>,
    },
    /// Someone drives the run here.
    #[error("{run} is driven here by {by}")]
    Driven {
        /// Which run.
        run: RunId,
        /// By whom.
        by: String,
    },
    /// The session has an active run.
    #[error("session {session} is busy with {active}")]
    Busy {
        /// Which session.
        session: Session,
        /// The run that is active in it.
        active: RunId,
    },
    /// Another run has the same key.
    #[error("key {key} of the imported run belongs to {run} here")]
    KeyTaken {
        /// Which key.
        key: String,
        /// Whose it is.
        run: RunId,
    },
    /// The events are not those that were folded.
    #[error("the log does not hold: {0}")]
    Chain(#[from] ChainError),
    /// The source failed.
    #[error("the log cannot be read: {0}")]
    Source(Fault),
    /// The world.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The events of an import, checked one by one.
pub(crate) struct Taking {
    verifier: Verifier,
    head: Head,
    payload_bytes_max: u64,
}

impl Taking {
    /// `after_at` is the time of the last event that is here.
    pub fn new(import: &Import, after_at: Option<Timestamp>, payload_bytes_max: u64) -> Self {
        let run = import.row.run;
        let own = import.key_of(&run);
        let mut verifier = match import.after.zip(after_at) {
            Some((head, at)) => Verifier::after(&run, head, at, own),
            None => Verifier::new(&run, own),
        };
        for (origin, key) in import.keys.iter().filter(|(origin, _)| *origin != run) {
            verifier.add_key(*origin, Some(*key));
        }
        Self {
            verifier,
            head: import.row.head,
            payload_bytes_max,
        }
    }

    /// The next event.
    pub fn take(&mut self, record: &Record) -> Result<(), ImportError> {
        let StoredBody::Text(text) = &record.body else {
            return Err(Error::Erased(record.seq).into());
        };
        self.check_size(text.len())?;
        Ok(self.verifier.check(record)?)
    }

    pub fn check_size(&self, bytes: usize) -> Result<(), Error> {
        match bytes as u64 {
            bytes if bytes > self.payload_bytes_max => Err(Error::TooLarge {
                bytes,
                max: self.payload_bytes_max,
            }),
            _ => Ok(()),
        }
    }

    /// All of them were there.
    pub fn finish(self) -> Result<(), ImportError> {
        self.verifier.finish(&self.head)?;
        Ok(())
    }
}

impl Import {
    pub(crate) fn key_of(&self, run: &RunId) -> Option<RunKey> {
        let known = self.keys.iter().find(|(known, _)| known == run);
        known.map(|(_, key)| *key)
    }

    /// The epoch after it: whoever drove the run here is fenced, and whoever drives it next begins one
    /// that the log does not have.
    pub(crate) fn epoch_after(&self, here: Option<Epoch>) -> Epoch {
        match here {
            Some(here) => here.max(self.row.epoch).next(),
            None => self.row.epoch,
        }
    }
}
