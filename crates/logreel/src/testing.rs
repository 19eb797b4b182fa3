//! For whoever tests tasks: an engine in memory whose time jumps when all wait, and a sweep that
//! crashes a scenario at every write.

use std::ops::Deref;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use logreel_core::{Digest, Status, Timestamp};
use logreel_store::faulty::{Fault, Faults, FaultyStore};
use logreel_store::{Env, Filter, MemoryStore, RunStore};

use crate::workflow::command::CommandSpec;
use crate::{Builder, Ctx, Engine, Error, TaskError};

/// Virtual time: tokio's own clock, which jumps when every task waits on a paused runtime
/// (`#[tokio::test(start_paused = true)]`). Ids and randomness are counted, so that a test is the
/// same every time.
pub struct TestEnv {
    started: tokio::time::Instant,
    drawn: AtomicU64,
}

impl Default for TestEnv {
    fn default() -> Self {
        Self {
            started: tokio::time::Instant::now(),
            drawn: AtomicU64::new(0),
        }
    }
}

/// 2026-01-01T00:00:00Z: when every test begins.
const BEGINNING: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

impl Env for TestEnv {
    fn now(&self) -> Timestamp {
        BEGINNING + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
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
        Box::pin(tokio::time::sleep(duration))
    }
}

/// An engine in memory with virtual time. Derefs to [`Engine`].
pub struct TestEngine {
    engine: Engine,
    store: Arc<dyn RunStore>,
    env: Arc<dyn Env>,
}

impl TestEngine {
    /// A new one, on a store of its own. Time jumps when the runtime is paused.
    pub async fn new() -> Result<Self, Error> {
        let env: Arc<dyn Env> = Arc::new(TestEnv::default());
        let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::clone(&env)));
        let engine = builder(&store, &env).build().await?;
        Ok(Self { engine, store, env })
    }

    /// The process dies: all work stops where it is, and its leases are a dead owner's.
    pub async fn crash(&self) -> Result<(), Error> {
        kill(&self.engine, &*self.store).await
    }

    /// Another process on the same store.
    pub async fn another(&self) -> Result<Self, Error> {
        let engine = builder(&self.store, &self.env).build().await?;
        Ok(Self {
            engine,
            store: Arc::clone(&self.store),
            env: Arc::clone(&self.env),
        })
    }

    /// What the engine takes its time from.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.env
    }
}

impl Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
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
    };
    crate::workflow::command::run(ctx, spec, |_, _| {}).await
}

/// Stops everything an engine does at once, as a SIGKILL would, and lets its owner be dead.
async fn kill(engine: &Engine, store: &dyn RunStore) -> Result<(), Error> {
    engine.0.abort_all().await;
    if let Some(owner) = engine.0.joined_as() {
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
    let counting = Faults::new();
    let expected = undisturbed_run(&scenario, &counting).await;
    let mut points = Vec::new();
    for write in 1..=counting.writes() {
        for fault in [
            Fault::CrashBefore,
            Fault::CrashAfter,
            Fault::Lost,
            Fault::Landed,
        ] {
            let end = disturbed_run(&scenario, write, fault, &expected).await;
            points.push(Point { write, fault, end });
        }
    }
    points
}

/// A store and a clock that outlive the processes on them.
struct World {
    store: Arc<dyn RunStore>,
    env: Arc<dyn Env>,
}

impl World {
    fn new() -> Self {
        let env: Arc<dyn Env> = Arc::new(TestEnv::default());
        let store = Arc::new(MemoryStore::new(Arc::clone(&env)));
        Self { store, env }
    }

    fn faulty(&self, faults: &Faults) -> Arc<dyn RunStore> {
        Arc::new(FaultyStore::new(Arc::clone(&self.store), faults.clone()))
    }

    async fn engine(&self, store: &Arc<dyn RunStore>) -> Engine {
        builder(store, &self.env)
            .build()
            .await
            .expect("an engine in memory")
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

async fn undisturbed_run<F, Fut>(scenario: &F, faults: &Faults) -> Ends
where
    F: Fn(Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    let world = World::new();
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

async fn disturbed_run<F, Fut>(scenario: &F, write: u64, fault: Fault, expected: &Ends) -> PointEnd
where
    F: Fn(Engine) -> Fut,
    Fut: Future<Output = Result<(), Error>>,
{
    let world = World::new();
    let faults = Faults::new();
    faults.fail(write, fault);
    let engine = world.engine(&world.faulty(&faults)).await;
    let first = tokio::select! {
        ended = scenario(engine.clone()) => Some(ended),
        () = world.until_in_doubt() => None,
    };
    kill(&engine, &*world.store)
        .await
        .expect("a memory store lets an owner go");
    if faults.crashed() {
        let engine = world.engine(&world.store).await;
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
