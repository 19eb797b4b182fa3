//! Lists of runs, newest first, and of sessions.

use logreel_core::{Session, Status, Timestamp};
use tokio_postgres::types::{ToSql, Type};

use super::claimable::gone;
use super::failure::Halt;
use super::limit::Places;
use super::owners::{Life, OWNER};
use super::rows;
use super::writer::Tx;
use crate::words::words;
use crate::{Cursor, Error, Filter, RunPage, SessionInfo, Stats};

pub(super) async fn list(
    tx: &Tx,
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
    let passes = passes(tx, filter).await?;
    let (mut items, mut places) = (Vec::with_capacity(limit), Places::default());
    loop {
        let wanted = limit - items.len();
        let mut ids = Vec::new();
        for pass in &passes {
            ids.extend(select(tx, filter, pass, before, wanted).await?);
        }
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids.dedup();
        let more = ids.len() > wanted;
        ids.truncate(wanted);
        // Deleted since it was selected: as if it had been deleted before.
        for stored in rows::load_ids(tx, &ids).await? {
            let entry = stored.entry_among(tx, &mut places).await?;
            // An owner that may be gone can hold a run all the same: it only stopped, or was heard since.
            if filter.has_status(&entry) {
                items.push(entry);
            }
        }
        let last = ids.last().filter(|_| more).copied();
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
    /// At work, and held by one of these.
    HeldBy(Vec<i64>),
}

async fn passes(tx: &Tx, filter: &Filter) -> Result<Vec<Pass>, Halt> {
    if filter.status.is_empty() && !filter.orphaned {
        return Ok(vec![Pass::All]);
    }
    let mut passes: Vec<Pass> = filter.status.iter().copied().map(Pass::Of).collect();
    if filter.orphaned {
        let gone = gone(tx, true).await?;
        passes.extend(Some(gone).filter(|gone| !gone.is_empty()).map(Pass::HeldBy));
    }
    Ok(passes)
}

/// Up to one more than `limit` ids, newest first. Labels and words have tables of their own, in the order of
/// runs, so that the newest of them are found there and the rest is not looked at.
async fn select(
    tx: &Tx,
    filter: &Filter,
    pass: &Pass,
    before: i64,
    limit: usize,
) -> Result<Vec<i64>, Halt> {
    let sought: Vec<String> = filter.search.iter().flat_map(|it| words(it)).collect();
    let sought: Vec<String> = sought.iter().map(|word| rows::cut(word)).collect();
    let sought = Some(sought).filter(|words| !words.is_empty());
    let (from, id) = match (filter.labels.as_slice(), &sought) {
        ([_, ..], _) => ("labels", "labels.run"),
        ([], Some(_)) => ("search", "search.run"),
        ([], None) => ("runs", "runs.id"),
    };
    let mut query = Query::default();
    query.by(&format!("{id} < "), Some(before), Type::INT8);
    for (index, (name, value)) in filter.labels.iter().enumerate() {
        let (name, value) = (Some(rows::plain(name)), Some(rows::plain(value)));
        if index == 0 {
            query.by("labels.k = ", name, Type::TEXT);
            query.by("labels.v = ", value, Type::TEXT);
        } else {
            let also = format!("EXISTS (SELECT 1 FROM labels l WHERE l.run = {id} AND l.k = ");
            query.by(&also, name, Type::TEXT);
            query.by("l.v = ", value, Type::TEXT);
            query.conditions.push(')');
        }
    }
    if from == "search" {
        query.by("search.words @> ", sought, Type::TEXT_ARRAY);
    } else if sought.is_some() {
        let also = format!("EXISTS (SELECT 1 FROM search s WHERE s.run = {id} AND s.words @> ");
        query.by(&also, sought, Type::TEXT_ARRAY);
        query.conditions.push(')');
    }
    let of_tables = query.values.len();
    query.by_row(filter);
    match pass {
        Pass::All => {}
        Pass::Of(status) => query.by("runs.status = ", Some(status.as_str()), Type::TEXT),
        Pass::HeldBy(owners) => {
            let held = format!(
                "runs.status IN ('planning', 'executing', 'verifying')
                 AND {id} IN (SELECT q.run FROM queue q WHERE q.owner = ANY("
            );
            query.by(&held, Some(owners.clone()), Type::INT8_ARRAY);
            query.conditions.push_str("))");
        }
    }
    let of_tables_alone = query.values.len() == of_tables;
    let join = match from {
        "runs" => String::new(),
        _ if of_tables_alone => String::new(),
        _ => format!(" JOIN runs ON runs.id = {id}"),
    };
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    query.values.push((Box::new(more), Type::INT8));
    let sql = match (from, of_tables_alone) {
        ("search", true) => WORDS.to_owned(),
        _ => format!(
            "SELECT {id} FROM {from}{join} WHERE {} ORDER BY {id} DESC LIMIT ${}",
            query.conditions,
            query.values.len()
        ),
    };
    let values: Vec<(&(dyn ToSql + Sync), Type)> = query
        .values
        .iter()
        .map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()))
        .collect();
    let found = tx.plan_and_query(&sql, &values).await?;
    let ids = found.iter().map(|row| row.try_get(0));
    let mut ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
    ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
    Ok(ids)
}

/// Words alone. The database cannot know how rare a word is: it would read all runs for one that is in few of
/// them, or fetch all that have a common one. So the newest runs are read first; only when they do not fill the
/// page is the index asked, for a word that is then known to be rare.
const WORDS: &str = "WITH edge AS MATERIALIZED (
      SELECT min(run) AS run FROM
        (SELECT run FROM search WHERE run < $1 ORDER BY run DESC LIMIT 8000) newest),
    older AS MATERIALIZED (SELECT run FROM search WHERE words @> $2)
    (SELECT run FROM search
     WHERE run < $1 AND run >= (SELECT run FROM edge) AND words @> $2 ORDER BY run DESC)
    UNION ALL
    (SELECT run FROM older WHERE run < (SELECT run FROM edge) ORDER BY run DESC)
    LIMIT $3";

#[derive(Default)]
struct Query {
    conditions: String,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Query {
    fn by(
        &mut self,
        condition: &str,
        value: Option<impl ToSql + Sync + Send + 'static>,
        kind: Type,
    ) {
        let Some(value) = value else { return };
        self.values.push((Box::new(value), kind));
        let and = if self.conditions.is_empty() {
            ""
        } else {
            " AND "
        };
        let number = self.values.len();
        self.conditions
            .push_str(&format!("{and}{condition}${number}"));
    }

    /// What the run's own row says.
    fn by_row(&mut self, filter: &Filter) {
        let digest = |digest: &logreel_core::Digest| digest.as_bytes().to_vec();
        let parent = filter.parent.map(|run| run.to_string());
        let state = filter.final_state_digest.as_ref().map(digest);
        let session = filter.session.as_ref().map(|it| rows::plain(it.as_str()));
        let spec = filter.spec_digest.as_ref().map(digest);
        let agent = filter.agent.as_deref().map(rows::plain);
        let since = filter.since.map(|it| it.as_micros());
        let before = filter.before.map(|it| it.as_micros());
        self.by("runs.parent = ", parent, Type::TEXT);
        self.by("runs.final_state_digest = ", state, Type::BYTEA);
        self.by("runs.session = ", session, Type::TEXT);
        self.by("runs.spec_digest = ", spec, Type::BYTEA);
        self.by("runs.agent = ", agent, Type::TEXT);
        self.by("runs.created_at >= ", since, Type::INT8);
        self.by("runs.created_at < ", before, Type::INT8);
    }
}

/// Every session, or this one; the one with the latest run first, closed ones without runs at the end.
pub(super) async fn sessions(tx: &Tx, only: Option<&Session>) -> Result<Vec<SessionInfo>, Halt> {
    let which = match only {
        Some(_) => "session = $1::text",
        None => "session IS NOT NULL AND $1::text IS NULL",
    };
    let sql = format!(
        "SELECT s.session, s.runs, a.run, s.created_at, c.session IS NOT NULL, a.ended, {OWNER}
         FROM (
           SELECT g.session, g.runs, g.last, r.created_at FROM (
             SELECT session, count(*) AS runs, max(id) AS last FROM runs
             WHERE {which} GROUP BY session) g
           JOIN runs r ON r.id = g.last
           UNION ALL
           SELECT session, 0, 0, NULL FROM closed
           WHERE {which} AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session = closed.session)) s
         LEFT JOIN (
           SELECT active.session, runs.run, queue.owner,
             runs.status IN ('completed', 'failed', 'cancelled') AS ended
           FROM active JOIN runs ON runs.id = active.run JOIN queue ON queue.run = active.run) a
           ON a.session = s.session
         LEFT JOIN owners o ON o.id = a.owner
         LEFT JOIN closed c ON c.session = s.session
         ORDER BY s.last DESC, s.session"
    );
    let only = only.map(|session| rows::plain(session.as_str()));
    let now = tx.shared.clock.lease_now();
    let mut sessions = Vec::new();
    for row in tx.query(&sql, &[&only, &now]).await? {
        let name: &str = row.try_get(0)?;
        let mut active: Option<&str> = row.try_get(2)?;
        if row.try_get::<_, Option<bool>>(5)? == Some(true) {
            // A dead driver of an ended run keeps nobody out.
            let beats = match row.try_get::<_, Option<i64>>(6)? {
                Some(_) => tx.shared.owners.read(&row, 6)?.1 == Life::Beating,
                None => false,
            };
            active = active.filter(|_| beats);
        }
        sessions.push(SessionInfo {
            session: Session::new(name).map_err(|error| Error::corrupt(error.to_string()))?,
            runs: rows::unsigned(row.try_get(1)?),
            active: active.map(rows::run_id).transpose()?,
            last_created_at: row
                .try_get::<_, Option<i64>>(3)?
                .map(Timestamp::from_micros),
            closed: row.try_get(4)?,
        });
    }
    Ok(sessions)
}

pub(super) async fn stats(tx: &Tx) -> Result<Stats, Halt> {
    let mut runs: Vec<(Status, u64)> = Status::ALL.into_iter().map(|it| (it, 0)).collect();
    let sql = "SELECT status, count(*) FROM runs GROUP BY status";
    for row in tx.query(sql, &[]).await? {
        let name: &str = row.try_get(0)?;
        let count = rows::unsigned(row.try_get(1)?);
        if let Some(of) = runs.iter_mut().find(|(status, _)| status.as_str() == name) {
            of.1 = count;
        }
    }
    // `seq` is dense, so the heads count the events without reading them; what a fork shares is
    // counted where it is.
    let sql = "SELECT (coalesce((SELECT sum(head_seq) FROM live), 0)
        + coalesce((SELECT sum(head_seq) FROM runs WHERE head_seq IS NOT NULL), 0)
        - coalesce((SELECT sum((SELECT min(seq) - 1 FROM events e WHERE e.run = r.id))
            FROM runs r WHERE r.parent IS NOT NULL AND r.relation <> 'child'), 0))::int8,
        (SELECT count(*) FROM blobs),
        (SELECT coalesce(sum(octet_length(bytes)), 0)::int8 FROM blobs),
        (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_class c
         WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace)";
    let row = tx.one(sql, &[]).await?;
    Ok(Stats {
        runs,
        events: rows::unsigned(row.try_get(0)?),
        blobs: rows::unsigned(row.try_get(1)?),
        blob_bytes: rows::unsigned(row.try_get(2)?),
        disk_bytes: Some(rows::unsigned(row.try_get(3)?)),
    })
}
