//! One connection: its patience, its pragmas, and the proof that they took.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use logreel_core::event::Durability;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::failure::failed;
use crate::Error;

/// How long a connection waits for other processes in all.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// How long when a thread waits that is someone else's.
const HURRIED_MAX: Duration = Duration::from_micros(100);
/// Attempts with the short pause. A writer that leaves the lock free for 2 ms is met by one of them.
const SHORT_PAUSES: i32 = 200;

/// How long the WAL may be before a commit of a busy writer makes a checkpoint itself: 16 MiB.
pub(super) const SERVED_PAGES: i64 = 8000;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The one that writes.
    Writer,
    /// One that reads.
    Reader,
}

/// A connection that waits as SEMANTICS 7 says, before anything else is done with it.
///
/// `hurried` makes it give up soon, while it is set.
pub(super) fn open(
    path: &Path,
    create: bool,
    hurried: Arc<AtomicBool>,
) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let mut conn = Connection::open_with_flags(path, flags)?;
    conn.busy_handler(Some(patience(hurried)))?;
    conn.set_prepared_statement_cache_capacity(96);
    // Without it SQLite plans a cached statement anew for every bound value that a partial index
    // might be about: most of the time of a short statement.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

/// Sets what the store relies on and reads it back: a misspelt pragma silently loses commits.
pub(super) fn set_up(conn: &Connection, role: Role, durability: Durability) -> Result<(), Error> {
    for (name, value) in pragmas(role, durability) {
        // Some pragmas answer with a row, some do not.
        conn.execute_batch(&format!("PRAGMA {name} = {value}"))
            .map_err(failed)?;
    }
    match differing(conn, role, durability)
        .map_err(failed)?
        .as_slice()
    {
        [] => Ok(()),
        wrong => Err(Error::unavailable(format!(
            "SQLite did not take {}",
            wrong.join(", ")
        ))),
    }
}

/// The pragmas that are not as they must be.
pub(super) fn differing(
    conn: &Connection,
    role: Role,
    durability: Durability,
) -> rusqlite::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        wrong.push(format!("journal_mode = wal (it is {mode})"));
    }
    for (name, want) in pragmas(role, durability) {
        let found: i64 = conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))?;
        if found != want {
            wrong.push(format!("{name} = {want} (it is {found})"));
        }
    }
    Ok(wrong)
}

fn pragmas(role: Role, durability: Durability) -> Vec<(&'static str, i64)> {
    let synchronous = match durability {
        Durability::Full => 2,
        Durability::Relaxed => 1,
    };
    let mut pragmas = vec![
        ("synchronous", synchronous),
        // A WAL that wraps costs half the fsync of one that grows: 4 MiB of our pages.
        ("wal_autocheckpoint", 2000),
        ("journal_size_limit", 32 << 20),
        ("temp_store", 2),
        ("foreign_keys", 0),
    ];
    match role {
        // What is deleted is written over, so that an erasure finds little else to do.
        Role::Writer => pragmas.extend([("cache_size", -8192), ("secure_delete", 1)]),
        Role::Reader => pragmas.extend([("cache_size", -2048), ("query_only", 1)]),
    }
    pragmas
}

/// A connection's busy handler: naps until the lock may be asked for again, or gives up.
fn patience(hurried: Arc<AtomicBool>) -> impl FnMut(i32) -> bool + Send + 'static {
    static SEED: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    let own = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mut pauses = Pauses::new(own ^ u64::from(std::process::id()));
    move |attempt| {
        let max = match hurried.load(Ordering::Relaxed) {
            true => HURRIED_MAX,
            false => BUSY_MAX,
        };
        let pause = pauses.next(attempt, max);
        pause.is_some_and(|pause| {
            nap(pause);
            true
        })
    }
}

/// SQLite has no queue between processes: whoever asks often gets the lock. Ask every 10 to 60 us
/// first, with jitter so that two do not ask in step, later every millisecond.
struct Pauses {
    random: u64,
    waited: Duration,
}

impl Pauses {
    fn new(seed: u64) -> Self {
        Self {
            random: seed | 1,
            waited: Duration::ZERO,
        }
    }

    /// How long to wait before the lock is asked for again; `None` when `max` was waited in all since
    /// attempt 0.
    fn next(&mut self, attempt: i32, max: Duration) -> Option<Duration> {
        if attempt == 0 {
            self.waited = Duration::ZERO;
        }
        if self.waited >= max {
            return None;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let pause = match attempt {
            ..SHORT_PAUSES => Duration::from_micros(10 + self.random % 51),
            _ => Duration::from_millis(1),
        };
        self.waited += pause;
        Some(pause)
    }
}

/// Blocks this thread for a moment.
#[expect(
    clippy::disallowed_methods,
    reason = "the lock between processes is real time, whatever clock the host supplies"
)]
pub(super) fn nap(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_lock_is_asked_for_every_10_to_60_us_then_every_ms_and_for_10_s_in_all() {
        let all = |seed| {
            let mut pauses = Pauses::new(seed);
            (0..)
                .map_while(|attempt| pauses.next(attempt, BUSY_MAX))
                .collect::<Vec<Duration>>()
        };
        let (one, other) = (all(2), all(4));
        let (short, long) = one.split_at(SHORT_PAUSES as usize);
        assert!(short.iter().all(|it| (10..=60).contains(&it.as_micros())));
        assert!(long.iter().all(|it| it.as_millis() == 1));
        let waited: Duration = one.iter().sum();
        assert!(waited >= BUSY_MAX && waited < BUSY_MAX + Duration::from_millis(1));
        assert_ne!(one[..16], other[..16], "two must not ask in step");
    }

    #[test]
    fn who_waited_for_one_lock_has_all_its_patience_for_the_next() {
        let mut pauses = Pauses::new(2);
        while pauses.next(1000, HURRIED_MAX).is_some() {}
        assert!(pauses.next(0, HURRIED_MAX).is_some());
    }
}
