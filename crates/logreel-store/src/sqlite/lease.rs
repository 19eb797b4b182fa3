//! Leases: joining, claiming, giving back (SEMANTICS 17, 18, 20).

use logreel_core::decide::{ClaimDecision, decide_claim};
use logreel_core::event::{ClaimReason, RunLimit};
use logreel_core::{Digest, Epoch, FORMAT, RunId, Timestamp};
use rusqlite::{Connection, params};

use super::append::{Before, Landed, Landing, land, retire, settle};
use super::failure::{Halt, damaged};
use super::limit;
use super::open::Shared;
use super::owners::Life;
use super::rows::{self, Mark, Stored};
use super::writer::Tx;
use crate::tip::prepare;
use crate::tips::Known;
use crate::{ClaimOutcome, Claimable, Entry, Error, Lapsed, Owner, OwnerId};

/// Adds an owner, whose lock is held already, and clears away what dead ones left.
pub(super) fn join(tx: &mut Tx<'_>, owner: &Owner) -> Result<(), Halt> {
    sweep(tx)?;
    tx.conn
        .prepare_cached(
            "INSERT INTO owners (id, host, host_name, pid, beat, gone, beat_at)
             VALUES (?1, ?2, ?3, ?4, 0, 0, ?5)
             ON CONFLICT (id) DO UPDATE SET beat = beat + 1, gone = 0, beat_at = excluded.beat_at",
        )?
        .execute(params![
            owner.id.0.cast_signed(),
            owner.host,
            owner.host_name,
            owner.pid,
            tx.shared.env.now().as_micros()
        ])?;
    Ok(())
}

/// Runs that ended under dead owners leave their hands; owners that hold nothing are forgotten, with
/// their files.
fn sweep(tx: &mut Tx<'_>) -> Result<(), Halt> {
    let ids: Vec<i64> = collect(tx.conn, "SELECT id FROM owners", [])?;
    for id in ids {
        let owner = OwnerId(id.cast_unsigned());
        match tx.shared.owners.look_up(tx.conn, owner)? {
            None | Some((_, Life::Beating)) => {}
            // Frozen: it exists, and when it wakes it must find itself.
            Some((owner, Life::Silent)) if tx.shared.owners.is_here(&owner) => {}
            // Nothing else will ever be heard of a client that finished and did not say so.
            Some((owner, Life::Silent)) if owner.is_external() => {
                retire_ended(tx, id)?;
                forget_if_idle(tx.conn, id)?;
            }
            Some((_, Life::Silent)) => forget_if_idle(tx.conn, id)?,
            Some((_, Life::Dead)) => {
                tx.conn
                    .prepare_cached("DELETE FROM lapsed WHERE owner = ?1")?
                    .execute([id])?;
                retire_ended(tx, id)?;
                forget_if_idle(tx.conn, id)?;
            }
        }
    }
    let conn = tx.conn;
    tx.shared.owners.sweep(|owner| {
        conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM owners WHERE id = ?1)")?
            .query_row([owner.0.cast_signed()], |row| row.get(0))
    })?;
    Ok(())
}

fn forget_if_idle(conn: &Connection, owner: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM owners WHERE id = ?1
         AND NOT EXISTS (SELECT 1 FROM live WHERE owner = ?1)
         AND NOT EXISTS (SELECT 1 FROM lapsed WHERE owner = ?1)",
    )?
    .execute([owner])?;
    Ok(())
}

/// The owner lives. Gives the beat back.
pub(super) fn beat(tx: &mut Tx<'_>, owner: OwnerId) -> Result<i64, Halt> {
    tx.shared.owners.joined(tx.conn, owner)?;
    let sql = "UPDATE owners SET beat = beat + 1, beat_at = ?2 WHERE id = ?1 RETURNING beat";
    let now = tx.shared.env.now().as_micros();
    Ok(tx
        .conn
        .prepare_cached(sql)?
        .query_row([owner.0.cast_signed(), now], |row| row.get(0))?)
}

/// The owner is gone; who it was is kept for as long as a run names it.
pub(super) fn leave(tx: &mut Tx<'_>, owner: OwnerId) -> Result<(), Halt> {
    let id = owner.0.cast_signed();
    tx.conn
        .prepare_cached("UPDATE owners SET gone = 1 WHERE id = ?1")?
        .execute([id])?;
    for held in held_by(tx.conn, id)? {
        if !held.has_ended {
            tx.ring_everywhere(held.run)?;
        }
        limit::call_next(tx, held.id, held.limit.as_ref())?;
    }
    retire_ended(tx, id)?;
    forget_if_idle(tx.conn, id)?;
    Ok(())
}

/// A run in an owner's hands, by what the database itself knows of it: one that cannot be read leaves them like any
/// other, and keeps nobody from joining.
struct Held {
    id: i64,
    run: RunId,
    epoch: Epoch,
    has_ended: bool,
    limit: Option<RunLimit>,
}

/// The runs that an owner holds, in their order.
fn held_by(conn: &Connection, owner: i64) -> Result<Vec<Held>, Halt> {
    let sql = "SELECT l.run, r.run, r.status IN ('completed', 'failed', 'cancelled'), l.limit_key, l.limit_max, l.epoch
        FROM live l CROSS JOIN runs r ON r.id = l.run WHERE l.owner = ?1 ORDER BY l.run";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([owner])?;
    let mut held = Vec::new();
    while let Some(row) = rows.next()? {
        let (key, max): (Option<String>, Option<u32>) = (row.get(3)?, row.get(4)?);
        held.push(Held {
            id: row.get(0)?,
            run: rows::run_id(text(row.get_ref(1)?)?)?,
            epoch: Epoch(rows::unsigned(row.get(5)?)),
            has_ended: row.get(2)?,
            limit: key.zip(max).map(|(key, max)| RunLimit { key, max }),
        });
    }
    Ok(held)
}

/// The runs that ended under an owner that is gone: it will record no late fact any more.
fn retire_ended(tx: &mut Tx<'_>, owner: i64) -> Result<(), Halt> {
    for held in held_by(tx.conn, owner)? {
        if held.has_ended {
            tx.ring_everywhere(held.run)?;
            retire(tx, held.id, &held.run)?;
        }
    }
    Ok(())
}

/// Takes a run that is ready or orphaned, under the next epoch.
pub(super) fn claim(tx: &mut Tx<'_>, run: RunId, owner: OwnerId) -> Result<ClaimOutcome, Halt> {
    let claimer = tx.shared.owners.joined(tx.conn, owner)?;
    let stored = rows::load(tx.conn, &run)?;
    if let Some((holder, _)) = stored.lease
        && tx.shared.owners.holds(tx.conn, holder, &stored.row.facts)?
    {
        return Ok(ClaimOutcome::Driven(stored.entry(tx.conn, tx.shared)?));
    }
    if !stored.live {
        return Ok(ClaimOutcome::NotReady(stored.entry(tx.conn, tx.shared)?));
    }
    stored.check_own()?;
    let now = tx.shared.env.now();
    let Some(reason) = claim_reason(tx.conn, &stored, now)? else {
        if stored.lease.is_some() {
            note_lapse(tx, &stored)?;
            drop_lease(tx, stored.id)?;
            tx.ring_everywhere(run)?;
        }
        // Also of one that nobody held: what it waits for may have come to be since it was queued, and whoever finds
        // it in the queue would find nothing behind it. When a run of a newer format is ready, newer builds know.
        if stored.lease.is_some() || stored.check_foldable().is_ok() {
            settle(tx, stored.id, &stored.tip()?)?;
        }
        let entry = rows::load(tx.conn, &run)?.entry(tx.conn, tx.shared)?;
        return Ok(ClaimOutcome::NotReady(entry));
    };
    stored.check_foldable()?;
    let (drafts, epoch, claimed) =
        match decide_claim(&stored.row, stored.epoch, reason, &claimer.to_string()) {
            ClaimDecision::Drive(drafts) => {
                if !limit::take_place(tx, stored.row.facts.limit.as_ref(), Some(stored.id))? {
                    return Ok(ClaimOutcome::Limited(stored.entry(tx.conn, tx.shared)?));
                }
                (drafts, stored.epoch.next(), true)
            }
            // Nobody drives it, so no new epoch begins.
            ClaimDecision::CrashLoop(drafts) => (drafts, stored.epoch, false),
        };
    let prepared = prepare(drafts, &[], tx.shared.payload_bytes_max)?;
    let mut tip = stored.tip()?;
    let before = Before::of(&tip, stored.stale);
    let sealed = tip.extend(prepared, epoch, now).map_err(Error::from)?;
    note_lapse(tx, &stored)?;
    if claimed {
        tx.conn
            .prepare_cached(
                "UPDATE live SET epoch = ?2, owner = ?3, since = ?4, ready_at = NULL WHERE run = ?1",
            )?
            .execute(params![
                stored.id,
                epoch.0.cast_signed(),
                owner.0.cast_signed(),
                now.as_micros()
            ])?;
    } else {
        drop_lease(tx, stored.id)?;
    }
    let (id, sealed) = (stored.id, sealed.as_slice());
    let landing = Landing {
        id,
        before,
        epoch,
        sealed,
        mark: Mark::Tag(0),
        blobs: &[],
    };
    match land(tx, landing, &tip)? {
        Landed::Live | Landed::Retired => {}
        Landed::Refused => {
            let what = format!("the head of {run} moved within one transaction");
            return Err(Error::Bug(what).into());
        }
    }
    tx.tips.put(run, Box::new(Known { id, tip }));
    if sealed.is_empty() {
        tx.ring_everywhere(run)?;
    }
    let entry = rows::load(tx.conn, &run)?.entry(tx.conn, tx.shared)?;
    Ok(if claimed {
        ClaimOutcome::Claimed(entry)
    } else {
        ClaimOutcome::CrashLoop(entry)
    })
}

/// Why a worker may claim the run; `None` when it may not. Its holder, if any, is known dead.
fn claim_reason(
    conn: &Connection,
    stored: &Stored,
    now: Timestamp,
) -> Result<Option<ClaimReason>, Halt> {
    let ready = rows::ready(conn, stored.id, &stored.row)?;
    Ok(ready.claim_reason(stored.lease.is_some(), now))
}

/// A lease is about to be taken from its holder. Unless that one is known dead, whoever drives next
/// must know that it may still be about to write (SEMANTICS 24).
pub(super) fn note_lapse(tx: &Tx<'_>, stored: &Stored) -> rusqlite::Result<()> {
    if let Some((holder, _)) = stored.lease
        && tx.shared.owners.life(tx.conn, holder)? == Life::Silent
    {
        lapse(tx, stored.id, stored.epoch, holder)?;
    }
    Ok(())
}

pub(super) fn lapse(tx: &Tx<'_>, id: i64, epoch: Epoch, holder: OwnerId) -> rusqlite::Result<()> {
    let sql = "INSERT INTO lapsed (run, epoch, owner) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    tx.conn.prepare_cached(sql)?.execute(params![
        id,
        epoch.0.cast_signed(),
        holder.0.cast_signed()
    ])?;
    Ok(())
}

/// Who lost the run's lease by silence and is not known dead by now.
pub(super) fn lapsed(conn: &Connection, shared: &Shared, run: &RunId) -> Result<Vec<Lapsed>, Halt> {
    let stored = rows::load(conn, run)?;
    if stored.row.status().is_terminal() {
        return Ok(Vec::new());
    }
    let mut statement =
        conn.prepare_cached("SELECT epoch, owner FROM lapsed WHERE run = ?1 ORDER BY epoch")?;
    let mut rows = statement.query([stored.id])?;
    let mut lapsed = Vec::new();
    while let Some(row) = rows.next()? {
        let epoch = Epoch(rows::unsigned(row.get(0)?));
        let owner = OwnerId(rows::unsigned(row.get(1)?));
        match shared.owners.look_up(conn, owner)? {
            None | Some((_, Life::Dead)) => {}
            Some((owner, Life::Beating | Life::Silent)) => lapsed.push(Lapsed {
                epoch,
                owner,
                // A file has no clock that goes on over a start of the machine and is the same in every container.
                taken_ago: None,
                unseen: false,
            }),
        }
    }
    Ok(lapsed)
}

pub(super) fn drop_lease(tx: &Tx<'_>, id: i64) -> rusqlite::Result<()> {
    tx.conn
        .prepare_cached("UPDATE live SET owner = NULL, since = NULL WHERE run = ?1")?
        .execute([id])?;
    Ok(())
}

/// [`release`] by what the database itself knows of the run: its driver lives, and what cannot be read would keep its
/// place for as long.
pub(super) fn let_go(
    tx: &mut Tx<'_>,
    run: RunId,
    epoch: Epoch,
    owner: OwnerId,
) -> Result<(), Halt> {
    let held = held_by(tx.conn, owner.0.cast_signed())?;
    let is_it = |held: &Held| held.run == run && held.epoch == epoch;
    let Some(held) = held.into_iter().find(is_it) else {
        return Ok(());
    };
    leave_unread(tx, held.id)?;
    limit::call_next(tx, held.id, held.limit.as_ref())
}

/// A run that cannot be read is in nobody's hands any more. Whoever goes for it is told what is wrong with it, unless it
/// has ended.
pub(super) fn leave_unread(tx: &mut Tx<'_>, id: i64) -> Result<(), Halt> {
    drop_lease(tx, id)?;
    let sql = "SELECT run, status IN ('completed', 'failed', 'cancelled') FROM runs WHERE id = ?1";
    let (run, has_ended): (String, bool) = tx
        .conn
        .prepare_cached(sql)?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let run = rows::run_id(&run)?;
    if has_ended {
        retire(tx, id, &run)?;
    } else {
        tx.conn
            .prepare_cached("UPDATE live SET ready_at = ?2 WHERE run = ?1")?
            .execute(params![id, rows::NOW])?;
    }
    tx.ring_everywhere(run)?;
    Ok(())
}

/// Gives a lease back, if it is still this driver's.
pub(super) fn release(
    tx: &mut Tx<'_>,
    run: RunId,
    epoch: Epoch,
    owner: OwnerId,
) -> Result<Entry, Halt> {
    let stored = rows::load(tx.conn, &run)?;
    let is_held = stored.lease.is_some_and(|(holder, _)| holder == owner);
    if stored.live && stored.epoch == epoch && is_held {
        drop_lease(tx, stored.id)?;
        settle(tx, stored.id, &stored.tip()?)?;
        tx.ring_everywhere(run)?;
        limit::call_next(tx, stored.id, stored.row.facts.limit.as_ref())?;
    }
    Ok(rows::load(tx.conn, &run)?.entry(tx.conn, tx.shared)?)
}

/// What this owner holds, whether it can be read or not.
pub(super) fn held(conn: &Connection, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Halt> {
    let sql = "SELECT r.run, l.epoch FROM live l JOIN runs r ON r.id = l.run WHERE l.owner = ?1 ORDER BY r.run";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([owner.0.cast_signed()])?;
    let mut held = Vec::new();
    while let Some(row) = rows.next()? {
        let run = rows::run_id(text(row.get_ref(0)?)?)?;
        held.push((run, Epoch(rows::unsigned(row.get(1)?))));
    }
    Ok(held)
}

/// Runs that a worker may take, oldest first.
pub(super) fn claimable(
    conn: &Connection,
    shared: &Shared,
    what: &[Claimable],
    labels: &[(String, String)],
    limit: usize,
) -> Result<Vec<RunId>, Halt> {
    let now = shared.env.now();
    let fits = |kind: &str, agent: &str, spec: &Digest| {
        what.iter()
            .any(|what| what.kind.as_str() == kind && what.fits(what.kind, agent, spec))
    };
    let mut places = limit::Places::default();
    // What its columns say that a worker may drive, and has a place for.
    let mut wanted = |row: &rusqlite::Row<'_>| -> Result<Option<(i64, RunId)>, Halt> {
        let key = row.get_ref(5)?.as_str_or_null();
        let key = key.map_err(rusqlite::Error::from)?;
        if !places.has_one(conn, shared, key, row.get(6)?)? {
            return Ok(None);
        }
        let (kind, agent) = (row.get_ref(2)?, row.get_ref(3)?);
        let spec = Digest::from_slice(row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?)
            .ok_or_else(|| damaged("a spec's digest has the wrong length"))?;
        let id = row.get(0)?;
        if !fits(text(kind)?, text(agent)?, &spec) || !carries(conn, id, labels)? {
            return Ok(None);
        }
        Ok(Some((id, rows::run_id(text(row.get_ref(1)?)?)?)))
    };
    // Queued ones first, then those whose time came: each in the order of its index, up to `limit`.
    let mut found: Vec<(i64, RunId)> = Vec::new();
    for range in ["l.ready_at = 0", "l.ready_at > 0 AND l.ready_at <= ?1"] {
        let sql = format!(
            "SELECT l.run, r.run, r.kind, r.agent, r.spec_digest, l.limit_key, l.limit_max
             FROM live l CROSS JOIN runs r ON r.id = l.run
             WHERE l.owner IS NULL AND {range} AND ?1 IS NOT NULL
               AND r.needs <= {FORMAT} AND NOT r.read_only AND NOT r.erased
             ORDER BY l.ready_at, l.run"
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query([now.as_micros()])?;
        let mut left = limit;
        while left > 0 {
            let Some(row) = rows.next()? else { break };
            if let Some(wanted) = wanted(row)? {
                found.push(wanted);
                left -= 1;
            }
        }
    }
    let sql = format!(
        "SELECT l.run, r.run, r.kind, r.agent, r.spec_digest, l.limit_key, l.limit_max
         FROM live l CROSS JOIN runs r ON r.id = l.run
         WHERE l.owner = ?1 AND r.status NOT IN ('completed', 'failed', 'cancelled')
           AND r.needs <= {FORMAT} AND NOT r.read_only AND NOT r.erased
         ORDER BY l.run"
    );
    for owner in gone(conn, shared)? {
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query([owner])?;
        while let Some(row) = rows.next()? {
            if let Some((id, run)) = wanted(row)?
                && is_orphaned(conn, shared, id, OwnerId(owner.cast_unsigned()))?
            {
                found.push((id, run));
            }
        }
    }
    found.sort_unstable_by_key(|(id, _)| *id);
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, run)| run).collect())
}

/// Whether its holder is gone, and it can go on. One that cannot be read is taken for one: whoever goes for it is told
/// what is wrong, and it keeps nobody from the others.
fn is_orphaned(conn: &Connection, shared: &Shared, id: i64, holder: OwnerId) -> Result<bool, Halt> {
    let looked = || -> Result<bool, Halt> {
        let Some(stored) = rows::load_id(conn, id)? else {
            return Ok(false);
        };
        Ok(stored.check_foldable().is_ok()
            && !shared.owners.holds(conn, holder, &stored.row.facts)?
            && claim_reason(conn, &stored, shared.env.now())?.is_some())
    };
    match looked() {
        Err(Halt::Refused(_)) => Ok(true),
        looked => looked,
    }
}

/// Whether the run has all these labels.
fn carries(conn: &Connection, id: i64, labels: &[(String, String)]) -> rusqlite::Result<bool> {
    for (name, value) in labels {
        let has = conn
            .prepare_cached("SELECT 1 FROM labels WHERE k = ?1 AND v = ?2 AND run = ?3")?
            .exists(params![name, value, id])?;
        if !has {
            return Ok(false);
        }
    }
    Ok(true)
}

fn text<'a>(value: rusqlite::types::ValueRef<'a>) -> rusqlite::Result<&'a str> {
    value.as_str().map_err(rusqlite::Error::from)
}

/// Owners that hold something and do not beat.
pub(super) fn gone(conn: &Connection, shared: &Shared) -> Result<Vec<i64>, Halt> {
    let sql = "SELECT DISTINCT owner FROM live WHERE owner IS NOT NULL";
    let mut gone = collect(conn, sql, [])?;
    let mut beats = Vec::with_capacity(gone.len());
    for owner in &gone {
        let owner = OwnerId(owner.cast_unsigned());
        beats.push(shared.owners.is_alive(conn, owner)?);
    }
    let mut beats = beats.into_iter();
    gone.retain(|_| beats.next() == Some(false));
    Ok(gone)
}

fn collect<P: rusqlite::Params>(
    conn: &Connection,
    sql: &str,
    params: P,
) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached(sql)?
        .query_map(params, |row| row.get(0))?
        .collect()
}
