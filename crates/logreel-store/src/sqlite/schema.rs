//! The tables. `runs`, `events` and `blobs` are public for reading; times are microseconds since 1970,
//! digests are raw bytes, bodies are JSON text.
//!
//! - `runs` is wide and written rarely; `live` is narrow and written by every append, and has a row
//!   for each run that has not ended or whose lease was not given back yet. When a run leaves `live`,
//!   the head it had there moves to `runs`.
//! - `events.pos` is the order of all events and is never reused: the writer takes the next one after
//!   both the last event and `meta.pos_floor`, which a delete raises.
//! - The first event of every append has a `tag` or an `append_id`, the others have neither: this is
//!   how the answer to an append is found again.

use rusqlite::Connection;

/// Changes with the tables.
pub(super) const VERSION: u32 = 6;

/// What each version brought, for people.
pub(super) const BRINGS: [&str; VERSION as usize] = [
    "runs, events and all that they need",
    "limits, and messages that are stored once",
    "whose the events of imported forks are",
    "sums of results as bytes",
    "blobs ahead of the events that name them",
    "what owners are there for, and when they were heard last",
];

/// The page size of a new store. A row of more than half a page has the page to itself, and one of more
/// than a page fills pages to the brim: with 4 KiB, messages of 2 kB take twice their length. An append
/// takes as long with either; a scan of many small events is 5 to 15 % slower.
pub(super) const PAGE_BYTES: u32 = 2048;

/// Says that a SQLite file is a store of ours: "LogR".
pub(super) const APPLICATION_ID: i32 = 0x4c6f_6752;

const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('pos_floor', 0);

CREATE TABLE runs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run TEXT NOT NULL UNIQUE,
  short TEXT NOT NULL,
  status TEXT NOT NULL,
  session TEXT,
  agent TEXT NOT NULL,
  kind TEXT NOT NULL,
  spec_digest BLOB NOT NULL,
  final_state_digest BLOB,
  parent TEXT,
  relation TEXT,
  created_at INTEGER NOT NULL,
  -- The latest created_at up to this run: grows with id whatever the clock did.
  created_by INTEGER NOT NULL,
  key BLOB,
  fold_version INTEGER NOT NULL,
  -- The newest format that a fold of the log needs.
  needs INTEGER NOT NULL,
  erased INTEGER NOT NULL DEFAULT 0,
  read_only INTEGER NOT NULL DEFAULT 0,
  -- Of runs that left `live`; null before.
  epoch INTEGER,
  event_epoch INTEGER,
  head_seq INTEGER,
  head_digest BLOB,
  updated_at INTEGER,
  results BLOB,
  pulse TEXT,
  facts TEXT NOT NULL
);
CREATE INDEX runs_short ON runs (short);
CREATE INDEX runs_status ON runs (status, id);
CREATE INDEX runs_session ON runs (session, id) WHERE session IS NOT NULL;
CREATE INDEX runs_agent ON runs (agent, id);
CREATE INDEX runs_spec ON runs (spec_digest, id);
CREATE INDEX runs_state ON runs (final_state_digest, id) WHERE final_state_digest IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX runs_created ON runs (created_by, id);

CREATE TABLE live (
  run INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  event_epoch INTEGER NOT NULL,
  head_seq INTEGER NOT NULL,
  head_digest BLOB NOT NULL,
  updated_at INTEGER NOT NULL,
  results BLOB,
  pulse TEXT NOT NULL,
  owner INTEGER,
  since INTEGER,
  -- When nobody holds it: 0 when a worker may take it now, a deadline, or null.
  ready_at INTEGER,
  -- Of how many runs with this key how many may have an owner; null when there is no limit.
  limit_key TEXT,
  limit_max INTEGER
);
CREATE INDEX live_ready ON live (ready_at, run) WHERE owner IS NULL AND ready_at IS NOT NULL;
CREATE INDEX live_owner ON live (owner, run) WHERE owner IS NOT NULL;
CREATE INDEX live_limit ON live (limit_key, owner, run) WHERE limit_key IS NOT NULL;

CREATE TABLE events (
  pos INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  at INTEGER NOT NULL,
  caller_at INTEGER,
  epoch INTEGER NOT NULL,
  late INTEGER NOT NULL,
  format INTEGER NOT NULL,
  tag INTEGER,
  append_id TEXT,
  digest BLOB NOT NULL,
  -- Only once the body was erased.
  body_digest BLOB,
  body TEXT,
  UNIQUE (run, seq)
);
CREATE UNIQUE INDEX events_append ON events (run, append_id) WHERE append_id IS NOT NULL;

-- Whose the first events of a fork are that was imported whole, each up to an event; the run's own follow.
CREATE TABLE origins (
  run INTEGER NOT NULL, last INTEGER NOT NULL, origin TEXT NOT NULL, key BLOB,
  PRIMARY KEY (run, last)
) WITHOUT ROWID;

CREATE TABLE blobs (
  digest BLOB PRIMARY KEY,
  -- The context node before this one, which must live as long.
  previous BLOB,
  -- Where in `events` the bytes are that are not here (see `share`); null when all of them are.
  shares TEXT,
  bytes BLOB NOT NULL
);
CREATE INDEX blobs_previous ON blobs (previous) WHERE previous IS NOT NULL;
CREATE TABLE blob_refs (
  run INTEGER NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (run, digest)
) WITHOUT ROWID;
CREATE INDEX blob_refs_digest ON blob_refs (digest);

-- Of the references, those of blobs that no event of their run names yet, and since when.
CREATE TABLE staged (
  run INTEGER NOT NULL, digest BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (run, digest)
) WITHOUT ROWID;

CREATE TABLE labels (
  k TEXT NOT NULL, v TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (k, v, run)
) WITHOUT ROWID;
CREATE INDEX labels_run ON labels (run);

CREATE TABLE keys (
  key TEXT PRIMARY KEY, run TEXT NOT NULL, deleted_at INTEGER
) WITHOUT ROWID;

CREATE TABLE active (session TEXT PRIMARY KEY, run INTEGER NOT NULL UNIQUE) WITHOUT ROWID;
CREATE TABLE closed (session TEXT PRIMARY KEY) WITHOUT ROWID;

-- Changes without an event (a lease given back, a run deleted), for those who watch from elsewhere.
CREATE TABLE rings (n INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL);

CREATE TABLE owners (
  id INTEGER PRIMARY KEY,
  host TEXT NOT NULL,
  host_name TEXT NOT NULL,
  pid INTEGER NOT NULL,
  beat INTEGER NOT NULL,
  gone INTEGER NOT NULL,
  -- For people, no lease depends on either: JSON, and the wall clock of its latest beat.
  duty TEXT,
  beat_at INTEGER
);

-- Who lost the lease of a run in `live` by silence, and is not known dead.
CREATE TABLE lapsed (
  run INTEGER NOT NULL, epoch INTEGER NOT NULL, owner INTEGER NOT NULL, PRIMARY KEY (run, epoch)
) WITHOUT ROWID;
CREATE INDEX lapsed_owner ON lapsed (owner);

CREATE VIRTUAL TABLE search USING fts5 (
  input, output, agent, labels,
  content = '', contentless_delete = 1,
  tokenize = \"unicode61 remove_diacritics 2\"
);
";

/// Makes the tables, inside the caller's transaction.
pub(super) fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(TABLES)?;
    conn.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
    ))
}

/// Brings the tables of an older build to this version, inside the caller's transaction.
pub(super) fn upgrade(conn: &Connection) -> rusqlite::Result<()> {
    if version(conn)? == 1 {
        conn.execute_batch(
            "ALTER TABLE blobs ADD COLUMN shares TEXT;
             ALTER TABLE live ADD COLUMN limit_key TEXT;
             ALTER TABLE live ADD COLUMN limit_max INTEGER;
             CREATE INDEX live_limit ON live (limit_key, owner, run) WHERE limit_key IS NOT NULL;
             PRAGMA user_version = 2;",
        )?;
    }
    if version(conn)? == 2 {
        conn.execute_batch(
            "CREATE TABLE origins (
               run INTEGER NOT NULL, last INTEGER NOT NULL, origin TEXT NOT NULL, key BLOB,
               PRIMARY KEY (run, last)
             ) WITHOUT ROWID;
             PRAGMA user_version = 3;",
        )?;
    }
    if version(conn)? == 3 {
        conn.execute_batch(
            "UPDATE live SET results = unhex(results);
             UPDATE runs SET results = unhex(results);
             PRAGMA user_version = 4;",
        )?;
    }
    if version(conn)? == 4 {
        conn.execute_batch(
            "CREATE TABLE staged (
               run INTEGER NOT NULL, digest BLOB NOT NULL, at INTEGER NOT NULL,
               PRIMARY KEY (run, digest)
             ) WITHOUT ROWID;
             PRAGMA user_version = 5;",
        )?;
    }
    if version(conn)? == 5 {
        conn.execute_batch(
            "ALTER TABLE owners ADD COLUMN duty TEXT;
             ALTER TABLE owners ADD COLUMN beat_at INTEGER;
             PRAGMA user_version = 6;",
        )?;
    }
    Ok(())
}

/// The schema's version.
pub(super) fn version(conn: &Connection) -> rusqlite::Result<u32> {
    conn.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Whose file it is.
pub(super) fn application(conn: &Connection) -> rusqlite::Result<i32> {
    conn.query_row("PRAGMA application_id", [], |row| row.get(0))
}

/// Whether there is nothing in the file yet.
pub(super) fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)",
        [],
        |row| row.get(0),
    )
}
