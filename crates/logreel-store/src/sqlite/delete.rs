//! Deleting an ended run and what only it needed.

use logreel_core::{RunId, Status};
use rusqlite::{Connection, OptionalExtension, params};

use super::append::retire;
use super::failure::Halt;
use super::fork;
use super::rows;
use super::search;
use super::share;
use super::writer::Tx;
use crate::{Deleted, Error};

pub(super) fn delete(tx: &mut Tx<'_>, run: RunId) -> Result<Deleted, Halt> {
    let stored = rows::load(tx.conn, &run)?;
    let id = stored.id;
    let needed = |why: String| Err(Error::StillNeeded { run, why }.into());
    let status = stored.row.status();
    if !status.is_terminal() {
        return needed(format!("it is {status}; cancel it first"));
    }
    if let Some((owner, _)) = stored.lease
        && tx.shared.owners.is_alive(tx.conn, owner)?
    {
        return needed("its driver has not given its lease back yet".to_owned());
    }
    let forks = fork::forks_of(tx.conn, &run)?;
    if !forks.is_empty() {
        return Err(Error::ForkedFrom { run, forks }.into());
    }
    // A live child's fate is decided from this log (SEMANTICS 15).
    let child: Option<String> = tx
        .conn
        .prepare_cached(
            "SELECT run FROM runs WHERE parent = ?1 AND relation = 'child'
             AND status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1",
        )?
        .query_row([run.to_string()], |row| row.get(0))
        .optional()?;
    if let Some(child) = child {
        return needed(format!("its child {child} has not ended"));
    }
    let conn = tx.conn;
    // First, because a blob that cannot be kept refuses the delete, and a refusal has written nothing.
    conn.execute_batch("SAVEPOINT blobs")?;
    let blobs = match delete_blobs(conn, id) {
        Ok(bytes) => bytes,
        Err(Halt::Refused(error)) => {
            conn.execute_batch("ROLLBACK TO blobs; RELEASE blobs")?;
            return Err(error.into());
        }
        Err(database) => return Err(database),
    };
    conn.execute_batch("RELEASE blobs")?;
    if stored.live {
        retire(tx, id, &run)?;
    }
    // Places that were given are never given again (SEMANTICS 11).
    let last = *tx.next_pos()? - 1;
    conn.prepare_cached("UPDATE meta SET value = max(value, ?1) WHERE key = 'pos_floor'")?
        .execute([last])?;
    let (events, bodies): (i64, i64) = conn
        .prepare_cached(
            "SELECT count(*), ifnull(sum(octet_length(body)), 0) FROM events WHERE run = ?1",
        )?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    conn.prepare_cached("DELETE FROM events WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("DELETE FROM origins WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("DELETE FROM labels WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("UPDATE keys SET deleted_at = ?2 WHERE run = ?1")?
        .execute(params![run.to_string(), tx.shared.env.now().as_micros()])?;
    search::remove(conn, id)?;
    conn.prepare_cached("DELETE FROM runs WHERE id = ?1")?
        .execute([id])?;
    debug_assert!(matches!(
        status,
        Status::Completed | Status::Failed | Status::Cancelled
    ));
    tx.tips.forget(&run);
    tx.ring_everywhere(run)?;
    Ok(Deleted {
        events: rows::unsigned(events),
        bytes: rows::unsigned(bodies) + blobs,
    })
}

/// A blob goes with its last reference, unless a context node that stays comes after it; a node that
/// goes may have been the last that kept the one before it. One that stays no longer needs the run's
/// events. Gives how many bytes went.
pub(super) fn delete_blobs(conn: &Connection, id: i64) -> Result<u64, Halt> {
    let referred: Vec<Vec<u8>> = conn
        .prepare_cached("SELECT digest FROM blob_refs WHERE run = ?1")?
        .query_map([id], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    conn.prepare_cached("DELETE FROM blob_refs WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("DELETE FROM staged WHERE run = ?1")?
        .execute([id])?;
    let bytes = drop_unreferred(conn, referred.clone())?;
    share::keep_whole(conn, id, &referred)?;
    Ok(bytes)
}

/// Deletes those of the blobs that nobody refers to, and what only they kept. Gives how many bytes went.
pub(super) fn drop_unreferred(
    conn: &Connection,
    mut candidates: Vec<Vec<u8>>,
) -> rusqlite::Result<u64> {
    let mut bytes = 0;
    let mut delete = conn.prepare_cached(
        "DELETE FROM blobs WHERE digest = ?1
         AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE digest = ?1)
         AND NOT EXISTS (SELECT 1 FROM blobs WHERE previous = ?1)
         RETURNING previous, length(bytes)",
    )?;
    while let Some(digest) = candidates.pop() {
        let deleted: Option<(Option<Vec<u8>>, i64)> = delete
            .query_row([digest], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((previous, length)) = deleted {
            candidates.extend(previous);
            bytes += rows::unsigned(length);
        }
    }
    Ok(bytes)
}
