//! What was stored of all runs, in the order of the database's clock (SEMANTICS 11).
//!
//! What was stamped first may be seen later: two transactions commit in another order than they began. So a
//! reader looks again at what may have been under way, and leaves out what it had. Within a run events become
//! visible in their order and with stamps that never fall, so that what it had of a run is one number. A
//! transaction that appends is given up long before the guard is over (`writer::LONGEST`), and stamps do not
//! follow a clock that steps back (`clock::Clock::floor`). A commit is the exception: while it waits for a
//! standby, or for a disk, nothing ends it, and it cannot be seen. So the server is asked who is still at work,
//! and nothing is settled that is younger (`settled`).
//!
//! An import takes as long as its log is. Its events have no stamp of their own: a row of `imported` stands for
//! all of them, and is stamped once it can be seen, by whoever sees it first.
//!
//! The cursor holds up to which stamp all was told, and what was had of the runs beyond. With very many of them
//! it would be too long to be sent: then this process remembers it, and in another one whoever goes on from
//! there may be told again of the last minute.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use logreel_core::Seq;

use super::failure::Halt;
use super::rows;
use super::schema::CLOCK;
use super::writer::{LONGEST, Tx};
use crate::{Cursor, Error, News, Since, Told};

/// From when on what was not seen will never be: more than twice what a transaction may take before it commits.
pub(super) const GUARD: Duration = Duration::from_secs(60);
// Its work and its commit may each take the longest.
const _: () = assert!(4 * LONGEST.as_millis() < GUARD.as_millis());
/// How far one goes back who has looked back by the guard lately: nearly all that comes late comes within.
const NEAR: i64 = 1_000_000;
/// How long that is good for.
const LATELY: i64 = 2_000_000;
/// Told of a cursor of ours.
const MARK: &str = "p2";
/// Runs in a cursor: it travels in a header of HTTP.
const RUNS: usize = 300;
/// Places with more runs that this process remembers, and how many runs they have in all: some 30 MB.
const REMEMBERED: usize = 64;
const REMEMBERED_RUNS: usize = 500_000;

/// Up to where all runs were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    /// All that has this stamp or an earlier one was told.
    settled: i64,
    /// The latest stamp that was told, or where a long look was cut off.
    at: i64,
    /// Runs by their integer id: what was told of them last, and its stamp.
    seen: BTreeMap<i64, (i64, i64)>,
}

impl Place {
    fn take(&mut self, run: i64, seq: i64, at: i64) {
        let seen = self.seen.entry(run).or_insert((seq, at));
        *seen = (seen.0.max(seq), seen.1.max(at));
    }

    /// All up to this stamp was told: what was had of it is not asked for again.
    fn settle(&mut self, settled: i64) {
        if settled > self.settled {
            self.settled = settled;
            self.seen.retain(|_, (_, at)| *at > settled);
        }
    }

    /// As it travels: runs by how much their numbers grow, and stamps by how many seconds they are ahead, rounded
    /// to later ones, so that nothing is forgotten too early.
    fn cursor(&self) -> Cursor {
        let mut text = format!("{MARK}.{:x}.{:x}", self.settled, self.at);
        if self.seen.len() > RUNS {
            text.push_str(".~");
            return Cursor(text);
        }
        let mut last = 0;
        for (run, (seq, at)) in &self.seen {
            let (grown, ahead) = (run - last, (at - self.settled + 999_999) / 1_000_000);
            text.push_str(&format!(".{grown:x}-{seq:x}-{ahead:x}"));
            last = *run;
        }
        Cursor(text)
    }

    fn parse(cursor: &Cursor) -> Option<Self> {
        let number = |text: &str| i64::from_str_radix(text, 16).ok().filter(|it| *it >= 0);
        let mut parts = cursor.0.split('.');
        if parts.next()? != MARK {
            return None;
        }
        let mut place = Self {
            settled: number(parts.next()?)?,
            at: number(parts.next()?)?,
            seen: BTreeMap::new(),
        };
        let mut run = 0_i64;
        for part in parts.filter(|part| !part.starts_with('~')) {
            let mut numbers = part.split('-').map(number);
            let (grown, seq, ahead) = (numbers.next()??, numbers.next()??, numbers.next()??);
            run = run.checked_add(grown)?;
            let ahead = ahead.checked_mul(1_000_000)?;
            let at = place.settled.checked_add(ahead)?;
            place.seen.insert(run, (seq, at));
        }
        Some(place)
    }
}

/// Places that are too large for a cursor, by the cursor that stands for each.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<VecDeque<(Cursor, Place)>>);

impl Places {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Cursor, Place)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cursor of a place that someone will go on from.
    fn keep(&self, place: Place, name: u64) -> Cursor {
        let cursor = place.cursor();
        if place.seen.len() <= RUNS {
            return cursor;
        }
        let cursor = Cursor(format!("{}{name:x}", cursor.0));
        let mut places = self.lock();
        let mut runs: usize = places.iter().map(|(_, place)| place.seen.len()).sum();
        // The latest is kept however large it is: someone will go on from it.
        while runs + place.seen.len() > REMEMBERED_RUNS || places.len() >= REMEMBERED {
            match places.pop_front() {
                Some((_, oldest)) => runs -= oldest.seen.len(),
                None => break,
            }
        }
        places.push_back((cursor.clone(), place));
        cursor
    }

    fn find(&self, cursor: &Cursor) -> Option<Place> {
        let places = self.lock();
        let found = places.iter().find(|(known, _)| known == cursor);
        found
            .map(|(_, place)| place.clone())
            .or_else(|| Place::parse(cursor))
    }
}

pub(super) async fn news(tx: &Tx, since: &Since, limit: usize) -> Result<News, Halt> {
    let limit = limit.max(1);
    let now = look_up_now(tx).await?;
    let mut place = match since {
        Since::Beginning => Place::default(),
        Since::Now => return end(tx, now).await,
        Since::After(cursor) => {
            let place = tx.shared.places.find(cursor);
            place.ok_or_else(|| Error::InvalidCursor(cursor.0.clone()))?
        }
    };
    if place.settled > now && place.settled > last(tx).await?.unwrap_or(0) {
        // Of another store: nothing would be heard before this one has come as far.
        let wrong = Cursor(place.cursor().0);
        return Err(Error::InvalidCursor(wrong.0).into());
    }
    // Where nothing can be settled yet the server need not be asked.
    let may_settle = now - tx.shared.guard - place.settled >= LATELY;
    let settled = match may_settle {
        true => settled(tx, now).await?,
        false => place.settled,
    };
    let is_far = settled - place.settled >= LATELY;
    let after = match is_far {
        true => place.settled,
        false => place.settled.max(place.at - NEAR),
    };
    let (runs, seqs): (Vec<i64>, Vec<i64>) = place
        .seen
        .iter()
        .map(|(run, (seq, _))| (*run, *seq))
        .unzip();
    let sql =
        "WITH had AS MATERIALIZED (SELECT * FROM unnest($2::int8[], $3::int8[]) had(run, seq))
        SELECT n.run, n.seq, n.stored_at, r.run FROM (
          (SELECT e.run, e.seq, e.stored_at FROM events e LEFT JOIN had ON had.run = e.run
           WHERE e.stored_at > $1 AND (had.seq IS NULL OR e.seq > had.seq)
           ORDER BY e.stored_at, e.run, e.seq LIMIT $4)
          UNION ALL
          SELECT i.run, e.seq, i.stored_at FROM (
            SELECT i.run, i.stored_at, greatest(i.after, had.seq) AS after, i.last
            FROM imported i LEFT JOIN had ON had.run = i.run
            WHERE i.stored_at > $1 AND (had.seq IS NULL OR had.seq < i.last)
            ORDER BY i.stored_at, i.run, i.last LIMIT $4) i
          CROSS JOIN LATERAL (SELECT seq FROM events
            WHERE run = i.run AND seq > i.after AND seq <= i.last ORDER BY seq LIMIT $4) e) n
        JOIN runs r ON r.id = n.run ORDER BY n.stored_at, n.run, n.seq LIMIT $4";
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let found = tx.query(sql, &[&after, &runs, &seqs, &more]).await?;
    let has_more = found.len() > limit;
    let latest = place.at;
    let mut items: Vec<Told> = Vec::with_capacity(found.len());
    for row in found.iter().take(limit) {
        let (run, seq, at): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        place.take(run, seq, at);
        if is_far {
            // More may have the same stamp, or a later one that is before what was told already.
            place.settle((at - 1).min(settled));
            place.at = at;
        } else {
            place.at = place.at.max(at);
        }
        items.push(Told {
            run: rows::run_id(row.try_get(3)?)?,
            seq: Seq(rows::unsigned(seq)),
            next: place.cursor(),
        });
    }
    if is_far && !has_more {
        place.settle(settled);
        place.at = place.at.max(latest);
    }
    let next = tx.shared.places.keep(place, tx.shared.env.random_u64());
    if let Some(last) = items.last_mut() {
        last.next = next.clone();
    }
    Ok(News {
        items,
        next,
        has_more,
    })
}

/// Up to which stamp all is told that is seen from now on: what is not seen by then was never committed, or is still
/// under way and known to the server. Its row there is gone only once what it wrote can be seen.
async fn settled(tx: &Tx, now: i64) -> Result<i64, Halt> {
    // A transaction that only reads has no number yet; one that takes its time stamps nothing.
    let sql = "SELECT (extract(epoch FROM min(xact_start)) * 1000000)::int8 FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xid IS NOT NULL
          AND application_name LIKE 'logreel%' AND application_name NOT LIKE 'logreel long%'";
    let oldest: Option<i64> = tx.one(sql, &[]).await?.try_get(0)?;
    let guarded = now - tx.shared.guard;
    Ok(oldest.map_or(guarded, |oldest| guarded.min(oldest - 1)))
}

/// The database's clock; before it, what was imported and not stamped yet is stamped.
async fn look_up_now(tx: &Tx) -> Result<i64, Halt> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM imported WHERE stored_at IS NULL), {CLOCK}");
    let row = tx.one(&sql, &[]).await?;
    if row.try_get(0)? {
        stamp_imports(tx).await?;
    }
    Ok(row.try_get(1)?)
}

/// Stamps what was imported: it can be seen, so its transaction is over.
pub(super) async fn stamp_imports(tx: &Tx) -> Result<(), Halt> {
    let sql =
        format!("UPDATE imported SET stored_at = greatest({CLOCK}, $1) WHERE stored_at IS NULL");
    tx.exec(&sql, &[&tx.shared.clock.floor()]).await?;
    Ok(())
}

/// The latest stamp of all.
pub(super) async fn last(tx: &Tx) -> Result<Option<i64>, Halt> {
    let sql = "SELECT greatest((SELECT max(stored_at) FROM events),
        (SELECT max(stored_at) FROM imported))";
    Ok(tx.one(sql, &[]).await?.try_get(0)?)
}

/// Where whoever wants to hear only of what comes goes on. The clock was asked first: what is stamped after it
/// is not taken for known.
async fn end(tx: &Tx, now: i64) -> Result<News, Halt> {
    let sql = "SELECT run, max(seq), max(stored_at) FROM (
          SELECT run, seq, stored_at FROM events WHERE stored_at > $1
          UNION ALL SELECT run, last, stored_at FROM imported WHERE stored_at > $1) had
        GROUP BY run";
    let mut place = Place {
        settled: settled(tx, now).await?,
        at: now,
        seen: BTreeMap::new(),
    };
    for row in tx.query(sql, &[&place.settled]).await? {
        place.take(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    }
    Ok(News {
        items: Vec::new(),
        next: tx.shared.places.keep(place, tx.shared.env.random_u64()),
        has_more: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: i64 = super::GUARD.as_micros() as i64;

    #[test]
    fn a_cursor_reads_back_and_forgets_what_is_settled() {
        let mut place = Place::default();
        place.take(7, 3, 1_000);
        place.take(8, 1, 2_000 + GUARD);
        place.take(90, 4, 2_000);
        place.settle(1_500);
        place.at = 2_000 + GUARD;
        let read = Place::parse(&place.cursor()).unwrap();
        assert_eq!((read.settled, read.at), (1_500, 2_000 + GUARD));
        assert_eq!(read.seen.keys().collect::<Vec<_>>(), [&8, &90]);
        for (run, seq, true_at) in [(8, 1, 2_000 + GUARD), (90, 4, 2_000)] {
            let (read_seq, at) = read.seen[&run];
            assert_eq!(read_seq, seq);
            assert!((true_at..true_at + 1_000_000).contains(&at), "{at}");
        }
        let most = i64::MAX;
        for wrong in [
            "x".to_owned(),
            "12".to_owned(),
            "p2".to_owned(),
            "p2.5".to_owned(),
            "p2.-4.5".to_owned(),
            "p2.5.5.1-2".to_owned(),
            format!("p2.5.5.1-2-{most:x}"),
            format!("p2.5.5.1-2-0.{most:x}-2-0"),
        ] {
            assert_eq!(Place::parse(&Cursor(wrong.clone())), None, "{wrong}");
        }
    }

    #[test]
    fn a_cursor_is_short_however_many_runs_there_are() {
        let places = Places::default();
        let mut place = Place::default();
        for run in 0..100_000 {
            place.take(run, 1_000_000, 1_700_000_000_000_000 + run);
        }
        let cursor = places.keep(place.clone(), 7);
        assert!(cursor.0.len() < 100, "{cursor:?}");
        assert_eq!(places.find(&cursor), Some(place.clone()));
        for name in 0..20 {
            places.keep(place.clone(), name);
        }
        assert_eq!(places.lock().len(), 5, "what is remembered is bounded");
        assert_eq!(places.find(&cursor).map(|it| it.seen.len()), Some(0));
        // Elsewhere nothing is left out, so that it is told again.
        let elsewhere = Places::default().find(&cursor).expect("a place");
        assert_eq!(elsewhere.settled, place.settled);
        assert!(elsewhere.seen.is_empty());
        let mut few = Place::default();
        for run in 0..RUNS as i64 {
            few.take(run * 1_000_000, 1_000_000, 1_700_000_000_000_000 + run);
        }
        few.settle(1_700_000_000_000_000 - GUARD);
        let length = few.cursor().0.len();
        assert!(length < 6_000, "{length}");
    }
}
