//! The engine: a store, the tasks this process can drive, and the drivers at work.

mod builder;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use logreel_core::event::{Durability, Provenance};
use logreel_core::{Epoch, Event, Json, RunId, Seq};
use logreel_store::sqlite::this_host;
use logreel_store::{ClaimOutcome, Duty, DutyKind, Entry, Env, Owner, OwnerId, RunStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OnceCell, RwLockReadGuard, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::Error;
use crate::ctx::{Ctx, Provided};
use crate::error::TaskError;
use crate::external::Folds;
use crate::handle::RunHandle;
use crate::hook::Hooks;
use crate::journal::PAGE;
use crate::live::{Live, LiveLines, LiveTexts};
use crate::owner::{LOOK_EVERY, Pulse, Renewal};
use crate::program::Program;
use crate::query::Runs;
use crate::registry::Registry;
use crate::replay::Stage;
use crate::session::SessionHandle;
use crate::task::Task;
use crate::workflow::groups;
use crate::workflow::{Workflow, WorkflowRuns};

pub use builder::Builder;

/// Starts, drives and watches runs on one store. Cheap to clone.
///
/// Close it with [`Engine::close`]: that gives leases back, so that others go on at once. Dropping it
/// stops nothing: the runs it drives go on for as long as the runtime lives.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn RunStore>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) durability: Durability,
    pub(crate) provided: Arc<Provided>,
    pub(crate) hooks: Hooks,
    pub(crate) registry: Registry,
    /// This host's name, once it was asked for.
    host: OnceLock<String>,
    /// Folder that runs are driven in, whatever was recorded.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) live: Live,
    pub(crate) lease: Duration,
    pub(crate) payload_bytes_max: u64,
    renew_by_task: bool,
    /// What the runs of a replay find instead of the world.
    pub(crate) stage: Option<Arc<Stage>>,
    /// Runs that clients drive.
    pub(crate) external: Folds,
    pub(crate) workers: AtomicUsize,
    /// Commands that runs of this worker began as runs of their own: each takes a place of it.
    commands: Mutex<Vec<RunId>>,
    /// What this process says it is there for.
    duty: Mutex<Duty>,
    /// Joined with the first run this process drives; an engine that only reads is nobody.
    owner: OnceCell<Arc<Pulse>>,
    renewal: Mutex<Option<Renewal>>,
    working: Mutex<Working>,
    closing: watch::Sender<bool>,
    /// Held by whoever takes a lease outside of a driver, so that none is taken by an owner that left.
    door: tokio::sync::RwLock<()>,
}

#[derive(Default)]
struct Working {
    drivers: HashMap<RunId, AbortHandle>,
    joins: JoinSet<()>,
}

impl Engine {
    /// Opens a SQLite file, and makes it when there is none. With the feature `postgres` a `postgres://` URL
    /// is a store too, which any number of machines share.
    pub async fn open(store: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().at(store).build().await
    }

    /// An engine on a store in memory.
    pub async fn memory() -> Result<Self, Error> {
        Self::builder().build().await
    }

    /// An engine with everything of your own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Registers a function as a task. A task registered later under the same name replaces it.
    pub fn task<I, O, F, Fut>(&self, name: &str, function: F) -> Task<I, O>
    where
        I: Serialize + DeserializeOwned + Send + 'static,
        O: Serialize + DeserializeOwned + Send + 'static,
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        let program = Arc::new(Program::of_task(name, function));
        self.0.registry.add(&program);
        Task::new(Arc::clone(&self.0), program)
    }

    /// Registers a workflow: gives what starts runs of it, and lets [`Engine::work`] drive them.
    pub fn workflow(&self, workflow: &Workflow) -> WorkflowRuns {
        let program = self.0.registry.add_workflow(workflow);
        WorkflowRuns::new(Arc::clone(&self.0), program)
    }

    /// What commands print while they run, for whoever watches in this process. Provisional: it is
    /// in no log, and a slow watcher misses some of it.
    pub fn live(&self) -> LiveLines {
        self.0.live.subscribe()
    }

    /// What models say while they answer, for whoever watches in this process. Provisional, like
    /// [`Engine::live`].
    pub fn live_text(&self) -> LiveTexts {
        self.0.live.subscribe_texts()
    }

    /// A handle on any run; whether it exists shows when it is used.
    pub fn run(&self, run: RunId) -> RunHandle<Json> {
        RunHandle::new(Arc::clone(&self.0), run)
    }

    /// Lists runs, newest first.
    pub fn runs(&self) -> Runs {
        Runs::new(Arc::clone(&self.0))
    }

    /// A session by its name.
    pub fn session(&self, session: &str) -> Result<SessionHandle, Error> {
        Ok(SessionHandle::new(
            Arc::clone(&self.0),
            logreel_core::Session::new(session)?,
        ))
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn RunStore> {
        &self.0.store
    }

    /// Time, ids and randomness. The time is that of what is stored.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.0.env
    }

    /// The largest value that is recorded.
    pub fn payload_bytes_max(&self) -> u64 {
        self.0.payload_bytes_max
    }

    /// Whether [`Engine::work`] is at work in this process: then what is queued is driven.
    pub fn is_worker(&self) -> bool {
        self.0.is_worker()
    }

    /// How many runs this process drives.
    pub fn driving(&self) -> usize {
        let working = self.0.working();
        let drivers = working.drivers.values();
        drivers.filter(|driver| !driver.is_finished()).count()
    }

    /// Stops driving, gives every lease back and waits for all that was started to end.
    pub async fn close(&self) -> Result<(), Error> {
        self.0.close().await
    }
}

impl Inner {
    fn working(&self) -> MutexGuard<'_, Working> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn commands(&self) -> MutexGuard<'_, Vec<RunId>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewal(&self) -> MutexGuard<'_, Option<Renewal>> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if *self.closing.borrow() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// Keeps the engine from closing until it is dropped; refused once it closes.
    pub(crate) async fn hold_open(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let open = self.door.read().await;
        self.check_open()?;
        Ok(open)
    }

    pub(crate) async fn until_closing(&self) {
        closed(self.closing.subscribe()).await;
    }

    /// Who makes runs here; the models and tools that they use are told by their logs.
    pub(crate) fn provenance(&self) -> Provenance {
        Provenance {
            host: Some(self.host.get_or_init(|| this_host().1).clone()),
            logreel: Some(env!("CARGO_PKG_VERSION").to_owned()),
            ..Provenance::default()
        }
    }

    /// This process as an owner of leases.
    pub(crate) async fn owner(self: &Arc<Self>) -> Result<Arc<Pulse>, Error> {
        let join = || async {
            let (host, host_name) = this_host();
            let id = OwnerId(self.env.random_u64());
            let owner = Owner {
                id,
                host,
                host_name,
                pid: std::process::id(),
            };
            let sent = self.env.monotonic();
            self.store.join(&owner).await?;
            let duty = self.duty().clone();
            self.store.assign(id, &duty).await?;
            let (env, notes) = (Arc::clone(&self.env), self.store.notes());
            let pulse = Arc::new(Pulse::new(owner, notes, env, self.lease, sent));
            for folder in self.store.all_notes() {
                let env = Arc::clone(&self.env);
                let sweep = async move { groups::sweep(&folder, id, &*env).await };
                self.working().joins.spawn(sweep);
            }
            if self.renew_by_task {
                self.renew_by_task(Arc::clone(&pulse));
            } else {
                let spawned = Renewal::spawn(Arc::clone(&pulse), Arc::clone(&self.store));
                let renewal = spawned.map_err(|error| {
                    logreel_store::Error::unavailable(format!("no thread to renew leases: {error}"))
                })?;
                *self.renewal() = Some(renewal);
            }
            Ok::<_, Error>(pulse)
        };
        self.owner.get_or_try_init(join).await.cloned()
    }

    fn renew_by_task(&self, pulse: Arc<Pulse>) {
        let (store, env) = (Arc::clone(&self.store), Arc::clone(&self.env));
        let closing = self.closing.subscribe();
        self.working().joins.spawn(async move {
            loop {
                tokio::select! {
                    () = closed(closing.clone()) => return,
                    () = env.sleep(pulse.period()) => {}
                }
                if let Err(error) = pulse.beat(&*store).await {
                    tracing::warn!(%error, "the lease was not renewed; trying again");
                }
            }
        });
    }

    fn duty(&self) -> MutexGuard<'_, Duty> {
        self.duty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process drives whatever is ready from now on: it joins before there is anything, so that others
    /// know of it.
    pub(crate) async fn enlist(
        self: &Arc<Self>,
        labels: &[(String, String)],
        at_once: usize,
    ) -> Result<(), Error> {
        let duty = {
            let mut duty = self.duty();
            if duty.kind == DutyKind::Run {
                duty.kind = DutyKind::Worker;
            }
            duty.concurrency = Some(at_once as u64);
            duty.labels = labels.to_vec();
            duty.clone()
        };
        let owner = self.owner().await?.id();
        Ok(self.store.assign(owner, &duty).await?)
    }

    /// From now on nobody must count on this process.
    async fn say_leaving(&self) {
        let Some(pulse) = self.owner.get() else {
            return;
        };
        let duty = {
            let mut duty = self.duty();
            duty.leaving = true;
            duty.clone()
        };
        if duty.concurrency.is_some()
            && let Err(error) = self.store.assign(pulse.id(), &duty).await
        {
            tracing::debug!(%error, "nobody was told that this process leaves");
        }
    }

    /// Whether [`Engine::work`] is at work in this process.
    pub(crate) fn is_worker(&self) -> bool {
        self.workers.load(Ordering::SeqCst) > 0
    }

    /// Runs a driver. One per run: a second one asked for while the first works is not needed.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        run: RunId,
        driver: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let engine = Arc::clone(self);
        let mut working = self.working();
        // Looked at under the lock that `close` takes the drivers under: it misses none.
        if self.check_open().is_err() {
            return;
        }
        // Ends of earlier drivers surface here, at the latest.
        while let Some(ended) = working.joins.try_join_next() {
            surface(ended);
        }
        if working
            .drivers
            .get(&run)
            .is_some_and(|driver| !driver.is_finished())
        {
            return;
        }
        let handle = working.joins.spawn(async move {
            if let Err(error) = driver.await {
                tracing::error!(%run, %error, "a driver ended with an error");
            }
            engine.no_longer_drives(&run);
        });
        working.drivers.insert(run, handle);
    }

    /// The task that calls this is not the run's driver any more: another one may begin.
    pub(crate) fn no_longer_drives(&self, run: &RunId) {
        let mut working = self.working();
        let is_this = |driver: &AbortHandle| Some(driver.id()) == tokio::task::try_id();
        if working.drivers.get(run).is_some_and(is_this) {
            working.drivers.remove(run);
        }
    }

    pub(crate) fn is_driving(&self, run: &RunId) -> bool {
        self.working()
            .drivers
            .get(run)
            .is_some_and(|driver| !driver.is_finished())
    }

    /// Takes a run over.
    pub(crate) async fn claim(self: &Arc<Self>, run: &RunId) -> Result<ClaimOutcome, Error> {
        let owner = self.owner().await?;
        self.claim_as(run, owner.id()).await
    }

    /// Takes a run over for a worker; `None` when someone else is at it at this moment.
    pub(crate) async fn try_claim(
        self: &Arc<Self>,
        run: &RunId,
    ) -> Result<Option<ClaimOutcome>, Error> {
        let owner = self.owner().await?.id();
        match self.store.try_claim(run, owner).await {
            Ok(None) => Ok(None),
            Ok(Some(outcome)) => {
                self.tell_of_loop(&outcome).await;
                Ok(Some(outcome))
            }
            Err(error @ logreel_store::Error::Ambiguous { .. }) => {
                tracing::warn!(%run, %error, "asking whether the claim landed");
                self.settle_claim(run, owner, true).await.map(Some)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// [`Inner::claim`] for this owner. A claim whose answer was lost is made again until there is one, however
    /// long the store is away: it may have landed, and then nobody else takes the run while this process lives.
    pub(crate) async fn claim_as(
        &self,
        run: &RunId,
        owner: OwnerId,
    ) -> Result<ClaimOutcome, Error> {
        self.settle_claim(run, owner, false).await
    }

    /// `lost`: an earlier claim may have landed.
    async fn settle_claim(
        &self,
        run: &RunId,
        owner: OwnerId,
        mut lost: bool,
    ) -> Result<ClaimOutcome, Error> {
        let is_ours = |entry: &Entry| {
            let driver = entry.driver.as_ref();
            driver.is_some_and(|driver| driver.owner.id == owner)
        };
        let mut pause = Duration::from_millis(1);
        let outcome = loop {
            match self.store.claim(run, owner).await {
                Ok(ClaimOutcome::Driven(entry)) if lost && is_ours(&entry) => {
                    break ClaimOutcome::Claimed(entry);
                }
                Err(error @ logreel_store::Error::Ambiguous { .. }) => {
                    tracing::warn!(%run, %error, "asking whether the claim landed");
                    lost = true;
                    self.check_open()?;
                }
                Err(error @ logreel_store::Error::Unavailable { .. }) if lost => {
                    tracing::debug!(%run, %error, "whether the claim landed is not known yet");
                    self.check_open()?;
                }
                other => break other?,
            }
            self.env.sleep(pause).await;
            pause = (2 * pause).min(LOOK_EVERY);
        };
        self.tell_of_loop(&outcome).await;
        Ok(outcome)
    }

    async fn tell_of_loop(&self, outcome: &ClaimOutcome) {
        if let ClaimOutcome::CrashLoop(entry) = outcome {
            // Nobody drives it, so whoever appended it tells of it.
            self.tell_up_to(entry, entry.row.head.seq, |_| true).await;
        }
    }

    /// Gives a lease back; doing it twice is doing it once. The run as it was when the lease ended, or
    /// `None` when the answer was lost and others may have been at it since.
    pub(crate) async fn release(
        &self,
        run: &RunId,
        epoch: Epoch,
        owner: OwnerId,
    ) -> Result<Option<Entry>, Error> {
        match self.store.release(run, epoch, owner).await {
            Err(logreel_store::Error::Ambiguous { what }) => {
                tracing::warn!(%run, what, "giving the lease back again");
                self.store.release(run, epoch, owner).await?;
                Ok(None)
            }
            other => Ok(Some(other?)),
        }
    }

    /// Tells the hooks of the events from `from` up to the entry's head that are ours to tell.
    pub(crate) async fn tell_up_to(&self, entry: &Entry, from: Seq, ours: impl Fn(&Event) -> bool) {
        let (run, head) = (entry.row.run, entry.row.head.seq);
        let mut from = from;
        while self.hooks.wanted() && from <= head {
            let read = self.store.read(&run, from, PAGE).await.and_then(|page| {
                let records = page.items.iter().take_while(|record| record.seq <= head);
                let events =
                    records.map(|record| record.decode().map_err(logreel_store::Error::from));
                Ok((events.collect::<Result<Vec<Event>, _>>()?, page.next))
            });
            match read {
                Ok((mut events, next)) => {
                    events.retain(&ours);
                    let session = entry.row.facts.session.as_ref();
                    self.hooks.tell(run, session, &events).await;
                    if next == from {
                        return;
                    }
                    from = next;
                }
                Err(error) => {
                    tracing::error!(%run, %from, %error, "the hooks were not told");
                    return;
                }
            }
        }
    }

    /// Stops everything where it is, as a crash would.
    #[cfg(feature = "testing")]
    pub(crate) async fn abort_all(&self) {
        let mut joins = std::mem::take(&mut self.working().joins);
        joins.shutdown().await;
    }

    /// The owner this process drives as, once it drives anything.
    pub(crate) fn owner_id(&self) -> Option<OwnerId> {
        self.owner.get().map(|pulse| pulse.id())
    }

    async fn close(self: &Arc<Self>) -> Result<(), Error> {
        self.closing.send_replace(true);
        self.say_leaving().await;
        drop(self.door.write().await);
        let mut joins = {
            let mut working = self.working();
            std::mem::take(&mut working.joins)
        };
        // Hooks end with the last of their queues, which is ours; drivers end by `closing`.
        let drivers: Vec<AbortHandle> = self.working().drivers.values().cloned().collect();
        while drivers.iter().any(|driver| !driver.is_finished()) {
            match joins.join_next().await {
                Some(ended) => surface(ended),
                None => break,
            }
        }
        self.hooks.close().await;
        while let Some(ended) = joins.join_next().await {
            surface(ended);
        }
        // No beat follows the leave: the renewal thread is joined first.
        drop(self.renewal().take());
        if let Some(pulse) = self.owner.get() {
            self.store.leave(pulse.id()).await?;
        }
        Ok(())
    }
}

async fn closed(mut closing: watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        tracing::debug!("the engine is gone");
    }
}

fn surface(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a task of the engine panicked");
    }
}
