//! What meets at the same moment: closing and starting, pausing and writing, parents and children,
//! a worker and a run it cannot read.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Virtual, count, on_both, until, until_entry};
use logreel::core::event::{
    Budget, ChildStarted, Parent, Phase, PhaseEntered, Provenance, Relation, Resolution, RunKind,
    RunStarted,
};
use logreel::core::{AppendId, Draft, Payload};
use logreel::store::faulty::{Fault, Faults, FaultyStore};
use logreel::store::sqlite::{Options, this_host};
use logreel::store::{Append, CreateError, NewRun, Owner, OwnerId};
use logreel::*;

fn echo(engine: &Engine) -> Task<u32, u32> {
    engine.task("echo", |ctx: Ctx, n: u32| async move {
        let work = || async { Ok::<_, TaskError>(n) };
        ctx.step("one").run(work).await
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_races_with_the_engines_close_is_refused_or_can_be_driven_on() {
    on_both(|world| async move {
        for n in 0..20 {
            let engine = world.engine().await;
            let task = echo(&engine);
            let start = {
                let task = task.clone();
                tokio::spawn(async move { task.start(&n).key(format!("run-{n}")).await })
            };
            let closing = engine.clone();
            let close = tokio::spawn(async move { closing.close().await });
            close.await.unwrap().unwrap();
            match start.await.unwrap() {
                Ok(_) => {}
                Err(error) => assert!(matches!(error, Error::Closed), "{error:?}"),
            }
            // Whatever is there, nobody who is gone holds it.
            let next = world.engine().await;
            let run = echo(&next).start(&n).key(format!("run-{n}")).await.unwrap();
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(n));
            next.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_races_with_its_sessions_close_leaves_no_active_run() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<u32, u32> = engine.task("endless", |ctx: Ctx, n: u32| async move {
            ctx.cancelled().await;
            Ok(n)
        });
        for n in 0..20 {
            let name = format!("s-{n}");
            let session = engine.session(&name).unwrap();
            let start = {
                let task = task.clone();
                tokio::spawn(async move { task.start(&n).session(name).await })
            };
            let close = {
                let session = session.clone();
                tokio::spawn(async move { session.close().await })
            };
            close.await.unwrap().unwrap();
            match start.await.unwrap() {
                Ok(run) => {
                    let outcome = run.wait().await.unwrap();
                    assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
                }
                Err(Error::Create(CreateError::SessionClosed(_))) => {}
                Err(other) => panic!("{other:?}"),
            }
            assert_eq!(session.active().await.unwrap(), None);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_lets_a_write_finish_for_a_moment_and_one_it_stopped_is_in_doubt_on_resume() {
    for world in Virtual::both() {
        for (takes, finishes) in [(Duration::from_millis(500), true), (hours(9), false)] {
            let engine = world.engine().await;
            let env = Arc::clone(engine.env());
            let task: Task<(), u32> = engine.task("pays", move |ctx: Ctx, (): ()| {
                let env = Arc::clone(&env);
                async move {
                    let write = |_| async {
                        env.sleep(takes).await;
                        Ok::<_, TaskError>(7)
                    };
                    let paid = ctx.write_step("pay").run(write).await?;
                    // Nothing new starts in a paused run.
                    let note = || async { Ok::<_, TaskError>(paid) };
                    ctx.step("note").run(note).await
                }
            });
            let run = task.start(&()).await.unwrap();
            until(&engine, run.id(), "step.started").await;
            let paused = run.pause("lunch").await.unwrap();
            assert_eq!(paused, PauseOutcome::Paused);
            let entry = until_entry(&engine, run.id(), |entry| entry.driver.is_none()).await;
            assert_eq!(entry.row.status(), Status::Waiting);
            let waited = entry.row.updated_at.since(entry.row.facts.created_at);
            assert!(waited < Duration::from_secs(3), "{waited:?}");
            engine.resume(&run.id()).await.unwrap();
            if !finishes {
                // Whoever drives it on cannot know what became of it.
                until_entry(&engine, run.id(), |entry| {
                    entry.driver.is_none() && !entry.row.facts.in_doubt.is_empty()
                })
                .await;
                let done = Resolution::Returned(Payload::Inline(Json::of(&7).unwrap()));
                let resolved = engine.resolve(&run.id(), "pay", done, "me").await.unwrap();
                assert_eq!(resolved.not_known_dead, [], "its driver has stopped");
            }
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
            let mut events = Vec::new();
            let mut stream = run.events(Seq::FIRST);
            while let Some(event) = stream.next().await {
                events.push(event.unwrap());
            }
            assert_eq!(count(&events, "step.started"), 1, "it ran once");
        }
    }
}

/// A driver elsewhere.
async fn elsewhere(store: &dyn RunStore) -> OwnerId {
    let (host, host_name) = this_host();
    let owner = Owner {
        id: OwnerId(77),
        host,
        host_name,
        pid: 1,
    };
    store.join(&owner).await.unwrap();
    owner.id
}

/// How a task's run begins.
fn started(agent: &str, spec_digest: Digest, parent: Option<Parent>) -> RunStarted {
    RunStarted {
        agent: agent.into(),
        budget: Budget::default(),
        context: None,
        dir: None,
        durability: Durability::Full,
        git: None,
        input: Payload::Inline(Json::of(&1).unwrap()),
        key: None,
        kind: RunKind::Task,
        labels: Default::default(),
        limit: None,
        parent,
        provenance: Provenance::default(),
        session: None,
        spec: Payload::null(),
        spec_digest,
        spec_file: None,
    }
}

/// A parent with a child and a grandchild, made through the store as a driver elsewhere would.
async fn family(store: &dyn RunStore) -> [RunId; 3] {
    let owner = elsewhere(store).await;
    let env = logreel::store::SystemEnv;
    let runs = [env.run_id(), env.run_id(), env.run_id()];
    for generation in 0..3usize {
        let parent = generation.checked_sub(1).map(|above| Parent {
            relation: Relation::Child,
            run: runs[above],
            seq: Seq::FIRST,
        });
        let new = NewRun {
            run: runs[generation],
            started: started("family", Digest::of(b"family"), parent),
            blobs: Vec::new(),
            owner: Some(owner),
            then: Vec::new(),
        };
        let entry = store.create(new).await.unwrap().entry().clone();
        let Some(child) = runs.get(generation + 1) else {
            break;
        };
        let phase = Phase::Executing;
        let announced = ChildStarted {
            budget: Budget::default(),
            child: *child,
            detached: false,
            step: StepId::from_parts(["child"]).unwrap(),
        };
        let append = Append {
            run: runs[generation],
            expect: entry.row.head,
            epoch: entry.epoch,
            id: AppendId::new("announce").unwrap(),
            drafts: vec![Draft::new(PhaseEntered { phase }), Draft::new(announced)],
            blobs: Vec::new(),
        };
        store.append(&append).await.unwrap();
    }
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_pause_reach_every_descendant() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let paused = family(&**engine.store()).await;
        let outcome = engine.pause(&paused[0], "lunch").await.unwrap();
        assert_eq!(outcome, PauseOutcome::Paused);
        for run in paused {
            let row = engine.run(run).entry().await.unwrap().row;
            assert_eq!(row.status(), Status::Waiting);
            assert_eq!(row.facts.waits[0].wait.name.as_deref(), Some("lunch"));
        }
        // A child that has ended stays as it ended; those below a paused one are reached all the same.
        for run in [paused[2], paused[0]] {
            let outcome = engine.cancel(&run, "enough").await.unwrap();
            assert_eq!(outcome, CancelOutcome::Requested);
        }
        for run in paused {
            let row = engine.run(run).entry().await.unwrap().row;
            assert_eq!(row.status(), Status::Cancelled);
        }
        let twice = engine.cancel(&paused[0], "again").await.unwrap();
        assert_eq!(twice, CancelOutcome::AlreadyTerminal(Status::Cancelled));
    })
    .await;
}

/// A child of a paused run whose first driver, the parent's, was stopped between making it and telling it of the pause.
async fn child_that_was_not_told(engine: &Engine) -> RunId {
    let parent = echo(engine).start(&1).queue().await.unwrap();
    parent.pause("lunch").await.unwrap();
    let store = engine.store();
    let owner = elsewhere(&**store).await;
    let of = Parent {
        relation: Relation::Child,
        run: parent.id(),
        seq: Seq::FIRST,
    };
    let spec_digest = parent.entry().await.unwrap().row.facts.spec_digest;
    let new = NewRun {
        run: engine.env().run_id(),
        started: started("echo", spec_digest, Some(of)),
        blobs: Vec::new(),
        owner: Some(owner),
        then: Vec::new(),
    };
    let made = store.create(new).await.unwrap().entry().clone();
    let child = made.row.run;
    store.release(&child, made.epoch, owner).await.unwrap();
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_was_told_of_a_pause_and_resumed_begins_while_its_parent_stays_paused() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let child = child_that_was_not_told(&engine).await;
        engine.pause(&child, "told").await.unwrap();
        engine.resume(&child).await.unwrap();
        let child = engine.run(child);
        let ended = tokio::time::timeout(Duration::from_secs(30), child.wait());
        let ended = ended.await.expect("it is not paused again").unwrap();
        assert!(matches!(ended, Outcome::Completed(_)), "{ended:?}");
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_missed_its_parents_pause_is_paused_before_it_begins_also_by_its_second_driver()
 {
    on_both(|world| async move {
        let engine = world.engine().await;
        let child = child_that_was_not_told(&engine).await;
        let worker = engine.clone();
        let working = tokio::spawn(async move { worker.work(1).await });
        let left = until_entry(&engine, child, |entry| {
            entry.epoch.0 == 2 && entry.driver.is_none()
        });
        let left = left.await.row;
        assert_eq!(left.status(), Status::Waiting);
        assert_eq!(left.facts.waits[0].wait.kind, core::event::WaitKind::Paused);
        engine.close().await.unwrap();
        working.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_a_run_of_a_newer_format_alone_and_drives_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let options = Options {
        create: true,
        ..Options::default()
    };
    let store = Arc::new(SqliteStore::open(&path, options).unwrap());
    let engine = Engine::builder().store(store).build().await.unwrap();
    let task = echo(&engine);
    let newer = task.start(&1).queue().await.unwrap();
    let known = task.start(&2).queue().await.unwrap();
    let sql = rusqlite::Connection::open(&path).unwrap();
    let newer_id = newer.id().to_string();
    let raised = sql.execute("UPDATE runs SET needs = 99 WHERE run = ?1", [newer_id]);
    assert_eq!(raised.unwrap(), 1);
    let worker = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.work(1).await })
    };
    assert_eq!(known.wait().await.unwrap(), Outcome::Completed(2));
    let later = task.start(&3).queue().await.unwrap();
    assert_eq!(later.wait().await.unwrap(), Outcome::Completed(3));
    let entry = newer.entry().await.unwrap();
    assert_eq!(entry.row.status(), Status::Created, "left alone");
    assert_eq!((entry.driver, entry.epoch.0), (None, 0));
    let refused = engine.resume(&newer.id()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NewerFormat);
    engine.close().await.unwrap();
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_cannot_be_read_is_left_alone_and_the_others_are_driven() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let options = Options {
        create: true,
        ..Options::default()
    };
    let store = Arc::new(SqliteStore::open(&path, options).unwrap());
    let engine = Engine::builder().store(store).build().await.unwrap();
    let task = echo(&engine);
    let child: Task<(), ()> = engine.task("child", |ctx: Ctx, (): ()| async move {
        ctx.signal("never").await?;
        Ok(())
    });
    let parent: Task<(), ()> = engine.task("parent", move |ctx: Ctx, (): ()| {
        let child = child.clone();
        async move { ctx.child("child", &child, &()).await }
    });
    let waits = parent.start(&()).await.unwrap();
    let idle = async |run: RunId| {
        let entry = engine.run(run).entry().await.unwrap();
        entry.row.status() == Status::Waiting && entry.driver.is_none()
    };
    let below = async || {
        let all = engine.runs().newest(10).await.unwrap();
        all.into_iter().find(|it| it.row.facts.parent.is_some())
    };
    while !idle(waits.id()).await || !idle(below().await.unwrap().row.run).await {
        store::SystemEnv
            .sleep(std::time::Duration::from_millis(5))
            .await;
    }
    let below = below().await.unwrap().row.run;
    let damaged = task.start(&1).queue().await.unwrap();
    let orphan = task.start(&2).queue().await.unwrap();
    engine.close().await.unwrap();
    let sql = rusqlite::Connection::open(&path).unwrap();
    // Whoever has them is gone, and a page of the disk is not what it was: of one run, and of what another waits for.
    sql.execute_batch(
        "INSERT INTO owners (id, host, host_name, pid, beat, gone, beat_at)
           VALUES (7, 'elsewhere', 'elsewhere', 7, 0, 1, 0);
         UPDATE live SET owner = 7, since = 0, epoch = 1",
    )
    .unwrap();
    for run in [damaged.id(), below] {
        let written = sql.execute(
            "UPDATE runs SET facts = '{' WHERE run = ?1",
            [run.to_string()],
        );
        assert_eq!(written.unwrap(), 1);
    }
    // It joins all the same, and looks after what the one before left.
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    let engine = Engine::builder()
        .store(Arc::new(store))
        .build()
        .await
        .unwrap();
    let task = echo(&engine);
    let [damaged, orphan] = [damaged, orphan].map(|it| engine.run(it.id()).typed::<u32>());
    let worker = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.work(1).await })
    };
    assert_eq!(orphan.wait().await.unwrap(), Outcome::Completed(2));
    let later = task.start(&3).queue().await.unwrap();
    assert_eq!(later.wait().await.unwrap(), Outcome::Completed(3));
    let refused = damaged.entry().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    engine.close().await.unwrap();
    worker.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_or_a_start_whose_answer_was_lost_with_the_store_is_driven_once_it_is_back() {
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::new(store::SystemEnv)));
    let other = Engine::builder().store(Arc::clone(&store)).build();
    let other = other.await.unwrap();
    let faults = Faults::new();
    let faulty = FaultyStore::new(Arc::clone(&store), faults.clone());
    let engine = Engine::builder().store(Arc::new(faulty)).build();
    let engine = engine.await.unwrap();
    let task = echo(&engine);

    // Its own thread of beats keeps this owner alive all the time, so nobody else would come to help.
    faults.fail_next(Fault::Landed);
    faults.away_after_next(40);
    let lost = task.start(&1).key("lost").await;
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Unavailable);
    let run = echo(&other).start(&1).key("lost").queue().await.unwrap();
    let ended = tokio::time::timeout(hours(1), run.wait());
    assert_eq!(ended.await.unwrap().unwrap(), Outcome::Completed(1));

    let run = echo(&other).start(&2).queue().await.unwrap();
    faults.fail_next(Fault::Landed);
    faults.away_after_next(40);
    let working = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.work(1).await })
    };
    let ended = tokio::time::timeout(hours(1), run.wait());
    assert_eq!(ended.await.unwrap().unwrap(), Outcome::Completed(2));
    let entry = store.entry(&run.id()).await.unwrap();
    assert_eq!(
        entry.epoch.0, 1,
        "the claim that landed is the one it was driven under"
    );
    engine.close().await.unwrap();
    working.await.unwrap().unwrap();
    other.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_when_a_recorded_result_is_read_fails_no_run() {
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::new(store::SystemEnv)));
    let faults = Faults::new();
    // So large that it is kept apart from the log, and read again by whoever goes on.
    let large = |engine: &Engine, faults: Option<Faults>| -> Task<(), usize> {
        engine.task("large", move |ctx: Ctx, (): ()| {
            let faults = faults.clone();
            async move {
                if let Some(faults) = faults {
                    let arm = || async {
                        faults.away_after_next(5);
                        Ok::<_, TaskError>(())
                    };
                    ctx.step("arm").run(arm).await?;
                }
                let work = || async { Ok::<_, TaskError>("x".repeat(100_000)) };
                let text = ctx.step("large").run(work).await?;
                ctx.signal("go").await?;
                Ok(text.len())
            }
        })
    };
    let first = Engine::builder().store(Arc::clone(&store)).build();
    let first = first.await.unwrap();
    let run = large(&first, None).start(&()).await.unwrap().id();
    until(&first, run, "wait.started").await;
    first.close().await.unwrap();

    let faulty = FaultyStore::new(Arc::clone(&store), faults.clone());
    let next = Engine::builder().store(Arc::new(faulty)).build();
    let next = next.await.unwrap();
    large(&next, Some(faults));
    next.signal(&run, "go", &()).await.unwrap();
    next.resume(&run).await.unwrap();
    // Whoever watches reads too, and is told that the store is away: another looks, who can reach it.
    let watcher = Engine::builder().store(store).build().await.unwrap();
    let run = watcher.run(run).typed::<usize>();
    let ended = tokio::time::timeout(hours(1), run.wait());
    assert_eq!(ended.await.unwrap().unwrap(), Outcome::Completed(100_000));
    next.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_lost_its_lease_while_cut_off_makes_no_write_although_it_is_heard_again() {
    let other = testing::TestEngine::new().await.unwrap();
    let faults = Faults::new();
    let faulty = FaultyStore::new(Arc::clone(other.store()), faults.clone());
    let first = other.another_with(|builder| builder.store(Arc::new(faulty)));
    let first = first.await.unwrap();
    let ledger: Arc<Mutex<Vec<(&str, String)>>> = Arc::default();
    let pay = |engine: &Engine, who: &'static str| -> Task<(), ()> {
        let ledger = Arc::clone(&ledger);
        engine.task("pay", move |ctx: Ctx, (): ()| {
            let ledger = Arc::clone(&ledger);
            async move {
                let paid = |key: core::Digest| {
                    let ledger = ledger.lock().unwrap();
                    let found = ledger.iter().any(|(_, paid)| *paid == key.to_string());
                    let found = if found {
                        Reconciled::Done(())
                    } else {
                        Reconciled::NotDone
                    };
                    std::future::ready(Ok::<_, TaskError>(found))
                };
                let pay = |key: core::Digest| {
                    ledger.lock().unwrap().push((who, key.to_string()));
                    std::future::ready(Ok::<_, TaskError>(()))
                };
                let step = ctx.write_step("pay").timeout(Duration::from_secs(5));
                step.reconcile(paid).run(pay).await
            }
        })
    };
    pay(&other, "other");
    // Its announcement lands, and nobody hears of it: the network is gone, for it alone.
    faults.after(2, {
        let faults = faults.clone();
        async move { faults.cut_off() }
    });
    // Sent again it is held up until the owner is heard again, which says nothing of the run.
    faults.before(3, {
        let env = Arc::clone(first.env());
        async move { env.sleep(Duration::from_secs(5)).await }
    });
    let run = pay(&first, "first").start(&()).await.unwrap().id();
    until(&other, run, "step.started").await;
    let working = {
        let other = (*other).clone();
        tokio::spawn(async move { other.work(1).await })
    };
    // After one lease, the write's timeout and one lease more the other has made the write.
    let ended = until_entry(&other, run, |entry| entry.row.status().is_terminal());
    ended.await;
    assert_eq!(ledger.lock().unwrap().len(), 1);
    faults.reconnect();
    first.env().sleep(Duration::from_secs(60)).await;
    first.close().await.unwrap();
    assert!(faults.writes() >= 3, "its announcement was sent again");
    let ledger = ledger.lock().unwrap().clone();
    assert!(matches!(&ledger[..], [("other", _)]), "{ledger:?}");
    other.close().await.unwrap();
    working.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_step_given_up_while_it_was_recorded_keeps_no_driver_from_hearing_of_a_cancel() {
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::new(store::SystemEnv)));
    let faults = Faults::new();
    let faulty = FaultyStore::new(Arc::clone(&store), faults.clone());
    let engine = Engine::builder().store(Arc::new(faulty)).build();
    let engine = engine.await.unwrap();
    let (given_up, mut is_given_up) = tokio::sync::watch::channel(false);
    let env = Arc::clone(engine.env());
    let task: Task<(), ()> = engine.task("impatient", move |ctx: Ctx, (): ()| {
        let (env, faults, given_up) = (Arc::clone(&env), faults.clone(), given_up.clone());
        async move {
            // Past the one flush that every driver makes of itself.
            env.sleep(Duration::from_secs(1)).await;
            let hang = || async {
                faults.before(faults.writes() + 1, std::future::pending());
                Ok::<_, TaskError>(1)
            };
            let step = ctx.step("hangs").run(hang);
            let hung = tokio::time::timeout(Duration::from_secs(1), step).await;
            assert!(hung.is_err(), "{hung:?}");
            given_up.send_replace(true);
            ctx.cancelled().await;
            Ok(())
        }
    });
    let run = task.start(&()).await.unwrap();
    is_given_up.wait_for(|is| *is).await.unwrap();
    // From elsewhere, as a person does it.
    let other = Engine::builder().store(Arc::clone(&store)).build();
    let other = other.await.unwrap();
    other.run(run.id()).cancel("enough").await.unwrap();
    let heard = until_entry(&other, run.id(), |entry| entry.driver.is_none());
    tokio::time::timeout(Duration::from_secs(2), heard)
        .await
        .expect("its driver heard of it");
    // Also what came after the end.
    let log = store.events(&run.id(), Seq::FIRST, 100).await.unwrap();
    assert_eq!(count(&log.items, "step.finished"), 1, "{log:?}");
    engine.close().await.unwrap();
    other.close().await.unwrap();
}

/// A store that was replaced by a copy may have given one epoch to two.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_comes_second_under_its_epoch_appends_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let open = || {
        let options = Options {
            create: true,
            ..Options::default()
        };
        Arc::new(SqliteStore::open(&path, options).unwrap())
    };
    let (faults, other) = (Faults::new(), open());
    let faulty = FaultyStore::new(open(), faults.clone());
    let engine = Engine::builder().store(Arc::new(faulty)).build();
    let engine = engine.await.unwrap();
    let owner = elsewhere(&*other).await;
    // Right before its first append.
    faults.before(2, {
        let (other, path) = (Arc::clone(&other), path.clone());
        async move {
            let made = other.list(&Filter::default(), None, 1).await.unwrap();
            let sql = rusqlite::Connection::open(&path).unwrap();
            let owner = owner.0.cast_signed();
            sql.execute("UPDATE live SET owner = ?1", [owner]).unwrap();
            let phase = Phase::Executing;
            let append = Append {
                run: made.items[0].row.run,
                expect: made.items[0].row.head,
                epoch: made.items[0].epoch,
                id: AppendId::new("theirs").unwrap(),
                drafts: vec![Draft::new(PhaseEntered { phase })],
                blobs: Vec::new(),
            };
            other.append(&append).await.unwrap();
        }
    });
    let run = echo(&engine).start(&1).await.unwrap().id();
    until(&engine, run, "phase.entered").await;
    engine.close().await.unwrap();
    let log = other.read(&run, Seq::FIRST, 10).await.unwrap();
    assert_eq!(log.items.len(), 2, "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_when_a_driver_learns_that_the_run_is_anothers_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let open = || {
        let options = Options {
            create: true,
            ..Options::default()
        };
        Arc::new(SqliteStore::open(&path, options).unwrap())
    };
    let (faults, other) = (Faults::new(), open());
    let faulty = FaultyStore::new(open(), faults.clone());
    // The other never beats, and has it all the same.
    let builder = Engine::builder().store(Arc::new(faulty)).lease(hours(1));
    let engine = builder.build().await.unwrap();
    let owner = elsewhere(&*other).await;
    // Nothing is appended by the other, so that only a look at the lease can tell; the answers to the driver's own first
    // append are lost for longer than it takes to look.
    faults.before(3, {
        let path = path.clone();
        async move {
            let sql = rusqlite::Connection::open(&path).unwrap();
            let owner = owner.0.cast_signed();
            sql.execute("UPDATE live SET owner = ?1", [owner]).unwrap();
        }
    });
    for nth in 3..11 {
        faults.fail(nth, Fault::Lost);
    }
    let run = echo(&engine).start(&1).queue().await.unwrap();
    let worker = engine.clone();
    let working = tokio::spawn(async move { worker.work(1).await });
    let has_left = async {
        while faults.writes() < 4 || engine.driving() > 0 {
            engine.env().sleep(Duration::from_millis(5)).await;
        }
    };
    let has_left = tokio::time::timeout(Duration::from_secs(30), has_left).await;
    has_left.expect("it is noticed");
    engine.close().await.unwrap();
    working.await.unwrap().unwrap();
    let log = other.read(&run.id(), Seq::FIRST, 10).await.unwrap();
    assert_eq!(log.items.len(), 1, "{log:?}");
}
