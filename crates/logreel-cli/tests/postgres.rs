//! The binary on a store that many machines share: real processes on the server that `LOGREEL_TEST_POSTGRES`
//! names, each test in a schema of its own.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::process::Command;

use common::project::{Project, Running};
use common::{Ran, ran};
use logreel::Env as _;
use logreel::store::SystemEnv;
use rustix::process::Signal;
use serde_json::Value;

const PASSWORD: &str = "hunter2";

const SPEC: &str = r#"
name = "three"
[[step]]
id = "first"
run = "echo $LOGREEL_KEY >> effects-first; echo 1"
[[step]]
id = "middle"
needs = ["first"]
run = "echo $LOGREEL_KEY >> effects-middle; [ -e go ] || { echo here > began; sleep 600; }; echo 2"
[[step]]
id = "last"
needs = ["middle"]
effect = "write"
run = "echo $LOGREEL_KEY >> effects-last; echo done"
"#;

/// A project whose store is a schema of its own.
struct Yard {
    project: Project,
    url: String,
    notes: tempfile::TempDir,
}

impl Yard {
    fn new(spec: &str) -> Self {
        let server = std::env::var("LOGREEL_TEST_POSTGRES")
            .expect("LOGREEL_TEST_POSTGRES names a database to test on");
        let schema = format!("t{:016x}", SystemEnv.random_u64());
        let and = if server.contains('?') { '&' } else { '?' };
        // Whoever is trusted is not asked for the password; it must not be seen all the same.
        let server = server.replacen("postgres@", &format!("postgres:{PASSWORD}@"), 1);
        assert!(
            server.contains(PASSWORD),
            "the user of {server} is postgres"
        );
        Self {
            project: Project::new(spec),
            url: format!("{server}{and}options=-csearch_path%3D{schema}"),
            notes: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self) -> Command {
        let mut command = self.project.std_command();
        command
            .env("LOGREEL_STORE", &self.url)
            .env("XDG_RUNTIME_DIR", self.notes.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        let ran = ran(assert_cmd::Command::from_std(self.command())
            .timeout(std::time::Duration::from_secs(60))
            .args(args));
        for said in [&ran.out, &ran.err] {
            assert!(!said.contains(PASSWORD), "{args:?} told it: {said}");
        }
        ran
    }

    /// What a verb that must succeed prints.
    fn said(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran.out.trim_end().to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[args, &["--json"]].concat())).unwrap()
    }

    fn start(&self, args: &[&str], until: &str) -> Running {
        let mut running = self.project.start_with(self.command(), args);
        running.until(until);
        running
    }

    /// A statement in the yard's own schema, by PostgreSQL's own client.
    fn sql(&self, sql: &str) -> String {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        let ran = psql.arg(&self.url).output().expect("psql is there");
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{sql}: {err}");
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    fn lines(&self, name: &str) -> usize {
        self.project.read(name).lines().count()
    }
}

#[test]
fn a_worker_that_is_killed_on_postgres_is_followed_by_another_and_every_verb_finds_the_run() {
    let yard = Yard::new(SPEC);
    yard.project.pipe("began");
    let none = yard.run(&["ls"]);
    assert_eq!(none.code, 4, "a reader makes no store: {}", none.err);
    assert!(none.err.contains("there is no store at postgres://"));

    let worker = yard.start(&["worker"], "driving up to 8 runs of postgres://");
    let queued = yard.run(&["run", "w.toml", "--detach", "--label", "ci=yes"]);
    assert_eq!(queued.code, 0, "{}", queued.err);
    assert!(queued.err.contains("left to the worker"), "{}", queued.err);
    let run = queued.out.trim();
    // A pipe: reading it waits for the step.
    assert_eq!(yard.project.read("began"), "here\n");
    let shown = yard.json(&["show", run]);
    assert_eq!(shown["status"], "executing");
    assert_eq!(shown["orphaned"], false);
    worker.kill();
    let shown = yard.json(&["show", run]);
    assert_eq!(shown["orphaned"], true, "known at once on its host");
    yard.project.write("go", "");
    let next = yard.start(&["worker", "--concurrency", "2"], "taken again");
    assert_eq!(yard.said(&["wait", run]), "done");
    next.signal(Signal::TERM);
    assert_eq!(next.end().code, 143);
    assert_eq!(
        (
            yard.lines("effects-first"),
            yard.lines("effects-middle"),
            yard.lines("effects-last")
        ),
        (1, 2, 1)
    );
    let keys = yard.project.read("effects-middle");
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!(keys[0], keys[1]);

    let listed = yard.json(&["ls", "--label", "ci=yes"]);
    assert_eq!(listed["items"][0]["id"], run);
    assert_eq!(listed["items"][0]["status"], "completed");
    assert_eq!(yard.said(&["show", "@last", "--output"]), "done");
    assert!(yard.said(&["log", run]).contains("run.completed"));
    yard.said(&["verify"]);
    assert_eq!(yard.json(&["stats"])["runs"], 1);
    let looked = yard.json(&["doctor"]);
    assert_eq!(looked["problems"], serde_json::json!([]));
    assert!(looked["postgresql"].is_string());
    let refused = yard.run(&["backup", "copy.db"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.err.contains("pg_dump"), "{}", refused.err);

    // To a file and back, in another store of the same server.
    yard.said(&["export", run, "--format", "reel", "-o", "run.reel"]);
    let other = Yard::new(SPEC);
    let file = yard.project.path("run.reel");
    assert_eq!(
        other
            .said(&["import", file.to_str().unwrap()])
            .lines()
            .next(),
        Some(run)
    );
    assert_eq!(other.said(&["show", run, "--output"]), "done");
    yard.said(&["prune", "--keep-last", "0"]);
    assert_eq!(yard.json(&["stats"])["runs"], 0);
}

#[test]
fn a_detached_run_on_postgres_has_a_process_of_its_own_that_cancel_ends() {
    let yard = Yard::new(SPEC);
    yard.project.pipe("began");
    let run = yard.said(&["run", "w.toml", "--detach"]);
    assert_eq!(yard.project.read("began"), "here\n");
    let pid = yard.json(&["show", &run])["driver"]["pid"].to_string();
    let seen = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(
        seen.contains("drive-detached") && !seen.contains(PASSWORD),
        "{seen:?}"
    );
    let following = yard.project.start_with(yard.command(), &["wait", &run]);
    yard.said(&["cancel", &run, "--reason", "enough"]);
    assert_eq!(following.end().code, 130);
    common::kill::until("it left", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    });
    let shown = yard.json(&["show", &run]);
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&"cancelled".into(), &"enough".into())
    );
    assert!(!yard.project.path("effects-last").exists());
    for file in std::fs::read_dir(yard.notes.path().join("logreel")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
fn ten_processes_that_migrate_an_empty_database_at_once_on_postgres_all_find_it_whole() {
    let yard = Yard::new(SPEC);
    let would = yard.json(&["migrate", "--dry-run"]);
    let (known, pending) = (would["known"].as_u64().unwrap(), &would["migrations"]);
    assert_eq!(would["found"], Value::Null);
    assert_eq!(pending.as_array().unwrap().len() as u64, known);
    assert_eq!(pending[0]["number"], 1);
    assert_eq!(yard.run(&["ls"]).code, 4, "a dry run makes nothing");
    let start = |n: usize| {
        // Half of them come with a run, half only to migrate.
        let queued = [
            "run",
            "w.toml",
            "--label",
            "none=here",
            "--key",
            &n.to_string(),
        ];
        let args: &[&str] = if n < 5 { &["migrate"] } else { &queued };
        yard.project.start_with(yard.command(), args)
    };
    yard.project.write("go", "");
    let all: Vec<Running> = (0..10).map(start).collect();
    for (n, process) in all.into_iter().enumerate() {
        let ended = process.end();
        assert_eq!(ended.code, 0, "process {n}: {}", ended.err);
    }
    assert_eq!(yard.json(&["stats"])["runs"], 5);
    let done = yard.json(&["migrate"]);
    assert_eq!(
        (&done["found"], &done["migrations"]),
        (&known.into(), &serde_json::json!([]))
    );

    // A newer build was here.
    let newer = known + 7;
    yard.sql(&format!(
        "INSERT INTO logreel_migrations (version) VALUES ({newer})"
    ));
    for args in [
        &["migrate", "--dry-run"][..],
        &["migrate"],
        &["ls"],
        &["worker"],
        &["run", "w.toml"],
    ] {
        let refused = yard.run(args);
        assert_eq!(refused.code, 4, "{args:?}: {}", refused.err);
        let both = format!("has store schema {newer}, this build knows up to {known}");
        assert!(refused.err.contains(&both), "{args:?}: {}", refused.err);
    }
}
