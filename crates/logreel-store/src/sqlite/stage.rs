//! Blobs that come ahead of the events that name them (SEMANTICS 32).
//!
//! Such a blob has a reference of its run like any other, and a row in `staged` that goes when an append
//! brings the blob, or an hour later together with the reference.

use logreel_core::{Blob, RunId, Timestamp};
use rusqlite::{Connection, params};

use super::delete::drop_unreferred;
use super::failure::Halt;
use super::rows;
use super::writer::Tx;
use crate::env::to_micros;
use crate::{Error, STAGED};

pub(super) fn stage(tx: &mut Tx<'_>, run: RunId, blob: &Blob) -> Result<(), Halt> {
    let stored = rows::load(tx.conn, &run)?;
    if stored.erased {
        return Err(Error::ErasedRun(run).into());
    }
    let now = tx.shared.env.now();
    drop_old(tx.conn, now)?;
    let digest = blob.digest();
    let digest = digest.as_bytes().as_slice();
    let conn = tx.conn;
    conn.prepare_cached(
        "INSERT INTO blobs (digest, previous, shares, bytes) VALUES (?1, NULL, NULL, ?2)
         ON CONFLICT DO NOTHING",
    )?
    .execute(params![digest, &blob.bytes()[..]])?;
    // One that an event names already stays whatever happens.
    let is_new = conn
        .prepare_cached(
            "INSERT INTO blob_refs (run, digest) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        )?
        .execute(params![stored.id, digest])?
        > 0;
    let sql = match is_new {
        true => "INSERT INTO staged (run, digest, at) VALUES (?1, ?2, ?3)",
        false => "UPDATE staged SET at = ?3 WHERE run = ?1 AND digest = ?2",
    };
    conn.prepare_cached(sql)?
        .execute(params![stored.id, digest, now.as_micros()])?;
    Ok(())
}

fn drop_old(conn: &Connection, now: Timestamp) -> Result<(), Halt> {
    let before = now.as_micros() - to_micros(STAGED);
    let old: Vec<(i64, Vec<u8>)> = conn
        .prepare_cached("DELETE FROM staged WHERE at <= ?1 RETURNING run, digest")?
        .query_map([before], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (run, digest) in &old {
        conn.prepare_cached("DELETE FROM blob_refs WHERE run = ?1 AND digest = ?2")?
            .execute(params![run, digest])?;
    }
    let digests = old.into_iter().map(|(_, digest)| digest);
    drop_unreferred(conn, digests.collect())?;
    Ok(())
}
