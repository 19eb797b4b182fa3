//! Forks: a log that begins with another run's events (SEMANTICS 31).
//!
//! Nothing says in a table of its own where a fork begins: its own first event does, which has a
//! `seq` above 1, and `runs.parent` says whose events come before it.

use std::ops::ControlFlow;

use logreel_core::codec::StoredBody;
use logreel_core::event::Body;
use logreel_core::fold::Illegal;
use logreel_core::meaning::ResultSet;
use logreel_core::{Digest, Payload, Record, Row, RunId, RunKey, Seq, Tally};
use rusqlite::{Connection, OptionalExtension, params};

use super::create::{Placed, first_epoch, place};
use super::failure::{Halt, damaged};
use super::limit;
use super::read::PAGE_BYTES;
use super::rows::{self, RECORD};
use super::writer::Tx;
use crate::fork::{Decided, Prefix, difference};
use crate::{Created, Error, EventPage, ForkError, NewFork};

/// A part of a log: the events of one run up to and including `last`.
#[derive(Debug)]
pub(super) struct Segment {
    id: i64,
    run: RunId,
    last: Seq,
}

/// Whose events make up the log of a run, from its first on; one part when it is no fork.
pub(super) fn segments(conn: &Connection, id: i64, run: RunId) -> Result<Vec<Segment>, Halt> {
    let mut parts = Vec::new();
    let (mut id, mut run, mut last) = (id, run, Seq(u64::MAX));
    loop {
        let first: Option<i64> = conn
            .prepare_cached("SELECT min(seq) FROM events WHERE run = ?1")?
            .query_row([id], |row| row.get(0))?;
        let first = Seq(first.map_or(1, rows::unsigned));
        // A fork of a fork may have been made before the latter's own first event.
        if first <= last {
            parts.push(Segment { id, run, last });
            parts.extend(imported(conn, id, last)?);
        }
        let parent = match first {
            Seq::FIRST => None,
            _ => parent_of(conn, id)?,
        };
        let Some((parent_id, parent)) = parent else {
            parts.reverse();
            return Ok(parts);
        };
        last = last.min(Seq(first.0.saturating_sub(1)));
        (id, run) = (parent_id, parent);
    }
}

/// The parts of a log before its run's own that were imported with it, up to `last`, latest first.
fn imported(conn: &Connection, id: i64, last: Seq) -> Result<Vec<Segment>, Halt> {
    let sql = "SELECT last, origin FROM origins WHERE run = ?1 ORDER BY last DESC";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query([id])?;
    let mut parts = Vec::new();
    while let Some(row) = found.next()? {
        let origin = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        parts.push(Segment {
            id,
            run: rows::run_id(origin)?,
            last: last.min(Seq(rows::unsigned(row.get(0)?))),
        });
    }
    Ok(parts)
}

/// Whether the run's log was imported with events of other runs in it.
pub(super) fn is_imported_whole(conn: &Connection, run: &RunId) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM origins WHERE run = (SELECT id FROM runs WHERE run = ?1) LIMIT 1";
    conn.prepare_cached(sql)?.exists([run.to_string()])
}

/// The keys of everyone whose events the run's log has.
pub(super) fn keys(conn: &Connection, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Halt> {
    let id = rows::id_of(conn, run)?.ok_or(Error::NotFound(*run))?;
    let mut keys: Vec<(RunId, Option<RunKey>)> = Vec::new();
    for part in segments(conn, id, *run)? {
        let of_origin = conn
            .prepare_cached("SELECT key FROM origins WHERE run = ?1 AND origin = ?2 LIMIT 1")?
            .query_row(params![part.id, part.run.to_string()], |row| row.get(0))
            .optional()?;
        let key: Option<Vec<u8>> = match of_origin {
            Some(key) => key,
            None => conn
                .prepare_cached("SELECT key FROM runs WHERE id = ?1")?
                .query_row([part.id], |row| row.get(0))?,
        };
        let broken = |_| damaged(format!("the key of {}", part.run));
        let key = key.map(|key| key.try_into().map(RunKey).map_err(broken));
        keys.push((part.run, key.transpose()?));
    }
    Ok(keys)
}

/// The run that this one shares events of.
fn parent_of(conn: &Connection, id: i64) -> Result<Option<(i64, RunId)>, Halt> {
    let sql = "SELECT p.id, p.run FROM runs r JOIN runs p ON p.run = r.parent
        WHERE r.id = ?1 AND r.relation <> 'child'";
    let found: Option<(i64, String)> = conn
        .prepare_cached(sql)?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let parent = found.map(|(id, run)| Ok::<_, Halt>((id, rows::run_id(&run)?)));
    parent.transpose()
}

/// Reads a log from `from` on, whoever its events were written for, until it is told to stop.
fn walk<E>(
    conn: &Connection,
    run: RunId,
    segments: &[Segment],
    from: Seq,
    mut each: impl FnMut(Record) -> Result<ControlFlow<()>, Halt<E>>,
) -> Result<(), Halt<E>>
where
    E: From<Error>,
{
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = ?1 AND seq >= ?2 AND seq <= ?3 ORDER BY seq"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let stored = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
    let mut next = from;
    for part in segments {
        if part.last < next {
            continue;
        }
        let mut rows = statement.query(params![part.id, stored(next), stored(part.last)])?;
        while let Some(row) = rows.next()? {
            let record = rows::record(row).map_err(Halt::lift)?;
            next = record.seq.next();
            let origin = (part.run != run).then_some(part.run);
            if each(Record { origin, ..record })?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A page of a log that begins with another run's events.
pub(super) fn page(
    conn: &Connection,
    run: &RunId,
    from: Seq,
    limit: usize,
) -> Result<EventPage, Halt> {
    let id = rows::id_of(conn, run)?.ok_or(Error::NotFound(*run))?;
    let segments = segments(conn, id, *run)?;
    let mut items: Vec<Record> = Vec::new();
    let (mut bytes, mut has_more) = (0, false);
    walk(conn, *run, &segments, from, |record| {
        if items.len() >= limit || bytes >= PAGE_BYTES {
            has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        if let StoredBody::Text(text) = &record.body {
            bytes += text.len();
        }
        items.push(record);
        Ok::<_, Halt>(ControlFlow::Continue(()))
    })?;
    let next = items.last().map_or(from, |last| last.seq.next());
    Ok(EventPage {
        items,
        next,
        has_more,
    })
}

/// The projection of a fork from its whole log alone; `None` when there is a kind that this build does
/// not know.
pub(super) fn refold(
    conn: &Connection,
    run: RunId,
    segments: &[Segment],
) -> Result<Option<(Row, ResultSet)>, Halt> {
    let mut row: Option<Row> = None;
    let mut tally = Tally::default();
    let mut unknown = false;
    walk(conn, run, segments, Seq::FIRST, |record| {
        let event = record.decode().map_err(Error::from)?;
        let applied = match &mut row {
            None => Row::start(run, &event).map(|first| row = Some(first)),
            Some(row) => row.apply(&event),
        };
        match applied {
            Err(illegal) if illegal.why == Illegal::UnknownKind => {
                unknown = true;
                return Ok(ControlFlow::Break(()));
            }
            Err(illegal) => return Err(Error::from(illegal).into()),
            Ok(()) => tally.add(&event),
        }
        Ok::<_, Halt>(ControlFlow::Continue(()))
    })?;
    Ok(row.filter(|_| !unknown).map(|row| (row, tally.sum())))
}

/// The runs that share events of this one. One that was imported whole has all of its log itself.
pub(super) fn forks_of(conn: &Connection, run: &RunId) -> Result<Vec<RunId>, Halt> {
    let sql = "SELECT run FROM runs r WHERE parent = ?1 AND relation <> 'child'
        AND NOT EXISTS (SELECT 1 FROM origins WHERE run = r.id) ORDER BY id";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query([run.to_string()])?;
    let mut forks = Vec::new();
    while let Some(row) = found.next()? {
        forks.push(rows::run_id(
            row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?,
        )?);
    }
    Ok(forks)
}

/// The runs that hold what this one held, because they were forked from it, and were not erased.
pub(super) fn forks_to_erase(conn: &Connection, run: &RunId) -> Result<Vec<RunId>, Halt> {
    // Who brought its events along was forked from it too, by way of a run that need not be here.
    let sql = "SELECT run FROM runs WHERE NOT erased AND (parent = ?1 AND relation <> 'child'
          OR id IN (SELECT run FROM origins WHERE origin = ?1)) ORDER BY id";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query([run.to_string()])?;
    let mut forks = Vec::new();
    while let Some(row) = found.next()? {
        forks.push(rows::run_id(
            row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?,
        )?);
    }
    Ok(forks)
}

/// The events that are stored with the run itself, from `from` on.
pub(super) fn own_records(
    conn: &Connection,
    id: i64,
    run: RunId,
    segments: &[Segment],
    from: Seq,
    limit: i64,
) -> Result<Vec<Record>, Halt> {
    let sql =
        format!("SELECT {RECORD} FROM events WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3");
    let mut statement = conn.prepare_cached(&sql)?;
    let from = i64::try_from(from.0).unwrap_or(i64::MAX);
    let mut found = statement.query(params![id, from, limit])?;
    let mut records = Vec::new();
    while let Some(row) = found.next()? {
        let record = rows::record(row)?;
        let part = segments.iter().find(|part| record.seq <= part.last);
        let writer = part.map_or(run, |part| part.run);
        let origin = (writer != run).then_some(writer);
        records.push(Record { origin, ..record });
    }
    Ok(records)
}

/// What the fork begins with; `None` when a run with its id is there already.
pub(super) fn decide(
    conn: &Connection,
    new: &NewFork,
    payload_bytes_max: u64,
) -> Result<Result<Option<Decided>, ForkError>, Halt> {
    match try_decide(conn, new, payload_bytes_max) {
        Ok(decided) => Ok(Ok(decided)),
        Err(Halt::Refused(error)) => Ok(Err(error)),
        Err(Halt::Database(error)) => Err(Halt::Database(error)),
    }
}

fn try_decide(
    conn: &Connection,
    new: &NewFork,
    payload_bytes_max: u64,
) -> Result<Option<Decided>, Halt<ForkError>> {
    // One moment for all of it.
    let moment = conn.unchecked_transaction()?;
    if rows::id_of(&moment, &new.run)?.is_some() {
        return Ok(None);
    }
    let parent = rows::load(&moment, &new.parent).map_err(Halt::lift)?;
    if parent.erased {
        return Err(Halt::Refused(ForkError::Erased(new.parent)));
    }
    if let Err(newer @ Error::NewerFormat(_)) = parent.check_foldable() {
        return Err(newer.into());
    }
    let segments = segments(&moment, parent.id, new.parent).map_err(Halt::lift)?;
    let shared = |mut prefix: Prefix| -> Result<Prefix, Halt<ForkError>> {
        walk(&moment, new.parent, &segments, Seq::FIRST, |record| {
            prefix.take(&record).map_err(Halt::Refused)
        })?;
        Ok(prefix)
    };
    let mut prefix = shared(Prefix::new(new))?;
    if prefix.missed() {
        prefix = shared(Prefix::of_all_steps(new))?;
    }
    let decided = prefix.decide(new, payload_bytes_max);
    Ok(Some(decided.map_err(Halt::Refused)?))
}

/// Writes the fork, or attaches to the one that has its id.
pub(super) fn fork(
    tx: &mut Tx<'_>,
    new: &NewFork,
    decided: Option<Decided>,
    key: RunKey,
) -> Result<Created, Halt<ForkError>> {
    if let Some(attached) = attach(tx, new)? {
        return Ok(attached);
    }
    let again = |what: String| Halt::from(Error::unavailable(what));
    let Some(decided) = decided else {
        let what = format!("{} was deleted while it was looked at; try again", new.run);
        return Err(again(what));
    };
    if let Some(owner) = new.owner {
        tx.shared
            .owners
            .joined(tx.conn, owner)
            .map_err(Halt::lift)?;
    }
    let parent = rows::load(tx.conn, &new.parent).map_err(Halt::lift)?;
    if parent.erased {
        return Err(Halt::Refused(ForkError::Erased(new.parent)));
    }
    // Only a run that was deleted and made anew has another event there now.
    let parting = decided.parting();
    if digest_at(tx.conn, parent.id, new.parent, parting.seq).map_err(Halt::lift)?
        != Some(parting.digest)
    {
        let what = format!("{} was made anew while it was read; try again", new.parent);
        return Err(again(what));
    }
    let now = tx.shared.env.now();
    let input = decided.input.clone();
    let owner = match new.owner {
        Some(_) if !limit::take_place(tx, decided.limit(), None).map_err(Halt::lift)? => None,
        owner => owner,
    };
    let sealed = decided.seal(key, first_epoch(owner), now);
    let (tip, sealed) = sealed.map_err(Halt::Refused)?;
    let placed = Placed {
        tip,
        sealed: &sealed,
        blobs: &new.blobs,
        owner,
        now,
    };
    let id = place(tx, placed).map_err(Halt::lift)?;
    if let Payload::Blob(reference) = input {
        // `run.forked` refers to it, also when it is the parent's.
        rows::refer(tx.conn, id, &reference.blob)?;
    }
    let entry = rows::load(tx.conn, &new.run)
        .map_err(Halt::lift)?
        .entry(tx.conn, tx.shared)?;
    Ok(Created::New(entry))
}

/// The run that has the id already.
fn attach(tx: &Tx<'_>, new: &NewFork) -> Result<Option<Created>, Halt<ForkError>> {
    let stored = match rows::load(tx.conn, &new.run) {
        Ok(stored) => stored,
        Err(Halt::Refused(Error::NotFound(_))) => return Ok(None),
        Err(other) => return Err(other.lift()),
    };
    let sql = format!("SELECT {RECORD} FROM events WHERE run = ?1 ORDER BY seq LIMIT 1");
    let mut statement = tx.conn.prepare_cached(&sql)?;
    let mut found = statement.query([stored.id])?;
    let first = match found.next()? {
        Some(row) => rows::record(row).map_err(Halt::lift)?,
        None => return Err(damaged(format!("{} has no events", new.run)).into()),
    };
    let differs = match first.decode().map(|event| event.body) {
        Ok(Body::RunForked(forked)) => difference(new, &forked),
        Ok(_) | Err(_) => Some("parent"),
    };
    match differs {
        Some(differs) => Err(Halt::Refused(ForkError::Conflict {
            run: new.run,
            differs,
        })),
        None => Ok(Some(Created::Attached(stored.entry(tx.conn, tx.shared)?))),
    }
}

/// The chain's digest at an event of a run's log.
fn digest_at(conn: &Connection, id: i64, run: RunId, seq: Seq) -> Result<Option<Digest>, Halt> {
    let mut digest = None;
    walk(conn, run, &segments(conn, id, run)?, seq, |record| {
        digest = (record.seq == seq).then_some(record.digest);
        Ok::<_, Halt>(ControlFlow::Break(()))
    })?;
    Ok(digest)
}
