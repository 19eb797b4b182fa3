//! How a failing database becomes an error of ours: in one place.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use crate::Error;

/// Why the work of a transaction stopped.
#[derive(Debug)]
pub(super) enum Halt<E = Error> {
    /// The database failed.
    Database(tokio_postgres::Error),
    /// The work is refused, and has written nothing.
    Refused(E),
    /// Someone else was first: the whole transaction is done again, and will see them.
    Again,
}

impl Halt {
    /// The same, for an operation with an error type of its own.
    pub fn lift<E: From<Error>>(self) -> Halt<E> {
        match self {
            Self::Database(error) => Halt::Database(error),
            Self::Refused(error) => Halt::Refused(error.into()),
            Self::Again => Halt::Again,
        }
    }
}

impl<E> From<tokio_postgres::Error> for Halt<E> {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl<E: From<Error>> From<Error> for Halt<E> {
    fn from(error: Error) -> Self {
        Self::Refused(error.into())
    }
}

impl<E: From<Error>> Halt<E> {
    /// What the caller is told.
    pub fn told(self) -> E {
        match self {
            Self::Database(error) => failed(error).into(),
            Self::Refused(error) => error,
            Self::Again => {
                Error::unavailable("others kept changing the same runs; try again").into()
            }
        }
    }
}

/// Whether the same transaction may simply be tried again: the database chose it to give way.
pub(super) fn may_retry(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED)
    )
}

/// Whether the database itself answered, so that the outcome of what was sent is known.
pub(super) fn was_answered(error: &tokio_postgres::Error) -> bool {
    // An answer of class 57 or 08 may come while the server goes down in the middle of a commit, and 40003 says itself
    // that nobody knows.
    error.code().is_some_and(|code| {
        !matches!(&code.code()[..2], "57" | "08")
            && *code != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

/// What PostgreSQL's error means and what to do about it.
pub(super) fn failed(error: tokio_postgres::Error) -> Error {
    let what = match error.code().map(|code| code.code().to_owned()) {
        None if error.is_closed() => "the connection to the database was lost".to_owned(),
        None => {
            let text = error.to_string();
            // A value that does not read back as what it was written as.
            if text.contains("deserializing") {
                return Error::Corrupt {
                    what: "a stored value has the wrong type".to_owned(),
                    source: Some(Arc::new(error)),
                };
            }
            format!("the connection to the database failed: {}", said(&error))
        }
        Some(code) => match (&code[..2], code.as_str()) {
            ("40", _) => "others kept changing the same runs; try again".to_owned(),
            (_, "57014" | "55P03") => {
                "the database took too long and was asked to stop; try again".to_owned()
            }
            (_, "25P03") => "the transaction stood still and was given up; try again".to_owned(),
            (_, "25006") => "the database takes no writes; is it a standby?".to_owned(),
            (_, "2BP01") => format!(
                "something that is not ours was made upon our tables; remove it first: {}",
                said(&error)
            ),
            (_, "42501") => format!("the user may not do this: {}", said(&error)),
            ("08" | "57", _) => format!("the database is going down or starting: {}", said(&error)),
            ("53" | "58", _) => format!("the database lacks something: {}", said(&error)),
            ("28" | "3D", _) => format!("the database refused the connection: {}", said(&error)),
            ("XX", _) => {
                return Error::Corrupt {
                    what: format!("PostgreSQL reports damage: {}", said(&error)),
                    source: Some(Arc::new(error)),
                };
            }
            _ => return Error::Bug(format!("PostgreSQL refused a statement: {}", said(&error))),
        },
    };
    Error::Unavailable {
        what,
        source: Some(Arc::new(error)),
    }
}

/// The words of the server when there are any: the error itself says only that there was one.
pub(super) fn said(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(server), _) => server.message().to_owned(),
        (None, Some(source)) => source.to_string(),
        (None, None) => error.to_string(),
    }
}

/// A stored value that does not hold.
pub(super) fn damaged(what: impl Into<String>) -> Error {
    Error::corrupt(what)
}
