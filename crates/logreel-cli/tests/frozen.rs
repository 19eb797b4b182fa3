//! A driver that is frozen past its lease and woken again: another has taken over, and it does no more
//! harm (issue: workflows; SEMANTICS 20 to 22).
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use common::kill::{marked, until};
use common::project::{Project, Running};
use rustix::process::Signal;

/// The first attempt tells its process by a pipe and hangs; `pay` must happen once.
const SPEC: &str = r#"
name = "frozen"
[[step]]
id = "work"
run = "echo $LOGREEL_KEY >> worked; if [ -e again ]; then echo done; else touch again; echo $$ > pid; HANG; fi"
[[step]]
id = "pay"
needs = ["work"]
effect = "write"
run = "echo $LOGREEL_KEY >> paid; echo paid"
"#;

fn lines(project: &Project, name: &str) -> Vec<String> {
    project.read(name).lines().map(Into::into).collect()
}

/// `hang` is what the first attempt's command does while its driver is frozen.
fn freeze(hang: &str) {
    let project = Project::new(&SPEC.replace("HANG", hang));
    std::fs::create_dir(project.path(".logreel")).unwrap();
    project.write(".logreel/config.toml", "lease = \"1s\"\n");
    project.pipe("pid");
    project.pipe("go");
    let frozen = project.start(&["run", "w.toml"], "work started");
    let command = project.read("pid");
    while !stopped_beside_the_lock(&project, &frozen) {
        frozen.signal(Signal::CONT);
    }
    if hang.contains("go") {
        // The command goes on, and ends without anyone who hears it.
        project.write("go", "on");
    }

    // It lives, so nobody takes over at once; then its lease runs out.
    let resumed = project.run(&["resume", "@last"]);
    assert_eq!(
        (resumed.code, resumed.out.as_str()),
        (0, "paid\n"),
        "{}",
        resumed.err
    );
    assert!(resumed.err.contains("which is stopped"), "{}", resumed.err);
    let run = project.json(&["show", "@last"]);
    let mark = format!("LOGREEL_RUN={}", run["id"].as_str().unwrap());
    assert_eq!(
        marked(&mark),
        Vec::<String>::new(),
        "no command is left of {command}"
    );

    let before = project.run(&["log", "@last", "--json"]).out;
    frozen.signal(Signal::CONT);
    // It does not drive any more: it hears how the run ended, as whoever only watches.
    let woken = frozen.end();
    assert!(!woken.err.contains("panicked"), "{}", woken.err);
    until("no command of the woken one is left", || {
        marked(&mark).is_empty()
    });

    // Refused at its next append: the log is as it was, and its epochs never went back.
    assert_eq!(project.run(&["log", "@last", "--json"]).out, before);
    assert_eq!(project.json(&["show", "@last"])["status"], "completed");
    assert_eq!(project.run(&["verify", "@last"]).code, 0);
    // Effects by their class: `work` is idempotent and showed one key, the write happened once.
    let worked = lines(&project, "worked");
    assert_eq!((worked.len(), &worked[0]), (2, &worked[1]));
    assert_eq!(lines(&project, "paid").len(), 1);
}

/// Stops it. False when it was in the middle of a write: then everybody waits for it, and nobody can take
/// over. The docs name that.
fn stopped_beside_the_lock(project: &Project, running: &Running) -> bool {
    running.signal(Signal::STOP);
    until("it is stopped", || running.is_stopped());
    let store = rusqlite::Connection::open(project.path(".logreel/runs.db")).unwrap();
    store.busy_timeout(std::time::Duration::ZERO).unwrap();
    store.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
}

#[test]
fn a_frozen_driver_whose_command_hangs_is_taken_over_and_refused_when_it_wakes() {
    freeze("exec sleep 1000");
}

#[test]
fn a_frozen_driver_whose_command_has_ended_meanwhile_is_refused_when_it_wakes() {
    freeze("cat go");
}
