//! Moving what was committed from the WAL into the file, beside a busy writer.
//!
//! A checkpoint inside a commit makes everyone wait for many scattered pages: with 64 runs at once, 8 ms
//! every 20 commits. One on a thread and a connection of its own needs another lock than a commit,
//! so the two go on side by side. It never catches up with a writer that does not stop, though, and
//! a WAL that is not moved whole is not begun anew: the writer moves the rest itself, in the
//! moment in which it leaves the lock to others.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use super::failure::failed;
use super::open::{Shared, connect_reader};
use crate::Error;

/// A WAL of this many pages should begin anew.
const LONG: i64 = 3000;

/// The thread of a store, started when it is first needed and joined in the end.
pub(super) struct Checkpointer {
    shared: Arc<Shared>,
    state: Arc<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    wanted: AtomicBool,
    /// Pages in the WAL when it was last looked at; 0 once all of them were moved.
    pages: AtomicI64,
    at_work: AtomicBool,
}

impl Checkpointer {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            state: Arc::default(),
            thread: Mutex::default(),
        }
    }

    /// There is something to move.
    pub fn wake(&self) {
        self.state.wanted.store(true, Ordering::Release);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            thread.thread().unpark();
            return;
        }
        let (shared, state) = (self.shared.clone(), self.state.clone());
        let spawned = thread::Builder::new()
            .name("logreel-wal".to_owned())
            .spawn(move || work(&shared, &state));
        match spawned {
            Ok(worker) => *thread = Some(worker),
            // The commits that make the WAL too long move it themselves.
            Err(error) => tracing::error!("no thread to move the WAL with: {error}"),
        }
    }

    /// Moves the rest, while nobody commits, if that is due.
    pub fn finish(&self, conn: &Connection) {
        let is_due = self.state.pages.load(Ordering::Acquire) >= LONG;
        if is_due && !self.state.at_work.load(Ordering::Acquire) {
            checkpoint(conn, &self.state);
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Release);
        let thread = self.thread.get_mut();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that moves the WAL panicked");
            }
        }
    }
}

fn work(shared: &Shared, state: &State) {
    let mut conn: Option<Connection> = None;
    while !state.stopped.load(Ordering::Acquire) {
        if !state.wanted.swap(false, Ordering::AcqRel) {
            thread::park();
            continue;
        }
        if conn.is_none() {
            match connect_reader(shared) {
                Ok(opened) => conn = Some(opened),
                Err(error) => report(&error),
            }
        }
        if let Some(conn) = &conn {
            state.at_work.store(true, Ordering::Release);
            checkpoint(conn, state);
            state.at_work.store(false, Ordering::Release);
        }
    }
}

/// Moves what is committed by now.
fn checkpoint(conn: &Connection, state: &State) {
    let moved = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    });
    match moved {
        Ok((pages, moved)) => {
            let left = if moved == pages { 0 } else { pages };
            state.pages.store(left, Ordering::Release);
        }
        Err(error) => report(&failed(error)),
    }
}

fn report(error: &Error) {
    // The commits that make the WAL too long try again, and whoever they are for is told.
    tracing::warn!(%error, "the WAL was not moved into the store's file");
}
