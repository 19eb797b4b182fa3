//! How many runs with one key are driven at once.
//!
//! A place is a lease, so nothing is counted that could be left behind: who drives is looked up in the
//! transaction that would add one more. It holds the row of the key meanwhile, so that two who see the same
//! place free come one after the other.

use std::collections::HashMap;

use logreel_core::Epoch;
use logreel_core::event::RunLimit;

use super::append::settle;
use super::failure::Halt;
use super::lease::{drop_lease, lapse, leave_unread};
use super::owners::{Life, OWNER, OWNER_COLUMNS};
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

async fn holders(tx: &Tx, key: &str, except: Option<i64>) -> Result<Holders, Halt> {
    let sql = format!(
        "SELECT {OWNER}, held.runs FROM (
           SELECT owner, count(*) AS runs FROM queue
           WHERE limit_key = $1 AND owner IS NOT NULL AND run IS DISTINCT FROM $3::int8
           GROUP BY owner) held
         JOIN owners o ON o.id = held.owner"
    );
    let now = tx.shared.clock.lease_now();
    let mut holders = Holders::default();
    for row in tx.query(&sql, &[&rows::plain(key), &now, &except]).await? {
        let (_, life) = tx.shared.owners.read(&row, 0)?;
        let runs = rows::unsigned(row.try_get(OWNER_COLUMNS)?);
        match life {
            Life::Beating => holders.beating += runs,
            Life::Silent => holders.silent += runs,
            Life::Dead => {}
        }
    }
    Ok(holders)
}

/// Which keys have places, looked up once for each: for runs that nobody alive drives.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<String, u64>);

impl Places {
    /// The keys that were looked up, and how many runs of each are driven.
    pub fn known(&self) -> (Vec<String>, Vec<i64>) {
        let known = self.0.iter();
        known
            .map(|(key, beating)| (rows::plain(key), beating.cast_signed()))
            .unzip()
    }

    /// Whether one more run with this key may be driven.
    pub async fn has_one(
        &mut self,
        tx: &Tx,
        key: Option<&str>,
        max: Option<u64>,
    ) -> Result<bool, Halt> {
        let (Some(key), Some(max)) = (key, max) else {
            return Ok(true);
        };
        let beating = match self.0.get(key) {
            Some(beating) => *beating,
            None => {
                let beating = holders(tx, key, None).await?.beating;
                self.0.insert(key.to_owned(), beating);
                beating
            }
        };
        Ok(beating < max)
    }
}

/// Holds the row of a key until the transaction ends. Before any run is locked, so that nobody who has
/// the key waits for someone who wants it.
pub(super) async fn lock(tx: &Tx, limit: Option<&RunLimit>) -> Result<(), Halt> {
    let Some(limit) = limit else { return Ok(()) };
    let key = rows::plain(&limit.key);
    let sql = "INSERT INTO limits (key) VALUES ($1) ON CONFLICT DO NOTHING";
    tx.exec(sql, &[&key]).await?;
    tx.opt("SELECT 1 FROM limits WHERE key = $1 FOR UPDATE", &[&key])
        .await?;
    Ok(())
}

/// Takes a place for a run that is about to be driven; says whether there was one. A place whose
/// holder's lease ran out is taken from it: it may be frozen, and must not go on once it wakes.
pub(super) async fn take_place(
    tx: &Tx,
    limit: Option<&RunLimit>,
    run: Option<i64>,
) -> Result<bool, Halt> {
    let Some(limit) = limit else { return Ok(true) };
    lock(tx, Some(limit)).await?;
    let max = u64::from(limit.max);
    let holders = holders(tx, &limit.key, run).await?;
    if holders.beating >= max {
        return Ok(false);
    }
    if holders.beating + holders.silent < max {
        return Ok(true);
    }
    fence_silent(tx, limit, run).await?;
    // Some may have been heard meanwhile.
    let left = self::holders(tx, &limit.key, run).await?;
    Ok(left.beating + left.silent < max)
}

async fn fence_silent(tx: &Tx, limit: &RunLimit, except: Option<i64>) -> Result<(), Halt> {
    // Both rows, as in `held_by`.
    let sql = "SELECT l.run, l.epoch, q.owner FROM live l JOIN queue q ON q.run = l.run
        WHERE q.limit_key = $1 AND q.owner IS NOT NULL AND q.run IS DISTINCT FROM $2::int8
        ORDER BY l.run FOR UPDATE";
    for row in tx.query(sql, &[&rows::plain(&limit.key), &except]).await? {
        let id: i64 = row.try_get(0)?;
        let epoch = Epoch(rows::unsigned(row.try_get(1)?));
        let holder = OwnerId(row.try_get::<_, i64>(2)?.cast_unsigned());
        let stored = match rows::load_id(tx, id).await {
            Ok(Some(stored)) if !matches!(stored.holder, Some((_, Life::Silent))) => continue,
            Ok(Some(stored)) => Some(stored),
            Ok(None) => continue,
            // One that cannot be read keeps its place no longer than any other.
            Err(Halt::Refused(_)) => None,
            Err(halt) => return Err(halt),
        };
        if !tx.shared.owners.stays_silent(tx, holder).await? {
            continue;
        }
        lapse(tx, id, epoch, holder).await?;
        tx.exec("UPDATE live SET epoch = epoch + 1 WHERE run = $1", &[&id])
            .await?;
        match stored {
            Some(stored) => {
                drop_lease(tx, id).await?;
                settle(tx, id, &stored.tip()?).await?;
                tx.ring_everywhere(stored.row.run);
            }
            None => leave_unread(tx, id).await?,
        }
    }
    Ok(())
}

/// The limit of a run as `queue` has it.
pub(super) fn stored(key: Option<String>, max: Option<i64>) -> Option<RunLimit> {
    let max = u32::try_from(max?).unwrap_or(u32::MAX);
    key.map(|key| RunLimit { key, max })
}

/// A run gave its place back: rings for the first in line of the others.
pub(super) async fn call_next(tx: &Tx, gave: i64, limit: Option<&RunLimit>) -> Result<(), Halt> {
    let Some(limit) = limit else { return Ok(()) };
    let sql = "SELECT r.run FROM queue q JOIN runs r ON r.id = q.run
        WHERE q.limit_key = $1 AND q.owner IS NULL AND q.ready_at <= $2 AND q.run <> $4
        ORDER BY q.run LIMIT $3";
    let now = tx.shared.clock.now().as_micros();
    let called = i64::from(limit.max.min(CALLED));
    let key = rows::plain(&limit.key);
    for row in tx.query(sql, &[&key, &now, &called, &gave]).await? {
        tx.ring_everywhere(rows::run_id(row.try_get(0)?)?);
    }
    Ok(())
}
