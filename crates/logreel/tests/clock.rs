//! Someone sets the wall clock (SEMANTICS 10, 18, 20): deadlines of parked runs are absolute, what is
//! driven counts on the monotonic clock, and times in the log never go back.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Virtual, until, until_entry};
use logreel::testing::TestEngine;
use logreel::*;

/// Sets the clock an hour forward or back.
fn step(engine: &TestEngine, forward: bool) {
    let now = engine.env().now();
    engine.env().set_now(if forward {
        now + hours(1)
    } else {
        now - hours(1)
    });
}

async fn check_times(run: &RunHandle<u32>) {
    let mut events = run.events(Seq::FIRST);
    let mut last = None;
    while let Some(event) = events.next().await {
        let at = event.unwrap().at;
        assert!(last.is_none_or(|last| last <= at), "times never go back");
        last = Some(at);
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_run_goes_on_at_its_deadline_however_the_clock_was_set() {
    for world in Virtual::both() {
        for (forward, least, most) in [
            (true, Duration::ZERO, minutes(1)),
            (false, minutes(65), minutes(75)),
        ] {
            let engine = world.engine().await;
            let task: Task<(), u32> = engine.task("naps", |ctx: Ctx, (): ()| async move {
                ctx.sleep("nap", minutes(10)).await?;
                Ok(7)
            });
            let run = task.start(&()).await.unwrap();
            let parked = |entry: &Entry| entry.driver.is_none() && entry.ready_at.is_some();
            until_entry(&engine, run.id(), |entry| {
                parked(entry) && entry.row.status() == Status::Waiting
            })
            .await;
            step(&engine, forward);
            let began = engine.env().monotonic();
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
            let waited = engine.env().monotonic() - began;
            assert!(waited >= least && waited < most, "{forward} {waited:?}");
            check_times(&run).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_driven_backoff_takes_as_long_however_the_clock_was_set() {
    for world in Virtual::both() {
        for forward in [true, false] {
            let engine = world.engine().await;
            let calls = Arc::new(AtomicU32::new(0));
            let called = Arc::clone(&calls);
            let task: Task<(), u32> = engine.task("flaky", move |ctx: Ctx, (): ()| {
                let called = Arc::clone(&called);
                async move {
                    let four = Duration::from_secs(4);
                    let step = ctx.step("flaky");
                    let step = step.retry(Retry::attempts(2).backoff(four, four));
                    let work = || async {
                        match called.fetch_add(1, Ordering::SeqCst) {
                            0 => Err(TaskError::new("not yet")),
                            _ => Ok(7),
                        }
                    };
                    step.run(work).await
                }
            });
            let run = task.start(&()).await.unwrap();
            until(&engine, run.id(), "step.retrying").await;
            step(&engine, forward);
            let began = engine.env().monotonic();
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(7));
            let waited = engine.env().monotonic() - began;
            let (least, most) = (Duration::from_millis(1900), Duration::from_secs(5));
            assert!(waited > least && waited < most, "{forward} {waited:?}");
            assert_eq!(run.entry().await.unwrap().epoch.0, 1, "driven all along");
            check_times(&run).await;
        }
    }
}
