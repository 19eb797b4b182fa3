//! Leading batches: whoever appends and finds the connection free commits for all who wait.
//!
//! A thread hop costs as much as the fsync, so there is no writer thread on the hot path. A job is
//! pushed to the queue; if the connection is free, its owner takes the whole queue, commits it as one
//! transaction, acknowledges, gives the connection back, and only *then* looks at the queue again
//! and wakes the helper thread if someone came meanwhile. So nobody is left waiting: who pushed
//! before that look is seen by it, who pushed after it finds the connection free.
//!
//! On a runtime with several workers the leader blocks its worker for the commit: handing the worker
//! over first (`block_in_place`) was measured at a third of the fsync. It never waits there for
//! another process, though: when the lock between processes is taken, the batch goes back to the
//! queue and the helper, which may wait, leads it.
//!
//! Many who each wait for their answer would fall into groups that commit in turn, each with a sync of
//! its own. So a batch is led once nearly all have come who were in the last one or waited behind it;
//! the helper leads what there is after a moment, and when they did not come, nobody is waited for
//! during the next batches.
//!
//! Taking, committing and acknowledging happen with no await in between, so a dropped future strands
//! nobody. When a leader panics, the members' answers are dropped, which tells them that the outcome
//! is not known.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use logreel_core::{RunId, Seq};
use rusqlite::{Connection, ErrorCode};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::checkpoint::Checkpointer;
use super::connect::{SERVED_PAGES, nap};
use super::failure::{Halt, failed, surely_not_written};
use super::open::{Shared, connect_writer};
use crate::Error;
use crate::doorbell::Ring;
use crate::tips::Tips;

/// A writer busy for this long on end ..
const BUSY: Duration = Duration::from_millis(20);
/// .. with the lock free for less than this in all ..
const BREATHED: Duration = Duration::from_millis(1);
/// .. leaves it free for this long, so that another process gets its turn (SEMANTICS 7).
const BREATH: Duration = Duration::from_millis(2);

/// How long those of the last batches are waited for, who are likely to come again at once ..
const GATHERING: Duration = Duration::from_micros(500);
/// .. and for how many batches they are not, after they did not come.
const BATCHES_UNGATHERED: u32 = 32;

/// A batch of this many jobs says that many write at once.
const SERVED: usize = 8;
/// After this many events of such batches there is a checkpoint: about two pages each.
const MOVED_AT: usize = 500;

/// Rings without an event that other processes can still find.
const RINGS_KEPT: i64 = 1000;

/// The one connection that writes, and who waits for it.
pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: Mutex<Vec<Box<dyn Job>>>,
    seat: Mutex<Seat>,
    /// How many jobs the last batch had: above one, others are worth waiting a moment for.
    company: AtomicUsize,
    /// With how many jobs the next batch is worth its sync. The helper leads one with fewer after a
    /// moment. 0 when nobody is waited for.
    gathered: AtomicUsize,
    checkpointer: Checkpointer,
    helper: OnceLock<thread::Thread>,
    stopped: AtomicBool,
}

/// What the leader has to itself.
struct Seat {
    /// `None` after a failure that a new connection must find out about.
    conn: Option<Connection>,
    tips: Tips,
    pace: Pace,
    /// How many batches to lead before others are waited for again.
    ungathered: u32,
    /// Many write at once, so that commits leave checkpoints to a thread of their own.
    is_served: bool,
    /// Jobs since the last checkpoint was asked for.
    unmoved: usize,
}

/// A batch's transaction, as its jobs see it.
pub(super) struct Tx<'a> {
    pub conn: &'a Connection,
    pub shared: &'a Shared,
    pub tips: &'a mut Tips,
    next_pos: Option<i64>,
    /// What to tell whoever watches, once it is committed.
    changed: Vec<Ring>,
}

trait Job: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), rusqlite::Error>;
    fn answer(self: Box<Self>, committed: &Result<(), Error>);
}

/// A job's work, its answer once it ran, and who waits for it.
struct Task<T, E, F> {
    work: Option<F>,
    answer: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Job for Task<T, E, F>
where
    T: Send,
    E: From<Error> + Send,
    F: FnOnce(&mut Tx<'_>) -> Result<T, Halt<E>> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), rusqlite::Error> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        match work(tx) {
            Ok(answer) => self.answer = Some(Ok(answer)),
            Err(Halt::Refused(refusal)) => self.answer = Some(Err(refusal)),
            Err(Halt::Database(error)) => return Err(error),
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: &Result<(), Error>) {
        let answer = match (committed, self.answer) {
            // A refusal too: it may rest on what another of the batch had written.
            (Err(error), _) => Err(error.clone().into()),
            (Ok(()), Some(answer)) => answer,
            (Ok(()), None) => Err(Error::Bug("a job of a batch did not run".to_owned()).into()),
        };
        // Whoever asked may have stopped waiting; what was committed stays committed.
        drop(self.reply.send(answer));
    }
}

impl Tx<'_> {
    /// The next place in the order of all events. Never one that was used before, though a deleted
    /// run's may have been the last.
    pub fn next_pos(&mut self) -> rusqlite::Result<&mut i64> {
        if self.next_pos.is_none() {
            let sql = "SELECT 1 + max(ifnull((SELECT max(pos) FROM events), 0),
                (SELECT value FROM meta WHERE key = 'pos_floor'))";
            self.next_pos = Some(
                self.conn
                    .prepare_cached(sql)?
                    .query_row([], |row| row.get(0))?,
            );
        }
        Ok(self.next_pos.as_mut().expect("it was set just above"))
    }

    /// Whoever watches this run hears once it is committed that its log reaches `head`.
    pub fn ring(&mut self, run: RunId, head: Seq) {
        self.changed.push(Ring::Appended(run, head));
    }

    /// The same, but for the run's driver, which appended.
    pub fn ring_driven(&mut self, run: RunId, head: Seq) {
        self.changed.push(Ring::Driven(run, head));
    }

    /// The same for a change without an event, of which other processes would not hear otherwise.
    pub fn ring_everywhere(&mut self, run: RunId) -> rusqlite::Result<()> {
        let sql = "INSERT INTO rings (run) VALUES (?1)";
        self.conn.prepare_cached(sql)?.execute([run.to_string()])?;
        let last = self.conn.last_insert_rowid();
        let sql = "DELETE FROM rings WHERE n <= ?1";
        self.conn
            .prepare_cached(sql)?
            .execute([last - RINGS_KEPT])?;
        self.changed.push(Ring::Changed(run));
        Ok(())
    }
}

impl Writer {
    pub fn new(shared: Arc<Shared>, conn: Connection) -> Self {
        Self {
            checkpointer: Checkpointer::new(shared.clone()),
            shared,
            queue: Mutex::default(),
            seat: Mutex::new(Seat {
                conn: Some(conn),
                tips: Tips::default(),
                pace: Pace::default(),
                ungathered: 0,
                is_served: false,
                unmoved: 0,
            }),
            company: AtomicUsize::new(0),
            gathered: AtomicUsize::new(0),
            helper: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Runs a job in a batch's transaction and gives its answer once that is durable.
    pub async fn submit<T, E, F>(&self, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, Halt<E>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let waiting = {
            let mut queue = self.queue();
            queue.push(Box::new(Task {
                work: Some(work),
                answer: None,
                reply,
            }));
            queue.len()
        };
        if waiting == 1 && !self.is_gathered(waiting) {
            // Before anything is awaited: who comes after relies on it.
            self.wake_helper();
        }
        let workers = workers();
        if workers > 0 {
            let in_company = || self.company.load(Ordering::Relaxed) > 1;
            if in_company() {
                // Others were just woken by the same commit: let them push first.
                tokio::task::yield_now().await;
            }
            let waiting = self.queue().len();
            let led = match workers {
                _ if !self.is_gathered(waiting) => false,
                1 => tokio::task::block_in_place(|| self.try_lead()),
                _ => self.try_lead(),
            };
            if led && in_company() {
                // Or the tasks this batch has woken starve behind the next one.
                tokio::task::yield_now().await;
            }
        } else if self.is_gathered(waiting) {
            self.wake_helper();
        }
        answer.await.unwrap_or_else(|_| {
            let what = "whoever committed it stopped half-way".to_owned();
            Err(Error::Ambiguous { what }.into())
        })
    }

    /// Whether a batch of this many need not wait for others.
    fn is_gathered(&self, waiting: usize) -> bool {
        waiting >= self.gathered.load(Ordering::Relaxed)
    }

    /// Leads one batch if nobody does. `false` when someone does, who will look at the queue after.
    fn try_lead(&self) -> bool {
        let seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.lead(seat, Patience::Short);
        true
    }

    fn lead(&self, mut seat: MutexGuard<'_, Seat>, patience: Patience) {
        let after = LookAfter(self);
        if seat.pace.is_out_of_breath(self.shared.env.monotonic()) {
            match patience {
                Patience::Short => {
                    drop(seat);
                    return;
                }
                Patience::Long => seat.breathe(&self.shared, &self.checkpointer),
            }
        }
        let batch = std::mem::take(&mut *self.queue());
        if batch.is_empty() {
            drop(seat);
            return;
        }
        self.company.store(batch.len(), Ordering::Relaxed);
        let taken = batch.len();
        if !self.is_gathered(taken) {
            seat.ungathered = BATCHES_UNGATHERED;
        }
        seat.unmoved += taken;
        if batch.len() >= SERVED {
            seat.serve();
        }
        let changed = match seat.commit(&self.shared, batch, patience) {
            Ok(changed) => changed,
            Err(waiting) => {
                // Before those that came meanwhile.
                self.queue().splice(0..0, waiting);
                Vec::new()
            }
        };
        if seat.is_served && seat.unmoved >= MOVED_AT {
            seat.unmoved = 0;
            self.checkpointer.wake();
        }
        seat.ungathered = seat.ungathered.saturating_sub(1);
        let likely = taken + self.queue().len();
        self.gathered.store(
            match seat.ungathered {
                // Nearly all: some will have ended.
                0 if likely > 1 => likely - likely / 8,
                _ => 0,
            },
            Ordering::Relaxed,
        );
        seat.pace.done(self.shared.env.monotonic());
        drop(seat);
        drop(after);
        for ring in changed {
            self.shared.bells.tell(ring);
        }
    }

    /// Calls `act` while nobody leads.
    pub fn rest(&self, act: &mut dyn FnMut()) {
        let after = LookAfter(self);
        let mut seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        if seat.conn.as_ref().is_some_and(|conn| !conn.is_autocommit()) {
            // A leader panicked; without its connection nothing of it is left open.
            seat.conn = None;
            seat.tips.clear();
        }
        act();
        drop(seat);
        drop(after);
    }

    fn queue(&self) -> MutexGuard<'_, Vec<Box<dyn Job>>> {
        // Nothing panics while the queue is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_helper(&self) {
        match self.helper.get() {
            Some(helper) => helper.unpark(),
            None => tracing::error!("the store's helper thread is not there"),
        }
    }

    /// Starts the helper, which leads when nobody else can. Joined by [`Helper`]'s drop.
    pub fn start_helper(self: &Arc<Self>) -> Result<Helper, Error> {
        let writer = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("logreel-writer".to_owned())
            .spawn(move || writer.help())
            .map_err(|error| Error::unavailable(format!("no thread for the writer: {error}")))?;
        let known = self.helper.set(thread.thread().clone());
        debug_assert!(known.is_ok(), "the helper is started once");
        Ok(Helper {
            writer: Arc::clone(self),
            thread: Some(thread),
        })
    }

    /// Gives those who were just answered a moment to come again.
    fn gather(&self) {
        let began = self.shared.env.monotonic();
        // More than once, because the helper may have been woken for what it sees anyway.
        for _ in 0..3 {
            let waiting = self.queue().len();
            let spent = self.shared.env.monotonic().saturating_sub(began);
            if self.is_gathered(waiting) || spent >= GATHERING {
                return;
            }
            thread::park_timeout(GATHERING - spent);
        }
    }

    fn help(&self) {
        loop {
            while !self.queue().is_empty() {
                self.gather();
                let seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
                // The members' answers are gone with the panic; the next batch must still be led.
                if catch_unwind(AssertUnwindSafe(|| self.lead(seat, Patience::Long))).is_err() {
                    tracing::error!("a batch panicked; its outcome is not known to its members");
                }
            }
            // Looked at right before: `gather` may have slept away the wake-up that came with it.
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            thread::park();
        }
    }
}

/// Looks at the queue after the seat is free, also when the leader panics.
struct LookAfter<'a>(&'a Writer);

impl Drop for LookAfter<'_> {
    fn drop(&mut self) {
        if !self.0.queue().is_empty() {
            self.0.wake_helper();
        }
    }
}

/// Keeps the helper thread, and joins it in the end.
pub(super) struct Helper {
    writer: Arc<Writer>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.writer.stopped.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the store's helper thread panicked");
            }
        }
    }
}

/// How long a leader may wait for other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Not at all: someone else's worker is blocked.
    Short,
    /// Until the connection's own patience ends.
    Long,
}

/// Why a batch was not committed.
enum Failure {
    /// Another process writes, and this leader may not wait for it.
    Busy,
    /// What everyone in the batch is told.
    Told(Error),
}

impl Seat {
    /// One transaction for all. Answers everyone and gives back whose runs changed, or gives the
    /// batch back as it was.
    fn commit(
        &mut self,
        shared: &Shared,
        mut batch: Vec<Box<dyn Job>>,
        patience: Patience,
    ) -> Result<Vec<Ring>, Vec<Box<dyn Job>>> {
        shared
            .hurried
            .store(patience == Patience::Short, Ordering::Relaxed);
        let (outcome, changed) = match self.transact(shared, &mut batch) {
            Ok(changed) => (Ok(()), changed),
            Err(Failure::Busy) if patience == Patience::Short => return Err(batch),
            Err(failure) => {
                // They may be ahead of what is stored.
                self.tips.clear();
                let busy = || Error::unavailable("other processes kept it busy; try again");
                let error = match failure {
                    Failure::Busy => busy(),
                    Failure::Told(error) => error,
                };
                (Err(error), Vec::new())
            }
        };
        for job in batch {
            job.answer(&outcome);
        }
        Ok(changed)
    }

    fn transact(
        &mut self,
        shared: &Shared,
        batch: &mut [Box<dyn Job>],
    ) -> Result<Vec<Ring>, Failure> {
        let told = |error| Failure::Told(failed(error));
        let conn = match &mut self.conn {
            Some(conn) => conn,
            none => {
                self.is_served = false;
                none.insert(connect_writer(shared).map_err(Failure::Told)?)
            }
        };
        if !conn.is_autocommit() {
            // The leader before us panicked.
            self.tips.clear();
            conn.execute_batch("ROLLBACK").map_err(told)?;
        }
        let begun = conn
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut it| it.execute([]));
        begun.map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy) => Failure::Busy,
            _ => told(error),
        })?;
        let mut tx = Tx {
            conn,
            shared,
            tips: &mut self.tips,
            next_pos: None,
            changed: Vec::new(),
        };
        let done = batch.iter_mut().try_for_each(|job| job.run(&mut tx));
        let changed = tx.changed;
        if let Err(error) = done {
            // Nothing was committed, and everyone may send again.
            self.give_up();
            return Err(told(error));
        }
        match conn
            .prepare_cached("COMMIT")
            .and_then(|mut it| it.execute([]))
        {
            Ok(_) => Ok(changed),
            Err(error) => {
                let known = surely_not_written(&error);
                let error = failed(error);
                self.give_up();
                // SEMANTICS 5: a failed commit is ambiguous for everyone in the batch.
                let what = error.to_string();
                Err(Failure::Told(if known {
                    error
                } else {
                    Error::Ambiguous { what }
                }))
            }
        }
    }

    /// From now on a commit makes a checkpoint only when the thread for them does not keep up.
    fn serve(&mut self) {
        if let Some(conn) = self.conn.as_ref().filter(|_| !self.is_served) {
            match conn.pragma_update(None, "wal_autocheckpoint", SERVED_PAGES) {
                Ok(()) => self.is_served = true,
                Err(error) => tracing::warn!(%error, "commits go on with their own checkpoints"),
            }
        }
    }

    /// Leaves the lock between processes free for a moment. A checkpoint needs another one.
    fn breathe(&mut self, shared: &Shared, checkpointer: &Checkpointer) {
        let began = shared.env.monotonic();
        if let Some(conn) = self.conn.as_ref().filter(|conn| conn.is_autocommit()) {
            checkpointer.finish(conn);
        }
        let took = shared.env.monotonic().saturating_sub(began);
        nap(BREATH.saturating_sub(took));
        self.pace.breathed(shared.env.monotonic());
    }

    /// After a failure: roll back, or have the next batch open a new connection.
    fn give_up(&mut self) {
        if let Some(conn) = self.conn.take() {
            let clean = conn.is_autocommit() || conn.execute_batch("ROLLBACK").is_ok();
            if clean {
                self.conn = Some(conn);
            }
        }
    }
}

/// How long the lock between processes was held, and free, lately.
#[derive(Default)]
struct Pace {
    window: Duration,
    last: Duration,
    free: Duration,
}

impl Pace {
    /// Whether the lock was held for so long, and so much, that another process must get its turn.
    fn is_out_of_breath(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.window) < BUSY {
            self.free += now.saturating_sub(self.last);
            self.last = now;
            return false;
        }
        if self.free >= BREATHED || now.saturating_sub(self.last) >= BREATHED {
            (self.window, self.last, self.free) = (now, now, Duration::ZERO);
            return false;
        }
        true
    }

    fn breathed(&mut self, now: Duration) {
        (self.window, self.last, self.free) = (now, now, Duration::ZERO);
    }

    fn done(&mut self, now: Duration) {
        self.last = now;
    }
}

/// How many workers the runtime we run on has; 0 when its thread is not ours to block: a
/// single-thread runtime, or someone else's executor.
fn workers() -> usize {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            runtime.metrics().num_workers()
        }
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{Options, SqliteStore};

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            create: true,
            ..Options::default()
        };
        let store = SqliteStore::open(folder.path().join("runs.db"), options).unwrap();
        (folder, store)
    }

    /// Commits that each take `held` and begin `free` after the one before: the first before which the
    /// lock is left to others, if any of the first thousand is.
    fn breath_before(held: Duration, free: Duration) -> Option<u32> {
        let (mut pace, mut now) = (Pace::default(), Duration::from_secs(1));
        pace.breathed(now);
        (0..1000).find(|_| {
            now += free;
            if pace.is_out_of_breath(now) {
                return true;
            }
            now += held;
            pace.done(now);
            false
        })
    }

    #[test]
    fn a_writer_busy_for_20_ms_on_end_leaves_the_lock_free_for_2_ms() {
        assert_eq!(BREATH, Duration::from_millis(2));
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        assert_eq!(breath_before(ms(1), us(1)), Some(20));
        assert_eq!(breath_before(ms(4), us(10)), Some(5));
        assert_eq!(breath_before(ms(30), us(1)), Some(1), "one long commit");
        // Whoever leaves it free anyway need not.
        assert_eq!(breath_before(ms(1), ms(2)), None);
        assert_eq!(breath_before(us(900), us(100)), None);
    }

    async fn close(store: &SqliteStore, name: String) -> Result<(), Error> {
        let work = move |tx: &mut Tx<'_>| {
            tx.conn.execute("INSERT INTO closed VALUES (?1)", [name])?;
            Ok(())
        };
        store.writer().submit(work).await
    }

    async fn closed(store: &SqliteStore) -> i64 {
        let count = "SELECT count(*) FROM closed";
        store
            .reading(|conn| Ok(conn.query_row(count, [], |row| row.get(0))?))
            .unwrap()
    }

    /// A job that panics takes its batch with it, and nothing else.
    async fn survives_a_panic(store: SqliteStore) {
        close(&store, "before".to_owned()).await.unwrap();
        let panicking = store.clone();
        let task = tokio::spawn(async move {
            let work = |_: &mut Tx<'_>| -> Result<(), Halt> { panic!("on purpose") };
            panicking.writer().submit(work).await
        });
        // Led by its own task, it is a panic there; led by the helper, the outcome is not known.
        match task.await {
            Ok(answer) => assert!(matches!(answer, Err(Error::Ambiguous { .. })), "{answer:?}"),
            Err(panic) => assert!(panic.is_panic()),
        }
        close(&store, "after".to_owned()).await.unwrap();
        assert_eq!(closed(&store).await, 2);
    }

    #[tokio::test]
    async fn a_panic_of_the_helper_fails_its_batch_only() {
        let (_folder, store) = store();
        survives_a_panic(store).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_panic_of_a_leading_task_fails_its_batch_only() {
        let (_folder, store) = store();
        survives_a_panic(store).await;
    }

    #[tokio::test]
    async fn a_full_disk_is_named_and_the_store_goes_on_once_there_is_space() {
        let (_folder, store) = store();
        let limit = |pages: &'static str| {
            let sql = format!("PRAGMA max_page_count = {pages}");
            store
                .writer()
                .submit(move |tx: &mut Tx<'_>| -> Result<(), Halt> {
                    tx.conn.query_row(&sql, [], |_| Ok(()))?;
                    Ok(())
                })
        };
        limit("1").await.unwrap();
        let error = close(&store, "x".repeat(100_000))
            .await
            .expect_err("there is no space");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("disk is full"), "{error}");
        assert_eq!(closed(&store).await, 0, "nothing was written");
        limit("1000000").await.unwrap();
        close(&store, "x".repeat(100_000)).await.unwrap();
        assert_eq!(closed(&store).await, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_leader_does_not_block_its_runtime_behind_another_process() {
        let (_folder, store) = store();
        let other = Connection::open(store.path()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let waiting: Vec<_> = (0..8)
            .map(|name| {
                let store = store.clone();
                tokio::spawn(async move { close(&store, format!("{name}")).await })
            })
            .collect();
        // The runtime goes on while all of them wait for the other process.
        for _ in 0..20 {
            tokio::task::yield_now().await;
            tokio::spawn(async {}).await.unwrap();
        }
        assert!(!waiting.iter().any(|task| task.is_finished()));
        other.execute_batch("COMMIT").unwrap();
        for task in waiting {
            task.await.unwrap().unwrap();
        }
        assert_eq!(closed(&store).await, 8);
    }
}
