//! Forks: a log that begins with another run's events (SEMANTICS 31).
//!
//! Nothing says in a table of its own where a fork begins: its own first event does, which has a
//! `seq` above 1, and `runs.parent` says whose events come before it.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use logreel_core::codec::StoredBody;
use logreel_core::event::Body;
use logreel_core::{Payload, Record, RunId, RunKey, Seq};

use super::create::{Placed, first_epoch, place};
use super::failure::{Halt, damaged};
use super::limit;
use super::open::Shared;
use super::read::bounded;
use super::rows::{self, RECORD};
use super::writer::Tx;
use crate::fork::{Decided, Prefix, difference};
use crate::{Created, Error, ForkError, NewFork};

/// Events that are read in one go.
const CHUNK: i64 = 512;
/// How often a fork is decided anew because its parent changed meanwhile.
const TRIES: u32 = 12;

/// A part of a log: the events of one run up to and including `last`.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    id: i64,
    run: RunId,
    last: Seq,
}

/// Whose events make up the log of a run, from its first on; one part when it is no fork.
pub(super) async fn segments(tx: &Tx, id: i64, run: RunId) -> Result<Vec<Segment>, Halt> {
    let mut parts = Vec::new();
    let (mut id, mut run, mut last) = (id, run, Seq(u64::MAX));
    loop {
        let sql = "SELECT min(seq) FROM events WHERE run = $1";
        let first: Option<i64> = tx.one(sql, &[&id]).await?.try_get(0)?;
        let first = Seq(first.map_or(1, rows::unsigned));
        // A fork of a fork may have been made before the latter's own first event.
        if first <= last {
            parts.push(Segment { id, run, last });
            parts.extend(imported(tx, id, last).await?);
        }
        let parent = match first {
            Seq::FIRST => None,
            _ => parent_of(tx, id).await?,
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
async fn imported(tx: &Tx, id: i64, last: Seq) -> Result<Vec<Segment>, Halt> {
    let sql = "SELECT last, origin FROM origins WHERE run = $1 ORDER BY last DESC";
    let mut parts = Vec::new();
    for row in tx.query(sql, &[&id]).await? {
        parts.push(Segment {
            id,
            run: rows::run_id(row.try_get(1)?)?,
            last: last.min(Seq(rows::unsigned(row.try_get(0)?))),
        });
    }
    Ok(parts)
}

/// Whether the run's log was imported with events of other runs in it.
pub(super) async fn is_imported_whole(tx: &Tx, id: i64) -> Result<bool, Halt> {
    let sql = "SELECT 1 FROM origins WHERE run = $1 LIMIT 1";
    Ok(tx.opt(sql, &[&id]).await?.is_some())
}

/// The keys of everyone whose events the run's log has.
pub(super) async fn keys(tx: &Tx, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Halt> {
    let id = rows::id_of(tx, run).await?.ok_or(Error::NotFound(*run))?;
    let mut keys: Vec<(RunId, Option<RunKey>)> = Vec::new();
    for part in segments(tx, id, *run).await? {
        let sql = "SELECT key FROM origins WHERE run = $1 AND origin = $2 LIMIT 1";
        let of_origin = tx.opt(sql, &[&part.id, &part.run.to_string()]).await?;
        let row = match of_origin {
            Some(row) => row,
            None => {
                tx.one("SELECT key FROM runs WHERE id = $1", &[&part.id])
                    .await?
            }
        };
        keys.push((part.run, rows::run_key(&part.run, row.try_get(0)?)?));
    }
    Ok(keys)
}

/// The run that this one shares events of.
async fn parent_of(tx: &Tx, id: i64) -> Result<Option<(i64, RunId)>, Halt> {
    let sql = "SELECT p.id, p.run FROM runs r JOIN runs p ON p.run = r.parent
        WHERE r.id = $1 AND r.relation <> 'child'";
    match tx.opt(sql, &[&id]).await? {
        Some(row) => Ok(Some((row.try_get(0)?, rows::run_id(row.try_get(1)?)?))),
        None => Ok(None),
    }
}

/// A log from an event on, whoever its events were written for, some at a time.
pub(super) struct Pages<'a> {
    run: RunId,
    segments: &'a [Segment],
    next: Seq,
    at_once: i64,
}

impl<'a> Pages<'a> {
    pub fn new(run: RunId, segments: &'a [Segment], from: Seq) -> Self {
        let at_once = CHUNK;
        Self {
            run,
            segments,
            next: from.max(Seq::FIRST),
            at_once,
        }
    }

    /// The next events, at least one; `None` after the last.
    pub async fn next(&mut self, tx: &Tx) -> Result<Option<Vec<Record>>, Halt> {
        let sql = bounded("run = $1 AND seq >= $2 AND seq <= $3", "$4");
        let stored = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
        for part in self.segments {
            if part.last < self.next {
                continue;
            }
            let (from, last) = (stored(self.next), stored(part.last));
            let found = tx
                .query(&sql, &[&part.id, &from, &last, &self.at_once])
                .await?;
            let mut records = Vec::with_capacity(found.len());
            for row in &found {
                let origin = (part.run != self.run).then_some(part.run);
                let record = Record {
                    origin,
                    ..rows::record(row)?
                };
                self.next = record.seq.next();
                records.push(record);
            }
            if !records.is_empty() {
                return Ok(Some(records));
            }
        }
        Ok(None)
    }
}

/// The runs that share events of this one. One that was imported whole has all of its log itself.
pub(super) async fn forks_of(tx: &Tx, run: &RunId) -> Result<Vec<RunId>, Halt> {
    let sql = "SELECT run FROM runs r WHERE parent = $1 AND relation <> 'child'
        AND NOT EXISTS (SELECT 1 FROM origins WHERE run = r.id) ORDER BY id";
    names(tx, sql, run).await
}

/// The runs that hold what this one held, because they were forked from it, and were not erased.
pub(super) async fn forks_to_erase(tx: &Tx, run: &RunId) -> Result<Vec<RunId>, Halt> {
    // Who brought its events along was forked from it too, by way of a run that need not be here.
    let sql = "SELECT run FROM (
          SELECT id, run FROM runs WHERE parent = $1 AND relation <> 'child' AND NOT erased
          UNION SELECT r.id, r.run FROM origins o JOIN runs r ON r.id = o.run
            WHERE o.origin = $1 AND NOT r.erased) forks ORDER BY id";
    names(tx, sql, run).await
}

async fn names(tx: &Tx, sql: &str, run: &RunId) -> Result<Vec<RunId>, Halt> {
    let found = tx.query(sql, &[&run.to_string()]).await?;
    let mut runs = Vec::with_capacity(found.len());
    for row in &found {
        runs.push(rows::run_id(row.try_get(0)?)?);
    }
    Ok(runs)
}

/// The events that are stored with the run itself, from `from` on.
pub(super) async fn own_records(
    tx: &Tx,
    id: i64,
    run: RunId,
    segments: &[Segment],
    from: Seq,
) -> Result<Vec<Record>, Halt> {
    let sql = bounded("run = $1 AND seq >= $2", &CHUNK.to_string());
    let from = i64::try_from(from.0).unwrap_or(i64::MAX);
    let mut records = Vec::new();
    for row in tx.query(&sql, &[&id, &from]).await? {
        let record = rows::record(&row)?;
        let part = segments.iter().find(|part| record.seq <= part.last);
        let writer = part.map_or(run, |part| part.run);
        let origin = (writer != run).then_some(writer);
        records.push(Record { origin, ..record });
    }
    Ok(records)
}

/// Makes the fork, or attaches to the one that has its id.
pub(super) async fn make(
    shared: &Arc<Shared>,
    new: NewFork,
    key: RunKey,
) -> Result<Created, ForkError> {
    let new = Arc::new(new);
    for _ in 0..TRIES {
        // Before the transaction: what is shared never changes, and it may be long.
        let asked = new.clone();
        let decided = shared.reading_long(|tx| async move { decide(&tx, &asked).await });
        // Whoever is told to give way has used it up.
        let decided = Arc::new(Mutex::new(decided.await?));
        let made = shared.transact(|tx| {
            let (new, decided) = (new.clone(), decided.clone());
            let decided = decided
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            async move { fork(&tx, &new, decided, key).await }
        });
        if let Some(created) = made.await? {
            return Ok(created);
        }
    }
    Err(Halt::Again.told())
}

/// What the fork begins with; `None` when a run with its id is there already.
async fn decide(tx: &Tx, new: &NewFork) -> Result<Option<Decided>, Halt<ForkError>> {
    if rows::id_of(tx, &new.run)
        .await
        .map_err(Halt::lift)?
        .is_some()
    {
        return Ok(None);
    }
    let parent = rows::load(tx, &new.parent).await.map_err(Halt::lift)?;
    if parent.erased {
        return Err(Halt::Refused(ForkError::Erased(new.parent)));
    }
    if let Err(newer @ Error::NewerFormat(_)) = parent.check_foldable() {
        return Err(newer.into());
    }
    let segments = segments(tx, parent.id, new.parent)
        .await
        .map_err(Halt::lift)?;
    let mut prefix = shared(tx, new, &segments, Prefix::new(new)).await?;
    if prefix.missed() {
        prefix = shared(tx, new, &segments, Prefix::of_all_steps(new)).await?;
    }
    let decided = prefix.decide(new, tx.shared.payload_bytes_max);
    Ok(Some(decided.map_err(Halt::Refused)?))
}

/// Folds what the fork shares.
async fn shared(
    tx: &Tx,
    new: &NewFork,
    segments: &[Segment],
    mut prefix: Prefix,
) -> Result<Prefix, Halt<ForkError>> {
    let mut pages = Pages::new(new.parent, segments, Seq::FIRST);
    while let Some(records) = pages.next(tx).await.map_err(Halt::lift)? {
        for record in &records {
            if matches!(record.body, StoredBody::Erased(_)) {
                return Err(Halt::Refused(ForkError::Erased(new.parent)));
            }
            let taken = prefix.take(record).map_err(Halt::Refused)?;
            if taken == ControlFlow::Break(()) {
                return Ok(prefix);
            }
        }
    }
    Ok(prefix)
}

/// Gives the fork its place, or attaches to the one that has its id. `None` when it must be decided anew.
async fn fork(
    tx: &Tx,
    new: &NewFork,
    decided: Option<Decided>,
    key: RunKey,
) -> Result<Option<Created>, Halt<ForkError>> {
    if let Some(attached) = attach(tx, new).await? {
        return Ok(Some(attached));
    }
    let Some(decided) = decided else {
        return Ok(None);
    };
    if new.owner.is_some() {
        // The key first, then runs: as whoever claims one.
        limit::lock(tx, decided.limit()).await.map_err(Halt::lift)?;
    }
    // What it shares stays from now on: who deletes or erases the parent locks its row. While the log was
    // read nobody had to wait; what is shared of it does not change, but for being gone.
    let sql = "SELECT erased FROM runs WHERE run = $1 FOR SHARE";
    let parent = tx.opt(sql, &[&new.parent.to_string()]).await?;
    let erased = parent.map(|row| row.try_get::<_, bool>(0)).transpose()?;
    if erased != Some(false) {
        return Ok(None);
    }
    if let Some(owner) = new.owner {
        tx.shared
            .owners
            .joined(tx, owner)
            .await
            .map_err(Halt::lift)?;
    }
    let now = tx.shared.clock.now();
    let input = decided.input.clone();
    let owner = match new.owner {
        Some(_)
            if !limit::take_place(tx, decided.limit(), None)
                .await
                .map_err(Halt::lift)? =>
        {
            None
        }
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
    let id = place(tx, placed).await.map_err(Halt::lift)?;
    if let Payload::Blob(reference) = input {
        // `run.forked` refers to it, also when it is the parent's.
        rows::refer(tx, id, &reference.blob)
            .await
            .map_err(Halt::lift)?;
    }
    let stored = rows::load(tx, &new.run).await.map_err(Halt::lift)?;
    let entry = stored.entry(tx).await.map_err(Halt::lift)?;
    Ok(Some(Created::New(entry)))
}

/// The run that has the id already.
async fn attach(tx: &Tx, new: &NewFork) -> Result<Option<Created>, Halt<ForkError>> {
    let Some(stored) = rows::find(tx, &new.run).await.map_err(Halt::lift)? else {
        return Ok(None);
    };
    let sql = format!("SELECT {RECORD} FROM events WHERE run = $1 ORDER BY seq LIMIT 1");
    let first = match tx.opt(&sql, &[&stored.id]).await? {
        Some(row) => rows::record(&row).map_err(Halt::lift)?,
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
        None => {
            // As with any other run: until a standby has it too.
            rows::lock_id(tx, stored.id).await.map_err(Halt::lift)?;
            let entry = stored.entry(tx).await.map_err(Halt::lift)?;
            Ok(Some(Created::Attached(entry)))
        }
    }
}
