//! A driver's append, and how any append lands in the tables (SEMANTICS 1-5).

use std::sync::Arc;

use logreel_core::chain::Sealed;
use logreel_core::event::Relation;
use logreel_core::row::Facts;
use logreel_core::{AppendId, Blob, Epoch, Event, FOLD_VERSION, RunId, Seq, Session, Status};

use super::batch::Wrote;
use super::columns::Mark;
use super::failure::{Halt, damaged};
use super::line::Line;
use super::open::Shared;
use super::rows::{self, Before, RECORD};
use super::writer::Tx;
use crate::doorbell::Ring;
use crate::tip::{Prepared, Tip, prepare};
use crate::tips::Known;
use crate::{Append, AppendError, Appended, Error};

/// How far an append came in one statement.
pub(super) enum Quick {
    /// It is there.
    Landed(Appended),
    /// It must be looked at in full.
    Look,
    /// The connection was lost while it was on its way.
    Lost(String),
}

/// One statement, or one with other runs' appends, when the run's tip is known here and nothing but events and
/// the narrow row changes. Whoever stops waiting changes nothing: what was sent is the database's.
pub(super) async fn quick(shared: &Shared, append: &Append) -> Result<Quick, AppendError> {
    let is_plain = append.blobs.is_empty();
    let Some(tag) = append.id.driver_tag().filter(|_| is_plain) else {
        return Ok(Quick::Look);
    };
    let prepared = prepared(shared, append)?;
    let Some(mut known) = shared.tips().take(&append.run, &append.expect) else {
        return Ok(Quick::Look);
    };
    let before = Before::of(&known.tip, false);
    let results = known.tip.results;
    // The tip is a guess; what contradicts it is looked at in full.
    let extended = known.tip.extend(prepared, append.epoch, shared.clock.now());
    let Ok(sealed) = extended else {
        return Ok(Quick::Look);
    };
    let row = &known.tip.row;
    if sealed.is_empty() || !Arc::ptr_eq(&before.facts, &row.facts) || before.status != row.status()
    {
        return Ok(Quick::Look);
    }
    let sealed = Arc::new(sealed);
    let line = Line::new(
        known.id,
        &before.head,
        append.epoch,
        &known.tip,
        sealed.clone(),
        Mark::Tag(tag),
        shared.clock.floor(),
    );
    match shared.batches.submit(line).await {
        Wrote::Landed => {}
        Wrote::Refused | Wrote::NotWritten => return Ok(Quick::Look),
        Wrote::Unavailable(error) => return Err(error.into()),
        Wrote::Ambiguous(what) => return Ok(Quick::Lost(what)),
    }
    let (run, head) = (row.run, row.head.seq);
    let results = known.tip.results.minus(results);
    shared.tips().put(run, known);
    shared.tell(Ring::Driven(run, head));
    let sealed = Arc::unwrap_or_clone(sealed);
    Ok(Quick::Landed(Appended {
        events: sealed.into_iter().map(|sealed| sealed.event).collect(),
        results,
        repeated: false,
    }))
}

/// It may have landed, or be about to: sending it again settles that, behind the lock of its run. To read is not
/// enough. A primary that starts again shows what its standby has not got, and only a transaction that wrote
/// something, if only a lock, waits for the standby at its commit.
pub(super) async fn settle_lost(
    shared: &Arc<Shared>,
    append: Append,
    what: String,
) -> Result<Appended, AppendError> {
    match in_full(shared, append).await {
        Err(AppendError::Store(Error::Unavailable { .. })) => Err(Error::Ambiguous { what }.into()),
        settled => settled,
    }
}

/// Appends in a transaction of its own, or refuses and writes nothing.
pub(super) async fn in_full(shared: &Arc<Shared>, append: Append) -> Result<Appended, AppendError> {
    // Once more after a quick one that did not land: what lands keeps no copy for this.
    let prepared = prepared(shared, &append)?;
    let work = Arc::new((append, prepared));
    shared
        .transact(move |tx| {
            let work = work.clone();
            async move { look(&tx, &work.0, &work.1).await }
        })
        .await
}

/// Its events with all that can be computed before the database is asked.
fn prepared(shared: &Shared, append: &Append) -> Result<Vec<Prepared>, Error> {
    let drafts = append.drafts.iter().cloned();
    prepare(drafts, &append.blobs, shared.payload_bytes_max)
}

async fn look(
    tx: &Tx,
    append: &Append,
    prepared: &[Prepared],
) -> Result<Appended, Halt<AppendError>> {
    let stored = match prepared.iter().any(Prepared::ends) {
        true => rows::lock_to_end(tx, &append.run).await,
        false => rows::lock(tx, &append.run).await,
    };
    let stored = stored.map_err(Halt::lift)?;
    if append.id.driver_tag().is_none()
        && let Some(events) = first_answer(tx, &append.run, &append.id)
            .await
            .map_err(Halt::lift)?
    {
        return Ok(Appended::again(events));
    }
    if stored.row.head != append.expect || stored.epoch != append.epoch || !stored.live {
        if let Some(tag) = append.id.driver_tag() {
            let next = append.expect.seq.next();
            let landed = tagged(tx, stored.id, next, tag).await.map_err(Halt::lift)?;
            if let Some(events) = landed {
                return Ok(Appended::again(events));
            }
        }
        return Err(Halt::Refused(if stored.epoch != append.epoch {
            AppendError::Fenced {
                current: stored.epoch,
            }
        } else if !stored.live {
            AppendError::Ended(stored.row.status())
        } else {
            AppendError::Conflict {
                head: stored.row.head,
            }
        }));
    }
    stored.check_foldable()?;
    let mut tip = stored.tip()?;
    let before = Before::of(&tip, stored.stale);
    let results = tip.results;
    let now = tx.shared.clock.now();
    let sealed = tip
        .extend(prepared.to_vec(), append.epoch, now)
        .map_err(|illegal| Halt::Refused(illegal.into()))?;
    let mark = match append.id.driver_tag() {
        Some(tag) => Mark::Tag(tag),
        None => Mark::Id(append.id.as_str().to_owned()),
    };
    let results = tip.results.minus(results);
    let landing = Landing {
        id: stored.id,
        before,
        epoch: append.epoch,
        sealed: &sealed,
        mark,
        blobs: &append.blobs,
    };
    match land(tx, landing, tip).await.map_err(Halt::lift)? {
        Landed::Refused => return Err(Halt::Again),
        Landed::Live | Landed::Retired => {}
    }
    Ok(Appended {
        events: sealed.into_iter().map(|sealed| sealed.event).collect(),
        results,
        repeated: false,
    })
}

/// The events of the append with this id, if it landed before. The name of a request is used once.
pub(super) async fn first_answer(
    tx: &Tx,
    run: &RunId,
    id: &AppendId,
) -> Result<Option<Vec<Event>>, Halt> {
    let sql = "SELECT a.run, a.seq, a.append_id FROM appends a JOIN runs r ON r.id = a.run
        WHERE r.run = $1 AND a.append_id BETWEEN $2 AND $3 LIMIT 1";
    // What a request asks follows its name, in hexadecimal digits.
    let last = format!("{}{}", id.name(), if id.is_request() { "g" } else { "" });
    let found = tx.opt(sql, &[&run.to_string(), &id.name(), &last]).await?;
    let Some(found) = found else {
        return Ok(None);
    };
    if found.try_get::<_, &str>(2)? != id.as_str() {
        return Err(Error::RequestIdTaken(*run).into());
    }
    events_from(tx, found.try_get(0)?, found.try_get(1)?)
        .await
        .map(Some)
}

/// The same, once a standby has it too: the lock makes the commit wait for that.
pub(super) async fn surely_answered(
    tx: &Tx,
    run: &RunId,
    id: &AppendId,
) -> Result<Option<Vec<Event>>, Halt> {
    rows::lock(tx, run).await?;
    first_answer(tx, run, id).await
}

/// A driver's append is only ever sent again with the head it was first sent with, so if it landed,
/// it landed right there.
async fn tagged(tx: &Tx, id: i64, seq: Seq, tag: u64) -> Result<Option<Vec<Event>>, Halt> {
    let sql = "SELECT tag FROM events WHERE run = $1 AND seq = $2";
    let seq = seq.0.cast_signed();
    let found = tx.opt(sql, &[&id, &seq]).await?;
    let found: Option<Option<i64>> = found.map(|row| row.try_get(0)).transpose()?;
    if found.flatten() != Some(tag.cast_signed()) {
        return Ok(None);
    }
    events_from(tx, id, seq).await.map(Some)
}

/// The events of one append, from its first.
async fn events_from(tx: &Tx, id: i64, seq: i64) -> Result<Vec<Event>, Halt> {
    // Up to where the next append begins.
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = $1 AND seq >= $2 AND seq < coalesce(
           (SELECT min(seq) FROM events WHERE run = $1 AND seq > $2 AND tag IS NOT NULL),
           9223372036854775807)
         ORDER BY seq"
    );
    let rows = tx.query(&sql, &[&id, &seq]).await?;
    rows.iter().map(rows::event).collect()
}

/// Sealed events on their way into the tables.
pub(super) struct Landing<'a> {
    pub id: i64,
    pub before: Before,
    /// The lease's epoch, which must be the one stored.
    pub epoch: Epoch,
    pub sealed: &'a [Sealed],
    pub mark: Mark,
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

/// Writes events and the projection after them.
pub(super) async fn land(tx: &Tx, landing: Landing<'_>, tip: Tip) -> Result<Landed, Halt> {
    let Landing {
        id,
        before,
        epoch,
        sealed,
        mark,
        blobs,
    } = landing;
    let floor = tx.shared.clock.floor();
    let events = Arc::new(sealed.to_vec());
    let line = Line::new(id, &before.head, epoch, &tip, events, mark, floor);
    if !line.land(tx, before.stale).await? {
        return Ok(Landed::Refused);
    }
    rows::insert_blobs(tx, id, blobs, sealed).await?;
    tx.ring(tip.row.run, tip.row.head.seq);
    let landed = project(tx, id, &before, &tip).await?;
    if landed == Landed::Live {
        // Taken back when the transaction does not commit.
        tx.shared
            .tips()
            .put(tip.row.run, Box::new(Known { id, tip }));
    }
    Ok(landed)
}

/// Writes the wide row again, as far as it changed.
async fn project(tx: &Tx, id: i64, before: &Before, tip: &Tip) -> Result<Landed, Halt> {
    let row = &tip.row;
    let (facts, status) = (&row.facts, row.status());
    let same_facts = Arc::ptr_eq(&before.facts, facts);
    if same_facts && status == before.status && !before.stale {
        return Ok(Landed::Live);
    }
    let ended = facts.ended.as_ref();
    if same_facts && !before.stale {
        let sql = "UPDATE runs SET status = $2 WHERE id = $1";
        tx.exec(sql, &[&id, &status.as_str()]).await?;
    } else {
        write_facts(tx, id, tip).await?;
    }
    if facts.session != before.facts.session {
        tx.exec("DELETE FROM active WHERE run = $1", &[&id]).await?;
    }
    let ends = ended.is_some() && before.facts.ended.is_none();
    if ends || facts.input != before.facts.input {
        rows::index(tx, id, facts).await?;
    }
    let landed = settle(tx, id, tip).await?;
    if ends {
        wake_parent(tx, facts).await?;
    }
    Ok(landed)
}

/// Writes all that the wide row says of a run's facts.
pub(super) async fn write_facts(tx: &Tx, id: i64, tip: &Tip) -> Result<(), Halt> {
    let row = &tip.row;
    let facts = &row.facts;
    let parent = facts.parent.as_ref();
    let ended = facts.ended.as_ref();
    tx.exec(
        "UPDATE runs SET status = $2, facts = $3, fold_version = $4, spec_digest = $5, session = $6,
           parent = $7, relation = $8, final_state_digest = $9 WHERE id = $1",
        &[
            &id,
            &row.status().as_str(),
            &rows::to_text(&**facts),
            &i64::from(FOLD_VERSION),
            &facts.spec_digest.as_bytes().as_slice(),
            &facts.session.as_ref().map(Session::as_str).map(rows::plain),
            &parent.map(|it| it.run.to_string()),
            &parent.map(|it| rows::relation_name(it.relation)),
            &ended.map(|ended| ended.final_state_digest.as_bytes().to_vec()),
        ],
    )
    .await?;
    Ok(())
}

/// What follows when nobody holds the run: it is queued for its time, or leaves `live`.
pub(super) async fn settle(tx: &Tx, id: i64, tip: &Tip) -> Result<Landed, Halt> {
    let sql = "SELECT owner IS NOT NULL FROM queue WHERE run = $1";
    let found = tx.opt(sql, &[&id]).await?;
    if found.ok_or_else(no_place)?.try_get(0)? {
        return Ok(Landed::Live);
    }
    if tip.row.status().is_terminal() {
        retire(tx, id, &tip.row.run).await?;
        return Ok(Landed::Retired);
    }
    let ready_at = match rows::queue_time(tx, id, &tip.row).await {
        // It waits for something that cannot be read: whoever goes for it is told so, and it holds up nobody here.
        Err(Halt::Refused(Error::Corrupt { .. })) => Some(rows::NOW),
        found => found?,
    };
    let sql = "UPDATE queue SET ready_at = $2 WHERE run = $1";
    tx.exec(sql, &[&id, &ready_at]).await?;
    Ok(Landed::Live)
}

/// Every run in `live` is in `queue`.
pub(super) fn no_place() -> Error {
    damaged("a run in live has no place in queue")
}

/// An ended run that nobody holds leaves the hot table, and its session is free.
pub(super) async fn retire(tx: &Tx, id: i64, run: &RunId) -> Result<(), Halt> {
    tx.exec(
        "UPDATE runs SET (epoch, event_epoch, head_seq, head_digest, updated_at, results, pulse) =
           (SELECT epoch, event_epoch, head_seq, head_digest, updated_at, results, pulse
            FROM live WHERE run = $1)
         WHERE id = $1",
        &[&id],
    )
    .await?;
    tx.exec(
        "WITH queued AS (DELETE FROM queue WHERE run = $1),
           session AS (DELETE FROM active WHERE run = $1),
           lapses AS (DELETE FROM lapsed WHERE run = $1)
         DELETE FROM live WHERE run = $1",
        &[&id],
    )
    .await?;
    tx.shared.tips().forget(run);
    Ok(())
}

/// A child's end makes a parent that waits for it ready (SEMANTICS 18).
pub(super) async fn wake_parent(tx: &Tx, facts: &Facts) -> Result<(), Halt> {
    let Some(parent) = facts
        .parent
        .as_ref()
        .filter(|it| it.relation == Relation::Child)
    else {
        return Ok(());
    };
    let stored = match rows::lock(tx, &parent.run).await {
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
        settle(tx, stored.id, &stored.tip()?).await?;
        tx.ring_everywhere(parent.run);
    }
    Ok(())
}
