//! A store that fails on purpose, so that a test can stop a process at every write.
//!
//! [`FaultyStore`] stands between an engine and its store like a process between its memory and the
//! disk: a fault loses a write or its answer, a crash ends the wrapper while the store lives on.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use logreel_core::{AppendId, Blob, Digest, Epoch, Outside, RunId, RunKey, Seq, Session};

use crate::{
    Append, AppendError, Appended, ClaimOutcome, Claimable, Commanded, CreateError, Created,
    Cursor, Doorbell, Entry, Error, EventPage, Filter, ForkError, NewFork, NewRun, Owner, OwnerId,
    RunPage, RunStore, SessionInfo, Stats,
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
/// Create, fork, append, command, claim and release are writes, counted together from 1.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    writes: u64,
    faults: Vec<(u64, Fault)>,
    crashed: bool,
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

    fn next_write(&self) -> Result<Option<Fault>, Error> {
        let mut plan = self.plan();
        alive(&plan)?;
        plan.writes += 1;
        let nth = plan.writes;
        let fault = plan
            .faults
            .iter()
            .find(|(at, _)| *at == nth)
            .map(|(_, fault)| *fault);
        if fault == Some(Fault::CrashBefore) {
            plan.crashed = true;
        }
        Ok(fault)
    }

    fn check(&self) -> Result<(), Error> {
        alive(&self.plan())
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // Nothing panics while the plan is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
}

impl FaultyStore {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn RunStore>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    async fn write<T, E: From<Error>>(
        &self,
        write: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        match self.faults.next_write()? {
            None => {
                let answer = write.await;
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
        let answer = read.await;
        self.faults.check()?;
        answer
    }
}

fn ambiguous() -> Error {
    Error::Ambiguous {
        what: "the answer was lost (injected)".to_owned(),
    }
}

#[async_trait]
impl RunStore for FaultyStore {
    async fn create(&self, new: NewRun) -> Result<Created, CreateError> {
        self.write(self.inner.create(new)).await
    }

    async fn fork(&self, new: NewFork) -> Result<Created, ForkError> {
        self.write(self.inner.fork(new)).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
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

    async fn read(&self, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Error> {
        self.pass(self.inner.read(run, from, limit)).await
    }

    async fn entry(&self, run: &RunId) -> Result<Entry, Error> {
        self.pass(self.inner.entry(run)).await
    }

    async fn key(&self, run: &RunId) -> Result<Option<RunKey>, Error> {
        self.pass(self.inner.key(run)).await
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

    fn watch_all(&self) -> Doorbell {
        self.inner.watch_all()
    }

    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        self.pass(self.inner.blob(digest)).await
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

    async fn claim(&self, run: &RunId, owner: OwnerId) -> Result<ClaimOutcome, Error> {
        self.write(self.inner.claim(run, owner)).await
    }

    async fn release(&self, run: &RunId, epoch: Epoch) -> Result<Entry, Error> {
        self.write(self.inner.release(run, epoch)).await
    }

    async fn claimable(&self, what: &[Claimable], limit: usize) -> Result<Vec<RunId>, Error> {
        self.pass(self.inner.claimable(what, limit)).await
    }

    async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        self.pass(self.inner.sessions()).await
    }

    async fn close_session(&self, session: &Session) -> Result<(), Error> {
        self.pass(self.inner.close_session(session)).await
    }

    async fn delete(&self, run: &RunId) -> Result<(), Error> {
        self.pass(self.inner.delete(run)).await
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.pass(self.inner.stats()).await
    }
}
