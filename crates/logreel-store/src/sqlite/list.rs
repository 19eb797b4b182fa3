//! Lists of runs, newest first, and of sessions.
//!
//! One condition drives the query through an index that ends in the run's id, so that the newest
//! come first without sorting; the others are checked on the way (`+` keeps them off their index).

use logreel_core::{Session, Status, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::failure::Halt;
use super::lease::gone;
use super::open::{Shared, beside};
use super::rows;
use super::search;
use crate::{Cursor, Error, Filter, OwnerId, RunPage, SessionInfo, Stats};

pub(super) fn list(
    conn: &Connection,
    shared: &Shared,
    filter: &Filter,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Result<RunPage, Halt> {
    let mut before = match cursor {
        None => i64::MAX,
        Some(Cursor(text)) => text
            .parse()
            .map_err(|_| Error::InvalidCursor(text.clone()))?,
    };
    let limit = limit.max(1);
    let passes = passes(conn, shared, filter)?;
    let mut items = Vec::with_capacity(limit);
    loop {
        let wanted = limit - items.len();
        let mut ids = Vec::new();
        for pass in &passes {
            ids.extend(select(conn, filter, pass, before, wanted)?);
        }
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids.dedup();
        let more = ids.len() > wanted;
        ids.truncate(wanted);
        let last = ids.last().filter(|_| more).copied();
        for id in ids {
            // Deleted since it was selected: as if it had been deleted before.
            let Some(stored) = rows::load_id(conn, id)? else {
                continue;
            };
            let entry = stored.entry(conn, shared)?;
            // An owner that does not beat can hold a run all the same: it only stopped.
            if filter.has_status(&entry) {
                items.push(entry);
            }
        }
        match last {
            Some(last) if items.len() < limit => before = last,
            _ => {
                let next = last.map(|last| Cursor(last.to_string()));
                return Ok(RunPage { items, next });
            }
        }
    }
}

/// Which runs a pass over an index finds: it gives the newest of one status only.
enum Pass {
    All,
    Of(Status),
    /// At work, and held by one of these: their ids, as JSON.
    HeldBy(String),
}

fn passes(conn: &Connection, shared: &Shared, filter: &Filter) -> Result<Vec<Pass>, Halt> {
    if filter.status.is_empty() && !filter.orphaned {
        return Ok(vec![Pass::All]);
    }
    let mut passes: Vec<Pass> = filter.status.iter().copied().map(Pass::Of).collect();
    if filter.orphaned {
        let gone = gone(conn, shared)?;
        let held_by = serde_json::to_string(&gone).expect("numbers always serialize");
        passes.extend(Some(held_by).filter(|_| !gone.is_empty()).map(Pass::HeldBy));
    }
    Ok(passes)
}

/// Up to one more than `limit` ids, newest first.
fn select(
    conn: &Connection,
    filter: &Filter,
    pass: &Pass,
    before: i64,
    limit: usize,
) -> Result<Vec<i64>, Halt> {
    let mut query = Query {
        sql: "SELECT r.id FROM ".to_owned(),
        values: Vec::new(),
        driven: false,
    };
    let words = filter.search.as_deref().and_then(search::query);
    let order = match (&words, filter.labels.first()) {
        (Some(words), _) => {
            query
                .sql
                .push_str("search s CROSS JOIN runs r ON r.id = s.rowid WHERE search MATCH ?");
            query.values.push(words.clone().into());
            query.and("s.rowid < ?", before);
            "s.rowid"
        }
        (None, Some((name, value))) => {
            query
                .sql
                .push_str("labels d CROSS JOIN runs r ON r.id = d.run WHERE d.k = ?");
            query.values.push(name.clone().into());
            query.and("d.v = ?", value.clone());
            query.and("d.run < ?", before);
            "d.run"
        }
        (None, None) => {
            query.sql.push_str("runs r WHERE r.id < ?");
            query.values.push(before.into());
            "r.id"
        }
    };
    query.driven = order != "r.id";
    let digest = |digest: &logreel_core::Digest| digest.as_bytes().to_vec();
    // The most selective first: it drives.
    query.by("r.parent", filter.parent.map(|run| run.to_string()));
    query.by(
        "r.final_state_digest",
        filter.final_state_digest.as_ref().map(digest),
    );
    query.by(
        "r.session",
        filter.session.as_ref().map(|it| it.as_str().to_owned()),
    );
    query.by("r.spec_digest", filter.spec_digest.as_ref().map(digest));
    query.by("r.agent", filter.agent.clone());
    match pass {
        Pass::All => {}
        Pass::Of(status) => query.by("r.status", Some(status.as_str().to_owned())),
        Pass::HeldBy(owners) => {
            let held = "+r.status IN ('planning', 'executing', 'verifying') AND r.id IN
                (SELECT run FROM live WHERE owner IN (SELECT value FROM json_each(?)))";
            query.and(held, owners.clone());
        }
    }
    for (name, value) in filter.labels.iter().skip(usize::from(words.is_none())) {
        query.sql.push_str(
            " AND EXISTS (SELECT 1 FROM labels l WHERE l.k = ? AND l.v = ? AND l.run = r.id)",
        );
        query
            .values
            .extend([name.clone().into(), value.clone().into()]);
    }
    if let Some(since) = filter.since {
        // Runs before the first that was created by then cannot match: the list ends there.
        let first: Option<i64> = conn
            .prepare_cached(
                "SELECT id FROM runs WHERE created_by >= ?1 ORDER BY created_by, id LIMIT 1",
            )?
            .query_row([since.as_micros()], |row| row.get(0))
            .optional()?;
        let Some(first) = first else {
            return Ok(Vec::new());
        };
        query.and(&format!("{order} >= ?"), first);
        query.and("r.created_at >= ?", since.as_micros());
    }
    if let Some(before) = filter.before {
        // An import may be older than the runs around it: there is no place where the list would begin.
        query.and("r.created_at < ?", before.as_micros());
    }
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    query
        .sql
        .push_str(&format!(" ORDER BY {order} DESC LIMIT ?"));
    query.values.push(more.into());
    let mut statement = conn.prepare_cached(&query.sql)?;
    let ids = statement.query_map(params_from_iter(query.values), |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

struct Query {
    sql: String,
    values: Vec<Value>,
    /// Something drives it already.
    driven: bool,
}

impl Query {
    fn and(&mut self, condition: &str, value: impl Into<Value>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(condition);
        self.values.push(value.into());
    }

    fn by(&mut self, column: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else { return };
        let keep_off = if self.driven { "+" } else { "" };
        self.and(&format!("{keep_off}{column} = ?"), value);
        self.driven = true;
    }
}

/// Every session, or this one; the one with the latest run first, closed ones without runs at the end.
pub(super) fn sessions(
    conn: &Connection,
    shared: &Shared,
    only: Option<&Session>,
) -> Result<Vec<SessionInfo>, Halt> {
    let which = match only {
        Some(_) => "session = ?1",
        None => "session IS NOT NULL AND ?1 IS NULL",
    };
    let sql = format!(
        "SELECT s.session, s.runs, a.run, s.created_at, c.session IS NOT NULL, a.ended, a.owner
        FROM (
          SELECT g.session, g.runs, g.last, r.created_at FROM (
            SELECT session, count(*) AS runs, max(id) AS last FROM runs
            WHERE {which} GROUP BY session) g
          JOIN runs r ON r.id = g.last
          UNION ALL
          SELECT session, 0, 0, NULL FROM closed
          WHERE {which} AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session = closed.session)) s
        LEFT JOIN (
          SELECT active.session, runs.run, live.owner,
            runs.status IN ('completed', 'failed', 'cancelled') AS ended
          FROM active JOIN runs ON runs.id = active.run JOIN live ON live.run = active.run) a
          ON a.session = s.session
        LEFT JOIN closed c ON c.session = s.session
        ORDER BY s.last DESC, s.session"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([only.map(Session::as_str)])?;
    let mut sessions = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let mut active: Option<String> = row.get(2)?;
        if let (Some(true), Some(owner)) = (row.get(5)?, row.get::<_, Option<i64>>(6)?) {
            // A dead driver of an ended run keeps nobody out.
            if !shared
                .owners
                .is_alive(conn, OwnerId(owner.cast_unsigned()))?
            {
                active = None;
            }
        }
        sessions.push(SessionInfo {
            session: Session::new(&name).map_err(|error| Error::corrupt(error.to_string()))?,
            runs: rows::unsigned(row.get(1)?),
            active: active.map(|run| rows::run_id(&run)).transpose()?,
            last_created_at: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
            closed: row.get(4)?,
        });
    }
    Ok(sessions)
}

pub(super) fn stats(conn: &Connection, shared: &Shared) -> Result<Stats, Halt> {
    let mut counts = conn.prepare_cached("SELECT count(*) FROM runs WHERE status = ?1")?;
    let mut runs = Vec::new();
    for status in Status::ALL {
        let count: i64 = counts.query_row([status.as_str()], |row| row.get(0))?;
        runs.push((status, rows::unsigned(count)));
    }
    // `seq` is dense, so the heads count the events without reading them; what a fork shares is
    // counted where it is.
    let sql = "SELECT ifnull((SELECT sum(head_seq) FROM live), 0)
        + ifnull((SELECT sum(head_seq) FROM runs WHERE head_seq IS NOT NULL), 0)
        - ifnull((SELECT sum((SELECT min(seq) - 1 FROM events e WHERE e.run = r.id))
            FROM runs r WHERE r.parent IS NOT NULL AND r.relation <> 'child'), 0),
        (SELECT count(*) FROM blobs), (SELECT ifnull(sum(length(bytes)), 0) FROM blobs)";
    let (events, blobs, blob_bytes): (i64, i64, i64) = conn
        .prepare_cached(sql)?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let bytes = |suffix| std::fs::metadata(beside(&shared.path, suffix)).map_or(0, |it| it.len());
    Ok(Stats {
        runs,
        events: rows::unsigned(events),
        blobs: rows::unsigned(blobs),
        blob_bytes: rows::unsigned(blob_bytes),
        disk_bytes: Some(bytes("") + bytes("-wal") + bytes("-shm")),
    })
}
