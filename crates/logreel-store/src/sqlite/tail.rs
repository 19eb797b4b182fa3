//! Hearing what other processes write.
//!
//! One thread for a store asks `PRAGMA data_version` every 5 ms, on a connection of its own and
//! outside of any transaction, and rings for the runs whose events are new. It sleeps while nobody
//! listens; when it wakes, it rings every bell once, for what it slept through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use super::failure::{Halt, failed};
use super::open::{Shared, connect_reader};
use super::rows;
use crate::Error;

const EVERY: Duration = Duration::from_millis(5);
/// How long a poller that cannot read waits before it tries again.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// The poller of a store, started when someone listens and joined in the end.
pub(super) struct Tail {
    shared: Arc<Shared>,
    stopped: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Tail {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            stopped: Arc::default(),
            thread: Mutex::default(),
        }
    }

    /// Someone listens from now on.
    pub fn wake(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            thread.thread().unpark();
            return;
        }
        let (shared, stopped) = (self.shared.clone(), self.stopped.clone());
        let spawned = thread::Builder::new()
            .name("logreel-tail".to_owned())
            .spawn(move || poll(&shared, &stopped));
        match spawned {
            Ok(poller) => *thread = Some(poller),
            Err(error) => tracing::error!("no thread to hear other processes with: {error}"),
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that hears other processes panicked");
            }
        }
    }
}

fn poll(shared: &Shared, stopped: &AtomicBool) {
    let mut ear: Option<Ear> = None;
    // An outage is told of once, however long it is.
    let mut told = false;
    while !stopped.load(Ordering::Acquire) {
        if !shared.bells.has_listeners() {
            ear = None;
            thread::park();
            continue;
        }
        let heard = match &mut ear {
            Some(ear) => ear.listen(shared),
            none => Ear::open(shared).map(|opened| {
                *none = Some(opened);
                // Whoever began to listen while we slept may have missed a ring.
                shared.bells.ring_all();
            }),
        };
        match heard {
            Ok(()) => {
                told = false;
                thread::park_timeout(EVERY);
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("other processes are not heard for now: {error}");
                }
                ear = None;
                thread::park_timeout(AFTER_FAILURE);
            }
        }
    }
}

struct Ear {
    conn: Connection,
    version: i64,
    /// The last event and the last ring that were heard.
    cursors: [i64; 2],
}

impl Ear {
    fn open(shared: &Shared) -> Result<Self, Error> {
        let conn = connect_reader(shared)?;
        // In this order: what is written in between is heard twice rather than not at all.
        let version = data_version(&conn).map_err(failed)?;
        let sql = "SELECT ifnull((SELECT max(pos) FROM events), 0),
            ifnull((SELECT max(n) FROM rings), 0)";
        let cursors = conn.query_row(sql, [], |row| Ok([row.get(0)?, row.get(1)?]));
        Ok(Self {
            version,
            cursors: cursors.map_err(failed)?,
            conn,
        })
    }

    fn listen(&mut self, shared: &Shared) -> Result<(), Error> {
        let version = data_version(&self.conn).map_err(failed)?;
        if version == self.version {
            return Ok(());
        }
        for run in self.news()? {
            shared.bells.ring(&run);
        }
        self.version = version;
        Ok(())
    }

    fn news(&mut self) -> Result<Vec<logreel_core::RunId>, Halt> {
        let events = "SELECT max(e.pos), r.run FROM events e JOIN runs r ON r.id = e.run
            WHERE e.pos > ?1 GROUP BY e.run";
        let rings = "SELECT n, run FROM rings WHERE n > ?1";
        let mut runs = Vec::new();
        for (cursor, sql) in self.cursors.iter_mut().zip([events, rings]) {
            let mut statement = self.conn.prepare_cached(sql)?;
            let mut found = statement.query([*cursor])?;
            let mut last = *cursor;
            while let Some(row) = found.next()? {
                last = last.max(row.get(0)?);
                runs.push(rows::run_id(
                    row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?,
                )?);
            }
            *cursor = last;
        }
        Ok(runs)
    }
}

fn data_version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA data_version")?
        .query_row([], |row| row.get(0))
}
