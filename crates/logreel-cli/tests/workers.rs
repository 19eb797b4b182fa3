//! Two workers on one file, one of them killed every so often: every run ends, every write happens once.
//!
//! `LOGREEL_LONG=1` makes it a minute and 200 runs.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::kill::{marked, until, within};
use common::project::Project;
use common::runtime;
use logreel::store::SystemEnv;
use logreel::workflow::Workflow;
use logreel::{Engine, Env as _};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};

const SPEC: &str = r#"
name = "parent"
[[step]]
id = "read"
effect = "read"
env = { N = "{{ input }}" }
run = "echo $LOGREEL_KEY >> effects/read-$N; sleep 0.2; echo $N"
[[step]]
id = "parts"
needs = ["read"]
map = ["a", "b"]
map_key = "{{ item }}"
env = { N = "{{ input }}-{{ item }}" }
run = "echo $LOGREEL_KEY >> effects/parts-$N; sleep 0.2"
[[step]]
id = "sub"
needs = ["parts"]
workflow = "child.toml"
input = "{{ input }}"
[[step]]
id = "publish"
needs = ["sub"]
effect = "write"
env = { N = "{{ input }}" }
run = "sleep 0.1; echo $LOGREEL_KEY >> effects/write-publish-$N; sleep 0.1; echo published"
reconcile = "grep -qx $LOGREEL_KEY effects/write-publish-$N || exit 10; echo published"
"#;

const CHILD: &str = r#"
name = "child"
[[step]]
id = "nap"
wait = "timer"
for = "20ms"
[[step]]
id = "send"
needs = ["nap"]
effect = "write"
env = { N = "{{ input }}" }
run = "sleep 0.1; echo $LOGREEL_KEY >> effects/write-send-$N; sleep 0.1; echo sent"
reconcile = "grep -qx $LOGREEL_KEY effects/write-send-$N || exit 10; echo sent"
"#;

struct Yard {
    project: Project,
    mark: String,
}

impl Yard {
    fn new() -> Self {
        let project = Project::new(SPEC);
        project.write("child.toml", CHILD);
        std::fs::create_dir(project.path("effects")).unwrap();
        let mark = format!("YARD={}", project.0.path().display());
        Self { project, mark }
    }

    /// Queues runs on the inputs 1, 2, and so on.
    fn queue(&self, runs: usize) {
        let folder = self.project.path(".logreel");
        std::fs::create_dir(&folder).unwrap();
        let (store, dir) = (folder.join("runs.db"), self.project.0.path());
        runtime().block_on(async {
            let engine = Engine::open(store).await.unwrap();
            let workflow = Workflow::read(self.project.path("w.toml")).unwrap();
            let workflow = engine.workflow(&workflow);
            for n in 1..=runs {
                let start = workflow.start(&n).dir(dir.to_string_lossy());
                start.queue().await.unwrap();
            }
            engine.close().await.unwrap();
        });
    }

    fn worker(&self, at_once: &str) -> Child {
        let (name, value) = self.mark.split_once('=').unwrap();
        let mut log = File::options();
        log.create(true).append(true);
        let log = log.open(self.project.path("worker.log")).unwrap();
        let mut command = self.project.std_command();
        command
            .args(["worker", "--concurrency", at_once])
            .env(name, value);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log).spawn().unwrap()
    }

    fn count(&self, what: &str) -> usize {
        let store = Connection::open(self.project.path(".logreel/runs.db")).unwrap();
        store.busy_timeout(Duration::from_secs(10)).unwrap();
        let sql = format!("SELECT count(*) FROM {what}");
        let count: i64 = store.query_row(&sql, [], |row| row.get(0)).unwrap();
        count.try_into().unwrap()
    }

    /// How often each step ran, by name; each always with the same key.
    fn effects(&self) -> BTreeMap<String, usize> {
        let files = std::fs::read_dir(self.project.path("effects")).unwrap();
        let read = files.map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            let keys: Vec<&str> = text.lines().collect();
            assert!(keys.iter().all(|key| *key == keys[0]), "{name}: {keys:?}");
            (name, keys.len())
        });
        read.collect()
    }
}

#[test]
fn every_run_ends_and_every_write_happens_once_though_workers_are_killed() {
    let is_long = std::env::var_os("LOGREEL_LONG").is_some();
    let (runs, at_least, at_once) = match is_long {
        true => (200, Duration::from_secs(60), "2"),
        false => (60, Duration::from_secs(12), "3"),
    };
    let yard = Yard::new();
    yard.queue(runs);
    let begun = SystemEnv.monotonic();
    let mut workers = [yard.worker(at_once), yard.worker(at_once)];
    let (mut kills, mut next_kill) = (0, begun + Duration::from_millis(1500));
    within(Duration::from_secs(280), "every run has ended", || {
        let now = SystemEnv.monotonic();
        if now >= next_kill && now < begun + at_least {
            let worker = &mut workers[kills % 2];
            worker.kill().unwrap();
            worker.wait().unwrap();
            *worker = yard.worker(at_once);
            kills += 1;
            next_kill = now + Duration::from_millis(2000);
        }
        yard.count("runs WHERE status IN ('completed', 'failed', 'cancelled')") == 2 * runs
            && yard.count("runs") == 2 * runs
    });
    let took = SystemEnv.monotonic() - begun;
    for worker in &mut workers {
        kill_process(Pid::from_child(worker), Signal::TERM).unwrap();
        // One that was only just started is ended by the signal itself.
        let ended = worker.wait().unwrap();
        assert!(
            ended.code() == Some(143) || ended.signal() == Some(15),
            "{ended}"
        );
    }
    until("no process is left", || marked(&yard.mark).is_empty());

    let said = yard.project.read("worker.log");
    assert_eq!(
        yard.count("runs WHERE status = 'completed'"),
        2 * runs,
        "{said}"
    );
    assert_eq!(yard.count("live WHERE owner IS NOT NULL"), 0);
    let effects = yard.effects();
    assert_eq!(effects.len(), 5 * runs);
    let (mut writes, mut repeats) = (0, 0);
    for (name, times) in &effects {
        if name.starts_with("write-") {
            assert_eq!(*times, 1, "{name}");
            writes += 1;
        } else {
            repeats += times - 1;
        }
    }
    assert_eq!(writes, 2 * runs);
    assert_eq!(yard.project.run(&["verify"]).code, 0);
    println!(
        "{runs} runs with a child each, {kills} workers killed in {took:.1?}: all completed, taken up again {} \
         times; {writes} writes once each, {} settled by `reconcile`; {repeats} repeats of what \
         may be, with the same key; no process left, no lease left",
        yard.count("events WHERE kind = 'run.resumed'"),
        yard.count("events WHERE kind = 'step.resolved'"),
    );
    assert!(kills >= 3, "it was over after {kills} kills");
}
