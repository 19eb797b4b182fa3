//! What happens to a workflow's run besides running: changed specs, pauses, retries, parents that
//! die, and going on in another store.
#![allow(
    clippy::unwrap_used,
    reason = "a test may unwrap, and so may what it shares"
)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::desk::{completed, parse};
use common::{World, count, on_both, until_entry};
use logreel::core::event::{Relation, WaitKind};
use logreel::core::row::OpenWait;
use logreel::{
    Answer, Body, Checkpoint, CheckpointError, Engine, Entry, Json, Outcome, ResumeOutcome,
    RunHandle, RunId, Status,
};
use serde_json::{Value, json};

async fn start(engine: &Engine, dir: &Path, text: &str) -> RunHandle<Json> {
    common::desk::start(engine, dir, text, Value::Null).await
}

async fn driving(world: &World) -> Engine {
    world.builder().any_workflow().build().await.unwrap()
}

fn lines(dir: &Path, file: &str) -> usize {
    common::desk::lines(dir, file).len()
}

fn waits_for(entry: &Entry, kind: WaitKind) -> bool {
    let is_it = |open: &OpenWait| open.wait.kind == kind;
    entry.driver.is_none() && entry.row.facts.waits.iter().any(is_it)
}

/// A step, a question, and a step after it that says which version it is of.
fn asking(version: &str) -> String {
    format!(
        r#"
        name = "asking"
        [[step]]
        id = "first"
        run = "echo x >> first; echo {version}"
        [[step]]
        id = "ask"
        needs = ["first"]
        wait = "approval"
        [[step]]
        id = "last"
        needs = ["first", "ask"]
        run = "cat; echo {version}"
        input = "{{{{ steps.first.output }}}} then "
        "#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_workflow_is_accepted_by_name_keeps_what_finished_and_is_recorded() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let run = start(&engine, desk.path(), &asking("one")).await;
        until_entry(&engine, run.id(), |entry| {
            waits_for(entry, WaitKind::Approval)
        })
        .await;
        engine.close().await.unwrap();

        let engine = driving(&world).await;
        engine.answer(&run.id(), Answer::approve()).await.unwrap();
        let changed = parse(&asking("two"));
        let resumed = engine.resume_under(&run.id(), &changed).await.unwrap();
        assert!(matches!(resumed, ResumeOutcome::Driving(_)));
        assert_eq!(
            completed(&engine.run(run.id())).await,
            json!("one then two")
        );
        engine.close().await.unwrap();
        assert_eq!(lines(desk.path(), "first"), 1);
        let (entry, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "spec.changed"), 1);
        assert_eq!(entry.row.facts.spec_digest, changed.digest());
    })
    .await;
}

const FAMILY: &str = r#"
    name = "family"
    [[step]]
    id = "child"
    [step.workflow]
    name = "child"
    [[step.workflow.step]]
    id = "ask"
    wait = "approval"
"#;

async fn child_of(engine: &Engine, parent: &RunHandle<Json>) -> RunHandle<Json> {
    let runs = engine.runs().newest(10).await.unwrap();
    let is_child = |entry: &&Entry| {
        let of = entry.row.facts.parent.as_ref();
        of.is_some_and(|of| of.run == parent.id() && of.relation == Relation::Child)
    };
    let child = runs.iter().find(is_child).expect("the child exists");
    engine.run(child.row.run)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_reaches_the_children_and_a_resume_takes_it_back() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let run = start(&engine, desk.path(), FAMILY).await;
        until_entry(&engine, run.id(), |entry| waits_for(entry, WaitKind::Child)).await;
        let child = child_of(&engine, &run).await;
        until_entry(&engine, child.id(), |entry| {
            waits_for(entry, WaitKind::Approval)
        })
        .await;
        run.pause("lunch").await.unwrap();
        for paused in [&run, &child] {
            let entry = paused.entry().await.unwrap();
            assert!(
                waits_for(&entry, WaitKind::Paused),
                "{:?}",
                entry.row.facts.waits
            );
        }
        engine.close().await.unwrap();

        let engine = driving(&world).await;
        // Whatever the pause had stopped is looked at again; then the child waits for someone, and so
        // does the parent, for the child.
        let resumed = engine.resume(&run.id()).await.unwrap();
        assert!(matches!(resumed, ResumeOutcome::Driving(_)));
        for waiting in [run.id(), child.id()] {
            let entry = until_entry(&engine, waiting, |entry| {
                entry.driver.is_none() && entry.row.status() == Status::Waiting
            })
            .await;
            assert!(!waits_for(&entry, WaitKind::Paused));
        }
        engine.answer(&child.id(), Answer::approve()).await.unwrap();
        let output = completed(&engine.run(run.id())).await;
        assert_eq!(output["approved"], json!(true));
        engine.close().await.unwrap();
        world.reopened(run.id()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_of_the_root_drives_grandchildren_that_were_left_to_nobody() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let text = r#"
            name = "root"
            [[step]]
            id = "busy"
            run = "while [ ! -e go ]; do sleep 0.01; done"
            [[step]]
            id = "middle"
            [step.workflow]
            name = "middle"
            [[step.workflow.step]]
            id = "leaf"
            [step.workflow.step.workflow]
            name = "leaf"
            [[step.workflow.step.workflow.step]]
            id = "work"
            run = "echo up; while [ ! -e go ]; do sleep 0.01; done"
        "#;
        let mut printed = engine.live();
        let run = start(&engine, desk.path(), text).await;
        assert_eq!(&*printed.next().await.unwrap().text, "up");
        let working = |entry: &Entry| entry.row.status() == Status::Executing;
        until_entry(&engine, run.id(), working).await;
        engine.close().await.unwrap();
        std::fs::write(desk.path().join("go"), "").unwrap();
        // The root is claimed; the child it waits for is not ready, and the one below has no driver.
        let engine = driving(&world).await;
        engine.resume(&run.id()).await.unwrap();
        completed(&engine.run(run.id())).await;
        engine.close().await.unwrap();
        world.reopened(run.id()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_sweeps_cancels_a_child_whose_parent_has_ended() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let run = start(&engine, desk.path(), FAMILY).await;
        until_entry(&engine, run.id(), |entry| waits_for(entry, WaitKind::Child)).await;
        let child = child_of(&engine, &run).await;
        until_entry(&engine, child.id(), |entry| {
            waits_for(entry, WaitKind::Approval)
        })
        .await;
        engine.close().await.unwrap();
        // A cancel that died before it came to the child.
        let cancel = logreel::core::Outside::Cancel { reason: None };
        let id = logreel::core::AppendId::new("cancel").unwrap();
        let store = world.open();
        store
            .command(&run.id(), &id, &cancel, Vec::new())
            .await
            .unwrap();

        let worker = driving(&world).await;
        let working = worker.clone();
        let working = tokio::spawn(async move { working.work(1).await });
        let child = worker.run(child.id());
        let Outcome::Cancelled(reason) = child.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(reason.as_deref(), Some("its parent has ended"));
        worker.close().await.unwrap();
        working.await.unwrap().unwrap();
    })
    .await;
}

const TWO_WAITS: &str = r#"
    name = "two-waits"
    [[step]]
    id = "ok"
    wait = "approval"
    [[step]]
    id = "long"
    wait = "timer"
    for = "1h"
    [[step]]
    id = "after"
    needs = ["ok"]
    run = "echo x >> after"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_lets_go_on_what_needs_it_although_another_wait_is_open() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let parked = |entry: &Entry| {
            entry.driver.is_none()
                && entry.row.status() == Status::Waiting
                && waits_for(entry, WaitKind::Timer)
        };
        let mut runs = Vec::new();
        for _ in 0..2 {
            let run = start(&engine, desk.path(), TWO_WAITS).await.id();
            until_entry(&engine, run, |entry| {
                parked(entry) && waits_for(entry, WaitKind::Approval)
            })
            .await;
            runs.push(run);
        }
        engine.close().await.unwrap();

        let worker = driving(&world).await;
        let working = worker.clone();
        let working = tokio::spawn(async move { working.work(2).await });
        let [yes, no] = runs[..] else { unreachable!() };
        worker.answer(&yes, Answer::approve()).await.unwrap();
        until_entry(&worker, yes, |entry| {
            parked(entry) && lines(desk.path(), "after") == 1
        })
        .await;
        worker.answer(&no, Answer::deny()).await.unwrap();
        let Outcome::Failed(cause) = worker.run(no).wait().await.unwrap() else {
            panic!("a denial fails the run")
        };
        assert_eq!(cause.step.unwrap().to_string(), "ok");
        assert_eq!(lines(desk.path(), "after"), 1);
        worker.close().await.unwrap();
        working.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_a_pause_missed_is_paused_before_it_does_anything() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let run = start(&engine, desk.path(), FAMILY).await;
        until_entry(&engine, run.id(), |entry| waits_for(entry, WaitKind::Child)).await;
        let child = child_of(&engine, &run).await;
        until_entry(&engine, child.id(), |entry| {
            waits_for(entry, WaitKind::Approval)
        })
        .await;
        engine.close().await.unwrap();
        let store = world.open();
        let paused = async |entry: RunId| {
            let row = store.entry(&entry).await.unwrap().row;
            let mut waits = row.facts.waits.iter();
            waits.any(|open| open.wait.kind == WaitKind::Paused)
        };
        // A pause that died before it came to the child; the next one reaches it.
        let pause = logreel::core::Outside::Pause { reason: None };
        let id = logreel::core::AppendId::new("pause").unwrap();
        let done = store.command(&run.id(), &id, &pause, Vec::new()).await;
        assert!(done.unwrap().answer.is_ok());
        assert!(!paused(child.id()).await);
        let engine = driving(&world).await;
        let again = engine.pause(&run.id(), "lunch").await.unwrap();
        assert_eq!(again, logreel::PauseOutcome::AlreadyPaused);
        assert!(paused(child.id()).await);

        // One that was made after the pause had looked, and that nobody has driven yet.
        let first = store
            .events(&child.id(), logreel::Seq::FIRST, 1)
            .await
            .unwrap();
        let Body::RunStarted(started) = first.items[0].body.clone() else {
            panic!("event 1")
        };
        let new = logreel::store::NewRun {
            run: logreel::Env::run_id(&logreel::store::SystemEnv),
            started: *started,
            then: Vec::new(),
            blobs: Vec::new(),
            owner: None,
        };
        let late = new.run;
        store.create(new).await.unwrap();
        let working = engine.clone();
        let working = tokio::spawn(async move { working.work(1).await });
        let entry = until_entry(&engine, late, |entry| waits_for(entry, WaitKind::Paused)).await;
        assert_eq!(entry.row.facts.waits.len(), 1, "it has not begun");
        engine.close().await.unwrap();
        working.await.unwrap().unwrap();
    })
    .await;
}

const CHAIN: &str = r#"
    name = "chain"
    [[step]]
    id = "a"
    run = "echo x >> a; echo 1"
    [[step]]
    id = "each"
    needs = ["a"]
    map = [1, 2]
    map_key = "{{ item }}"
    run = "echo x >> each; cat"
    input = "{{ item }}"
    [[step]]
    id = "b"
    needs = ["each"]
    run = "echo x >> b; [ -e go ] && echo done"
    [[step]]
    id = "apart"
    run = "echo x >> apart"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_keeps_what_finished_and_from_a_step_forgets_all_that_need_it() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let run = start(&engine, desk.path(), CHAIN).await;
        assert!(matches!(run.wait().await.unwrap(), Outcome::Failed(_)));
        let again = engine.retry(&run.id()).await.unwrap();
        assert!(matches!(again.wait().await.unwrap(), Outcome::Failed(_)));
        let ran = |file: &str| lines(desk.path(), file);
        assert_eq!(
            (ran("a"), ran("each"), ran("b"), ran("apart")),
            (1, 2, 2, 1)
        );
        std::fs::write(desk.path().join("go"), "").unwrap();
        let from = engine.retry(&again.id()).from("each").await.unwrap();
        completed(&from).await;
        assert_eq!(
            (ran("a"), ran("each"), ran("b"), ran("apart")),
            (1, 4, 3, 1)
        );
        engine.close().await.unwrap();
        let (entry, _) = world.reopened(from.id()).await;
        let parent = entry.row.facts.parent.clone().unwrap();
        assert_eq!((parent.run, parent.relation), (again.id(), Relation::Retry));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_portable_checkpoint_goes_on_in_another_store() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let run = start(&engine, desk.path(), &asking("one")).await;
        until_entry(&engine, run.id(), |entry| {
            waits_for(entry, WaitKind::Approval)
        })
        .await;
        engine
            .answer(&run.id(), Answer::approve().by("ada"))
            .await
            .unwrap();
        engine.run(run.id()).pause("moving").await.unwrap();
        let text = engine.checkpoint(&run.id()).await.unwrap().write().unwrap();
        engine.close().await.unwrap();

        let elsewhere = Arc::new(World::sqlite());
        let engine = driving(&elsewhere).await;
        let checkpoint = Checkpoint::read(&text).unwrap();
        let restored = engine.restore(&checkpoint).await.unwrap();
        assert_eq!(restored.id(), run.id(), "keys of effects depend on it");
        let twice = engine.restore(&checkpoint).await.unwrap_err();
        assert_eq!(twice.kind().as_str(), "conflict");
        let entry = restored.entry().await.unwrap();
        assert!(
            waits_for(&entry, WaitKind::Paused),
            "a person says that it may go on"
        );
        engine.resume(&run.id()).await.unwrap();
        assert_eq!(completed(&restored).await, json!("one then one"));
        engine.close().await.unwrap();
        assert_eq!(
            lines(desk.path(), "first"),
            1,
            "what finished is not done again"
        );
        elsewhere.reopened(run.id()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_open_in_a_checkpoint_is_in_doubt_with_its_key() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let text = r#"
            name = "writes"
            [[step]]
            id = "pay"
            effect = "write"
            run = "echo up; sleep 1000"
        "#;
        let mut printed = engine.live();
        let run = start(&engine, desk.path(), text).await;
        assert_eq!(&*printed.next().await.unwrap().text, "up");
        let checkpoint = engine.checkpoint(&run.id()).await.unwrap();
        let announced = engine.run(run.id()).events(logreel::Seq::FIRST);
        let key = key_of_start(announced).await;
        run.cancel("moved").await.unwrap();
        engine.close().await.unwrap();

        let elsewhere = World::sqlite();
        let engine = driving(&elsewhere).await;
        let restored = engine.restore(&checkpoint).await.unwrap();
        let entry = restored.entry().await.unwrap();
        assert!(waits_for(&entry, WaitKind::InDoubt));
        let (_, events) = elsewhere.reopened(run.id()).await;
        let doubted = events.iter().find_map(|event| match &event.body {
            Body::StepInDoubt(doubt) => doubt.key,
            _ => None,
        });
        assert_eq!(doubted, key);
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_carries_failures_deadlines_and_kept_signals() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = driving(&world).await;
        let text = r#"
            name = "carries"
            output = "{{ steps.go.output }}"
            [budget]
            tokens = 1000
            [[step]]
            id = "pay"
            effect = "write"
            run = "echo x >> paid; exit 1"
            on_error = "continue"
            [[step]]
            id = "ask"
            wait = "approval"
            timeout = "1h"
            [[step]]
            id = "go"
            needs = ["ask", "pay"]
            wait = "signal"
            name = "go"
        "#;
        let run = start(&engine, desk.path(), text).await;
        let entry = until_entry(&engine, run.id(), |entry| {
            waits_for(entry, WaitKind::Approval)
        })
        .await;
        let deadline = entry.row.facts.waits[0].wait.deadline;
        engine.signal(&run.id(), "go", &json!("now")).await.unwrap();
        run.pause("moving").await.unwrap();
        let checkpoint = engine.checkpoint(&run.id()).await.unwrap();
        engine.close().await.unwrap();

        let elsewhere = World::sqlite();
        let engine = driving(&elsewhere).await;
        let restored = engine.restore(&checkpoint).await.unwrap();
        let entry = restored.entry().await.unwrap();
        assert_eq!(entry.row.facts.budget.tokens, Some(1000));
        let approval = |open: &&OpenWait| open.wait.kind == WaitKind::Approval;
        let open = entry.row.facts.waits.iter().find(approval).unwrap();
        assert_eq!(open.wait.deadline, deadline);
        engine.answer(&run.id(), Answer::approve()).await.unwrap();
        engine.resume(&run.id()).await.unwrap();
        assert_eq!(completed(&restored).await, json!("now"));
        assert_eq!(
            lines(desk.path(), "paid"),
            1,
            "a failed write is not repeated blind"
        );
        engine.close().await.unwrap();
        elsewhere.reopened(run.id()).await;
    })
    .await;
}

async fn key_of_start(mut events: logreel::EventStream) -> Option<logreel::Digest> {
    while let Some(event) = events.next().await {
        if let Body::StepStarted(started) = event.unwrap().body {
            return started.key;
        }
    }
    None
}

#[test]
fn a_checkpoint_of_a_newer_version_is_refused_by_name_and_a_missing_version_reads_as_0() {
    let newer = Checkpoint::read(r#"{"type": "checkpoint", "schema_version": 7}"#).unwrap_err();
    assert!(matches!(
        newer,
        CheckpointError::Newer { found: 7, known: 1 }
    ));
    let said = newer.to_string();
    assert!(said.contains('7') && said.contains('1'), "{said}");
    let old = json!({
        "type": "checkpoint",
        "run": "run_01890a5d-ac96-774b-bcce-b302099a8057",
        "kind": "workflow",
        "agent": "old",
        "spec": {},
        "spec_digest": format!("blake3:{}", "0".repeat(64)),
        "input": null,
        "steps": [],
        "open_writes": [],
    });
    Checkpoint::read(&old.to_string()).expect("a version that is missing is 0");
    for damaged in [
        "",
        "{",
        "[]",
        r#"{"type": "checkpoint"}"#,
        r#"{"type": "log"}"#,
    ] {
        let refused = Checkpoint::read(damaged).unwrap_err();
        assert!(
            matches!(refused, CheckpointError::Unreadable(_)),
            "{damaged}"
        );
    }
}
