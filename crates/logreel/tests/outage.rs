//! A store that cannot be reached for a while, or whose answers are lost: no run notices. What was done is recorded
//! once, what was about to begin begins once, and no event tells of it (SEMANTICS 3, 22).
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{count, until};
use logreel::store::faulty::{Fault, Faults, FaultyStore};
use logreel::testing::TestEngine;
use logreel::*;
use tokio::sync::Semaphore;

/// An engine in virtual time whose store fails when told to, and one that always reaches it.
struct World {
    engine: TestEngine,
    outside: TestEngine,
    faults: Faults,
}

impl World {
    async fn new() -> Self {
        let outside = TestEngine::new().await.unwrap();
        let faults = Faults::new();
        let engine = cut_off_with(&outside, &faults).await;
        Self {
            engine,
            outside,
            faults,
        }
    }

    /// Waits for the end; what the log holds then. One driver did it all.
    async fn completed_by_one_driver(&self, run: RunId) -> Vec<Event> {
        let run = self.outside.run(run);
        let ended = tokio::time::timeout(hours(1), run.wait()).await;
        let ended = ended.unwrap().unwrap();
        assert!(matches!(ended, Outcome::Completed(_)), "{ended:?}");
        let mut events = Vec::new();
        let mut stream = run.events(Seq::FIRST);
        while let Some(event) = stream.next().await {
            events.push(event.unwrap());
        }
        assert_eq!(count(&events, "run.resumed"), 0, "one driver did it all");
        events
    }
}

/// Another process, which these faults meet.
async fn cut_off_with(outside: &TestEngine, faults: &Faults) -> TestEngine {
    let faulty = FaultyStore::new(Arc::clone(outside.store()), faults.clone());
    let engine = outside.another_with(|builder| builder.store(Arc::new(faulty)));
    engine.await.unwrap()
}

/// Counts the calls of a step's work.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn called(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_after_a_conflict_drops_no_result() {
    let world = World::new().await;
    let calls = Calls::default();
    let (faults, counted) = (world.faults.clone(), calls.clone());
    let outside: Engine = (*world.outside).clone();
    let task: Task<(), u32> = world.engine.task("conflicts", move |ctx: Ctx, (): ()| {
        let (faults, outside, counted) = (faults.clone(), outside.clone(), counted.clone());
        async move {
            let run = ctx.run_id();
            let work = || async {
                counted.called();
                // Right before the result is appended someone else appends, and then nothing can be read.
                let outside = outside.clone();
                let signal = async move { outside.signal(&run, "x", &()).await };
                let signal = async move { drop(signal.await.unwrap()) };
                faults.before(faults.writes() + 1, signal);
                faults.away_after_next(20);
                Ok::<_, TaskError>(7)
            };
            ctx.step("work").run(work).await
        }
    });
    let run = task.start(&()).await.unwrap().id();
    let events = world.completed_by_one_driver(run).await;
    assert_eq!(calls.count(), 1);
    assert_eq!(count(&events, "signal.received"), 1, "it conflicted");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_begins_while_the_store_is_away_past_the_lease_waits_and_disturbs_nobody() {
    let world = World::new().await;
    let calls = [Calls::default(), Calls::default()];
    let (env, counted) = (Arc::clone(world.engine.env()), calls.clone());
    let task: Task<(), u32> = world.engine.task("two", move |ctx: Ctx, (): ()| {
        let (env, [first, second]) = (Arc::clone(&env), counted.clone());
        async move {
            let long = ctx.step("long").run(|| async {
                first.called();
                env.sleep(seconds(60)).await;
                Ok::<_, TaskError>(1)
            });
            // Begins when nobody knows any more whether the lease holds.
            let later = async {
                env.sleep(seconds(15)).await;
                let work = || async { Ok::<_, TaskError>(second.called()) };
                ctx.step("later").run(work).await
            };
            let (long, later) = tokio::join!(long, later);
            Ok(long? + later?)
        }
    });
    let run = task.start(&()).await.unwrap().id();
    until(&world.outside, run, "step.started").await;
    world.faults.cut_off();
    world.engine.env().sleep(seconds(40)).await;
    assert_eq!(calls.each_ref().map(Calls::count), [1, 0], "nothing begins");
    world.faults.reconnect();
    world.completed_by_one_driver(run).await;
    assert_eq!(calls.each_ref().map(Calls::count), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_while_a_child_is_created_fails_no_parent() {
    for fault in [Fault::Refused, Fault::Lost, Fault::Landed] {
        let world = World::new().await;
        let calls = Calls::default();
        let counted = calls.clone();
        let child: Task<(), u32> = world.engine.task("child", move |ctx: Ctx, (): ()| {
            let counted = counted.clone();
            async move {
                let work = || async { Ok::<_, TaskError>(counted.called()) };
                ctx.step("work").run(work).await
            }
        });
        let (faults, of) = (world.faults.clone(), child.clone());
        let parent: Task<(), u32> = world.engine.task("parent", move |ctx: Ctx, (): ()| {
            let (faults, child) = (faults.clone(), of.clone());
            async move {
                // The next write announces the child, the one after creates it; its outcome is not heard for long.
                let arm = faults.writes() + 2;
                faults.fail(arm, fault);
                faults.away_after(arm, 30);
                ctx.child("child", &child, &()).await
            }
        });
        let run = parent.start(&()).await.unwrap().id();
        // A parent that waits gives its lease back: that it was driven again says nothing.
        let run = world.outside.run(run).typed::<u32>();
        let ended = tokio::time::timeout(hours(1), run.wait()).await;
        assert_eq!(ended.unwrap().unwrap(), Outcome::Completed(1), "{fault:?}");
        assert_eq!(calls.count(), 1, "{fault:?}");
        let children = world.outside.runs().newest(10).await.unwrap();
        assert_eq!(children.len(), 2, "{fault:?}: one child");
    }
}

/// A step that takes a minute, and says how often it was begun.
fn minute(engine: &TestEngine, calls: &Calls) -> Task<(), u32> {
    let (env, calls) = (Arc::clone(engine.env()), calls.clone());
    engine.task("minute", move |ctx: Ctx, (): ()| {
        let (env, calls) = (Arc::clone(&env), calls.clone());
        async move {
            let work = || async {
                let called = calls.called();
                env.sleep(minutes(1)).await;
                Ok::<_, TaskError>(called)
            };
            ctx.step("minute").run(work).await
        }
    })
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_no_worker_takes_over_from_those_that_could_not_be_heard() {
    let world = World::new().await;
    let calls = Calls::default();
    let run = minute(&world.engine, &calls).start(&()).await.unwrap();
    // Another worker, which the outage meets as well, and which looks before the first is heard again.
    let other = cut_off_with(&world.outside, &world.faults).await;
    minute(&other, &calls);
    let (working, worker) = ((*other).clone(), (*other).clone());
    let working = tokio::spawn(async move { working.work(1).await });
    until(&world.outside, run.id(), "step.started").await;
    world.faults.cut_off();
    world.engine.env().sleep(seconds(30)).await;
    world.faults.reconnect();
    world.completed_by_one_driver(run.id()).await;
    assert_eq!(calls.count(), 1);
    worker.close().await.unwrap();
    working.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_worker_holds_and_nobody_drives_is_given_back() {
    let world = World::new().await;
    let calls = Calls::default();
    let task = minute(&world.engine, &calls);
    let worker = (*world.engine).clone();
    let working = {
        let worker = worker.clone();
        tokio::spawn(async move { worker.work(1).await })
    };
    let first = task.start(&()).queue().await.unwrap();
    until(&world.outside, first.id(), "step.started").await;
    let driver = first.entry().await.unwrap().driver.unwrap();
    // Its only place is taken. As in a store where it has not given back yet what it gave back elsewhere:
    let second = task.start(&()).queue().await.unwrap();
    let store = world.outside.store();
    store.claim(&second.id(), driver.owner.id).await.unwrap();
    // A lease is there before its driver is: one look says nothing.
    world.engine.env().sleep(seconds(6)).await;
    assert!(second.entry().await.unwrap().driver.is_some());
    let ended = tokio::time::timeout(hours(1), second.wait()).await;
    assert_eq!(ended.unwrap().unwrap(), Outcome::Completed(2));
    assert_eq!(second.entry().await.unwrap().epoch.0, 2);
    // What it drives it keeps, however long that takes.
    assert_eq!(first.wait().await.unwrap(), Outcome::Completed(1));
    assert_eq!(first.entry().await.unwrap().epoch.0, 1);
    worker.close().await.unwrap();
    working.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_driver_begins_nothing_by_a_lease_that_was_given_back() {
    let world = World::new().await;
    let calls = Calls::default();
    let store = Arc::clone(world.outside.store());
    // Between the run's creation and its answer, which is slow: a look for what nobody drives finds it twice.
    world.faults.after(1, async move {
        let made = store.list(&Filter::default(), None, 1).await.unwrap();
        let [entry] = &made.items[..] else {
            panic!("one run: {made:?}")
        };
        let owner = entry.driver.as_ref().unwrap().owner.id;
        let (run, epoch) = (&entry.row.run, entry.epoch);
        store.release(run, epoch, owner).await.unwrap();
    });
    let run = minute(&world.engine, &calls).start(&()).await.unwrap();
    // It was taken anew, under a lease that nobody else can take as well.
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(1));
    assert_eq!(run.entry().await.unwrap().epoch.0, 2);
}

/// Says when it is dropped.
struct Told(Arc<tokio::sync::Notify>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_cut_off_alone_works_on_and_stops_when_it_sees_that_it_lost_the_run() {
    let world = World::new().await;
    let stopped = Arc::new(tokio::sync::Notify::new());
    let register = |engine: &Engine| -> Task<(), u64> {
        let stopped = Arc::clone(&stopped);
        engine.task("long", move |ctx: Ctx, (): ()| {
            let stopped = Arc::clone(&stopped);
            async move {
                let work = || async {
                    if ctx.attempt() == 1 {
                        let _told = Told(Arc::clone(&stopped));
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, TaskError>(ctx.attempt())
                };
                ctx.step("long").run(work).await
            }
        })
    };
    let run = register(&world.engine).start(&()).await.unwrap().id();
    until(&world.outside, run, "step.started").await;
    world.faults.cut_off();
    let taken = register(&world.outside).start(&()).id(run).await.unwrap();
    assert_eq!(taken.wait().await.unwrap(), Outcome::Completed(2));
    let head = taken.entry().await.unwrap().row.head;
    // Nobody can tell it.
    let is_stopped = tokio::time::timeout(hours(1), stopped.notified()).await;
    assert!(is_stopped.is_err(), "it cannot know");
    world.faults.reconnect();
    let is_stopped = tokio::time::timeout(seconds(2), stopped.notified()).await;
    is_stopped.expect("it stops");
    world.engine.env().sleep(minutes(1)).await;
    assert_eq!(
        taken.entry().await.unwrap().row.head,
        head,
        "it appends nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lost_what_it_acknowledged_is_noticed_and_the_run_goes_on_from_what_is_there()
{
    for appends in [true, false] {
        lose_what_was_acknowledged(appends).await;
    }
}

/// Noticed by the next append, or though none is made.
async fn lose_what_was_acknowledged(appends: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let engine = Engine::open(&path).await.unwrap();
    let (came, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let done = Arc::new(AtomicU32::new(0));
    let (here, may, times) = (Arc::clone(&came), Arc::clone(&gate), Arc::clone(&done));
    let task = engine.task("loses", move |ctx: Ctx, (): ()| {
        let (here, may, times) = (Arc::clone(&here), Arc::clone(&may), Arc::clone(&times));
        async move {
            for n in 0..3 {
                let times = &times;
                ctx.step(("pass", n))
                    .run(|| async { Ok::<_, TaskError>(times.fetch_add(1, Ordering::SeqCst)) })
                    .await?;
                here.add_permits(1);
                may.acquire().await.unwrap().forget();
            }
            Ok(())
        }
    });
    let run = task.start(&()).await.unwrap();
    let sql = rusqlite::Connection::open(&path).unwrap();
    came.acquire().await.unwrap().forget();
    sql.execute_batch("CREATE TABLE copy AS SELECT * FROM live")
        .unwrap();
    gate.add_permits(1);
    came.acquire().await.unwrap().forget();
    // A copy takes its place that had not got the second step.
    sql.execute_batch(
        "BEGIN IMMEDIATE; DELETE FROM events WHERE seq > (SELECT head_seq FROM copy);
         DELETE FROM live; INSERT INTO live SELECT * FROM copy; DROP TABLE copy; COMMIT",
    )
    .unwrap();
    let patience = std::time::Duration::from_secs(30);
    if !appends {
        // Its function is called again, and has the first step's result.
        let again = tokio::time::timeout(patience, came.acquire()).await;
        again.expect("it is noticed").unwrap().forget();
    }
    gate.add_permits(100);
    let ended = tokio::time::timeout(patience, run.wait()).await;
    assert!(matches!(ended.unwrap().unwrap(), Outcome::Completed(())));
    // The second is done again, as is the third where it was done before that was noticed; the first is not.
    let most = if appends { 5 } else { 4 };
    let done = done.load(Ordering::SeqCst);
    assert!((4..=most).contains(&done), "{done}");
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_which_the_store_lost_everything_is_driven_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let engine = Engine::open(&path).await.unwrap();
    let began = Arc::new(Semaphore::new(0));
    let ended = Arc::new(Semaphore::new(0));
    let (begins, ends) = (Arc::clone(&began), Arc::clone(&ended));
    let task = engine.task("vanishes", move |ctx: Ctx, (): ()| {
        let (begins, ends) = (Arc::clone(&begins), Arc::clone(&ends));
        async move {
            let step = ctx.step("long").run(|| async {
                let _ends = Dropped(&ends);
                begins.add_permits(1);
                std::future::pending::<Result<(), TaskError>>().await
            });
            step.await
        }
    });
    let run = task.start(&()).await.unwrap();
    began.acquire().await.unwrap().forget();
    let sql = rusqlite::Connection::open(&path).unwrap();
    sql.execute_batch(
        "BEGIN IMMEDIATE; DELETE FROM events; DELETE FROM live; DELETE FROM runs; COMMIT",
    )
    .unwrap();
    let stopped = tokio::time::timeout(std::time::Duration::from_secs(30), ended.acquire()).await;
    stopped.expect("it is noticed").unwrap().forget();
    let gone = run.entry().await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    engine.close().await.unwrap();
}

/// A claim is no event. Where it was lost with a primary, the promoted standby gives its epoch to whoever claims then.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_whose_epoch_the_store_gave_to_another_stops_when_that_one_appends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let engine = Engine::open(&path).await.unwrap();
    let began = Arc::new(Semaphore::new(0));
    let ended = Arc::new(Semaphore::new(0));
    let (begins, ends) = (Arc::clone(&began), Arc::clone(&ended));
    let task = engine.task("twice", move |ctx: Ctx, (): ()| {
        let (begins, ends) = (Arc::clone(&begins), Arc::clone(&ends));
        async move {
            let step = ctx.step("long").run(|| async {
                let _ends = Dropped(&ends);
                begins.add_permits(1);
                std::future::pending::<Result<(), TaskError>>().await
            });
            step.await
        }
    });
    let run = task.start(&()).await.unwrap();
    began.acquire().await.unwrap().forget();
    until(&engine, run.id(), "step.started").await;
    // Another process, which thinks that it drives the run, under the same epoch.
    let other = Engine::open(&path).await.unwrap();
    let own: Task<(), ()> = other.task("own", |ctx: Ctx, (): ()| async move {
        ctx.cancelled().await;
        Ok(())
    });
    let own = own.start(&()).await.unwrap();
    let owner = own.entry().await.unwrap().driver.unwrap().owner.id;
    let sql = rusqlite::Connection::open(&path).unwrap();
    let given = sql.execute(
        "UPDATE live SET owner = ?1 WHERE run = (SELECT id FROM runs WHERE run = ?2)",
        (owner.0.cast_signed(), run.id().to_string()),
    );
    assert_eq!(given.unwrap(), 1);
    let before = run.entry().await.unwrap();
    assert_eq!(before.epoch.0, 1);
    other.signal(&run.id(), "noise", &()).await.unwrap();
    let stopped = tokio::time::timeout(std::time::Duration::from_secs(30), ended.acquire()).await;
    stopped.expect("it is noticed").unwrap().forget();
    // What is the other's is left to it.
    engine.close().await.unwrap();
    let left = run.entry().await.unwrap();
    assert_eq!(left.driver.map(|it| it.owner.id), Some(owner));
    assert_eq!(left.row.head.seq, before.row.head.seq.next());
    other.close().await.unwrap();
}

/// Says when a step's work is given up.
struct Dropped<'a>(&'a Semaphore);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}
