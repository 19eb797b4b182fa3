//! `replay`: recorded runs are decided again, offline, and what differs is named at its event.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::process::Command;

use common::project::Project;
use serde_json::Value;

/// Every kind of step, with a failure that is retried, one that is survived, one that is skipped.
const WORKFLOW: &str = r#"
name = "every"
output = "{{ steps.below.output }}"
[[step]]
id = "list"
run = "echo '[3, 1, 2]'"
effect = "read"
[[step]]
id = "flaky"
run = "test -e tried || { touch tried; echo no >&2; exit 1; }; echo yes"
retry = { attempts = 3, backoff = "1ms..2ms" }
[[step]]
id = "broken"
run = "exit 7"
on_error = "continue"
[[step]]
id = "never"
needs = ["list"]
when = "{{ steps.list.output | length > 9 }}"
run = "echo never"
[[step]]
id = "each"
needs = ["list"]
map = "{{ steps.list.output }}"
map_key = "n{{ item }}"
concurrency = 2
input = "{{ item }}"
run = "cat"
[[step]]
id = "moment"
needs = ["each"]
wait = "timer"
for = "20ms"
[[step]]
id = "word"
needs = ["moment"]
wait = "signal"
name = "go"
[[step]]
id = "after"
needs = ["moment"]
run = "echo after"
[[step]]
id = "yes"
needs = ["word", "flaky", "broken", "after"]
wait = "approval"
prompt = "Publish {{ steps.each.output | length }}, after {{ steps.word.output }}?"
timeout = "24h"
[[step]]
id = "publish"
needs = ["yes"]
effect = "write"
input = "{{ steps.each.output }} {{ steps.broken.exit_code }}"
run = "cat > published; echo done"
[[step]]
id = "below"
needs = ["publish"]
workflow = "below.toml"
input = "{{ steps.publish.output }}"
"#;

const BELOW: &str = r#"
name = "below"
[[step]]
id = "shout"
input = "{{ input }}!"
run = "cat"
"#;

const AGENT: &str = r#"
name = "helper"
model = "scripted/answers.jsonl"
system_file = "system.md"
tools = ["fs.read", "fs.write", "note", "shell", "asker"]
plan = true
[policy]
ask = ["fs.write"]
allow = ["note", "asker"]
deny = ["shell:rm *"]
[tool.note]
description = "Takes a note"
run = "cat >> notes.txt; echo noted"
[agents.asker]
spec = "asker.toml"
description = "Asks around"
[[verify]]
name = "noted"
run = "test -s notes.txt"
"#;

const ANSWERS: &str = r#"{"text": "1. read 2. write"}
{"tool_calls": [{"name": "fs.read", "arguments": {"path": "system.md"}}, {"name": "note", "arguments": {"a": 1}}, {"name": "asker", "arguments": {"input": "who?"}}]}
{"error": {"kind": "rate_limited", "retry_after_ms": 1}}
{"tool_calls": [{"name": "fs.write", "arguments": {"path": "out.txt", "content": "x"}}, {"name": "shell", "arguments": {"command": "rm -rf /"}}, {"name": "nothing", "arguments": {}}]}
{"text": "All is done."}
"#;

const ASKER: &str = r#"
name = "asker"
model = "scripted/asked.jsonl"
system = "You ask around."
"#;

fn every_kind() -> Project {
    let project = Project::new(WORKFLOW);
    project.write("below.toml", BELOW);
    let id = "run_0197b0a0-0001-7000-8000-00000000e0e0";
    let ran = project.run(&["run", "w.toml", "--id", id, "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let ran = project.run(&["signal", id, "go", "\"gone\"", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = project.run(&["resume", id, "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let ran = project.run(&["answer", id, "--approve", "--resume", "-q"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "done!\n"), "{}", ran.err);
    project
}

fn agent() -> Project {
    let project = Project::new("name = 'w'\n[[step]]\nid = 'a'\nagent = 'agent.toml'\n");
    project.write("agent.toml", AGENT);
    project.write("answers.jsonl", ANSWERS);
    project.write("asker.toml", ASKER);
    project.write("asked.jsonl", "{\"text\": \"Nobody knows.\"}\n");
    project.write("system.md", "You help.\nYou are brief.\n");
    let ran = project.run(&["run", "agent.toml", "Help!", "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let run = run_of(&project, "helper");
    let ran = project.run(&["answer", &run, "--approve", "--resume", "-q"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "All is done.\n"),
        "{}",
        ran.err
    );
    project
}

/// The newest run of this name.
fn run_of(project: &Project, agent: &str) -> String {
    let listed = project.json(&["ls", "--agent", agent]);
    listed["items"][0]["id"].as_str().unwrap().to_owned()
}

/// The log of the newest run of this name.
fn log_of(project: &Project, agent: &str) -> Vec<Value> {
    let ran = project.run(&["log", &run_of(project, agent), "--json"]);
    let lines = ran.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The first event of which this holds.
fn seq_of(log: &[Value], holds: impl Fn(&Value) -> bool) -> u64 {
    let found = log.iter().find(|event| holds(event));
    found.expect("the log has it")["seq"].as_u64().unwrap()
}

fn is_of_step(event: &Value, step: &str) -> bool {
    event["body"]["step"] == step
}

fn replays_equal(project: &Project, agent: &str) {
    let run = run_of(project, agent);
    let ran = project.run(&["replay", &run]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.starts_with("equal"), "{}", ran.out);
    assert_eq!(ran.err, "", "a replay has nothing to say beside its result");
}

/// The replay differs, at this event, for a reason that has these words.
fn differs(project: &Project, agent: &str, seq: u64, why: &str) {
    let run = run_of(project, agent);
    let ran = project.run(&["replay", &run, "--json"]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(said["result"], "differs");
    let difference = &said["difference"];
    assert_eq!(difference["seq"], seq, "{difference:#}");
    let words = difference["why"].as_str().unwrap();
    assert!(words.contains(why), "{words}");
}

/// A file with a change, for as long as this lives.
fn with(project: &Project, file: &str, from: &str, to: &str, look: impl FnOnce()) {
    let before = project.read(file);
    assert!(before.contains(from), "{file} has no {from:?}");
    project.write(file, &before.replacen(from, to, 1));
    look();
    project.write(file, &before);
}

#[test]
fn a_workflow_of_every_kind_of_step_replays_equal_with_its_children() {
    let project = every_kind();
    replays_equal(&project, "every");
    let said = project.json(&["replay", &run_of(&project, "every")]);
    assert_eq!(said["children"][0]["agent"], "below");
    assert_eq!(said["children"][0]["result"], "equal");
    // Nothing was executed again.
    std::fs::remove_file(project.path("published")).unwrap();
    replays_equal(&project, "every");
    assert!(!project.path("published").exists());
}

#[test]
fn an_agent_that_planned_asked_failed_and_was_denied_replays_equal() {
    let project = agent();
    let notes = project.read("notes.txt");
    replays_equal(&project, "helper");
    replays_equal(&project, "asker");
    assert_eq!(project.read("notes.txt"), notes);
}

#[test]
fn what_changes_in_a_workflow_is_named_at_its_event() {
    let project = every_kind();
    let log = log_of(&project, "every");
    let first = |step: &str| seq_of(&log, |event| is_of_step(event, step));
    let change = |from: &str, to: &str, seq: u64, why: &str| {
        with(&project, "w.toml", from, to, || {
            differs(&project, "every", seq, why)
        });
    };
    change(
        "Publish {{",
        "Print {{",
        first("yes"),
        "`/prompt` is \"Print 3",
    );
    change(
        "exit_code }}\"",
        "exit_code }}.\"",
        first("publish"),
        "its input differs",
    );
    change(
        "cat > published; echo done",
        "cat > publish; echo done",
        first("publish"),
        "what it does differs",
    );
    change(
        "needs = [\"moment\"]\nrun",
        "run",
        first("after"),
        "it begins at once; it began after event",
    );
    change(
        "length > 9",
        "length > 2",
        first("never"),
        "it is at work instead",
    );
    let end = log.last().unwrap()["seq"].as_u64().unwrap();
    let new =
        "[[step]]\nid = \"new\"\nneeds = [\"below\"]\nrun = \"echo\"\n[[step]]\nid = \"moment\"";
    change(
        "[[step]]\nid = \"moment\"",
        new,
        end,
        "before it begins step `new`",
    );
    // Another key is another step: where it begins there is nothing to compare it with.
    with(&project, "w.toml", "n{{ item }}", "m{{ item }}", || {
        let ran = project.run(&["replay", &run_of(&project, "every")]);
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.out.contains("begins step `each[m"), "{}", ran.out);
    });
    change(
        "attempts = 3",
        "attempts = 1",
        seq_of(&log, |it| it["kind"] == "step.retrying"),
        "",
    );
    change(
        "effect = \"write\"",
        "effect = \"idempotent\"",
        first("publish"),
        "",
    );
    // A change that decides nothing otherwise is none.
    with(
        &project,
        "w.toml",
        "timeout = \"24h\"",
        "timeout = \"25h\"",
        || {
            let said = project.json(&["replay", &run_of(&project, "every")]);
            assert_eq!(
                (&said["result"], &said["spec"]),
                (&"equal".into(), &"changed".into())
            );
        },
    );
    // A child is named where it was started, and where it differs itself.
    with(
        &project,
        "below.toml",
        "{{ input }}!",
        "{{ input }}?",
        || {
            let seq = seq_of(&log, |it| it["kind"] == "child.started");
            differs(&project, "every", seq, "step `shout`");
            let ran = project.run(&["replay", &run_of(&project, "every"), "--stored-spec"]);
            assert_eq!(ran.code, 0, "{}", ran.out);
        },
    );
    replays_equal(&project, "every");
}

#[test]
fn what_changes_in_an_agent_is_named_at_its_event() {
    let project = agent();
    let log = log_of(&project, "helper");
    let asked = seq_of(&log, |it| it["kind"] == "model.called");
    let change = |file: &str, from: &str, to: &str, seq: u64, why: &str| {
        with(&project, file, from, to, || {
            differs(&project, "helper", seq, why)
        });
    };
    change(
        "system.md",
        "brief",
        "verbose",
        asked,
        "the system text differs in line 2",
    );
    change(
        "agent.toml",
        "\"shell\",",
        "\"shell\", \"fs.list\",",
        asked,
        "`fs.list` was added",
    );
    change("agent.toml", "\"shell\",", "", asked, "`shell` was removed");
    change(
        "agent.toml",
        "Takes a note",
        "Takes notes",
        asked,
        "`note` is described otherwise",
    );
    change("agent.toml", "plan = true", "plan = false", 2, "");
    let wait = seq_of(&log, |it| {
        it["kind"] == "wait.started" && it["body"]["kind"] == "approval"
    });
    change(
        "agent.toml",
        "ask = [\"fs.write\"]",
        "ask = []",
        wait,
        "`tool.called` comes instead",
    );
    let denied = seq_of(&log, |it| it["body"]["error"]["kind"] == "denied");
    change(
        "agent.toml",
        "deny = [\"shell:rm *\"]\n",
        "",
        denied,
        "`wait.started` comes instead",
    );
    let checked = seq_of(&log, |it| it["body"]["phase"] == "verifying");
    change(
        "agent.toml",
        "[[verify]]\nname = \"noted\"\nrun = \"test -s notes.txt\"\n",
        "",
        checked,
        "`run.completed` comes instead",
    );
    let child = seq_of(&log, |it| it["kind"] == "child.started");
    change(
        "asker.toml",
        "around",
        "about",
        child,
        "(`model.called`, model call `m1.turn`): the system text differs in line 1",
    );
    // What a scripted model would say is no decision of ours.
    with(
        &project,
        "answers.jsonl",
        "All is done",
        "Nothing is done",
        || {
            let said = project.json(&["replay", &run_of(&project, "helper")]);
            assert_eq!(
                (&said["result"], &said["spec"]),
                (&"equal".into(), &"changed".into())
            );
        },
    );
    // A copy of the file elsewhere can be tried before it replaces the one that is used.
    project.write("other.md", "You are another.\n");
    let other = AGENT.replace("system.md", "other.md");
    project.write("other.toml", &other);
    let ran = project.run(&[
        "replay",
        &run_of(&project, "helper"),
        "--spec",
        "other.toml",
    ]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    let expected = format!(
        "event {asked} model.called, model call `m1.plan`: the system text differs in line 1"
    );
    assert!(ran.out.contains(&expected), "{}", ran.out);
    assert!(ran.out.contains("recorded: You help."), "{}", ran.out);
    assert!(ran.out.contains("now: You are another."), "{}", ran.out);
}

#[test]
fn a_run_that_was_killed_and_resumed_replays_equal() {
    let project = Project::new(
        r#"
name = "killed"
[[step]]
id = "before"
run = "echo 1"
[[step]]
id = "write"
needs = ["before"]
effect = "write"
run = "echo $LOGREEL_KEY >> written; echo > pipe; exec sleep 600"
reconcile = "grep -q $LOGREEL_KEY written && echo found"
[[step]]
id = "again"
needs = ["write"]
run = "echo x >> tries; test $(wc -l < tries) -gt 1 && echo twice || { echo > pipe; exec sleep 600; }"
"#,
    );
    project.pipe("pipe");
    let running = project.start(&["run", "w.toml"], "write started");
    project.read("pipe");
    running.kill();
    let run = run_of(&project, "killed");
    let running = project.start(&["resume", &run], "again started");
    project.read("pipe");
    running.kill();
    let ran = project.run(&["resume", &run, "-q"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "twice\n"), "{}", ran.err);
    let log = log_of(&project, "killed");
    let resumed = log.iter().filter(|it| it["kind"] == "run.resumed").count();
    assert_eq!(resumed, 2);
    replays_equal(&project, "killed");
}

#[test]
fn a_fork_replays_from_where_it_parted() {
    let project = Project::new(
        "name = 'failing'\n[[step]]\nid = 'a'\nrun = 'echo 1'\n[[step]]\nid = 'b'\nneeds = ['a']\n\
         run = 'test -e there && echo 2'\n",
    );
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 1);
    replays_equal(&project, "failing");
    project.write("there", "");
    let ran = project.run(&["retry", "@last", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let said = project.json(&["replay", "@last"]);
    assert_eq!(said["result"], "equal", "{said:#}");
    assert!(said["from"].as_u64().unwrap() > 1, "{said:#}");
    // What it forgot is not in its final state, and what it was given is no decision.
    for args in [
        &["retry", "@last-1", "--from", "a", "-q"][..],
        &["fork", "@last", "--at", "step:b", "--result", "b=9", "-q"],
        &[
            "fork", "@last", "--at", "step:b", "--result", "b=8", "--input", "other", "-q",
        ],
    ] {
        let ran = project.run(args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let said = project.json(&["replay", "@last"]);
        assert_eq!(said["result"], "equal", "{args:?} {said:#}");
    }
}

/// A fork of an agent hears what was said to it, and takes results that were given, before it decides anything.
#[test]
fn a_fork_of_an_agent_replays_with_what_was_given_to_it() {
    let project = Project::new(
        "name = \"noter\"\nmodel = \"scripted/a.jsonl\"\ntools = [\"note\"]\n[policy]\nallow = [\"note\"]\n\
         [tool.note]\ndescription = \"Takes a note\"\nrun = \"cat >> notes; echo done\"\n",
    );
    let call = r#"{"tool_calls":[{"id":"c1","name":"note","arguments":{"n":1}}]}"#;
    project.write(
        "a.jsonl",
        &format!(
            "{call}\n{{\"text\":\"done\"}}\n{{\"text\":\"more\"}}\n{{\"text\":\"yet more\"}}\n"
        ),
    );
    assert_eq!(project.run(&["run", "w.toml", "go", "-q"]).code, 0);
    let run = run_of(&project, "noter");
    let returned = seq_of(&log_of(&project, "noter"), |it| {
        it["kind"] == "tool.returned"
    });
    let returned = returned.to_string();
    for args in [
        &["--at", "last", "--message", "hey"][..],
        &["--at", "step:c1", "--result", "c1=\"else\""],
        &[
            "--at",
            &returned,
            "--result",
            "c1=\"else\"",
            "--message",
            "hey",
        ],
        &["--at", "last", "--input", "again", "--yes"],
    ] {
        let ran = project.run(&[&["fork", &run, "-q"], args].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        let said = project.json(&["replay", "@last"]);
        assert_eq!(said["result"], "equal", "{args:?} {said:#}");
    }
}

/// Of an erased child its parent knows how it ended, which is enough to go over what the parent did.
#[test]
fn a_parent_is_replayed_and_told_without_its_erased_child() {
    let project = every_kind();
    let (parent, child) = (run_of(&project, "every"), run_of(&project, "below"));
    let ran = project.run(&["erase", &child, "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    replays_equal(&project, "every");
    let otlp = ["export", &parent, "--format", "otlp", "-o", "trace.pb"];
    let ran = project.run(&otlp);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = project.run(&["fork", &parent, "--at", "step:below"]);
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains("its log was erased"), "{}", ran.err);
}

/// The spec is held against its digest before anything of it is decided.
#[test]
fn a_spec_that_is_not_its_digests_is_not_replayed() {
    let project = Project::new("name = 'w'\n[[step]]\nid = 'a'\nrun = 'echo tame'\n");
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 0);
    let store = rusqlite::Connection::open(project.path(".logreel/runs.db")).unwrap();
    let sql = "UPDATE events SET body = replace(body, 'echo tame', 'echo wild') WHERE seq = 1";
    assert_eq!(store.execute(sql, []).unwrap(), 1);
    for more in [&[][..], &["--stored-spec"]] {
        let ran = project.run(&[&["replay", "@last"], more].concat());
        assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("its log says blake3:"), "{}", ran.err);
    }
}

#[test]
fn what_another_program_decided_cannot_be_replayed_and_says_so() {
    let fixture = common::Fixture::full();
    let ran = fixture.run(&["replay", &common::run_id(common::DONE).to_string()]);
    assert_eq!(ran.code, 5, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("Rust task"), "{}", ran.err);
}

#[test]
fn a_replay_connects_nowhere_and_executes_nothing_under_strace() {
    for (project, agent) in [(every_kind(), "every"), (agent(), "helper")] {
        let trace = project.path("trace");
        let logreel = project.std_command();
        let ran = Command::new("strace")
            .args(["-f", "-o"])
            .arg(&trace)
            .args(["-e", "trace=connect,execve,execveat,socket"])
            .arg(logreel.get_program())
            .args(["replay", &run_of(&project, agent)])
            .current_dir(project.0.path())
            .env("HOME", "/nowhere")
            .output()
            .unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        assert!(out.starts_with("equal"), "{out}");
        let trace = project.read("trace");
        let calls = |name: &str| trace.lines().filter(|line| line.contains(name)).count();
        assert_eq!(calls("execve"), 1, "the program itself:\n{trace}");
        assert_eq!(calls("connect(") + calls("socket("), 0, "{trace}");
    }
}

/// Recorded runs in a folder, and nothing else of them but their spec files.
fn suite() -> Project {
    let project = agent();
    let plain =
        "name = \"plain\"\n[[step]]\nid = \"only\"\ninput = \"{{ input }}\"\nrun = \"cat\"\n";
    project.write("plain.toml", plain);
    assert_eq!(project.run(&["run", "plain.toml", "hello", "-q"]).code, 0);
    std::fs::create_dir(project.path("suite")).unwrap();
    for (agent, format) in [("helper", "reel"), ("plain", "jsonl")] {
        let file = format!("suite/{agent}.{format}");
        let run = run_of(&project, agent);
        let ran = project.run(&["export", &run, "--format", format, "-o", &file, "-q"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    std::fs::remove_dir_all(project.path(".logreel")).unwrap();
    project
}

#[test]
fn a_folder_of_recorded_runs_is_a_suite_that_names_exactly_what_an_edit_affects() {
    let project = suite();
    let replay = |more: &[&str]| {
        let args = [&["replay", "suite", "--junit", "report.xml"], more].concat();
        project.run(&args)
    };
    let ran = replay(&[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let results: Vec<&str> = ran
        .out
        .lines()
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(
        results,
        ["equal", "equal", "equal"],
        "two runs and a child: {}",
        ran.out
    );
    let report = project.read("report.xml");
    assert!(
        report.contains("tests=\"3\" failures=\"0\" errors=\"0\""),
        "{report}"
    );
    with(&project, "system.md", "brief", "<verbose>", || {
        let ran = replay(&["--json"]);
        assert_eq!(ran.code, 1, "{}", ran.err);
        let lines: Vec<Value> = ran
            .out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let results: Vec<(&str, &str)> = lines
            .iter()
            .map(|line| {
                (
                    line["agent"].as_str().unwrap(),
                    line["result"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(results, [("helper", "differs"), ("plain", "equal")]);
        assert_eq!(lines[0]["difference"]["kind"], "model.called");
        assert_eq!(lines[0]["difference"]["now"], "You are <verbose>.");
        let report = project.read("report.xml");
        assert!(report.contains("failures=\"1\" errors=\"0\""), "{report}");
        assert!(
            report.contains("the system text differs in line 2"),
            "{report}"
        );
        assert_eq!(replay(&["--stored-spec"]).code, 0);
    });
    // On another machine the files are elsewhere, but where they are in the checkout stays.
    let elsewhere = Project::new("name = 'w'\n[[step]]\nid = 'a'\nrun = 'true'\n");
    let suite = project.path("suite");
    let specs = project.0.path().to_str().unwrap().to_owned();
    let ran = elsewhere.run(&["replay", suite.to_str().unwrap(), "--specs", &specs]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // A file that is no recording, or was tampered with, fails the suite and says which.
    let text = project.read("suite/plain.jsonl");
    project.write("suite/plain.jsonl", &text.replacen("hello", "hullo", 1));
    let ran = replay(&[]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("suite/plain.jsonl"), "{}", ran.err);
    assert!(project.read("report.xml").contains("errors=\"1\""));
    let ran = project.run(&["replay", "suite/helper.reel"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    std::fs::create_dir(project.path("empty")).unwrap();
    assert_eq!(project.run(&["replay", "empty"]).code, 2);
    // One file that is none is no suite in which something failed.
    for args in [&["replay", "no.reel"][..], &["replay", "system.md"]] {
        let ran = project.run(&[args, &["--json"]].concat());
        let error: Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!(
            (ran.code, &error["error"]["kind"]),
            (2, &"invalid".into()),
            "{args:?}"
        );
    }
    let mut command = project.command();
    let reel = std::fs::read(project.path("suite/helper.reel")).unwrap();
    let ran = common::ran(command.args(["replay", "-"]).write_stdin(reel));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}
