//! Streams of other agents that do not go as planned: told again, over a limit, cut by a cancel; and files of
//! theirs that are imported.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::process::Stdio;

use common::project::Project;
use common::recorder::{Recorder, events, last, of_kind, project};
use serde_json::Value;

const CLAUDE_CODE: &str = include_str!("../../logreel-agent/tests/streams/claude-code.jsonl");
const CODEX: &str = include_str!("../../logreel-agent/tests/streams/codex.jsonl");
const CODEX_SESSION: &str = include_str!("../../logreel-agent/tests/streams/codex-session.jsonl");

/// A project with the streams in it, and this as `w.toml`.
fn with_streams(spec: &str) -> Project {
    let project = Project::new(spec);
    project.write("claude.jsonl", CLAUDE_CODE);
    project.write("codex.jsonl", CODEX);
    assert_eq!(project.run(&["init"]).code, 0);
    project
}

fn child_of(project: &Project, agent: &str) -> Value {
    let runs = project.json(&["ls", "--agent", agent]);
    project.json(&["show", runs["items"][0]["id"].as_str().unwrap()])
}

#[test]
fn a_retry_of_a_stream_goes_on_from_its_log() {
    for (format, file) in [("codex", "codex.jsonl"), ("claude-code", "claude.jsonl")] {
        let project = with_streams("");
        let shell = format!("cat {file}; [ -e ok ]");
        let failed = project.run(&["record", "--stream", format, "--", "sh", "-c", &shell]);
        assert_eq!(failed.code, 1, "{}", failed.err);
        let first = last(&project)["usage"].clone();
        project.write("ok", "");
        let again = project.run(&["retry", "@last"]);
        assert_eq!(again.code, 0, "{}", again.err);
        let run = last(&project);
        assert_eq!(run["output"], "Fixed: `add` subtracted.");
        for count in ["tool_calls", "model_calls", "output_tokens"] {
            let twice = 2 * first[count].as_u64().unwrap();
            assert_eq!(run["usage"][count], twice, "{format} {count}");
        }
        assert_eq!(project.run(&["verify"]).code, 0);
    }
}

const KILLED: &str = r#"
name = "killed"
[[step]]
id = "fix"
run = "if [ -e go ]; then cat codex.jsonl; else head -4 codex.jsonl; echo up > up; sleep 1000; fi"
stream = "codex"
"#;

#[test]
fn a_step_whose_stream_was_killed_is_told_again() {
    let project = with_streams(KILLED);
    project.pipe("up");
    let mut child = project
        .std_command()
        .args(["run", "w.toml", "-q"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(project.read("up"), "up\n");
    common::kill::until("what was printed is recorded", || {
        let runs = project.json(&["ls", "--agent", "codex stream"]);
        runs["items"][0]["usage"]["tool_calls"] == 1
    });
    child.kill().unwrap();
    child.wait().unwrap();
    project.write("go", "");
    let parent = project.json(&["ls", "--agent", "killed"])["items"][0]["id"].clone();
    let resumed = project.run(&["resume", parent.as_str().unwrap()]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert_eq!(resumed.out, "Fixed: `add` subtracted.\n");
    let run = child_of(&project, "codex stream");
    assert_eq!(run["status"], "completed");
    let events = events(&project, run["id"].as_str().unwrap());
    // The command that ran when its driver died did not return; the one of the second telling did.
    let failed = of_kind(&events, "tool.failed");
    let told = |body: &Value| (body["call"].clone(), body["error"]["kind"].clone());
    assert_eq!(told(failed[0]), ("item_1".into(), "interrupted".into()));
    let called = of_kind(&events, "tool.called");
    assert!(called.iter().any(|body| body["call"] == "2.item_1"));
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn a_stream_over_a_limit_is_counted_and_the_next_one_waits() {
    for (limit, more) in [
        ("tokens = 1000", "tokens=1000000"),
        ("tool_calls = 1", "tool_calls=50"),
    ] {
        let spec = format!(
            "name = \"limited\"\n[budget]\n{limit}\n\
             [[step]]\nid = \"one\"\nrun = \"cat claude.jsonl; echo x >> ran\"\nstream = \"claude-code\"\n\
             [[step]]\nid = \"two\"\nneeds = [\"one\"]\nrun = \"cat codex.jsonl; echo x >> ran\"\nstream = \"codex\"\n"
        );
        let project = with_streams(&spec);
        let ran = project.run(&["run", "w.toml"]);
        assert_eq!(ran.code, 3, "{limit}: {}", ran.err);
        assert_eq!(project.read("ran"), "x\n", "{limit}");
        let child = child_of(&project, "claude-code stream");
        assert_eq!(child["status"], "completed", "{limit}");
        assert_eq!(child["usage"]["tool_calls"], 2);
        assert_eq!(child["usage"]["usd"], 0.021_542);
        let run = project.json(&["ls", "--agent", "limited"])["items"][0].clone();
        assert_eq!(run["waiting"][0]["kind"], "budget", "{run}");
        let id = run["id"].as_str().unwrap();
        let resumed = project.run(&["resume", id, "--add-budget", more]);
        assert_eq!(resumed.code, 0, "{limit}: {}", resumed.err);
        assert_eq!(project.read("ran"), "x\nx\n", "{limit}");
    }
}

#[test]
fn a_limit_in_dollars_over_a_stream_without_a_price_is_refused() {
    let spec = "name = \"limited\"\n[budget]\nusd = 1.0\n[[step]]\nid = \"one\"\nrun = \"cat codex.jsonl\"\nstream = \"codex\"\n";
    let project = with_streams(spec);
    for verb in ["check", "run"] {
        let refused = project.run(&[verb, "w.toml"]);
        assert_eq!(refused.code, 2, "{verb}: {}", refused.err);
        assert!(refused.err.contains("openai/codex"), "{}", refused.err);
    }
    project.write(
        "w.toml",
        &spec
            .replace("codex", "claude-code")
            .replace("claude-code.jsonl", "claude.jsonl"),
    );
    let ran = project.run(&["run", "w.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn what_a_cancelled_stream_still_says_is_kept_and_its_status_is_ours() {
    let project = with_streams("");
    // What it starts to say the rest is not told to end with it.
    let rest = "n=3; while [ $n -le 15 ]; do sed -n \"$n\"p codex.jsonl; n=$((n + 1)); done";
    project.write(
        "p.sh",
        &format!("trap '{rest}; exit 7' TERM\nhead -2 codex.jsonl\nwhile :; do sleep 0.01; done\n"),
    );
    let mut recorder = Recorder::start(&project, &["--stream", "codex", "--", "sh", "p.sh"]);
    let begun = [recorder.line(), recorder.line()].join("\n");
    let run = last(&project)["id"].as_str().unwrap().to_owned();
    common::kill::until("the first lines are recorded", || {
        !of_kind(&events(&project, &run), "model.called").is_empty()
    });
    assert_eq!(project.run(&["cancel", &run]).code, 0);
    let mut rest = String::new();
    std::io::Read::read_to_string(recorder.out(), &mut rest).unwrap();
    assert_eq!(recorder.code(), 7, "as the program ended");
    assert_eq!(
        format!("{begun}\n{rest}"),
        CODEX,
        "every line passed through"
    );
    let shown = project.json(&["show", &run]);
    assert_eq!(shown["status"], "cancelled");
    // Nothing starts after the end, but all of it is there, and what was spent counts.
    assert_eq!(shown["usage"]["output_tokens"], 122);
    let events = events(&project, &run);
    let late: Vec<&Value> = events
        .iter()
        .filter(|event| event["late"] == true)
        .collect();
    let named = |name: &str| {
        let mut names = late.iter().map(|event| &event["body"]["name"]);
        names.any(|it| it == name)
    };
    assert!(named("message.added") && named("tool.called"), "{late:?}");
    let ended = of_kind(&events, "custom");
    let ended = ended.iter().find(|body| body["name"] == "program.ended");
    let ended = &ended.unwrap()["data"];
    assert_eq!(
        (&ended["exit_code"], &ended["stream"]["lines"]),
        (&7.into(), &15.into())
    );
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn the_same_file_is_the_same_run_whatever_is_taken_out_of_it() {
    let project = project();
    project.write("session.jsonl", CODEX_SESSION);
    let words = ["import", "--from", "codex", "session.jsonl"];
    let first = project.json(&words);
    assert_eq!(first["outcome"], "new", "{first}");
    assert_eq!(first["run"]["status"], "completed");
    let id = first["run"]["id"].clone();
    project.write(".logreel/config.toml", "redact = [\"failing\"]\n");
    let again = project.json(&words);
    assert_eq!(
        (&again["outcome"], &again["run"]["id"]),
        (&"nothing_new".into(), &id)
    );
}

#[test]
fn a_file_that_is_none_makes_no_store() {
    let project = Project::new("");
    project.write("garbage", "garbage\n");
    let refused = project.run(&["import", "--from", "codex", "garbage"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(!project.path(".logreel").exists());
}

#[test]
fn a_past_run_takes_no_place_in_its_session() {
    let project = project();
    project.write("session.jsonl", CODEX_SESSION);
    let first: Value = serde_json::from_str(CODEX_SESSION.lines().next().unwrap()).unwrap();
    let session = first["payload"]["id"].as_str().unwrap();
    let shell = "echo ready; exec sleep 1000";
    let words = ["--session", session, "--", "sh", "-c", shell];
    let mut recorder = Recorder::start(&project, &words);
    assert_eq!(recorder.line(), "ready");
    let imported = project.run(&["import", "--from", "codex", "session.jsonl"]);
    assert_eq!(imported.code, 0, "{}", imported.err);
    let refused = project.run(&["record", "--session", session, "--", "true"]);
    assert_eq!(
        refused.code, 5,
        "the other one is active still: {}",
        refused.err
    );
    recorder.signal(rustix::process::Signal::TERM);
    assert_eq!(recorder.code(), 143);
    let next = project.run(&["record", "--session", session, "--", "true"]);
    assert_eq!(next.code, 0, "{}", next.err);
}
