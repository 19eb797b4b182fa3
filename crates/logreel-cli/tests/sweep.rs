//! The binary is killed at every commit it makes, and between each effect and its record. Whoever goes
//! on comes to the same end, and no write happens twice; that is counted in files only the steps write.
//!
//! `LOGREEL_BIN=target/release/logreel` sweeps that one. One line is printed for each place.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::kill::{At, End, killed_at, marked, until};
use common::project::Project;
use common::run_id;
use serde_json::Value;
use tempfile::TempDir;

const WRITES: [&str; 6] = ["sent-x", "sent-y", "keep", "once", "publish", "bare"];

/// What each step has noted: its key, once for each time it ran.
type Effects = BTreeMap<String, Vec<String>>;

/// A folder with the workflow, and a copy of it from before each phase.
struct Scene {
    project: Project,
    before: Vec<TempDir>,
    mark: String,
    digest: String,
    effects: Effects,
}

/// A process that drives the run: until it waits for a signal, for an answer, until its end.
fn phases() -> [(Vec<String>, i32); 3] {
    let run = run_id(1).to_string();
    let words = |text: &str| {
        text.replace("RUN", &run)
            .split(' ')
            .map(Into::into)
            .collect()
    };
    [
        (words("run w.toml --id RUN -q"), 3),
        (words("signal RUN go 7 --resume -q"), 3),
        (words("answer RUN --approve --resume -q"), 0),
    ]
}

impl Scene {
    /// Plays it undisturbed.
    fn new() -> Self {
        let project = Project::new(include_str!("sweep/w.toml"));
        project.write("child.toml", include_str!("sweep/child.toml"));
        project.write("keeper.toml", include_str!("sweep/keeper.toml"));
        project.write("keeper.jsonl", include_str!("sweep/keeper.jsonl"));
        std::fs::create_dir(project.path("effects")).unwrap();
        let mark = format!("SWEEP={}", project.0.path().display());
        let mut scene = Self {
            project,
            before: Vec::new(),
            mark,
            digest: String::new(),
            effects: Effects::new(),
        };
        for (args, code) in phases() {
            let copy = tempfile::tempdir().unwrap();
            copy_all(scene.project.0.path(), copy.path());
            scene.before.push(copy);
            let ran = scene.command(&args).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(code), "{args:?}: {said}");
        }
        let run = scene.show().unwrap();
        assert_eq!(run["status"], "completed");
        let events = run["event_count"].as_u64().unwrap();
        assert!(events >= 40, "{events} events");
        scene.digest = run["final_state_digest"].as_str().unwrap().to_owned();
        scene.effects = scene.read_effects();
        for write in WRITES {
            assert_eq!(scene.effects[write].len(), 1, "{write}");
        }
        scene
    }

    fn command(&self, args: &[String]) -> Command {
        let mut command = self.project.std_command();
        let (name, value) = self.mark.split_once('=').unwrap();
        command.args(args).env(name, value);
        command
    }

    fn run(&self, args: &[&str]) -> i32 {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let ran = self.command(&args).output().unwrap();
        let code = ran.status.code().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(matches!(code, 0 | 3), "{args:?} exits {code}: {said}");
        code
    }

    /// The run, if it is there by now.
    fn show(&self) -> Option<Value> {
        let args = [
            "show".to_owned(),
            run_id(1).to_string(),
            "--json".to_owned(),
        ];
        let ran = self.command(&args).output().unwrap();
        match ran.status.code() {
            Some(0) => Some(serde_json::from_slice(&ran.stdout).unwrap()),
            // No such run, no store.
            Some(2 | 4) => None,
            _ => panic!("{}", String::from_utf8_lossy(&ran.stderr)),
        }
    }

    fn read_effects(&self) -> Effects {
        let files = std::fs::read_dir(self.project.path("effects")).unwrap();
        let read = files.map(|file| {
            let file = file.unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, text.lines().map(Into::into).collect())
        });
        read.collect()
    }

    /// The last event that is in the store.
    fn last_event(&self) -> String {
        let last = || -> rusqlite::Result<String> {
            let store = rusqlite::Connection::open(self.project.path(".logreel/runs.db"))?;
            let sql =
                "SELECT kind || ifnull('(' || coalesce(body ->> 'step', body ->> 'wait', body ->> 'call') || ')', '')
                FROM events ORDER BY pos DESC LIMIT 1";
            store.query_row(sql, [], |row| row.get(0))
        };
        last().unwrap_or_else(|_| "nothing".to_owned())
    }

    /// Does what a person would until the run has ended; says whether a write was in doubt.
    fn to_the_end(&self) -> bool {
        let run = run_id(1).to_string();
        let mut was_in_doubt = false;
        for _ in 0..10 {
            let Some(shown) = self.show() else {
                self.run(&["run", "w.toml", "--id", &run, "-q"]);
                continue;
            };
            if shown["status"] == "completed" {
                return was_in_doubt;
            }
            self.run(&["resume", &run, "-q"]);
            let shown = self.show().unwrap();
            for wait in shown["waiting"].as_array().unwrap() {
                let then = match wait["kind"].as_str().unwrap() {
                    "signal" => vec!["signal", &run, "go", "7"],
                    "approval" => vec!["answer", &run, "--approve"],
                    "in_doubt" => {
                        assert_eq!(wait["step"], "bare", "the others have `reconcile`");
                        was_in_doubt = true;
                        match self.read_effects().contains_key("bare") {
                            true => vec!["resolve", &run, "bare", "--returned", "\"bare\""],
                            false => vec!["resolve", &run, "bare", "--retry"],
                        }
                    }
                    other => panic!("it waits for {other}: {shown}"),
                };
                self.run(&[&then[..], &["--resume", "-q"]].concat());
            }
        }
        panic!("it never ended: {}", self.show().unwrap());
    }

    /// Kills one phase at its nth commit, goes on, and looks at everything. `None` when the phase has
    /// fewer commits.
    fn at(&self, phase: usize, at: At, nth: usize) -> Option<Found> {
        std::fs::remove_dir_all(self.project.0.path()).unwrap();
        copy_all(self.before[phase].path(), self.project.0.path());
        let (args, code) = &phases()[phase];
        let wal = self.project.path(".logreel/runs.db-wal");
        let end = killed_at(&self.command(args), &wal, at, nth);
        if let End::Ended(ended) = end {
            assert_eq!(ended, *code, "undisturbed");
            return None;
        }
        let last = self.last_event();
        let was_in_doubt = self.to_the_end();

        let run = self.show().unwrap();
        assert_eq!(
            run["final_state_digest"], self.digest,
            "after {last}: {run}"
        );
        let (effects, mut repeated) = (self.read_effects(), 0);
        assert!(effects.keys().eq(self.effects.keys()), "{effects:?}");
        for (step, keys) in &effects {
            assert!(keys.iter().all(|key| *key == keys[0]), "{step}: {keys:?}");
            repeated += keys.len() - self.effects[step].len().min(keys.len());
        }
        for write in WRITES {
            assert_eq!(effects[write].len(), 1, "after {last}: {write}");
        }
        self.run(&["verify"]);
        until("no process is left", || marked(&self.mark).is_empty());
        let kill = match at {
            At::Synced => "after",
            At::Unwritten => "before what follows",
        };
        let doubt = if was_in_doubt {
            "in doubt, resolved, "
        } else {
            ""
        };
        println!(
            "phase {} boundary {nth}: killed {kill} {last}; resumed: {doubt}completed, digest equal, \
             writes {}/{}, {repeated} repeats with the same key, no process left",
            phase + 1,
            WRITES.len(),
            WRITES.len(),
        );
        Some(Found {
            was_in_doubt,
            repeated,
        })
    }

    /// Every commit of a phase.
    fn sweep(&self, phase: usize, at: At) -> Vec<Found> {
        (1..).map_while(|nth| self.at(phase, at, nth)).collect()
    }
}

struct Found {
    was_in_doubt: bool,
    repeated: usize,
}

fn sweep(at: At) {
    // The first phase takes as long as both others.
    let found: Vec<Found> = std::thread::scope(|scope| {
        let first = scope.spawn(|| Scene::new().sweep(0, at));
        let rest = scope.spawn(|| {
            let scene = Scene::new();
            let second = scene.sweep(1, at);
            second.into_iter().chain(scene.sweep(2, at)).collect()
        });
        let rest: Vec<Found> = rest.join().unwrap();
        first.join().unwrap().into_iter().chain(rest).collect()
    });
    let doubts = found.iter().filter(|it| it.was_in_doubt).count();
    let repeated: usize = found.iter().map(|it| it.repeated).sum();
    println!(
        "{at:?}: {} boundaries, {doubts} in doubt, no write twice, {repeated} repeats of what may be",
        found.len()
    );
    assert!(found.len() >= 40, "{} boundaries", found.len());
    assert!(
        doubts > 0,
        "the write without `reconcile` was never in doubt"
    );
}

#[test]
fn killed_at_every_commit_it_comes_to_the_same_end() {
    sweep(At::Synced);
}

#[test]
fn killed_between_each_effect_and_its_record_no_write_happens_twice() {
    sweep(At::Unwritten);
}

fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    let mut copy = Command::new("cp");
    let copied = copy.arg("-aT").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}
