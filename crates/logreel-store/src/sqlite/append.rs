//! A driver's append, and how any append lands in the tables (SEMANTICS 1-5).

use std::sync::Arc;

use logreel_core::chain::Sealed;
use logreel_core::event::Relation;
use logreel_core::row::Facts;
use logreel_core::{AppendId, Blob, Epoch, Event, FOLD_VERSION, Head, RunId, Seq, Status};
use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Halt;
use super::open::Rows;
use super::rows::{self, Mark, RECORD};
use super::search;
use super::share::Sources;
use super::writer::Tx;
use crate::tip::{Prepared, Tip};
use crate::tips::Known;
use crate::{AppendError, Appended, Error};

/// An append with its bodies written.
pub(super) struct Work {
    pub run: RunId,
    pub expect: Head,
    pub epoch: Epoch,
    pub id: AppendId,
    pub prepared: Vec<Prepared>,
    pub blobs: Vec<Blob>,
}

/// Appends, or refuses and writes nothing.
pub(super) fn append(tx: &mut Tx<'_>, work: Work) -> Result<Appended, Halt<AppendError>> {
    let Work {
        run,
        expect,
        epoch,
        id,
        prepared,
        blobs,
    } = work;
    if id.driver_tag().is_none()
        && let Some(events) = first_answer(tx.conn, &run, &id).map_err(Halt::lift)?
    {
        return Ok(Appended::again(events));
    }
    let (mut known, stale) = match tx.tips.take(&run, &expect) {
        Some(known) => (known, false),
        None => {
            let stored = rows::load(tx.conn, &run).map_err(Halt::lift)?;
            if stored.row.head != expect || stored.epoch != epoch || !stored.live {
                return refuse(tx, &run, &expect, epoch, &id);
            }
            stored.check_foldable()?;
            (
                Box::new(Known {
                    id: stored.id,
                    tip: stored.tip()?,
                }),
                stored.stale,
            )
        }
    };
    let before = Before::of(&known.tip, stale);
    let results_before = known.tip.results;
    let sealed = match known.tip.extend(prepared, epoch, tx.shared.env.now()) {
        Ok(sealed) => sealed,
        Err(illegal) => {
            // The tip was a guess; only what contradicts the log itself is illegal.
            let stored = rows::load(tx.conn, &run).map_err(Halt::lift)?;
            if stored.row.head == expect && stored.epoch == epoch && stored.live {
                return Err(Halt::Refused(illegal.into()));
            }
            return refuse(tx, &run, &expect, epoch, &id);
        }
    };
    let mark = id.driver_tag().map_or(Mark::Id(id.as_str()), Mark::Tag);
    let landing = Landing {
        id: known.id,
        before,
        epoch,
        sealed: &sealed,
        mark,
        blobs: &blobs,
    };
    let results = known.tip.results.minus(results_before);
    match land(tx, landing, &known.tip).map_err(Halt::lift)? {
        Landed::Refused => return refuse(tx, &run, &expect, epoch, &id),
        Landed::Live => tx.tips.put(run, known),
        Landed::Retired => {}
    }
    let events = sealed.into_iter().map(|sealed| sealed.event).collect();
    Ok(Appended {
        events,
        results,
        repeated: false,
    })
}

/// Why an append did not land, looked up only now.
fn refuse(
    tx: &mut Tx<'_>,
    run: &RunId,
    expect: &Head,
    epoch: Epoch,
    id: &AppendId,
) -> Result<Appended, Halt<AppendError>> {
    tx.tips.forget(run);
    let stored = rows::load(tx.conn, run).map_err(Halt::lift)?;
    if let Some(tag) = id.driver_tag() {
        let next = expect.seq.next();
        if let Some(events) = tagged(tx.conn, stored.id, next, tag).map_err(Halt::lift)? {
            return Ok(Appended::again(events));
        }
    }
    Err(Halt::Refused(if stored.epoch != epoch {
        AppendError::Fenced {
            current: stored.epoch,
        }
    } else if !stored.live {
        AppendError::Ended(stored.row.status())
    } else {
        AppendError::Conflict {
            head: stored.row.head,
        }
    }))
}

/// The events of the append with this id, if it landed before. The name of a request is used once.
pub(super) fn first_answer(
    conn: &Connection,
    run: &RunId,
    id: &AppendId,
) -> Result<Option<Vec<Event>>, Halt> {
    let sql = "SELECT e.run, e.seq, e.append_id FROM events e JOIN runs r ON r.id = e.run
        WHERE r.run = ?1 AND e.append_id BETWEEN ?2 AND ?3";
    // What a request asks follows its name, in hexadecimal digits.
    let last = format!("{}{}", id.name(), if id.is_request() { "g" } else { "" });
    let found = conn
        .prepare_cached(sql)?
        .query_row([&run.to_string(), id.name(), &last], |row| {
            let is_this = row.get_ref(2)?.as_str()? == id.as_str();
            Ok((row.get(0)?, row.get::<_, i64>(1)?, is_this))
        })
        .optional()?;
    match found {
        None => Ok(None),
        Some((id, seq, true)) => events_from(conn, id, seq).map(Some),
        Some((_, _, false)) => Err(Error::RequestIdTaken(*run).into()),
    }
}

/// A driver's append is only ever sent again with the head it was first sent with, so if it landed,
/// it landed right there.
fn tagged(conn: &Connection, id: i64, seq: Seq, tag: u64) -> Result<Option<Vec<Event>>, Halt> {
    let sql = "SELECT tag FROM events WHERE run = ?1 AND seq = ?2";
    let seq = seq.0.cast_signed();
    let found: Option<Option<i64>> = conn
        .prepare_cached(sql)?
        .query_row([id, seq], |row| row.get(0))
        .optional()?;
    if found.flatten() != Some(tag.cast_signed()) {
        return Ok(None);
    }
    events_from(conn, id, seq).map(Some)
}

/// The events of one append, from its first.
fn events_from(conn: &Connection, id: i64, seq: i64) -> Result<Vec<Event>, Halt> {
    let sql = format!(
        "SELECT {RECORD}, tag IS NOT NULL OR append_id IS NOT NULL FROM events
         WHERE run = ?1 AND seq >= ?2 ORDER BY seq"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([id, seq])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        if !events.is_empty() && row.get(10)? {
            break;
        }
        events.push(rows::event(row)?);
    }
    Ok(events)
}

/// What the projection was, as far as it decides what must be written again.
pub(super) struct Before {
    facts: Arc<Facts>,
    status: Status,
    head: Head,
    stale: bool,
}

impl Before {
    pub fn of(tip: &Tip, stale: bool) -> Self {
        let row = &tip.row;
        Self {
            facts: row.facts.clone(),
            status: row.status(),
            head: row.head,
            stale,
        }
    }
}

/// Sealed events on their way into the tables.
pub(super) struct Landing<'a> {
    pub id: i64,
    pub before: Before,
    /// The lease's epoch, which must be the one stored.
    pub epoch: Epoch,
    pub sealed: &'a [Sealed],
    pub mark: Mark<'a>,
    pub blobs: &'a [Blob],
}

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Landed {
    /// Head or epoch are others now; nothing was written.
    Refused,
    /// It is there, and the run goes on.
    Live,
    /// It is there, the run has ended, and nobody holds it.
    Retired,
}

/// Writes events and the projection after them. The first statement is also the check: no row is
/// changed unless head and epoch are as the append expects.
pub(super) fn land(tx: &mut Tx<'_>, landing: Landing<'_>, tip: &Tip) -> Result<Landed, Halt> {
    let Landing {
        id,
        before,
        epoch,
        sealed,
        mark,
        blobs,
    } = landing;
    let row = &tip.row;
    if tx.shared.rows != Rows::Kept {
        let conn = tx.conn;
        rows::insert_events(conn, id, tx.next_pos()?, sealed, mark)?;
        tx.ring(row.run, row.head.seq);
        return Ok(Landed::Live);
    }
    // Never sets an indexed column: this is the hot row.
    let sql = "UPDATE live SET event_epoch = ?2, head_seq = ?3, head_digest = ?4, updated_at = ?5,
        results = ?6, pulse = ?7
        WHERE run = ?1 AND head_seq = ?8 AND head_digest = ?9 AND epoch = ?10";
    let changed = tx.conn.prepare_cached(sql)?.execute(params![
        id,
        row.epoch.0.cast_signed(),
        row.head.seq.0.cast_signed(),
        row.head.digest.as_bytes().as_slice(),
        row.updated_at.as_micros(),
        rows::results_bytes(&tip.results),
        rows::to_text(&row.pulse),
        before.head.seq.0.cast_signed(),
        before.head.digest.as_bytes().as_slice(),
        epoch.0.cast_signed(),
    ])?;
    if changed == 0 {
        return Ok(Landed::Refused);
    }
    let conn = tx.conn;
    let pos = *tx.next_pos()?;
    rows::insert_events(conn, id, tx.next_pos()?, sealed, mark)?;
    rows::insert_blobs(conn, id, blobs, Sources::new(conn, id, sealed, pos))?;
    match mark {
        Mark::Tag(0) | Mark::Id(_) => tx.ring(row.run, row.head.seq),
        Mark::Tag(_) => tx.ring_driven(row.run, row.head.seq),
    }
    project(tx, id, &before, tip)
}

/// Writes the wide row again, as far as it changed.
fn project(tx: &mut Tx<'_>, id: i64, before: &Before, tip: &Tip) -> Result<Landed, Halt> {
    let row = &tip.row;
    let status = row.status();
    let same_facts = Arc::ptr_eq(&before.facts, &row.facts);
    if same_facts && status == before.status && !before.stale {
        return Ok(Landed::Live);
    }
    let conn = tx.conn;
    if !same_facts || before.stale {
        conn.prepare_cached("UPDATE runs SET facts = ?2, fold_version = ?3 WHERE id = ?1")?
            .execute(params![id, rows::to_text(&*row.facts), FOLD_VERSION])?;
    }
    if status != before.status || before.stale {
        conn.prepare_cached("UPDATE runs SET status = ?2 WHERE id = ?1")?
            .execute(params![id, status.as_str()])?;
    }
    if row.facts.spec_digest != before.facts.spec_digest {
        conn.prepare_cached("UPDATE runs SET spec_digest = ?2 WHERE id = ?1")?
            .execute(params![id, row.facts.spec_digest.as_bytes().as_slice()])?;
    }
    if row.facts.session != before.facts.session {
        conn.prepare_cached("UPDATE runs SET session = ?2 WHERE id = ?1")?
            .execute(params![
                id,
                row.facts.session.as_ref().map(|it| it.as_str())
            ])?;
        conn.prepare_cached("DELETE FROM active WHERE run = ?1")?
            .execute([id])?;
    }
    if row.facts.parent != before.facts.parent {
        let parent = row.facts.parent.as_ref();
        conn.prepare_cached("UPDATE runs SET parent = ?2, relation = ?3 WHERE id = ?1")?
            .execute(params![
                id,
                parent.map(|it| it.run.to_string()),
                parent.map(|it| rows::relation_name(it.relation))
            ])?;
    }
    let ends = row
        .facts
        .ended
        .as_ref()
        .filter(|_| before.facts.ended.is_none());
    if let Some(ended) = ends {
        conn.prepare_cached("UPDATE runs SET final_state_digest = ?2 WHERE id = ?1")?
            .execute(params![id, ended.final_state_digest.as_bytes().as_slice()])?;
    }
    if ends.is_some() || row.facts.input != before.facts.input {
        search::update(conn, id, &row.facts)?;
    }
    let landed = settle(tx, id, tip)?;
    if ends.is_some() {
        wake_parent(tx, &row.facts)?;
    }
    Ok(landed)
}

/// What follows when nobody holds the run: it is queued for its time, or leaves `live`.
pub(super) fn settle(tx: &mut Tx<'_>, id: i64, tip: &Tip) -> Result<Landed, Halt> {
    let held: bool = tx
        .conn
        .prepare_cached("SELECT owner IS NOT NULL FROM live WHERE run = ?1")?
        .query_row([id], |row| row.get(0))?;
    if held {
        return Ok(Landed::Live);
    }
    if tip.row.status().is_terminal() {
        retire(tx, id, &tip.row.run)?;
        return Ok(Landed::Retired);
    }
    let ready_at = match rows::queue_time(tx.conn, id, &tip.row) {
        // It waits for something that cannot be read: whoever goes for it is told so, and it holds up nobody here.
        Err(Halt::Refused(Error::Corrupt { .. })) => Some(rows::NOW),
        found => found?,
    };
    tx.conn
        .prepare_cached("UPDATE live SET ready_at = ?2 WHERE run = ?1")?
        .execute(params![id, ready_at])?;
    Ok(Landed::Live)
}

/// An ended run that nobody holds leaves the hot table, and its session is free.
pub(super) fn retire(tx: &mut Tx<'_>, id: i64, run: &RunId) -> rusqlite::Result<()> {
    let conn = tx.conn;
    conn.prepare_cached(
        "UPDATE runs SET (epoch, event_epoch, head_seq, head_digest, updated_at, results, pulse) =
           (SELECT epoch, event_epoch, head_seq, head_digest, updated_at, results, pulse
            FROM live WHERE run = ?1)
         WHERE id = ?1",
    )?
    .execute([id])?;
    conn.prepare_cached("DELETE FROM live WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("DELETE FROM active WHERE run = ?1")?
        .execute([id])?;
    conn.prepare_cached("DELETE FROM lapsed WHERE run = ?1")?
        .execute([id])?;
    tx.tips.forget(run);
    Ok(())
}

/// A child's end makes a parent that waits for it ready (SEMANTICS 18).
pub(super) fn wake_parent(tx: &mut Tx<'_>, facts: &Facts) -> Result<(), Halt> {
    let Some(parent) = facts
        .parent
        .as_ref()
        .filter(|it| it.relation == Relation::Child)
    else {
        return Ok(());
    };
    let stored = match rows::load(tx.conn, &parent.run) {
        Ok(stored) => stored,
        // A pruned parent waits for nobody.
        Err(Halt::Refused(Error::NotFound(_))) => return Ok(()),
        // Nor does one that cannot be read keep its child from ending.
        Err(Halt::Refused(error @ Error::Corrupt { .. })) => {
            tracing::error!(run = %parent.run, %error, "the parent of a run that ended was not told");
            return Ok(());
        }
        Err(other) => return Err(other),
    };
    if stored.live && stored.lease.is_none() && stored.row.status() == Status::Waiting {
        settle(tx, stored.id, &stored.tip()?)?;
        tx.ring_everywhere(parent.run)?;
    }
    Ok(())
}
