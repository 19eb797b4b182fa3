//! What was stored of all runs, in the order of the database's clock (SEMANTICS 11).
//!
//! What was stamped first may be seen later: two transactions commit in another order than they began. So a
//! reader goes back by a guard each time, and leaves out what it had. Within a run events become visible in
//! their order, so that what it had of a run is one number; the cursor holds the latest stamp and, for every
//! run with an event in the guard before it, that number. A transaction that appends is given up long before
//! the guard is over.

use std::collections::BTreeMap;

use logreel_core::Seq;

use super::failure::Halt;
use super::rows;
use super::schema::CLOCK;
use super::writer::Tx;
use crate::{Cursor, Error, News, Since, Told};

/// How far a reader goes back, in microseconds: statements are given up after 8 s (`connect`).
const GUARD: i64 = 20_000_000;
/// Told of a cursor of ours.
const MARK: &str = "p1";

/// Up to where all runs were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    /// The latest stamp that was seen.
    at: i64,
    /// Runs by their integer id: what was seen of them last, and its stamp.
    seen: BTreeMap<i64, (i64, i64)>,
}

impl Place {
    fn take(&mut self, run: i64, seq: i64, at: i64) {
        self.at = self.at.max(at);
        let seen = self.seen.entry(run).or_insert((seq, at));
        *seen = (seen.0.max(seq), seen.1.max(at));
    }

    /// What is further back than the guard is not read again.
    fn cursor(&self) -> Cursor {
        let mut text = format!("{MARK}.{:x}", self.at);
        for (run, (seq, at)) in &self.seen {
            let back = self.at - at;
            if back <= GUARD {
                text.push_str(&format!(".{run:x}-{seq:x}-{back:x}"));
            }
        }
        Cursor(text)
    }

    fn parse(cursor: &Cursor) -> Option<Self> {
        let number = |text: &str| i64::from_str_radix(text, 16).ok().filter(|it| *it >= 0);
        let mut parts = cursor.0.split('.');
        if parts.next()? != MARK {
            return None;
        }
        let at = number(parts.next()?)?;
        let mut place = Self {
            at,
            seen: BTreeMap::new(),
        };
        for part in parts {
            let mut numbers = part.split('-').map(number);
            let (run, seq, back) = (numbers.next()??, numbers.next()??, numbers.next()??);
            place.seen.insert(run, (seq, at - back));
        }
        Some(place)
    }
}

pub(super) async fn news(tx: &Tx, since: &Since, limit: usize) -> Result<News, Halt> {
    let limit = limit.max(1);
    let mut place = match since {
        Since::Beginning => Place::default(),
        Since::Now => return now(tx).await,
        Since::After(cursor) => {
            let sql = format!("SELECT {CLOCK}");
            let now: i64 = tx.one(&sql, &[]).await?.try_get(0)?;
            // Of another store: nothing would be heard before this one has come as far.
            let place = Place::parse(cursor).filter(|place| place.at <= now + GUARD);
            place.ok_or_else(|| Error::InvalidCursor(cursor.0.clone()))?
        }
    };
    let (runs, seqs): (Vec<i64>, Vec<i64>) = place
        .seen
        .iter()
        .map(|(run, (seq, _))| (*run, *seq))
        .unzip();
    let sql = "SELECT e.run, e.seq, e.stored_at, r.run FROM events e
          JOIN runs r ON r.id = e.run
          LEFT JOIN unnest($2::int8[], $3::int8[]) had(run, seq) ON had.run = e.run
        WHERE e.stored_at > $1 AND (had.seq IS NULL OR e.seq > had.seq)
        ORDER BY e.stored_at, e.run, e.seq LIMIT $4";
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let found = tx
        .query(sql, &[&(place.at - GUARD), &runs, &seqs, &more])
        .await?;
    let has_more = found.len() > limit;
    let mut items = Vec::with_capacity(found.len());
    for row in found.iter().take(limit) {
        let (run, seq): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        place.take(run, seq, row.try_get(2)?);
        items.push(Told {
            run: rows::run_id(row.try_get(3)?)?,
            seq: Seq(rows::unsigned(seq)),
            next: place.cursor(),
        });
    }
    Ok(News {
        items,
        next: place.cursor(),
        has_more,
    })
}

/// Where whoever wants to hear only of what comes goes on.
async fn now(tx: &Tx) -> Result<News, Halt> {
    let sql = format!(
        "SELECT run, max(seq), max(stored_at) FROM events WHERE stored_at > {CLOCK} - $1::int8
         GROUP BY run"
    );
    // The clock first: what is stamped after it is not taken for known.
    let clock = format!("SELECT {CLOCK}");
    let mut place = Place {
        at: tx.one(&clock, &[]).await?.try_get(0)?,
        seen: BTreeMap::new(),
    };
    for row in tx.query(&sql, &[&(2 * GUARD)]).await? {
        place.take(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    }
    Ok(News {
        items: Vec::new(),
        next: place.cursor(),
        has_more: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_forgets_what_the_guard_passed() {
        let mut place = Place::default();
        place.take(7, 3, 1_000);
        place.take(8, 1, 2_000 + GUARD);
        let read = Place::parse(&place.cursor()).unwrap();
        assert_eq!(read.at, 2_000 + GUARD);
        assert_eq!(read.seen.keys().collect::<Vec<_>>(), [&8]);
        assert_eq!(read.seen[&8], (1, 2_000 + GUARD));
        for wrong in ["x", "12", "p1", "p1.-4", "p1.5.1-2"] {
            assert_eq!(Place::parse(&Cursor(wrong.to_owned())), None, "{wrong}");
        }
    }
}
