//! Reading one run: its log in pages, its row, its key, its blobs.

use logreel_core::codec::StoredBody;
use logreel_core::{Digest, FOLD_VERSION, RunId, RunKey, Seq};

use super::failure::Halt;
use super::fork;
use super::rows::{self, RECORD};
use super::writer::Tx;
use crate::{Error, EventPage};

/// A page ends after this many bytes of bodies, so that reading a long log needs little memory.
const PAGE_BYTES: usize = 1 << 20;

/// The first of the events that fit, at most `limit` of them. Bodies of more than a page's bytes before an event
/// keep it out: what is not shown is not sent.
pub(super) fn bounded(condition: &str, limit: &str) -> String {
    format!(
        "SELECT {RECORD} FROM (
           SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
           FROM (SELECT {RECORD} FROM events WHERE {condition} ORDER BY seq LIMIT {limit}) page) page
         WHERE before < {PAGE_BYTES} OR before IS NULL ORDER BY seq"
    )
}

pub(super) async fn page(tx: &Tx, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Halt> {
    let from = from.max(Seq::FIRST);
    let limit = limit.max(1);
    let sql = bounded(
        "run = (SELECT id FROM runs WHERE run = $1) AND seq >= $2",
        "$3",
    );
    let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let first = i64::try_from(from.0).unwrap_or(i64::MAX);
    let name = run.to_string();
    let found = tx.query(&sql, &[&name, &first, &more.min(10_000)]).await?;
    let Some(id) = rows::id_of(tx, run).await? else {
        return Err(Error::NotFound(*run).into());
    };
    let starts_here = match found.first() {
        Some(row) => rows::unsigned(row.try_get(0)?) == from.0,
        None => true,
    };
    if !starts_here || fork::is_imported_whole(tx, id).await? {
        return page_of_others(tx, id, run, from, limit).await;
    }
    let mut items = Vec::with_capacity(found.len());
    for row in found.iter().take(limit) {
        items.push(rows::record(row)?);
    }
    let next = items.last().map_or(from, |last| last.seq.next());
    let has_more = match items.is_empty() {
        true => false,
        false if found.len() > limit => true,
        false => {
            let sql = "SELECT 1 FROM events WHERE run = $1 AND seq = $2";
            tx.opt(sql, &[&id, &next.0.cast_signed()]).await?.is_some()
        }
    };
    Ok(EventPage {
        items,
        next,
        has_more,
    })
}

/// A page of a log that begins with events of another run.
async fn page_of_others(
    tx: &Tx,
    id: i64,
    run: &RunId,
    from: Seq,
    limit: usize,
) -> Result<EventPage, Halt> {
    let segments = fork::segments(tx, id, *run).await?;
    let mut pages = fork::Pages::new(*run, &segments, from);
    let mut items = Vec::new();
    let mut bytes = 0;
    while let Some(records) = pages.next(tx).await? {
        for record in records {
            if items.len() >= limit || bytes >= PAGE_BYTES {
                return Ok(EventPage {
                    next: record.seq,
                    items,
                    has_more: true,
                });
            }
            if let StoredBody::Text(text) = &record.body {
                bytes += text.len();
            }
            items.push(record);
        }
    }
    Ok(EventPage {
        next: items.last().map_or(from, |last| last.seq.next()),
        items,
        has_more: false,
    })
}

pub(super) async fn key(tx: &Tx, run: &RunId) -> Result<Option<RunKey>, Halt> {
    let sql = "SELECT key FROM runs WHERE run = $1";
    match tx.opt(sql, &[&run.to_string()]).await? {
        None => Err(Error::NotFound(*run).into()),
        Some(row) => Ok(rows::run_key(run, row.try_get(0)?)?),
    }
}

/// A blob is found only through a reference, or because a context node that is follows it.
pub(super) async fn blob(tx: &Tx, digest: &Digest) -> Result<Option<Vec<u8>>, Halt> {
    let sql = "SELECT bytes FROM blobs WHERE digest = $1";
    let found = tx.opt(sql, &[&digest.as_bytes().as_slice()]).await?;
    let Some(row) = found else {
        return Ok(None);
    };
    let bytes: Vec<u8> = row.try_get(0)?;
    if Digest::of(&bytes) != *digest {
        return Err(Error::corrupt(format!("the bytes of blob {digest}")).into());
    }
    Ok(Some(bytes))
}

/// Runs by a prefix of their id, or by its last 8 digits, newest first.
pub(super) async fn find(tx: &Tx, prefix: &str, limit: usize) -> Result<Vec<RunId>, Halt> {
    let prefix = prefix.strip_prefix("run_").unwrap_or(prefix);
    if !prefix
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
    {
        return Ok(Vec::new());
    }
    // `~` sorts after every character of an id.
    let sql = "SELECT run FROM (
          SELECT id, run FROM runs WHERE run >= $1 AND run < $2
          UNION SELECT id, run FROM runs WHERE short = $3) found
        ORDER BY id DESC LIMIT $4";
    let (first, last) = (format!("run_{prefix}"), format!("run_{prefix}~"));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut runs = Vec::new();
    for row in tx.query(sql, &[&first, &last, &prefix, &limit]).await? {
        runs.push(rows::run_id(row.try_get(0)?)?);
    }
    Ok(runs)
}

/// Which columns that runs are listed by are not what the row says.
pub(super) async fn misfiled(tx: &Tx, run: &RunId) -> Result<Option<String>, Halt> {
    let stored = rows::lock(tx, run).await?;
    let sql = "SELECT fold_version, status, session, agent, kind, parent, relation, spec_digest,
          final_state_digest FROM runs WHERE id = $1";
    let row = tx.one(sql, &[&stored.id]).await?;
    // What an older build wrote is written anew with the run's next event.
    if row.try_get::<_, i64>(0)? != i64::from(FOLD_VERSION) {
        return Ok(None);
    }
    let facts = &stored.row.facts;
    let parent = facts.parent.as_ref();
    let texts = [
        ("status", Some(stored.row.status().as_str().to_owned())),
        (
            "session",
            facts.session.as_ref().map(|it| rows::plain(it.as_str())),
        ),
        ("agent", Some(rows::plain(&facts.agent))),
        ("kind", Some(facts.kind.as_str().to_owned())),
        ("parent", parent.map(|it| it.run.to_string())),
        (
            "relation",
            parent.map(|it| rows::relation_name(it.relation).to_owned()),
        ),
    ];
    let wrong = |column: &str| {
        Ok(Some(format!(
            "the column `{column}` of its row is not what the row says"
        )))
    };
    for (column, said) in texts {
        if row.try_get::<_, Option<String>>(column)? != said {
            return wrong(column);
        }
    }
    let end = facts.ended.as_ref().map(|ended| ended.final_state_digest);
    let digests = [
        ("spec_digest", Some(facts.spec_digest)),
        ("final_state_digest", end),
    ];
    for (column, said) in digests {
        let stored: Option<&[u8]> = row.try_get(column)?;
        if stored != said.as_ref().map(|it| it.as_bytes().as_slice()) {
            return wrong(column);
        }
    }
    Ok(None)
}
