//! Requests that their callers name are done once (SEMANTICS 2), on both stores.
#![allow(missing_docs, reason = "a test's name is its documentation")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use std::sync::Arc;

use common::{count, on_both, until, until_entry};
use logreel::core::event::{Budget, WaitKind};
use logreel::store::faulty::{Fault, Faults, FaultyStore};
use logreel::workflow::Workflow;
use logreel::*;
use serde_json::json;

/// Asks whether to go on, and returns its input.
fn asks(engine: &Engine) -> Task<u32, u32> {
    engine.task("asks", |ctx: Ctx, n: u32| async move {
        ctx.approval("go on?").await?;
        Ok(n)
    })
}

fn is_paused(entry: &Entry) -> bool {
    let mut waits = entry.row.facts.waits.iter();
    waits.any(|open| open.wait.kind == WaitKind::Paused)
}

fn is_taken<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    error.to_string().contains("request id")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_or_resume_that_is_repeated_does_not_undo_what_came_after() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let run = asks(&engine).start(&1).await.unwrap();
        let id = run.id();
        let entry = async || run.entry().await.unwrap();
        until(&engine, id, "wait.started").await;
        let pause = || engine.pause(&id, "lunch").request("p1");
        let resume = || engine.resume(&id).request("r1");
        assert_eq!(pause().await.unwrap(), PauseOutcome::Paused);
        assert!(is_taken(engine.pause(&id, "dinner").request("p1").await));
        assert!(is_taken(engine.resume(&id).request("p1").await));
        resume().await.unwrap();
        assert!(!is_paused(&entry().await));

        let head = entry().await.row.head;
        assert_eq!(
            pause().await.unwrap(),
            PauseOutcome::Paused,
            "as it said before"
        );
        assert!(!is_paused(&entry().await), "somebody has resumed it since");
        engine.pause(&id, "again").request("p2").await.unwrap();
        assert_ne!(entry().await.row.head, head);
        let repeated = resume().await.unwrap();
        assert!(
            matches!(repeated, ResumeOutcome::Repeated(_)),
            "{repeated:?}"
        );
        assert!(is_paused(&entry().await), "somebody has paused it since");

        engine.cancel(&id, "enough").await.unwrap();
        let repeated = resume().await.unwrap();
        assert!(
            matches!(repeated, ResumeOutcome::Repeated(_)),
            "{repeated:?}"
        );
        let ended = engine.resume(&id).request("r2").await.unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::Terminal);
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_under_one_name_is_said_once_also_after_a_restart_and_the_end() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let run = asks(&engine).start(&1).await.unwrap();
        let id = run.id();
        until(&engine, id, "wait.started").await;
        engine
            .signal(&id, "go", &[1, 2])
            .request("s")
            .await
            .unwrap();
        engine
            .answer(&id, Answer::approve())
            .request("a")
            .await
            .unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(1));
        engine.close().await.unwrap();

        let engine = world.engine().await;
        let yes = || engine.answer(&id, Answer::approve());
        let no = || engine.answer(&id, Answer::deny());
        yes()
            .request("a")
            .await
            .expect("the first answer, though the run has ended");
        assert!(is_taken(no().request("a").await));
        assert!(is_taken(engine.signal(&id, "go", &1).request("a").await));
        engine
            .signal(&id, "go", &[1, 2])
            .request("s")
            .await
            .unwrap();
        assert!(is_taken(
            engine.signal(&id, "go", &[2, 1]).request("s").await
        ));
        let new = engine
            .signal(&id, "go", &[1, 2])
            .request("s2")
            .await
            .unwrap_err();
        assert_eq!(new.kind(), ErrorKind::Terminal);
        let nameless = engine.signal(&id, "go", &1).request("").await.unwrap_err();
        assert_eq!(nameless.kind(), ErrorKind::Invalid);
        engine.close().await.unwrap();
        let (_, events) = world.reopened(id).await;
        assert_eq!(
            (
                count(&events, "signal.received"),
                count(&events, "wait.ended")
            ),
            (1, 1)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_answer_by_two_people_is_one_receipt_and_another_is_a_conflict() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<(), ()> = engine.task("two", |ctx: Ctx, (): ()| async move {
            ctx.approval("first?").await?;
            ctx.approval("second?").await?;
            Ok(())
        });
        let run = task.start(&()).await.unwrap().id();
        until(&engine, run, "wait.started").await;
        let first = |answer: Answer| engine.answer(&run, answer.to(WaitId(1)));
        first(Answer::approve()).request("ann").await.unwrap();
        first(Answer::approve())
            .request("bob")
            .await
            .expect("the same answer");
        first(Answer::approve())
            .await
            .expect("the same answer, without a name");
        let other = first(Answer::deny()).request("eve").await.unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Conflict);
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run).await;
        assert_eq!(count(&events, "wait.ended"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_cancelled_twice_under_one_name_keeps_its_next_run() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task = asks(&engine);
        let session = engine.session("talk").unwrap();
        let cancel = || session.cancel("stop").request("c");
        let first = task.start(&1).session("talk").await.unwrap();
        assert_eq!(cancel().await.unwrap(), CancelOutcome::Requested);
        let next = task
            .start(&2)
            .session("talk")
            .if_busy(IfBusy::Wait)
            .await
            .unwrap();
        assert_eq!(
            cancel().await.unwrap(),
            CancelOutcome::Requested,
            "as it said before"
        );
        assert!(!next.entry().await.unwrap().row.status().is_terminal());
        assert!(is_taken(session.cancel("stop it").request("c").await));
        assert_eq!(
            session.cancel("stop").request("d").await.unwrap(),
            CancelOutcome::Requested
        );
        assert!(next.entry().await.unwrap().row.status().is_terminal());
        let again = engine
            .cancel(&first.id(), "stop")
            .request("e")
            .await
            .unwrap();
        assert_eq!(again, CancelOutcome::AlreadyTerminal(Status::Cancelled));
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_raised_once_by_one_request_here_and_above() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let asks = json!({"id": "ask", "wait": "approval", "prompt": "?"});
        let inner = json!({"name": "inner", "budget": {"tokens": 10}, "step": [asks]});
        let outer = json!({"name": "outer", "budget": {"tokens": 100}, "step": [{"id": "in", "workflow": inner}]});
        let outer = Workflow::from_json(&outer).unwrap();
        let root = engine.workflow(&outer).start(&()).await.unwrap().id();
        until(&engine, root, "child.started").await;
        let below = Filter { parent: Some(root), ..Filter::default() };
        let child = loop {
            let page = engine.store().list(&below, None, 1).await.unwrap();
            match page.items.first() {
                Some(entry) => break entry.row.run,
                None => tokio::task::yield_now().await,
            }
        };
        let tokens = |tokens| Budget { tokens: Some(tokens), ..Budget::default() };
        let limits = async || {
            let of = async |run| engine.store().entry(&run).await.unwrap().row.facts.budget.tokens;
            (of(root).await, of(child).await)
        };
        let raise = |by| engine.add_budget(&child, tokens(by), "ann").request("b");
        raise(5).await.unwrap();
        raise(5).await.unwrap();
        assert_eq!(limits().await, (Some(105), Some(15)));
        assert!(is_taken(raise(6).await));
        engine.cancel(&root, "enough").request("c").await.unwrap();
        raise(5).await.expect("the first answer, though the run has ended");
        assert_eq!(limits().await, (Some(105), Some(15)));
        // Those below it were cancelled with it, once.
        let again = engine.cancel(&root, "enough").request("c").await.unwrap();
        assert_eq!(again, CancelOutcome::Requested);
        until_entry(&engine, child, |entry| entry.row.status().is_terminal()).await;
        engine.close().await.unwrap();
        let (_, events) = world.reopened(child).await;
        assert_eq!(count(&events, "run.cancelled"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_request_makes_is_made_once() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let run = asks(&engine).start(&1).await.unwrap();
        until(&engine, run.id(), "wait.started").await;
        let fork = |engine: &Engine| engine.fork(&run.id(), ForkPoint::Last).request("f").queue();
        let first = fork(&engine).await.unwrap().id();
        // The parent goes on: where its log ends is somewhere else now.
        engine.signal(&run.id(), "noise", &()).await.unwrap();
        assert_eq!(fork(&engine).await.unwrap().id(), first);
        assert!(is_taken(fork(&engine).input(&2).await));
        assert_ne!(fork(&engine).request("g").await.unwrap().id(), first);

        engine.cancel(&run.id(), "enough").await.unwrap();
        let retry = |engine: &Engine| engine.retry(&run.id()).request("f").queue();
        assert!(is_taken(retry(&engine).await), "it made a fork");
        let retry = |engine: &Engine| engine.retry(&run.id()).request("t").queue();
        let retried = retry(&engine).await.unwrap().id();
        engine.close().await.unwrap();

        let engine = world.engine().await;
        asks(&engine);
        assert_eq!(
            retry(&engine).await.unwrap().id(),
            retried,
            "after a restart"
        );
        assert!(is_taken(retry(&engine).input(&2).await));
        let filter = Filter {
            parent: Some(run.id()),
            ..Filter::default()
        };
        let made = engine.store().list(&filter, None, 10).await.unwrap().items;
        assert_eq!(made.len(), 3, "two forks and one retry");
        // Left to nobody the first time, driven the second.
        let driven = engine.retry(&run.id()).request("t").await.unwrap();
        until_entry(&engine, driven.id(), |entry| entry.epoch.0 == 1).await;
        engine.cancel(&retried, "enough").await.unwrap();
        assert_eq!(
            retry(&engine).await.unwrap().id(),
            retried,
            "though it has ended"
        );
        engine.close().await.unwrap();
    })
    .await;
}

/// What is answered a second time is acknowledged: a commit that waits for a standby must have been made for that too.
#[tokio::test]
async fn the_run_of_a_repeated_request_is_not_only_read() {
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::new(store::SystemEnv)));
    let faults = Faults::new();
    let faulty = FaultyStore::new(store, faults.clone());
    let engine = Engine::builder().store(Arc::new(faulty)).build();
    let engine = engine.await.unwrap();
    let run = asks(&engine).start(&1).await.unwrap();
    until_entry(&engine, run.id(), |entry| entry.driver.is_none()).await;
    let fork = || engine.fork(&run.id(), ForkPoint::Last).request("f").queue();
    let made = fork().await.unwrap().id();
    faults.fail_next(Fault::Lost);
    let repeated = fork().await.unwrap_err();
    assert_eq!(repeated.kind(), ErrorKind::Unavailable);
    assert_eq!(fork().await.unwrap().id(), made);
    engine.close().await.unwrap();
}
