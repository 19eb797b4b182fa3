//! A run between its tables and the types of the core.

use logreel_core::chain::Sealed;
use logreel_core::codec::{self, StoredBody};
use logreel_core::event::{Body, Relation};
use logreel_core::fold::Illegal;
use logreel_core::meaning::ResultSet;
use logreel_core::row::Facts;
use logreel_core::{
    Blob, Digest, Epoch, Event, FOLD_VERSION, FORMAT, Head, Ready, Record, Row, RunId, RunKey, Seq,
    Status, Timestamp,
};
use rusqlite::{Connection, OptionalExtension, params};

use super::failure::{Halt, damaged};
use super::fork;
use super::limit;
use super::open::Shared;
use super::share::Sources;
use crate::tip::Tip;
use crate::{Driver, Entry, Error, OwnerId};

/// `live.ready_at` of a run that a worker may take now, whatever the clock says.
pub(super) const NOW: i64 = 0;

/// A run as stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub id: i64,
    pub row: Row,
    pub results: ResultSet,
    pub key: Option<RunKey>,
    /// The latest driver's.
    pub epoch: Epoch,
    pub lease: Option<(OwnerId, Timestamp)>,
    ready_at: Option<i64>,
    /// It has a row in `live`.
    pub live: bool,
    pub erased: bool,
    pub read_only: bool,
    /// The newest format that its fold needs.
    pub needs: u16,
    /// The stored projection is another build's: the next write replaces it.
    pub stale: bool,
}

const SELECT: &str = "SELECT r.id, r.run, r.facts, r.key, r.fold_version, r.needs, r.erased,
  r.read_only, l.run IS NOT NULL, ifnull(l.epoch, r.epoch), ifnull(l.event_epoch, r.event_epoch),
  ifnull(l.head_seq, r.head_seq), ifnull(l.head_digest, r.head_digest),
  ifnull(l.updated_at, r.updated_at), iif(l.run IS NULL, r.results, l.results),
  ifnull(l.pulse, r.pulse), l.owner, l.since, l.ready_at
  FROM runs r LEFT JOIN live l ON l.run = r.id";

/// The run with this name.
pub(super) fn load(conn: &Connection, run: &RunId) -> Result<Stored, Halt> {
    let mut statement = conn.prepare_cached(&format!("{SELECT} WHERE r.run = ?1"))?;
    let mut rows = statement.query([run.to_string()])?;
    match rows.next()? {
        Some(row) => read(conn, row),
        None => Err(Error::NotFound(*run).into()),
    }
}

/// The run with this integer id.
pub(super) fn load_id(conn: &Connection, id: i64) -> Result<Option<Stored>, Halt> {
    let mut statement = conn.prepare_cached(&format!("{SELECT} WHERE r.id = ?1"))?;
    let mut rows = statement.query([id])?;
    rows.next()?.map(|row| read(conn, row)).transpose()
}

/// The integer id of a run.
pub(super) fn id_of(conn: &Connection, run: &RunId) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT id FROM runs WHERE run = ?1")?
        .query_row([run.to_string()], |row| row.get(0))
        .optional()
}

fn read(conn: &Connection, from: &rusqlite::Row<'_>) -> Result<Stored, Halt> {
    let id: i64 = from.get(0)?;
    let run = run_id(from.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?)?;
    let facts: Facts = json(
        &run,
        "facts",
        from.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?,
    )?;
    let key = match from
        .get_ref(3)?
        .as_blob_or_null()
        .map_err(rusqlite::Error::from)?
    {
        None => None,
        Some(bytes) => Some(RunKey(
            bytes
                .try_into()
                .map_err(|_| damaged(format!("the key of {run}")))?,
        )),
    };
    let fold_version: u32 = from.get(4)?;
    let results = match from
        .get_ref(14)?
        .as_blob_or_null()
        .map_err(rusqlite::Error::from)?
    {
        None => ResultSet::default(),
        Some(bytes) => ResultSet::from_bytes(
            bytes
                .try_into()
                .map_err(|_| damaged(format!("the results of {run}")))?,
        ),
    };
    let owner: Option<i64> = from.get(16)?;
    let since: Option<i64> = from.get(17)?;
    let row = Row {
        run,
        head: Head {
            seq: Seq(unsigned(from.get(11)?)),
            digest: digest(from.get_ref(12)?)?,
        },
        updated_at: Timestamp::from_micros(from.get(13)?),
        epoch: Epoch(unsigned(from.get(10)?)),
        facts: facts.into(),
        pulse: json(
            &run,
            "pulse",
            from.get_ref(15)?.as_str().map_err(rusqlite::Error::from)?,
        )?,
    };
    let mut stored = Stored {
        id,
        row,
        results,
        key,
        epoch: Epoch(unsigned(from.get(9)?)),
        lease: owner.map(|owner| {
            (
                OwnerId(owner.cast_unsigned()),
                Timestamp::from_micros(since.unwrap_or_default()),
            )
        }),
        ready_at: from.get(18)?,
        live: from.get(8)?,
        erased: from.get(6)?,
        read_only: from.get(7)?,
        needs: from.get(5)?,
        stale: false,
    };
    if fold_version != FOLD_VERSION && !stored.erased && stored.needs <= FORMAT {
        // A projection is a cache: another build's is made anew, not reported as damage.
        if let Some((row, results)) = refold(conn, id, run)? {
            (stored.row, stored.results, stored.stale) = (row, results, true);
        }
    }
    Ok(stored)
}

/// The projection from the log alone; `None` when the log has a kind this build does not know.
pub(super) fn refold(
    conn: &Connection,
    id: i64,
    run: RunId,
) -> Result<Option<(Row, ResultSet)>, Halt> {
    let segments = fork::segments(conn, id, run)?;
    if segments.len() > 1 {
        return fork::refold(conn, run, &segments);
    }
    let sql = format!("SELECT {RECORD} FROM events WHERE run = ?1 ORDER BY seq");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut records = statement.query([id])?;
    let mut folded: Option<(Row, ResultSet)> = None;
    while let Some(from) = records.next()? {
        let event = event(from)?;
        let applied = match &mut folded {
            None => Row::start(run, &event).map(|row| {
                folded = Some((row, ResultSet::default()));
            }),
            Some((row, _)) => row.apply(&event),
        };
        match applied {
            Err(illegal) if illegal.why == Illegal::UnknownKind => return Ok(None),
            Err(illegal) => return Err(Error::from(illegal).into()),
            Ok(()) => {}
        }
        if let Some((_, results)) = folded.as_mut().filter(|_| !event.late) {
            *results = results.plus(ResultSet::of(&event.body));
        }
    }
    Ok(folded)
}

impl Stored {
    /// What an append extends.
    pub fn tip(&self) -> Result<Tip, Error> {
        let key = self.key.ok_or(Error::ErasedRun(self.row.run))?;
        Ok(Tip {
            row: self.row.clone(),
            results: self.results,
            key,
        })
    }

    /// The run as callers see it.
    pub fn entry(self, conn: &Connection, shared: &Shared) -> rusqlite::Result<Entry> {
        let driver = match self.lease {
            None => None,
            Some((id, since)) => shared
                .owners
                .look_up(conn, id)?
                .map(|(owner, life)| Driver {
                    alive: shared.owners.is_held(&owner, life, &self.row.facts),
                    owner,
                    since,
                }),
        };
        let ready_at = match (self.lease, self.row.status()) {
            (Some(_), _) => None,
            (None, _) if self.read_only => None,
            (None, Status::Waiting) => self.ready_at.map(Timestamp::from_micros),
            (None, _) => self.row.ready_at(),
        };
        let driven = driver.as_ref().is_some_and(|driver| driver.alive);
        let over_limit = match &self.row.facts.limit {
            Some(limit) if self.live && !driven && !self.row.status().is_terminal() => {
                limit::is_full(conn, shared, limit, Some(self.id))?
            }
            _ => false,
        };
        Ok(Entry {
            row: self.row,
            results: self.results,
            epoch: self.epoch,
            driver,
            ready_at,
            over_limit,
            erased: self.erased,
            read_only: self.read_only,
        })
    }

    /// Refuses what this build cannot fold, by name.
    pub fn check_foldable(&self) -> Result<(), Error> {
        if self.needs > FORMAT {
            return Err(Error::NewerFormat(format!(
                "{} was written in format {}, this build knows up to {FORMAT}; use a newer logreel",
                self.row.run, self.needs
            )));
        }
        if self.erased {
            return Err(Error::ErasedRun(self.row.run));
        }
        self.check_own()
    }

    /// Refuses what was imported and not taken over.
    pub fn check_own(&self) -> Result<(), Error> {
        match self.read_only {
            true => Err(Error::ReadOnly(self.row.run)),
            false => Ok(()),
        }
    }
}

/// `live.ready_at` of a run that nobody holds (SEMANTICS 18).
pub(super) fn queue_time(conn: &Connection, id: i64, row: &Row) -> Result<Option<i64>, Halt> {
    Ok(match ready(conn, id, row)? {
        Ready::Never => None,
        Ready::Now => Some(NOW),
        Ready::At(at) => Some(at.as_micros()),
    })
}

/// From when a worker may take the run.
pub(super) fn ready(conn: &Connection, id: i64, row: &Row) -> Result<Ready, Halt> {
    Ready::of(row, |step| child_ended(conn, id, step))
}

/// When the child that `step` of the run is has ended. One that was announced and is not there has its
/// driver yet to make it, as when the one that announced it was killed: since then.
fn child_ended(
    conn: &Connection,
    id: i64,
    step: Option<&logreel_core::StepId>,
) -> Result<Option<Timestamp>, Halt> {
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = ?1 AND kind = 'child.started' ORDER BY seq DESC"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut records = statement.query([id])?;
    while let Some(from) = records.next()? {
        let event = event(from)?;
        let Body::ChildStarted(started) = event.body else {
            continue;
        };
        if step.is_some_and(|step| *step != started.step) {
            continue;
        }
        return match load(conn, &started.child) {
            Ok(child) => Ok(child.row.facts.ended.as_ref().map(|ended| ended.at)),
            Err(Halt::Refused(Error::NotFound(_))) => Ok(Some(event.at)),
            Err(other) => Err(other),
        };
    }
    Ok(None)
}

/// The columns of [`stored`].
pub(super) const RECORD: &str =
    "seq, at, caller_at, epoch, late, format, kind, body, body_digest, digest";

/// An event, decoded where it lies, from the columns [`RECORD`].
pub(super) fn event(from: &rusqlite::Row<'_>) -> Result<Event, Halt> {
    to_event(stored(from)?)
}

pub(super) fn to_event(stored: codec::Stored<'_>) -> Result<Event, Halt> {
    Ok(stored.decode().map_err(Error::from)?)
}

/// A copy of an event as stored, from the columns [`RECORD`].
pub(super) fn record(from: &rusqlite::Row<'_>) -> Result<Record, Halt> {
    to_record(stored(from)?, from)
}

/// A copy of an event as stored.
pub(super) fn to_record(
    stored: codec::Stored<'_>,
    from: &rusqlite::Row<'_>,
) -> Result<Record, Halt> {
    Ok(Record {
        seq: stored.seq,
        at: stored.at,
        caller_at: stored.caller_at,
        epoch: stored.epoch,
        late: stored.late,
        format: stored.format,
        kind: stored.kind.to_owned(),
        body: match stored.body {
            Some(text) => StoredBody::Text(text.to_owned()),
            None => StoredBody::Erased(digest(from.get_ref(8)?)?),
        },
        digest: stored.digest,
        origin: None,
    })
}

/// An event where it lies, from the columns [`RECORD`].
pub(super) fn stored<'a>(from: &'a rusqlite::Row<'_>) -> Result<codec::Stored<'a>, Halt> {
    let text = |column| {
        from.get_ref(column)?
            .as_str_or_null()
            .map_err(rusqlite::Error::from)
    };
    Ok(codec::Stored {
        seq: Seq(unsigned(from.get(0)?)),
        at: Timestamp::from_micros(from.get(1)?),
        caller_at: from.get::<_, Option<i64>>(2)?.map(Timestamp::from_micros),
        epoch: Epoch(unsigned(from.get(3)?)),
        late: from.get(4)?,
        format: from.get(5)?,
        kind: text(6)?.ok_or_else(|| damaged("an event without a kind"))?,
        body: text(7)?,
        digest: digest(from.get_ref(9)?)?,
    })
}

/// How the answer to an append is found again: on the append's first event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mark<'a> {
    /// A driver's tag, or 0 for what the store itself appends.
    Tag(u64),
    /// Anyone else's append id, unique in the run.
    Id(&'a str),
}

/// Writes sealed events from `pos` on.
pub(super) fn insert_events(
    conn: &Connection,
    id: i64,
    pos: &mut i64,
    sealed: &[Sealed],
    mark: Mark<'_>,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO events (pos, run, seq, kind, at, caller_at, epoch, late, format, tag,
        append_id, digest, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
    let mut statement = conn.prepare_cached(sql)?;
    for (index, Sealed { event, text }) in sealed.iter().enumerate() {
        let (tag, append_id) = match mark {
            _ if index > 0 => (None, None),
            Mark::Tag(tag) => (Some(tag.cast_signed()), None),
            Mark::Id(id) => (None, Some(id)),
        };
        statement.execute(params![
            *pos,
            id,
            event.seq.0.cast_signed(),
            event.body.kind(),
            event.at.as_micros(),
            event.caller_at.map(Timestamp::as_micros),
            event.epoch.0.cast_signed(),
            event.late,
            FORMAT,
            tag,
            append_id,
            event.digest.as_bytes().as_slice(),
            text,
        ])?;
        *pos += 1;
    }
    Ok(())
}

/// Writes an event as it was stored elsewhere.
pub(super) fn insert_record(
    conn: &Connection,
    id: i64,
    pos: i64,
    record: &Record,
) -> rusqlite::Result<()> {
    let (body, body_digest) = match &record.body {
        StoredBody::Text(text) => (Some(text), None),
        StoredBody::Erased(digest) => (None, Some(digest.as_bytes().as_slice())),
    };
    // Each is an append of its own: whoever appended it will not ask again here.
    let sql = "INSERT INTO events (pos, run, seq, kind, at, caller_at, epoch, late, format, tag,
        digest, body_digest, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, ?10, ?11, ?12)";
    conn.prepare_cached(sql)?.execute(params![
        pos,
        id,
        record.seq.0.cast_signed(),
        record.kind,
        record.at.as_micros(),
        record.caller_at.map(Timestamp::as_micros),
        record.epoch.0.cast_signed(),
        record.late,
        record.format,
        record.digest.as_bytes().as_slice(),
        body_digest,
        body,
    ])?;
    Ok(())
}

/// Writes blobs with their references (SEMANTICS 32), once the events they came with are written.
pub(super) fn insert_blobs(
    conn: &Connection,
    id: i64,
    blobs: &[Blob],
    mut sources: Sources<'_>,
) -> rusqlite::Result<()> {
    for blob in blobs {
        let (parts, previous) = sources.parts(blob)?;
        conn.prepare_cached(
            "INSERT INTO blobs (digest, previous, shares, bytes) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            blob.digest().as_bytes().as_slice(),
            previous.as_ref().map(|digest| digest.as_bytes().as_slice()),
            parts.shares,
            parts.bytes,
        ])?;
        name(conn, id, &blob.digest(), previous.as_ref())?;
    }
    Ok(())
}

/// An event of the run names a blob that is there. One that came ahead of its event did not say what it
/// follows, and is no longer dropped after its hour.
pub(super) fn name(
    conn: &Connection,
    id: i64,
    digest: &Digest,
    previous: Option<&Digest>,
) -> rusqlite::Result<()> {
    refer(conn, id, digest)?;
    let digest = digest.as_bytes().as_slice();
    if let Some(previous) = previous {
        let sql = "UPDATE blobs SET previous = ?2 WHERE digest = ?1 AND previous IS NULL";
        conn.prepare_cached(sql)?
            .execute(params![digest, previous.as_bytes().as_slice()])?;
    }
    conn.prepare_cached("DELETE FROM staged WHERE run = ?1 AND digest = ?2")?
        .execute(params![id, digest])?;
    Ok(())
}

/// Keeps a blob alive for a run.
pub(super) fn refer(conn: &Connection, id: i64, digest: &Digest) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO blob_refs (run, digest) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
    )?
    .execute(params![id, digest.as_bytes().as_slice()])?;
    Ok(())
}

/// A projection as text. It has no maps with other keys than strings.
pub(super) fn to_text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("a projection always serializes")
}

/// The sum of results as stored: nothing when there are none yet.
pub(super) fn results_bytes(results: &ResultSet) -> Option<[u8; 32]> {
    (*results != ResultSet::default()).then(|| results.to_bytes())
}

pub(super) fn relation_name(relation: Relation) -> &'static str {
    match relation {
        Relation::Child => "child",
        Relation::Fork => "fork",
        Relation::Retry => "retry",
    }
}

/// A run's name as stored.
pub(super) fn run_id(text: &str) -> Result<RunId, Error> {
    text.parse()
        .map_err(|error| damaged(format!("a stored run id: {error}")))
}

/// SQLite's integers are signed; ours were written from unsigned ones.
pub(super) fn unsigned(value: i64) -> u64 {
    value.cast_unsigned()
}

fn digest(value: rusqlite::types::ValueRef<'_>) -> Result<Digest, Halt> {
    let bytes = value.as_blob().map_err(rusqlite::Error::from)?;
    Ok(Digest::from_slice(bytes).ok_or_else(|| damaged("a digest of the wrong length"))?)
}

fn json<T: serde::de::DeserializeOwned>(run: &RunId, what: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| damaged(format!("the {what} of {run}: {error}")))
}
