//! Logs that were written elsewhere (SEMANTICS 34).

use logreel_core::{FOLD_VERSION, Head, RunId, Seq, Session};
use rusqlite::{OptionalExtension, params};

use super::append::{settle, wake_parent};
use super::create::{KEY_KEPT, insert_labels, insert_run};
use super::failure::Halt;
use super::lease::note_lapse;
use super::rows::{self, Stored};
use super::search;
use super::writer::Tx;
use crate::import::Taking;
use crate::tip::Tip;
use crate::{Entry, Error, Import, ImportError};

/// Stores the log, or refuses and writes nothing.
pub(super) fn import(tx: &mut Tx<'_>, import: Import) -> Result<Entry, Halt<ImportError>> {
    let (run, conn) = (import.row.run, tx.conn);
    // Whatever comes out of the source while it is read, a refusal has written nothing.
    conn.execute_batch("SAVEPOINT import")?;
    match take_in(tx, import) {
        Ok(()) => conn.execute_batch("RELEASE import")?,
        Err(Halt::Refused(refusal)) => {
            conn.execute_batch("ROLLBACK TO import; RELEASE import")?;
            return Err(Halt::Refused(refusal));
        }
        Err(database) => return Err(database),
    }
    let stored = rows::load(conn, &run).map_err(Halt::lift)?;
    tx.ring(run, stored.row.head.seq);
    Ok(stored.entry(conn, tx.shared)?)
}

fn take_in(tx: &mut Tx<'_>, mut import: Import) -> Result<(), Halt<ImportError>> {
    let run = import.row.run;
    let here = match rows::load(tx.conn, &run) {
        Ok(stored) => Some(stored),
        Err(Halt::Refused(Error::NotFound(_))) => None,
        Err(other) => return Err(other.lift()),
    };
    check(tx, here.as_ref(), &import)?;
    let taking = Taking::new(
        &import,
        here.as_ref().map(|it| it.row.updated_at),
        tx.shared.payload_bytes_max,
    );
    let id = match &here {
        Some(here) => here.id,
        None => insert_new(tx, &import)?,
    };
    take_events(tx, id, &mut import, taking)?;
    let ended_now = import.row.facts.ended.is_some()
        && here.as_ref().is_none_or(|it| it.row.facts.ended.is_none());
    project(tx, id, here.as_ref(), &import)?;
    tx.tips.forget(&run);
    if ended_now {
        wake_parent(tx, &import.row.facts).map_err(Halt::lift)?;
    }
    Ok(())
}

/// Whether the log fits what is here.
fn check(tx: &Tx<'_>, here: Option<&Stored>, import: &Import) -> Result<(), Halt<ImportError>> {
    let head: Option<Head> = here.map(|it| it.row.head);
    if head != import.after {
        return Err(Halt::Refused(ImportError::Changed { head }));
    }
    let Some(here) = here else {
        return check_key(tx, import);
    };
    if here.erased {
        return Err(Error::ErasedRun(import.row.run).into());
    }
    if let Some((owner, _)) = here.lease
        && tx.shared.owners.is_alive(tx.conn, owner)?
    {
        let owner = tx.shared.owners.look_up(tx.conn, owner)?;
        let by = owner.map_or_else(String::new, |(owner, _)| owner.to_string());
        let run = import.row.run;
        return Err(Halt::Refused(ImportError::Driven { run, by }));
    }
    Ok(())
}

/// A key has one run, and outlives it by 30 days (SEMANTICS 6).
fn check_key(tx: &Tx<'_>, import: &Import) -> Result<(), Halt<ImportError>> {
    let Some(key) = &import.row.facts.key else {
        return Ok(());
    };
    let found: Option<(String, Option<i64>)> = tx
        .conn
        .prepare_cached("SELECT run, deleted_at FROM keys WHERE key = ?1")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((run, deleted_at)) = found else {
        return Ok(());
    };
    let run = rows::run_id(&run)?;
    let since = |at| {
        let at = logreel_core::Timestamp::from_micros(at);
        tx.shared.env.now().since(at)
    };
    let is_over = deleted_at.is_some_and(|at| since(at) >= KEY_KEPT);
    if run != import.row.run && !is_over {
        let key = key.clone();
        return Err(Halt::Refused(ImportError::KeyTaken { key, run }));
    }
    Ok(())
}

fn insert_new(tx: &mut Tx<'_>, import: &Import) -> Result<i64, Halt<ImportError>> {
    let run = import.row.run;
    let missing = || Error::Bug(format!("an import of {run} without its key"));
    let tip = Tip {
        row: import.row.clone(),
        results: import.results,
        key: import.key_of(&run).ok_or_else(missing)?,
    };
    let id = insert_run(tx, &tip)?;
    insert_labels(tx.conn, id, &tip.row.facts)?;
    search::insert(tx.conn, id, &tip.row.facts)?;
    if let Some(key) = &tip.row.facts.key {
        tx.conn
            .prepare_cached("INSERT OR REPLACE INTO keys (key, run) VALUES (?1, ?2)")?
            .execute(params![key, run.to_string()])?;
    }
    Ok(id)
}

/// Writes events and blobs as they come, each checked first.
fn take_events(
    tx: &mut Tx<'_>,
    id: i64,
    import: &mut Import,
    mut taking: Taking,
) -> Result<(), Halt<ImportError>> {
    let run = import.row.run;
    let fault = |fault| Halt::Refused(ImportError::Source(fault));
    let mut part: Option<(RunId, Seq)> = None;
    while let Some(record) = import.source.next_event().map_err(fault)? {
        taking.take(&record).map_err(Halt::Refused)?;
        let pos = *tx.next_pos()?;
        rows::insert_record(tx.conn, id, pos, &record)?;
        *tx.next_pos()? = pos + 1;
        let writer = record.origin.unwrap_or(run);
        if let Some((before, last)) = part.filter(|(before, _)| *before != writer) {
            insert_origin(tx, id, import, before, last)?;
        }
        part = Some((writer, record.seq));
    }
    while let Some(imported) = import.source.next_blob().map_err(fault)? {
        let (blob, previous) = (&imported.blob, &imported.previous);
        taking.check_size(blob.bytes().len())?;
        tx.conn
            .prepare_cached(
                "INSERT INTO blobs (digest, previous, bytes) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                blob.digest().as_bytes().as_slice(),
                previous.as_ref().map(|digest| digest.as_bytes().as_slice()),
                &**blob.bytes(),
            ])?;
        rows::name(tx.conn, id, &blob.digest(), previous.as_ref())?;
    }
    taking.finish().map_err(Halt::Refused)
}

/// The events up to `last` were written for another run.
fn insert_origin(
    tx: &Tx<'_>,
    id: i64,
    import: &Import,
    origin: RunId,
    last: Seq,
) -> rusqlite::Result<()> {
    tx.conn
        .prepare_cached("INSERT INTO origins (run, last, origin, key) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            id,
            last.0.cast_signed(),
            origin.to_string(),
            import.key_of(&origin).map(|key| key.0),
        ])?;
    Ok(())
}

/// Writes what follows from the log: of a run that has not ended, that nobody drives it here.
fn project(
    tx: &mut Tx<'_>,
    id: i64,
    here: Option<&Stored>,
    import: &Import,
) -> Result<(), Halt<ImportError>> {
    let (row, facts, conn) = (&import.row, &import.row.facts, tx.conn);
    let ended = facts.ended.as_ref();
    // Whoever fell silent here may still be about to make the write that the log leaves open.
    let over = match here {
        Some(here) if ended.is_none() => {
            note_lapse(tx, here)?;
            &["live", "active"][..]
        }
        Some(_) | None => &["live", "active", "lapsed"],
    };
    for table in over {
        conn.prepare_cached(&format!("DELETE FROM {table} WHERE run = ?1"))?
            .execute([id])?;
    }
    let parent = facts.parent.as_ref();
    conn.prepare_cached(
        "UPDATE runs SET status = ?2, session = ?3, spec_digest = ?4, final_state_digest = ?5,
           parent = ?6, relation = ?7, fold_version = ?8, facts = ?9, read_only = ?10, epoch = NULL,
           event_epoch = NULL, head_seq = NULL, head_digest = NULL, updated_at = NULL,
           results = NULL, pulse = NULL
         WHERE id = ?1",
    )?
    .execute(params![
        id,
        row.status().as_str(),
        facts.session.as_ref().map(Session::as_str),
        facts.spec_digest.as_bytes().as_slice(),
        ended.map(|ended| ended.final_state_digest.as_bytes().as_slice()),
        parent.map(|it| it.run.to_string()),
        parent.map(|it| rows::relation_name(it.relation)),
        FOLD_VERSION,
        rows::to_text(&**facts),
        ended.is_none(),
    ])?;
    if here.is_some() {
        search::update(conn, id, facts)?;
    }
    let limit = facts.limit.as_ref();
    let epoch = import.epoch_after(here.map(|it| it.epoch));
    let head = params![
        id,
        epoch.0.cast_signed(),
        row.epoch.0.cast_signed(),
        row.head.seq.0.cast_signed(),
        row.head.digest.as_bytes().as_slice(),
        row.updated_at.as_micros(),
        rows::results_bytes(&import.results),
        rows::to_text(&row.pulse),
    ];
    if ended.is_some() {
        conn.prepare_cached(
            "UPDATE runs SET epoch = ?2, event_epoch = ?3, head_seq = ?4, head_digest = ?5,
               updated_at = ?6, results = ?7, pulse = ?8 WHERE id = ?1",
        )?
        .execute(head)?;
        return Ok(());
    }
    conn.prepare_cached(
        "INSERT INTO live (run, epoch, event_epoch, head_seq, head_digest, updated_at, results, pulse)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(head)?;
    conn.prepare_cached("UPDATE live SET limit_key = ?2, limit_max = ?3 WHERE run = ?1")?
        .execute(params![
            id,
            limit.map(|limit| &limit.key),
            limit.map(|limit| limit.max)
        ])?;
    Ok(())
}

/// Makes an imported run this store's own.
pub(super) fn take_over(tx: &mut Tx<'_>, run: RunId) -> Result<Entry, Halt<ImportError>> {
    let stored = rows::load(tx.conn, &run).map_err(Halt::lift)?;
    if stored.erased {
        return Err(Error::ErasedRun(run).into());
    }
    if !stored.read_only {
        return Ok(stored.entry(tx.conn, tx.shared)?);
    }
    if let Some(session) = &stored.row.facts.session {
        let active: Option<String> = tx
            .conn
            .prepare_cached(
                "SELECT r.run FROM active a JOIN runs r ON r.id = a.run WHERE a.session = ?1",
            )?
            .query_row([session.as_str()], |row| row.get(0))
            .optional()?;
        if let Some(active) = active {
            return Err(Halt::Refused(ImportError::Busy {
                session: session.clone(),
                active: rows::run_id(&active)?,
            }));
        }
        tx.conn
            .prepare_cached("INSERT INTO active (session, run) VALUES (?1, ?2)")?
            .execute(params![session.as_str(), stored.id])?;
    }
    tx.conn
        .prepare_cached("UPDATE runs SET read_only = 0 WHERE id = ?1")?
        .execute([stored.id])?;
    tx.conn
        .prepare_cached("UPDATE live SET epoch = epoch + 1 WHERE run = ?1")?
        .execute([stored.id])?;
    tx.tips.forget(&run);
    settle(tx, stored.id, &stored.tip()?).map_err(Halt::lift)?;
    tx.ring_everywhere(run)?;
    let stored = rows::load(tx.conn, &run).map_err(Halt::lift)?;
    Ok(stored.entry(tx.conn, tx.shared)?)
}
