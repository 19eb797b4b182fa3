//! The example with `task` steps is killed at every commit, and between each effect and its record.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "../examples/task_steps.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod example;
#[path = "../../logreel-cli/tests/common/kill.rs"]
#[allow(dead_code, reason = "the binary's tests use all of it")]
mod kill;
mod process;

use std::path::Path;

use kill::{At, End, killed_at};
use process::{Child, again, role, runtime, say};

/// Runs the example to its end and gives its output.
fn finish(name: &str, folder: &Path) -> String {
    let said = Child::spawn(&mut again(&[], name, "work", folder)).finish();
    said.last().unwrap().clone()
}

fn digest(folder: &Path) -> Vec<u8> {
    let store = rusqlite::Connection::open(folder.join("runs.db")).unwrap();
    let sql = "SELECT final_state_digest FROM runs";
    store.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn lines(folder: &Path, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    text.lines().map(Into::into).collect()
}

fn sweep(name: &str, at: At) {
    if let Some((_, folder)) = role() {
        say(&runtime().block_on(example::work(folder)).unwrap());
        return;
    }
    let undisturbed = tempfile::tempdir().unwrap();
    assert_eq!(finish(name, undisturbed.path()), "12");
    let mut boundaries = 0;
    for nth in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let wal = folder.join("runs.db-wal");
        match killed_at(&again(&[], name, "work", folder), &wal, at, nth) {
            End::Killed => {}
            End::Ended(code) => {
                assert_eq!(code, 0);
                break;
            }
        }
        assert_eq!(finish(name, folder), "12");
        assert_eq!(digest(folder), digest(undisturbed.path()), "boundary {nth}");
        assert_eq!(lines(folder, "published").len(), 1, "boundary {nth}");
        println!("{at:?} {nth}: killed; resumed: completed, digest equal, writes 1/1");
        boundaries = nth;
    }
    assert!(boundaries >= 8, "{boundaries} boundaries");
}

#[test]
fn task_steps_killed_at_every_commit_come_to_the_same_end() {
    sweep(
        "task_steps_killed_at_every_commit_come_to_the_same_end",
        At::Synced,
    );
}

#[test]
fn task_steps_killed_between_each_effect_and_its_record_write_once() {
    sweep(
        "task_steps_killed_between_each_effect_and_its_record_write_once",
        At::Unwritten,
    );
}
