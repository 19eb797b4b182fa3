//! A worker that is killed leaves its command running; whoever takes the run over stops it first.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod process;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use logreel::store::memory;
use logreel::store::{ClaimOutcome, Owner, OwnerId, SystemEnv};
use logreel::*;
use process::{Child, again, role, say};
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

/// As [`process::runtime`], with what processes need.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Whether anything of the group runs. What was killed belongs to nobody here, so that a zombie may
/// stay where nobody collects them.
fn runs(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        fields.len() > 2 && fields[2] == group.as_raw_pid().to_string() && fields[0] != "Z"
    })
}

/// The first driver's command never ends by itself and does not listen to TERM; its group also has a
/// member that holds nothing of it. The next driver says whether any of that runs when its function is
/// called, and runs a command that ends.
fn task(engine: &Engine, folder: &Path) -> Task<(), String> {
    let folder = folder.to_owned();
    engine.task("commanding", move |ctx: Ctx, (): ()| {
        let folder = folder.clone();
        async move {
            if let Some(group) = group_of(&folder) {
                say(&format!("running {}", runs(group)));
            }
            let shell = "if [ -e group ]; then echo done; exit; fi; trap '' TERM; \
                         sleep 1000 >/dev/null 2>&1 & \
                         echo $$ > group.new; mv group.new group; \
                         while :; do sleep 0.05; done";
            let work = || testing::command(&ctx, shell, &folder, false);
            let value = ctx.step("it").run(work).await?;
            Ok(value.to_string())
        }
    })
}

fn group_of(folder: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(folder.join("group")).ok()?;
    Pid::from_raw(text.trim().parse().unwrap())
}

fn notes(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.join("runs.db.owners")).unwrap();
    let paths = files.flatten().map(|file| file.path());
    paths
        .filter(|path| path.to_string_lossy().ends_with(".groups"))
        .collect()
}

async fn drive(folder: &Path, lease: Duration) {
    let engine = Engine::builder()
        .sqlite(folder.join("runs.db"))
        .lease(lease)
        .build()
        .await
        .unwrap();
    let run = task(&engine, folder).start(&()).key("one").await.unwrap();
    say("driving");
    let outcome = run.wait().await.unwrap();
    say(&format!("{outcome:?}"));
    engine.close().await.unwrap();
}

/// Waits until the command has said its group; nothing else tells this process.
fn until_group(folder: &Path) -> Pid {
    loop {
        if let Some(group) = group_of(folder) {
            return group;
        }
        std::thread::yield_now();
    }
}

/// Stops a worker, though not while it holds the store's write lock: nobody could take anything over.
fn freeze(worker: Pid, folder: &Path) {
    let store = rusqlite::Connection::open(folder.join("runs.db")).unwrap();
    store.busy_timeout(Duration::ZERO).unwrap();
    loop {
        kill_process(worker, Signal::STOP).unwrap();
        // A signal is on its way when it was sent; until each thread has it, one may take the lock.
        while !is_stopped(worker) {
            std::thread::yield_now();
        }
        if store.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
            return;
        }
        kill_process(worker, Signal::CONT).unwrap();
        std::thread::yield_now();
    }
}

/// Whether every thread of the process is stopped.
fn is_stopped(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_pid())).unwrap();
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|it| it.1.starts_with('T'))
    })
}

const LEASE: Duration = Duration::from_secs(10);

#[test]
fn a_killed_workers_command_is_stopped_before_the_run_goes_on() {
    const NAME: &str = "a_killed_workers_command_is_stopped_before_the_run_goes_on";
    if let Some((_, folder)) = role() {
        return runtime().block_on(drive(&folder, LEASE));
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut first = Child::spawn(&mut again(&[], NAME, "first", folder));
    assert_eq!(first.next().as_deref(), Some("driving"));
    let group = until_group(folder);
    first.kill();
    assert!(
        runs(group),
        "SIGKILL of a worker does not reach its commands"
    );
    assert_eq!(notes(folder).len(), 1);

    let said = Child::spawn(&mut again(&[], NAME, "second", folder)).finish();
    assert!(said.contains(&"running false".to_owned()), "{said:?}");
    assert!(
        said.contains(&r#"Completed("\"done\"")"#.to_owned()),
        "{said:?}"
    );
    assert!(!runs(group));
    assert!(
        notes(folder).is_empty(),
        "the dead owner's file is gone with its groups"
    );
}

#[test]
fn a_frozen_workers_command_is_stopped_by_whoever_took_the_lease() {
    const NAME: &str = "a_frozen_workers_command_is_stopped_by_whoever_took_the_lease";
    let lease = Duration::from_secs(1);
    if let Some((_, folder)) = role() {
        return runtime().block_on(drive(&folder, lease));
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut first = Child::spawn(&mut again(&[], NAME, "first", folder));
    assert_eq!(first.next().as_deref(), Some("driving"));
    let group = until_group(folder);
    let frozen = Pid::from_raw(first.id()).unwrap();
    freeze(frozen, folder);

    let said = Child::spawn(&mut again(&[], NAME, "second", folder)).finish();
    assert!(said.contains(&"running false".to_owned()), "{said:?}");
    assert!(
        said.contains(&r#"Completed("\"done\"")"#.to_owned()),
        "{said:?}"
    );
    assert!(!runs(group));

    // Thawed, it finds that it lost the run, sees how that ended, and leaves nothing.
    kill_process(frozen, Signal::CONT).unwrap();
    let said = first.finish();
    assert!(
        said.contains(&r#"Completed("\"done\"")"#.to_owned()),
        "{said:?}"
    );
    assert!(notes(folder).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_waits_a_lease_for_a_lost_host_once_and_not_again_after_each_wait() {
    let lease = Duration::from_secs(2);
    let options = memory::Options {
        lease,
        ..memory::Options::default()
    };
    let store = Arc::new(MemoryStore::with_options(Arc::new(SystemEnv), options));
    let engine = Engine::builder().store(Arc::<MemoryStore>::clone(&store));
    let engine = engine.lease(lease).build().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_owned();
    let task: Task<(), ()> = engine.task("twice", move |ctx: Ctx, (): ()| {
        let here = here.clone();
        async move {
            let command = || testing::command(&ctx, "echo 1", &here, false);
            ctx.step("first").run(command).await?;
            ctx.signal("go").await?;
            ctx.step("second").run(command).await?;
            Ok(())
        }
    });
    // Someone of another host takes it, and is never heard of again.
    let run = task.start(&()).queue().await.unwrap();
    let lost = Owner {
        id: OwnerId(77),
        host: "elsewhere".to_owned(),
        host_name: "elsewhere".to_owned(),
        pid: 1,
    };
    store.join(&lost).await.unwrap();
    let claimed = store.claim(&run.id(), lost.id).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");

    let run = task.start(&()).id(run.id()).await.unwrap();
    let parked = |entry: &Entry| entry.driver.is_none() && !entry.row.facts.waits.is_empty();
    let mut bell = store.watch(&run.id());
    while !parked(&run.entry().await.unwrap()) {
        assert!(bell.rung().await);
    }
    engine.signal(&run.id(), "go", &()).await.unwrap();
    assert_eq!(run.wait().await.unwrap(), Outcome::Completed(()));
    let mut waited = Vec::new();
    let mut taken = None;
    let mut events = run.events(Seq::FIRST);
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        match event.body {
            Body::RunResumed(_) => taken = Some(event.at),
            Body::StepFinished(_) => waited.push(event.at.since(taken.unwrap())),
            _ => {}
        }
    }
    assert!(waited[0] >= lease, "it may still run there: {waited:?}");
    assert!(waited[1] < lease, "one lease was enough: {waited:?}");
    engine.close().await.unwrap();
}
