//! Who is told of an event (SEMANTICS 29): the process that drives the run, whoever appended it, and
//! when nobody drives it the process that appended it. Never twice.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Virtual, count, until, until_entry};
use logreel::store::faulty::{Faults, FaultyStore};
use logreel::testing::TestEngine;
use logreel::*;

/// What one process was told, by seq.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u64>>>);

impl Told {
    fn seqs(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }

    /// A process whose hook notes what it is told.
    async fn process(&self, engine: &TestEngine) -> TestEngine {
        let told = self.clone();
        let hook = move |event: HookEvent| {
            told.0.lock().unwrap().push(event.event.seq.0);
            std::future::ready(Ok(()))
        };
        let process = engine.another_with(|builder| builder.on_event(hook)).await;
        process.unwrap()
    }
}

/// A store whose writes are counted, a process that drives and one that only asks.
struct Scene {
    faults: Faults,
    engine: TestEngine,
    driver: TestEngine,
    asker: TestEngine,
    driver_told: Told,
    asker_told: Told,
}

impl Scene {
    async fn new(world: &Virtual) -> Self {
        let faults = Faults::new();
        let open = |env| -> Arc<dyn RunStore> {
            Arc::new(FaultyStore::new(world.open(env), faults.clone()))
        };
        let engine = TestEngine::on(open).await.unwrap();
        let (driver_told, asker_told) = (Told::default(), Told::default());
        Self {
            driver: driver_told.process(&engine).await,
            asker: asker_told.process(&engine).await,
            faults,
            engine,
            driver_told,
            asker_told,
        }
    }

    /// Waits for the run's end; every event was told once, in order, by the driver.
    async fn check(self, run: &RunHandle<u32>) {
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
        until_entry(&self.engine, run.id(), |entry| entry.driver.is_none()).await;
        self.driver.close().await.unwrap();
        self.asker.close().await.unwrap();
        let head = run.entry().await.unwrap().row.head.seq.0;
        assert_eq!(self.driver_told.seqs(), (1..=head).collect::<Vec<_>>());
        assert_eq!(self.asker_told.seqs(), [0; 0]);
    }

    /// Sends the signal from the other process, and says so.
    fn signal(&self, run: RunId) -> (Arc<AtomicBool>, impl Future<Output = ()> + Send + 'static) {
        let (asker, sent) = (Engine::clone(&self.asker), Arc::new(AtomicBool::new(false)));
        let sends = Arc::clone(&sent);
        let signal = async move {
            let entry = asker.signal(&run, "go", &7).await.unwrap();
            assert!(entry.is_driven());
            sends.store(true, Ordering::SeqCst);
        };
        (sent, signal)
    }
}

fn waiting(engine: &Engine) -> Task<(), u32> {
    engine.task("waits", |ctx: Ctx, (): ()| async move {
        ctx.signal("go").value::<u32>().await
    })
}

#[tokio::test(start_paused = true)]
async fn what_comes_between_the_claim_and_the_first_look_is_told_by_the_driver() {
    for world in Virtual::both() {
        let scene = Scene::new(&world).await;
        let run = waiting(&scene.driver).start(&()).queue().await.unwrap();
        let (sent, signal) = scene.signal(run.id());
        scene.faults.after(scene.faults.writes() + 1, signal);
        scene.driver.resume(&run.id()).await.unwrap();
        assert!(sent.load(Ordering::SeqCst), "the claim is the first write");
        scene.check(&run).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_between_the_last_look_and_the_release_is_told_by_the_driver() {
    for world in Virtual::both() {
        // Once to see which write gives the lease back.
        let scene = Scene::new(&world).await;
        let run = waiting(&scene.driver).start(&()).await.unwrap();
        let parked = |entry: &Entry| entry.driver.is_none() && entry.row.head.seq.0 > 1;
        until_entry(&scene.engine, run.id(), parked).await;
        let release = scene.faults.writes();

        let scene = Scene::new(&world).await;
        let id = scene.engine.env().run_id();
        let (sent, signal) = scene.signal(id);
        scene.faults.before(release, signal);
        let run = waiting(&scene.driver).start(&()).id(id).await.unwrap();
        until_entry(&scene.engine, id, parked).await;
        assert!(sent.load(Ordering::SeqCst));
        scene.check(&run).await;
    }
}

fn hanging(engine: &Engine, hang: bool) -> Task<(), u32> {
    engine.task("hangs", move |ctx: Ctx, (): ()| async move {
        let one = ctx.step("one").run(|| async { Ok::<_, TaskError>(7) });
        let one = one.await?;
        let hangs = || async {
            if hang {
                std::future::pending::<()>().await;
            }
            Ok::<_, TaskError>(())
        };
        ctx.step("two").run(hangs).await?;
        Ok(one)
    })
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_drivers_keep_dying_is_told_of_by_whoever_stopped_driving_it() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let run = hanging(&engine, true).start(&()).await.unwrap();
        until(&engine, run.id(), "step.started").await;
        engine.crash().await.unwrap();
        for _ in 0..5 {
            let next = engine.another().await.unwrap();
            hanging(&next, true);
            next.resume(&run.id()).await.unwrap();
            next.crash().await.unwrap();
        }
        let told = Told::default();
        let last = told.process(&engine).await;
        hanging(&last, true);
        let stuck = last.resume(&run.id()).await.unwrap_err();
        assert!(stuck.to_string().contains("crash_loop"), "{stuck}");
        last.close().await.unwrap();
        let head = run.entry().await.unwrap().row.head.seq.0;
        assert_eq!(told.seqs(), [head]);
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_run_orphaned_with_hooks_each_event_is_told_by_the_process_that_drove_it() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let (first_told, next_told) = (Told::default(), Told::default());
        let first = first_told.process(&engine).await;
        let run = hanging(&first, true).start(&()).await.unwrap();
        until(&engine, run.id(), "step.started").await;
        let before = run.entry().await.unwrap().row.head.seq.0;
        while first_told.seqs().len() < before as usize {
            engine.env().sleep(Duration::from_millis(1)).await;
        }
        first.crash().await.unwrap();

        let next = next_told.process(&engine).await;
        let run = hanging(&next, false).start(&()).id(run.id()).await.unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
        until_entry(&engine, run.id(), |entry| entry.driver.is_none()).await;
        next.close().await.unwrap();
        let head = run.entry().await.unwrap().row.head.seq.0;
        assert_eq!(first_told.seqs(), (1..=before).collect::<Vec<_>>());
        assert_eq!(next_told.seqs(), (before + 1..=head).collect::<Vec<_>>());
        let mut events = Vec::new();
        let mut stream = run.events(Seq::FIRST);
        while let Some(event) = stream.next().await {
            events.push(event.unwrap());
        }
        assert_eq!(count(&events, "run.resumed"), 1);
    }
}
