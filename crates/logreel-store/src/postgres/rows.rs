//! A run between its tables and the types of the core.

use std::sync::Arc;

use logreel_core::chain::Sealed;
use logreel_core::codec::{self, StoredBody};
use logreel_core::event::{Body, Relation};
use logreel_core::fold::Illegal;
use logreel_core::meaning::ResultSet;
use logreel_core::row::Facts;
use logreel_core::{
    Blob, Digest, Epoch, Event, FOLD_VERSION, FORMAT, Head, Ready, Record, Row, RunId, RunKey, Seq,
    Status, StepId, Tally, Timestamp,
};

use super::failure::{Halt, damaged};
use super::fork;
use super::limit::Places;
use super::owners::{Life, OWNER};
use super::writer::Tx;
use crate::tip::Tip;
use crate::words::words_of;
use crate::{Driver, Entry, Error, Owner, OwnerId};

/// `queue.ready_at` of a run that a worker may take now, whatever the clock says.
pub(super) const NOW: i64 = 0;
/// Announcements of children that are read in one go.
const CHILDREN: usize = 64;
/// A word is known by its beginning: an index takes no longer ones.
const WORD_CHARS: usize = 200;

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
    /// Who has the lease and whether they live; `None` also when they were forgotten.
    pub holder: Option<(Owner, Life)>,
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

fn select(condition: &str) -> String {
    format!(
        "SELECT r.id, r.run, r.facts, r.key, r.fold_version, r.needs, r.erased,
           r.read_only, l.run IS NOT NULL, coalesce(l.epoch, r.epoch),
           coalesce(l.event_epoch, r.event_epoch), coalesce(l.head_seq, r.head_seq),
           coalesce(l.head_digest, r.head_digest), coalesce(l.updated_at, r.updated_at),
           CASE WHEN l.run IS NULL THEN r.results ELSE l.results END,
           coalesce(l.pulse, r.pulse), q.owner, q.since, q.ready_at, {OWNER}
         FROM runs r LEFT JOIN live l ON l.run = r.id LEFT JOIN queue q ON q.run = r.id
         LEFT JOIN owners o ON o.id = q.owner
         WHERE {condition}"
    )
}

/// The run with this name.
pub(super) async fn load(tx: &Tx, run: &RunId) -> Result<Stored, Halt> {
    find(tx, run)
        .await?
        .ok_or_else(|| Error::NotFound(*run).into())
}

/// The run with this name, if there is one.
pub(super) async fn find(tx: &Tx, run: &RunId) -> Result<Option<Stored>, Halt> {
    let now = tx.shared.clock.lease_now();
    let found = tx
        .opt(&select("r.run = $1"), &[&run.to_string(), &now])
        .await?;
    match found {
        Some(row) => Ok(Some(read(tx, &row).await?)),
        None => Ok(None),
    }
}

/// The runs with these integer ids, in their order; those that are not there are left out.
pub(super) async fn load_ids(tx: &Tx, ids: &[i64]) -> Result<Vec<Stored>, Halt> {
    let now = tx.shared.clock.lease_now();
    let found = tx.query(&select("r.id = ANY($1)"), &[&ids, &now]).await?;
    let mut stored = Vec::with_capacity(found.len());
    for row in &found {
        stored.push(read(tx, row).await?);
    }
    stored.sort_by_key(|it| ids.iter().position(|id| *id == it.id));
    Ok(stored)
}

/// The run with this integer id.
pub(super) async fn load_id(tx: &Tx, id: i64) -> Result<Option<Stored>, Halt> {
    Ok(load_ids(tx, &[id]).await?.pop())
}

/// Locks the run until the transaction ends, in the order in which an append does, and loads it as it is
/// then: every statement sees what was committed before it began.
pub(super) async fn lock(tx: &Tx, run: &RunId) -> Result<Stored, Halt> {
    let Some(id) = id_of(tx, run).await? else {
        return Err(Error::NotFound(*run).into());
    };
    lock_id(tx, id).await?;
    load(tx, run).await
}

/// The same, for what may end the run: a parent that waits for it is told in the same transaction. It is older,
/// and locked first, as everywhere: in the order of runs.
pub(super) async fn lock_to_end(tx: &Tx, run: &RunId) -> Result<Stored, Halt> {
    let sql = "SELECT p.id FROM runs r JOIN runs p ON p.run = r.parent AND r.relation = 'child'
        WHERE r.run = $1";
    if let Some(parent) = tx.opt(sql, &[&run.to_string()]).await? {
        lock_id(tx, parent.try_get(0)?).await?;
    }
    lock(tx, run).await
}

/// Locks the run with this integer id.
pub(super) async fn lock_id(tx: &Tx, id: i64) -> Result<(), Halt> {
    tx.opt("SELECT 1 FROM live WHERE run = $1 FOR UPDATE", &[&id])
        .await?;
    tx.opt("SELECT 1 FROM runs WHERE id = $1 FOR UPDATE", &[&id])
        .await?;
    Ok(())
}

/// The integer id of a run.
pub(super) async fn id_of(tx: &Tx, run: &RunId) -> Result<Option<i64>, Halt> {
    let found = tx
        .opt("SELECT id FROM runs WHERE run = $1", &[&run.to_string()])
        .await?;
    Ok(found.map(|row| row.try_get(0)).transpose()?)
}

async fn read(tx: &Tx, from: &tokio_postgres::Row) -> Result<Stored, Halt> {
    let id: i64 = from.try_get(0)?;
    let run = run_id(from.try_get(1)?)?;
    let facts: Facts = json(&run, "facts", from.try_get(2)?)?;
    let key = run_key(&run, from.try_get(3)?)?;
    let fold_version: i64 = from.try_get(4)?;
    let needs: i64 = from.try_get(5)?;
    let results = match from.try_get::<_, Option<&[u8]>>(14)? {
        None => ResultSet::default(),
        Some(bytes) => ResultSet::from_bytes(
            bytes
                .try_into()
                .map_err(|_| damaged(format!("the results of {run}")))?,
        ),
    };
    let owner: Option<i64> = from.try_get(16)?;
    let since: Option<i64> = from.try_get(17)?;
    let row = Row {
        run,
        head: Head {
            seq: Seq(unsigned(from.try_get(11)?)),
            digest: digest(from.try_get(12)?)?,
        },
        updated_at: Timestamp::from_micros(from.try_get(13)?),
        epoch: Epoch(unsigned(from.try_get(10)?)),
        facts: facts.into(),
        pulse: json(&run, "pulse", from.try_get(15)?)?,
    };
    let holder = match from.try_get::<_, Option<i64>>(19)? {
        Some(_) => Some(tx.shared.owners.read(from, 19)?),
        None => None,
    };
    let mut stored = Stored {
        id,
        row,
        results,
        key,
        epoch: Epoch(unsigned(from.try_get(9)?)),
        lease: owner.map(|owner| {
            (
                OwnerId(owner.cast_unsigned()),
                Timestamp::from_micros(since.unwrap_or_default()),
            )
        }),
        holder,
        ready_at: from.try_get(18)?,
        live: from.try_get(8)?,
        erased: from.try_get(6)?,
        read_only: from.try_get(7)?,
        needs: u16::try_from(needs).unwrap_or(u16::MAX),
        stale: false,
    };
    if fold_version != i64::from(FOLD_VERSION) && !stored.erased && stored.needs <= FORMAT {
        // A projection is a cache: another build's is made anew, not reported as damage.
        if let Some((row, results)) = refold(tx, id, run).await? {
            (stored.row, stored.results, stored.stale) = (row, results, true);
        }
    }
    Ok(stored)
}

/// The projection from the log alone; `None` when the log has a kind this build does not know.
async fn refold(tx: &Tx, id: i64, run: RunId) -> Result<Option<(Row, ResultSet)>, Halt> {
    let segments = fork::segments(tx, id, run).await?;
    let mut row: Option<Row> = None;
    let mut tally = Tally::default();
    let mut pages = fork::Pages::new(run, &segments, Seq::FIRST);
    while let Some(records) = pages.next(tx).await? {
        for record in records {
            let event = record.decode().map_err(Error::from)?;
            let applied = match &mut row {
                None => Row::start(run, &event).map(|first| row = Some(first)),
                Some(row) => row.apply(&event),
            };
            match applied {
                Err(illegal) if illegal.why == Illegal::UnknownKind => return Ok(None),
                Err(illegal) => return Err(Error::from(illegal).into()),
                Ok(()) => tally.add(&event),
            }
        }
    }
    Ok(row.map(|row| (row, tally.sum())))
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

    /// Whether someone has the lease and lives.
    pub fn is_driven(&self, tx: &Tx) -> bool {
        let held =
            |(owner, life): &(Owner, Life)| tx.shared.owners.is_held(owner, *life, &self.row.facts);
        self.holder.as_ref().is_some_and(held)
    }

    /// Whether the holder of its lease beats.
    pub fn has_beating_holder(&self) -> bool {
        matches!(self.holder, Some((_, Life::Beating)))
    }

    /// The run as callers see it.
    pub async fn entry(self, tx: &Tx) -> Result<Entry, Halt> {
        self.entry_among(tx, &mut Places::default()).await
    }

    /// The same of one among others, for which each limit is looked up once.
    pub async fn entry_among(self, tx: &Tx, places: &mut Places) -> Result<Entry, Halt> {
        let alive = self.is_driven(tx);
        let driver = match (self.lease, self.holder) {
            (Some((_, since)), Some((owner, _))) => Some(Driver {
                owner,
                since,
                alive,
            }),
            _ => None,
        };
        let ready_at = match (self.lease, self.row.status()) {
            (Some(_), _) => None,
            (None, _) if self.read_only => None,
            (None, Status::Waiting) => self.ready_at.map(Timestamp::from_micros),
            (None, _) => self.row.ready_at(),
        };
        let over_limit = match &self.row.facts.limit {
            Some(limit) if self.live && !alive && !self.row.status().is_terminal() => {
                let max = Some(u64::from(limit.max));
                !places.has_one(tx, Some(&limit.key), max).await?
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

/// `queue.ready_at` of a run that nobody holds (SEMANTICS 18).
pub(super) async fn queue_time(tx: &Tx, id: i64, row: &Row) -> Result<Option<i64>, Halt> {
    Ok(ready_at(&ready(tx, id, row).await?))
}

/// The same as it is stored.
pub(super) fn ready_at(ready: &Ready) -> Option<i64> {
    match ready {
        Ready::Never => None,
        Ready::Now => Some(NOW),
        Ready::At(at) => Some(at.as_micros()),
    }
}

/// From when a worker may take the run. What is asked about children on the way is looked up, and asked
/// again.
pub(super) async fn ready(tx: &Tx, id: i64, row: &Row) -> Result<Ready, Halt> {
    let mut known: Vec<(Option<StepId>, Option<Timestamp>)> = Vec::new();
    loop {
        let asked = Ready::of(row, |step| {
            let found = known.iter().find(|(of, _)| of.as_ref() == step);
            found.map(|(_, ended)| *ended).ok_or_else(|| step.cloned())
        });
        match asked {
            Ok(ready) => return Ok(ready),
            Err(step) => {
                let ended = child_ended(tx, id, step.as_ref()).await?;
                known.push((step, ended));
            }
        }
    }
}

/// When the child that `step` of the run is has ended. One that was announced and is not there has its
/// driver yet to make it, as when the one that announced it was killed: since then.
async fn child_ended(tx: &Tx, id: i64, step: Option<&StepId>) -> Result<Option<Timestamp>, Halt> {
    // From the latest back, some at a time: a run may have very many, and those that are open came last.
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = $1 AND kind = 'child.started' AND seq < $2
         ORDER BY seq DESC LIMIT {CHILDREN}"
    );
    let mut before = i64::MAX;
    loop {
        let found = tx.query(&sql, &[&id, &before]).await?;
        for from in &found {
            let event = event(from)?;
            before = event.seq.0.cast_signed();
            let Body::ChildStarted(started) = event.body else {
                continue;
            };
            if step.is_some_and(|step| *step != started.step) {
                continue;
            }
            // Its facts alone: a child may itself need a look at children.
            let sql = "SELECT facts FROM runs WHERE run = $1";
            let child = tx.opt(sql, &[&started.child.to_string()]).await?;
            return match child {
                Some(child) => {
                    let facts: Facts = json(&started.child, "facts", child.try_get(0)?)?;
                    Ok(facts.ended.as_ref().map(|ended| ended.at))
                }
                None => Ok(Some(event.at)),
            };
        }
        if found.len() < CHILDREN {
            return Ok(None);
        }
    }
}

/// The columns of [`stored`].
pub(super) const RECORD: &str =
    "seq, at, caller_at, epoch, late, format, kind, body, body_digest, digest";

/// An event, decoded where it lies, from the columns [`RECORD`].
pub(super) fn event(from: &tokio_postgres::Row) -> Result<Event, Halt> {
    Ok(stored(from)?.decode().map_err(Error::from)?)
}

/// A copy of an event as stored, from the columns [`RECORD`].
pub(super) fn record(from: &tokio_postgres::Row) -> Result<Record, Halt> {
    let stored = stored(from)?;
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
            None => StoredBody::Erased(digest(from.try_get(8)?)?),
        },
        digest: stored.digest,
        origin: None,
    })
}

/// An event where it lies, from the columns [`RECORD`].
fn stored(from: &tokio_postgres::Row) -> Result<codec::Stored<'_>, Halt> {
    let format: i64 = from.try_get(5)?;
    Ok(codec::Stored {
        seq: Seq(unsigned(from.try_get(0)?)),
        at: Timestamp::from_micros(from.try_get(1)?),
        caller_at: from
            .try_get::<_, Option<i64>>(2)?
            .map(Timestamp::from_micros),
        epoch: Epoch(unsigned(from.try_get(3)?)),
        late: from.try_get(4)?,
        format: u16::try_from(format).unwrap_or(u16::MAX),
        kind: from.try_get(6)?,
        body: from.try_get(7)?,
        digest: digest(from.try_get(9)?)?,
    })
}

/// Writes blobs with their references (SEMANTICS 32).
pub(super) async fn insert_blobs(
    tx: &Tx,
    id: i64,
    blobs: &[Blob],
    sealed: &[Sealed],
) -> Result<(), Halt> {
    for blob in blobs {
        let previous = sealed.iter().find_map(|sealed| match &sealed.event.body {
            Body::MessageAdded(added) if added.node == blob.digest() => added.previous,
            _ => None,
        });
        insert_blob(tx, id, blob, previous.as_ref()).await?;
        let digest = blob.digest();
        let sql = "DELETE FROM staged WHERE run = $1 AND digest = $2";
        tx.exec(sql, &[&id, &digest.as_bytes().as_slice()]).await?;
    }
    Ok(())
}

/// Writes a blob, or refers to the one that is there, so that nobody who collects takes it meanwhile. Many runs
/// may hold the same one: nobody waits for the other.
pub(super) async fn insert_blob(
    tx: &Tx,
    id: i64,
    blob: &Blob,
    previous: Option<&Digest>,
) -> Result<(), Halt> {
    let sql = "INSERT INTO blobs (digest, previous, bytes) VALUES ($1, $2, $3)
        ON CONFLICT (digest) DO NOTHING";
    let digest = blob.digest();
    let named = digest.as_bytes().as_slice();
    let previous = previous.map(|digest| digest.as_bytes().as_slice());
    let new = tx
        .exec(sql, &[&named, &previous, &&blob.bytes()[..]])
        .await?;
    if new == 0 && previous.is_some() {
        // One that came ahead of its event did not say what it follows.
        let sql = "UPDATE blobs SET previous = $2 WHERE digest = $1 AND previous IS NULL";
        tx.exec(sql, &[&named, &previous]).await?;
    }
    refer(tx, id, &digest).await
}

/// Keeps a blob alive for a run.
pub(super) async fn refer(tx: &Tx, id: i64, digest: &Digest) -> Result<(), Halt> {
    // Whoever would delete it waits, and sees the reference then. What is gone by now is looked at anew.
    let sql = "SELECT 1 FROM blobs WHERE digest = $1 FOR KEY SHARE";
    let held = tx.opt(sql, &[&digest.as_bytes().as_slice()]).await?;
    if held.is_none() {
        return Err(Halt::Again);
    }
    let sql = "INSERT INTO blob_refs (run, digest) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.exec(sql, &[&id, &digest.as_bytes().as_slice()]).await?;
    Ok(())
}

/// Writes the words that a run is found by.
pub(super) async fn index(tx: &Tx, id: i64, facts: &Facts) -> Result<(), Halt> {
    let sql = "INSERT INTO search (run, words) VALUES ($1, $2)
        ON CONFLICT (run) DO UPDATE SET words = excluded.words";
    tx.exec(sql, &[&id, &words(facts)]).await?;
    Ok(())
}

/// Those words, each once.
pub(super) fn words(facts: &Facts) -> Vec<String> {
    let words: std::collections::BTreeSet<String> =
        words_of(facts).iter().map(|word| cut(word)).collect();
    words.into_iter().collect()
}

/// A word as it is stored and looked for.
pub(super) fn cut(word: &str) -> String {
    word.chars().take(WORD_CHARS).collect()
}

/// A text that PostgreSQL takes: all but NUL.
pub(super) fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A projection as text. It has no maps with other keys than strings.
pub(super) fn to_text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("a projection always serializes")
}

/// The sum of results as stored: nothing when there are none yet.
pub(super) fn stored_results(results: &ResultSet) -> Option<[u8; 32]> {
    (*results != ResultSet::default()).then(|| results.to_bytes())
}

/// The same as a column's value.
pub(super) fn results_bytes(results: &ResultSet) -> Option<Vec<u8>> {
    stored_results(results).map(Vec::from)
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

/// A run's key as stored.
pub(super) fn run_key(run: &RunId, bytes: Option<&[u8]>) -> Result<Option<RunKey>, Error> {
    let broken = |_| damaged(format!("the key of {run}"));
    let key = bytes.map(|bytes| bytes.try_into().map(RunKey).map_err(broken));
    key.transpose()
}

/// PostgreSQL's integers are signed; ours were written from unsigned ones.
pub(super) fn unsigned(value: i64) -> u64 {
    value.cast_unsigned()
}

pub(super) fn digest(bytes: &[u8]) -> Result<Digest, Halt> {
    Ok(Digest::from_slice(bytes).ok_or_else(|| damaged("a digest of the wrong length"))?)
}

fn json<T: serde::de::DeserializeOwned>(run: &RunId, what: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| damaged(format!("the {what} of {run}: {error}")))
}

/// The facts before and after, as far as they decide what must be written again.
pub(super) struct Before {
    pub facts: Arc<Facts>,
    pub status: Status,
    pub head: Head,
    pub stale: bool,
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
