//! Blobs that come ahead of the events that name them (SEMANTICS 32).
//!
//! Such a blob has a reference of its run like any other, and a row in `staged` that goes when an append
//! brings the blob, or an hour later together with the reference.

use logreel_core::{Blob, RunId, Timestamp};

use super::delete::drop_unreferred;
use super::failure::Halt;
use super::rows;
use super::writer::Tx;
use crate::env::to_micros;
use crate::{Error, STAGED};

pub(super) async fn stage(tx: &Tx, run: RunId, blob: &Blob) -> Result<(), Halt> {
    let stored = rows::lock(tx, &run).await?;
    if stored.erased {
        return Err(Error::ErasedRun(run).into());
    }
    let now = tx.shared.clock.now();
    drop_old(tx, now).await?;
    let digest = blob.digest();
    let digest = digest.as_bytes().as_slice();
    let sql = "SELECT 1 FROM blob_refs WHERE run = $1 AND digest = $2";
    let is_new = tx.opt(sql, &[&stored.id, &digest]).await?.is_none();
    rows::insert_blob(tx, stored.id, blob, None).await?;
    // One that an event names already stays whatever happens.
    let sql = match is_new {
        true => "INSERT INTO staged (run, digest, at) VALUES ($1, $2, $3)",
        false => "UPDATE staged SET at = $3 WHERE run = $1 AND digest = $2",
    };
    tx.exec(sql, &[&stored.id, &digest, &now.as_micros()])
        .await?;
    Ok(())
}

async fn drop_old(tx: &Tx, now: Timestamp) -> Result<(), Halt> {
    let before = now.as_micros() - to_micros(STAGED);
    let sql = "DELETE FROM staged WHERE at <= $1 RETURNING run, digest";
    let mut digests = Vec::new();
    for row in tx.query(sql, &[&before]).await? {
        let (run, digest): (i64, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
        let sql = "DELETE FROM blob_refs WHERE run = $1 AND digest = $2";
        tx.exec(sql, &[&run, &digest]).await?;
        digests.push(digest);
    }
    drop_unreferred(tx, digests).await?;
    Ok(())
}
