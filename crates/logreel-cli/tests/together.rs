//! Several processes, parents and children, and files that change: whose a run is and what it goes on
//! with.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use common::project::Project;
use common::ran;

/// Blocks in its first attempt, where it tells its process by a pipe, and is done in its second.
const SLOW: &str = r#"
name = "slow"
[[step]]
id = "work"
run = "if [ -e again ]; then printf done; else touch again; echo $$ > pid; sleep 1000; fi"
effect = "read"
"#;

const APPROVAL: &str = r#"
name = "publish"
[[step]]
id = "ok"
wait = "approval"
prompt = "Publish?"
[[step]]
id = "send"
needs = ["ok"]
run = "cat"
input = "{{ steps.ok.output.by }}"
effect = "read"
"#;

#[test]
fn who_answers_is_recorded_whatever_the_environment_says() {
    let uid = format!("uid {}", rustix::process::getuid());
    for (names, by) in [
        (vec![("LOGNAME", "eve")], "eve"),
        (vec![("USER", ""), ("LOGNAME", "")], &uid),
        (vec![], &uid),
    ] {
        let project = Project::new(APPROVAL);
        assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
        let mut command = project.command();
        command.env_remove("USER").env_remove("LOGNAME");
        command.envs(names);
        let answer = ["answer", "@last", "--approve", "--resume", "-q"];
        let answered = ran(command.args(answer));
        assert_eq!((answered.code, answered.out.trim_end()), (0, by));
    }
}

#[test]
fn a_worker_in_memory_is_refused() {
    let project = Project::new(SLOW);
    let ran = project.run(&["worker", "--store", "memory:"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
    assert!(ran.err.contains("error: a store in memory"), "{}", ran.err);
}

#[test]
fn a_signal_that_nobody_awaits_is_only_kept() {
    let project = Project::new("name = 's'\n[[step]]\nid = 'go'\nwait = 'signal'\nname = 'go'\n");
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let kept = project.run(&["signal", "@last", "other"]);
    assert_eq!(
        (kept.code, kept.err.lines().count()),
        (0, 1),
        "{}",
        kept.err
    );
    assert!(kept.err.contains("it is kept"), "{}", kept.err);
    let awaited = project.run(&["signal", "@last", "go"]);
    assert!(
        awaited.err.contains("no worker is there"),
        "{}",
        awaited.err
    );
}
