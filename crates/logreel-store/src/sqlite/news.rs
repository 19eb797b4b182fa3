//! What was stored of all runs, by `events.pos`: it grows with every event and is never given twice, and
//! one writer at a time gives it, so that nothing appears before what was already read.

use rusqlite::{Connection, params};

use super::failure::Halt;
use super::rows;
use crate::{Cursor, Error, News, Since, Told};
use logreel_core::Seq;

pub(super) fn news(conn: &Connection, since: &Since, limit: usize) -> Result<News, Halt> {
    let after = match since {
        Since::Beginning => 0,
        Since::Now => last(conn)?,
        Since::After(cursor) => match place(cursor)? {
            // Of another store: nothing would be heard before this one has come as far.
            after if after > last(conn)? => {
                return Err(Halt::Refused(Error::InvalidCursor(cursor.0.clone())));
            }
            after => after,
        },
    };
    let sql = "SELECT pos, seq, (SELECT run FROM runs WHERE id = events.run) FROM events
        WHERE pos > ?1 ORDER BY pos LIMIT ?2";
    let mut statement = conn.prepare_cached(sql)?;
    let limit = limit.max(1);
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut found = statement.query(params![after, more])?;
    let mut items = Vec::new();
    let (mut end, mut has_more) = (after, false);
    while let Some(row) = found.next()? {
        if items.len() == limit {
            has_more = true;
            break;
        }
        end = row.get(0)?;
        items.push(Told {
            run: rows::run_id(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)?,
            seq: Seq(rows::unsigned(row.get(1)?)),
            next: Cursor(end.to_string()),
        });
    }
    Ok(News {
        items,
        next: Cursor(end.to_string()),
        has_more,
    })
}

/// The latest place that was given; what had it may be deleted.
fn last(conn: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT max(ifnull((SELECT max(pos) FROM events), 0),
        (SELECT value FROM meta WHERE key = 'pos_floor'))";
    conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

fn place(cursor: &Cursor) -> Result<i64, Error> {
    let place = cursor.0.parse().ok().filter(|place| *place >= 0);
    place.ok_or_else(|| Error::InvalidCursor(cursor.0.clone()))
}
