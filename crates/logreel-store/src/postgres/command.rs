//! Outside commands: read, decide and append in one transaction that holds the run's row, with no lease and
//! no epoch of their own, so they cannot conflict and cannot starve behind a busy driver (SEMANTICS 4).

use logreel_core::event::{Body, WaitOutcome};
use logreel_core::{
    AppendId, Blob, Event, Outside, Rejected, RunId, Timestamp, WaitId, decide_outside,
};

use super::append::{self, Landed, Landing, land};
use super::columns::Mark;
use super::failure::Halt;
use super::rows::{self, Before, RECORD};
use super::writer::Tx;
use crate::tip::prepare;
use crate::{Commanded, Error};

pub(super) async fn command(
    tx: &Tx,
    run: RunId,
    id: &AppendId,
    command: &Outside,
    blobs: &[Blob],
) -> Result<Commanded, Halt> {
    let stored = match command {
        Outside::Cancel { .. } | Outside::Move { .. } => rows::lock_to_end(tx, &run).await?,
        _ => rows::lock(tx, &run).await?,
    };
    if let Some(events) = append::first_answer(tx, &run, id).await? {
        let answer = answer_again(tx, stored.id, command, &events).await?;
        let entry = stored.entry(tx).await?;
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
    let now = tx.shared.clock.now();
    let decision = decide_outside(&stored.row, &stored.results, command, now);
    let mut events = Vec::new();
    if !decision.drafts.is_empty() {
        let prepared = prepare(decision.drafts, blobs, tx.shared.payload_bytes_max)?;
        let mut tip = stored.tip()?;
        let before = Before::of(&tip, stored.stale);
        let sealed = tip
            .extend(prepared, stored.row.epoch, now)
            .map_err(Error::from)?;
        let landing = Landing {
            id: stored.id,
            before,
            epoch: stored.epoch,
            sealed: &sealed,
            mark: Mark::Id(id.as_str().to_owned()),
            blobs,
        };
        if land(tx, landing, tip).await? == Landed::Refused {
            let what = format!("the head of {run} moved within one transaction");
            return Err(Error::Bug(what).into());
        }
        events = sealed.into_iter().map(|sealed| sealed.event).collect();
    }
    let entry = rows::load(tx, &run).await?.entry(tx).await?;
    Ok(Commanded {
        answer: decision.answer,
        events,
        entry,
        repeated: false,
    })
}

/// The first answer to a command that landed. Only an answer that came too late was refused and yet
/// left a fact, its timeout.
async fn answer_again(
    tx: &Tx,
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
    let deadline = deadline_of(tx, id, ended.wait).await?;
    Ok(Err(Rejected::TooLate {
        wait: ended.wait,
        deadline,
    }))
}

async fn deadline_of(tx: &Tx, id: i64, wait: WaitId) -> Result<Timestamp, Halt> {
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = $1 AND kind = 'wait.started' ORDER BY seq DESC"
    );
    for row in tx.query(&sql, &[&id]).await? {
        if let Body::WaitStarted(started) = rows::event(&row)?.body
            && let Some(deadline) = started.deadline.filter(|_| started.wait == wait)
        {
            return Ok(deadline);
        }
    }
    Err(Error::corrupt(format!("wait {wait} ended and never began")).into())
}
