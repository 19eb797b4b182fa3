//! How many runs with one key are driven at once.
//!
//! A place is a lease, so nothing is counted that could be left behind: who drives is looked up in the
//! transaction that would add one more. Writers are one at a time here; where they are not, a row for
//! the key is locked first.

use std::collections::HashMap;

use logreel_core::event::RunLimit;
use logreel_core::{Epoch, RunId};
use rusqlite::{Connection, params};

use super::append::settle;
use super::failure::Halt;
use super::lease::{drop_lease, lapse, leave_unread};
use super::open::Shared;
use super::owners::Life;
use super::rows;
use super::writer::Tx;
use crate::OwnerId;

/// How many in line are told of a place; the others look now and then.
const CALLED: u32 = 8;

/// Who holds leases of runs with a key: how many, and whether they live.
#[derive(Debug, Default)]
struct Holders {
    beating: u64,
    /// Their leases ran out; they may be frozen.
    silent: u64,
}

fn holders(
    conn: &Connection,
    shared: &Shared,
    key: &str,
    except: Option<i64>,
) -> rusqlite::Result<Holders> {
    let sql = "SELECT owner, count(*) FROM live
        WHERE limit_key = ?1 AND owner IS NOT NULL AND run IS NOT ?2 GROUP BY owner";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query(params![key, except])?;
    let mut holders = Holders::default();
    while let Some(row) = found.next()? {
        let owner = OwnerId(rows::unsigned(row.get(0)?));
        let runs = rows::unsigned(row.get(1)?);
        match shared.owners.life(conn, owner)? {
            Life::Beating => holders.beating += runs,
            Life::Silent => holders.silent += runs,
            Life::Dead => {}
        }
    }
    Ok(holders)
}

/// Whether as many runs as the limit allows are driven, without this one.
pub(super) fn is_full(
    conn: &Connection,
    shared: &Shared,
    limit: &RunLimit,
    except: Option<i64>,
) -> rusqlite::Result<bool> {
    let holders = holders(conn, shared, &limit.key, except)?;
    Ok(holders.beating >= u64::from(limit.max))
}

/// Which keys have places, looked up once for each: for runs that nobody alive drives.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<String, u64>);

impl Places {
    /// Whether one more run with this key may be driven.
    pub fn has_one(
        &mut self,
        conn: &Connection,
        shared: &Shared,
        key: Option<&str>,
        max: Option<u32>,
    ) -> rusqlite::Result<bool> {
        let (Some(key), Some(max)) = (key, max) else {
            return Ok(true);
        };
        let beating = match self.0.get(key) {
            Some(beating) => *beating,
            None => {
                let beating = holders(conn, shared, key, None)?.beating;
                self.0.insert(key.to_owned(), beating);
                beating
            }
        };
        Ok(beating < u64::from(max))
    }
}

/// Takes a place for a run that is about to be driven; says whether there was one. A place whose
/// holder's lease ran out is taken from it: it may be frozen, and must not go on once it wakes.
pub(super) fn take_place(
    tx: &mut Tx<'_>,
    limit: Option<&RunLimit>,
    run: Option<i64>,
) -> Result<bool, Halt> {
    let Some(limit) = limit else { return Ok(true) };
    let max = u64::from(limit.max);
    let holders = holders(tx.conn, tx.shared, &limit.key, run)?;
    if holders.beating >= max {
        return Ok(false);
    }
    if holders.beating + holders.silent >= max {
        fence_silent(tx, limit, run)?;
    }
    Ok(true)
}

fn fence_silent(tx: &mut Tx<'_>, limit: &RunLimit, except: Option<i64>) -> Result<(), Halt> {
    let sql = "SELECT run, owner, epoch FROM live
        WHERE limit_key = ?1 AND owner IS NOT NULL AND run IS NOT ?2 ORDER BY run";
    let held: Vec<(i64, i64, i64)> = tx
        .conn
        .prepare_cached(sql)?
        .query_map(params![limit.key, except], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<Result<_, _>>()?;
    for (id, owner, epoch) in held {
        let owner = OwnerId(owner.cast_unsigned());
        if tx.shared.owners.life(tx.conn, owner)? != Life::Silent {
            continue;
        }
        let stored = match rows::load_id(tx.conn, id) {
            Ok(Some(stored)) => Some(stored),
            Ok(None) => continue,
            // One that cannot be read keeps its place no longer than any other.
            Err(Halt::Refused(_)) => None,
            Err(halt) => return Err(halt),
        };
        lapse(tx, id, Epoch(epoch.cast_unsigned()), owner)?;
        tx.conn
            .prepare_cached("UPDATE live SET epoch = epoch + 1 WHERE run = ?1")?
            .execute([id])?;
        match stored {
            Some(stored) => {
                drop_lease(tx, id)?;
                settle(tx, id, &stored.tip()?)?;
                tx.ring_everywhere(stored.row.run)?;
            }
            None => leave_unread(tx, id)?,
        }
    }
    Ok(())
}

/// A run gave its place back: rings for the first in line of the others.
pub(super) fn call_next(tx: &mut Tx<'_>, gave: i64, limit: Option<&RunLimit>) -> Result<(), Halt> {
    let Some(limit) = limit else { return Ok(()) };
    let sql = "SELECT r.run FROM live l CROSS JOIN runs r ON r.id = l.run
        WHERE l.limit_key = ?1 AND l.owner IS NULL AND l.ready_at <= ?2 AND l.run <> ?4
        ORDER BY l.run LIMIT ?3";
    let now = tx.shared.env.now().as_micros();
    let next: Vec<RunId> = {
        let mut statement = tx.conn.prepare_cached(sql)?;
        let mut found = statement.query(params![limit.key, now, limit.max.min(CALLED), gave])?;
        let mut next = Vec::new();
        while let Some(row) = found.next()? {
            next.push(rows::run_id(
                row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?,
            )?);
        }
        next
    };
    for run in next {
        tx.ring_everywhere(run)?;
    }
    Ok(())
}
