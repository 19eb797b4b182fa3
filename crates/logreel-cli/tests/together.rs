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
use common::{Ran, ran};
use rustix::process::Signal;
use serde_json::Value;

const PARENT: &str = r#"
name = "parent"
[[step]]
id = "sub"
workflow = "child.toml"
[[step]]
id = "end"
needs = ["sub"]
run = "cat"
input = "child: {{ steps.sub.output }}"
effect = "read"
"#;

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

fn parent_of(child: &str) -> Project {
    let project = Project::new(PARENT);
    project.write("child.toml", child);
    project.pipe("pid");
    project
}

fn changed() -> String {
    PARENT.replace("child: ", "new: ")
}

/// The only child there is.
fn child(project: &Project) -> Value {
    let runs = project.json(&["ls"])["items"].as_array().unwrap().clone();
    let is_child = |run: &&Value| run["agent"] != "parent";
    runs.iter().find(is_child).unwrap().clone()
}

/// What the last run waits for.
fn waits(project: &Project) -> Vec<String> {
    let run = project.json(&["show", "@last"]);
    let waits = run["waiting"].as_array().unwrap().iter();
    waits
        .map(|wait| wait["kind"].as_str().unwrap().to_owned())
        .collect()
}

/// Whoever drives the last run gives its lease back soon; each look is a process of its own.
fn until_parked(project: &Project) {
    while !project.json(&["show", "@last"])["driver"].is_null() {}
}

fn is_refused(ran: &Ran) {
    assert_eq!((ran.code, ran.out.as_str()), (5, ""), "{}", ran.err);
    assert!(
        ran.err.contains("--stored-spec") && ran.err.contains("--accept-spec-change"),
        "{}",
        ran.err
    );
}

#[test]
fn ctrl_c_of_who_only_watches_pauses_nothing() {
    let project = parent_of(SLOW);
    let args = ["run", "w.toml", "--key", "zz"];
    let drives = project.start(&args, "sub started");
    project.read("pid");
    until_parked(&project);
    let watches = project.start(&args, "started");
    watches.signal(Signal::INT);
    let watched = watches.end();
    assert_eq!((watched.code, watched.out.as_str()), (130, ""));
    assert!(watched.err.contains(" goes on: "), "{}", watched.err);
    assert_eq!(waits(&project), ["child"]);
    assert!(!child(&project)["driver"].is_null());

    drives.signal(Signal::INT);
    let driven = drives.end();
    assert_eq!(driven.code, 130, "{}", driven.err);
    assert!(driven.err.contains(" is paused: "), "{}", driven.err);
    assert!(waits(&project).contains(&"paused".to_owned()));
}

/// Nobody drives a run that waits for a time, but somebody started it and somebody only looked.
#[test]
fn ctrl_c_in_a_long_wait_pauses_only_what_was_started_here() {
    let project = Project::new("name = 'w'\n[[step]]\nid = 'nap'\nwait = 'timer'\nfor = '1h'\n");
    let args = ["run", "w.toml", "--key", "zz"];
    let started = project.start(&args, "nap");
    until_parked(&project);
    let watches = project.start(&args, "nap");
    watches.signal(Signal::INT);
    let watched = watches.end();
    assert_eq!(watched.code, 130);
    assert!(watched.err.contains(" stays as it is"), "{}", watched.err);
    assert_eq!(waits(&project), ["timer"]);
    started.signal(Signal::INT);
    let ended = started.end();
    assert!(ended.err.contains(" is paused: "), "{}", ended.err);
}

#[test]
fn resume_of_a_child_heeds_the_spec_of_its_root() {
    let project = parent_of(APPROVAL);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let id = child(&project)["id"].as_str().unwrap().to_owned();
    project.write("w.toml", &changed());
    is_refused(&project.run(&["resume", &id]));
    // The answer is kept; only going on is refused.
    is_refused(&project.run(&["answer", &id, "--approve", "--resume"]));
    let accepted = project.run(&["resume", &id, "--accept-spec-change", "-q"]);
    assert_eq!(
        (accepted.code, accepted.out.as_str()),
        (0, "new: ada\n"),
        "{}",
        accepted.err
    );

    let project = parent_of(APPROVAL);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let id = child(&project)["id"].as_str().unwrap().to_owned();
    project.write("w.toml", &changed());
    assert_eq!(project.run(&["answer", &id, "--approve"]).code, 0);
    let stored = project.run(&["resume", &id, "--stored-spec", "-q"]);
    assert_eq!(
        (stored.code, stored.out.as_str()),
        (0, "child: ada\n"),
        "{}",
        stored.err
    );
}

#[test]
fn resume_of_all_goes_on_with_the_parents() {
    let project = parent_of(SLOW);
    let running = project.start(&["run", "w.toml"], "sub started");
    project.read("pid");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 143);
    let id = project.json(&["show", "@last"])["id"].clone();
    let id = id.as_str().unwrap();

    project.write("w.toml", &changed());
    let skipped = project.run(&["resume"]);
    assert_eq!((skipped.code, skipped.out.as_str()), (0, ""));
    assert!(
        skipped.err.contains("is left alone")
            && skipped.err.contains("--stored-spec")
            && skipped.err.contains("--accept-spec-change"),
        "{}",
        skipped.err
    );
    assert_eq!(child(&project)["driver"], Value::Null);

    project.write("w.toml", PARENT);
    let resumed = project.run(&["resume"]);
    assert_eq!(
        (resumed.code, resumed.out),
        (0, format!("{id} completed\n")),
        "{}",
        resumed.err
    );
    assert_eq!(
        project.run(&["show", id, "--output"]).out.trim(),
        "child: done"
    );
}

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
fn retry_says_that_it_does_not_use_the_mended_file() {
    let broken = "name = 'x'\n[[step]]\nid = 'a'\nrun = '[ -e fixed ]'\neffect = 'read'\n";
    let project = Project::new(broken);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 1);
    let same = project.run(&["retry", "@last"]);
    assert!(!same.err.contains("has changed"), "{}", same.err);
    project.write("w.toml", &broken.replace("[ -e fixed ]", "true"));
    let retried = project.run(&["retry", "@last"]);
    assert_eq!(retried.code, 1);
    let file = project.path("w.toml").canonicalize().unwrap();
    let file = file.display();
    for said in [
        format!("{file} has changed since"),
        format!("`logreel run {file}` starts anew"),
    ] {
        assert!(retried.err.contains(&said), "{}", retried.err);
    }
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

/// Whoever starts a run that its limit has no place for waits in line with it, and says so.
#[test]
fn a_run_over_its_limit_waits_in_line_until_another_lets_go() {
    let project = Project::new(
        r#"
name = "deploy"
limit = { key = "deploy", max = 1 }
[[step]]
id = "work"
run = "echo in > began; cat go"
effect = "read"
"#,
    );
    project.pipe("began");
    project.pipe("go");
    let first = project.start(&["run", "w.toml"], "work started");
    project.read("began");
    let second = project.start(&["run", "w.toml"], " waits: limit deploy (1 at a time)");
    let last = project.json(&["show", "@last"]);
    assert_eq!(
        (&last["status"], &last["driver"]),
        (&"created".into(), &Value::Null)
    );
    let shown = project.run(&["show", "@last"]).out;
    assert!(shown.contains("limit deploy (1 at a time)"), "{shown}");

    // Ctrl-C in line pauses it; resumed, it is in line again.
    second.signal(Signal::INT);
    let paused = second.end();
    assert_eq!(paused.code, 130, "{}", paused.err);
    let second = project.start(&["resume", "@last"], " waits: limit deploy (1 at a time)");
    project.write("go", "one");
    let first = first.end();
    assert_eq!(
        (first.code, first.out.as_str()),
        (0, "one\n"),
        "{}",
        first.err
    );
    project.read("began");
    project.write("go", "two");
    let second = second.end();
    assert_eq!(
        (second.code, second.out.as_str()),
        (0, "two\n"),
        "{}",
        second.err
    );
}
