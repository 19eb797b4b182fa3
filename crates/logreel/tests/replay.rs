//! `Engine::replay`: the code of a task is called again with what its log has, and says the same.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use logreel::{Ctx, Engine, Outcome, Reconciled, Retry, RunId, Task, TaskError, hours};

/// How often the world was touched.
#[derive(Default)]
struct Touched(AtomicU32);

impl Touched {
    fn touch(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

async fn engine() -> (Engine, Arc<Touched>) {
    let touched = Arc::new(Touched::default());
    let engine = Engine::builder()
        .provide(Arc::clone(&touched))
        .build()
        .await
        .unwrap();
    (engine, touched)
}

fn touched(ctx: &Ctx) -> Arc<Touched> {
    Arc::clone(&*ctx.get::<Arc<Touched>>())
}

/// What the task does, in two orders.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    AsItWas,
    Other,
}

fn register(engine: &Engine, order: Order) -> Task<u32, String> {
    let below = engine.task("below", |ctx: Ctx, n: u32| async move {
        let touched = touched(&ctx);
        ctx.step("twice")
            .run(|| async {
                touched.touch();
                Ok::<_, TaskError>(n * 2)
            })
            .await
    });
    engine.task("above", move |ctx: Ctx, n: u32| {
        let below = below.clone();
        async move {
            let world = touched(&ctx);
            let drawn = ctx.random("dice").await?;
            if order == Order::Other {
                ctx.emit("early", &n).await?;
            }
            let parts = ctx
                .all((0..n).map(|i| {
                    let world = &world;
                    ctx.step(("part", i)).input(&i).run(move || async move {
                        world.touch();
                        tokio::task::yield_now().await;
                        Ok::<_, TaskError>(i)
                    })
                }))
                .await?;
            let retried = ctx
                .step("retried")
                .retry(Retry::attempts(3).backoff(Duration::ZERO, Duration::ZERO))
                .run(|| async {
                    match world.touch() {
                        tries if tries <= n => Err(TaskError::new("not yet")),
                        tries => Ok(tries),
                    }
                })
                .await?;
            ctx.set_state(&parts).await?;
            let doubled: u32 = ctx.child("child", &below, &retried).await?;
            let yes = ctx.approval("go on?").deadline(hours(1)).await?;
            let written = ctx
                .write_step("write")
                .reconcile(|_| async { Ok::<_, TaskError>(Reconciled::<u64>::NotDone) })
                .run(|_| async {
                    world.touch();
                    Ok::<_, TaskError>(drawn)
                })
                .await?;
            ctx.emit("said", &written).await?;
            Ok(format!("{parts:?} {doubled} {}", yes.approved))
        }
    })
}

async fn recorded(engine: &Engine) -> RunId {
    let task = register(engine, Order::AsItWas);
    let run = task.start(&3).await.unwrap();
    loop {
        let entry = engine.store().entry(&run.id()).await.unwrap();
        let waits = &entry.row.facts.waits;
        if let Some(open) = waits
            .iter()
            .find(|it| it.wait.prompt.as_deref() == Some("go on?"))
        {
            let wait = open.wait.wait;
            let answer = logreel::Answer::approve().to(wait);
            engine.answer(&run.id(), answer).await.unwrap();
            break;
        }
        tokio::task::yield_now().await;
    }
    match run.wait().await.unwrap() {
        Outcome::Completed(_) => run.id(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_replays_equal_and_touches_nothing() {
    let (engine, touched) = engine().await;
    let run = recorded(&engine).await;
    let before = touched.0.load(Ordering::SeqCst);
    let replayed = engine.replay(run).await.unwrap();
    assert_eq!(replayed.difference, None);
    assert!(replayed.ended);
    assert_eq!(replayed.children.len(), 1);
    assert!(replayed.children[0].is_equal());
    assert_eq!(touched.0.load(Ordering::SeqCst), before);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_code_decides_otherwise_is_named() {
    let (engine, _) = engine().await;
    let run = recorded(&engine).await;
    register(&engine, Order::Other);
    let replayed = engine.replay(run).await.unwrap();
    let difference = replayed.difference.expect("it differs");
    assert!(
        difference
            .why
            .contains("`custom` of `early`, which the log does not have"),
        "{difference:?}"
    );
    engine.close().await.unwrap();
}
