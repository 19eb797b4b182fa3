//! How a failing database becomes an error of ours: in one place.

use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::Error;

/// Why a job of a batch stopped. A refusal has written nothing and fails alone; a failing database
/// takes the whole batch with it.
#[derive(Debug)]
pub(super) enum Halt<E = Error> {
    /// The database failed.
    Database(rusqlite::Error),
    /// The job is refused.
    Refused(E),
}

impl Halt {
    /// The same, for an operation with an error type of its own.
    pub fn lift<E: From<Error>>(self) -> Halt<E> {
        match self {
            Self::Database(error) => Halt::Database(error),
            Self::Refused(error) => Halt::Refused(error.into()),
        }
    }
}

impl<E> From<rusqlite::Error> for Halt<E> {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl<E: From<Error>> From<Error> for Halt<E> {
    fn from(error: Error) -> Self {
        Self::Refused(error.into())
    }
}

impl From<Halt> for Error {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Database(error) => failed(error),
            Halt::Refused(error) => error,
        }
    }
}

/// What SQLite's error means and what to do about it.
pub(super) fn failed(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    let unavailable = |what: &str| Error::Unavailable {
        what: what.to_owned(),
        source: Some(Arc::new(Said(error.to_string()))),
    };
    match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            unavailable("other processes kept it busy for 10 seconds; try again")
        }
        Some(ErrorCode::DiskFull) => unavailable("the disk is full; free space and try again"),
        Some(ErrorCode::ReadOnly) => {
            unavailable("it is read-only; make the file and its folder writable")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            unavailable("the file cannot be opened; check its folder and permissions")
        }
        Some(ErrorCode::SystemIoFailure) => {
            unavailable("the disk reports an error; check it and try again")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt {
            what: "SQLite cannot make sense of the file; restore a backup".to_owned(),
            source: Some(Arc::new(Said(error.to_string()))),
        },
        Some(ErrorCode::OutOfMemory) => unavailable("memory is exhausted"),
        _ => match error {
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..) => Error::Corrupt {
                what: "a stored value has the wrong type".to_owned(),
                source: Some(Arc::new(Said(error.to_string()))),
            },
            other => Error::Bug(format!("SQLite refused a statement: {other}")),
        },
    }
}

/// Whether the database surely holds nothing of a transaction that failed like this.
pub(super) fn surely_not_written(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::ReadOnly
        )
    )
}

/// A stored value that does not hold.
pub(super) fn damaged(what: impl Into<String>) -> Error {
    Error::corrupt(what)
}

/// SQLite's own words; its error type cannot be shared between threads.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);
