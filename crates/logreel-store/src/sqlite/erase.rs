//! Erasing runs (SEMANTICS 33): what they held is taken out of the tables, and then out of the files.

use logreel_core::codec::StoredBody;
use logreel_core::event::Body;
use logreel_core::{Digest, RunId, RunKey, Seq};
use rusqlite::{Connection, params};

use super::connect::nap;
use super::delete::delete_blobs;
use super::failure::{Halt, damaged, failed};
use super::fork;
use super::open::{Shared, connect_writer};
use super::rows::{self, RECORD};
use super::search;
use super::writer::Tx;
use crate::erase::{Candidate, closure};
use crate::{EraseError, Error, Heirs};

/// Events that are erased at a time.
const CHUNK: i64 = 1000;

/// How often the log of the database is asked for before it is said to be in use.
const TRUNCATE_TRIES: u32 = 200;
const TRUNCATE_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

impl From<EraseError> for Halt<EraseError> {
    fn from(error: EraseError) -> Self {
        Halt::Refused(error)
    }
}

/// Takes the run, and whoever goes with it, out of the tables.
pub(super) fn erase(
    tx: &mut Tx<'_>,
    run: RunId,
    with: Heirs,
) -> Result<Vec<RunId>, Halt<EraseError>> {
    let runs = closure(run, with, |run| candidate(tx, run).map_err(Halt::lift))?;
    // A refusal has written nothing: a blob that cannot be kept refuses all of it.
    tx.conn.execute_batch("SAVEPOINT erase")?;
    for run in &runs {
        match erase_one(tx, run) {
            Ok(()) => {}
            Err(Halt::Refused(error)) => {
                tx.conn.execute_batch("ROLLBACK TO erase; RELEASE erase")?;
                return Err(error.into());
            }
            Err(Halt::Database(error)) => return Err(Halt::Database(error)),
        }
    }
    // The words of what was removed stay in the index until its parts are merged.
    tx.conn
        .execute("INSERT INTO search (search) VALUES ('optimize')", [])?;
    tx.conn.execute_batch("RELEASE erase")?;
    for run in &runs {
        tx.tips.forget(run);
        tx.ring_everywhere(*run)?;
    }
    Ok(runs)
}

fn candidate(tx: &Tx<'_>, run: RunId) -> Result<Candidate, Halt> {
    let stored = rows::load(tx.conn, &run)?;
    let driven = match stored.lease {
        Some((owner, _)) => tx.shared.owners.is_alive(tx.conn, owner)?,
        None => false,
    };
    Ok(Candidate {
        run,
        status: stored.row.status(),
        driven,
        forks: fork::forks_to_erase(tx.conn, &run)?,
        continuations: continuations(tx.conn, stored.id)?,
    })
}

/// The runs that began with a context node of this one: their conversation holds what was said in it.
fn continuations(conn: &Connection, id: i64) -> Result<Vec<RunId>, Halt> {
    let sql = format!(
        "SELECT r.run, e.* FROM (SELECT DISTINCT o.run AS id FROM blob_refs b
           JOIN blob_refs o ON o.digest = b.digest AND o.run <> b.run WHERE b.run = ?1) c
         JOIN runs r ON r.id = c.id AND NOT r.erased
         JOIN (SELECT run AS id, {RECORD} FROM events WHERE seq = 1) e ON e.id = c.id ORDER BY c.id"
    );
    let of_run = "SELECT 1 FROM blob_refs WHERE run = ?1 AND digest = ?2";
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query([id])?;
    let mut runs = Vec::new();
    while let Some(row) = found.next()? {
        let body: Option<String> = row.get("body")?;
        let (kind, format): (String, u16) = (row.get("kind")?, row.get("format")?);
        let Some(body) = body else { continue };
        let Ok(Body::RunStarted(started)) = logreel_core::codec::decode_body(format, &kind, &body)
        else {
            continue;
        };
        let Some(node) = started.context else {
            continue;
        };
        let node = node.as_bytes().as_slice();
        if conn.prepare_cached(of_run)?.exists(params![id, node])? {
            runs.push(rows::run_id(
                row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?,
            )?);
        }
    }
    Ok(runs)
}

fn erase_one(tx: &mut Tx<'_>, run: &RunId) -> Result<(), Halt> {
    let stored = rows::load(tx.conn, run)?;
    if stored.erased {
        return Ok(());
    }
    let (id, conn) = (stored.id, tx.conn);
    if stored.live {
        super::append::retire(tx, id, run)?;
    }
    let keys = fork::keys(conn, run)?;
    delete_blobs(conn, id)?;
    erase_bodies(conn, id, run, &keys)?;
    let row = stored.row.erased();
    conn.prepare_cached(
        "UPDATE runs SET erased = 1, key = NULL, facts = ?2, pulse = ?3 WHERE id = ?1",
    )?
    .execute(params![
        id,
        rows::to_text(&*row.facts),
        rows::to_text(&row.pulse)
    ])?;
    conn.prepare_cached("UPDATE origins SET key = NULL WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("DELETE FROM labels WHERE run = ?1")?
        .execute([id])?;
    search::remove(conn, id)?;
    Ok(())
}

/// Leaves the digest of each body in its place, so that the chain still holds.
fn erase_bodies(
    conn: &Connection,
    id: i64,
    run: &RunId,
    keys: &[(RunId, Option<RunKey>)],
) -> Result<(), Halt> {
    let segments = fork::segments(conn, id, *run)?;
    let mut next = Seq::FIRST;
    loop {
        // Only what it wrote itself, or brought along: what it shares is another run's.
        let chunk = fork::own_records(conn, id, *run, &segments, next, CHUNK)?;
        let Some(last) = chunk.last() else {
            return Ok(());
        };
        next = last.seq.next();
        for record in &chunk {
            let StoredBody::Text(text) = &record.body else {
                continue;
            };
            let writer = record.origin.unwrap_or(*run);
            let key = keys.iter().find(|(of, _)| *of == writer);
            let key = key.and_then(|(_, key)| *key);
            let key = key.ok_or_else(|| damaged(format!("the key of {writer} is gone")))?;
            let digest: Digest = key.body_digest(text);
            conn.prepare_cached(
                "UPDATE events SET body = NULL, body_digest = ?3, append_id = NULL
                 WHERE run = ?1 AND seq = ?2",
            )?
            .execute(params![
                id,
                record.seq.0.cast_signed(),
                digest.as_bytes().as_slice()
            ])?;
        }
    }
}

/// Takes what is deleted out of the files too.
///
/// `secure_delete` writes over what is freed, but not over the copies that SQLite leaves in a page when it
/// moves cells to another; so the file is written anew, and the log of the database is cut.
pub(super) fn leave_no_trace(shared: &Shared) -> Result<(), Error> {
    let conn = connect_writer(shared)?;
    // In memory it would take as much as the store is large.
    conn.execute_batch("PRAGMA temp_store = 1; VACUUM;")
        .map_err(failed)?;
    for _ in 0..TRUNCATE_TRIES {
        let busy: bool = conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(failed)?;
        if !busy {
            return Ok(());
        }
        nap(TRUNCATE_EVERY);
    }
    Err(Error::unavailable(
        "someone keeps reading an older state of the store",
    ))
}
