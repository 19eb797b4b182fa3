//! Looking a store over, for `logreel doctor`.

use rusqlite::Connection;

use super::connect::{self, Role};
use super::failure::Halt;
use super::open::{SqliteStore, connect_writer};
use super::rows;
use super::schema;

/// Newest runs whose projection is compared with their log.
const RUNS: u32 = 50;
/// A longer log is left to `verify`.
const EVENTS_MAX: u64 = 10_000;

/// What a store is made of, for whoever looks it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The version of SQLite.
    pub sqlite: String,
    /// The version of the tables.
    pub schema: u32,
    /// The settings of the connection that writes, as SQLite reports them.
    pub pragmas: Vec<(&'static str, String)>,
}

impl SqliteStore {
    /// What the store is made of.
    pub fn describe(&self) -> Result<Description, crate::Error> {
        let conn = connect_writer(self.shared())?;
        let mut pragmas = Vec::new();
        for name in [
            "journal_mode",
            "synchronous",
            "wal_autocheckpoint",
            "page_size",
        ] {
            let value: rusqlite::types::Value = conn
                .query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
                .map_err(Halt::from)?;
            let value = match value {
                rusqlite::types::Value::Text(text) => text,
                rusqlite::types::Value::Integer(number) => number.to_string(),
                other => format!("{other:?}"),
            };
            pragmas.push((name, value));
        }
        let schema = schema::version(&conn).map_err(Halt::from)?;
        Ok(Description {
            sqlite: rusqlite::version().to_owned(),
            schema,
            pragmas,
        })
    }

    /// What is wrong with the store; empty when nothing was found.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut note = |looked: Result<Vec<String>, crate::Error>| match looked {
            Ok(found) => problems.extend(found),
            Err(error) => problems.push(error.to_string()),
        };
        note(connect_writer(self.shared()).and_then(|conn| {
            Ok(connect::differing(&conn, Role::Writer, self.durability()).map_err(Halt::from)?)
        }));
        note(self.reading(check_pages));
        note(self.reading(check_schema));
        note(self.reading(check_projections));
        problems
    }
}

fn check_pages(conn: &Connection) -> Result<Vec<String>, Halt> {
    let mut statement = conn.prepare("PRAGMA quick_check(20)")?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?;
    let said: Vec<String> = said.collect::<Result<_, _>>()?;
    Ok(said.into_iter().filter(|line| line != "ok").collect())
}

fn check_schema(conn: &Connection) -> Result<Vec<String>, Halt> {
    let version = schema::version(conn)?;
    let known = schema::VERSION;
    let wrong = version != known;
    Ok(wrong
        .then(|| format!("schema {version} instead of {known}"))
        .into_iter()
        .collect())
}

/// The row is the fold of the log.
fn check_projections(conn: &Connection) -> Result<Vec<String>, Halt> {
    let mut statement = conn.prepare("SELECT id FROM runs ORDER BY id DESC LIMIT ?1")?;
    let ids: Vec<i64> = statement
        .query_map([RUNS], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut problems = Vec::new();
    for id in ids {
        // One moment for both, or a writer in between would look like damage.
        let moment = conn.unchecked_transaction()?;
        let Some(stored) = rows::load_id(&moment, id)? else {
            continue;
        };
        if stored.erased || stored.stale || stored.row.head.seq.0 > EVENTS_MAX {
            continue;
        }
        let run = stored.row.run;
        match rows::refold(&moment, id, run) {
            Ok(Some(folded)) if folded == (stored.row, stored.results) => {}
            Ok(Some(_)) => problems.push(format!("the row of {run} is not the fold of its log")),
            Ok(None) => {}
            Err(Halt::Refused(error)) => problems.push(format!("{run}: {error}")),
            Err(database) => return Err(database),
        }
    }
    Ok(problems)
}
