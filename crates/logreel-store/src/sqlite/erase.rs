//! Erasing runs (SEMANTICS 33): what they held is taken out of the tables, and then out of the files.

use std::collections::{BTreeSet, HashSet};

use logreel_core::codec::StoredBody;
use logreel_core::{Digest, RunId, RunKey, Seq};
use rusqlite::{Connection, OptionalExtension, params};

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
        read_only: stored.read_only,
        driven,
        forks: fork::forks_to_erase(tx.conn, &run)?,
        continuations: continuations(tx.conn, stored.id)?,
    })
}

/// The runs whose conversation goes on from what was said in this one, however many runs ago: they began with
/// a context node that it made, or with one that follows such a node.
fn continuations(conn: &Connection, id: i64) -> Result<Vec<RunId>, Halt> {
    let made = made_nodes(conn, id)?;
    // Nodes that follow, whoever made them: a run between may be gone, and what was said stays.
    let mut follows = conn.prepare_cached("SELECT digest FROM blobs WHERE previous = ?1")?;
    let mut known: HashSet<Digest> = made.iter().copied().collect();
    let mut left = made;
    while let Some(node) = left.pop() {
        let mut found = follows.query([node.as_bytes().as_slice()])?;
        while let Some(row) = found.next()? {
            let next: Vec<u8> = row.get(0)?;
            let bad = || damaged("the digest of a context node has another length");
            let next = Digest::from_slice(&next).ok_or_else(bad)?;
            if known.insert(next) {
                left.push(next);
            }
        }
    }
    let mut refers = conn.prepare_cached("SELECT run FROM blob_refs WHERE digest = ?1")?;
    let mut heirs: BTreeSet<i64> = BTreeSet::new();
    for node in &known {
        let runs = refers.query_map([node.as_bytes().as_slice()], |row| row.get(0))?;
        for run in runs {
            heirs.insert(run?);
        }
    }
    heirs.remove(&id);
    let mut named = conn.prepare_cached("SELECT run FROM runs WHERE id = ?1 AND NOT erased")?;
    let mut runs = Vec::new();
    for heir in heirs {
        if !pinned(conn, heir)?.is_some_and(|node| known.contains(&node)) {
            continue;
        }
        let run: Option<String> = named.query_row([heir], |row| row.get(0)).optional()?;
        runs.extend(run.map(|run| rows::run_id(&run)).transpose()?);
    }
    Ok(runs)
}

/// The context nodes that the run made itself: neither the one it began with nor what it brought along are
/// its own.
fn made_nodes(conn: &Connection, id: i64) -> Result<Vec<Digest>, Halt> {
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = ?1 AND kind IN ('message.added', 'context.compacted')
           AND seq > ifnull((SELECT max(last) FROM origins WHERE run = ?1), 0) ORDER BY seq"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query([id])?;
    let mut nodes = Vec::new();
    while let Some(row) = found.next()? {
        nodes.extend(rows::record(row)?.node().map(|it| it.node));
    }
    Ok(nodes)
}

/// The context node that a run began with.
fn pinned(conn: &Connection, id: i64) -> Result<Option<Digest>, Halt> {
    let sql = format!("SELECT {RECORD} FROM events WHERE run = ?1 AND seq = 1");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query([id])?;
    let Some(row) = found.next()? else {
        return Ok(None);
    };
    let record = rows::record(row)?;
    Ok(match record.kind.as_str() {
        "run.started" => record.node().map(|it| it.node),
        _ => None,
    })
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
        "UPDATE runs SET erased = 1, key = NULL, facts = ?2, pulse = ?3, status = ?4 WHERE id = ?1",
    )?
    .execute(params![
        id,
        rows::to_text(&*row.facts),
        rows::to_text(&row.pulse),
        row.status().as_str()
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
