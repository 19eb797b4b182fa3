//! Leases: joining, claiming, giving back (SEMANTICS 17, 18, 20).

use logreel_core::decide::{ClaimDecision, decide_claim};
use logreel_core::event::{ClaimReason, RunLimit};
use logreel_core::{Epoch, RunId, Timestamp};

use super::append::{Landed, Landing, land, no_place, retire, settle};
use super::columns::Mark;
use super::failure::Halt;
use super::limit;
use super::owners::{Home, Life, OWNER, beat_now, now_or};
use super::rows::{self, Before, Stored};
use super::writer::Tx;
use crate::env::of_micros;
use crate::tip::prepare;
use crate::{ClaimOutcome, Entry, Error, Lapsed, Owner, OwnerId};

/// How long an owner of another host is kept that is silent and holds nothing, in microseconds: it may be cut
/// off, or asleep, and go on where it was.
const FORGOTTEN: i64 = 24 * 60 * 60 * 1_000_000;

/// Adds an owner, whose lock is held already.
pub(super) async fn join(tx: &Tx, owner: &Owner, home: &Home) -> Result<(), Halt> {
    let sql = format!(
        "INSERT INTO owners (id, host, host_name, pid, beat_at, gone, folder, lease, place)
         VALUES ($2, $3, $4, $5, {}, false, $6, $7, $8)
         ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, gone = false,
           folder = excluded.folder, lease = excluded.lease, place = excluded.place",
        beat_now()
    );
    tx.exec(
        &sql,
        &[
            &tx.shared.clock.lease_now(),
            &owner.id.0.cast_signed(),
            &owner.host,
            &owner.host_name,
            &i64::from(owner.pid),
            &home.folder,
            &tx.shared.owners.lease_micros(),
            &home.place,
        ],
    )
    .await?;
    Ok(())
}

/// The owners that a sweep may find something of, and what is known of their lives. Those of other hosts, and
/// clients, that hold something that has not ended are left alone, and so are those that hold nothing until their
/// time is over: there may be many of them.
pub(super) async fn owners(tx: &Tx) -> Result<Vec<(Owner, Life)>, Halt> {
    let sql = format!(
        "SELECT {OWNER} FROM owners o WHERE o.gone OR o.host = $1
           OR {} - o.beat_at >= {FORGOTTEN}
             AND NOT EXISTS (SELECT 1 FROM queue WHERE owner = o.id)
             AND NOT EXISTS (SELECT 1 FROM lapsed WHERE owner = o.id)
           OR o.host LIKE '{}%' AND EXISTS (
             SELECT 1 FROM queue q JOIN runs r ON r.id = q.run WHERE q.owner = o.id
               AND r.status IN ('completed', 'failed', 'cancelled'))
         ORDER BY o.id",
        now_or("$2"),
        Owner::EXTERNAL
    );
    let now = tx.shared.clock.lease_now();
    let found = tx.query(&sql, &[&tx.shared.owners.host(), &now]).await?;
    let read = |row| tx.shared.owners.read(row, 0);
    found.iter().map(read).collect()
}

/// What an owner that is gone left behind: runs that ended under it leave its hands, and it is forgotten when
/// it holds nothing.
pub(super) async fn sweep_one(tx: &Tx, owner: &Owner, life: Life) -> Result<(), Halt> {
    let id = owner.id.0.cast_signed();
    match life {
        Life::Beating => Ok(()),
        // Frozen: it exists, and when it wakes it must find itself.
        Life::Silent if tx.shared.owners.exists(owner) => Ok(()),
        // Nothing else will ever be heard of a client that finished and did not say so.
        Life::Silent if owner.is_external() => {
            retire_ended(tx, id).await?;
            forget_if_idle(tx, id, life).await
        }
        Life::Silent => forget_if_idle(tx, id, life).await,
        Life::Dead => {
            tx.exec("DELETE FROM lapsed WHERE owner = $1", &[&id])
                .await?;
            retire_ended(tx, id).await?;
            forget_if_idle(tx, id, life).await
        }
    }
}

/// Forgets an owner that holds nothing and is gone, or was silent for so long that nobody waits for it. Its
/// row is locked first: whoever is about to write its name holds it, and is seen then.
async fn forget_if_idle(tx: &Tx, owner: i64, life: Life) -> Result<(), Halt> {
    let sql = format!(
        "SELECT gone, {} - beat_at FROM owners WHERE id = $2 FOR UPDATE",
        beat_now()
    );
    let found = tx
        .opt(&sql, &[&tx.shared.clock.lease_now(), &owner])
        .await?;
    let Some(found) = found else { return Ok(()) };
    let (gone, silent): (bool, i64) = (found.try_get(0)?, found.try_get(1)?);
    if !gone && life != Life::Dead && silent < FORGOTTEN {
        return Ok(());
    }
    tx.exec(
        "DELETE FROM owners WHERE id = $1
         AND NOT EXISTS (SELECT 1 FROM queue WHERE owner = $1)
         AND NOT EXISTS (SELECT 1 FROM lapsed WHERE owner = $1)",
        &[&owner],
    )
    .await?;
    Ok(())
}

/// The owner is gone; who it was is kept for as long as a run names it.
pub(super) async fn leave(tx: &Tx, owner: OwnerId) -> Result<(), Halt> {
    let id = owner.0.cast_signed();
    tx.exec("UPDATE owners SET gone = true WHERE id = $1", &[&id])
        .await?;
    for held in held_by(tx, id).await? {
        if !held.has_ended {
            tx.ring_everywhere(held.run);
        }
        limit::call_next(tx, held.id, held.limit.as_ref()).await?;
    }
    retire_ended(tx, id).await?;
    forget_if_idle(tx, id, Life::Dead).await
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

/// The runs that an owner holds, locked in their order.
async fn held_by(tx: &Tx, owner: i64) -> Result<Vec<Held>, Halt> {
    // Both rows: who waited for the first looks at the second as it is then, and not as it was.
    let sql = "SELECT l.run FROM live l JOIN queue q ON q.run = l.run WHERE q.owner = $1
        ORDER BY l.run FOR UPDATE";
    let locked = tx.query(sql, &[&owner]).await?;
    let ids = locked.iter().map(|row| row.try_get(0));
    let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
    // Only a statement after that sees how each of them is now.
    let sql = "SELECT r.id, r.run, r.status IN ('completed', 'failed', 'cancelled'), q.limit_key, q.limit_max, l.epoch
        FROM runs r JOIN queue q ON q.run = r.id JOIN live l ON l.run = r.id WHERE r.id = ANY($1) ORDER BY r.id";
    let found = tx.query(sql, &[&ids]).await?;
    let held = |row: &tokio_postgres::Row| {
        let (key, max): (Option<String>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
        Ok(Held {
            id: row.try_get(0)?,
            run: rows::run_id(row.try_get(1)?)?,
            epoch: Epoch(rows::unsigned(row.try_get(5)?)),
            has_ended: row.try_get(2)?,
            limit: limit::stored(key, max),
        })
    };
    found.iter().map(held).collect()
}

/// The runs that ended under an owner that is gone: it will record no late fact any more.
async fn retire_ended(tx: &Tx, owner: i64) -> Result<(), Halt> {
    for held in held_by(tx, owner).await? {
        if held.has_ended {
            tx.ring_everywhere(held.run);
            retire(tx, held.id, &held.run).await?;
        }
    }
    Ok(())
}

/// Takes a run for a worker, unless someone else is at it at this moment: a worker goes on to the next one
/// instead of waiting for them.
pub(super) async fn try_claim(
    tx: &Tx,
    run: RunId,
    owner: OwnerId,
) -> Result<Option<ClaimOutcome>, Halt> {
    // In the order of `claim`, which locks all of it once more.
    tx.shared.owners.joined(tx, owner).await?;
    let unlocked = rows::load(tx, &run).await?;
    if unlocked.lease.is_some() && unlocked.is_driven(tx) {
        return Ok(Some(ClaimOutcome::Driven(unlocked.entry(tx).await?)));
    }
    limit::lock(tx, unlocked.row.facts.limit.as_ref()).await?;
    let sql = "SELECT 1 FROM live WHERE run = $1 FOR UPDATE SKIP LOCKED";
    if unlocked.live && tx.opt(sql, &[&unlocked.id]).await?.is_none() {
        return Ok(None);
    }
    claim(tx, run, owner).await.map(Some)
}

/// Takes a run that is ready or orphaned, under the next epoch.
pub(super) async fn claim(tx: &Tx, run: RunId, owner: OwnerId) -> Result<ClaimOutcome, Halt> {
    let claimer = tx.shared.owners.joined(tx, owner).await?;
    // The key first, then the run: what its limit is never changes.
    let unlocked = rows::load(tx, &run).await?;
    limit::lock(tx, unlocked.row.facts.limit.as_ref()).await?;
    let stored = rows::lock(tx, &run).await?;
    if stored.lease.is_some() && stored.is_driven(tx) {
        return Ok(ClaimOutcome::Driven(stored.entry(tx).await?));
    }
    if let Some((holder, Life::Silent)) = &stored.holder
        && !tx.shared.owners.stays_silent(tx, holder.id).await?
    {
        // It was heard at this moment.
        return Ok(ClaimOutcome::Driven(
            rows::load(tx, &run).await?.entry(tx).await?,
        ));
    }
    if !stored.live {
        return Ok(ClaimOutcome::NotReady(stored.entry(tx).await?));
    }
    stored.check_own()?;
    let now = tx.shared.clock.now();
    let Some(reason) = claim_reason(tx, &stored, now).await? else {
        if stored.lease.is_some() {
            note_lapse(tx, &stored).await?;
            drop_lease(tx, stored.id).await?;
            tx.ring_everywhere(run);
        }
        // Also of one that nobody held: what it waits for may have come to be since it was queued, and whoever finds
        // it in the queue would find nothing behind it. When a run of a newer format is ready, newer builds know.
        if stored.lease.is_some() || stored.check_foldable().is_ok() {
            settle(tx, stored.id, &stored.tip()?).await?;
        }
        let entry = rows::load(tx, &run).await?.entry(tx).await?;
        return Ok(ClaimOutcome::NotReady(entry));
    };
    stored.check_foldable()?;
    let (drafts, epoch, claimed) =
        match decide_claim(&stored.row, stored.epoch, reason, &claimer.to_string()) {
            ClaimDecision::Drive(drafts) => {
                let limit = stored.row.facts.limit.as_ref();
                if !limit::take_place(tx, limit, Some(stored.id)).await? {
                    return Ok(ClaimOutcome::Limited(stored.entry(tx).await?));
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
    note_lapse(tx, &stored).await?;
    if claimed {
        let sql = "WITH head AS (UPDATE live SET epoch = $2 WHERE run = $1)
            UPDATE queue SET owner = $3, since = $4, ready_at = NULL WHERE run = $1";
        let epoch = epoch.0.cast_signed();
        let (owner, since) = (owner.0.cast_signed(), now.as_micros());
        if tx.exec(sql, &[&stored.id, &epoch, &owner, &since]).await? != 1 {
            return Err(no_place().into());
        }
    } else {
        drop_lease(tx, stored.id).await?;
    }
    let landing = Landing {
        id: stored.id,
        before,
        epoch,
        sealed: &sealed,
        mark: Mark::Tag(0),
        blobs: &[],
    };
    if land(tx, landing, tip).await? == Landed::Refused {
        let what = format!("the head of {run} moved within one transaction");
        return Err(Error::Bug(what).into());
    }
    tx.ring_everywhere(run);
    let entry = rows::load(tx, &run).await?.entry(tx).await?;
    Ok(match claimed {
        true => ClaimOutcome::Claimed(entry),
        false => ClaimOutcome::CrashLoop(entry),
    })
}

/// Whether it is worth a worker's while to go for the run. Of one that waits for something which cannot be read, it is:
/// whoever goes for it is told what is wrong, and it keeps nobody from the others.
pub(super) async fn may_be_claimed(tx: &Tx, stored: &Stored, now: Timestamp) -> Result<bool, Halt> {
    match claim_reason(tx, stored, now).await {
        Ok(reason) => Ok(reason.is_some()),
        Err(Halt::Refused(_)) => Ok(true),
        Err(halt) => Err(halt),
    }
}

/// Why a worker may claim the run; `None` when it may not. Its holder, if any, is known dead.
async fn claim_reason(
    tx: &Tx,
    stored: &Stored,
    now: Timestamp,
) -> Result<Option<ClaimReason>, Halt> {
    let ready = rows::ready(tx, stored.id, &stored.row).await?;
    Ok(ready.claim_reason(stored.lease.is_some(), now))
}

/// A lease is about to be taken from its holder. Unless that one is known dead, whoever drives next
/// must know that it may still be about to write (SEMANTICS 24).
pub(super) async fn note_lapse(tx: &Tx, stored: &Stored) -> Result<(), Halt> {
    if let (Some((holder, _)), Some((_, Life::Silent))) = (stored.lease, &stored.holder) {
        lapse(tx, stored.id, stored.epoch, holder).await?;
    }
    Ok(())
}

pub(super) async fn lapse(tx: &Tx, id: i64, epoch: Epoch, holder: OwnerId) -> Result<(), Halt> {
    let sql = format!(
        "INSERT INTO lapsed (run, epoch, owner, taken_at) VALUES ($2, $3, $4, {}) ON CONFLICT DO NOTHING",
        now_or("$1")
    );
    let now = tx.shared.clock.lease_now();
    let (epoch, holder) = (epoch.0.cast_signed(), holder.0.cast_signed());
    tx.exec(&sql, &[&now, &id, &epoch, &holder]).await?;
    Ok(())
}

/// Who lost the run's lease by silence and is not known dead by now.
pub(super) async fn lapsed(tx: &Tx, run: &RunId) -> Result<Vec<Lapsed>, Halt> {
    let stored = rows::load(tx, run).await?;
    if stored.row.status().is_terminal() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT epoch, owner, {} - taken_at FROM lapsed WHERE run = $1 ORDER BY epoch",
        now_or("$2")
    );
    let now = tx.shared.clock.lease_now();
    let mut lapsed = Vec::new();
    for row in tx.query(&sql, &[&stored.id, &now]).await? {
        let epoch = Epoch(rows::unsigned(row.try_get(0)?));
        let owner = OwnerId(rows::unsigned(row.try_get(1)?));
        let taken_ago: Option<i64> = row.try_get(2)?;
        // A clock that was set back, or that of another server, says nothing of a time that is still to come.
        let taken_ago = taken_ago.filter(|it| *it >= 0).map(of_micros);
        match tx.shared.owners.look_up(tx, owner).await? {
            None | Some((_, Life::Dead)) => {}
            Some((owner, Life::Beating | Life::Silent)) => {
                let unseen = tx.shared.owners.is_out_of_sight(tx, &owner).await?;
                lapsed.push(Lapsed {
                    epoch,
                    owner,
                    taken_ago,
                    unseen,
                });
            }
        }
    }
    Ok(lapsed)
}

pub(super) async fn drop_lease(tx: &Tx, id: i64) -> Result<(), Halt> {
    let sql = "UPDATE queue SET owner = NULL, since = NULL WHERE run = $1";
    tx.exec(sql, &[&id]).await?;
    Ok(())
}

/// What this owner holds, whether it can be read or not.
pub(super) async fn held(tx: &Tx, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Halt> {
    let sql = "SELECT r.run, l.epoch
        FROM queue q JOIN live l ON l.run = q.run JOIN runs r ON r.id = q.run
        WHERE q.owner = $1 ORDER BY r.run COLLATE \"C\"";
    let mut held = Vec::new();
    for row in tx.query(sql, &[&owner.0.cast_signed()]).await? {
        let epoch = Epoch(rows::unsigned(row.try_get(1)?));
        held.push((rows::run_id(row.try_get(0)?)?, epoch));
    }
    Ok(held)
}

/// [`release`] by what the database itself knows of the run: its driver lives, and what cannot be read would keep its
/// place for as long.
pub(super) async fn let_go(tx: &Tx, run: RunId, epoch: Epoch, owner: OwnerId) -> Result<(), Halt> {
    let held = held_by(tx, owner.0.cast_signed()).await?;
    let is_it = |held: &Held| held.run == run && held.epoch == epoch;
    let Some(held) = held.into_iter().find(is_it) else {
        return Ok(());
    };
    leave_unread(tx, held.id).await?;
    limit::call_next(tx, held.id, held.limit.as_ref()).await
}

/// A run that cannot be read is in nobody's hands any more. Whoever goes for it is told what is wrong with it, unless it
/// has ended.
pub(super) async fn leave_unread(tx: &Tx, id: i64) -> Result<(), Halt> {
    drop_lease(tx, id).await?;
    let sql = "SELECT run, status IN ('completed', 'failed', 'cancelled') FROM runs WHERE id = $1";
    let row = tx.one(sql, &[&id]).await?;
    let run = rows::run_id(row.try_get(0)?)?;
    if row.try_get(1)? {
        retire(tx, id, &run).await?;
    } else {
        let sql = "UPDATE queue SET ready_at = $2 WHERE run = $1";
        tx.exec(sql, &[&id, &rows::NOW]).await?;
    }
    tx.ring_everywhere(run);
    Ok(())
}

/// Gives a lease back, if it is still this driver's.
pub(super) async fn release(
    tx: &Tx,
    run: RunId,
    epoch: Epoch,
    owner: OwnerId,
) -> Result<Entry, Halt> {
    let stored = rows::lock(tx, &run).await?;
    let is_held = stored.lease.is_some_and(|(holder, _)| holder == owner);
    if stored.live && stored.epoch == epoch && is_held {
        drop_lease(tx, stored.id).await?;
        settle(tx, stored.id, &stored.tip()?).await?;
        tx.ring_everywhere(run);
        limit::call_next(tx, stored.id, stored.row.facts.limit.as_ref()).await?;
    }
    rows::load(tx, &run).await?.entry(tx).await
}
