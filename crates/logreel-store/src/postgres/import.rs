//! Logs that were written elsewhere (SEMANTICS 34).
//!
//! An import is handed on as `&mut`: its source may be sent to another thread, and not shared with one.

use logreel_core::{Head, RunId, Seq, Timestamp};

use super::append::{settle, wake_parent, write_facts};
use super::create::{KEY_KEPT, insert_labels, insert_run};
use super::failure::Halt;
use super::rows::{self, Columns, Stored};
use super::schema::CLOCK;
use super::writer::Tx;
use crate::import::Taking;
use crate::tip::Tip;
use crate::{Entry, Error, Import, ImportError};

/// Events that are written in one go.
const CHUNK: usize = 500;

/// Stores the log, or refuses and writes nothing: a refusal ends the transaction.
pub(super) async fn import(tx: &Tx, mut import: Import) -> Result<Entry, Halt<ImportError>> {
    let run = import.row.run;
    // It takes as long as the log is, which no other transaction does.
    tx.batch("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
        .await?;
    let here = match rows::lock(tx, &run).await {
        Ok(stored) => Some(stored),
        Err(Halt::Refused(Error::NotFound(_))) => None,
        Err(other) => return Err(other.lift()),
    };
    check(tx, here.as_ref(), &mut import).await?;
    let taking = Taking::new(
        &import,
        here.as_ref().map(|it| it.row.updated_at),
        tx.shared.payload_bytes_max,
    );
    let id = match &here {
        Some(here) => here.id,
        None => insert_new(tx, &mut import).await?,
    };
    take_events(tx, id, &mut import, taking).await?;
    let ended_now = import.row.facts.ended.is_some()
        && here.as_ref().is_none_or(|it| it.row.facts.ended.is_none());
    project(tx, id, here.as_ref(), &mut import).await?;
    tx.shared.tips().forget(&run);
    if ended_now {
        wake_parent(tx, &import.row.facts)
            .await
            .map_err(Halt::lift)?;
    }
    // Only now, so that whoever reads all runs does not pass them before they are seen (see `news`).
    let after = import.after.map_or(0, |head| head.seq.0).cast_signed();
    let sql = format!("UPDATE events SET stored_at = {CLOCK} WHERE run = $1 AND seq > $2");
    tx.exec(&sql, &[&id, &after]).await?;
    let stored = rows::load(tx, &run).await.map_err(Halt::lift)?;
    tx.ring(run, stored.row.head.seq);
    stored.entry(tx).await.map_err(Halt::lift)
}

/// Whether the log fits what is here.
async fn check(
    tx: &Tx,
    here: Option<&Stored>,
    import: &mut Import,
) -> Result<(), Halt<ImportError>> {
    let head: Option<Head> = here.map(|it| it.row.head);
    if head != import.after {
        return Err(Halt::Refused(ImportError::Changed { head }));
    }
    let Some(here) = here else {
        return check_key(tx, import).await;
    };
    if here.erased {
        return Err(Error::ErasedRun(import.row.run).into());
    }
    if here.has_beating_holder() {
        let owner = here.holder.as_ref();
        let by = owner.map_or_else(String::new, |(owner, _)| owner.to_string());
        let run = import.row.run;
        return Err(Halt::Refused(ImportError::Driven { run, by }));
    }
    Ok(())
}

/// A key has one run, and outlives it by 30 days (SEMANTICS 6).
async fn check_key(tx: &Tx, import: &mut Import) -> Result<(), Halt<ImportError>> {
    let Some(key) = &import.row.facts.key else {
        return Ok(());
    };
    let sql = "SELECT run, deleted_at FROM keys WHERE key = $1";
    let Some(found) = tx.opt(sql, &[&rows::plain(key)]).await? else {
        return Ok(());
    };
    let run = rows::run_id(found.try_get(0)?)?;
    let deleted_at: Option<i64> = found.try_get(1)?;
    let since = |at| tx.shared.clock.now().since(Timestamp::from_micros(at));
    let is_over = deleted_at.is_some_and(|at| since(at) >= KEY_KEPT);
    if run != import.row.run && !is_over {
        let key = key.clone();
        return Err(Halt::Refused(ImportError::KeyTaken { key, run }));
    }
    Ok(())
}

async fn insert_new(tx: &Tx, import: &mut Import) -> Result<i64, Halt<ImportError>> {
    let run = import.row.run;
    let missing = || Error::Bug(format!("an import of {run} without its key"));
    let tip = Tip {
        row: import.row.clone(),
        results: import.results,
        key: import.key_of(&run).ok_or_else(missing)?,
    };
    let id = match insert_run(tx, &tip).await {
        // Someone else imports it at this moment: it is not as it was seen.
        Err(Halt::Again) => return Err(Halt::Refused(ImportError::Changed { head: None })),
        other => other.map_err(Halt::lift)?,
    };
    insert_labels(tx, id, &tip.row.facts)
        .await
        .map_err(Halt::lift)?;
    rows::index(tx, id, &tip.row.facts)
        .await
        .map_err(Halt::lift)?;
    if let Some(key) = &tip.row.facts.key {
        let sql = "INSERT INTO keys (key, run) VALUES ($1, $2)
            ON CONFLICT (key) DO UPDATE SET run = excluded.run, deleted_at = NULL";
        tx.exec(sql, &[&rows::plain(key), &run.to_string()]).await?;
    }
    Ok(id)
}

/// Writes events and blobs as they come, each checked first.
async fn take_events(
    tx: &Tx,
    id: i64,
    import: &mut Import,
    mut taking: Taking,
) -> Result<(), Halt<ImportError>> {
    let run = import.row.run;
    let fault = |fault| Halt::Refused(ImportError::Source(fault));
    let mut part: Option<(RunId, Seq)> = None;
    let mut columns = Columns::default();
    while let Some(record) = import.source.next_event().map_err(fault)? {
        taking.take(&record).map_err(Halt::Refused)?;
        columns.push(&record);
        if columns.len() >= CHUNK {
            columns.insert(tx, id).await.map_err(Halt::lift)?;
            columns = Columns::default();
        }
        let writer = record.origin.unwrap_or(run);
        if let Some((before, last)) = part.filter(|(before, _)| *before != writer) {
            let sql = "INSERT INTO origins (run, last, origin, key) VALUES ($1, $2, $3, $4)";
            let key = import.key_of(&before).map(|key| key.0.to_vec());
            let last = last.0.cast_signed();
            tx.exec(sql, &[&id, &last, &before.to_string(), &key])
                .await?;
        }
        part = Some((writer, record.seq));
    }
    columns.insert(tx, id).await.map_err(Halt::lift)?;
    while let Some(imported) = import.source.next_blob().map_err(fault)? {
        taking.check_size(imported.blob.bytes().len())?;
        rows::insert_blob(tx, id, &imported.blob, imported.previous.as_ref())
            .await
            .map_err(Halt::lift)?;
    }
    taking.finish().map_err(Halt::Refused)
}

/// Writes what follows from the log: of a run that has not ended, that nobody drives it here.
async fn project(
    tx: &Tx,
    id: i64,
    here: Option<&Stored>,
    import: &mut Import,
) -> Result<(), Halt<ImportError>> {
    let (row, facts) = (&import.row, &import.row.facts);
    let ended = facts.ended.is_some();
    for table in ["live", "active", "lapsed"] {
        let sql = format!("DELETE FROM {table} WHERE run = $1");
        tx.exec(&sql, &[&id]).await?;
    }
    let key = import
        .key_of(&row.run)
        .unwrap_or(logreel_core::RunKey([0; 32]));
    let tip = Tip {
        row: row.clone(),
        results: import.results,
        key,
    };
    write_facts(tx, id, &tip).await.map_err(Halt::lift)?;
    tx.exec(
        "UPDATE runs SET read_only = $2, epoch = NULL, event_epoch = NULL, head_seq = NULL,
           head_digest = NULL, updated_at = NULL, results = NULL, pulse = NULL WHERE id = $1",
        &[&id, &!ended],
    )
    .await?;
    if here.is_some() {
        rows::index(tx, id, facts).await.map_err(Halt::lift)?;
    }
    let epoch = import.epoch_after(here.map(|it| it.epoch));
    let sql = match ended {
        true => {
            "UPDATE runs SET epoch = $2, event_epoch = $3, head_seq = $4, head_digest = $5,
               updated_at = $6, results = $7, pulse = $8 WHERE id = $1"
        }
        false => {
            "INSERT INTO live (run, epoch, event_epoch, head_seq, head_digest, updated_at, results,
               pulse) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
        }
    };
    tx.exec(
        sql,
        &[
            &id,
            &epoch.0.cast_signed(),
            &row.epoch.0.cast_signed(),
            &row.head.seq.0.cast_signed(),
            &row.head.digest.as_bytes().as_slice(),
            &row.updated_at.as_micros(),
            &rows::results_bytes(&import.results),
            &rows::to_text(&row.pulse),
        ],
    )
    .await?;
    let limit = facts.limit.as_ref();
    tx.exec(
        "UPDATE live SET limit_key = $2, limit_max = $3 WHERE run = $1",
        &[
            &id,
            &limit.map(|limit| rows::plain(&limit.key)),
            &limit.map(|limit| i64::from(limit.max)),
        ],
    )
    .await?;
    Ok(())
}

/// Makes an imported run this store's own.
pub(super) async fn take_over(tx: &Tx, run: RunId) -> Result<Entry, Halt<ImportError>> {
    let stored = rows::lock(tx, &run).await.map_err(Halt::lift)?;
    if stored.erased {
        return Err(Error::ErasedRun(run).into());
    }
    if !stored.read_only {
        return stored.entry(tx).await.map_err(Halt::lift);
    }
    if let Some(session) = &stored.row.facts.session {
        let name = rows::plain(session.as_str());
        let sql = "INSERT INTO active (session, run) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        if tx.exec(sql, &[&name, &stored.id]).await? == 0 {
            let sql = "SELECT r.run FROM active a JOIN runs r ON r.id = a.run WHERE a.session = $1";
            let Some(active) = tx.opt(sql, &[&name]).await? else {
                return Err(Halt::Again);
            };
            return Err(Halt::Refused(ImportError::Busy {
                session: session.clone(),
                active: rows::run_id(active.try_get(0)?)?,
            }));
        }
    }
    tx.exec(
        "UPDATE runs SET read_only = false WHERE id = $1",
        &[&stored.id],
    )
    .await?;
    tx.exec(
        "UPDATE live SET epoch = epoch + 1 WHERE run = $1",
        &[&stored.id],
    )
    .await?;
    tx.shared.tips().forget(&run);
    settle(tx, stored.id, &stored.tip()?)
        .await
        .map_err(Halt::lift)?;
    tx.ring_everywhere(run);
    let stored = rows::load(tx, &run).await.map_err(Halt::lift)?;
    stored.entry(tx).await.map_err(Halt::lift)
}
