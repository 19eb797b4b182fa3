//! Hearing what other processes write, by looking: no notification is needed (`bell` makes it quicker), and none
//! is lost.
//!
//! One task for a store looks, while someone listens, at the narrow rows of the runs that are listened for, and
//! rings for those that are not as they were. Whoever listens to all runs is told when the latest event is
//! another one, and once a second in any case: for what has no event, and what became visible late.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use logreel_core::{RunId, Seq};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::failure::Halt;
use super::news;
use super::open::Shared;
use super::rows;
use super::writer::{Tx, pause};
use crate::Error;
use crate::doorbell::Ring;

const EVERY: Duration = Duration::from_millis(20);
/// The same while others ring (`bell`): only what rang in vain is found so.
const EVERY_BESIDE_BELL: Duration = Duration::from_millis(100);
/// How long a poller that cannot read waits before it tries again.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How long those who listen to all runs may go without a ring.
const ANY: Duration = Duration::from_secs(1);

/// The poller of a store, started when someone listens.
pub(super) struct Tail {
    shared: Weak<Shared>,
    handle: Handle,
    wanted: Arc<Notify>,
    started: std::sync::Once,
}

impl Tail {
    pub fn new(shared: Arc<Shared>, handle: Handle) -> Self {
        Self {
            shared: Arc::downgrade(&shared),
            handle,
            wanted: Arc::default(),
            started: std::sync::Once::new(),
        }
    }

    /// Someone listens from now on.
    pub fn wake(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.bell.listen();
        }
        self.started.call_once(|| {
            self.handle
                .spawn(poll(self.shared.clone(), self.wanted.clone()));
        });
        self.wanted.notify_one();
    }
}

/// How runs were when they were last looked at: any difference is a ring.
type Seen = HashMap<RunId, Looks>;

#[derive(PartialEq, Eq)]
struct Looks {
    head: Seq,
    /// All but how far its log reaches.
    rest: String,
}

/// What to tell of a run that looks like this now. One that was not looked at before may have rung before it was
/// listened for.
fn difference(run: RunId, before: Option<&Looks>, now: Option<&Looks>) -> Option<Ring> {
    match (before, now) {
        (before, now) if before == now => None,
        // A driver that appended this itself need not read it.
        (Some(before), Some(now)) if before.rest == now.rest => Some(Ring::Appended(run, now.head)),
        _ => Some(Ring::Changed(run)),
    }
}

#[derive(Default)]
struct Ear {
    runs: Seen,
    last: Option<i64>,
    /// How long those who listen to all runs have heard no ring.
    quiet: Duration,
}

async fn poll(shared: Weak<Shared>, wanted: Arc<Notify>) {
    let mut ear: Option<Ear> = None;
    // An outage is told of once, however long it is.
    let mut told = false;
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if !shared.bells.has_listeners() {
            ear = None;
            drop(shared);
            wanted.notified().await;
            continue;
        }
        let is_new = ear.is_none();
        let before = ear.take().unwrap_or_default();
        let heard: Result<Ear, Error> = shared
            .reading(|tx| async move { listen(&tx, before).await })
            .await;
        match heard {
            Ok(mut heard) => {
                told = false;
                if is_new {
                    // Whoever began to listen while we slept may have missed a ring.
                    shared.bells.ring_all();
                }
                let every = match shared.bell.is_heard() {
                    true => EVERY_BESIDE_BELL,
                    false => EVERY,
                };
                heard.quiet += every;
                ear = Some(heard);
                tokio::select! {
                    () = pause(every) => {}
                    () = shared.look.notified() => {}
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("other processes are not heard for now: {error}");
                }
                drop(shared);
                pause(AFTER_FAILURE).await;
            }
        }
    }
}

async fn listen(tx: &Tx, before: Ear) -> Result<Ear, Halt> {
    let bells = &tx.shared.bells;
    let listened = bells.listened();
    let mut now = Ear {
        runs: Seen::with_capacity(listened.len()),
        last: before.last,
        quiet: before.quiet,
    };
    if !listened.is_empty() {
        let names: Vec<String> = listened.iter().map(RunId::to_string).collect();
        let sql = "SELECT r.run, coalesce(l.head_seq, r.head_seq, 0),
              concat_ws(' ', r.status, r.erased, r.read_only, coalesce(l.epoch, r.epoch),
                l.run IS NULL, coalesce(q.owner, 0), coalesce(q.ready_at, -1), o.gone)
            FROM runs r LEFT JOIN live l ON l.run = r.id LEFT JOIN queue q ON q.run = r.id
            LEFT JOIN owners o ON o.id = q.owner
            WHERE r.run = ANY($1)";
        for row in tx.query(sql, &[&names]).await? {
            let looks = Looks {
                head: Seq(row.try_get::<_, i64>(1)?.cast_unsigned()),
                rest: row.try_get(2)?,
            };
            now.runs.insert(rows::run_id(row.try_get(0)?)?, looks);
        }
        for run in listened {
            if let Some(ring) = difference(run, before.runs.get(&run), now.runs.get(&run)) {
                bells.tell(ring);
            }
        }
    }
    now.last = news::last(tx).await?;
    if now.last != before.last || before.quiet >= ANY {
        now.quiet = Duration::ZERO;
        bells.ring_any();
    }
    Ok(now)
}
