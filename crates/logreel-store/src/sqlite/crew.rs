//! Who drives, what they are there for, and what waits for them.

use std::time::Duration;

use logreel_core::{FORMAT, RunId, Timestamp};
use rusqlite::{Connection, params};

use super::failure::Halt;
use super::open::Shared;
use super::owners::Life;
use super::rows;
use super::writer::Tx;
use crate::{Backlog, Duty, OwnerId, OwnerInfo};

/// Keeps what an owner is there for.
pub(super) fn assign(tx: &mut Tx<'_>, owner: OwnerId, duty: &Duty) -> Result<(), Halt> {
    tx.shared.owners.joined(tx.conn, owner)?;
    let duty = serde_json::to_string(duty).expect("texts and numbers always serialize");
    tx.conn
        .prepare_cached("UPDATE owners SET duty = ?2 WHERE id = ?1")?
        .execute(params![owner.0.cast_signed(), duty])?;
    Ok(())
}

pub(super) fn owners(conn: &Connection, shared: &Shared) -> Result<Vec<OwnerInfo>, Halt> {
    let now = shared.env.now();
    let sql = "SELECT o.id, o.duty, o.beat_at, (SELECT count(*) FROM live l WHERE l.owner = o.id)
        FROM owners o ORDER BY o.id";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query([])?;
    let mut owners = Vec::new();
    while let Some(row) = found.next()? {
        let id = OwnerId(row.get::<_, i64>(0)?.cast_unsigned());
        let Some((owner, life)) = shared.owners.look_up(conn, id)? else {
            continue;
        };
        let duty: Option<String> = row.get(1)?;
        let beat_at: Option<i64> = row.get(2)?;
        let info = OwnerInfo {
            owner,
            // What a newer build said about itself may not be understood here.
            duty: duty.and_then(|text| serde_json::from_str(&text).ok()),
            running: rows::unsigned(row.get(3)?),
            alive: life == Life::Beating,
            silent: beat_at.map(|at| now.since(Timestamp::from_micros(at))),
        };
        if !info.owner.is_external() && (life != Life::Dead || info.running > 0) {
            owners.push(info);
        }
    }
    Ok(owners)
}

pub(super) fn backlog(conn: &Connection, shared: &Shared) -> Result<Backlog, Halt> {
    let now = shared.env.now();
    let sql = format!(
        "SELECT count(*) OVER (), r.run, iif(l.ready_at > 0, l.ready_at, l.updated_at) AS since
         FROM live l JOIN runs r ON r.id = l.run
         WHERE l.owner IS NULL AND l.ready_at IS NOT NULL AND l.ready_at <= ?1
           AND r.needs <= {FORMAT} AND NOT r.read_only AND NOT r.erased
           AND r.kind NOT IN ('external', 'record')
         ORDER BY since LIMIT 1"
    );
    let mut backlog = Backlog::default();
    let mut statement = conn.prepare_cached(&sql)?;
    let mut ready = statement.query([now.as_micros()])?;
    if let Some(row) = ready.next()? {
        backlog.ready = rows::unsigned(row.get(0)?);
        let since = now.since(Timestamp::from_micros(row.get(2)?));
        backlog.oldest_ready = Some((run_of(row)?, since));
    }
    for info in owners(conn, shared)?.iter().filter(|info| !info.alive) {
        let sql = "SELECT count(*) OVER (), r.run FROM live l JOIN runs r ON r.id = l.run
            WHERE l.owner = ?1 AND r.status IN ('planning', 'executing', 'verifying')
            ORDER BY l.run LIMIT 1";
        let mut statement = conn.prepare_cached(sql)?;
        let mut held = statement.query([info.owner.id.0.cast_signed()])?;
        if let Some(row) = held.next()? {
            backlog.orphans += rows::unsigned(row.get(0)?);
            let silent = info.silent.unwrap_or_default();
            let oldest = backlog.oldest_orphan.map(|(_, longest)| longest);
            if oldest.is_none_or(|longest| silent > longest) {
                backlog.oldest_orphan = Some((run_of(row)?, silent));
            }
        }
    }
    let sql = format!(
        "SELECT b.at - a.at FROM (SELECT id FROM runs ORDER BY id DESC LIMIT {}) n
         JOIN events a ON a.run = n.id AND a.seq = 1 AND a.epoch = 0
         JOIN events b ON b.run = n.id AND b.seq = 2 AND b.epoch > 0
         ORDER BY 1",
        Backlog::NEWEST
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let claims = statement.query_map([], |row| row.get::<_, i64>(0))?;
    for micros in claims {
        backlog
            .claims
            .push(Duration::from_micros(rows::unsigned(micros?)));
    }
    Ok(backlog)
}

fn run_of(row: &rusqlite::Row<'_>) -> Result<RunId, Halt> {
    let text: String = row.get(1)?;
    Ok(rows::run_id(&text)?)
}
