//! Creating a run, or attaching to the one that is there (SEMANTICS 6).

use std::time::Duration;

use logreel_core::chain::Sealed;
use logreel_core::event::{Body, Relation, RunStarted};
use logreel_core::row::Facts;
use logreel_core::{Blob, Epoch, FOLD_VERSION, FORMAT, RunId, RunKey, Session, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::append::retire;
use super::failure::Halt;
use super::fork;
use super::limit;
use super::rows::{self, Mark, RECORD, Stored};
use super::search;
use super::share::Sources;
use super::writer::Tx;
use crate::tip::{Prepared, Tip};
use crate::tips::Known;
use crate::{CreateError, Created, Error, OwnerId};

/// How long the key of a deleted run is kept.
pub(super) const KEY_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A run to be created, with its event 1 written.
pub(super) struct Work {
    pub run: RunId,
    pub started: RunStarted,
    pub prepared: Prepared,
    pub then: Vec<Prepared>,
    pub has_ended: bool,
    pub key: RunKey,
    pub blobs: Vec<Blob>,
    pub owner: Option<OwnerId>,
}

pub(super) fn create(tx: &mut Tx<'_>, work: Work) -> Result<Created, Halt<CreateError>> {
    let now = tx.shared.env.now();
    if let Some(attached) = attach(tx, &work, now)? {
        return Ok(attached);
    }
    check(tx, &work)?;
    let owner = match work.owner {
        Some(_)
            if !limit::take_place(tx, work.started.limit.as_ref(), None).map_err(Halt::lift)? =>
        {
            None
        }
        owner => owner,
    };
    let epoch = first_epoch(owner);
    let (mut tip, first) =
        Tip::start(work.run, work.key, work.prepared, epoch, now).map_err(Error::from)?;
    let mut sealed = vec![first];
    sealed.extend(tip.extend(work.then, epoch, now).map_err(Error::from)?);
    let (run, started, has_ended) = (work.run, work.started, work.has_ended);
    let placed = Placed {
        tip,
        sealed: &sealed,
        blobs: &work.blobs,
        owner,
        now,
    };
    let id = place(tx, placed).map_err(Halt::lift)?;
    let conn = tx.conn;
    if let Some(node) = &started.context {
        // Pins the context that the session goes on from.
        rows::refer(conn, id, node)?;
    }
    if let Some(key) = &started.key {
        conn.prepare_cached("INSERT INTO keys (key, run) VALUES (?1, ?2)")?
            .execute(params![key, run.to_string()])?;
    }
    if let Some(session) = started.session.as_ref().filter(|_| !has_ended) {
        conn.prepare_cached("INSERT INTO active (session, run) VALUES (?1, ?2)")?
            .execute(params![session.as_str(), id])?;
    }
    let entry = rows::load(conn, &run)
        .map_err(Halt::lift)?
        .entry(conn, tx.shared)?;
    Ok(Created::New(entry))
}

/// The epoch of a run's own first event.
pub(super) fn first_epoch(owner: Option<OwnerId>) -> Epoch {
    match owner {
        Some(_) => Epoch::NONE.next(),
        None => Epoch::NONE,
    }
}

/// A run with its own first events, on its way into the tables.
pub(super) struct Placed<'a> {
    pub tip: Tip,
    pub sealed: &'a [Sealed],
    pub blobs: &'a [Blob],
    pub owner: Option<OwnerId>,
    pub now: Timestamp,
}

/// Writes a new run. Gives its integer id.
pub(super) fn place(tx: &mut Tx<'_>, placed: Placed<'_>) -> Result<i64, Halt> {
    let Placed {
        tip,
        sealed,
        blobs,
        owner,
        now,
    } = placed;
    let id = insert_run(tx, &tip)?;
    let conn = tx.conn;
    let row = &tip.row;
    let limit = row.facts.limit.as_ref();
    let ready_at = match owner {
        Some(_) => None,
        None => rows::queue_time(conn, id, row)?,
    };
    conn.prepare_cached(
        "INSERT INTO live (run, epoch, event_epoch, head_seq, head_digest, updated_at, results,
           pulse, owner, since, ready_at, limit_key, limit_max)
         VALUES (?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute(params![
        id,
        row.epoch.0.cast_signed(),
        row.head.seq.0.cast_signed(),
        row.head.digest.as_bytes().as_slice(),
        row.updated_at.as_micros(),
        rows::results_bytes(&tip.results),
        rows::to_text(&row.pulse),
        owner.map(|owner| owner.0.cast_signed()),
        owner.map(|_| now.as_micros()),
        ready_at,
        limit.map(|limit| &limit.key),
        limit.map(|limit| limit.max),
    ])?;
    let pos = *tx.next_pos()?;
    rows::insert_events(conn, id, tx.next_pos()?, sealed, Mark::Tag(0))?;
    rows::insert_blobs(conn, id, blobs, Sources::new(conn, id, sealed, pos))?;
    insert_labels(conn, id, &row.facts)?;
    search::insert(conn, id, &row.facts)?;
    let (run, head) = (row.run, row.head.seq);
    tx.tips.put(run, Box::new(Known { id, tip }));
    tx.ring(run, head);
    Ok(id)
}

pub(super) fn insert_labels(conn: &Connection, id: i64, facts: &Facts) -> rusqlite::Result<()> {
    for (name, value) in &facts.labels {
        conn.prepare_cached("INSERT INTO labels (k, v, run) VALUES (?1, ?2, ?3)")?
            .execute(params![name, value, id])?;
    }
    Ok(())
}

/// The run that has the id or the key already.
fn attach(tx: &Tx<'_>, work: &Work, now: Timestamp) -> Result<Option<Created>, Halt<CreateError>> {
    let known = match rows::load(tx.conn, &work.run) {
        Ok(stored) => Some((work.run.to_string(), stored)),
        Err(Halt::Refused(Error::NotFound(_))) => by_key(tx, work, now)?,
        Err(other) => return Err(other.lift()),
    };
    let Some((what, stored)) = known else {
        return Ok(None);
    };
    let run = stored.row.run;
    match difference(tx, &stored, &work.started).map_err(Halt::lift)? {
        Some(differs) => Err(Halt::Refused(CreateError::Conflict { what, run, differs })),
        None => Ok(Some(Created::Attached(stored.entry(tx.conn, tx.shared)?))),
    }
}

fn by_key(
    tx: &Tx<'_>,
    work: &Work,
    now: Timestamp,
) -> Result<Option<(String, Stored)>, Halt<CreateError>> {
    let Some(key) = &work.started.key else {
        return Ok(None);
    };
    let found: Option<(String, Option<i64>)> = tx
        .conn
        .prepare_cached("SELECT run, deleted_at FROM keys WHERE key = ?1")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((run, deleted_at)) = found else {
        return Ok(None);
    };
    let run = rows::run_id(&run)?;
    match deleted_at.map(Timestamp::from_micros) {
        None => {
            let stored = rows::load(tx.conn, &run).map_err(Halt::lift)?;
            Ok(Some((format!("key {key}"), stored)))
        }
        Some(at) if now.since(at) < KEY_KEPT => Err(Halt::Refused(CreateError::KeyOfDeleted {
            key: key.clone(),
            run,
        })),
        Some(_) => {
            // Nothing else was written yet, and a refusal after this leaves no trace that matters.
            tx.conn
                .prepare_cached("DELETE FROM keys WHERE key = ?1")?
                .execute([key])?;
            Ok(None)
        }
    }
}

/// What differs from how the run was started. Its row may have moved on since (another spec was
/// accepted, an empty input filled), so event 1 is asked.
fn difference(
    tx: &Tx<'_>,
    stored: &Stored,
    started: &RunStarted,
) -> Result<Option<&'static str>, Halt> {
    if fork::is_imported_whole(tx.conn, &stored.row.run)? {
        return Ok(Some("parent"));
    }
    let sql = format!("SELECT {RECORD} FROM events WHERE run = ?1 AND seq = 1");
    let mut statement = tx.conn.prepare_cached(&sql)?;
    let mut rows = statement.query([stored.id])?;
    let first = match rows.next()? {
        Some(row) => rows::stored(row)?.decode().ok(),
        // A fork: event 1 is another run's.
        None => return Ok(Some("parent")),
    };
    let facts = &stored.row.facts;
    let (spec, session, input) = match first.map(|event| event.body) {
        Some(Body::RunStarted(first)) => (first.spec_digest, first.session, first.input),
        // Erased, or of a newer build: the row is what is left.
        _ => (
            facts.spec_digest,
            facts.session.clone(),
            facts.input.clone(),
        ),
    };
    Ok(if spec != started.spec_digest {
        Some("spec")
    } else if session != started.session {
        Some("session")
    } else if input != started.input {
        Some("input")
    } else {
        None
    })
}

/// Whether a new run may begin.
fn check(tx: &mut Tx<'_>, work: &Work) -> Result<(), Halt<CreateError>> {
    if let Some(owner) = work.owner {
        tx.shared
            .owners
            .joined(tx.conn, owner)
            .map_err(Halt::lift)?;
    }
    // A child is created in the same transaction that sees its parent live (SEMANTICS 15).
    if let Some(parent) = work
        .started
        .parent
        .as_ref()
        .filter(|it| it.relation == Relation::Child)
    {
        let parent = rows::load(tx.conn, &parent.run).map_err(Halt::lift)?.row;
        if parent.status().is_terminal() {
            return Err(Halt::Refused(CreateError::ParentEnded(parent.run)));
        }
    }
    match &work.started.session {
        Some(session) if !work.has_ended => check_session(tx, session),
        Some(_) | None => Ok(()),
    }
}

/// A session has one run that has not ended or is still held.
fn check_session(tx: &mut Tx<'_>, session: &Session) -> Result<(), Halt<CreateError>> {
    let closed: bool = tx
        .conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM closed WHERE session = ?1)")?
        .query_row([session.as_str()], |row| row.get(0))?;
    if closed {
        return Err(Halt::Refused(CreateError::SessionClosed(session.clone())));
    }
    let active: Option<i64> = tx
        .conn
        .prepare_cached("SELECT run FROM active WHERE session = ?1")?
        .query_row([session.as_str()], |row| row.get(0))
        .optional()?;
    let Some(active) = active else { return Ok(()) };
    let stored = rows::load_id(tx.conn, active).map_err(Halt::lift)?;
    let Some(stored) = stored else {
        return Err(
            Error::corrupt(format!("session {session} has a run that is not there")).into(),
        );
    };
    let run = stored.row.run;
    if stored.row.status().is_terminal() {
        let held = match stored.lease {
            Some((owner, _)) => tx.shared.owners.is_alive(tx.conn, owner)?,
            None => false,
        };
        if !held {
            // Its driver died before it gave the lease back.
            retire(tx, active, &run)?;
            return Ok(());
        }
    }
    Err(Halt::Refused(CreateError::Busy {
        session: session.clone(),
        active: run,
    }))
}

/// Writes the wide row of a new run. Gives its integer id.
pub(super) fn insert_run(tx: &Tx<'_>, tip: &Tip) -> rusqlite::Result<i64> {
    let row = &tip.row;
    let facts = &row.facts;
    let parent = facts.parent.as_ref();
    tx.conn
        .prepare_cached(
            "INSERT INTO runs (run, short, status, session, agent, kind, spec_digest, parent,
               relation, created_at, created_by, key, fold_version, needs, facts, final_state_digest)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
               max(?10, ifnull((SELECT created_by FROM runs ORDER BY id DESC LIMIT 1), ?10)),
               ?11, ?12, ?13, ?14, ?15)",
        )?
        .execute(params![
            row.run.to_string(),
            row.run.short(),
            row.status().as_str(),
            facts.session.as_ref().map(Session::as_str),
            &*facts.agent,
            facts.kind.as_str(),
            facts.spec_digest.as_bytes().as_slice(),
            parent.map(|it| it.run.to_string()),
            parent.map(|it| rows::relation_name(it.relation)),
            facts.created_at.as_micros(),
            tip.key.0.as_slice(),
            FOLD_VERSION,
            FORMAT,
            rows::to_text(&**facts),
            // A past run is created with its end.
            facts.ended.as_ref().map(|ended| *ended.final_state_digest.as_bytes()),
        ])?;
    Ok(tx.conn.last_insert_rowid())
}
