//! Agents at work on the command line: what a run tells, where it stops and asks, and how it goes on.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use common::Ran;
use common::project::Project;
use rustix::process::Signal;
use serde_json::{Value, json};

const FIXER: &str = r#"
name = "fixer"
model = "scripted/answers.jsonl"
tools = ["fs.read", "fs.edit", "shell", "gate"]
plan = true
verify_rounds = 0
[policy]
ask = ["fs.edit"]
allow = ["shell", "gate"]
[tool.gate]
description = "Wait until the gate is open"
run = "until [ -e open ]; do sleep 0.05; done; echo opened"
effect = "read"
[[verify]]
name = "mended"
run = "grep good notes.txt"
"#;

/// A plan, a read beside a command that fails, an edit that is asked about, an answer.
const ANSWERS: &str = r#"
{"text": "1. Look.\n2. Mend.", "usage": {"input_tokens": 100, "output_tokens": 10}}
{"text": "I will look.", "tool_calls": [{"id": "look", "name": "fs.read", "arguments": {"path": "notes.txt"}}, {"id": "try", "name": "shell", "arguments": {"command": "echo not yet; exit 7"}}], "usage": {"input_tokens": 1200, "output_tokens": 20}}
{"text": "It is bad.", "tool_calls": [{"id": "mend", "name": "fs.edit", "arguments": {"path": "notes.txt", "old": "bad", "new": "good"}}], "usage": {"input_tokens": 1300, "output_tokens": 30}}
{"text": "It is good now.", "usage": {"input_tokens": 1400, "output_tokens": 40}}
"#;

fn project(answers: &str) -> Project {
    let project = Project::new(FIXER);
    project.write("notes.txt", "this is bad\n");
    project.write("answers.jsonl", answers.trim_start());
    assert_eq!(project.run(&["init", "-q"]).code, 0);
    project
}

fn check(name: &str, ran: &Ran) {
    let filters = vec![
        (r"\brun_[0-9a-f-]{36}\b", "[run]"),
        (r"\b[0-9a-f]{64}\b", "[digest]"),
        (r"\b[0-9a-f]{8}\b", "[short]"),
        (
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ( \(\w+ ago\))?",
            "[moment]",
        ),
        (r"\d{4}-\d\d-\d\d UTC", "[day]"),
        (r"\d\d:\d\d:\d\d\.\d{3}", "[time]"),
        (r" *\+?\b([0-9]+ms|[0-9.]+s)\b", " [span]"),
        (r"process \d+ on \S+:", "[driver]:"),
        (r"/tmp/\.tmp\w+", "[folder]"),
        (r"group=\d+", "[group]"),
        // Whoever comes first stops it; the other may have seen it too.
        (r"(?m)( WARN stopping a command left behind .*\n)+", "$1"),
        // Columns are as wide as what is in them.
        (r"(\S) {2,}", "$1  "),
        // A step that is over at once is not announced, and a parent may go on before it lets go.
        (r"(?m)^\[short\] check \w+\n", ""),
        (r"(?m)^.* (step\.started|run\.resumed) .*\n", ""),
        (r" \( \[span\]\) →", " →"),
        (r"(?m)^ +\d+ \[time\]", "  [seq] [time]"),
        (r"events +\d+", "events [n]"),
    ];
    let Ran { code, out, err } = ran;
    insta::with_settings!({filters => filters}, {
        insta::assert_snapshot!(name, format!("exit {code}\n--- stdout\n{out}--- stderr\n{err}"));
    });
}

fn events(project: &Project, kind: &str) -> Vec<Value> {
    let log = project.run(&["log", "@last", "--json", "--kind", kind]);
    let lines = log.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn off_a_terminal_it_stops_at_the_question_and_names_what_finishes_it() {
    let project = project(ANSWERS);
    let stopped = project.run(&["run", "w.toml", "mend the notes"]);
    check("stops_at_the_question", &stopped);
    check("show_waits", &project.run(&["show", "@last"]));
    let waiting = &project.json(&["show", "@last"])["waiting"];
    let arguments = json!({"path": "notes.txt", "old": "bad", "new": "good"});
    assert_eq!(waiting[0]["arguments"], arguments);
    assert_eq!(
        (&waiting[0]["tool"], &waiting[0]["call"]),
        (&json!("fs.edit"), &json!("mend"))
    );
    // The line that it prints, as it is printed.
    let line = stopped
        .err
        .lines()
        .find(|line| line.contains("logreel answer"))
        .unwrap();
    let line = line.split("   (").next().unwrap();
    let line: Vec<&str> = line.split_whitespace().skip(1).collect();
    let finished = project.run(&line);
    check("answered", &finished);
    assert_eq!(project.read("notes.txt"), "this is good\n");
    check("show", &project.run(&["show", "@last"]));
    check("log", &project.run(&["log", "@last"]));
    let run = project.json(&["show", "@last"]);
    assert_eq!(run["verification"]["verdict"], json!("passed"));
    assert_eq!(
        (&run["usage"]["input_tokens"], &run["usage"]["tool_calls"]),
        (&json!(4000), &json!(3))
    );
    assert_eq!(
        run["provenance"]["models"],
        json!(["scripted/answers.jsonl"])
    );
    assert_eq!(
        run["provenance"]["tools"],
        json!(["fs.read", "fs.edit", "shell", "gate"])
    );
}

#[test]
fn a_denial_reaches_the_model_and_the_checks_have_the_last_word() {
    let project = project(ANSWERS);
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let denied = [
        "answer",
        "@last",
        "--deny",
        "--reason",
        "hands off",
        "--resume",
    ];
    check("denied", &project.run(&denied));
    check("show_denied", &project.run(&["show", "@last"]));
    assert_eq!(project.read("notes.txt"), "this is bad\n");

    let ran = project.run(&["run", "w.toml", "--no-ask"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.err.contains("fs.edit") && ran.err.contains("--no-ask"),
        "{}",
        ran.err
    );
    assert_eq!(events(&project, "wait.started"), Vec::<Value>::new());
}

#[test]
fn what_is_allowed_is_not_asked_about_and_another_model_may_do_it() {
    let project = project(ANSWERS);
    let allowed = project.run(&["run", "w.toml", "--allow", "fs.edit:*notes.txt"]);
    assert_eq!(
        (allowed.code, allowed.out.as_str()),
        (0, "It is good now.\n"),
        "{}",
        allowed.err
    );

    project.write("notes.txt", "this is bad\n");
    let other = ANSWERS.replace("It is good now.", "Another says so.");
    project.write("other.jsonl", other.trim_start());
    let flags = [
        "--allow",
        "fs.edit",
        "--model",
        "scripted/other.jsonl",
        "-q",
    ];
    let other = project.run(&[&["run", "w.toml"][..], &flags].concat());
    assert_eq!(
        (other.code, other.out.as_str(), other.err.as_str()),
        (0, "Another says so.\n", "")
    );
}

#[test]
fn what_is_said_during_a_tool_call_is_heard_at_the_next_turn() {
    let answers = r#"
{"text": "1. Wait."}
{"text": "I wait.", "tool_calls": [{"id": "wait", "name": "gate", "arguments": {}}]}
{"text": "As you say.", "expect": {"any": "leave it"}}
"#;
    let project = project(answers);
    project.write("notes.txt", "this is good\n");
    let running = project.start(&["run", "w.toml"], "gate");
    let active = &project.json(&["show", "@last"])["active_tools"];
    assert_eq!(active[0]["name"], json!("gate"), "{active}");
    let said = project.run(&["say", "@last", "leave it"]);
    assert_eq!(said.code, 0, "{}", said.err);
    project.write("open", "");
    let ended = running.end();
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (0, "As you say.\n"),
        "{}",
        ended.err
    );
    assert!(ended.err.contains("ada says: leave it"), "{}", ended.err);
}

#[test]
fn a_killed_run_asks_for_nothing_twice_and_a_write_in_flight_is_in_doubt() {
    let answers = r#"
{"text": "1. Write."}
{"text": "I write.", "tool_calls": [{"id": "read", "name": "fs.read", "arguments": {"path": "notes.txt"}}, {"id": "write", "name": "shell", "arguments": {"command": "touch begun; sleep 600"}}]}
{"text": "Done.", "expect": {"any": "it was me"}}
"#;
    let project = project(answers);
    project.write("notes.txt", "this is good\n");
    let running = project.start(&["run", "w.toml"], "shell touch begun");
    common::kill::until("it began", || project.path("begun").exists());
    running.kill();
    let resumed = project.run(&["resume", "@last"]);
    check("in_doubt", &resumed);
    let line = resumed
        .err
        .lines()
        .find(|line| line.contains("logreel resolve"))
        .unwrap();
    assert!(line.contains(" write --returned"), "{line}");
    let args = [
        "resolve",
        "@last",
        "write",
        "--returned",
        "\"it was me\"",
        "--resume",
    ];
    let done = project.run(&args);
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "Done.\n"),
        "{}",
        done.err
    );
    assert_eq!(events(&project, "model.called").len(), 3);
    let shown = project.run(&["show", "@last"]).out;
    assert!(
        shown.contains("touch begun; sleep 600: in doubt"),
        "{shown}"
    );
}

#[test]
fn ctrl_c_during_a_tool_call_pauses_and_the_call_is_made_again() {
    let answers = r#"
{"text": "1. Wait."}
{"text": "I wait.", "tool_calls": [{"id": "wait", "name": "gate", "arguments": {}}]}
{"text": "It is open."}
"#;
    let project = project(answers);
    project.write("notes.txt", "this is good\n");
    let running = project.start(&["run", "w.toml"], "gate");
    running.signal(Signal::INT);
    let paused = running.end();
    assert_eq!(paused.code, 130, "{}", paused.err);
    assert!(
        paused.err.contains("is paused: `logreel resume "),
        "{}",
        paused.err
    );
    project.write("open", "");
    let resumed = project.run(&["resume", "@last"]);
    assert_eq!(
        (resumed.code, resumed.out.as_str()),
        (0, "It is open.\n"),
        "{}",
        resumed.err
    );
}

#[test]
fn a_spent_budget_names_how_to_raise_it() {
    let project = project(ANSWERS);
    let limited = format!("{FIXER}\n[budget]\ntool_calls = 1\n");
    project.write("w.toml", &limited);
    let stopped = project.run(&["run", "w.toml"]);
    check("out_of_budget", &stopped);
    let more = ["resume", "@last", "--add-budget", "tool_calls=5", "-q"];
    assert_eq!(project.run(&more).code, 3);
    let finished = project.run(&["answer", "@last", "--approve", "--resume", "-q"]);
    assert_eq!(finished.out, "It is good now.\n", "{}", finished.err);
}

#[test]
fn an_agent_that_it_calls_is_a_child() {
    let answers = r#"
{"text": "1. Ask."}
{"text": "I ask.", "tool_calls": [{"id": "ask", "name": "researcher", "arguments": {"input": "what is it?"}}]}
{"text": "It is good."}
"#;
    let project = project(answers);
    let spec = FIXER.replace("\"gate\"]", "\"researcher\"]");
    let spec = format!("{spec}\n[agents.researcher]\nspec = \"researcher.toml\"\n");
    project.write("w.toml", &spec);
    project.write("notes.txt", "this is good\n");
    let researcher = "name = 'researcher'\ndescription = 'Looks'\nmodel = 'scripted/found.jsonl'\n";
    project.write("researcher.toml", researcher);
    project.write("found.jsonl", "{\"text\": \"good\"}\n");
    check("child", &project.run(&["run", "w.toml"]));
    check("show_child", &project.run(&["show", "@last"]));
}

/// A check sees what whoever drives the run has, but for keys of models; one that cannot be started is
/// something to look at, and no failure.
#[test]
fn checks_see_no_key_and_one_that_was_not_made_needs_review() {
    let checked = r#"
        name = "checked"
        model = "scripted/answers.jsonl"
        api_key_env = "KEY_OF_MINE"
        env = { OF_THE_FILE = "set" }
        [[verify]]
        name = "sees"
        run = "env > ../seen; rmdir ../gone"
        [[verify]]
        name = "has no folder"
        run = "true"
    "#;
    let project = project("{\"text\": \"done\"}\n");
    project.write("w.toml", checked);
    std::fs::create_dir(project.path("gone")).unwrap();
    let mut command = project.command();
    for (name, value) in [
        ("KEY_OF_MINE", "key-1"),
        ("OPENAI_API_KEY", "key-2"),
        ("OF_THE_SHELL", "kept"),
    ] {
        command.env(name, value);
    }
    let ran = common::ran(command.args(["run", "w.toml", "go", "--dir", "gone"]));
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
    let seen = project.read("seen");
    assert!(!seen.contains("key-1") && !seen.contains("key-2"), "{seen}");
    assert!(
        seen.contains("OF_THE_SHELL=kept\n") && seen.contains("OF_THE_FILE=set\n"),
        "{seen}"
    );
    let shown = project.json(&["show", "@last"]);
    let report = &shown["verification"];
    assert_eq!(report["verdict"], "needs_review", "{report}");
    let verdicts: Vec<&Value> = [0, 1].map(|n| &report["checks"][n]["verdict"]).to_vec();
    assert_eq!(verdicts, ["passed", "skipped"]);
}

#[test]
fn a_check_that_crashes_did_not_pass() {
    for signal in ["SEGV", "KILL"] {
        let project = project("{\"text\": \"done\"}\n");
        let spec = format!(
            "name = \"checked\"\nmodel = \"scripted/answers.jsonl\"\nverify_rounds = 0\n\
             [[verify]]\nname = \"tests\"\nrun = \"echo began; kill -{signal} $$\"\n"
        );
        project.write("w.toml", &spec);
        let ran = project.run(&["run", "w.toml", "go"]);
        assert_eq!(ran.code, 1, "{}", ran.err);
        let shown = project.json(&["show", "@last"]);
        let report = &shown["verification"];
        assert_eq!(report["verdict"], "failed", "{report}");
        let said = report["checks"][0]["message"].as_str().unwrap();
        assert!(
            said.starts_with("began") && said.contains("killed by signal"),
            "{said}"
        );
    }
}
