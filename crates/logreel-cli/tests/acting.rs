//! The half of the binary that acts: what it starts, how it stops, what it says and how it exits.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::Arc;

use common::project::Project;
use common::{Clock, Fixture, Ran, run_id, runtime};
use logreel::{Ctx, hours};
use rustix::process::Signal;
use serde_json::{Value, json};

const HELLO: &str = r#"
name = "hello"
[[step]]
id = "greet"
run = "printf 'Hello, '; cat"
input = "{{ input }}"
effect = "read"
[[step]]
id = "shout"
needs = ["greet"]
run = "tr a-z A-Z"
input = "{{ steps.greet.output }}!\n"
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
input = "{{ steps.ok.output.by }}: {{ steps.ok.output.approved }}"
effect = "read"
"#;

/// Blocks in its first attempt, where it tells its process by a pipe, and is done in its second.
const SLOW: &str = r#"
name = "slow"
[[step]]
id = "work"
run = "if [ -e again ]; then echo done; else touch again; echo $$ > pid; sleep 1000; fi"
effect = "EFFECT"
"#;

fn slow(effect: &str) -> Project {
    let project = Project::new(&SLOW.replace("EFFECT", effect));
    project.pipe("pid");
    project
}

/// Ids, times and folders are another each time.
fn check(name: &str, project: &Project, ran: &Ran) {
    let folder = project.0.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap().to_owned();
    let filters = vec![
        (folder.as_str(), "[folder]"),
        ("run_[0-9a-f-]{36}", "[run]"),
        (r"\b[0-9a-f]{8}\b", "[short]"),
        ("blake3:[0-9a-f]{64}", "[digest]"),
        (r"\b(?:[0-9]+ms|[0-9.]+s)\b", "[time]"),
        // A step that is over at once is not announced.
        (r"(?m)^\[short\] \S+ started\n", ""),
        (r"process [0-9]+ on \S+", "[process]"),
    ];
    let Ran { code, out, err } = ran;
    insta::with_settings!({filters => filters}, {
        insta::assert_snapshot!(name, format!("exit {code}\n--- stdout\n{out}--- stderr\n{err}"));
    });
}

fn refused(project: &Project, args: &[&str], kind: &str, code: i32) -> Value {
    let human = project.run(args);
    assert_eq!(
        (human.code, human.out.as_str()),
        (code, ""),
        "{args:?}: {}",
        human.err
    );
    assert!(human.err.contains("error: "), "{args:?}: {}", human.err);
    let ran = project.run(&[args, &["--json"]].concat());
    let last = ran.err.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{}", ran.err));
    assert_eq!(
        (ran.code, &error["error"]["kind"]),
        (code, &json!(kind)),
        "{args:?}: {error}"
    );
    error["error"].clone()
}

#[test]
fn the_first_run_makes_a_store_and_prints_only_its_result() {
    let project = Project::new(HELLO);
    let ran = project.run(&["run", "w.toml", "Ada"]);
    check("first_run", &project, &ran);
    let folder = project.path(".logreel");
    let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(project.read(".logreel/.gitignore"), "*\n");
    let quiet = project.run(&["run", "w.toml", "-q", "Ada"]);
    assert_eq!(
        (quiet.code, quiet.out.as_str(), quiet.err.as_str()),
        (0, "HELLO, ADA!\n", "")
    );
    let run = project.json(&["show", "@last"]);
    let dir = project.0.path().canonicalize().unwrap();
    assert_eq!(
        (&run["dir"], &run["kind"]),
        (&json!(dir), &json!("workflow"))
    );
}

#[test]
fn json_has_a_line_for_each_event_and_one_for_the_run() {
    let project = Project::new(HELLO);
    project.write("in.json", r#"["a", 1]"#);
    let ran = project.run(&[
        "run",
        "w.toml",
        "@in.json",
        "--json",
        "-q",
        "--label",
        "team=core",
    ]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (run, events) = lines.split_last().unwrap();
    assert_eq!(
        (&run["type"], &run["status"]),
        (&json!("run"), &json!("completed"))
    );
    assert_eq!(
        (&run["labels"]["team"], &run["input"]),
        (&json!("core"), &json!(["a", 1]))
    );
    let seqs: Vec<u64> = events
        .iter()
        .map(|it| it["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(
        seqs,
        (1..=run["event_count"].as_u64().unwrap()).collect::<Vec<_>>()
    );
    assert!(events.iter().all(|it| it["type"] == "event"));
    assert_eq!(events.last().unwrap()["kind"], "run.completed");
}

#[test]
fn a_checkout_is_recorded() {
    let project = Project::new(HELLO);
    std::fs::remove_dir(project.path(".git")).unwrap();
    let git = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.current_dir(project.0.path())
            .args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        assert!(git.args(args).output().unwrap().status.success());
    };
    git(&["init", "-q", "-b", "trunk"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "x"]);
    project.run(&["run", "w.toml", "Ada"]);
    let run = project.json(&["show", "@last"]);
    assert_eq!(
        (&run["git"]["branch"], &run["git"]["dirty"]),
        (&json!("trunk"), &json!(false))
    );
    project.write("w.toml", &HELLO.replace("Hello", "Hi"));
    project.run(&["run", "w.toml", "Ada"]);
    assert_eq!(project.json(&["show", "@last"])["git"]["dirty"], true);
}

#[test]
fn a_failed_run_exits_1_and_names_retry() {
    let project = Project::new(
        "name = 'bad'\n[[step]]\nid = 'boom'\nrun = 'echo no luck >&2; exit 7'\neffect = 'read'\n",
    );
    check("failed_run", &project, &project.run(&["run", "w.toml"]));
    let error = refused(&project, &["resume", "@last"], "terminal", 5);
    assert!(
        error["hint"].as_str().unwrap().contains("logreel retry "),
        "{error}"
    );
}

#[test]
fn off_a_terminal_it_stops_at_an_approval_and_names_the_command() {
    let project = Project::new(APPROVAL);
    let ran = project.run(&["run", "w.toml"]);
    check("stops_at_approval", &project, &ran);
    let shown = project.run(&["show", "@last"]).out;
    assert!(
        shown.contains(" w1 --approve --resume   (or --deny)\n"),
        "{shown}"
    );
    refused(
        &project,
        &["answer", "@last", "--value", "1"],
        "not_applicable",
        5,
    );
    refused(
        &project,
        &["answer", "@last", "w9", "--approve"],
        "not_found",
        2,
    );
    refused(&project, &["answer", "@last"], "usage", 2);
    refused(
        &project,
        &["answer", "@last", "--approve", "--deny"],
        "usage",
        2,
    );
    refused(&project, &["answer", "@last", "--value", "{x"], "usage", 2);
    let waits = project.run(&["resume", "@last"]);
    assert_eq!((waits.code, waits.out.as_str()), (3, ""), "{}", waits.err);
    let approve = [
        "answer",
        "@last",
        "--approve",
        "--reason",
        "fine",
        "--resume",
    ];
    check("answer_and_resume", &project, &project.run(&approve));
    refused(&project, &["answer", "@last", "--approve"], "terminal", 5);
    let again = project.run(&["resume", "@last"]);
    assert_eq!((again.code, again.out.as_str()), (0, "ada: true\n"));
}

#[test]
fn a_denied_run_fails_and_nobody_goes_on_without_a_driver() {
    let project = Project::new(APPROVAL);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let denied = project.run(&["answer", "@last", "w1", "--deny"]);
    check("deny", &project, &denied);
    refused(
        &project,
        &["answer", "@last", "w1", "--approve"],
        "conflict",
        5,
    );
    assert_eq!(
        project.run(&["answer", "@last", "w1", "--deny"]).code,
        0,
        "the same again"
    );
    let ran = project.run(&["resume"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.out.contains(" failed in ok: "), "{}", ran.out);
    let none = project.run(&["resume"]);
    assert_eq!(
        (none.code, none.err.as_str()),
        (0, "no run is ready or orphaned\n")
    );
}

/// The deadline is decided by the clock of who answers, whatever the driver did.
#[test]
fn an_answer_after_the_deadline_is_refused() {
    let fixture = Fixture::empty();
    let clock = Clock::long_ago();
    runtime().block_on(async {
        let engine = fixture.engine(Arc::clone(&clock)).await;
        let task = engine.task("old", |ctx: Ctx, (): ()| async move {
            Ok(ctx.approval("Still?").deadline(hours(24)).await?.approved)
        });
        let run = task.start(&()).id(run_id(1)).await.unwrap();
        let mut bell = engine.store().watch(&run.id());
        while run.entry().await.unwrap().row.facts.waits.is_empty() {
            assert!(bell.rung().await);
        }
        engine.close().await.unwrap();
    });
    let late = fixture.run(&["answer", "00000001", "--approve"]);
    assert_eq!(late.code, 5, "{}", late.err);
    assert!(
        late.err.contains("the deadline of wait w1 passed"),
        "{}",
        late.err
    );
}

#[test]
fn a_signal_is_awaited_or_kept() {
    let project =
        Project::new("name = 's'\n[[step]]\nid = 'go'\nwait = 'signal'\nname = 'go on'\n");
    let ran = project.run(&["run", "w.toml"]);
    check("stops_at_signal", &project, &ran);
    let kept = project.run(&["signal", "@last", "other", "1"]);
    assert_eq!(kept.code, 0);
    assert!(kept.err.contains("nobody awaits \"other\""), "{}", kept.err);
    refused(
        &project,
        &["signal", "@last", "go on", "nonsense"],
        "usage",
        2,
    );
    let sent = project.run(&["signal", "@last", "go on", r#"{"a":1}"#, "--resume"]);
    assert_eq!(sent.code, 0, "{}", sent.err);
    refused(&project, &["signal", "@last", "go on"], "terminal", 5);
}

#[test]
fn what_cannot_start_says_why() {
    let project = Project::new(HELLO);
    project.write(
        "template.toml",
        "name = 'x'\n[[step]]\nid = 'a'\nrun = 'echo {{ input }}'\n",
    );
    project.write(
        "broken.toml",
        "name = 'x'\n[[step]]\nid = 'a'\nrun = 'true'\nneeds = ['b']\ncolour = 1\n",
    );
    for verb in ["run", "check"] {
        refused(&project, &[verb, "nowhere.toml"], "invalid", 2);
        refused(&project, &[verb, "template.toml"], "invalid", 2);
        refused(&project, &[verb, "broken.toml"], "invalid", 2);
        refused(&project, &[verb], "usage", 2);
    }
    check(
        "broken_spec",
        &project,
        &project.run(&["check", "broken.toml"]),
    );
    refused(&project, &["run", "w.toml", "@nowhere"], "invalid", 2);
    refused(&project, &["run", "w.toml", "--dir", "nowhere"], "usage", 2);
    refused(&project, &["run", "w.toml", "--id", "x"], "usage", 2);
    refused(
        &project,
        &["run", "w.toml", "--if-busy", "maybe"],
        "usage",
        2,
    );
    assert!(
        !project.path(".logreel").exists(),
        "nothing that was refused made a store"
    );
    for args in [
        vec!["resume"],
        vec!["resume", "@last"],
        vec!["answer", "@last", "--approve"],
        vec!["signal", "@last", "x"],
        vec!["resolve", "@last", "x", "--retry"],
    ] {
        refused(&project, &args, "unavailable", 4);
    }
    assert!(
        !project.path(".logreel").exists(),
        "nor did one that needs a run"
    );
}

#[test]
fn memory_runs_here_and_nowhere_else() {
    let project = Project::new(HELLO);
    let ran = project.run(&["run", "w.toml", "Ada", "--store", "memory:", "-q"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "HELLO, ADA!\n"));
    refused(
        &project,
        &["run", "w.toml", "--store", "memory:", "--detach"],
        "usage",
        2,
    );
    assert!(!project.path(".logreel").exists());
}

#[test]
fn the_same_key_attaches_and_a_busy_session_refuses() {
    let project = Project::new(HELLO);
    for _ in 0..2 {
        let ran = project.run(&["run", "w.toml", "Ada", "--key", "k", "-q"]);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (0, "HELLO, ADA!\n"),
            "{}",
            ran.err
        );
    }
    assert_eq!(project.json(&["ls"])["items"].as_array().unwrap().len(), 1);
    refused(
        &project,
        &["run", "w.toml", "Bob", "--key", "k"],
        "conflict",
        5,
    );
    project.write("a.toml", APPROVAL);
    assert_eq!(
        project.run(&["run", "a.toml", "--session", "s", "-q"]).code,
        3
    );
    refused(&project, &["run", "a.toml", "--session", "s"], "busy", 5);
    let ran = project.run(&[
        "run",
        "w.toml",
        "x",
        "--session",
        "s",
        "--if-busy",
        "interrupt",
        "-q",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn ctrl_c_pauses_and_leaves_nothing_behind() {
    let project = slow("read");
    let running = project.start(&["run", "w.toml"], "work started");
    let pid = project.read("pid");
    running.signal(Signal::INT);
    let ran = running.end();
    check("ctrl_c", &project, &ran);
    assert!(!is_alive(&pid));
    assert_eq!(
        project.json(&["show", "@last"])["waiting"][0]["kind"],
        "paused"
    );
    check(
        "resume_after_ctrl_c",
        &project,
        &project.run(&["resume", "@last"]),
    );
}

#[test]
fn sigterm_hands_the_run_back_unpaused() {
    let project = slow("read");
    let running = project.start(&["run", "w.toml"], "work started");
    let pid = project.read("pid");
    running.signal(Signal::TERM);
    let ran = running.end();
    assert_eq!((ran.code, ran.out.as_str()), (143, ""), "{}", ran.err);
    assert!(!is_alive(&pid));
    let run = project.json(&["show", "@last"]);
    assert_eq!(
        (&run["waiting"], &run["driver"]),
        (&json!([]), &Value::Null)
    );
    let resumed = project.run(&["resume"]);
    let id = run["id"].as_str().unwrap();
    assert_eq!(
        (resumed.code, resumed.out),
        (0, format!("{id} completed\n"))
    );
}

#[test]
fn a_killed_run_is_orphaned_and_resumed() {
    let project = slow("read");
    let running = project.start(&["run", "w.toml"], "work started");
    let pid = project.read("pid");
    let orphans = |limit: &str| {
        let listed = project.json(&["ls", "--status", "orphaned,failed", "--limit", limit]);
        listed["items"].as_array().unwrap().len()
    };
    assert_eq!(orphans("1"), 0, "it is driven");
    running.kill();
    assert_eq!(orphans("1"), 1);
    assert_eq!(project.json(&["show", "@last"])["orphaned"], true);
    let resumed = project.run(&["resume", "-q"]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert!(resumed.out.ends_with(" completed\n"), "{}", resumed.out);
    assert!(!is_alive(&pid), "what it left behind is gone");
    assert_eq!(orphans("50"), 0);
}

#[test]
fn an_interrupted_write_is_in_doubt_until_someone_resolves_it() {
    let project = slow("write");
    let running = project.start(&["run", "w.toml"], "work started");
    project.read("pid");
    refused(&project, &["resume", "@last"], "driven", 5);
    refused(
        &project,
        &["resolve", "@last", "work", "--retry"],
        "not_applicable",
        5,
    );
    running.signal(Signal::INT);
    let paused = running.end();
    assert_eq!(paused.code, 130);
    let said = paused
        .err
        .contains("`work` may have happened: logreel resolve ");
    assert!(said, "{}", paused.err);
    assert_eq!(
        project.json(&["show", "@last"])["steps"][0]["status"],
        "in_doubt"
    );
    refused(&project, &["resolve", "@last", "work"], "usage", 2);
    refused(
        &project,
        &["resolve", "@last", "other", "--retry"],
        "not_applicable",
        5,
    );
    let stops = project.run(&["resume", "@last"]);
    check("in_doubt", &project, &stops);
    let resolved = project.run(&[
        "resolve",
        "@last",
        "work",
        "--returned",
        r#"{"id":7}"#,
        "--resume",
    ]);
    assert_eq!(
        (resolved.code, resolved.out.as_str()),
        (0, "{\"id\":7}\n"),
        "{}",
        resolved.err
    );
}

#[test]
fn a_changed_spec_file_is_refused_until_someone_says_which() {
    let project = slow("read");
    let running = project.start(&["run", "w.toml"], "work started");
    project.read("pid");
    running.signal(Signal::INT);
    assert_eq!(running.end().code, 130);
    project.write(
        "w.toml",
        &SLOW
            .replace("EFFECT", "read")
            .replace("echo done", "echo other"),
    );
    let error = refused(&project, &["resume", "@last"], "spec_changed", 5);
    let hint = error["hint"].as_str().unwrap();
    assert!(
        hint.contains("--stored-spec") && hint.contains("--accept-spec-change"),
        "{hint}"
    );
    let stored = project.run(&["resume", "@last", "--stored-spec", "-q"]);
    assert_eq!(
        (stored.code, stored.out.as_str()),
        (0, "done\n"),
        "{}",
        stored.err
    );

    project.write("w.toml", APPROVAL);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let other = APPROVAL.replace("run = \"cat\"", "run = \"echo other\"");
    project.write("w.toml", &other);
    let answer = project.run(&["answer", "@last", "--approve"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let accepted = project.run(&["resume", "@last", "--accept-spec-change", "-q"]);
    assert_eq!(
        (accepted.code, accepted.out.as_str()),
        (0, "other\n"),
        "{}",
        accepted.err
    );
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn retry_shares_what_finished() {
    let project = Project::new(
        r#"
name = "flaky"
[[step]]
id = "once"
run = "echo x >> count; echo $((2 + 2))"
[[step]]
id = "boom"
needs = ["once"]
run = "cat; [ -e fixed ]"
input = "{{ steps.once.output }} {{ input }}"
"#,
    );
    assert_eq!(project.run(&["run", "w.toml", "in", "-q"]).code, 1);
    refused(
        &project,
        &["retry", "@last", "--from", "nowhere"],
        "not_found",
        2,
    );
    project.write("fixed", "");
    let ran = project.run(&["retry", "@last"]);
    check("retry", &project, &ran);
    assert_eq!(project.read("count"), "x\n", "what finished ran once");
    let shown = project.run(&["show", "@last"]).out;
    assert!(shown.contains("idempotent (default)"), "{shown}");
    refused(&project, &["retry", "@last"], "terminal", 5);
    let again = project.run(&["retry", "@last-1", "--from", "once", "-q"]);
    assert_eq!((again.code, again.out.as_str()), (0, "4 in\n"));
    assert_eq!(project.read("count"), "x\nx\n");
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn a_checkpoint_goes_on_in_another_store() {
    let project = Project::new(APPROVAL);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let answered = project.run(&["answer", "@last", "--approve"]);
    assert_eq!(answered.code, 0, "{}", answered.err);
    let export = ["export", "@last", "--format", "checkpoint"];
    let written = project.run(&[&export[..], &["-o", "c.json"]].concat());
    assert_eq!((written.code, written.out.as_str()), (0, ""));
    assert_eq!(project.run(&export).out, project.read("c.json"));
    refused(&project, &["import", "c.json"], "conflict", 5);
    refused(&project, &["import", "w.toml"], "invalid", 2);
    refused(
        &project,
        &["export", "@last", "--format", "tar"],
        "usage",
        2,
    );
    let elsewhere = ["--store", "other.db"];
    let imported = project.run(&[&["import", "c.json"][..], &elsewhere].concat());
    check("import", &project, &imported);
    let resumed = project.run(&[&["resume", imported.out.trim(), "-q"][..], &elsewhere].concat());
    assert_eq!(
        (resumed.code, resumed.out.as_str()),
        (0, "ada: true\n"),
        "{}",
        resumed.err
    );
}

#[test]
fn a_child_that_waits_is_answered_and_its_parent_goes_on() {
    let project = Project::new(
        "name = 'p'\n[[step]]\nid = 'sub'\nworkflow = 'child.toml'\n[[step]]\nid = 'end'\n\
         needs = ['sub']\nrun = 'cat'\ninput = 'child: {{ steps.sub.output }}'\n",
    );
    project.write("child.toml", APPROVAL);
    let stops = project.run(&["run", "w.toml"]);
    check("child_waits", &project, &stops);
    let command = stops.err.lines().last().unwrap();
    let words: Vec<&str> = command.split_whitespace().take(5).collect();
    let ["logreel", "answer", child, "w1", "--approve"] = words[..] else {
        panic!("{command}");
    };
    let same = project.run(&["resume", child]);
    assert_eq!(same.code, 3, "{}", same.err);
    assert!(same.err.contains("is part of"), "{}", same.err);
    assert_eq!(same.err.lines().last(), Some(command));
    let root = &project.json(&["show", "@last"]);
    assert_eq!(
        root["agent"], "p",
        "the last run is the one that was started"
    );
    let resumed = project.run(&["answer", "@last", "--approve", "--resume", "-q"]);
    assert_eq!(
        (resumed.code, resumed.out.as_str()),
        (0, "child: ada: true\n"),
        "{}",
        resumed.err
    );
}

#[test]
fn a_detached_run_goes_on_without_us() {
    let project = Project::new(HELLO);
    // Several at once: nobody takes another who looks for a worker for one.
    let start = |_| {
        let mut command = project.std_command();
        command.args(["run", "w.toml", "Ada", "--detach"]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..4).map(start).collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        let id = String::from_utf8(output.stdout).unwrap();
        assert!(id.trim().parse::<logreel::RunId>().is_ok(), "{id}");
        assert_eq!(project.run(&["wait", id.trim()]).out, "HELLO, ADA!\n");
    }
    let line = project.json(&["run", "w.toml", "Ada", "--detach"]);
    assert_eq!(line["type"], "run");
    let id = line["id"].as_str().unwrap();
    assert_eq!(project.run(&["wait", id]).out, "HELLO, ADA!\n");
}

#[test]
fn what_a_detached_run_has_to_say_is_kept_beside_the_store() {
    let project = Project::new(HELLO);
    project.run(&["init"]);
    let hook =
        "[[hook]]\nname = \"pager\"\non = [\"run.completed\"]\nrun = \"echo no page; exit 7\"\n";
    project.write(".logreel/config.toml", hook);
    let id = project.run(&["run", "w.toml", "Ada", "--detach"]).out;
    assert_eq!(project.run(&["wait", id.trim()]).out, "HELLO, ADA!\n");
    common::kill::until("the failed hook is told of", || {
        let said = std::fs::read_to_string(project.path(".logreel/runs.db.detached.log"));
        said.is_ok_and(|said| said.contains("pager") && said.contains(id.trim()))
    });
}

#[test]
fn a_worker_takes_what_is_queued_and_hands_back_on_sigterm() {
    let project = slow("read");
    let mut worker = project.start(&["worker", "--concurrency", "2"], "driving up to 2 runs");
    let ran = project.run(&["run", "w.toml", "--detach"]);
    assert!(ran.err.contains("is left to the worker"), "{}", ran.err);
    worker.until("taken");
    project.read("pid");
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!((ended.code, ended.out.as_str()), (143, ""), "{}", ended.err);
    let listed = project.run(&["ls"]).out;
    assert!(listed.contains("executing (no driver)"), "{listed}");
    let mut next = project.start(&["worker"], "taken");
    next.until("completed");
    next.signal(Signal::INT);
    assert_eq!(next.end().code, 130);
}

#[test]
fn a_worker_for_a_label_takes_no_other_runs() {
    let project = slow("read");
    let handed_back = |args: &[&str]| {
        let running = project.start(&[&["run", "w.toml"], args].concat(), "work started");
        project.read("pid");
        running.signal(Signal::TERM);
        assert_eq!(running.end().code, 143);
        std::fs::remove_file(project.path("again")).unwrap();
        project.json(&["show", "@last"])["id"].clone()
    };
    let other = handed_back(&["--label", "pool=cpu"]);
    let ours = handed_back(&["--label", "pool=gpu", "--label", "team=a"]);
    project.write("again", "");
    let args = ["worker", "--label", "pool=gpu"];
    let mut worker = project.start(&args, "driving up to 8 runs with pool=gpu of");
    worker.until("completed");
    let status = |run: &Value| project.json(&["show", run.as_str().unwrap()])["status"].clone();
    assert_eq!(
        (status(&ours), status(&other)),
        (json!("completed"), json!("executing"))
    );
    // Nor does a run that is started in the background count on it.
    let ran = project.run(&["run", "w.toml", "--detach"]);
    assert!(!ran.err.contains("is left to the worker"), "{}", ran.err);
    assert_eq!(project.run(&["wait", "@last", "-q"]).code, 0);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, 143);
}

#[test]
fn check_shows_the_whole_graph_and_runs_nothing() {
    let project = Project::new(
        r#"
name = "audit"
[[step]]
id = "files"
run = "touch ran; git ls-files"
effect = "read"
[[step]]
id = "review"
needs = ["files"]
map = "{{ steps.files.output }}"
concurrency = 8
run = "./review.sh"
input = "{{ item }}"
env = { TOKEN = "${NO_SUCH_TOKEN}" }
env_from = ["HOME"]
retry = { attempts = 3, backoff = "1m..1h" }
timeout = "10m"
on_error = "continue"
[[step]]
id = "approve"
needs = ["review"]
wait = "approval"
prompt = "Publish?"
timeout = "2h"
on_timeout = "deny"
[[step]]
id = "publish"
needs = ["approve"]
workflow = "child.toml"
"#,
    );
    project.write("child.toml", "name = 'child'\n[[step]]\nid = 'send'\nrun = './send.sh'\neffect = 'write'\nreconcile = './sent.sh'\n");
    check("check", &project, &project.run(&["check", "w.toml"]));
    check(
        "check_json",
        &project,
        &project.run(&["check", "w.toml", "--json"]),
    );
    assert!(!project.path("ran").exists() && !project.path(".logreel").exists());
}

#[test]
fn init_makes_a_first_workflow_and_overwrites_nothing() {
    let project = Project::new("");
    check("init", &project, &project.run(&["init"]));
    let ran = project.run(&["run", "workflows/hello.toml", "Ada", "-q"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "Hello, Ada!\nHello, world!\n"),
        "{}",
        ran.err
    );
    project.write("workflows/hello.toml", "mine");
    check("init_again", &project, &project.run(&["init"]));
    assert_eq!(project.read("workflows/hello.toml"), "mine");
}

/// One that is dead and that nobody has asked about yet is not alive.
/// Its own child, and that one's: one more than it may have.
const LIMITED: &str = r#"
name = "limited"
[budget]
children = 1
wall = "1h"
[[step]]
id = "outer"
[step.workflow]
name = "outer"
[[step.workflow.step]]
id = "inner"
[step.workflow.step.workflow]
name = "inner"
[[step.workflow.step.workflow.step]]
id = "work"
run = "echo done"
"#;

#[test]
fn a_run_out_of_budget_stops_with_3_names_what_helps_and_goes_on_with_more() {
    let project = Project::new(LIMITED);
    let ran = project.run(&["run", "w.toml"]);
    check("out_of_budget", &project, &ran);
    let runs = project.json(&["ls"]);
    let ids: Vec<&str> = (runs["items"].as_array().unwrap().iter())
        .map(|run| run["id"].as_str().unwrap())
        .collect();
    let [child, root] = ids[..] else {
        panic!("{ids:?}")
    };
    let add = |amount: &'static str| ["resume", root, "--add-budget", amount];
    for wrong in ["minutes=3", "children", "children=1,usd=much"] {
        refused(&project, &add(wrong), "usage", 2);
    }
    let said = refused(&project, &add("children=1,tokens=5"), "not_applicable", 5);
    assert!(said["message"].to_string().contains("tokens"), "{said}");
    let limits = |run: &str| {
        let budget = project.json(&["show", run])["budget"].clone();
        (
            budget["children"].clone(),
            budget["used"]["children"].clone(),
        )
    };
    assert_eq!(limits(root), (json!(1), json!(1)), "nothing was raised");
    assert_eq!(limits(child), (json!(0), json!(0)));
    let shown = project.run(&["show", root]).out;
    assert!(shown.contains(", children 1 of 1\n"), "{shown}");

    // Whoever names the root means the child that waits.
    let ran = project.run(&add("children=1"));
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
    refused(&project, &add("children=1"), "terminal", 5);
    assert_eq!(limits(root), (json!(2), json!(2)));
    assert_eq!(limits(child), (json!(1), json!(1)));
    let raised = project.run(&["log", root, "--kind", "budget.changed"]).out;
    assert!(raised.contains("children=2 by ada for "), "{raised}");
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('Z')
    })
}
