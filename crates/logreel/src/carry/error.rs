//! What can be wrong with a file of runs.

use std::io;
use std::sync::Arc;

use logreel_core::RunId;

use super::check::{Problem, Unfolded};
use crate::ErrorKind;

/// Why a file of runs was not read or written. Nothing was imported.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FileError {
    /// The system said no.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// It begins like neither a `jsonl` nor a `reel`.
    #[error("it is no log of logreel: it begins like neither a jsonl export nor a reel")]
    Unknown,
    /// It cannot be unpacked: it was cut short or changed.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A newer build wrote it.
    #[error("it is {what} {found}, this build reads up to {known}; use a newer logreel")]
    Newer {
        /// Of what: the version of a reel, the format of a log.
        what: &'static str,
        /// Its version.
        found: u64,
        /// Ours.
        known: u64,
    },
    /// A line is not what must stand there.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// It takes more room than a file of its size can.
    #[error("it unpacks to more than {max} bytes, which no log of its size does")]
    TooLarge {
        /// How much was read before that was clear.
        max: u64,
    },
    /// The log of a run does not hold.
    #[error("{run}: {problem}")]
    Problem {
        /// Which run.
        run: RunId,
        /// What is wrong.
        problem: Problem,
    },
    /// Only the chain of the log is left, or known here.
    #[error("{run} cannot be imported ({why})")]
    Unfolded {
        /// Which run.
        run: RunId,
        /// Why not.
        why: Unfolded,
    },
}

impl FileError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            what,
            source: Arc::new(source),
        }
    }

    pub(super) fn line(line: u64, what: impl Into<String>) -> Self {
        Self::Line {
            line,
            what: what.into(),
        }
    }

    pub(super) fn of(run: RunId, problem: Problem) -> Self {
        Self::Problem { run, problem }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Unavailable,
            Self::Newer { .. }
            | Self::Unfolded {
                why: Unfolded::Newer,
                ..
            } => ErrorKind::NewerFormat,
            Self::Unfolded {
                why: Unfolded::Erased,
                ..
            } => ErrorKind::NotApplicable,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Unknown | Self::Damaged(_) | Self::Line { .. } | Self::Problem { .. } => {
                ErrorKind::Invalid
            }
        }
    }
}
