//! Who drives, what they are there for, and what waits for them.

use logreel_core::FORMAT;

use super::failure::Halt;
use super::owners::{Life, OWNER, OWNER_COLUMNS};
use super::rows;
use super::writer::Tx;
use crate::env::of_micros;
use crate::{Backlog, Duty, OwnerId, OwnerInfo};

/// Keeps what an owner is there for.
pub(super) async fn assign(tx: &Tx, owner: OwnerId, duty: &Duty) -> Result<(), Halt> {
    let duty = serde_json::to_string(duty).expect("texts and numbers always serialize");
    let sql = "UPDATE owners SET duty = $2 WHERE id = $1";
    tx.exec(sql, &[&owner.0.cast_signed(), &duty]).await?;
    Ok(())
}

pub(super) async fn owners(tx: &Tx) -> Result<Vec<OwnerInfo>, Halt> {
    let sql = format!(
        "SELECT {OWNER}, o.duty, (SELECT count(*) FROM queue q WHERE q.owner = o.id)
         FROM owners o WHERE $1::int8 IS NULL ORDER BY o.id"
    );
    let (none, now): (Option<i64>, _) = (None, tx.shared.clock.lease_now());
    let mut owners = Vec::new();
    for row in tx.query(&sql, &[&none, &now]).await? {
        let (owner, life) = tx.shared.owners.read(&row, 0)?;
        let silent: i64 = row.try_get(6)?;
        let duty: Option<&str> = row.try_get(OWNER_COLUMNS)?;
        let info = OwnerInfo {
            owner,
            // What a newer build said about itself may not be understood here.
            duty: duty.and_then(|text| serde_json::from_str(text).ok()),
            running: rows::unsigned(row.try_get(OWNER_COLUMNS + 1)?),
            alive: life == Life::Beating,
            silent: Some(of_micros(silent)),
        };
        if !info.owner.is_external() && (life != Life::Dead || info.running > 0) {
            owners.push(info);
        }
    }
    Ok(owners)
}

pub(super) async fn backlog(tx: &Tx) -> Result<Backlog, Halt> {
    let mut backlog = Backlog::default();
    let sql = format!(
        "SELECT count(*) OVER (), r.run,
           $1::int8 - CASE WHEN q.ready_at > 0 THEN q.ready_at ELSE l.updated_at END AS age
         FROM queue q JOIN live l ON l.run = q.run JOIN runs r ON r.id = q.run
         WHERE q.owner IS NULL AND q.ready_at IS NOT NULL AND q.ready_at <= $1::int8
           AND r.needs <= {FORMAT} AND NOT r.read_only AND NOT r.erased
           AND r.kind NOT IN ('external', 'record')
         ORDER BY age DESC LIMIT 1"
    );
    let now = tx.shared.clock.now().as_micros();
    if let Some(row) = tx.opt(&sql, &[&now]).await? {
        backlog.ready = rows::unsigned(row.try_get(0)?);
        backlog.oldest_ready = Some((rows::run_id(row.try_get(1)?)?, of_micros(row.try_get(2)?)));
    }
    for info in owners(tx).await?.iter().filter(|info| !info.alive) {
        let sql = "SELECT count(*) OVER (), r.run FROM queue q JOIN runs r ON r.id = q.run
            WHERE q.owner = $1 AND r.status IN ('planning', 'executing', 'verifying')
            ORDER BY q.run LIMIT 1";
        let Some(row) = tx.opt(sql, &[&info.owner.id.0.cast_signed()]).await? else {
            continue;
        };
        backlog.orphans += rows::unsigned(row.try_get(0)?);
        let silent = info.silent.unwrap_or_default();
        let oldest = backlog.oldest_orphan.map(|(_, longest)| longest);
        if oldest.is_none_or(|longest| silent > longest) {
            backlog.oldest_orphan = Some((rows::run_id(row.try_get(1)?)?, silent));
        }
    }
    let sql = format!(
        "SELECT b.at - a.at FROM (SELECT id FROM runs ORDER BY id DESC LIMIT {}) n
         JOIN events a ON a.run = n.id AND a.seq = 1 AND a.epoch = 0
         JOIN events b ON b.run = n.id AND b.seq = 2 AND b.epoch > 0
         ORDER BY 1",
        Backlog::NEWEST
    );
    for row in tx.query(&sql, &[]).await? {
        backlog.claims.push(of_micros(row.try_get(0)?));
    }
    Ok(backlog)
}
