//! Creating a run, or attaching to the one that is there (SEMANTICS 6).
//!
//! Names (ids, keys, sessions) are taken by inserting their row. Whoever finds one taken by a transaction
//! that is not done yet waits for it and begins again, and then sees whose it is.

use std::time::Duration;

use logreel_core::chain::Sealed;
use logreel_core::event::{Body, Relation, RunStarted};
use logreel_core::row::Facts;
use logreel_core::{Blob, Epoch, FOLD_VERSION, FORMAT, RunId, RunKey, Session, Timestamp};

use super::append::retire;
use super::columns::{Columns, Mark};
use super::failure::Halt;
use super::fork;
use super::limit;
use super::rows::{self, RECORD, Stored};
use super::schema::CLOCK;
use super::writer::Tx;
use crate::tip::{Prepared, Tip};
use crate::tips::Known;
use crate::{CreateError, Created, Error, OwnerId};

/// How long the key of a deleted run is kept.
pub(super) const KEY_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A run to be created, with its event 1 written.
pub(super) struct Work {
    pub run: RunId,
    pub started: RunStarted,
    pub prepared: Prepared,
    pub then: Vec<Prepared>,
    pub has_ended: bool,
    pub key: RunKey,
    pub blobs: Vec<Blob>,
    pub owner: Option<OwnerId>,
}

pub(super) async fn create(tx: &Tx, work: &Work) -> Result<Created, Halt<CreateError>> {
    let now = tx.shared.clock.now();
    if let Some(attached) = attach(tx, work, now).await? {
        return Ok(attached);
    }
    let limit = work.started.limit.as_ref();
    if work.owner.is_some() {
        // The key first, then runs: as whoever claims one.
        limit::lock(tx, limit).await.map_err(Halt::lift)?;
    }
    check(tx, work).await?;
    let owner = match work.owner {
        Some(_)
            if !limit::take_place(tx, limit, None)
                .await
                .map_err(Halt::lift)? =>
        {
            None
        }
        owner => owner,
    };
    let epoch = first_epoch(owner);
    let (mut tip, first) =
        Tip::start(work.run, work.key, work.prepared.clone(), epoch, now).map_err(Error::from)?;
    let mut sealed = vec![first];
    sealed.extend(
        tip.extend(work.then.clone(), epoch, now)
            .map_err(Error::from)?,
    );
    let placed = Placed {
        tip,
        sealed: &sealed,
        blobs: &work.blobs,
        owner,
        now,
    };
    let id = place(tx, placed).await.map_err(Halt::lift)?;
    if let Some(node) = &work.started.context {
        // Pins the context that the session goes on from.
        rows::refer(tx, id, node).await.map_err(Halt::lift)?;
    }
    if let Some(key) = &work.started.key {
        let sql = "INSERT INTO keys (key, run) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let key = rows::plain(key);
        if tx.exec(sql, &[&key, &work.run.to_string()]).await? == 0 {
            return Err(Halt::Again);
        }
    }
    if let Some(session) = work.started.session.as_ref().filter(|_| !work.has_ended) {
        let sql = "INSERT INTO active (session, run) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let session = rows::plain(session.as_str());
        if tx.exec(sql, &[&session, &id]).await? == 0 {
            return Err(Halt::Again);
        }
        // Whoever closes it takes the same place for a moment: it comes before, and is seen now, or after.
        check_open(tx, work.started.session.as_ref()).await?;
    }
    let stored = rows::load(tx, &work.run).await.map_err(Halt::lift)?;
    Ok(Created::New(stored.entry(tx).await.map_err(Halt::lift)?))
}

/// The epoch of a run's own first event.
pub(super) fn first_epoch(owner: Option<OwnerId>) -> Epoch {
    match owner {
        Some(_) => Epoch::NONE.next(),
        None => Epoch::NONE,
    }
}

/// A run with its own first events, on its way into the tables.
pub(super) struct Placed<'a> {
    pub tip: Tip,
    pub sealed: &'a [Sealed],
    pub blobs: &'a [Blob],
    pub owner: Option<OwnerId>,
    pub now: Timestamp,
}

/// Writes a new run. Gives its integer id.
pub(super) async fn place(tx: &Tx, placed: Placed<'_>) -> Result<i64, Halt> {
    let Placed {
        tip,
        sealed,
        blobs,
        owner,
        now,
    } = placed;
    let id = insert_run(tx, &tip).await?;
    let row = &tip.row;
    let limit = row.facts.limit.as_ref();
    Columns::of(sealed, &Mark::Tag(0)).insert(tx, id).await?;
    let ready_at = match owner {
        Some(_) => None,
        None => rows::queue_time(tx, id, row).await?,
    };
    let sql = format!(
        "WITH head AS (
           INSERT INTO live (run, epoch, event_epoch, head_seq, head_digest, updated_at, results,
             pulse, stored_at)
           VALUES ($1, $2, $2, $3, $4, $5, $6, $7, greatest({CLOCK}, $13)))
         INSERT INTO queue (run, owner, since, ready_at, limit_key, limit_max)
         VALUES ($1, $8, $9, $10, $11, $12)"
    );
    tx.exec(
        &sql,
        &[
            &id,
            &row.epoch.0.cast_signed(),
            &row.head.seq.0.cast_signed(),
            &row.head.digest.as_bytes().as_slice(),
            &row.updated_at.as_micros(),
            &rows::results_bytes(&tip.results),
            &rows::to_text(&row.pulse),
            &owner.map(|owner| owner.0.cast_signed()),
            &owner.map(|_| now.as_micros()),
            &ready_at,
            &limit.map(|limit| rows::plain(&limit.key)),
            &limit.map(|limit| i64::from(limit.max)),
            &tx.shared.clock.floor(),
        ],
    )
    .await?;
    rows::insert_blobs(tx, id, blobs, sealed).await?;
    insert_labels(tx, id, &row.facts).await?;
    rows::index(tx, id, &row.facts).await?;
    let (run, head) = (row.run, row.head.seq);
    tx.shared.tips().put(run, Box::new(Known { id, tip }));
    tx.ring(run, head);
    tx.ring_everywhere(run);
    Ok(id)
}

pub(super) async fn insert_labels(tx: &Tx, id: i64, facts: &Facts) -> Result<(), Halt> {
    for (name, value) in &facts.labels {
        let sql = "INSERT INTO labels (k, v, run) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        tx.exec(sql, &[&rows::plain(name), &rows::plain(value), &id])
            .await?;
    }
    Ok(())
}

/// The run that has the id or the key already.
async fn attach(
    tx: &Tx,
    work: &Work,
    now: Timestamp,
) -> Result<Option<Created>, Halt<CreateError>> {
    let known = match rows::find(tx, &work.run).await.map_err(Halt::lift)? {
        Some(stored) => Some((work.run.to_string(), stored)),
        None => by_key(tx, work, now).await?,
    };
    let Some((what, stored)) = known else {
        return Ok(None);
    };
    let run = stored.row.run;
    match difference(tx, &stored, &work.started)
        .await
        .map_err(Halt::lift)?
    {
        Some(differs) => Err(Halt::Refused(CreateError::Conflict { what, run, differs })),
        None => {
            // Whoever attaches is told that the run is there: a lock makes the commit wait until a standby has it too.
            rows::lock_id(tx, stored.id).await.map_err(Halt::lift)?;
            let entry = stored.entry(tx).await.map_err(Halt::lift)?;
            Ok(Some(Created::Attached(entry)))
        }
    }
}

async fn by_key(
    tx: &Tx,
    work: &Work,
    now: Timestamp,
) -> Result<Option<(String, Stored)>, Halt<CreateError>> {
    let Some(key) = &work.started.key else {
        return Ok(None);
    };
    let sql = "SELECT run, deleted_at FROM keys WHERE key = $1";
    let Some(found) = tx.opt(sql, &[&rows::plain(key)]).await? else {
        return Ok(None);
    };
    let run = rows::run_id(found.try_get(0)?)?;
    let deleted_at: Option<i64> = found.try_get(1)?;
    match deleted_at.map(Timestamp::from_micros) {
        None => {
            // Deleted since the key was read: then the key says so.
            let stored = rows::find(tx, &run).await.map_err(Halt::lift)?;
            let Some(stored) = stored else {
                return Err(Halt::Again);
            };
            Ok(Some((format!("key {key}"), stored)))
        }
        Some(at) if now.since(at) < KEY_KEPT => Err(Halt::Refused(CreateError::KeyOfDeleted {
            key: key.clone(),
            run,
        })),
        Some(_) => {
            tx.exec("DELETE FROM keys WHERE key = $1", &[&rows::plain(key)])
                .await?;
            Ok(None)
        }
    }
}

/// What differs from how the run was started. Its row may have moved on since (another spec was
/// accepted, an empty input filled), so event 1 is asked.
async fn difference(
    tx: &Tx,
    stored: &Stored,
    started: &RunStarted,
) -> Result<Option<&'static str>, Halt> {
    if fork::is_imported_whole(tx, stored.id).await? {
        return Ok(Some("parent"));
    }
    let sql = format!("SELECT {RECORD} FROM events WHERE run = $1 AND seq = 1");
    let first = match tx.opt(&sql, &[&stored.id]).await? {
        Some(row) => rows::record(&row)?.decode().ok(),
        // A fork: event 1 is another run's.
        None => return Ok(Some("parent")),
    };
    let facts = &stored.row.facts;
    let (spec, session, input) = match first.map(|event| event.body) {
        Some(Body::RunStarted(first)) => (first.spec_digest, first.session, first.input),
        // Erased, or of a newer build: the row is what is left.
        _ => (
            facts.spec_digest,
            facts.session.clone(),
            facts.input.clone(),
        ),
    };
    Ok(if spec != started.spec_digest {
        Some("spec")
    } else if session != started.session {
        Some("session")
    } else if input != started.input {
        Some("input")
    } else {
        None
    })
}

/// Whether a new run may begin.
async fn check(tx: &Tx, work: &Work) -> Result<(), Halt<CreateError>> {
    if let Some(owner) = work.owner {
        tx.shared
            .owners
            .joined(tx, owner)
            .await
            .map_err(Halt::lift)?;
    }
    // A child is created in the same transaction that sees its parent live, and keeps it from ending
    // before the child is there (SEMANTICS 15).
    if let Some(parent) = work
        .started
        .parent
        .as_ref()
        .filter(|it| it.relation == Relation::Child)
    {
        let run = parent.run.to_string();
        tx.opt("SELECT 1 FROM runs WHERE run = $1 FOR SHARE", &[&run])
            .await?;
        let parent = rows::load(tx, &parent.run).await.map_err(Halt::lift)?.row;
        if parent.status().is_terminal() {
            return Err(Halt::Refused(CreateError::ParentEnded(parent.run)));
        }
    }
    match &work.started.session {
        Some(session) if !work.has_ended => check_session(tx, session).await,
        Some(_) | None => Ok(()),
    }
}

/// A session has one run that has not ended or is still held.
async fn check_session(tx: &Tx, session: &Session) -> Result<(), Halt<CreateError>> {
    check_open(tx, Some(session)).await?;
    let name = rows::plain(session.as_str());
    let active = tx
        .opt("SELECT run FROM active WHERE session = $1", &[&name])
        .await?;
    let Some(active) = active else { return Ok(()) };
    let active: i64 = active.try_get(0)?;
    rows::lock_id(tx, active).await.map_err(Halt::lift)?;
    let stored = rows::load_id(tx, active).await.map_err(Halt::lift)?;
    // It ended, or was deleted, while we waited for it: the session is another's or nobody's.
    let Some(stored) = stored.filter(|stored| stored.live) else {
        return Err(Halt::Again);
    };
    let run = stored.row.run;
    if stored.row.status().is_terminal() && !stored.has_beating_holder() {
        // Its driver died before it gave the lease back.
        return retire(tx, active, &run).await.map_err(Halt::lift);
    }
    Err(Halt::Refused(CreateError::Busy {
        session: session.clone(),
        active: run,
    }))
}

/// A closed session takes no new runs.
async fn check_open(tx: &Tx, session: Option<&Session>) -> Result<(), Halt<CreateError>> {
    let Some(session) = session else {
        return Ok(());
    };
    let sql = "SELECT 1 FROM closed WHERE session = $1";
    match tx.opt(sql, &[&rows::plain(session.as_str())]).await? {
        Some(_) => Err(Halt::Refused(CreateError::SessionClosed(session.clone()))),
        None => Ok(()),
    }
}

/// Refuses new runs in a session from now on. One that is being created in it at this moment is waited for.
pub(super) async fn close(tx: &Tx, session: &str, place: i64) -> Result<(), Halt> {
    let sql = "INSERT INTO closed (session) VALUES ($1) ON CONFLICT DO NOTHING";
    tx.exec(sql, &[&session]).await?;
    let sql = "INSERT INTO active (session, run) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.exec(sql, &[&session, &place]).await?;
    let sql = "DELETE FROM active WHERE session = $1 AND run = $2";
    tx.exec(sql, &[&session, &place]).await?;
    Ok(())
}

/// Writes the wide row of a new run. Gives its integer id.
pub(super) async fn insert_run(tx: &Tx, tip: &Tip) -> Result<i64, Halt> {
    let row = &tip.row;
    let facts = &row.facts;
    let parent = facts.parent.as_ref();
    let ended = facts.ended.as_ref();
    let inserted = tx
        .opt(
            "INSERT INTO runs (run, short, status, session, agent, kind, spec_digest, parent,
               relation, created_at, key, fold_version, needs, facts, final_state_digest)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
             ON CONFLICT (run) DO NOTHING RETURNING id",
            &[
                &row.run.to_string(),
                &row.run.short(),
                &row.status().as_str(),
                &facts.session.as_ref().map(Session::as_str).map(rows::plain),
                &rows::plain(&facts.agent),
                &facts.kind.as_str(),
                &facts.spec_digest.as_bytes().as_slice(),
                &parent.map(|it| it.run.to_string()),
                &parent.map(|it| rows::relation_name(it.relation)),
                &facts.created_at.as_micros(),
                &tip.key.0.as_slice(),
                &i64::from(FOLD_VERSION),
                &i64::from(FORMAT),
                &rows::to_text(&**facts),
                // A past run is created with its end.
                &ended.map(|ended| ended.final_state_digest.as_bytes().to_vec()),
            ],
        )
        .await?;
    match inserted {
        Some(row) => Ok(row.try_get(0)?),
        None => Err(Halt::Again),
    }
}
