//! `logreel log RUN --follow --json` in one process while another writes the run and a third deletes
//! other runs: every event arrives, in order, once.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "../../logreel/tests/process/mod.rs"]
mod process;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use logreel::{Ctx, Engine, Outcome, Task, TaskError};
use process::{Child, again, role, runtime};

const EVENTS: u64 = 5000;
const AT_ONCE: u64 = 5;

fn long(engine: &Engine) -> Task<(), u64> {
    engine.task("long", |ctx: Ctx, (): ()| async move {
        for first in (0..EVENTS).step_by(AT_ONCE as usize) {
            let steps = (first..first + AT_ONCE).map(|step| {
                let work = move || async move { Ok::<_, TaskError>(step) };
                ctx.step(("count", step)).run(work)
            });
            ctx.all(steps).await?;
        }
        Ok(EVENTS)
    })
}

/// Drives the run that the test queued.
async fn write(store: &Path) {
    let engine = Engine::open(store).await.unwrap();
    let run = long(&engine).start(&()).key("long").await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(EVENTS));
    engine.close().await.unwrap();
}

#[test]
fn log_follow_json_prints_every_event_once_in_order_while_others_write_and_delete() {
    const NAME: &str =
        "log_follow_json_prints_every_event_once_in_order_while_others_write_and_delete";
    let runtime = runtime();
    if let Some((_, folder)) = role() {
        return runtime.block_on(write(&folder.join("runs.db")));
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("runs.db");
    let engine = runtime.block_on(Engine::open(&store)).unwrap();
    let queued = long(&engine).start(&()).key("long").queue();
    let run = runtime.block_on(async { queued.await }).unwrap();

    let mut logreel = Command::new(env!("CARGO_BIN_EXE_logreel"));
    logreel.args(["log", &run.id().to_string(), "--follow", "--json"]);
    let mut follower = Child::listen(logreel.env("LOGREEL_STORE", &store), "");
    let mut lines = vec![follower.next().expect("event 1 is there already")];
    let writer = Child::spawn(&mut again(&[], NAME, "write", folder.path()));

    let brief = engine.task("brief", |ctx: Ctx, n: u64| async move {
        let work = || async { Ok::<_, TaskError>(n) };
        ctx.step("only").run(work).await
    });
    let mut deleted = 0;
    loop {
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
        match follower.next() {
            Some(line) => lines.push(line),
            None => break,
        }
        lines.extend(follower.during(Duration::ZERO));
    }
    let (_, status) = follower.rest();
    assert!(status.success(), "{status}");
    writer.finish();

    let head = runtime.block_on(run.entry()).unwrap().row.head;
    assert!(head.seq.0 > EVENTS);
    let events: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let seqs: Vec<u64> = events
        .iter()
        .map(|it| it["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(
        seqs,
        (1..=head.seq.0).collect::<Vec<_>>(),
        "all, in order, once"
    );
    let of_kind = |kind: &str| events.iter().filter(|it| it["kind"] == kind).count();
    assert_eq!(of_kind("step.finished") as u64, EVENTS);
    let last = events.last().unwrap();
    assert_eq!(last["kind"], "run.completed");
    assert_eq!(last["digest"], head.digest.to_string());
    assert!(deleted > 10, "only {deleted} runs were deleted meanwhile");
    runtime.block_on(engine.close()).unwrap();
    println!(
        "{} events printed, {deleted} other runs deleted meanwhile",
        lines.len()
    );
}
