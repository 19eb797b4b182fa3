//! Recorded programs off a terminal: what passes through, what is in the log, and who outlives whom.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::kill::{marked, until, within};
use common::project::Project;
use common::recorder::{Recorder, events, last, of_kind, project, recorded, state_of};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn a_program_is_itself_and_a_run() {
    let project = project();
    let shell = r#"read -r line; echo "got $line"; echo "to err" >&2; exit 7"#;
    let mut command = project.command();
    command.args([
        "record",
        "--label",
        "pr=42",
        "--session",
        "s",
        "--",
        "sh",
        "-c",
        shell,
    ]);
    let ran = common::ran(command.write_stdin("hello\n"));
    assert_eq!(
        (ran.code, &*ran.out, &*ran.err),
        (7, "got hello\n", "to err\n")
    );
    let run = last(&project);
    assert_eq!(run["kind"], "record");
    assert_eq!(run["agent"], "sh");
    assert_eq!(run["status"], "failed");
    assert_eq!(run["error"]["kind"], "exit");
    assert_eq!(run["labels"]["pr"], "42");
    assert_eq!(run["session"], "s");
    let events = events(&project, "@last");
    assert_eq!(recorded(&events, "stdout"), b"got hello\n");
    assert_eq!(recorded(&events, "stderr"), b"to err\n");
    let ended = of_kind(&events, "custom");
    assert_eq!(ended[0]["data"]["exit_code"], 7);
    assert!(ended[0]["data"]["duration_ms"].is_u64());
    assert_eq!(project.run(&["verify"]).code, 0);

    let fine = project.run(&["record", "true"]);
    assert_eq!((fine.code, &*fine.out, &*fine.err), (0, "", ""));
    assert_eq!(last(&project)["status"], "completed");
    let killed = project.run(&["record", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.code, 128 + 9);
    assert_eq!(last(&project)["error"]["kind"], "signal");
    let missing = project.run(&["record", "--", "no-such-program"]);
    assert_eq!(missing.code, 127);
    assert!(missing.err.contains("no-such-program"), "{}", missing.err);
}

#[test]
fn bytes_pass_as_they_are_and_are_recorded_as_they_are() {
    let project = project();
    let mut bytes = vec![0; 300_000];
    File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    bytes.extend("日本語 \u{1b}[31mred\u{1b}[0m\r\n".repeat(2000).as_bytes());
    std::fs::write(project.path("bytes"), &bytes).unwrap();
    let output = project
        .command()
        .args(["record", "--", "cat", "bytes"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        output.stdout == bytes,
        "what passed through is not what was printed"
    );
    let events = events(&project, "@last");
    assert!(
        recorded(&events, "stdout") == bytes,
        "what was recorded is not what was printed"
    );
    for body in of_kind(&events, "output.written") {
        assert!(body.to_string().len() < 300_000, "a bounded piece");
    }
}

#[test]
fn whoever_has_read_enough_ends_the_program_as_without_us() {
    let project = project();
    let mut recorder = Recorder::start(&project, &["--", "yes"]);
    assert_eq!(recorder.line(), "y");
    recorder.close();
    let status = recorder.child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 13), "SIGPIPE");
}

#[test]
fn a_killed_recorder_leaves_its_record_and_no_program() {
    let project = project();
    // It neither heeds TERM nor notices that nobody reads any more, and so does what it started.
    let shell = "trap '' TERM HUP PIPE; echo one; echo two; echo $$; sleep 1000 & while :; do sleep 0.05; done";
    let mut recorder = Recorder::start(&project, &["--", "sh", "-c", shell]);
    let said = [recorder.line(), recorder.line()];
    assert_eq!(said, ["one", "two"]);
    let pid = recorder.line();
    let run = last(&project)["id"].as_str().unwrap().to_owned();
    let mark = format!("LOGREEL_RUN={run}");
    assert!(!marked(&mark).is_empty());
    // What was printed is in the log within a tenth of a second; the test allows for a busy machine.
    within(
        Duration::from_secs(5),
        "what was printed is recorded",
        || recorded(&events(&project, &run), "stdout") == format!("one\ntwo\n{pid}\n").into_bytes(),
    );
    recorder.signal(Signal::KILL);
    recorder.child.wait().unwrap();
    within(Duration::from_secs(10), "the program is gone", || {
        marked(&mark).is_empty()
    });
    let shown = project.json(&["show", &run]);
    assert_eq!(
        (&shown["orphaned"], &shown["status"]),
        (&true.into(), &"executing".into())
    );
    assert_eq!(
        recorded(&events(&project, &run), "stdout"),
        format!("one\ntwo\n{pid}\n").into_bytes()
    );

    let resumed = project.run(&["resume", &run]);
    assert_eq!(resumed.code, 1, "{}", resumed.err);
    assert!(
        resumed.err.contains("recorder_lost")
            || resumed.err.contains("recorded the program is gone"),
        "{}",
        resumed.err
    );
    assert!(resumed.err.contains("logreel retry"), "{}", resumed.err);
    let shown = project.json(&["show", &run]);
    assert_eq!(shown["error"]["kind"], "recorder_lost");
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn a_retry_runs_the_program_again() {
    let project = project();
    let failed = project.run(&["record", "--", "sh", "-c", "test -e fixed && echo fine"]);
    assert_eq!(failed.code, 1);
    let first = last(&project)["id"].clone();
    project.write("fixed", "");
    let again = project.run(&["retry", "@last"]);
    assert_eq!((again.code, &*again.out), (0, "fine\n"), "{}", again.err);
    let run = last(&project);
    assert_eq!(
        (&run["parent"]["run"], &run["parent"]["relation"]),
        (&first, &"retry".into())
    );
    assert_eq!(run["status"], "completed");
    assert_eq!(recorded(&events(&project, "@last"), "stdout"), b"fine\n");
}

#[test]
fn cancel_and_pause_from_elsewhere_reach_the_program() {
    let project = project();
    // Not a loop of a shell: one that is stopped while it starts a program waits for that and shows as
    // waiting.
    let shell = "echo $$; exec sleep 1000";
    let mut recorder = Recorder::start(&project, &["--", "sh", "-c", shell]);
    let pid = recorder.line();
    let run = last(&project)["id"].as_str().unwrap().to_owned();
    let patience = Duration::from_secs(20);
    for _ in 0..2 {
        assert_eq!(project.run(&["pause", &run]).code, 0);
        within(patience, "it is stopped", || state_of(&pid) == Some('T'));
        let shown = project.json(&["show", &run]);
        assert_eq!(
            (&shown["status"], &shown["waiting"][0]["kind"]),
            (&"waiting".into(), &"paused".into())
        );
        assert!(shown["driver"].is_object(), "the recorder keeps its lease");
        assert_eq!(project.run(&["wait", &run]).code, 3);
        let resumed = project.run(&["resume", &run]);
        assert_eq!(resumed.code, 0, "{}", resumed.err);
        within(patience, "it goes on", || {
            state_of(&pid).is_some_and(|state| state != 'T')
        });
    }
    assert_eq!(project.run(&["pause", &run]).code, 0);
    within(patience, "it is stopped", || state_of(&pid) == Some('T'));
    assert_eq!(project.run(&["cancel", &run]).code, 0);
    within(patience, "it is gone", || state_of(&pid).is_none());
    assert_eq!(recorder.code(), 128 + 15);
    let shown = project.json(&["show", &run]);
    assert_eq!(
        (&shown["status"], &shown["driver"]),
        (&"cancelled".into(), &Value::Null)
    );
    until("nothing of it is left", || {
        marked(&format!("LOGREEL_RUN={run}")).is_empty()
    });
}

#[test]
fn a_signal_for_us_is_for_the_program() {
    let project = project();
    let shell = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut recorder = Recorder::start(&project, &["--", "sh", "-c", shell]);
    assert_eq!(recorder.line(), "ready");
    recorder.signal(Signal::TERM);
    assert_eq!(recorder.line(), "asked");
    assert_eq!(recorder.code(), 5);
}

#[test]
fn what_the_program_leaves_running_ends_with_it() {
    let project = project();
    let shell = "sleep 1000 >/dev/null 2>&1 & echo $!";
    let mut recorder = Recorder::start(&project, &["--", "sh", "-c", shell]);
    let pid = recorder.line();
    assert_eq!(recorder.code(), 0);
    assert!(
        state_of(&pid).is_none_or(|state| state == 'Z'),
        "it outlived its recorder"
    );
}

#[test]
fn a_key_is_not_recorded_and_passes_through() {
    let project = project();
    let key = format!("sk-ant-{}", "a1B2c3D4e5F6g7H8i9J0");
    let (one, two) = key.split_at(12);
    project.pipe("go");
    let shell = format!("printf 'key {one}'; cat go >/dev/null; echo '{two} end'");
    let mut recorder = Recorder::start(&project, &["--", "sh", "-c", &shell]);
    let mut first = [0; 16];
    recorder.out().read_exact(&mut first).unwrap();
    project.write("go", "");
    assert_eq!(recorder.line(), format!("{two} end"));
    assert_eq!(recorder.code(), 0);
    let events = events(&project, "@last");
    assert_eq!(recorded(&events, "stdout"), b"key [redacted] end\n");
    let redacted = of_kind(&events, "output.written");
    assert!(redacted.iter().any(|body| body["redacted"] == 1));

    // Nor is one among the arguments; what is not whole cannot be run again.
    let ran = project.run(&["record", "--", "sh", "-c", "exit 1", &key]);
    assert_eq!(ran.code, 1);
    let log = project.run(&["log", "@last", "--json"]).out;
    assert!(!log.contains(&key), "{log}");
    let retried = project.run(&["retry", "@last"]);
    assert_eq!(retried.code, 5, "{}", retried.err);
}

#[test]
fn the_checkout_before_and_after_is_in_the_log() {
    let project = Project(tempfile::tempdir().unwrap());
    let git = |words: &str| {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=ada",
            "-c",
            "user.email=ada@example.invalid",
        ]);
        let done = git
            .args(words.split(' '))
            .current_dir(project.0.path())
            .output();
        let done = done.unwrap();
        assert!(done.status.success(), "{words}: {done:?}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    git("init -q -b main");
    project.write("a.txt", "one\n");
    git("add a.txt");
    git("commit -q -m first");
    let commit = git("rev-parse HEAD");
    let ran = project.run(&[
        "record",
        "--",
        "sh",
        "-c",
        "echo two >> a.txt; echo new > b.txt",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(last(&project)["git"]["commit"], *commit);
    let events = events(&project, "@last");
    let changed = &of_kind(&events, "custom")[0]["data"]["git"];
    assert_eq!(changed["before"]["commit"], *commit);
    assert_eq!(changed["after"]["commit"], *commit);
    assert_eq!(
        (&changed["before"]["dirty"], &changed["after"]["dirty"]),
        (&false.into(), &true.into())
    );
    assert_eq!(changed["untracked"], serde_json::json!(["b.txt"]));
    let digest = changed["diff"]["blob"].as_str().unwrap();
    let store = rusqlite::Connection::open(project.path(".logreel/runs.db")).unwrap();
    let blobs: i64 = store
        .query_row(
            "SELECT count(*) FROM blobs WHERE instr(CAST(bytes AS TEXT), '+two') > 0",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(blobs, 1, "{digest}");
}

#[test]
fn the_same_key_does_not_run_the_program_again() {
    let project = project();
    for code in [3, 3] {
        let ran = project.run(&[
            "record",
            "--key",
            "k",
            "--",
            "sh",
            "-c",
            "echo x >> ran; exit 3",
        ]);
        assert_eq!(ran.code, code, "{}", ran.err);
    }
    assert_eq!(project.read("ran"), "x\n");
    let other = project.run(&["record", "--key", "k", "--", "true"]);
    assert_eq!(other.code, 5, "{}", other.err);
}

const CLAUDE_CODE: &str = include_str!("../../logreel-agent/tests/streams/claude-code.jsonl");
const CODEX_SESSION: &str = include_str!("../../logreel-agent/tests/streams/codex-session.jsonl");
const CLAUDE_SESSION: &str =
    include_str!("../../logreel-agent/tests/streams/claude-code-session.jsonl");

#[test]
fn a_stream_that_is_known_becomes_messages_tools_and_cost() {
    let project = project();
    project.write("stream.jsonl", CLAUDE_CODE);
    let ran = project.run(&[
        "record",
        "--stream",
        "claude-code",
        "--",
        "cat",
        "stream.jsonl",
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (0, CLAUDE_CODE));
    assert!(
        ran.err.contains("1 of 11 lines were not understood"),
        "{}",
        ran.err
    );
    let run = last(&project);
    assert_eq!(run["output"], "Fixed: `add` subtracted.");
    assert_eq!(run["usage"]["usd"], 0.021_542);
    assert_eq!(
        (&run["usage"]["model_calls"], &run["usage"]["tool_calls"]),
        (&3.into(), &2.into())
    );
    let events = events(&project, "@last");
    let strange = CLAUDE_CODE
        .lines()
        .find(|line| line.contains("rate_limit_event"));
    assert_eq!(
        recorded(&events, "stdout"),
        format!("{}\n", strange.unwrap()).into_bytes()
    );
    assert_eq!(of_kind(&events, "tool.called")[0]["name"], "Bash");
    assert_eq!(project.run(&["verify"]).code, 0);
    assert_eq!(
        project.run(&["show", "@last", "--output"]).out,
        "Fixed: `add` subtracted.\n"
    );

    let unknown = project.run(&["record", "--stream", "nothing", "--", "true"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.err.contains("claude-code, codex"),
        "{}",
        unknown.err
    );
    project.write("bad.toml", "[[line]]\nmesage = 1\n");
    let bad = project.run(&["record", "--stream", "bad.toml", "--", "true"]);
    assert_eq!(bad.code, 2);
    assert!(
        bad.err.contains("mesage") && bad.err.contains("bad.toml"),
        "{}",
        bad.err
    );
}

#[test]
fn sessions_of_other_agents_are_imported_once() {
    let project = project();
    for (from, text, answer) in [
        ("codex", CODEX_SESSION, "Fixed: `add` subtracted."),
        (
            "claude-code",
            CLAUDE_SESSION,
            "`add` subtracts; change the sign.",
        ),
    ] {
        project.write("session.jsonl", text);
        let first = project.run(&["import", "--from", from, "session.jsonl"]);
        assert_eq!(first.code, 0, "{}", first.err);
        let run = project.json(&["show", first.out.trim()]);
        assert_eq!(
            (&run["kind"], &run["status"]),
            (&"record".into(), &"completed".into())
        );
        assert_eq!(
            (&run["output"], &run["input"]),
            (&answer.into(), &"fix the failing test".into())
        );
        assert_eq!(run["dir"], "/work/app");
        let events = events(&project, first.out.trim());
        let called = events
            .iter()
            .find(|event| event["kind"] == "tool.called")
            .unwrap();
        assert!(
            called["caller_at"]
                .as_str()
                .unwrap()
                .starts_with("2025-11-02T1")
        );
        let again = project.run(&["import", "--from", from, "session.jsonl"]);
        assert_eq!((again.code, &again.out), (0, &first.out), "{}", again.err);
        assert!(again.err.contains("before"), "{}", again.err);
        assert_eq!(
            project.json(&["show", first.out.trim()])["event_count"],
            run["event_count"]
        );
    }
    assert_eq!(project.run(&["verify"]).code, 0);
    let neither = project.run(&["import", "--from", "codex", "w.toml"]);
    assert_eq!(neither.code, 2, "{}", neither.err);
}

const STEPS: &str = r#"
name = "steps"
[[step]]
id = "fix"
input = "fix it"
env = { TOKEN = "${STEP_TOKEN}" }
run = "cat > asked; echo $TOKEN > token; [ -e go ] || { echo up > up; sleep 1000; }; cat stream.jsonl"
stream = "claude-code"
[[step]]
id = "own"
needs = ["fix"]
run = "cat own.jsonl"
stream = "own.toml"
[[step]]
id = "after"
needs = ["fix", "own"]
run = "cat"
input = "{{ steps.fix.output }} / {{ steps.own.output }}"
"#;

#[test]
fn a_step_that_says_stream_is_a_run_of_its_own() {
    let project = Project::new(STEPS);
    project.write("stream.jsonl", CLAUDE_CODE);
    project.write(
        "own.jsonl",
        include_str!("../../logreel-agent/tests/streams/example.jsonl"),
    );
    project.write(
        "own.toml",
        include_str!("../../logreel-agent/tests/streams/example.toml"),
    );
    project.pipe("up");
    let with_token = |command: &mut Command| {
        command.env("STEP_TOKEN", "tok-12345678");
    };
    let mut command = project.std_command();
    with_token(&mut command);
    let mut child = command
        .args(["run", "w.toml", "-q"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(project.read("up"), "up\n");
    child.kill().unwrap();
    child.wait().unwrap();
    // What was killed with its driver is started again, like any command.
    project.write("go", "");
    let parent = project.json(&["ls", "--agent", "steps"])["items"][0]["id"].clone();
    let parent = parent.as_str().unwrap();
    let mut command = project.std_command();
    with_token(&mut command);
    let resumed = command.args(["resume", parent]).output().unwrap();
    let said = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert_eq!(resumed.status.code(), Some(0), "{said}");
    let out = String::from_utf8(resumed.stdout).unwrap();
    assert_eq!(out.trim_end(), "Fixed: `add` subtracted. / found it");
    assert_eq!(
        (&*project.read("asked"), &*project.read("token")),
        ("fix it", "tok-12345678\n")
    );
    let runs = project.json(&["ls", "--agent", "claude-code stream"]);
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
    let run = &runs["items"][0];
    assert_eq!(
        (&run["kind"], &run["status"]),
        (&"record".into(), &"completed".into())
    );
    assert_eq!(
        (&run["parent"]["run"], &run["parent"]["relation"]),
        (&parent.into(), &"child".into())
    );
    assert_eq!(run["usage"]["usd"], 0.021_542);
    let log = project
        .run(&["log", run["id"].as_str().unwrap(), "--json"])
        .out;
    assert!(!log.contains("tok-12345678"), "{log}");
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn a_stream_that_fails_fails_its_step() {
    let spec = "name = \"s\"\n[[step]]\nid = \"fix\"\nrun = \"cat stream.jsonl; exit 3\"\nstream = \"codex\"\n";
    let project = Project::new(spec);
    project.write(
        "stream.jsonl",
        include_str!("../../logreel-agent/tests/streams/codex.jsonl"),
    );
    let ran = project.run(&["run", "w.toml"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("exit status 3"), "{}", ran.err);
    project.write("w.toml", &spec.replace("codex", "cobol"));
    let unknown = project.run(&["run", "w.toml"]);
    assert_ne!(unknown.code, 0);
    assert!(unknown.err.contains("cobol"), "{}", unknown.err);
}
