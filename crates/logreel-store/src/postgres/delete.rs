//! Deleting an ended run and what only it needed.

use logreel_core::RunId;

use super::append::retire;
use super::failure::Halt;
use super::fork;
use super::rows;
use super::writer::Tx;
use crate::Error;

pub(super) async fn delete(tx: &Tx, run: RunId) -> Result<(), Halt> {
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
    delete_blobs(tx, id).await?;
    for table in ["events", "origins", "labels", "search"] {
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
    Ok(())
}

/// A blob goes with its last reference, unless a context node that stays comes after it; a node that
/// goes may have been the last that kept the one before it.
pub(super) async fn delete_blobs(tx: &Tx, id: i64) -> Result<(), Halt> {
    let sql = "DELETE FROM blob_refs WHERE run = $1 RETURNING digest";
    let mut referred = Vec::new();
    for row in tx.query(sql, &[&id]).await? {
        referred.push(row.try_get(0)?);
    }
    tx.exec("DELETE FROM staged WHERE run = $1", &[&id]).await?;
    drop_unreferred(tx, referred).await
}

/// Deletes those of the blobs that nobody refers to, and what only they kept. Each is locked first, and
/// looked at again then: whoever writes a blob that is there touches its row, so that it comes before or
/// after, and is seen.
pub(super) async fn drop_unreferred(tx: &Tx, mut candidates: Vec<Vec<u8>>) -> Result<(), Halt> {
    // In one order for everyone.
    candidates.sort_unstable();
    candidates.reverse();
    while let Some(digest) = candidates.pop() {
        let sql = "SELECT 1 FROM blobs WHERE digest = $1 FOR UPDATE";
        if tx.opt(sql, &[&digest]).await?.is_none() {
            continue;
        }
        let sql = "DELETE FROM blobs WHERE digest = $1
            AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE digest = $1)
            AND NOT EXISTS (SELECT 1 FROM blobs WHERE previous = $1)
            RETURNING previous";
        if let Some(row) = tx.opt(sql, &[&digest]).await? {
            let previous: Option<Vec<u8>> = row.try_get(0)?;
            candidates.extend(previous);
        }
    }
    Ok(())
}
