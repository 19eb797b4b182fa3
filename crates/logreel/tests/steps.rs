//! The rules of steps, writes, waits and facts, by name (DESIGN 5, SEMANTICS 9, 18, 19, 23 to 26).
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Virtual, count, kinds, on_both, until, until_entry};
use logreel::core::Payload;
use logreel::core::event::{Resolution, WaitKind};
use logreel::store::faulty::Fault;
use logreel::testing::{PointEnd, TestEngine, crash_everywhere_on};
use logreel::*;
use serde::{Deserialize, Serialize};

type Counter = Arc<AtomicU32>;

/// Counts a call and gives what it is told to.
async fn counted<T>(calls: &Counter, value: T) -> Result<T, TaskError> {
    calls.fetch_add(1, Ordering::SeqCst);
    Ok(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_results_come_in_input_order_whatever_finishes_first() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<(), (Vec<u64>, Vec<u64>)> =
            engine.task("all", |ctx: Ctx, (): ()| async move {
                let order = Arc::new(tokio::sync::Semaphore::new(0));
                let slow_first = (0..40u64).map(|n| {
                    let order = &order;
                    ctx.step(("n", n)).run(move || async move {
                        // The last one lets all before it go, so that they finish in reverse.
                        if n < 39 {
                            order.acquire().await?.forget();
                        } else {
                            order.add_permits(39);
                        }
                        Ok::<_, TaskError>(n)
                    })
                });
                let results = ctx.all(slow_first).await?;
                let none: Vec<std::future::Ready<Result<u64, TaskError>>> = Vec::new();
                Ok((results, ctx.all(none).await?))
            });
        let run = task.start(&()).await.unwrap();
        let expected = ((0..40).collect(), vec![]);
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(expected));
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "step.finished"), 40);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_step_twice_and_a_changed_input_are_refused_by_name() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let twice: Task<(), u32> = engine.task("twice", |ctx: Ctx, (): ()| async move {
            ctx.step("same")
                .run(|| async { Ok::<_, TaskError>(1) })
                .await?;
            ctx.step("same")
                .run(|| async { Ok::<_, TaskError>(2) })
                .await
        });
        let run = twice.start(&()).await.unwrap();
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!("not failed")
        };
        assert_eq!(cause.kind, "duplicate_step");
        assert!(cause.message.contains("`same`"), "{}", cause.message);

        // The prompt of a finished step changes while the run is paused: the old answer is not
        // handed out for the new question.
        let prompt = Arc::new(AtomicU32::new(1));
        let asked = Arc::clone(&prompt);
        let bound: Task<(), u32> = engine.task("bound", move |ctx: Ctx, (): ()| {
            let asked = Arc::clone(&asked);
            async move {
                let question = asked.load(Ordering::SeqCst);
                let answer = ctx.step("ask").input(&question);
                let answer = answer
                    .run(|| async { Ok::<_, TaskError>(question * 10) })
                    .await?;
                ctx.signal("go").await?;
                Ok(answer)
            }
        });
        let run = bound.start(&()).await.unwrap();
        until_entry(&engine, run.id(), |entry| {
            entry.row.status() == Status::Waiting && entry.driver.is_none()
        })
        .await;
        prompt.store(2, Ordering::SeqCst);
        engine.signal(&run.id(), "go", &()).await.unwrap();
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!("not failed")
        };
        assert_eq!(cause.kind, "input_changed", "{}", cause.message);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_returns_what_its_recorded_bytes_say() {
    /// Loses a digit when it is written.
    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Rounded(#[serde(serialize_with = "round")] u32);
    fn round<S: serde::Serializer>(n: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(n / 10 * 10)
    }
    /// Is written as something it cannot be read from.
    #[derive(Serialize, Deserialize)]
    struct OneWay(#[serde(serialize_with = "as_text")] u32);
    fn as_text<S: serde::Serializer>(n: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(n)
    }
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<bool, Rounded> = engine.task("bytes", |ctx: Ctx, bad: bool| async move {
            if bad {
                ctx.step("bad")
                    .run(|| async { Ok::<_, TaskError>(OneWay(1)) })
                    .await?;
            }
            ctx.step("lossy")
                .run(|| async { Ok::<_, TaskError>(Rounded(42)) })
                .await
        });
        let run = task.start(&false).await.unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(Rounded(40)));
        let run = task.start(&true).await.unwrap();
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!("not failed")
        };
        assert!(
            cause.message.contains("does not decode back"),
            "{}",
            cause.message
        );
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "step.failed"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_value_comes_back_from_its_blob_and_one_over_the_ceiling_fails_by_name() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<usize, usize> = engine.task("large", |ctx: Ctx, bytes: usize| async move {
            let work = move || async move { Ok::<_, TaskError>("x".repeat(bytes)) };
            let text = ctx.step("make").run(work).await?;
            ctx.step("small")
                .run(|| async { Ok::<_, TaskError>(1) })
                .await?;
            Ok(text.len())
        });
        let run = task.start(&200_000).await.unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(200_000));
        let (_, events) = world.reopened(run.id()).await;
        let output = events.iter().find_map(|event| match &event.body {
            Body::StepFinished(finished) => Some(finished.output.clone()),
            _ => None,
        });
        let Some(Payload::Blob(reference)) = output else {
            panic!("not in a blob")
        };
        let blob = world.open().blob(&reference.blob).await.unwrap().unwrap();
        assert_eq!(blob.len(), 200_002);

        let run = task.start(&(17 * 1024 * 1024)).await.unwrap();
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!("not failed")
        };
        assert!(cause.message.contains("payload_max"), "{}", cause.message);
        let run = task.start(&1).await.unwrap();
        assert_eq!(
            run.wait().await.unwrap(),
            Outcome::Completed(1),
            "the store stays usable"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_step_is_retried_with_backoff_and_a_permanent_error_is_not() {
    for world in Virtual::both() {
        retry_with_backoff(&world.engine().await).await;
    }
}

async fn retry_with_backoff(engine: &TestEngine) {
    let calls = Counter::default();
    let called = Arc::clone(&calls);
    let task: Task<bool, u32> = engine.task("flaky", move |ctx: Ctx, permanent: bool| {
        let called = Arc::clone(&called);
        async move {
            let step = ctx.step("flaky").retry(Retry::attempts(9));
            let work = || async {
                let error = TaskError::new("not yet");
                match called.fetch_add(1, Ordering::SeqCst) {
                    _ if permanent => Err(error.permanent()),
                    8 => Ok(7),
                    _ => Err(error),
                }
            };
            step.run(work).await
        }
    });
    let run = task.start(&false).await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
    assert_eq!(calls.swap(0, Ordering::SeqCst), 9);
    let waited = run.entry().await.unwrap().row;
    let waited = waited.updated_at.since(waited.facts.created_at);
    assert!(
        waited > Duration::from_secs(60),
        "backoff grows: {waited:?}"
    );
    let run = task.start(&true).await.unwrap();
    assert!(matches!(run.wait().await.unwrap(), Outcome::Failed(_)));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_long_backoff_gives_the_lease_back_and_survives_its_driver() {
    for world in Virtual::both() {
        back_off_for_long(&world.engine().await).await;
    }
}

async fn back_off_for_long(engine: &TestEngine) {
    let calls = Counter::default();
    let register = |engine: &Engine| -> Task<(), u32> {
        let called = Arc::clone(&calls);
        engine.task("patient", move |ctx: Ctx, (): ()| {
            let called = Arc::clone(&called);
            async move {
                let step = ctx
                    .step("flaky")
                    .retry(Retry::attempts(3).backoff(minutes(10), minutes(10)));
                let work = || async {
                    match called.fetch_add(1, Ordering::SeqCst) {
                        2 => Ok(7),
                        _ => Err(TaskError::new("not yet")),
                    }
                };
                step.run(work).await
            }
        })
    };
    let run = register(engine).start(&()).await.unwrap();
    let parked = |entry: &Entry| entry.row.status() == Status::Waiting && entry.driver.is_none();
    let entry = until_entry(engine, run.id(), parked).await;
    assert_eq!(entry.row.facts.waits[0].wait.kind, WaitKind::Retry);
    assert!(entry.ready_at.is_some());
    engine.crash().await.unwrap();
    let next = engine.another().await.unwrap();
    let same = register(&next).start(&()).id(run.id()).await.unwrap();
    assert_eq!(same.wait().await.unwrap(), Outcome::Completed(7));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let waited = same.entry().await.unwrap().row;
    let waited = waited.updated_at.since(waited.facts.created_at);
    assert!(waited > minutes(10) && waited < minutes(25), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_announced_before_it_runs_and_its_key_is_computed() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let store = Arc::clone(engine.store());
        let task: Task<(), String> = engine.task("writes", move |ctx: Ctx, (): ()| {
            let store = Arc::clone(&store);
            async move {
                let run = ctx.run_id();
                let write = |key: Digest| {
                    let store = Arc::clone(&store);
                    async move {
                        let page = store.read(&run, Seq::FIRST, 100).await?;
                        let last = page.items.last().map(|record| record.kind.clone());
                        assert_eq!(last.as_deref(), Some("step.started"), "announced first");
                        Ok::<_, TaskError>(key.to_string())
                    }
                };
                ctx.write_step("pay").run(write).await
            }
        });
        let run = task.start(&()).await.unwrap();
        let expected = logreel::core::meaning::effect_key(&run.id(), r#"["pay"]"#, None);
        assert_eq!(
            run.wait().await.unwrap(),
            Outcome::Completed(expected.to_string())
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_write_in_doubt_waits_for_a_person_and_is_never_repeated_blind() {
    for (resolution, outcome, writes) in [
        (
            Resolution::Returned(Payload::Inline(Json::of(&5).unwrap())),
            Some(5),
            1,
        ),
        (Resolution::Failed("it bounced".into()), None, 1),
        (Resolution::Retry, Some(7), 2),
    ] {
        let engine = TestEngine::new().await.unwrap();
        let calls = Counter::default();
        let called = Arc::clone(&calls);
        let register = move |engine: &Engine| -> Task<(), u32> {
            let called = Arc::clone(&called);
            engine.task("pays", move |ctx: Ctx, (): ()| {
                let called = Arc::clone(&called);
                async move {
                    let write = |_key| async {
                        if called.fetch_add(1, Ordering::SeqCst) == 0 {
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, TaskError>(7)
                    };
                    ctx.write_step("pay").run(write).await
                }
            })
        };
        let run = register(&engine).start(&()).await.unwrap();
        until(&engine, run.id(), "step.started").await;
        engine.crash().await.unwrap();
        let next = engine.another().await.unwrap();
        register(&next);
        next.resume(&run.id()).await.unwrap();
        let run = next.run(run.id()).typed::<u32>();
        let entry = until_entry(&next, run.id(), |entry| {
            entry.row.status() == Status::Waiting && entry.driver.is_none()
        })
        .await;
        assert_eq!(entry.row.facts.waits[0].wait.kind, WaitKind::InDoubt);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let wrong = next
            .resolve(&run.id(), "other", Resolution::Retry, "me")
            .await
            .unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::NotApplicable);
        next.resolve(&run.id(), "pay", resolution, "me")
            .await
            .unwrap();
        match (run.wait().await.unwrap(), outcome) {
            (Outcome::Completed(value), Some(expected)) => assert_eq!(value, expected),
            (Outcome::Failed(cause), None) => assert_eq!(cause.message, "it bounced"),
            other => panic!("{other:?}"),
        }
        assert_eq!(calls.load(Ordering::SeqCst), writes);
    }
}

/// A task that writes once, with reconcile, and hangs the first time it writes.
fn hanging_write(engine: &Engine, calls: &Counter, timeout: Option<Duration>) -> Task<(), u32> {
    hanging_write_after(engine, calls, timeout, Duration::ZERO)
}

/// One that comes to its write after a while.
fn hanging_write_after(
    engine: &Engine,
    calls: &Counter,
    timeout: Option<Duration>,
    after: Duration,
) -> Task<(), u32> {
    let (called, env) = (Arc::clone(calls), Arc::clone(engine.env()));
    engine.task("hangs", move |ctx: Ctx, (): ()| {
        let (called, env) = (Arc::clone(&called), Arc::clone(&env));
        async move {
            env.sleep(after).await;
            let not_done = |_| async { Ok::<_, TaskError>(Reconciled::NotDone) };
            let write = |_key| async {
                if called.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, TaskError>(7)
            };
            let mut step = ctx.write_step("pay").reconcile(not_done);
            if let Some(timeout) = timeout {
                step = step.timeout(timeout);
            }
            step.run(write).await
        }
    })
}

#[tokio::test(start_paused = true)]
async fn reconcile_is_asked_at_once_of_the_dead_and_of_the_silent_after_timeout_and_lease() {
    let lease = Duration::from_secs(10);
    for world in Virtual::both() {
        for (known_dead, least) in [(true, Duration::ZERO), (false, minutes(5) + lease)] {
            let engine = world.engine().await;
            let calls = Counter::default();
            let timeout = Some(minutes(5));
            let run = hanging_write(&engine, &calls, timeout).start(&()).await;
            let run = run.unwrap().id();
            until(&engine, run, "step.started").await;
            let next = engine.another().await.unwrap();
            let task = hanging_write(&next, &calls, timeout);
            if known_dead {
                engine.crash().await.unwrap();
            } else {
                engine.vanish().await;
            }
            // Takes it over as soon as it may.
            let run = task.start(&()).id(run).await.unwrap();
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
            let mut events = run.events(Seq::FIRST);
            let mut taken = None;
            let mut asked = None;
            while let Some(event) = events.next().await {
                let event = event.unwrap();
                match event.body {
                    Body::RunResumed(_) => taken = Some(event.at),
                    Body::StepResolved(_) => asked = Some(event.at),
                    _ => {}
                }
            }
            let waited = asked.unwrap().since(taken.unwrap());
            assert!(
                waited >= least && waited < least + Duration::from_secs(2),
                "{waited:?}"
            );
            assert_eq!(calls.load(Ordering::SeqCst), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_over_from_one_that_waited_for_a_silent_driver_goes_on_waiting() {
    let (lease, timeout) = (Duration::from_secs(10), minutes(5));
    // On a store that tells when the silent one lost the run.
    let engine = TestEngine::new().await.unwrap();
    let calls = Counter::default();
    let task = hanging_write(&engine, &calls, Some(timeout));
    let run = task.start(&()).await.unwrap().id();
    until(&engine, run, "step.started").await;
    engine.vanish().await;
    let mut taken = None;
    for epoch in 2..5 {
        let next = engine.another().await.unwrap();
        let task = hanging_write(&next, &calls, Some(timeout));
        task.start(&()).id(run).await.unwrap();
        until_entry(&next, run, |entry| entry.epoch.0 == epoch).await;
        taken.get_or_insert(next.env().monotonic());
        next.env().sleep(minutes(1)).await;
        next.vanish().await;
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1, "it may still be writing");
    let last = engine.another().await.unwrap();
    let task = hanging_write(&last, &calls, Some(timeout));
    let run = task.start(&()).id(run).await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
    let waited = last.env().monotonic().saturating_sub(taken.unwrap());
    let least = timeout + lease;
    assert!(
        waited >= least && waited < least + Duration::from_secs(2),
        "{waited:?}"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_reached_late_is_waited_for_from_the_takeover() {
    let (lease, timeout) = (Duration::from_secs(10), minutes(5));
    for world in Virtual::both() {
        let engine = world.engine().await;
        let calls = Counter::default();
        let task = hanging_write_after(&engine, &calls, Some(timeout), minutes(2));
        let run = task.start(&()).await.unwrap().id();
        until(&engine, run, "step.started").await;
        engine.vanish().await;
        let next = engine.another().await.unwrap();
        let task = hanging_write_after(&next, &calls, Some(timeout), minutes(2));
        let run = task.start(&()).id(run).await.unwrap();
        let entry = until_entry(&next, run.id(), |entry| entry.epoch.0 == 2).await;
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
        let row = run.entry().await.unwrap().row;
        let waited = row.updated_at.since(entry.row.updated_at);
        let least = timeout + lease;
        assert!(
            waited >= least && waited < least + Duration::from_secs(2),
            "{waited:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_driver_that_turns_out_dead_is_waited_for_no_longer() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let calls = Counter::default();
        let task = hanging_write(&engine, &calls, Some(minutes(9)));
        let run = task.start(&()).await.unwrap().id();
        until(&engine, run, "step.started").await;
        engine.vanish().await;
        let next = engine.another().await.unwrap();
        let task = hanging_write(&next, &calls, Some(minutes(9)));
        let run = task.start(&()).id(run).await.unwrap();
        until_entry(&next, run.id(), |entry| entry.epoch.0 == 2).await;
        next.env().sleep(minutes(1)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1, "it may still be writing");
        engine.crash().await.unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
        let row = run.entry().await.unwrap().row;
        assert!(row.updated_at.since(row.facts.created_at) < minutes(2));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_timeout_a_silent_drivers_write_is_in_doubt_and_resolve_names_the_driver() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let calls = Counter::default();
        let task = hanging_write(&engine, &calls, None);
        let run = task.start(&()).await.unwrap().id();
        until(&engine, run, "step.started").await;
        engine.vanish().await;
        let next = engine.another().await.unwrap();
        let task = hanging_write(&next, &calls, None);
        let run = task.start(&()).id(run).await.unwrap();
        let parked = |entry: &Entry| entry.driver.is_none() && !entry.row.facts.in_doubt.is_empty();
        until_entry(&next, run.id(), parked).await;
        let resolve = async |resolution| {
            let resolved = next.resolve(&run.id(), "pay", resolution, "me").await;
            resolved.unwrap()
        };
        let resolved = resolve(Resolution::Retry).await;
        assert_eq!(resolved.not_known_dead.len(), 1, "warn of it");
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_was_taken_over_stops_also_a_step_that_appends_nothing() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let dropped = Arc::new(tokio::sync::Notify::new());
        let drops = Arc::clone(&dropped);
        let task: Task<(), ()> = engine.task("long", move |ctx: Ctx, (): ()| {
            let drops = Arc::clone(&drops);
            async move {
                let work = || async {
                    struct Told(Arc<tokio::sync::Notify>);
                    impl Drop for Told {
                        fn drop(&mut self) {
                            self.0.notify_one();
                        }
                    }
                    let _told = Told(Arc::clone(&drops));
                    std::future::pending::<Result<(), TaskError>>().await
                };
                ctx.step("long").run(work).await
            }
        });
        let run = task.start(&()).await.unwrap().id();
        until(&engine, run, "step.started").await;
        // Someone else takes the run over, as after a lease that ran out.
        let store = engine.store();
        let owner = logreel::store::Owner {
            id: logreel::store::OwnerId(77),
            host: "elsewhere".to_owned(),
            host_name: "elsewhere".to_owned(),
            pid: 1,
        };
        store.join(&owner).await.unwrap();
        let entry = store.entry(&run).await.unwrap();
        let holder = entry.driver.unwrap().owner.id;
        store.release(&run, entry.epoch, holder).await.unwrap();
        store.claim(&run, owner.id).await.unwrap();
        dropped.notified().await;
    }
}

#[tokio::test(start_paused = true)]
async fn code_that_forgets_a_recorded_write_makes_no_new_one() {
    let engine = TestEngine::new().await.unwrap();
    let calls = Counter::default();
    let register = |engine: &Engine, name: &'static str| -> Task<(), u32> {
        let called = Arc::clone(&calls);
        engine.task("renamed", move |ctx: Ctx, (): ()| {
            let called = Arc::clone(&called);
            async move {
                ctx.write_step(name).run(|_| counted(&called, 1)).await?;
                ctx.signal("go").await?;
                Ok(1)
            }
        })
    };
    let run = register(&engine, "send").start(&()).await.unwrap();
    until(&engine, run.id(), "wait.started").await;
    engine.crash().await.unwrap();
    let next = engine.another().await.unwrap();
    register(&next, "send mail");
    next.signal(&run.id(), "go", &()).await.unwrap();
    next.resume(&run.id()).await.unwrap();
    let Outcome::Failed(cause) = next.run(run.id()).wait().await.unwrap() else {
        panic!("not failed")
    };
    assert_eq!(cause.kind, "spec_changed");
    assert!(cause.message.contains("`send`"), "{}", cause.message);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_answered_once_from_any_process() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<(), String> = engine.task("asks", |ctx: Ctx, (): ()| async move {
            let answer = ctx.approval("publish?").await?;
            Ok(format!("{} by {:?}", answer.approved, answer.by))
        });
        let run = task.start(&()).await.unwrap();
        let entry = until_entry(&engine, run.id(), |entry| {
            entry.row.status() == Status::Waiting && entry.driver.is_none()
        })
        .await;
        let wait = entry.row.facts.waits[0].wait.wait;
        let outside = world.engine().await;
        let nobody = outside
            .answer(&run.id(), Answer::approve().to("w9".parse().unwrap()))
            .await;
        assert_eq!(nobody.unwrap_err().kind(), ErrorKind::NotFound);
        outside
            .answer(&run.id(), Answer::approve().to(wait).by("ada"))
            .await
            .unwrap();
        outside
            .answer(&run.id(), Answer::approve().to(wait).by("ada"))
            .await
            .expect("the same receipt");
        let other = outside
            .answer(&run.id(), Answer::deny().to(wait))
            .await
            .unwrap_err();
        assert!(
            matches!(other.kind(), ErrorKind::Conflict | ErrorKind::Terminal),
            "{other}"
        );
        let outcome = run.wait().await.unwrap();
        assert_eq!(
            outcome,
            Outcome::Completed("true by Some(\"ada\")".to_owned())
        );
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "wait.ended"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_deadline_is_refused_and_the_timeout_stands() {
    for world in Virtual::both() {
        answer_too_late(&world.engine().await).await;
    }
}

async fn answer_too_late(engine: &TestEngine) {
    let task: Task<(), bool> = engine.task("asks", |ctx: Ctx, (): ()| async move {
        Ok(ctx
            .approval("publish?")
            .deadline(hours(24))
            .else_deny()
            .await?
            .approved)
    });
    let run = task.start(&()).await.unwrap();
    until(engine, run.id(), "wait.started").await;
    engine.crash().await.unwrap();
    // Nobody drives it when its deadline passes: the answer records the timeout.
    engine.env().sleep(hours(25)).await;
    let next = engine.another().await.unwrap();
    let late = next.answer(&run.id(), Answer::approve()).await.unwrap_err();
    assert!(late.to_string().contains("deadline"), "{late}");
    let task: Task<(), bool> = next.task("asks", |ctx: Ctx, (): ()| async move {
        Ok(ctx
            .approval("publish?")
            .deadline(hours(24))
            .else_deny()
            .await?
            .approved)
    });
    next.resume(&run.id()).await.unwrap();
    let outcome = next.run(run.id()).typed::<bool>().wait().await.unwrap();
    assert_eq!(outcome, Outcome::Completed(false), "{}", task.name());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_is_kept_until_it_is_awaited() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let go = Arc::new(tokio::sync::Notify::new());
        let gate = Arc::clone(&go);
        let task: Task<(), Vec<u32>> = engine.task("signalled", move |ctx: Ctx, (): ()| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                gate.notify_one();
                let first = ctx.signal("n").id("first").value().await?;
                let second = ctx.signal("n").id("second").value().await?;
                Ok(vec![first, second])
            }
        });
        let run = task.start(&()).await.unwrap();
        engine.signal(&run.id(), "n", &1).await.unwrap();
        engine.signal(&run.id(), "other", &0).await.unwrap();
        go.notify_one();
        until_entry(&engine, run.id(), |entry| {
            entry.row.status() == Status::Waiting
        })
        .await;
        world
            .engine()
            .await
            .signal(&run.id(), "n", &2)
            .await
            .unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(vec![1, 2]));
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "signal.received"), 3, "{:?}", kinds(&events));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_from_the_context_its_last_completed_run_left() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<String, Digest> =
            engine.task("talks", |ctx: Ctx, said: String| async move {
                ctx.message("user", &said).await?;
                ctx.message("assistant", &format!("you said {said}")).await
            });
        let first = task.start(&"a".to_owned()).session("s").await.unwrap();
        let Outcome::Completed(node) = first.wait().await.unwrap() else {
            panic!()
        };
        let second = task
            .start(&"b".to_owned())
            .session("s")
            .if_busy(IfBusy::Wait)
            .await
            .unwrap();
        second.wait().await.unwrap();
        let (_, events) = world.reopened(second.id()).await;
        let Body::RunStarted(started) = &events[0].body else {
            panic!()
        };
        assert_eq!(started.context, Some(node));
        let added: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.body {
                Body::MessageAdded(added) => Some((added.previous, added.node)),
                _ => None,
            })
            .collect();
        assert_eq!(added[0].0, Some(node));
        assert_eq!(added[1].0, Some(added[0].1));
        let blob = world.open().blob(&added[0].1).await.unwrap().unwrap();
        let blob: serde_json::Value = serde_json::from_slice(&blob).unwrap();
        assert_eq!(
            blob["message"],
            serde_json::json!({"content": "b", "role": "user"})
        );
        assert_eq!(blob["previous"], node.to_string());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_changes_nothing_but_the_log_of_it() {
    for world in Virtual::both() {
        // Just long enough to give the lease back: every look and beat in between is a real one.
        crash_a_run_of_all_kinds(&world, Duration::from_secs(6)).await;
    }
}

/// How often each write happened outside: by the crash it was disturbed by, and by its key.
type Sent = Arc<Mutex<HashMap<(Option<(u64, Fault)>, Digest), u32>>>;

async fn crash_a_run_of_all_kinds(world: &Virtual, nap: Duration) {
    let (sent, looked) = (Sent::default(), Counter::default());
    let (sends, looks) = (Arc::clone(&sent), Arc::clone(&looked));
    let open = |env| world.open(env);
    let points = crash_everywhere_on(open, move |point, engine| {
        let (sends, looks) = (Arc::clone(&sends), Arc::clone(&looks));
        async move {
            let task: Task<u32, u32> = engine.task("all kinds", move |ctx: Ctx, n: u32| {
                let (sends, looks) = (Arc::clone(&sends), Arc::clone(&looks));
                async move {
                    let write = |key: Digest| {
                        *sends.lock().unwrap().entry((point, key)).or_insert(0) += 1;
                        std::future::ready(Ok::<_, TaskError>(7u32))
                    };
                    let a = ctx
                        .step("read")
                        .reads()
                        .run(|| counted(&looks, n + 1))
                        .await?;
                    ctx.emit("note", &a).await?;
                    ctx.emit("note", &a).await?;
                    ctx.message("user", "hi").await?;
                    ctx.set_state(&serde_json::json!({ "a": a })).await?;
                    let outer = ctx.step("outer");
                    let inner = || ctx.step("inner").run(|| async { Ok::<_, TaskError>(1) });
                    let nested: u32 = outer.run(inner).await?;
                    let xs = (0..3).map(|n| {
                        // The order of a map's keys, which is random, must not matter.
                        let map = move || HashMap::from(["a", "b", "c"].map(|k| (k.to_owned(), n)));
                        ctx.step(("x", n))
                            .run(move || async move { Ok::<_, TaskError>(map()) })
                    });
                    let xs = ctx.all(xs).await?;
                    let found = |_| async { Ok::<_, TaskError>(Reconciled::Done(7)) };
                    let sent = ctx.write_step("send").reconcile(found).run(&write).await?;
                    ctx.sleep("nap", nap).await?;
                    let blind = ctx.write_step("blind").run(&write).await?;
                    Ok(a + nested + sent + blind + xs.len() as u32)
                }
            });
            task.start(&1).key("k").await?.wait().await?;
            Ok(())
        }
    })
    .await;
    assert!(points.len() > 60, "{}", points.len());
    let in_doubt = points
        .iter()
        .filter(|point| point.end == PointEnd::InDoubt)
        .count();
    assert!(
        in_doubt >= 1,
        "the write without reconcile is in doubt after a crash in it"
    );
    let sent = sent.lock().unwrap();
    for ((point, key), times) in &*sent {
        assert_eq!(*times, 1, "{key} at {point:?}");
    }
    // Only a crash before it leaves a write out: where it is in doubt, or where reconcile said done.
    let scenarios = points.len() + 1;
    assert!(sent.len() > scenarios && sent.len() <= 2 * scenarios);
    assert!(looked.load(Ordering::SeqCst) as usize >= scenarios);
}

/// SEMANTICS 18: a run waits only when nothing else can go on, also after a crash at any write.
#[tokio::test(start_paused = true)]
async fn a_step_that_began_right_before_a_wait_is_done_after_a_crash_while_the_wait_is_open() {
    for world in Virtual::both() {
        let points = crash_everywhere_on(|env| world.open(env), |_, engine| beside(engine)).await;
        assert!(points.iter().all(|point| point.end == PointEnd::Same));
    }
}

async fn beside(engine: Engine) -> Result<(), Error> {
    let store = Arc::clone(engine.store());
    let task: Task<(), bool> = engine.task("beside", move |ctx: Ctx, (): ()| {
        let store = Arc::clone(&store);
        async move {
            // Under way when the wait begins, and for less than a step takes to be announced.
            let young = || async {
                let mut bell = store.watch(&ctx.run_id());
                while store.entry(&ctx.run_id()).await?.row.facts.waits.is_empty() {
                    bell.rung().await;
                }
                Ok::<_, TaskError>(1)
            };
            let young = ctx.step("young").run(young);
            let (young, answer) = tokio::join!(young, ctx.approval("go on?"));
            young?;
            Ok(answer?.approved)
        }
    });
    let run = task.start(&()).key("k").await?;
    // Whoever approves does so once the step is done, and no wait ends before that.
    let mut events = run.events(Seq::FIRST);
    let mut running = false;
    let done = async {
        while let Some(event) = events.next().await {
            match event?.body {
                Body::StepStarted(_) => running = true,
                Body::WaitStarted(_) => assert!(running, "the log shows what runs"),
                Body::StepFinished(_) => break,
                _ => {}
            }
        }
        Ok::<_, Error>(())
    };
    let done = tokio::time::timeout(minutes(1), done).await;
    // One that crashed hears no more.
    done.map_err(|_| Error::DriverStopped("the step is not done".to_owned()))??;
    match engine.answer(&run.id(), Answer::approve()).await {
        // Before the crash.
        Ok(_) | Err(Error::Rejected { .. }) => {}
        Err(error) => return Err(error),
    }
    run.wait().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_sent_at_any_moment_ends_one_wait() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<(), Vec<u32>> = engine.task("both", |ctx: Ctx, (): ()| async move {
            let wait = |name: &'static str| ctx.signal("n").id(name).value::<u32>();
            let mut both = ctx.all([wait("a"), wait("b")]).await?;
            both.sort_unstable();
            Ok(both)
        });
        // The signals race with the start of the waits, and the waits with each other.
        for _ in 0..20 {
            let run = task.start(&()).await.unwrap();
            let id = run.id();
            let (first, second) =
                tokio::join!(engine.signal(&id, "n", &1), engine.signal(&id, "n", &2));
            first.unwrap();
            second.unwrap();
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(vec![1, 2]));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_future_is_dropped_is_not_running_and_runs_again_when_asked_for_again() {
    let engine = TestEngine::new().await.unwrap();
    let calls = Counter::default();
    let called = Arc::clone(&calls);
    let task: Task<(), bool> = engine.task("impatient", move |ctx: Ctx, (): ()| {
        let called = Arc::clone(&called);
        async move {
            let slow = || async {
                called.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<u32, TaskError>>().await
            };
            tokio::select! {
                _ = ctx.step("slow").run(slow) => unreachable!("it never ends"),
                slept = ctx.sleep("patience", seconds(2)) => slept?,
            }
            Ok(ctx.approval("go on?").await?.approved)
        }
    });
    let run = task.start(&()).await.unwrap();
    until_entry(&engine, run.id(), |entry| {
        entry.row.status() == Status::Waiting && entry.driver.is_none()
    })
    .await;
    let before = run.entry().await.unwrap().row.head;
    engine.env().sleep(hours(1)).await;
    assert_eq!(
        run.entry().await.unwrap().row.head,
        before,
        "it waits; nobody drives it in circles"
    );
    engine.answer(&run.id(), Answer::approve()).await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(true));
    assert!(calls.load(Ordering::SeqCst) <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_future_is_dropped_is_in_doubt() {
    let engine = TestEngine::new().await.unwrap();
    let task: Task<(), ()> = engine.task("impatient", |ctx: Ctx, (): ()| async move {
        let write = |_| std::future::pending::<Result<u32, TaskError>>();
        tokio::select! {
            _ = ctx.write_step("pay").run(write) => unreachable!("it never ends"),
            slept = ctx.sleep("patience", seconds(2)) => slept?,
        }
        ctx.signal("go").await?;
        Ok(())
    });
    let run = task.start(&()).await.unwrap();
    let entry = until_entry(&engine, run.id(), |entry| {
        entry.row.status() == Status::Waiting && entry.driver.is_none()
    })
    .await;
    assert_eq!(entry.row.facts.in_doubt.len(), 1);
    run.cancel("enough").await.unwrap();
}

/// INTERFACES B: a write in flight gets its grace time and is then in doubt, not only once someone
/// resumes the run. One that can be asked about is asked then.
#[tokio::test(start_paused = true)]
async fn a_write_that_a_pause_interrupts_is_in_doubt_before_the_lease_is_given_back() {
    for world in Virtual::both() {
        for reconciles in [false, true] {
            pause_a_write(&world.engine().await, reconciles).await;
        }
    }
}

async fn pause_a_write(engine: &TestEngine, reconciles: bool) {
    let calls = Counter::default();
    let called = Arc::clone(&calls);
    let task: Task<(), u32> = engine.task("pay", move |ctx: Ctx, (): ()| {
        let called = Arc::clone(&called);
        async move {
            let hang = |_| {
                called.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<u32, TaskError>>()
            };
            let found = |_| async { Ok::<_, TaskError>(Reconciled::Done(7)) };
            match reconciles {
                true => ctx.write_step("pay").reconcile(found).run(hang).await,
                false => ctx.write_step("pay").run(hang).await,
            }
        }
    });
    let run = task.start(&()).await.unwrap();
    until(engine, run.id(), "step.started").await;
    engine.pause(&run.id(), "lunch").await.unwrap();
    let paused = until_entry(engine, run.id(), |entry| entry.driver.is_none()).await;
    let waits = paused.row.facts.waits.iter().map(|open| open.wait.kind);
    let (doubts, waits) = (paused.row.facts.in_doubt.len(), waits.collect::<Vec<_>>());
    if reconciles {
        assert_eq!((doubts, waits), (0, vec![WaitKind::Paused]));
        engine.resume(&run.id()).await.unwrap();
    } else {
        assert_eq!(
            (doubts, waits),
            (1, vec![WaitKind::Paused, WaitKind::InDoubt])
        );
        // It can be settled while the run is paused, and the run stays paused.
        let paid = Resolution::Returned(Payload::of(Json::of(&7).unwrap()).0);
        engine.resolve(&run.id(), "pay", paid, "me").await.unwrap();
        let settled = run.entry().await.unwrap();
        assert_eq!(settled.row.status(), Status::Waiting);
        assert_eq!(settled.row.facts.waits.len(), 1);
        engine.resume(&run.id()).await.unwrap();
    }
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
    assert_eq!(calls.load(Ordering::SeqCst), 1, "it was not repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_is_called_again_finds_what_it_found_the_first_time() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<(), (u32, u64, String, String)> =
            engine.task("replayed", |ctx: Ctx, (): ()| async move {
                let count: u32 = ctx.state().unwrap_or(0);
                ctx.set_state(&(count + 1)).await?;
                let drawn = ctx.random("dice").await?;
                let uuid = ctx.uuid("id").await?;
                let now = ctx.now("clock").await?;
                let step = ctx.step("keyed").input(&drawn);
                let key = step
                    .run(|| async { Ok::<_, TaskError>(ctx.key()?.to_string()) })
                    .await?;
                ctx.signal("go").await?;
                assert!(now <= ctx.now("later").await?);
                Ok((ctx.state()?, drawn, uuid, key))
            });
        let run = task.start(&()).await.unwrap();
        until_entry(&engine, run.id(), |entry| {
            entry.row.status() == Status::Waiting && entry.driver.is_none()
        })
        .await;
        engine.signal(&run.id(), "go", &()).await.unwrap();
        let Outcome::Completed((count, drawn, uuid, key)) = run.wait().await.unwrap() else {
            panic!("not completed")
        };
        assert_eq!(count, 1, "called twice, counted once");
        assert_eq!(uuid.len(), 36);
        let input = logreel::core::meaning::digest_of(&drawn).unwrap();
        let expected = logreel::core::meaning::effect_key(&run.id(), r#"["keyed"]"#, Some(&input));
        assert_eq!(key, expected.to_string());
        let (entry, events) = world.reopened(run.id()).await;
        assert_eq!(entry.row.facts.document, serde_json::json!(1));
        assert_eq!(common::count(&events, "state.patched"), 1);
        assert_eq!(common::count(&events, "run.resumed"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_does_not_complete_past_an_interrupted_write_its_code_forgot() {
    let engine = TestEngine::new().await.unwrap();
    let task: Task<(), u32> = engine.task("forgetful", |ctx: Ctx, (): ()| async move {
        let write = |_| std::future::pending::<Result<u32, TaskError>>();
        ctx.write_step("pay").run(write).await
    });
    let run = task.start(&()).await.unwrap();
    until(&engine, run.id(), "step.started").await;
    engine.crash().await.unwrap();
    let next = engine.another().await.unwrap();
    let changed: Task<(), u32> = next.task("forgetful", |_: Ctx, (): ()| async { Ok(1) });
    next.resume(&run.id()).await.unwrap();
    let entry = until_entry(&next, run.id(), |entry| {
        entry.row.status() == Status::Waiting && entry.driver.is_none()
    })
    .await;
    assert_eq!(entry.row.facts.in_doubt.len(), 1, "{}", changed.name());
    let gone = Resolution::Failed("it never left".to_owned());
    next.resolve(&run.id(), "pay", gone, "me").await.unwrap();
    let outcome = next.run(run.id()).typed::<u32>().wait().await.unwrap();
    assert_eq!(outcome, Outcome::Completed(1));
}

/// A write is a write, whether a step or a tool call made it (SEMANTICS 23 to 25).
#[tokio::test(start_paused = true)]
async fn a_write_call_that_the_code_no_longer_asks_for_is_in_doubt_before_the_end() {
    let first = TestEngine::new().await.unwrap();
    let task: Task<(), ()> = first.task("send", |ctx: Ctx, (): ()| async move {
        let never = |_| std::future::pending::<Result<Recorded, TaskError>>();
        let ask = |_| std::future::ready(Ok(Reconciled::Unknown));
        let call = logreel::core::CallId::new("c1")?;
        let call = ctx.tool_call(call, "mail.send", Json::null());
        call.run(never, ask).await?;
        Ok(())
    });
    let run = task.start(&()).await.unwrap().id();
    until(&first, run, "tool.called").await;
    first.crash().await.unwrap();
    let second = first.another().await.unwrap();
    let _task: Task<(), ()> = second.task("send", |_: Ctx, (): ()| async { Ok(()) });
    second.resume(&run).await.unwrap();
    let entry = until_entry(&second, run, |entry| !entry.row.facts.waits.is_empty()).await;
    let wait = &entry.row.facts.waits[0].wait;
    assert_eq!(wait.kind, WaitKind::InDoubt);
    let named = wait.call.as_ref().map(|call| call.as_str());
    assert_eq!(
        (named, wait.tool.as_deref()),
        (Some("c1"), Some("mail.send"))
    );
    let sent = Resolution::Returned(Payload::null());
    second.resolve(&run, "c1", sent, "me").await.unwrap();
    let ended = second.run(run).wait().await.unwrap();
    assert_eq!(ended, Outcome::Completed(Json::null()));
}
