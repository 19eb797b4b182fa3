//! One process writes a run, another follows it, a third deletes other runs: every event arrives,
//! in order, once.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod process;

use std::path::Path;

use logreel::*;
use process::{Child, again, role, runtime, say};

const EVENTS: u64 = 5000;
const AT_ONCE: u64 = 5;

fn long(engine: &Engine) -> Task<(), u64> {
    engine.task("long", |ctx: Ctx, (): ()| async move {
        for first in (0..EVENTS).step_by(AT_ONCE as usize) {
            let steps = (first..first + AT_ONCE).map(|step| {
                let name = ("count", step);
                ctx.step(name)
                    .run(move || async move { Ok::<_, TaskError>(step) })
            });
            ctx.all(steps).await?;
        }
        Ok(EVENTS)
    })
}

/// Process A: drives the run that the test queued.
async fn write(store: &Path) {
    let engine = Engine::open(store).await.unwrap();
    let run = long(&engine).start(&()).key("long").await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(EVENTS));
    engine.close().await.unwrap();
}

/// Process B: says every seq as it arrives.
async fn follow(store: &Path, run: RunId) {
    let engine = Engine::open(store).await.unwrap();
    let mut records = engine.run(run).records(Seq::FIRST);
    while let Some(record) = records.next().await {
        let record = record.unwrap();
        say(&format!("{} {}", record.seq, record.kind));
    }
}

#[test]
fn a_follower_in_another_process_gets_every_event_once_in_order_while_a_third_deletes_runs() {
    const NAME: &str =
        "a_follower_in_another_process_gets_every_event_once_in_order_while_a_third_deletes_runs";
    let runtime = runtime();
    if let Some((role, folder)) = role() {
        let store = folder.join("runs.db");
        return match role.as_str() {
            "write" => runtime.block_on(write(&store)),
            run => runtime.block_on(follow(&store, run.parse().unwrap())),
        };
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("runs.db");
    let engine = runtime.block_on(Engine::open(&store)).unwrap();
    let queued = long(&engine).start(&()).key("long").queue();
    let run = runtime.block_on(async { queued.await }).unwrap();

    let mut follower = Child::spawn(&mut again(&[], NAME, &run.id().to_string(), folder.path()));
    assert_eq!(follower.next().as_deref(), Some("1 run.started"));
    let writer = Child::spawn(&mut again(&[], NAME, "write", folder.path()));

    let brief = engine.task("brief", |ctx: Ctx, n: u64| async move {
        let work = || async { Ok::<_, TaskError>(n) };
        ctx.step("only").run(work).await
    });
    let mut arrived = vec![(1, "run.started".to_owned())];
    let mut deleted = 0;
    let mut ended = false;
    // The newest events of the store are often those of a run that is just being deleted.
    while !ended {
        runtime.block_on(async {
            let other = brief.start(&deleted).await.unwrap();
            assert_eq!(other.wait().await.unwrap(), Outcome::Completed(deleted));
            let mut bell = engine.store().watch(&other.id());
            while other.entry().await.unwrap().driver.is_some() {
                assert!(bell.rung().await);
            }
            engine.store().delete(&other.id()).await.unwrap();
            deleted += 1;
        });
        // One line at least: the follower is never far behind.
        let line = follower.next();
        let more = follower.during(std::time::Duration::ZERO);
        ended = line.is_none();
        for line in line.into_iter().chain(more) {
            let (seq, kind) = line.split_once(' ').unwrap();
            arrived.push((seq.parse().unwrap(), kind.to_owned()));
        }
    }
    let (rest, status) = follower.rest();
    assert!(rest.is_empty() && status.success(), "{status}");
    writer.finish();

    let head = runtime.block_on(run.entry()).unwrap().row.head.seq.0;
    assert!(head > EVENTS);
    let seqs: Vec<u64> = arrived.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>(), "all, in order, once");
    let finished = arrived
        .iter()
        .filter(|(_, kind)| kind == "step.finished")
        .count();
    assert_eq!(finished as u64, EVENTS);
    assert_eq!(arrived.last().unwrap().1, "run.completed");
    assert!(deleted > 10, "only {deleted} runs were deleted meanwhile");
    runtime.block_on(engine.close()).unwrap();
    println!("{head} events followed from another process, {deleted} other runs deleted meanwhile");
}
