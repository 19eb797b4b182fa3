//! What can go wrong, by operation. Each error answers "what now?".

use std::path::PathBuf;
use std::sync::Arc;

use logreel_core::fold::IllegalEvent;
use logreel_core::{DecodeError, Epoch, Head, RunId, Seq, Session, Status};

/// What the world can do to any operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No such run. Check the id.
    #[error("there is no run {0}")]
    NotFound(RunId),
    /// The store cannot be reached or is too busy. Try again later.
    #[error("the store is unavailable: {what}")]
    Unavailable {
        /// What was tried, and what to do.
        what: String,
        /// What the system said.
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// The path cannot be a store: a folder, another kind of file, a network file system.
    #[error("{} cannot be used as a store: {why}", path.display())]
    Invalid {
        /// Which path.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// A newer build made this store. Use a newer logreel.
    #[error(
        "{} has store schema {found}, this build knows up to {known}; use a newer logreel",
        path.display()
    )]
    NewerSchema {
        /// Which store.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Stored bytes are not what was stored. Restore a backup; `logreel verify` says which run.
    #[error("the store is damaged: {what}")]
    Corrupt {
        /// What was found.
        what: String,
        /// What said so.
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// A newer build wrote this run. Use a newer logreel.
    #[error("{0}")]
    NewerFormat(String),
    /// A payload is over the ceiling; sending it again will not help.
    #[error("a payload of {bytes} bytes is over the ceiling of {max} bytes (payload_max)")]
    TooLarge {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        max: u64,
    },
    /// A name is longer than every store can look up. Use a shorter one, and put what is long into the input.
    #[error("{what} has {bytes} bytes, and may have {max}; what is longer belongs into the input")]
    TooLong {
        /// Which name.
        what: String,
        /// How long it is.
        bytes: u64,
        /// How long it may be.
        max: u64,
    },
    /// The commit's outcome is not known. Send the same append again, or look its id up.
    #[error("the outcome of the commit is not known; send the same append again: {what}")]
    Ambiguous {
        /// What happened.
        what: String,
    },
    /// The request id was used for something else. Use another one.
    #[error(
        "{0} knows this request id from another request, or from this one with other arguments; a new request needs an id of its own"
    )]
    RequestIdTaken(RunId),
    /// The run is still live or needed; it cannot be deleted.
    #[error("run {run} cannot be deleted: {why}")]
    StillNeeded {
        /// Which run.
        run: RunId,
        /// Why not.
        why: String,
    },
    /// Other runs share its log; it cannot be deleted before them.
    #[error("run {run} cannot be deleted: {} {} forked from it", listed(forks), if forks.len() == 1 { "is" } else { "are" })]
    ForkedFrom {
        /// Which run.
        run: RunId,
        /// The runs that share its log.
        forks: Vec<RunId>,
    },
    /// The run was imported and may be driven elsewhere. Take it over to drive it here.
    #[error(
        "{0} was imported and is read-only here; `resume --take-over` makes it this store's, once nobody drives it elsewhere; `erase` takes what it holds away again"
    )]
    ReadOnly(RunId),
    /// The run was erased: what is left of it can be verified, not read or driven.
    #[error("{0} was erased; only the chain of its log is left")]
    ErasedRun(RunId),
    /// The event's body was erased.
    #[error("the body of event {0} was erased")]
    Erased(Seq),
    /// The text is no cursor of this store. Use the `next` of a page.
    #[error("`{0}` is no cursor of this store")]
    InvalidCursor(String),
    /// A mistake of ours.
    #[error("this is a bug in logreel: {0}")]
    Bug(String),
}

fn listed(runs: &[RunId]) -> String {
    let runs: Vec<String> = runs.iter().map(RunId::to_string).collect();
    runs.join(", ")
}

impl Error {
    /// The store cannot be reached, and nobody but the words says why.
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable {
            what: what.into(),
            source: None,
        }
    }

    /// Stored bytes do not hold.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt {
            what: what.into(),
            source: None,
        }
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::NewerFormat { .. } => Self::NewerFormat(error.to_string()),
            DecodeError::Erased(seq) => Self::Erased(seq),
            DecodeError::Body { .. } => Self::Corrupt {
                what: error.to_string(),
                source: Some(Arc::new(error)),
            },
        }
    }
}

impl From<IllegalEvent> for Error {
    fn from(error: IllegalEvent) -> Self {
        match error.why {
            logreel_core::fold::Illegal::UnknownKind => Self::NewerFormat(error.to_string()),
            _ => Self::Corrupt {
                what: error.to_string(),
                source: Some(Arc::new(error)),
            },
        }
    }
}

/// Why a driver's append was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The log went on since this was decided: read what came, fold, decide, append again.
    #[error("the log has gone on to event {}", head.seq)]
    Conflict {
        /// The end of the log now.
        head: Head,
    },
    /// Another driver took over: stop.
    #[error("another driver took over (epoch {current})")]
    Fenced {
        /// The epoch now.
        current: Epoch,
    },
    /// The run has ended and its lease was given back: nothing can be appended any more.
    #[error("the run has {0} and its lease was given back")]
    Ended(Status),
    /// The events contradict the log. Nothing was written.
    #[error(transparent)]
    Illegal(#[from] IllegalEvent),
    /// The world.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Why a run was not created.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CreateError {
    /// The session has an active run.
    #[error("session {session} is busy with {active}")]
    Busy {
        /// Which session.
        session: Session,
        /// The run that is active in it.
        active: RunId,
    },
    /// The id or key is taken by a run with another spec, session or input.
    #[error("{what} belongs to {run}, which has another {differs}")]
    Conflict {
        /// The id or key.
        what: String,
        /// Whose it is.
        run: RunId,
        /// What differs: `spec`, `session`, `input`, or `parent` when it is a fork.
        differs: &'static str,
    },
    /// The key's run was pruned; keys outlive pruning by 30 days.
    #[error("key {key} belonged to {run}, which was deleted; the key is kept for 30 days")]
    KeyOfDeleted {
        /// Which key.
        key: String,
        /// Whose it was.
        run: RunId,
    },
    /// The session was closed.
    #[error("session {0} is closed")]
    SessionClosed(Session),
    /// The parent has ended, so it starts no child.
    #[error("the parent {0} has ended")]
    ParentEnded(RunId),
    /// The world.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Why a fork was not made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ForkError {
    /// The parent had ended there. Fork it at an event before its end.
    #[error("{run} ended with event {end}; it can be forked at event {} at the latest, not at {at}", end.0 - 1)]
    PastEnd {
        /// The parent.
        run: RunId,
        /// Where the fork was wanted.
        at: Seq,
        /// Where the parent ended.
        end: Seq,
    },
    /// The parent has no such event.
    #[error("{run} has no event {at}; its last is event {head}")]
    NoSuchEvent {
        /// The parent.
        run: RunId,
        /// Where the fork was wanted.
        at: Seq,
        /// Its last event.
        head: Seq,
    },
    /// The id is taken by another run or by another fork.
    #[error("{run} is there already and has another {differs}")]
    Conflict {
        /// The id.
        run: RunId,
        /// What differs.
        differs: &'static str,
    },
    /// The parent's bodies were erased: nothing can be shared.
    #[error("the bodies of {0} were erased; it cannot be forked")]
    Erased(RunId),
    /// What should follow the fork contradicts what it shares. Nothing was written.
    #[error("what is changed does not fit the run there: {0}")]
    Illegal(#[from] IllegalEvent),
    /// The world.
    #[error(transparent)]
    Store(#[from] Error),
}
