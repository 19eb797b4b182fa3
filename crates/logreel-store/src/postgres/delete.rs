//! Deleting an ended run and what only it needed.

use std::collections::{HashMap, HashSet};

use logreel_core::RunId;

use super::append::retire;
use super::failure::Halt;
use super::fork;
use super::rows;
use super::writer::Tx;
use crate::{Deleted, Error};

pub(super) async fn delete(tx: &Tx, run: RunId) -> Result<Deleted, Halt> {
    let stored = rows::lock(tx, &run).await?;
    let id = stored.id;
    let needed = |why: String| Err(Error::StillNeeded { run, why }.into());
    let status = stored.row.status();
    if !status.is_terminal() {
        return needed(format!("it is {status}; cancel it first"));
    }
    if stored.has_beating_holder() {
        return needed("its driver has not given its lease back yet".to_owned());
    }
    let forks = fork::forks_of(tx, &run).await?;
    if !forks.is_empty() {
        return Err(Error::ForkedFrom { run, forks }.into());
    }
    // A live child's fate is decided from this log (SEMANTICS 15).
    let sql = "SELECT run FROM runs WHERE parent = $1 AND relation = 'child'
        AND status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1";
    if let Some(child) = tx.opt(sql, &[&run.to_string()]).await? {
        let child: &str = child.try_get(0)?;
        return needed(format!("its child {child} has not ended"));
    }
    if stored.live {
        retire(tx, id, &run).await?;
    }
    let blobs = delete_blobs(tx, id).await?;
    let sql =
        "WITH gone AS (DELETE FROM events WHERE run = $1 RETURNING octet_length(body) AS bytes)
        SELECT count(*), coalesce(sum(bytes), 0)::int8 FROM gone";
    let events = tx.one(sql, &[&id]).await?;
    let deleted = Deleted {
        events: rows::unsigned(events.try_get(0)?),
        bytes: rows::unsigned(events.try_get(1)?) + blobs,
    };
    for table in ["appends", "imported", "origins", "labels", "search"] {
        let sql = format!("DELETE FROM {table} WHERE run = $1");
        tx.exec(&sql, &[&id]).await?;
    }
    let now = tx.shared.clock.now().as_micros();
    tx.exec(
        "UPDATE keys SET deleted_at = $2 WHERE run = $1",
        &[&run.to_string(), &now],
    )
    .await?;
    tx.exec("DELETE FROM runs WHERE id = $1", &[&id]).await?;
    tx.ring_everywhere(run);
    Ok(deleted)
}

/// A blob goes with its last reference, unless a context node that stays comes after it; a node that
/// goes may have been the last that kept the one before it. Gives how many bytes went.
pub(super) async fn delete_blobs(tx: &Tx, id: i64) -> Result<u64, Halt> {
    let sql = "DELETE FROM blob_refs WHERE run = $1 RETURNING digest";
    let mut referred = Vec::new();
    for row in tx.query(sql, &[&id]).await? {
        referred.push(row.try_get(0)?);
    }
    tx.exec("DELETE FROM staged WHERE run = $1", &[&id]).await?;
    drop_unreferred(tx, referred).await
}

/// Deletes those of the blobs that nobody refers to, and what only they kept: the context nodes before them that
/// have no reference of their own. All are locked first, and looked at again then: whoever writes or refers
/// to a blob that is there holds its row, so that it comes before or after, and is seen.
/// Gives how many bytes went.
pub(super) async fn drop_unreferred(tx: &Tx, digests: Vec<Vec<u8>>) -> Result<u64, Halt> {
    if digests.is_empty() {
        return Ok(0);
    }
    // In one order for everyone.
    let sql = "WITH RECURSIVE before AS (
          SELECT digest, previous FROM blobs WHERE digest = ANY($1)
          UNION SELECT b.digest, b.previous FROM before JOIN blobs b ON b.digest = before.previous
            WHERE NOT EXISTS (SELECT 1 FROM blob_refs WHERE digest = b.digest))
        SELECT digest FROM blobs WHERE digest IN (SELECT digest FROM before)
        ORDER BY digest FOR UPDATE";
    let mut candidates: Vec<Vec<u8>> = Vec::new();
    for row in tx.query(sql, &[&digests]).await? {
        candidates.push(row.try_get(0)?);
    }
    // Beside each that has no reference: what it follows, and what follows it.
    let sql = "SELECT b.digest, b.previous, n.digest FROM blobs b
          LEFT JOIN blobs n ON n.previous = b.digest
        WHERE b.digest = ANY($1) AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE digest = b.digest)";
    let mut previous: HashMap<Vec<u8>, Option<Vec<u8>>> = HashMap::new();
    let mut followers: HashMap<Vec<u8>, HashSet<Vec<u8>>> = HashMap::new();
    for row in tx.query(sql, &[&candidates]).await? {
        let digest: Vec<u8> = row.try_get(0)?;
        previous.insert(digest.clone(), row.try_get(1)?);
        let follower: Option<Vec<u8>> = row.try_get(2)?;
        followers.entry(digest).or_default().extend(follower);
    }
    // From the latest nodes back: one goes when all that follow it go.
    let is_last = |digest: &Vec<u8>| followers.get(digest).is_some_and(HashSet::is_empty);
    let mut left: Vec<Vec<u8>> = previous.keys().filter(|it| is_last(it)).cloned().collect();
    let mut gone: Vec<Vec<u8>> = Vec::new();
    while let Some(digest) = left.pop() {
        if let Some(Some(before)) = previous.get(&digest)
            && let Some(following) = followers.get_mut(before)
        {
            following.remove(&digest);
            if following.is_empty() {
                left.push(before.clone());
            }
        }
        gone.push(digest);
    }
    let sql = "WITH gone AS (
          DELETE FROM blobs WHERE digest = ANY($1) RETURNING octet_length(bytes) AS bytes)
        SELECT coalesce(sum(bytes), 0)::int8 FROM gone";
    Ok(rows::unsigned(tx.one(sql, &[&gone]).await?.try_get(0)?))
}
