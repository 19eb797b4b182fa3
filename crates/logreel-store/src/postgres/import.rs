//! Logs that were written elsewhere (SEMANTICS 34).
//!
//! Events and blobs stream through COPY, so that a long log takes little memory here; all of it is one transaction.
//! An import is handed on as `&mut`: its source may be sent to another thread, and not shared with one.

use logreel_core::codec::StoredBody;
use logreel_core::{Head, Record, RunId, Seq, Timestamp};
use tokio_postgres::types::Type;

use super::append::{settle, wake_parent, write_facts};
use super::create::{KEY_KEPT, insert_labels, insert_run};
use super::failure::Halt;
use super::lease::note_lapse;
use super::owners::Life;
use super::rows::{self, Stored};
use super::schema::CLOCK;
use super::writer::Tx;
use crate::import::Taking;
use crate::tip::{Tip, check_names};
use crate::{Entry, Error, Import, ImportError};

/// Events that are taken from the source in one go, and about how many bytes of them.
const CHUNK: usize = 500;
const CHUNK_BYTES: usize = 1 << 20;

/// Stores the log, or refuses and writes nothing: a refusal ends the transaction.
pub(super) async fn import(tx: &Tx, mut import: Import) -> Result<Entry, Halt<ImportError>> {
    let run = import.row.run;
    // It takes as long as the log is, which no other transaction does.
    tx.take_time().await?;
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
    take_log(tx, id, &mut import, taking).await?;
    let ended_now = import.row.facts.ended.is_some()
        && here.as_ref().is_none_or(|it| it.row.facts.ended.is_none());
    project(tx, id, here.as_ref(), &mut import).await?;
    tx.shared.tips().forget(&run);
    if ended_now {
        wake_parent(tx, &import.row.facts)
            .await
            .map_err(Halt::lift)?;
    }
    let stored = rows::load(tx, &run).await.map_err(Halt::lift)?;
    // Whoever reads all runs is told of it once it can be seen (see `news`).
    let after = import.after.map_or(0, |head| head.seq.0).cast_signed();
    let last = stored.row.head.seq.0.cast_signed();
    if last > after {
        let sql = "INSERT INTO imported (run, after, last) VALUES ($1, $2, $3)";
        tx.exec(sql, &[&id, &after, &last]).await?;
    }
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
        let facts = &import.row.facts;
        let (key, limit) = (facts.key.as_deref(), facts.limit.as_ref());
        check_names(&facts.agent, key, &facts.labels, limit)?;
        return check_key(tx, import).await;
    };
    if here.erased {
        return Err(Error::ErasedRun(import.row.run).into());
    }
    match here.has_beating_holder() {
        true => Err(driven(here)),
        false => Ok(()),
    }
}

fn driven(here: &Stored) -> Halt<ImportError> {
    let owner = here.holder.as_ref();
    let by = owner.map_or_else(String::new, |(owner, _)| owner.to_string());
    let run = here.row.run;
    Halt::Refused(ImportError::Driven { run, by })
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
        // What was there when it was looked for is its own, or was kept long enough; what came since is not.
        let sql = "INSERT INTO keys (key, run) VALUES ($1, $2)
            ON CONFLICT (key) DO UPDATE SET run = excluded.run, deleted_at = NULL
            WHERE keys.run = excluded.run OR keys.deleted_at IS NOT NULL";
        if tx.exec(sql, &[&rows::plain(key), &run.to_string()]).await? == 0 {
            return Err(Halt::Refused(ImportError::Changed { head: None }));
        }
    }
    Ok(id)
}

/// Writes events and blobs as they come, each checked first.
async fn take_log(
    tx: &Tx,
    id: i64,
    import: &mut Import,
    mut taking: Taking,
) -> Result<(), Halt<ImportError>> {
    take_events(tx, id, import, &mut taking).await?;
    take_blobs(tx, id, import, &taking).await?;
    taking.finish().map_err(Halt::Refused)
}

/// The next events. A source reads files, which may take its time: others get another thread meanwhile.
fn next_events(import: &mut Import, taking: &mut Taking) -> Result<Vec<Record>, ImportError> {
    tokio::task::block_in_place(|| {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < CHUNK && bytes < CHUNK_BYTES {
            let next = import.source.next_event();
            let Some(record) = next.map_err(ImportError::Source)? else {
                break;
            };
            taking.take(&record)?;
            if let StoredBody::Text(text) = &record.body {
                bytes += text.len();
            }
            records.push(record);
        }
        Ok(records)
    })
}

async fn take_events(
    tx: &Tx,
    id: i64,
    import: &mut Import,
    taking: &mut Taking,
) -> Result<(), Halt<ImportError>> {
    let run = import.row.run;
    let sql = "COPY events (run, seq, kind, at, caller_at, epoch, late, format, tag, digest,
        body_digest, body) FROM STDIN BINARY";
    let (long, bytes, text) = (Type::INT8, Type::BYTEA, Type::TEXT);
    let types = [
        long.clone(),
        long.clone(),
        text.clone(),
        long.clone(),
        long.clone(),
        long.clone(),
        Type::BOOL,
        long.clone(),
        long,
        bytes.clone(),
        bytes,
        text,
    ];
    let mut copy = tx.copy_in(sql, &types).await?;
    let mut parts: Vec<(RunId, Seq)> = Vec::new();
    loop {
        let records = next_events(import, taking).map_err(Halt::Refused)?;
        if records.is_empty() {
            break;
        }
        for record in records {
            let (body, body_digest) = match &record.body {
                StoredBody::Text(text) => (Some(text), None),
                StoredBody::Erased(digest) => (None, Some(digest.as_bytes().as_slice())),
            };
            copy.as_mut()
                .write(&[
                    &id,
                    &record.seq.0.cast_signed(),
                    &record.kind,
                    &record.at.as_micros(),
                    &record.caller_at.map(Timestamp::as_micros),
                    &record.epoch.0.cast_signed(),
                    &record.late,
                    &i64::from(record.format),
                    // An append of its own, which nobody asks for again here.
                    &0_i64,
                    &record.digest.as_bytes().as_slice(),
                    &body_digest,
                    &body,
                ])
                .await?;
            let writer = record.origin.unwrap_or(run);
            match parts.last_mut() {
                Some((before, last)) if *before == writer => *last = record.seq,
                _ => parts.push((writer, record.seq)),
            }
        }
    }
    copy.as_mut().finish().await?;
    // All but the last are of runs that it shares events with.
    parts.pop();
    for (origin, last) in parts {
        let sql = "INSERT INTO origins (run, last, origin, key) VALUES ($1, $2, $3, $4)";
        let key = import.key_of(&origin).map(|key| key.0.to_vec());
        let last = last.0.cast_signed();
        tx.exec(sql, &[&id, &last, &origin.to_string(), &key])
            .await?;
    }
    Ok(())
}

async fn take_blobs(
    tx: &Tx,
    id: i64,
    import: &mut Import,
    taking: &Taking,
) -> Result<(), Halt<ImportError>> {
    let next = |import: &mut Import| {
        let next = tokio::task::block_in_place(|| import.source.next_blob());
        next.map_err(|fault| Halt::Refused(ImportError::Source(fault)))
    };
    let Some(mut imported) = next(import)? else {
        return Ok(());
    };
    // By way of a table of this transaction: what is there already is not written again.
    tx.batch(
        "CREATE TEMPORARY TABLE incoming (digest bytea NOT NULL, previous bytea, bytes bytea NOT NULL)
         ON COMMIT DROP",
    )
    .await?;
    let sql = "COPY pg_temp.incoming (digest, previous, bytes) FROM STDIN BINARY";
    let types = [Type::BYTEA, Type::BYTEA, Type::BYTEA];
    let mut copy = tx.copy_in(sql, &types).await?;
    loop {
        taking.check_size(imported.blob.bytes().len())?;
        let (digest, previous) = (imported.blob.digest(), imported.previous);
        let previous = previous.as_ref().map(|it| it.as_bytes().as_slice());
        copy.as_mut()
            .write(&[
                &digest.as_bytes().as_slice(),
                &previous,
                &&imported.blob.bytes()[..],
            ])
            .await?;
        match next(import)? {
            Some(more) => imported = more,
            None => break,
        }
    }
    copy.as_mut().finish().await?;
    keep_incoming(tx, id).await
}

/// Moves what came to its place, with references of the run, as `rows::insert_blob` does it for one.
async fn keep_incoming(tx: &Tx, id: i64) -> Result<(), Halt<ImportError>> {
    tx.batch(
        "INSERT INTO blobs (digest, previous, bytes)
           SELECT DISTINCT ON (digest) digest, previous, bytes FROM pg_temp.incoming
           ORDER BY digest, previous ON CONFLICT (digest) DO NOTHING;
         UPDATE blobs SET previous = i.previous FROM pg_temp.incoming i
           WHERE blobs.digest = i.digest AND blobs.previous IS NULL AND i.previous IS NOT NULL",
    )
    .await?;
    let sql = "SELECT (SELECT count(DISTINCT digest) FROM pg_temp.incoming), (SELECT count(*) FROM
        (SELECT 1 FROM blobs WHERE digest IN (SELECT digest FROM pg_temp.incoming)
         ORDER BY digest FOR KEY SHARE) held)";
    let row = tx.one(sql, &[]).await?;
    if row.try_get::<_, i64>(0)? != row.try_get::<_, i64>(1)? {
        // One that was there went meanwhile, with the last run that needed it.
        return Err(Halt::Refused(ImportError::Changed { head: None }));
    }
    for sql in [
        "INSERT INTO blob_refs (run, digest) SELECT DISTINCT $1::int8, digest FROM pg_temp.incoming
           ON CONFLICT DO NOTHING",
        "DELETE FROM staged WHERE run = $1 AND digest IN (SELECT digest FROM pg_temp.incoming)",
    ] {
        tx.exec(sql, &[&id]).await?;
    }
    Ok(())
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
    // Only now: its beats wait from here on, and a log may be long.
    if let Some(here) = here
        && let Some((holder, Life::Silent)) = &here.holder
    {
        let silent = tx.shared.owners.stays_silent(tx, holder.id).await;
        if !silent.map_err(Halt::lift)? {
            return Err(driven(here));
        }
    }
    // Whoever fell silent here may still be about to make the write that the log leaves open.
    let over = match here {
        Some(here) if !ended => {
            note_lapse(tx, here).await.map_err(Halt::lift)?;
            &["live", "queue", "active"][..]
        }
        Some(_) | None => &["live", "queue", "active", "lapsed"],
    };
    for table in over {
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
    if ended {
        return Ok(());
    }
    let limit = facts.limit.as_ref();
    tx.exec(
        "INSERT INTO queue (run, limit_key, limit_max) VALUES ($1, $2, $3)",
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
    // What comes now is told after what was imported.
    let sql = format!(
        "UPDATE imported SET stored_at = greatest({CLOCK}, $2) WHERE run = $1 AND stored_at IS NULL"
    );
    tx.exec(&sql, &[&stored.id, &tx.shared.clock.floor()])
        .await?;
    tx.exec(
        "UPDATE live SET epoch = epoch + 1, stored_at = greatest(stored_at,
           (SELECT max(stored_at) FROM imported WHERE run = $1)) WHERE run = $1",
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
