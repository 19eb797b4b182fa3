//! For whoever tests tasks: an engine whose time jumps when all wait, and a sweep that crashes a
//! scenario at every write.

use std::ops::Deref;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use logreel_core::{Digest, Status, Timestamp};
use logreel_store::faulty::{Fault, Faults, FaultyStore};
use logreel_store::{Env, Filter, MemoryStore, RunStore};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::workflow::command::CommandSpec;
use crate::{Builder, Ctx, Engine, Error, TaskError};

/// Virtual time: tokio's own clock, which jumps when every task waits on a paused runtime
/// (`#[tokio::test(start_paused = true)]`). Ids and randomness are counted, so that a test is the
/// same every time.
pub struct TestEnv {
    clock: Arc<Clock>,
    drawn: AtomicU64,
    /// How far someone has set the wall clock, in microseconds.
    set_by: AtomicI64,
}

/// The runtime's clock. One that was paused is shown only by its own runtime; whoever looks from
/// elsewhere, as a store's own thread does, gets what was seen last.
struct Clock {
    started: tokio::time::Instant,
    /// Only the clock of a runtime with one thread can be paused.
    may_be_paused: bool,
    /// As of the last look from inside, in nanoseconds.
    seen: AtomicU64,
}

impl Clock {
    fn look(&self) -> Duration {
        if !self.may_be_paused || has_one_thread() {
            let elapsed = self.started.elapsed();
            let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            self.seen.store(nanos, Ordering::SeqCst);
        }
        Duration::from_nanos(self.seen.load(Ordering::SeqCst))
    }
}

fn has_one_thread() -> bool {
    Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::CurrentThread)
}

impl TestEnv {
    /// Someone sets the wall clock; no time passes.
    pub fn set_now(&self, now: Timestamp) {
        let by = now.as_micros() - (BEGINNING + self.monotonic()).as_micros();
        self.set_by.store(by, Ordering::SeqCst);
    }
}

impl Default for TestEnv {
    fn default() -> Self {
        Self {
            clock: Arc::new(Clock {
                started: tokio::time::Instant::now(),
                may_be_paused: has_one_thread(),
                seen: AtomicU64::new(0),
            }),
            drawn: AtomicU64::new(0),
            set_by: AtomicI64::new(0),
        }
    }
}

/// 2026-01-01T00:00:00Z: when every test begins.
const BEGINNING: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

impl Env for TestEnv {
    fn now(&self) -> Timestamp {
        let unset = BEGINNING + self.monotonic();
        Timestamp::from_micros(unset.as_micros() + self.set_by.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.clock.look()
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64 over a counter: well spread and the same every time.
            let mut word = self.drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "an Env is where sleeping is implemented"
    )]
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let clock = Arc::clone(&self.clock);
        Box::pin(async move {
            tokio::time::sleep(duration).await;
            clock.look();
        })
    }
}

/// An engine with virtual time. Derefs to [`Engine`].
pub struct TestEngine {
    engine: Engine,
    store: Arc<dyn RunStore>,
    env: Arc<TestEnv>,
}

impl TestEngine {
    /// A new one, on a store of its own in memory. Time jumps when the runtime is paused.
    pub async fn new() -> Result<Self, Error> {
        let env = Arc::new(TestEnv::default());
        let store = in_memory(Arc::<TestEnv>::clone(&env));
        Self::build(store, env, |builder| builder).await
    }

    /// A new one on any store, which must take its time from what it is given.
    pub async fn on(open: impl FnOnce(Arc<dyn Env>) -> Arc<dyn RunStore>) -> Result<Self, Error> {
        let env = Arc::new(TestEnv::default());
        let store = open(Arc::<TestEnv>::clone(&env));
        let store = Arc::new(FaultyStore::new(store, Faults::new()).still());
        Self::build(store, env, |builder| builder).await
    }

    /// The process dies: all work stops where it is, and its leases are a dead owner's.
    pub async fn crash(&self) -> Result<(), Error> {
        kill(&self.engine, &*self.store).await
    }

    /// The process is gone from sight: all work stops where it is, and nobody knows whether it is
    /// dead. Its leases must run out.
    pub async fn vanish(&self) {
        self.engine.0.abort_all().await;
    }

    /// Another process on the same store.
    pub async fn another(&self) -> Result<Self, Error> {
        self.another_with(|builder| builder).await
    }

    /// Another process on the same store, built as you like: with hooks, with things provided.
    pub async fn another_with(&self, with: impl FnOnce(Builder) -> Builder) -> Result<Self, Error> {
        Self::build(Arc::clone(&self.store), Arc::clone(&self.env), with).await
    }

    async fn build(
        store: Arc<dyn RunStore>,
        env: Arc<TestEnv>,
        with: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, Error> {
        let clock: Arc<dyn Env> = Arc::<TestEnv>::clone(&env);
        let engine = with(builder(&store, &clock)).build().await?;
        Ok(Self { engine, store, env })
    }

    /// What the engine takes its time from.
    pub fn env(&self) -> &Arc<TestEnv> {
        &self.env
    }
}

impl Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

fn in_memory(env: Arc<dyn Env>) -> Arc<dyn RunStore> {
    Arc::new(MemoryStore::new(env))
}

fn builder(store: &Arc<dyn RunStore>, env: &Arc<dyn Env>) -> Builder {
    Engine::builder()
        .store(Arc::clone(store))
        .env(Arc::clone(env))
        .renew_by_task()
}

/// Runs a shell command in this folder, as a workflow's step does, and gives its output. Call it inside
/// a step.
pub async fn command(
    ctx: &Ctx,
    run: &str,
    dir: &Path,
    write: bool,
) -> Result<serde_json::Value, TaskError> {
    let spec = CommandSpec {
        run: run.to_owned(),
        input: Vec::new(),
        env: Vec::new(),
        dir: dir.to_owned(),
        write,
        output_bytes_max: logreel_store::tip::PAYLOAD_MAX_BYTES,
        timeout: None,
        secrets: Default::default(),
    };
    let output = crate::workflow::command::run(ctx, spec, |_, _| {}).await?;
    Ok(output.to_value())
}

/// Stops everything an engine does at once, as a SIGKILL would, and lets its owner be dead.
async fn kill(engine: &Engine, store: &dyn RunStore) -> Result<(), Error> {
    engine.0.abort_all().await;
    if let Some(owner) = engine.0.owner_id() {
        store.leave(owner).await?;
    }
    Ok(())
}

/// One point of a sweep: which write met which fault, and how it went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The write, counted from 1.
    pub write: u64,
    /// What happened to it.
    pub fault: Fault,
    /// Where it led.
    pub end: PointEnd,
}

/// Where a crash led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointEnd {
    /// To the same final states as without it.
    Same,
    /// A write's outcome is not known; the run waits for a person.
    InDoubt,
}

/// Runs a scenario undisturbed, then once for every write and fault: the process is killed before or
/// after the write, or the answer to the write is lost, and the scenario is run again on the same
/// store by another process. The final states must be those of the undisturbed run, or the run waits
/// as in doubt.
///
/// The scenario registers its tasks, starts runs under a fixed key or id and waits for them. Call it
/// on a paused runtime.
///
/// # Panics
/// When a final state differs, or a run neither ends nor waits as in doubt.
pub async fn crash_everywhere<F, Fut>(scenario: F) -> Vec<Point>
where
    F: Fn(Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    let world = || World {
        // It works on no thread of its own, so time cannot jump meanwhile.
        still: false,
        ..World::new(in_memory)
    };
    sweep(world, |_, engine| scenario(engine)).await
}

/// [`crash_everywhere`] on any store: `open` gives a new one for every crash, which must take its time
/// from what it is given. The scenario is told where it is crashed, `None` in the undisturbed run, so
/// that it can count its effects per crash.
///
/// # Panics
/// When a final state differs, or a run neither ends nor waits as in doubt.
pub async fn crash_everywhere_on<F, Fut>(
    open: impl Fn(Arc<dyn Env>) -> Arc<dyn RunStore>,
    scenario: F,
) -> Vec<Point>
where
    F: Fn(Option<(u64, Fault)>, Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    sweep(|| World::new(&open), scenario).await
}

async fn sweep<F, Fut>(world: impl Fn() -> World, scenario: F) -> Vec<Point>
where
    F: Fn(Option<(u64, Fault)>, Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    let counting = Faults::new();
    let undisturbed = |engine| scenario(None, engine);
    let expected = undisturbed_run(world(), undisturbed, &counting).await;
    let mut points = Vec::new();
    for write in 1..=counting.writes() {
        for fault in [
            Fault::CrashBefore,
            Fault::CrashAfter,
            Fault::Lost,
            Fault::Landed,
        ] {
            let disturbed = |engine| scenario(Some((write, fault)), engine);
            let end = disturbed_run(world(), disturbed, write, fault, &expected).await;
            points.push(Point { write, fault, end });
        }
    }
    points
}

/// A store and a clock that outlive the processes on them.
struct World {
    store: Arc<dyn RunStore>,
    env: Arc<dyn Env>,
    still: bool,
}

impl World {
    fn new(open: impl Fn(Arc<dyn Env>) -> Arc<dyn RunStore>) -> Self {
        let env: Arc<dyn Env> = Arc::new(TestEnv::default());
        let store = open(Arc::clone(&env));
        let still = true;
        Self { store, env, still }
    }

    fn faulty(&self, faults: &Faults) -> Arc<dyn RunStore> {
        let faulty = FaultyStore::new(Arc::clone(&self.store), faults.clone());
        Arc::new(if self.still { faulty.still() } else { faulty })
    }

    async fn engine(&self, store: &Arc<dyn RunStore>) -> Engine {
        builder(store, &self.env)
            .build()
            .await
            .expect("an engine on a store")
    }

    /// How every run ended, in the order of creation.
    async fn ends(&self) -> Vec<(String, Status, Option<Digest>)> {
        let page = self
            .store
            .list(&Filter::default(), None, 1000)
            .await
            .expect("the store lists");
        let ends = page.items.iter().rev().map(|entry| {
            let ended = entry.row.facts.ended.as_ref();
            let digest = ended.map(|ended| ended.final_state_digest);
            (
                entry.row.facts.agent.to_string(),
                entry.row.status(),
                digest,
            )
        });
        ends.collect()
    }

    /// Resolves when some run waits for a person because of a write in doubt.
    async fn until_in_doubt(&self) {
        loop {
            self.env.sleep(Duration::from_secs(1)).await;
            let filter = Filter {
                status: vec![Status::Waiting],
                ..Filter::default()
            };
            let page = self
                .store
                .list(&filter, None, 1000)
                .await
                .expect("the store lists");
            let in_doubt = page
                .items
                .iter()
                .any(|entry| entry.driver.is_none() && !entry.row.facts.in_doubt.is_empty());
            if in_doubt {
                return;
            }
        }
    }
}

type Ends = Vec<(String, Status, Option<Digest>)>;

async fn undisturbed_run<F, Fut>(world: World, scenario: F, faults: &Faults) -> Ends
where
    F: Fn(Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    let engine = world.engine(&world.faulty(faults)).await;
    scenario(engine.clone())
        .await
        .expect("the scenario succeeds when nothing disturbs it");
    engine.close().await.expect("the engine closes");
    let ends = world.ends().await;
    assert!(
        ends.iter().all(|(_, status, _)| status.is_terminal()),
        "the scenario must wait until its runs have ended: {ends:?}"
    );
    ends
}

async fn disturbed_run<F, Fut>(
    world: World,
    scenario: F,
    write: u64,
    fault: Fault,
    expected: &Ends,
) -> PointEnd
where
    F: Fn(Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    let faults = Faults::new();
    faults.fail(write, fault);
    let engine = world.engine(&world.faulty(&faults)).await;
    let first = tokio::select! {
        ended = scenario(engine.clone()) => Some(ended),
        () = world.until_in_doubt() => None,
    };
    kill(&engine, &*world.store)
        .await
        .expect("a store lets an owner go");
    if faults.crashed() {
        let engine = world.engine(&world.faulty(&Faults::new())).await;
        let in_doubt = tokio::select! {
            ended = scenario(engine.clone()) => {
                ended.unwrap_or_else(|error| {
                    panic!("write {write}, {fault:?}: the scenario failed afterwards: {error}")
                });
                false
            }
            () = world.until_in_doubt() => true,
        };
        engine.close().await.expect("the engine closes");
        if in_doubt {
            return PointEnd::InDoubt;
        }
    } else {
        match first {
            None => return PointEnd::InDoubt,
            Some(Ok(())) => {}
            Some(Err(error)) => panic!("write {write}, {fault:?}: the scenario failed: {error}"),
        }
    }
    let ends = world.ends().await;
    assert_eq!(
        &ends, expected,
        "write {write}, {fault:?}: another final state"
    );
    PointEnd::Same
}
