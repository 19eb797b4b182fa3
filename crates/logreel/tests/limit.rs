//! How many runs with one key are driven at once, whoever drives them.
#![allow(
    clippy::unwrap_used,
    reason = "a test may unwrap, and so may what it shares"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::desk::{completed, parse};
use common::{World, on_both, until_entry};
use logreel::workflow::Workflow;
use logreel::{Ctx, Engine, Entry, Env, Json, ResumeOutcome, RunHandle, Seq, Status, TaskError};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

fn limited(max: u32) -> Workflow {
    parse(&format!(
        "name = 'limited'\nlimit = {{ key = 'k', max = {max} }}\n[[step]]\nid = 'a'\ntask = 'work'\n"
    ))
}

const FREE: &str = "name = 'free'\n[[step]]\nid = 'a'\nrun = 'echo free'\n";

/// Who is at work, how many were at once, and what lets them go on.
struct Gate {
    at_work: AtomicUsize,
    most: AtomicUsize,
    open: Semaphore,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            at_work: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            open: Semaphore::new(0),
        })
    }

    /// An engine whose task is at work until the gate lets it go on.
    async fn engine(self: &Arc<Self>, world: &World) -> Engine {
        let engine = world.builder().any_workflow().build().await.unwrap();
        let gate = Arc::clone(self);
        engine.task("work", move |_: Ctx, _: Value| {
            let gate = Arc::clone(&gate);
            async move {
                let now = gate.at_work.fetch_add(1, Ordering::SeqCst) + 1;
                gate.most.fetch_max(now, Ordering::SeqCst);
                let _leaves = Leaves(&gate);
                gate.open.acquire().await.unwrap().forget();
                Ok::<_, TaskError>("done".to_owned())
            }
        });
        engine
    }
}

struct Leaves<'a>(&'a Gate);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::SeqCst);
    }
}

fn now() -> logreel::Timestamp {
    logreel::store::SystemEnv.now()
}

fn in_line(entry: &Entry) -> bool {
    entry.is_in_line(now()) && entry.driver.is_none()
}

async fn driven(engine: &Engine, run: &RunHandle<Json>) {
    until_entry(engine, run.id(), Entry::is_driven).await;
}

/// Runs in line are created, and nobody drives them; a worker's other slots go to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_keep_to_a_limit_and_drive_others_past_it() {
    on_both(|world| async move {
        let gate = Gate::new();
        let (one, two) = (gate.engine(&world).await, gate.engine(&world).await);
        let limited = one.workflow(&limited(2));
        let mut runs = Vec::new();
        for _ in 0..6 {
            runs.push(limited.start(&Value::Null).queue().await.unwrap());
        }
        let free = one.workflow(&parse(FREE)).start(&Value::Null);
        let free = free.queue().await.unwrap();
        let working = [&one, &two].map(|engine| {
            let engine = engine.clone();
            tokio::spawn(async move { engine.work(3).await })
        });
        assert_eq!(completed(&free).await, json!("free"), "nobody hides it");
        for run in &runs[..2] {
            driven(&one, run).await;
        }
        for run in &runs[2..] {
            let entry = run.entry().await.unwrap();
            assert!(in_line(&entry), "{entry:?}");
            assert_eq!(
                (entry.row.status(), entry.row.head.seq),
                (Status::Created, Seq(1))
            );
        }
        gate.open.add_permits(runs.len());
        for run in &runs {
            assert_eq!(completed(run).await, json!("done"));
        }
        assert_eq!(gate.most.load(Ordering::SeqCst), 2);
        one.close().await.unwrap();
        two.close().await.unwrap();
        for worker in working {
            worker.await.unwrap().unwrap();
        }
        for run in runs {
            world.reopened(run.id()).await;
        }
    })
    .await;
}

/// Whoever starts or resumes a run over its limit waits in line with it, also under another spec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_and_resumes_over_a_limit_wait_in_line() {
    on_both(|world| async move {
        let gate = Gate::new();
        let (one, two) = (gate.engine(&world).await, gate.engine(&world).await);
        let first = one.workflow(&limited(1)).start(&Value::Null).await.unwrap();
        driven(&one, &first).await;
        let second = two.workflow(&limited(1)).start(&Value::Null).await.unwrap();
        let entry = second.entry().await.unwrap();
        assert!(in_line(&entry), "{entry:?}");
        assert_eq!(entry.row.facts.limit.as_ref().map(|it| it.max), Some(1));

        // One that is paused in line is not taken until someone resumes it.
        second.pause("lunch").await.unwrap();
        gate.open.add_permits(1);
        assert_eq!(completed(&first).await, json!("done"));
        let third = one.workflow(&limited(1)).start(&Value::Null).await.unwrap();
        driven(&one, &third).await;
        two.close().await.unwrap();
        let two = gate.engine(&world).await;
        let changed = Workflow::builder("limited").limit("k", 1);
        let changed = changed.step(logreel::workflow::Step::run("a", "echo changed"));
        let changed = changed.build().unwrap();
        let resumed = two.resume_under(&second.id(), &changed).await.unwrap();
        assert!(matches!(resumed, ResumeOutcome::Driving(_)));
        let entry = second.entry().await.unwrap();
        assert!(in_line(&entry), "{entry:?}");
        gate.open.add_permits(1);
        assert_eq!(completed(&third).await, json!("done"));
        assert_eq!(completed(&two.run(second.id())).await, json!("changed"));
        one.close().await.unwrap();
        two.close().await.unwrap();
        let (_, events) = world.reopened(second.id()).await;
        assert_eq!(common::count(&events, "spec.changed"), 1);
    })
    .await;
}

/// A parent that waits for its child takes no place, so the two may share a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_with_its_parents_key_gets_the_place_while_the_parent_waits() {
    on_both(|world| async move {
        let engine = world.builder().any_workflow().build().await.unwrap();
        let text = r#"
            name = "parent"
            limit = { key = "k", max = 1 }
            [[step]]
            id = "child"
            [step.workflow]
            name = "child"
            limit = { key = "k", max = 1 }
            [[step.workflow.step]]
            id = "a"
            run = "echo child"
        "#;
        let parent = engine.workflow(&parse(text)).start(&Value::Null);
        let parent = parent.await.unwrap();
        assert_eq!(completed(&parent).await, json!("child"));
        engine.close().await.unwrap();
    })
    .await;
}
