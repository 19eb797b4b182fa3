//! A store that fails on purpose, so that a test can stop a process at every write.
//!
//! [`FaultyStore`] stands between an engine and its store like a process between its memory and the
//! disk: a fault loses a write or its answer, a crash ends the wrapper while the store lives on.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use logreel_core::{
    AppendId, Blob, Digest, Epoch, Event, Outside, RunId, RunKey, Seq, Session, Timestamp,
};
use tokio::runtime::Runtime;

use crate::{
    Append, AppendError, Appended, Backlog, ClaimOutcome, Claimable, Commanded, CreateError,
    Created, Cursor, Deleted, Doorbell, Duty, Entry, EraseError, Error, EventPage, Filter,
    ForkError, Heirs, Import, ImportError, Lapsed, NewFork, NewRun, News, Owner, OwnerId,
    OwnerInfo, RunPage, RunStore, SessionInfo, Since, Stats,
};

/// What happens to the chosen write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing is written, and the caller is told so ([`Error::Unavailable`]).
    Refused,
    /// Nothing is written, but the caller cannot know ([`Error::Ambiguous`]).
    Lost,
    /// It is written, but the caller cannot know ([`Error::Ambiguous`]).
    Landed,
    /// The process dies before the write.
    CrashBefore,
    /// The process dies after the write and before its answer.
    CrashAfter,
}

impl Fault {
    /// All of them, for a sweep.
    pub const ALL: [Self; 5] = [
        Self::Refused,
        Self::Lost,
        Self::Landed,
        Self::CrashBefore,
        Self::CrashAfter,
    ];
}

/// Says which writes fail and counts them. A clone is the same controller.
///
/// Create, fork, import, take_over, append, command, claim, release and erase are writes, counted together from 1.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

/// What happens elsewhere, around a write.
type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

#[derive(Default)]
struct Plan {
    writes: u64,
    meanwhile: Vec<(u64, When, Meanwhile)>,
    faults: Vec<(u64, Fault)>,
    crashed: bool,
    /// After which write the store is away, and for how many calls.
    away_after: Option<(u64, u32)>,
    away: u32,
    cut: bool,
}

impl Faults {
    /// No faults yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The `nth` write, counted from 1 over the controller's life, meets this fault.
    pub fn fail(&self, nth: u64, fault: Fault) {
        self.plan().faults.push((nth, fault));
    }

    /// The next write meets this fault.
    pub fn fail_next(&self, fault: Fault) {
        let mut plan = self.plan();
        let nth = plan.writes + 1;
        plan.faults.push((nth, fault));
    }

    /// Something happens elsewhere right before the `nth` write.
    pub fn before(&self, nth: u64, meanwhile: impl Future<Output = ()> + Send + 'static) {
        let meanwhile = (nth, When::Before, Box::pin(meanwhile) as Meanwhile);
        self.plan().meanwhile.push(meanwhile);
    }

    /// Something happens elsewhere between the `nth` write and its answer.
    pub fn after(&self, nth: u64, meanwhile: impl Future<Output = ()> + Send + 'static) {
        let meanwhile = (nth, When::After, Box::pin(meanwhile) as Meanwhile);
        self.plan().meanwhile.push(meanwhile);
    }

    /// After the next write the store cannot be reached, for so many calls of whatever kind.
    pub fn away_after_next(&self, calls: u32) {
        self.away_after(self.writes() + 1, calls);
    }

    /// After the `nth` write the store cannot be reached, for so many calls of whatever kind.
    pub fn away_after(&self, nth: u64, calls: u32) {
        self.plan().away_after = Some((nth, calls));
    }

    /// From now on, until [`Faults::reconnect`], the store cannot be reached and answers on their way are lost.
    pub fn cut_off(&self) {
        self.plan().cut = true;
    }

    /// The store can be reached again.
    pub fn reconnect(&self) {
        self.plan().cut = false;
    }

    /// The process dies now: every call fails from here on.
    pub fn crash(&self) {
        self.plan().crashed = true;
    }

    /// How many writes were tried, those that met a fault included: a sweep's number of points.
    pub fn writes(&self) -> u64 {
        self.plan().writes
    }

    /// Whether the process died.
    pub fn crashed(&self) -> bool {
        self.plan().crashed
    }

    async fn let_happen(&self, nth: u64, when: When) {
        let due: Vec<_> = {
            let mut plan = self.plan();
            let all = std::mem::take(&mut plan.meanwhile).into_iter();
            let (due, later) = all.partition(|(at, it, _)| (*at, *it) == (nth, when));
            plan.meanwhile = later;
            due
        };
        for (_, _, meanwhile) in due {
            meanwhile.await;
        }
    }

    fn next_write(&self) -> Result<(u64, Option<Fault>), Error> {
        let mut plan = self.plan();
        alive(&plan)?;
        there(&mut plan)?;
        plan.writes += 1;
        let nth = plan.writes;
        if let Some((_, calls)) = plan.away_after.take_if(|(after, _)| *after == nth) {
            plan.away = calls;
        }
        let fault = plan
            .faults
            .iter()
            .find(|(at, _)| *at == nth)
            .map(|(_, fault)| *fault);
        if fault == Some(Fault::CrashBefore) {
            plan.crashed = true;
        }
        Ok((nth, fault))
    }

    fn check(&self) -> Result<(), Error> {
        let mut plan = self.plan();
        alive(&plan)?;
        match plan.cut {
            true => there(&mut plan),
            false => Ok(()),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // Nothing panics while the plan is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn there(plan: &mut Plan) -> Result<(), Error> {
    if plan.away == 0 && !plan.cut {
        return Ok(());
    }
    plan.away = plan.away.saturating_sub(1);
    Err(Error::unavailable("away (injected)"))
}

fn alive(plan: &Plan) -> Result<(), Error> {
    if plan.crashed {
        Err(Error::unavailable("crashed (injected)"))
    } else {
        Ok(())
    }
}

/// A store that fails as its [`Faults`] say.
///
/// After a crash every call fails with [`Error::Unavailable`], and answers that were under way are
/// lost; the store behind it does not notice. Its owners stay alive there until their lease is over,
/// or until the test says [`RunStore::leave`] to the inner store, as a dead process's lock would.
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn RunStore>,
    faults: Faults,
    still: bool,
}

impl FaultyStore {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn RunStore>, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            still: false,
        }
    }

    /// No virtual time passes while the store works. A paused runtime lets its clock jump when all
    /// its tasks wait, and to it a store that works on a thread of its own looks like that.
    #[must_use]
    pub fn still(self) -> Self {
        Self {
            still: true,
            ..self
        }
    }

    async fn write<T, E: From<Error>>(
        &self,
        write: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let write = Inline::new(write, self.still);
        let (nth, fault) = self.faults.next_write()?;
        self.faults.let_happen(nth, When::Before).await;
        match fault {
            None => {
                let answer = write.await;
                self.faults.let_happen(nth, When::After).await;
                self.faults.check()?;
                answer
            }
            Some(Fault::Refused) => {
                Err(Error::unavailable("nothing was written (injected)").into())
            }
            Some(Fault::Lost) => Err(ambiguous().into()),
            Some(Fault::Landed) => {
                write.await?;
                Err(ambiguous().into())
            }
            Some(Fault::CrashBefore) => Err(Error::unavailable("crashed (injected)").into()),
            Some(Fault::CrashAfter) => {
                let answer = write.await;
                self.faults.crash();
                self.faults.check()?;
                answer
            }
        }
    }

    async fn pass<T>(
        &self,
        read: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.faults.check()?;
        there(&mut self.faults.plan())?;
        let answer = Inline::new(read, self.still).await;
        self.faults.check()?;
        answer
    }
}

/// A store's call that is polled as if on a runtime with several threads, when asked for: the store
/// then works on the thread that calls it instead of on one of its own.
struct Inline<'a, T> {
    call: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    /// Blocks the clock as well, for a call that had to wait for another thread after all.
    still: Option<(&'static Runtime, Sender<()>)>,
}

impl<'a, T> Inline<'a, T> {
    fn new(call: impl Future<Output = T> + Send + 'a, still: bool) -> Self {
        Self {
            call: Box::pin(call),
            still: still.then(|| (busy_runtime(), stop_the_clock())),
        }
    }
}

impl<T> Future for Inline<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let _entered = self.still.as_ref().map(|(runtime, _)| runtime.enter());
        self.call.as_mut().poll(context)
    }
}

/// A runtime on which a task may block, since others go on meanwhile. Nothing is spawned on it.
fn busy_runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2).build().expect("a runtime")
    })
}

/// A paused clock does not jump while a blocking task runs: this one does until the sender is gone.
#[expect(
    clippy::disallowed_methods,
    reason = "no work is done there: that it runs is what stops the clock"
)]
fn stop_the_clock() -> Sender<()> {
    let (end, ended) = channel::<()>();
    tokio::task::spawn_blocking(move || ended.recv().is_err());
    end
}

fn ambiguous() -> Error {
    Error::Ambiguous {
        what: "the answer was lost (injected)".to_owned(),
    }
}

#[async_trait]
impl RunStore for FaultyStore {
    fn now(&self) -> Option<Timestamp> {
        self.inner.now()
    }

    fn between_writes(&self, act: &mut dyn FnMut()) {
        self.inner.between_writes(act);
    }

    async fn create(&self, new: NewRun) -> Result<Created, CreateError> {
        self.write(self.inner.create(new)).await
    }

    async fn fork(&self, new: NewFork) -> Result<Created, ForkError> {
        self.write(self.inner.fork(new)).await
    }

    async fn import(&self, import: Import) -> Result<Entry, ImportError> {
        self.write(self.inner.import(import)).await
    }

    async fn take_over(&self, run: &RunId) -> Result<Entry, ImportError> {
        self.write(self.inner.take_over(run)).await
    }

    async fn append(&self, append: &Append) -> Result<Appended, AppendError> {
        self.write(self.inner.append(append)).await
    }

    async fn command(
        &self,
        run: &RunId,
        id: &AppendId,
        command: &Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error> {
        self.write(self.inner.command(run, id, command, blobs))
            .await
    }

    async fn landed(&self, run: &RunId, id: &AppendId) -> Result<Option<Vec<Event>>, Error> {
        self.pass(self.inner.landed(run, id)).await
    }

    async fn read(&self, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Error> {
        self.pass(self.inner.read(run, from, limit)).await
    }

    async fn entry(&self, run: &RunId) -> Result<Entry, Error> {
        self.pass(self.inner.entry(run)).await
    }

    async fn key(&self, run: &RunId) -> Result<Option<RunKey>, Error> {
        self.pass(self.inner.key(run)).await
    }

    async fn keys(&self, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Error> {
        self.pass(self.inner.keys(run)).await
    }

    async fn misfiled(&self, run: &RunId) -> Result<Option<String>, Error> {
        self.pass(self.inner.misfiled(run)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        self.pass(self.inner.list(filter, cursor, limit)).await
    }

    async fn find(&self, prefix: &str, limit: usize) -> Result<Vec<RunId>, Error> {
        self.pass(self.inner.find(prefix, limit)).await
    }

    fn watch(&self, run: &RunId) -> Doorbell {
        self.inner.watch(run)
    }

    fn watch_others(&self, run: &RunId) -> Doorbell {
        self.inner.watch_others(run)
    }

    fn watch_all(&self) -> Doorbell {
        self.inner.watch_all()
    }

    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        self.pass(self.inner.blob(digest)).await
    }

    async fn stage(&self, run: &RunId, blob: Blob) -> Result<(), Error> {
        self.write(self.inner.stage(run, blob)).await
    }

    async fn join(&self, owner: &Owner) -> Result<(), Error> {
        self.pass(self.inner.join(owner)).await
    }

    async fn beat(&self, owner: OwnerId) -> Result<(), Error> {
        self.pass(self.inner.beat(owner)).await
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), Error> {
        self.pass(self.inner.leave(owner)).await
    }

    async fn assign(&self, owner: OwnerId, duty: &Duty) -> Result<(), Error> {
        self.pass(self.inner.assign(owner, duty)).await
    }

    async fn owners(&self) -> Result<Vec<OwnerInfo>, Error> {
        self.pass(self.inner.owners()).await
    }

    async fn backlog(&self) -> Result<Backlog, Error> {
        self.pass(self.inner.backlog()).await
    }

    async fn try_claim(&self, run: &RunId, owner: OwnerId) -> Result<Option<ClaimOutcome>, Error> {
        self.write(self.inner.try_claim(run, owner)).await
    }

    fn secrets(&self) -> Vec<String> {
        self.inner.secrets()
    }

    fn notes(&self) -> Option<PathBuf> {
        self.inner.notes()
    }

    fn all_notes(&self) -> Vec<PathBuf> {
        self.inner.all_notes()
    }

    async fn claim(&self, run: &RunId, owner: OwnerId) -> Result<ClaimOutcome, Error> {
        self.write(self.inner.claim(run, owner)).await
    }

    async fn lapsed(&self, run: &RunId) -> Result<Vec<Lapsed>, Error> {
        self.pass(self.inner.lapsed(run)).await
    }

    async fn release(&self, run: &RunId, epoch: Epoch, owner: OwnerId) -> Result<Entry, Error> {
        self.write(self.inner.release(run, epoch, owner)).await
    }

    async fn held(&self, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Error> {
        self.pass(self.inner.held(owner)).await
    }

    async fn claimable(
        &self,
        what: &[Claimable],
        labels: &[(String, String)],
        limit: usize,
    ) -> Result<Vec<RunId>, Error> {
        self.pass(self.inner.claimable(what, labels, limit)).await
    }

    async fn forsaken(&self, limit: usize) -> Result<Vec<RunId>, Error> {
        self.pass(self.inner.forsaken(limit)).await
    }

    async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        self.pass(self.inner.sessions()).await
    }

    async fn session(&self, session: &Session) -> Result<Option<SessionInfo>, Error> {
        self.pass(self.inner.session(session)).await
    }

    async fn close_session(&self, session: &Session) -> Result<(), Error> {
        self.pass(self.inner.close_session(session)).await
    }

    async fn delete(&self, run: &RunId) -> Result<Deleted, Error> {
        self.write(self.inner.delete(run)).await
    }

    async fn erase(&self, run: &RunId, with: Heirs) -> Result<Vec<RunId>, EraseError> {
        self.write(self.inner.erase(run, with)).await
    }

    async fn news(&self, since: &Since, limit: usize) -> Result<News, Error> {
        self.pass(self.inner.news(since, limit)).await
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.pass(self.inner.stats()).await
    }
}
