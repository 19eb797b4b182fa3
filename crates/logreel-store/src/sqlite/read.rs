//! Reading one run: its log in pages, its row, its key, its blobs.

use logreel_core::codec::Stored;
use logreel_core::{Digest, Event, FOLD_VERSION, Record, RunId, RunKey, Seq};
use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Halt;
use super::fork;
use super::rows::{self, RECORD};
use super::share;
use crate::{Error, EventPage};

/// A page ends after this many bytes of bodies, so that reading a long log needs little memory.
pub(super) const PAGE_BYTES: usize = 1 << 20;
/// A page has room for this many events before it grows.
const ROOM: usize = 512;

/// Where the events of a page go.
pub(super) trait Sink {
    fn take(&mut self, stored: Stored<'_>, row: &rusqlite::Row<'_>) -> Result<(), Halt>;
    fn take_record(&mut self, record: Record) -> Result<(), Halt>;
}

/// What a page holds: events as stored, or decoded where they lie.
pub(super) trait Item: Sized {
    fn of_stored(stored: Stored<'_>, row: &rusqlite::Row<'_>) -> Result<Self, Halt>;
    fn of_record(record: Record) -> Result<Self, Halt>;
}

impl<T: Item> Sink for Vec<T> {
    fn take(&mut self, stored: Stored<'_>, row: &rusqlite::Row<'_>) -> Result<(), Halt> {
        self.push(T::of_stored(stored, row)?);
        Ok(())
    }

    fn take_record(&mut self, record: Record) -> Result<(), Halt> {
        self.push(T::of_record(record)?);
        Ok(())
    }
}

impl Item for Record {
    fn of_stored(stored: Stored<'_>, row: &rusqlite::Row<'_>) -> Result<Self, Halt> {
        rows::to_record(stored, row)
    }

    fn of_record(record: Record) -> Result<Self, Halt> {
        Ok(record)
    }
}

impl Item for Event {
    fn of_stored(stored: Stored<'_>, _: &rusqlite::Row<'_>) -> Result<Self, Halt> {
        rows::to_event(stored)
    }

    fn of_record(record: Record) -> Result<Self, Halt> {
        Ok(record.decode().map_err(Error::from)?)
    }
}

pub(super) fn page<T: Item>(
    conn: &Connection,
    run: &RunId,
    from: Seq,
    limit: usize,
) -> Result<EventPage<T>, Halt> {
    let mut items = Vec::with_capacity(limit.min(ROOM));
    let (next, has_more) = read_page(conn, run, from, limit, &mut items)?;
    Ok(EventPage {
        items,
        next,
        has_more,
    })
}

/// Reads a page: which seq comes next, and whether there is more.
pub(super) fn read_page(
    conn: &Connection,
    run: &RunId,
    from: Seq,
    limit: usize,
    sink: &mut impl Sink,
) -> Result<(Seq, bool), Halt> {
    let from = from.max(Seq::FIRST);
    let limit = limit.max(1);
    if fork::is_imported_whole(conn, run)? {
        return page_of_others(conn, run, from, limit, sink);
    }
    // One statement, so that the page is of one moment.
    let sql = format!(
        "SELECT {RECORD} FROM events
         WHERE run = (SELECT id FROM runs WHERE run = ?1) AND seq >= ?2 ORDER BY seq LIMIT ?3"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let first = i64::try_from(from.0).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![run.to_string(), first, more])?;
    let mut next = from;
    let (mut taken, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        if taken >= limit || bytes >= PAGE_BYTES {
            return Ok((next, true));
        }
        let stored = rows::stored(row)?;
        if taken == 0 && stored.seq > from {
            // What comes before is another run's. The open statement keeps it one moment.
            return page_of_others(conn, run, from, limit, sink);
        }
        next = stored.seq.next();
        bytes += stored.body.map_or(0, str::len);
        taken += 1;
        sink.take(stored, row)?;
    }
    if taken == 0 && rows::id_of(conn, run)?.is_none() {
        return Err(Error::NotFound(*run).into());
    }
    Ok((next, false))
}

/// A page of a log that begins with events of another run.
fn page_of_others(
    conn: &Connection,
    run: &RunId,
    from: Seq,
    limit: usize,
    sink: &mut impl Sink,
) -> Result<(Seq, bool), Halt> {
    let page = fork::page(conn, run, from, limit)?;
    for record in page.items {
        sink.take_record(record)?;
    }
    Ok((page.next, page.has_more))
}

pub(super) fn key(conn: &Connection, run: &RunId) -> Result<Option<RunKey>, Halt> {
    let key: Option<Option<Vec<u8>>> = conn
        .prepare_cached("SELECT key FROM runs WHERE run = ?1")?
        .query_row([run.to_string()], |row| row.get(0))
        .optional()?;
    match key {
        None => Err(Error::NotFound(*run).into()),
        Some(None) => Ok(None),
        Some(Some(bytes)) => match bytes.try_into() {
            Ok(bytes) => Ok(Some(RunKey(bytes))),
            Err(_) => Err(Error::corrupt(format!("the key of {run}")).into()),
        },
    }
}

/// A blob is found only through a reference.
pub(super) fn blob(conn: &Connection, digest: &Digest) -> Result<Option<Vec<u8>>, Halt> {
    let sql = "SELECT bytes, shares FROM blobs WHERE digest = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([digest.as_bytes().as_slice()])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    // The open statement keeps the blob and the events that it shares with of one moment.
    let shares: Option<String> = row.get(1)?;
    share::read(conn, digest, row.get(0)?, shares.as_deref()).map(Some)
}

/// Runs by a prefix of their id, or by its last 8 digits, newest first.
pub(super) fn find(conn: &Connection, prefix: &str, limit: usize) -> Result<Vec<RunId>, Halt> {
    let prefix = prefix.strip_prefix("run_").unwrap_or(prefix);
    if !prefix
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
    {
        return Ok(Vec::new());
    }
    // `~` sorts after every character of an id.
    let sql = "SELECT run FROM (
          SELECT id, run FROM runs WHERE run >= 'run_' || ?1 AND run < 'run_' || ?1 || '~'
          UNION SELECT id, run FROM runs WHERE short = ?1)
        ORDER BY id DESC LIMIT ?2";
    let mut statement = conn.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![prefix, limit])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        runs.push(rows::run_id(
            row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?,
        )?);
    }
    Ok(runs)
}

/// Which columns that runs are listed by are not what the row says.
pub(super) fn misfiled(conn: &Connection, run: &RunId) -> Result<Option<String>, Halt> {
    // One moment for both.
    let moment = conn.unchecked_transaction()?;
    let stored = rows::load(&moment, run)?;
    let sql = "SELECT fold_version, status, session, agent, kind, parent, relation, spec_digest,
          final_state_digest FROM runs WHERE id = ?1";
    let mut statement = moment.prepare_cached(sql)?;
    let mut found = statement.query([stored.id])?;
    let Some(row) = found.next()? else {
        return Ok(None);
    };
    // What an older build wrote is written anew with the run's next event.
    if row.get::<_, u32>("fold_version")? != FOLD_VERSION {
        return Ok(None);
    }
    let facts = &stored.row.facts;
    let parent = facts.parent.as_ref();
    let texts = [
        ("status", Some(stored.row.status().as_str().to_owned())),
        (
            "session",
            facts.session.as_ref().map(|it| it.as_str().to_owned()),
        ),
        ("agent", Some(facts.agent.to_string())),
        ("kind", Some(facts.kind.as_str().to_owned())),
        ("parent", parent.map(|it| it.run.to_string())),
        (
            "relation",
            parent.map(|it| rows::relation_name(it.relation).to_owned()),
        ),
    ];
    for (column, said) in texts {
        if row.get::<_, Option<String>>(column)? != said {
            return Ok(Some(format!(
                "the column `{column}` of its row is not what the row says"
            )));
        }
    }
    let end = facts.ended.as_ref().map(|ended| ended.final_state_digest);
    let digests = [
        ("spec_digest", Some(facts.spec_digest)),
        ("final_state_digest", end),
    ];
    for (column, said) in digests {
        let stored: Option<Vec<u8>> = row.get(column)?;
        if stored.as_deref() != said.as_ref().map(|it| it.as_bytes().as_slice()) {
            return Ok(Some(format!(
                "the column `{column}` of its row is not what the row says"
            )));
        }
    }
    Ok(None)
}
