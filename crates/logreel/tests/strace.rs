//! One fsync per durable step, as the kernel counts them.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod process;

use std::path::Path;

use logreel::*;
use process::{Child, again, role, runtime};

const STEPS: u64 = 1000;

async fn work(folder: &Path) {
    let engine = Engine::open(folder.join("runs.db")).await.unwrap();
    let task = engine.task("steps", |ctx: Ctx, (): ()| async move {
        for step in 0..STEPS {
            let work = move || async move { Ok::<_, TaskError>(step) };
            ctx.step(("count", step)).run(work).await?;
        }
        Ok(STEPS)
    });
    let run = task.start(&()).await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(STEPS));
    engine.close().await.unwrap();
}

/// The sum of the calls in strace's table: `% time  seconds  usecs/call  calls  [errors]  syscall`.
fn syncs(table: &str) -> u64 {
    let calls = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let sync = matches!(words.last(), Some(&"fsync" | &"fdatasync"));
        sync.then(|| words[3].parse::<u64>().unwrap())
    };
    table.lines().filter_map(calls).sum()
}

#[test]
fn strace_counts_one_sync_per_durable_step() {
    if let Some((_, folder)) = role() {
        return runtime().block_on(work(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("syncs");
    let wrapper = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o"];
    let mut wrapper: Vec<_> = wrapper.map(Into::into).into();
    wrapper.push(table.clone().into_os_string());
    let name = "strace_counts_one_sync_per_durable_step";
    Child::spawn(&mut again(&wrapper, name, "work", folder.path())).finish();
    let table = std::fs::read_to_string(table).unwrap();
    let syncs = syncs(&table);
    println!("{STEPS} sequential steps: {syncs} syncs\n{table}");
    assert!(
        (STEPS..=STEPS + 100).contains(&syncs),
        "{syncs} syncs\n{table}"
    );
}
