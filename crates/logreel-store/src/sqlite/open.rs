//! Opening a store: what can be chosen, what is refused, and the parts that make it up.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logreel_core::event::Durability;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::connect::{self, Role, nap};
use super::failure::{Halt, failed};
use super::owners::Owners;
use super::place::{self, Found};
use super::schema;
use super::tail::Tail;
use super::writer::{Helper, Writer};
use crate::doorbell::Doorbells;
use crate::tip::PAYLOAD_MAX_BYTES;
use crate::{Env, Error, Migrations, SystemEnv};

/// Readers that are kept open while nobody reads.
const IDLE_READERS: usize = 4;

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// Make the file, and its folder, when there is none.
    pub create: bool,
    /// How losing power is guarded against.
    pub durability: Durability,
    /// How long an owner elsewhere may be silent before others take its runs.
    pub lease: Duration,
    /// The largest body or blob.
    pub payload_bytes_max: u64,
    /// Where time and randomness come from.
    pub env: Arc<dyn Env>,
}

/// Whether appends keep the run's row. Without it a store is good for nothing but a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// As every store must.
    Kept,
    /// Only the events are written.
    #[cfg(feature = "bench")]
    Left,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: false,
            durability: Durability::Full,
            lease: Duration::from_secs(10),
            payload_bytes_max: PAYLOAD_MAX_BYTES,
            env: Arc::new(SystemEnv),
        }
    }
}

/// A store in one SQLite file. A clone is the same store.
#[derive(Clone)]
pub struct SqliteStore(Arc<Inner>);

struct Inner {
    // Dropped in this order: the threads end before the connections they use.
    _helper: Helper,
    tail: Tail,
    writer: Arc<Writer>,
    readers: Mutex<Vec<Connection>>,
    shared: Arc<Shared>,
}

/// What every part of a store knows.
pub(super) struct Shared {
    pub path: PathBuf,
    pub durability: Durability,
    pub payload_bytes_max: u64,
    pub env: Arc<dyn Env>,
    pub owners: Owners,
    pub bells: Arc<Doorbells>,
    /// Set while the writer's connection must not wait for other processes.
    pub hurried: Arc<AtomicBool>,
    pub rows: Rows,
}

impl SqliteStore {
    /// Opens a store, or makes one.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        Self::open_any(path.as_ref(), options, Rows::Kept)
    }

    /// Opens a store, perhaps one that leaves the rows of runs behind.
    #[cfg(feature = "bench")]
    pub fn open_with(path: impl AsRef<Path>, options: Options, rows: Rows) -> Result<Self, Error> {
        Self::open_any(path.as_ref(), options, rows)
    }

    fn open_any(path: &Path, options: Options, rows: Rows) -> Result<Self, Error> {
        let Options {
            create,
            durability,
            lease,
            payload_bytes_max,
            env,
        } = options;
        let path = match place::find(path, create)? {
            Found::File(path) | Found::Nothing(path) => path,
        };
        let shared = Arc::new(Shared {
            owners: Owners::new(&path, env.clone(), lease),
            bells: Arc::new(Doorbells::default()),
            hurried: Arc::default(),
            path,
            durability,
            payload_bytes_max,
            env,
            rows,
        });
        let conn = open_checked(&shared, create).map_err(|error| error_at(&shared.path, error))?;
        let writer = Arc::new(Writer::new(shared.clone(), conn));
        let helper = writer.start_helper()?;
        let tail = Tail::new(shared.clone());
        let readers = Mutex::default();
        Ok(Self(Arc::new(Inner {
            _helper: helper,
            tail,
            writer,
            readers,
            shared,
        })))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.shared.path
    }

    /// How losing power is guarded against.
    pub fn durability(&self) -> Durability {
        self.0.shared.durability
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(super) fn writer(&self) -> &Writer {
        &self.0.writer
    }

    pub(super) fn tail(&self) -> &Tail {
        &self.0.tail
    }

    /// Reads on a connection of its own, which no writer makes wait.
    pub(super) fn reading<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Halt>,
    ) -> Result<T, Error> {
        let idle = self.readers().pop();
        let conn = match idle {
            Some(conn) => conn,
            None => connect_reader(&self.0.shared)?,
        };
        let answer = read(&conn);
        if !matches!(answer, Err(Halt::Database(_))) {
            let mut readers = self.readers();
            if readers.len() < IDLE_READERS {
                readers.push(conn);
            }
        }
        Ok(answer?)
    }

    fn readers(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // Nothing panics while the pool is locked.
        self.0
            .readers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path())
            .field("durability", &self.durability())
            .finish_non_exhaustive()
    }
}

/// A connection that reads.
pub(super) fn connect_reader(shared: &Shared) -> Result<Connection, Error> {
    let conn = connect::open(&shared.path, false, Arc::default()).map_err(failed)?;
    connect::set_up(&conn, Role::Reader, shared.durability)?;
    Ok(conn)
}

/// The connection that writes, to a store that was opened before.
pub(super) fn connect_writer(shared: &Shared) -> Result<Connection, Error> {
    open_checked(shared, false)
}

fn open_checked(shared: &Shared, create: bool) -> Result<Connection, Error> {
    let path = &shared.path;
    let refused = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::Invalid {
            path: path.clone(),
            why: "it is not a SQLite database; name another file".to_owned(),
        },
        _ => failed(error),
    };
    let conn = connect::open(path, create, shared.hurried.clone()).map_err(refused)?;
    if conn.is_readonly(rusqlite::MAIN_DB).map_err(refused)? {
        let what = format!("{} is read-only; make it writable", path.display());
        return Err(Error::unavailable(what));
    }
    let tables = check_schema(&conn, path, create).map_err(|halt| match halt {
        Halt::Database(error) => refused(error),
        Halt::Refused(error) => error,
    })?;
    if tables == Tables::None {
        // Says nothing once the first page is written.
        conn.pragma_update(None, "page_size", schema::PAGE_BYTES)
            .map_err(refused)?;
    }
    become_wal(&conn).map_err(refused)?;
    connect::set_up(&conn, Role::Writer, shared.durability)?;
    if tables != Tables::Ours {
        // Another process may be making them at the same time: look again under the lock.
        let tx = Transaction::new_unchecked(&conn, TransactionBehavior::Immediate);
        let tx = tx.map_err(refused)?;
        if schema::is_empty(&tx).map_err(refused)? {
            schema::create(&tx).map_err(refused)?;
        }
        schema::upgrade(&tx).map_err(refused)?;
        tx.commit().map_err(refused)?;
    }
    check_whole(&conn, path)?;
    Ok(conn)
}

/// Says which file it is about; what SQLite says does not.
fn error_at(path: &Path, error: Error) -> Error {
    let path = path.display().to_string();
    let named = |what: String| match what.contains(&path) {
        true => what,
        false => format!("{path}: {what}"),
    };
    match error {
        Error::Unavailable { what, source } => Error::Unavailable {
            what: named(what),
            source,
        },
        Error::Corrupt { what, source } => Error::Corrupt {
            what: named(what),
            source,
        },
        other => other,
    }
}

impl SqliteStore {
    /// What must be done to the store in this file before this build can use it. Does nothing of it: opening
    /// the store does.
    pub fn migrations(path: &Path) -> Result<Migrations, Error> {
        if !path.exists() {
            return Ok(Migrations::new(None, &schema::BRINGS));
        }
        let told = |halt: Halt| error_at(path, halt.into());
        let conn =
            connect::open(path, false, Arc::default()).map_err(|error| told(error.into()))?;
        let found = match check_schema(&conn, path, true).map_err(told)? {
            Tables::None => None,
            Tables::Older | Tables::Ours => {
                Some(schema::version(&conn).map_err(|error| told(error.into()))?)
            }
        };
        Ok(Migrations::new(found, &schema::BRINGS))
    }
}

/// What is in a file that may be a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tables {
    /// Nothing.
    None,
    /// Those of an older build, which are brought up to date.
    Older,
    /// Ours.
    Ours,
}

/// Whether the file has our tables, or may be given them.
fn check_schema(conn: &Connection, path: &Path, create: bool) -> Result<Tables, Halt> {
    // All of one moment: whoever is making the tables commits between two looks.
    let (application, version, is_empty) = {
        let moment = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
        let is_empty = schema::is_empty(&moment)?;
        (
            schema::application(&moment)?,
            schema::version(&moment)?,
            is_empty,
        )
    };
    if application != schema::APPLICATION_ID {
        // Nobody's yet: also what is left when whoever made it was killed before its first commit.
        if application == 0 && version == 0 && is_empty {
            return match create {
                true => Ok(Tables::None),
                false => Err(place::no_store(path).into()),
            };
        }
        let why = "it is a SQLite database of another application; name another file".to_owned();
        return Err(Error::Invalid {
            path: path.to_owned(),
            why,
        }
        .into());
    }
    match version {
        schema::VERSION => Ok(Tables::Ours),
        1..schema::VERSION => Ok(Tables::Older),
        found if found > schema::VERSION => {
            let path = path.to_owned();
            Err(Error::NewerSchema {
                path,
                found,
                known: schema::VERSION,
            }
            .into())
        }
        other => Err(Error::corrupt(format!("schema {other} never existed")).into()),
    }
}

/// Two processes that open a new file at once are in each other's way for a moment, and SQLite does
/// not ask the busy handler about this one.
fn become_wal(conn: &Connection) -> rusqlite::Result<()> {
    let mut attempts = 0;
    loop {
        let mode: rusqlite::Result<String> =
            conn.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0));
        match mode {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && attempts < 2000 =>
            {
                attempts += 1;
                nap(Duration::from_millis(1));
            }
            // Whether it is WAL now is read back with the other pragmas.
            other => return other.map(drop),
        }
    }
}

/// A file that is shorter than its pages, beyond what the log beside it still holds, was cut.
fn check_whole(conn: &Connection, path: &Path) -> Result<(), Error> {
    let pragma = |name: &str| {
        let value = conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
        value.map(super::rows::unsigned).map_err(failed)
    };
    let (pages, page_bytes) = (pragma("page_count")?, pragma("page_size")?);
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |it| it.len());
    let in_log = bytes(&beside(path, "-wal")) / page_bytes;
    if bytes(path) / page_bytes + in_log < pages {
        let what = format!("{} is cut short; restore a backup", path.display());
        return Err(Error::corrupt(what));
    }
    Ok(())
}

/// A file that SQLite keeps beside the database.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
