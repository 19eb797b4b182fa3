//! The rules of DESIGN 3 "Lifecycle" and of SEMANTICS 14 to 18, by name.
#![allow(missing_docs, reason = "a test's name is its documentation")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use common::{count, kinds, on_both, until, until_entry};
use logreel::core::event::WaitKind;
use logreel::store::CreateError;
use logreel::*;
use tokio::sync::Notify;

fn text(text: &str) -> String {
    text.to_owned()
}

/// A task that does one step and returns its input.
fn echo(engine: &Engine) -> Task<String, String> {
    engine.task("echo", |ctx: Ctx, input: String| async move {
        ctx.step("one")
            .run(|| async { Ok::<_, TaskError>(1) })
            .await?;
        Ok(input)
    })
}

/// A task that runs until it is cancelled, and says when it has begun.
fn endless(engine: &Engine, began: &Arc<Notify>) -> Task<String, String> {
    let began = Arc::clone(began);
    engine.task("endless", move |ctx: Ctx, _: String| {
        let began = Arc::clone(&began);
        async move {
            began.notify_one();
            ctx.cancelled().await;
            Err(TaskError::new("gave up"))
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_call_and_a_stream_are_one_run() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let run = echo(&engine).start(&text("hi")).await.unwrap();
        let mut streamed = Vec::new();
        let mut stream = run.events(Seq::FIRST);
        while let Some(event) = stream.next().await {
            streamed.push(event.unwrap());
        }
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(text("hi")));
        engine.close().await.unwrap();
        let (entry, events) = world.reopened(run.id()).await;
        assert_eq!(streamed, events);
        assert_eq!(
            kinds(&events),
            [
                "run.started",
                "phase.entered",
                "step.finished",
                "run.completed"
            ]
        );
        assert_eq!(entry.row.head.seq.0, 4);
        assert!(entry.driver.is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_receiver_stops_the_watching_not_the_recording() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let go = Arc::new(Notify::new());
        let gate = Arc::clone(&go);
        let task: Task<(), u32> = engine.task("gated", move |ctx: Ctx, (): ()| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                ctx.step("late")
                    .run(|| async { Ok::<_, TaskError>(5) })
                    .await
            }
        });
        let run = task.start(&()).await.unwrap();
        let mut stream = run.events(Seq::FIRST);
        stream.next().await.unwrap().unwrap();
        drop(stream);
        go.notify_one();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(5));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_panics_leaves_a_failed_run() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<bool, ()> = engine.task("panics", |ctx: Ctx, in_step: bool| async move {
            if in_step {
                ctx.step("bad").run(|| async { boom() }).await?;
            }
            boom()
        });
        fn boom() -> Result<(), TaskError> {
            panic!("boom")
        }
        // Also when the function panics before it gives a future.
        #[expect(unreachable_code, reason = "it panics first")]
        let early: Task<(), ()> = engine.task("early", |_: Ctx, (): ()| {
            panic!("boom");
            async { Ok(()) }
        });
        let run = early.start(&()).await.unwrap();
        assert!(matches!(run.wait().await.unwrap(), Outcome::Failed(_)));
        for (in_step, step) in [(false, None), (true, Some("bad"))] {
            let run = task.start(&in_step).await.unwrap();
            let Outcome::Failed(cause) = run.wait().await.unwrap() else {
                panic!("not failed")
            };
            assert_eq!(cause.kind, "panic");
            assert!(cause.message.contains("boom"), "{}", cause.message);
            assert_eq!(cause.step.map(|step| step.to_string()).as_deref(), step);
            let (entry, _) = world.reopened(run.id()).await;
            assert_eq!(entry.row.status(), Status::Failed);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_or_key_attaches_and_with_another_input_is_a_conflict() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task = echo(&engine);
        let first = task.start(&text("a")).key("k").session("s").await.unwrap();
        first.wait().await.unwrap();
        let again = task.start(&text("a")).key("k").session("s").await.unwrap();
        assert_eq!(again.id(), first.id());
        let by_id = task
            .start(&text("a"))
            .id(first.id())
            .session("s")
            .key("k")
            .await
            .unwrap();
        assert_eq!(by_id.id(), first.id());
        for (session, input, differs) in [("s", "b", "input"), ("other", "a", "session")] {
            let refused = task
                .start(&text(input))
                .key("k")
                .session(session)
                .await
                .unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict);
            let Error::Create(CreateError::Conflict {
                differs: what, run, ..
            }) = refused
            else {
                panic!("{refused}")
            };
            assert_eq!((what, run), (differs, first.id()));
        }
        let (_, events) = world.reopened(first.id()).await;
        assert_eq!(count(&events, "run.started"), 1);
        assert_eq!(count(&events, "step.finished"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_in_a_session_is_refused_waits_or_interrupts() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let began = Arc::new(Notify::new());
        let slow = endless(&engine, &began);
        let quick = echo(&engine);
        let active = slow.start(&text("")).session("s").await.unwrap();
        began.notified().await;
        let busy = quick.start(&text("x")).session("s").await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(
            busy.to_string().contains(&active.id().to_string()),
            "{busy}"
        );

        let waiting = tokio::spawn({
            let quick = quick.clone();
            async move {
                quick
                    .start(&text("w"))
                    .session("s")
                    .if_busy(IfBusy::Wait)
                    .await
            }
        });
        let session = engine.session("s").unwrap();
        session.cancel("make way").await.unwrap();
        assert!(matches!(
            active.wait().await.unwrap(),
            Outcome::Cancelled(Some(_))
        ));
        let waited = waiting.await.unwrap().unwrap();
        assert_eq!(waited.wait().await.unwrap(), Outcome::Completed(text("w")));

        let active = slow
            .start(&text(""))
            .session("s")
            .if_busy(IfBusy::Wait)
            .await
            .unwrap();
        began.notified().await;
        let interrupting = quick
            .start(&text("i"))
            .session("s")
            .if_busy(IfBusy::Interrupt);
        let interrupting = interrupting.await.unwrap();
        assert!(matches!(
            active.wait().await.unwrap(),
            Outcome::Cancelled(Some(_))
        ));
        assert_eq!(
            interrupting.wait().await.unwrap(),
            Outcome::Completed(text("i"))
        );
        let other = quick.start(&text("o")).session("other").await.unwrap();
        assert_eq!(other.wait().await.unwrap(), Outcome::Completed(text("o")));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_answers_requested_already_terminal_or_not_found_and_the_hook_fires_once() {
    on_both(|world| async move {
        let told: Arc<Mutex<Vec<HookEvent>>> = Arc::default();
        let telling = Arc::clone(&told);
        let hook = move |event: HookEvent| {
            let telling = Arc::clone(&telling);
            async move {
                if event.event.body.kind() == "run.cancelled" {
                    telling.lock().unwrap().push(event);
                    panic!("a hook's panic disturbs nothing");
                }
                Err(TaskError::new("neither does its error"))
            }
        };
        let engine = world.builder().on_event(hook).build().await.unwrap();
        let began = Arc::new(Notify::new());
        let run = endless(&engine, &began)
            .start(&text(""))
            .session("s")
            .await
            .unwrap();
        began.notified().await;
        // From another process, which holds no lease.
        let outside = world.engine().await;
        assert_eq!(
            outside.cancel(&run.id(), "enough").await.unwrap(),
            CancelOutcome::Requested
        );
        let again = outside.cancel(&run.id(), "again").await.unwrap();
        assert_eq!(again, CancelOutcome::AlreadyTerminal(Status::Cancelled));
        let unknown: RunId = "run_00000000-0000-7000-8000-000000000000".parse().unwrap();
        assert_eq!(
            outside.cancel(&unknown, "x").await.unwrap(),
            CancelOutcome::NotFound
        );
        assert_eq!(
            run.wait().await.unwrap(),
            Outcome::Cancelled(Some(text("enough")))
        );
        until_entry(&engine, run.id(), |entry| entry.driver.is_none()).await;
        engine.close().await.unwrap();
        let told = told.lock().unwrap().clone();
        assert_eq!(
            told.len(),
            1,
            "the hook fires once, in the process that drives"
        );
        assert_eq!(told[0].run, run.id());
        assert_eq!(told[0].session.as_ref().unwrap().as_str(), "s");
        let Body::RunCancelled(cancelled) = &told[0].event.body else {
            panic!()
        };
        assert_eq!(cancelled.reason.as_deref(), Some("enough"));
        let (entry, events) = world.reopened(run.id()).await;
        assert_eq!(entry.row.status(), Status::Cancelled);
        assert_eq!(count(&events, "run.cancelled"), 1);
        assert!(
            events
                .iter()
                .all(|event| event.body.kind() != "run.failed" || event.late)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_after_the_cancel_is_a_late_fact_and_nothing_starts() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let started = Arc::new(AtomicU32::new(0));
        let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (seen, begin, gate) = (Arc::clone(&started), Arc::clone(&began), Arc::clone(&go));
        let task: Task<(), u32> = engine.task("late", move |ctx: Ctx, (): ()| {
            let (seen, begin, gate) = (Arc::clone(&seen), Arc::clone(&begin), Arc::clone(&gate));
            async move {
                let work = || async {
                    begin.notify_one();
                    gate.notified().await;
                    Ok::<_, TaskError>(1)
                };
                let first = ctx.step("under way").run(work).await;
                assert!(first.unwrap_err().is_cancelled());
                let next = || {
                    seen.fetch_add(1, Ordering::SeqCst);
                    async { Ok::<_, TaskError>(2) }
                };
                assert!(
                    ctx.step("after")
                        .run(next)
                        .await
                        .unwrap_err()
                        .is_cancelled()
                );
                Ok(3)
            }
        });
        let run = task.start(&()).await.unwrap();
        began.notified().await;
        run.cancel("stop").await.unwrap();
        go.notify_one();
        until_entry(&engine, run.id(), |entry| entry.driver.is_none()).await;
        assert_eq!(
            started.load(Ordering::SeqCst),
            0,
            "no effect starts after the end"
        );
        let (entry, events) = world.reopened(run.id()).await;
        assert_eq!(entry.row.status(), Status::Cancelled);
        let late: Vec<_> = events.iter().filter(|event| event.late).collect();
        let late: Vec<_> = late.iter().map(|event| event.body.kind()).collect();
        assert_eq!(late, ["step.finished", "run.completed"]);
        assert_eq!(entry.row.head.seq.0 as usize, events.len());
        // The lease is back: nothing can be appended any more, by anyone.
        let refused = engine.resume(&run.id()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Terminal);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_handle_never_cancels_a_later_run() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let old = echo(&engine).start(&text("a")).session("s").await.unwrap();
        old.wait().await.unwrap();
        let began = Arc::new(Notify::new());
        let new = endless(&engine, &began)
            .start(&text(""))
            .session("s")
            .if_busy(IfBusy::Wait);
        let new = new.await.unwrap();
        began.notified().await;
        let outcome = old.cancel("late").await.unwrap();
        assert_eq!(outcome, CancelOutcome::AlreadyTerminal(Status::Completed));
        assert!(!new.entry().await.unwrap().row.status().is_terminal());
        let session = engine.session("s").unwrap();
        assert_eq!(
            session.cancel("now").await.unwrap(),
            CancelOutcome::Requested
        );
        assert!(matches!(new.wait().await.unwrap(), Outcome::Cancelled(_)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_session_is_idempotent_and_lets_no_run_in() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let began = Arc::new(Notify::new());
        let run = endless(&engine, &began)
            .start(&text(""))
            .session("s")
            .await
            .unwrap();
        began.notified().await;
        let session = engine.session("s").unwrap();
        session.close().await.unwrap();
        session.close().await.unwrap();
        assert!(matches!(run.wait().await.unwrap(), Outcome::Cancelled(_)));
        let entry = run.entry().await.unwrap();
        assert!(
            entry.driver.is_none(),
            "the driver has let go when close returns"
        );
        let refused = echo(&engine)
            .start(&text("x"))
            .session("s")
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotApplicable);
        let reopened = world.engine().await;
        let sessions = reopened.sessions().await.unwrap();
        assert!(
            sessions
                .iter()
                .any(|info| info.session.as_str() == "s" && info.closed)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_waits_at_once_gives_the_lease_back_and_resume_goes_on() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let (began, calls) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
        let (begin, called) = (Arc::clone(&began), Arc::clone(&calls));
        let register = move |engine: &Engine| -> Task<(), u32> {
            let (begin, called) = (Arc::clone(&begin), Arc::clone(&called));
            engine.task("pausable", move |ctx: Ctx, (): ()| {
                let (begin, called) = (Arc::clone(&begin), Arc::clone(&called));
                async move {
                    let count = || {
                        called.fetch_add(1, Ordering::SeqCst);
                        async { Ok::<_, TaskError>(1) }
                    };
                    ctx.step("first").run(count).await?;
                    if ctx.attempt() == 1 {
                        begin.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok(9)
                }
            })
        };
        let run = register(&engine).start(&()).await.unwrap();
        began.notified().await;
        let outside = world.engine().await;
        assert_eq!(
            outside.pause(&run.id(), "lunch").await.unwrap(),
            PauseOutcome::Paused
        );
        assert_eq!(
            outside.pause(&run.id(), "x").await.unwrap(),
            PauseOutcome::AlreadyPaused
        );
        let entry = outside.run(run.id()).entry().await.unwrap();
        assert_eq!(entry.row.status(), Status::Waiting);
        assert_eq!(entry.row.facts.waits[0].wait.kind, WaitKind::Paused);
        let entry = until_entry(&engine, run.id(), |entry| entry.driver.is_none()).await;
        assert_eq!(entry.ready_at, None, "only a person can act");
        engine.close().await.unwrap();
        register(&outside);
        let ResumeOutcome::Driving(resumed) = outside.resume(&run.id()).await.unwrap() else {
            panic!("not driving")
        };
        assert_eq!(
            resumed.typed::<u32>().wait().await.unwrap(),
            Outcome::Completed(9)
        );
        assert_eq!(
            calls.load(Ordering::SeqCst),
            1,
            "a finished step is never computed twice"
        );
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "run.resumed"), 1);
        // A completed run's resume has nothing to do; a second driver is told who drives.
        assert!(matches!(
            outside.resume(&run.id()).await.unwrap(),
            ResumeOutcome::Completed(_)
        ));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_of_a_driven_run_says_by_whom() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let began = Arc::new(Notify::new());
        let run = endless(&engine, &began).start(&text("")).await.unwrap();
        began.notified().await;
        let other = world.engine().await;
        endless(&other, &began);
        let refused = other.resume(&run.id()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Driven);
        assert!(
            refused
                .to_string()
                .contains(&std::process::id().to_string()),
            "{refused}"
        );
        run.cancel("done").await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_drives_queued_and_handed_back_runs_of_its_own_tasks() {
    on_both(|world| async move {
        let starter = world.engine().await;
        let task = echo(&starter);
        let mut runs = Vec::new();
        for n in 0..20 {
            runs.push(task.start(&n.to_string()).queue().await.unwrap());
        }
        let began = Arc::new(Notify::new());
        let foreign = endless(&starter, &began)
            .start(&text(""))
            .queue()
            .await
            .unwrap();
        let worker = world.engine().await;
        echo(&worker);
        let working = tokio::spawn({
            let worker = worker.clone();
            async move { worker.work(4).await }
        });
        for (n, run) in runs.iter().enumerate() {
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(n.to_string()));
        }
        let entry = foreign.entry().await.unwrap();
        assert_eq!(
            entry.row.status(),
            Status::Created,
            "a driver leaves other names alone"
        );
        worker.close().await.unwrap();
        working.await.unwrap().unwrap();

        // A run given back by a closing engine is ready for the next one at once.
        let held = endless(&starter, &began).start(&text("")).await.unwrap();
        began.notified().await;
        starter.close().await.unwrap();
        let entry = held.entry().await.unwrap();
        assert!(entry.driver.is_none() && entry.ready_at.is_some());
        let next = world.engine().await;
        let task: Task<String, String> = next.task("endless", |_: Ctx, _: String| async {
            Ok(String::from("ended"))
        });
        let ResumeOutcome::Driving(run) = next.resume(&held.id()).await.unwrap() else {
            panic!("{}", task.name())
        };
        let outcome = run.typed::<String>().wait().await.unwrap();
        assert_eq!(outcome, Outcome::Completed(text("ended")));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_a_task_needs_its_change_accepted() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let began = Arc::new(Notify::new());
        let run = endless(&engine, &began)
            .version("1")
            .start(&text(""))
            .await
            .unwrap();
        began.notified().await;
        engine.close().await.unwrap();
        let next = world.engine().await;
        let task: Task<String, String> = next.task("endless", |_: Ctx, _: String| async {
            Ok(String::from("v2"))
        });
        let _task = task.version("2");
        let refused = next.resume(&run.id()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::SpecChanged);
        next.resume_accepting_spec_change(&run.id()).await.unwrap();
        let outcome = next.run(run.id()).typed::<String>().wait().await.unwrap();
        assert_eq!(outcome, Outcome::Completed(text("v2")));
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "spec.changed"), 1, "{:?}", kinds(&events));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_taken_over_is_fenced_and_stops() {
    on_both(|world| async move {
        let store = world.open();
        let engine = Engine::builder()
            .store(Arc::clone(&store))
            .build()
            .await
            .unwrap();
        let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (begin, gate) = (Arc::clone(&began), Arc::clone(&go));
        let after = Arc::new(AtomicU32::new(0));
        let reached = Arc::clone(&after);
        let task: Task<(), u32> = engine.task("fenced", move |ctx: Ctx, (): ()| {
            let (begin, gate, reached) =
                (Arc::clone(&begin), Arc::clone(&gate), Arc::clone(&reached));
            async move {
                let work = || async {
                    begin.notify_one();
                    gate.notified().await;
                    Ok::<_, TaskError>(1)
                };
                ctx.step("slow").run(work).await?;
                reached.fetch_add(1, Ordering::SeqCst);
                Ok(1)
            }
        });
        let run = task.start(&()).await.unwrap();
        began.notified().await;
        until(&engine, run.id(), "step.started").await;
        // Its owner is declared dead while it lives on, as after a freeze past the lease.
        let holder = run.entry().await.unwrap().driver.unwrap().owner.id;
        store.leave(holder).await.unwrap();
        let next = world.engine().await;
        let other: Task<(), u32> = next.task("fenced", |ctx: Ctx, (): ()| async move {
            ctx.step("slow")
                .run(|| async { Ok::<_, TaskError>(2) })
                .await
        });
        next.resume(&run.id()).await.unwrap();
        let outcome = next.run(run.id()).typed::<u32>().wait().await.unwrap();
        assert_eq!(outcome, Outcome::Completed(2), "{}", other.name());
        go.notify_one();
        engine.close().await.unwrap();
        assert_eq!(
            after.load(Ordering::SeqCst),
            0,
            "no result is seen before it is durable"
        );
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "step.finished"), 1, "{:?}", kinds(&events));
        assert!(events.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_clocks_come_from_the_host_every_timestamp() {
    struct Fixed;
    impl Env for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(42_000_000)
        }
        fn monotonic(&self) -> std::time::Duration {
            logreel::store::SystemEnv.monotonic()
        }
        fn random(&self, bytes: &mut [u8]) {
            logreel::store::SystemEnv.random(bytes);
        }
        fn sleep(
            &self,
            duration: std::time::Duration,
        ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
            logreel::store::SystemEnv.sleep(duration)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let fixed = Engine::builder().env(Arc::new(Fixed));
    for builder in [fixed, Engine::builder().env(Arc::new(Fixed)).sqlite(&path)] {
        let engine = builder.build().await.unwrap();
        let run = echo(&engine).start(&text("x")).await.unwrap();
        run.wait().await.unwrap();
        let at = Timestamp::from_micros(42_000_000);
        let mut events = run.events(Seq::FIRST);
        while let Some(event) = events.next().await {
            let event = event.unwrap();
            assert_eq!(event.at, at);
            if let Body::StepFinished(finished) = event.body {
                assert_eq!(finished.started_at, Some(at));
            }
        }
        let view = view::RunView::of(&run.entry().await.unwrap());
        assert_eq!(
            [view.created_at, view.updated_at, view.finished_at.unwrap()],
            [at; 3]
        );
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_subscribers_of_which_most_never_read_disturb_nobody() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let go = Arc::new(Notify::new());
        let gate = Arc::clone(&go);
        let task: Task<(), ()> = engine.task("watched", move |ctx: Ctx, (): ()| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                for n in 0..200 {
                    ctx.step(("s", n))
                        .run(|| async { Ok::<_, TaskError>(n) })
                        .await?;
                }
                Ok(())
            }
        });
        let run = task.start(&()).await.unwrap();
        let mut idle: Vec<_> = (0..9_999).map(|_| run.events(Seq::FIRST)).collect();
        for subscriber in idle.iter_mut().take(100) {
            subscriber.next().await.unwrap().unwrap();
        }
        let mut reader = run.events(Seq::FIRST);
        go.notify_one();
        let mut seen = 0;
        while let Some(event) = reader.next().await {
            seen += 1;
            assert_eq!(event.unwrap().seq, Seq(seen), "every event once, in order");
        }
        assert_eq!(seen, 203);
        let mut sleeper = idle.pop().unwrap();
        assert_eq!(sleeper.next().await.unwrap().unwrap().seq, Seq::FIRST);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_paused_and_resumed_in_one_process_is_never_driven_twice_at_once() {
    /// Counts the calls of the function that are alive, and the most there were at once.
    struct Alive<'a>(&'a AtomicU32);
    impl Drop for Alive<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    on_both(|world| async move {
        let engine = world.engine().await;
        let (alive, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (now, peak) = (Arc::clone(&alive), Arc::clone(&most));
        let task: Task<(), u64> = engine.task("again", move |ctx: Ctx, (): ()| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _alive = Alive(&now);
                if ctx.attempt() < 4 {
                    std::future::pending::<()>().await;
                }
                Ok(ctx.attempt())
            }
        });
        let run = task.start(&()).await.unwrap();
        // Each round pauses whoever drives, from here and from elsewhere, and resumes it here. Who is paused faster
        // than it can read its log never comes to its end, so that this ends first.
        let outside = world.engine().await;
        while run.entry().await.unwrap().epoch.0 < 4 {
            if outside.pause(&run.id(), "again").await.is_ok() {
                until_entry(&engine, run.id(), |entry| {
                    entry.driver.is_none() || entry.row.status().is_terminal()
                })
                .await;
            }
            match engine.resume(&run.id()).await {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::Terminal, "{error}"),
            }
        }
        let Outcome::Completed(drivers) = run.wait().await.unwrap() else {
            panic!("not completed")
        };
        assert!(drivers >= 4, "{drivers}");
        assert_eq!(most.load(Ordering::SeqCst), 1);
        let (_, events) = world.reopened(run.id()).await;
        let resumed = count(&events, "run.resumed") as u64;
        assert_eq!(resumed, drivers - 1, "one driver per epoch");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_stops_the_driver_and_another_process_goes_on() {
    use logreel::store::faulty::{Faults, FaultyStore};
    use logreel::testing::TestEnv;
    let env: Arc<dyn Env> = Arc::new(TestEnv::default());
    let memory: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::clone(&env)));
    let faults = Faults::new();
    let faulty = Arc::new(FaultyStore::new(Arc::clone(&memory), faults.clone()));
    let build = |store: Arc<dyn RunStore>| Engine::builder().store(store).env(Arc::clone(&env));
    let engine = build(faulty).build().await.unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let register = |engine: &Engine| -> Task<(), u32> {
        let calls = Arc::clone(&calls);
        let faults = faults.clone();
        engine.task("cut off", move |ctx: Ctx, (): ()| {
            let (calls, faults) = (Arc::clone(&calls), faults.clone());
            async move {
                ctx.step("kept")
                    .run(|| async { Ok::<_, TaskError>(1) })
                    .await?;
                if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                    faults.crash();
                }
                ctx.step("lost")
                    .run(|| async { Ok::<_, TaskError>(2) })
                    .await
            }
        })
    };
    let run = register(&engine).start(&()).await.unwrap();
    let error = loop {
        // The error comes back on the next call.
        if let Err(error) = engine.run(run.id()).entry().await {
            break error;
        }
        env.sleep(std::time::Duration::from_secs(1)).await;
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Well past the lease its owner counts as dead.
    let next = build(memory).build().await.unwrap();
    register(&next);
    let resumed = loop {
        env.sleep(std::time::Duration::from_secs(5)).await;
        match next.resume(&run.id()).await {
            Ok(resumed) => break resumed,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Driven, "{error}"),
        }
    };
    let ResumeOutcome::Driving(resumed) = resumed else {
        panic!("not driving")
    };
    assert_eq!(
        resumed.typed::<u32>().wait().await.unwrap(),
        Outcome::Completed(2)
    );
}
