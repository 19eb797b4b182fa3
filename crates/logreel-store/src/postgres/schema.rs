//! The tables, as numbered migrations. Times are microseconds since 1970, digests are raw bytes, bodies are
//! JSON text and never `jsonb`, so that they stay the bytes that were hashed.
//!
//! - `runs` is wide and written rarely; `live` is narrow and written by every append, and has a row
//!   for each run that has not ended or whose lease was not given back yet. When a run leaves `live`,
//!   the head it had there moves to `runs`.
//! - `queue` has a row for each row of `live`, and changes only under a lock of that one. They are apart because each
//!   append opens every index of the table that it updates, whether or not it changes what is in there.
//! - `events.stored_at` is the database's own clock, and puts the events of all runs in an order; within a run it
//!   never falls. It is no cursor by itself, because what was stamped first may be seen later (see `news`).
//! - The first event of every append has a `tag`, the others have none: this is how the answer to an append is found
//!   again. Whoever is no driver names its appends, and `appends` says where each begins: an index of `events` would
//!   cost every step.
//! - Texts that are compared or ordered are in the "C" collation: bytes, as everywhere else.

use std::path::PathBuf;

use tokio_postgres::error::SqlState;

use super::failure::{Halt, damaged, failed};
use super::writer::Tx;
use crate::Error;

/// Changes with the tables: the number of the last migration.
pub(super) const VERSION: u32 = 8;

/// The database's clock in our unit. Of a double, not of `extract`'s decimals, which every step would pay for: it holds
/// microseconds exactly until the year 2106.
pub(super) const CLOCK: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::int8";

/// What each migration brings, for people.
pub(super) const BRINGS: [&str; VERSION as usize] = [
    "runs, events and all that they need",
    "tokens of servers",
    "an order of all events that no import and no clock disturbs",
    "what owners are there for",
    "how long each owner's lease is, and which folder its notes are in; an index of children that wait",
    "the names of appends in a table of their own",
    "who drives a run, or when it may be taken, apart from its head",
    "when a silent driver lost its run",
];

const MIGRATIONS: [&str; VERSION as usize] = [
    FIRST, TOKENS, STAMPS, DUTIES, LEASES, APPENDS, QUEUE, LAPSES,
];

const FIRST: &str = r#"
CREATE TABLE runs (
  id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run text COLLATE "C" NOT NULL UNIQUE,
  short text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL,
  session text COLLATE "C",
  agent text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  spec_digest bytea NOT NULL,
  final_state_digest bytea,
  parent text COLLATE "C",
  relation text COLLATE "C",
  created_at int8 NOT NULL,
  key bytea,
  fold_version int8 NOT NULL,
  -- The newest format that a fold of the log needs.
  needs int8 NOT NULL,
  erased bool NOT NULL DEFAULT false,
  read_only bool NOT NULL DEFAULT false,
  -- Of runs that left `live`; null before.
  epoch int8,
  event_epoch int8,
  head_seq int8,
  head_digest bytea,
  updated_at int8,
  results bytea,
  pulse text,
  facts text NOT NULL
);
CREATE INDEX runs_short ON runs (short);
CREATE INDEX runs_status ON runs (status, id);
CREATE INDEX runs_session ON runs (session, id) WHERE session IS NOT NULL;
CREATE INDEX runs_agent ON runs (agent, id);
CREATE INDEX runs_spec ON runs (spec_digest, id);
CREATE INDEX runs_state ON runs (final_state_digest, id) WHERE final_state_digest IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX runs_created ON runs (created_at, id);

-- Room in every page, so that an append rewrites its row where it is and touches no index.
CREATE TABLE live (
  run int8 PRIMARY KEY,
  epoch int8 NOT NULL,
  event_epoch int8 NOT NULL,
  head_seq int8 NOT NULL,
  head_digest bytea NOT NULL,
  updated_at int8 NOT NULL,
  results bytea,
  pulse text NOT NULL,
  owner int8,
  since int8,
  -- When nobody holds it: 0 when a worker may take it now, a deadline, or null.
  ready_at int8,
  -- Of how many runs with this key how many may have an owner; null when there is no limit.
  limit_key text COLLATE "C",
  limit_max int8
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX live_ready ON live (ready_at, run) WHERE owner IS NULL AND ready_at IS NOT NULL;
CREATE INDEX live_owner ON live (owner, run) WHERE owner IS NOT NULL;
CREATE INDEX live_limit ON live (limit_key, owner, run) WHERE limit_key IS NOT NULL;

CREATE TABLE events (
  run int8 NOT NULL,
  seq int8 NOT NULL,
  kind text COLLATE "C" NOT NULL,
  at int8 NOT NULL,
  caller_at int8,
  epoch int8 NOT NULL,
  late bool NOT NULL,
  format int8 NOT NULL,
  tag int8,
  append_id text COLLATE "C",
  digest bytea NOT NULL,
  -- Only once the body was erased.
  body_digest bytea,
  body text,
  stored_at int8 NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::int8,
  PRIMARY KEY (run, seq)
);
CREATE UNIQUE INDEX events_append ON events (run, append_id) WHERE append_id IS NOT NULL;
CREATE INDEX events_stored ON events (stored_at);

-- Whose the first events of a fork are that was imported whole, each up to an event; the run's own follow.
CREATE TABLE origins (
  run int8 NOT NULL, last int8 NOT NULL, origin text COLLATE "C" NOT NULL, key bytea,
  PRIMARY KEY (run, last)
);

CREATE TABLE blobs (
  digest bytea PRIMARY KEY,
  -- The context node before this one, which must live as long.
  previous bytea,
  bytes bytea NOT NULL,
  -- Since when nobody is known to need it anew: what was touched lately is not collected.
  touched_at int8 NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::int8
);
CREATE INDEX blobs_previous ON blobs (previous) WHERE previous IS NOT NULL;
CREATE TABLE blob_refs (run int8 NOT NULL, digest bytea NOT NULL, PRIMARY KEY (run, digest));
CREATE INDEX blob_refs_digest ON blob_refs (digest);

-- Of the references, those of blobs that no event of their run names yet, and since when.
CREATE TABLE staged (run int8 NOT NULL, digest bytea NOT NULL, at int8 NOT NULL, PRIMARY KEY (run, digest));

CREATE TABLE labels (
  k text COLLATE "C" NOT NULL, v text COLLATE "C" NOT NULL, run int8 NOT NULL, PRIMARY KEY (k, v, run)
);
CREATE INDEX labels_run ON labels (run);

CREATE TABLE keys (key text COLLATE "C" PRIMARY KEY, run text COLLATE "C" NOT NULL, deleted_at int8);
CREATE INDEX keys_run ON keys (run);

CREATE TABLE active (session text COLLATE "C" PRIMARY KEY, run int8 NOT NULL UNIQUE);
CREATE TABLE closed (session text COLLATE "C" PRIMARY KEY);

-- One row for each key that runs are limited by: it is locked while places are counted.
CREATE TABLE limits (key text COLLATE "C" PRIMARY KEY);

CREATE TABLE owners (
  id int8 PRIMARY KEY,
  host text NOT NULL,
  host_name text NOT NULL,
  pid int8 NOT NULL,
  -- The database's clock at its latest beat.
  beat_at int8 NOT NULL,
  gone bool NOT NULL,
  -- Where on its host its lock is; empty when it has none.
  folder text NOT NULL
);

-- Who lost the lease of a run in `live` by silence, and is not known dead.
CREATE TABLE lapsed (
  run int8 NOT NULL, epoch int8 NOT NULL, owner int8 NOT NULL, PRIMARY KEY (run, epoch)
);
CREATE INDEX lapsed_owner ON lapsed (owner);

-- The words that a run is found by.
CREATE TABLE search (run int8 PRIMARY KEY, words text[] COLLATE "C" NOT NULL);
CREATE INDEX search_words ON search USING gin (words);
"#;

const TOKENS: &str = r#"
-- What callers of servers are known by; the text is theirs, and holds a digest only.
CREATE TABLE tokens (
  id text COLLATE "C" PRIMARY KEY, made int8 GENERATED ALWAYS AS IDENTITY, token text NOT NULL
);
"#;

const STAMPS: &str = r#"
-- Of imported events null: theirs is in `imported`.
ALTER TABLE events ALTER stored_at DROP NOT NULL, ALTER stored_at DROP DEFAULT;
-- Which events were imported, and when that could be seen; null until someone has seen it.
CREATE TABLE imported (
  run int8 NOT NULL, after int8 NOT NULL, last int8 NOT NULL, stored_at int8, PRIMARY KEY (run, last)
);
CREATE INDEX imported_stored ON imported (stored_at);
-- The stamp of the latest event, below which the next one's does not fall.
ALTER TABLE live ADD stored_at int8 NOT NULL DEFAULT 0;
UPDATE live SET stored_at = coalesce((SELECT max(stored_at) FROM events WHERE run = live.run), 0);
-- What nobody refers to goes at once, under a lock of its row.
ALTER TABLE blobs DROP touched_at;
"#;

const DUTIES: &str = r#"
-- JSON, for whoever wants to know who is there: no lease depends on it.
ALTER TABLE owners ADD COLUMN duty text;
"#;

const LEASES: &str = r#"
-- How long it may be silent, by its own settings: others may have other ones. Null of builds that did not say.
ALTER TABLE owners ADD lease int8;
-- Which folder `folder` is, because a service may have one of its own by the same name.
ALTER TABLE owners ADD place text;
-- Children that nobody drives: every worker looks now and then whether their parents still live.
CREATE INDEX runs_left ON runs (id) WHERE status = 'waiting' AND relation = 'child';
"#;

const APPENDS: &str = r#"
-- First, because it keeps everyone else from the table until all of this is done.
DROP INDEX events_append;
-- Where the appends begin that are no driver's own.
CREATE TABLE appends (
  run int8 NOT NULL, append_id text COLLATE "C" NOT NULL, seq int8 NOT NULL, PRIMARY KEY (run, append_id)
);
INSERT INTO appends SELECT run, append_id, seq FROM events WHERE append_id IS NOT NULL;
UPDATE events SET tag = 0 WHERE append_id IS NOT NULL;
ALTER TABLE events DROP append_id;
"#;

const QUEUE: &str = r#"
-- First, because it keeps everyone else from the table until all of this is done.
ALTER TABLE live RENAME TO live_before;
ALTER INDEX live_pkey RENAME TO live_before_pkey;
-- Made anew, so that no row carries the columns that it lost; those of a fixed width come first. Room in every page,
-- so that an append rewrites its row where it is and touches no index.
CREATE TABLE live (
  run int8 PRIMARY KEY,
  epoch int8 NOT NULL,
  event_epoch int8 NOT NULL,
  head_seq int8 NOT NULL,
  updated_at int8 NOT NULL,
  -- The stamp of the latest event, below which the next one's does not fall.
  stored_at int8 NOT NULL DEFAULT 0,
  head_digest bytea NOT NULL,
  results bytea,
  pulse text NOT NULL
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
INSERT INTO live (run, epoch, event_epoch, head_seq, updated_at, stored_at, head_digest, results, pulse)
  SELECT run, epoch, event_epoch, head_seq, updated_at, stored_at, head_digest, results, pulse FROM live_before;
CREATE TABLE queue (
  run int8 PRIMARY KEY,
  owner int8,
  since int8,
  -- When nobody holds it: 0 when a worker may take it now, a deadline, or null.
  ready_at int8,
  -- Of how many runs with this key how many may have an owner; null when there is no limit.
  limit_key text COLLATE "C",
  limit_max int8
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
INSERT INTO queue (run, owner, since, ready_at, limit_key, limit_max)
  SELECT run, owner, since, ready_at, limit_key, limit_max FROM live_before;
DROP TABLE live_before;
CREATE INDEX queue_ready ON queue (ready_at, run) WHERE owner IS NULL AND ready_at IS NOT NULL;
CREATE INDEX queue_owner ON queue (owner, run) WHERE owner IS NOT NULL;
CREATE INDEX queue_limit ON queue (limit_key, owner, run) WHERE limit_key IS NOT NULL;
"#;

const LAPSES: &str = r#"
-- On the database's clock. Null of builds that did not say, which may still run.
ALTER TABLE lapsed ADD taken_at int8;
"#;

/// How often a race for the table of migrations is run again.
const TRIES: u32 = 20;

/// What must be done to the database before this build can use it; `None` when it holds no store at all.
pub(super) async fn version(tx: &Tx) -> Result<Option<u32>, Error> {
    let found = tx
        .opt("SELECT to_regclass('logreel_migrations')::text", &[])
        .await
        .map_err(failed)?;
    let exists: Option<String> = match found {
        Some(row) => row.try_get(0).map_err(failed)?,
        None => None,
    };
    if exists.is_none() {
        return Ok(None);
    }
    let sql = "SELECT coalesce(max(version), 0)::int8 FROM logreel_migrations";
    let row = tx.one(sql, &[]).await.map_err(failed)?;
    let version: i64 = row.try_get(0).map_err(failed)?;
    let version = u32::try_from(version).map_err(|_| damaged("the number of a migration"))?;
    Ok(Some(version).filter(|version| *version > 0))
}

/// Refuses what a newer build made.
pub(super) fn check(found: u32, shown: &str) -> Result<(), Error> {
    match found {
        found if found > VERSION => Err(Error::NewerSchema {
            path: PathBuf::from(shown),
            found,
            known: VERSION,
        }),
        _ => Ok(()),
    }
}

/// Brings the tables to this build's version. Any number of processes may do it at once: each migration
/// begins with the row that names it, and whoever comes second waits for the first and finds it done.
pub(super) async fn migrate(tx: &Tx, shown: &str) -> Result<(), Error> {
    make_schema(tx).await?;
    for _ in 0..TRIES {
        let made = tx
            .batch(
                "CREATE TABLE IF NOT EXISTS logreel_migrations (
                   version int8 PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())",
            )
            .await;
        match made {
            Ok(()) => break,
            // `IF NOT EXISTS` does not see what another transaction is making at this moment.
            Err(error) if is_race(&error) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    for (index, migration) in MIGRATIONS.iter().enumerate() {
        let number = index as i64 + 1;
        tx.batch("BEGIN").await.map_err(failed)?;
        match apply(tx, number, migration).await {
            Ok(()) => tx.batch("COMMIT").await.map_err(failed)?,
            Err(halt) => {
                tx.batch("ROLLBACK").await.map_err(failed)?;
                return Err(match halt {
                    Halt::Database(error) if error.code() == Some(&SqlState::DUPLICATE_TABLE) => {
                        Error::Invalid {
                            path: PathBuf::from(shown),
                            why: "it has tables of another program under our names; use a \
                                  database or a schema of its own"
                                .to_owned(),
                        }
                    }
                    other => other.told(),
                });
            }
        }
    }
    Ok(())
}

/// Makes the schema that `search_path` in the URL names, when it is not there.
async fn make_schema(tx: &Tx) -> Result<(), Error> {
    let sql = "SELECT current_schema()::text, split_part(current_setting('search_path'), ',', 1)";
    let row = tx.one(sql, &[]).await.map_err(failed)?;
    let there: Option<&str> = row.try_get(0).map_err(failed)?;
    if there.is_some() {
        return Ok(());
    }
    let wanted: &str = row.try_get(1).map_err(failed)?;
    let name = wanted.trim().trim_matches('"').replace('"', "\"\"");
    match tx
        .batch(&format!("CREATE SCHEMA IF NOT EXISTS \"{name}\""))
        .await
    {
        Err(error) if !is_race(&error) => Err(failed(error)),
        _ => Ok(()),
    }
}

async fn apply(tx: &Tx, number: i64, migration: &str) -> Result<(), Halt> {
    // A migration takes as long as the tables are, and whoever comes second waits as long.
    tx.take_time().await?;
    let sql = "INSERT INTO logreel_migrations (version) VALUES ($1) ON CONFLICT DO NOTHING";
    if tx.exec(sql, &[&number]).await? == 1 {
        tx.batch(migration).await?;
    }
    Ok(())
}

fn is_race(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(
            &SqlState::UNIQUE_VIOLATION
                | &SqlState::DUPLICATE_TABLE
                | &SqlState::DUPLICATE_OBJECT
                | &SqlState::DUPLICATE_SCHEMA
        )
    )
}
