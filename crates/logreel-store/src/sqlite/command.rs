//! Outside commands: read, decide and append in one transaction, with no lease and no epoch of their
//! own, so they cannot conflict and cannot starve behind a busy driver (SEMANTICS 4).

use logreel_core::event::{Body, WaitOutcome};
use logreel_core::{
    AppendId, Blob, Event, Outside, Rejected, RunId, Timestamp, WaitId, decide_outside,
};
use rusqlite::Connection;

use super::append::{self, Before, Landed, Landing, land};
use super::failure::Halt;
use super::rows::{self, Mark, RECORD};
use super::writer::Tx;
use crate::tip::prepare;
use crate::tips::Known;
use crate::{Commanded, Error};

pub(super) fn command(
    tx: &mut Tx<'_>,
    run: RunId,
    id: &AppendId,
    command: &Outside,
    blobs: &[Blob],
) -> Result<Commanded, Halt> {
    let stored = rows::load(tx.conn, &run)?;
    if let Some(events) = append::first_answer(tx.conn, &run, id)? {
        let answer = answer_again(tx.conn, stored.id, command, &events)?;
        let entry = stored.entry(tx.conn, tx.shared)?;
        return Ok(Commanded {
            answer,
            events,
            entry,
            repeated: true,
        });
    }
    match command {
        // Works from the row alone, whatever newer build wrote the log (SEMANTICS 12).
        Outside::Cancel { .. } => stored.check_own()?,
        _ => stored.check_foldable()?,
    }
    let now = tx.shared.env.now();
    let decision = decide_outside(&stored.row, &stored.results, command, now);
    let mut events = Vec::new();
    if !decision.drafts.is_empty() {
        let prepared = prepare(decision.drafts, blobs, tx.shared.payload_bytes_max)?;
        let mut tip = stored.tip()?;
        let before = Before::of(&tip, stored.stale);
        let sealed = tip
            .extend(prepared, stored.row.epoch, now)
            .map_err(Error::from)?;
        let (sealed, mark) = (sealed.as_slice(), Mark::Id(id.as_str()));
        let landing = Landing {
            id: stored.id,
            before,
            epoch: stored.epoch,
            sealed,
            mark,
            blobs,
        };
        match land(tx, landing, &tip)? {
            Landed::Live => tx.tips.put(run, Box::new(Known { id: stored.id, tip })),
            Landed::Retired => {}
            Landed::Refused => {
                let what = format!("the head of {run} moved within one transaction");
                return Err(Error::Bug(what).into());
            }
        }
        events = sealed.iter().map(|sealed| sealed.event.clone()).collect();
    }
    let entry = rows::load(tx.conn, &run)?.entry(tx.conn, tx.shared)?;
    Ok(Commanded {
        answer: decision.answer,
        events,
        entry,
        repeated: false,
    })
}

/// The first answer to a command that landed. Only an answer that came too late was refused and yet
/// left a fact, its timeout.
fn answer_again(
    conn: &Connection,
    id: i64,
    command: &Outside,
    events: &[Event],
) -> Result<Result<(), Rejected>, Halt> {
    let (Outside::Answer { .. }, Some(Body::WaitEnded(ended))) =
        (command, events.first().map(|event| &event.body))
    else {
        return Ok(Ok(()));
    };
    if !matches!(ended.outcome, WaitOutcome::TimedOut | WaitOutcome::Elapsed) {
        return Ok(Ok(()));
    }
    let deadline = deadline_of(conn, id, ended.wait)?;
    Ok(Err(Rejected::TooLate {
        wait: ended.wait,
        deadline,
    }))
}

fn deadline_of(conn: &Connection, id: i64, wait: WaitId) -> Result<Timestamp, Halt> {
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = ?1 AND kind = 'wait.started' ORDER BY seq DESC"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([id])?;
    while let Some(row) = rows.next()? {
        if let Body::WaitStarted(started) = rows::event(row)?.body
            && let Some(deadline) = started.deadline.filter(|_| started.wait == wait)
        {
            return Ok(deadline);
        }
    }
    Err(Error::corrupt(format!("wait {wait} ended and never began")).into())
}
