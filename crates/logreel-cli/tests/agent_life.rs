//! What happens in the life of an agent, each with a SIGKILL in the middle of it and a resume after it.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;
#[path = "../../logreel-agent/tests/common/provider.rs"]
mod provider;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use common::Ran;
use common::kill::{At, End, killed_at, marked, until};
use common::project::Project;
use common::run_id;
use provider::{Provider, Said};
use serde_json::{Value, json};

/// A tool that tells the test by a pipe that it is under way, and then does not end; called again it
/// ends at once. `look` is a read, so that after a kill it is called again.
const HOLD: &str = r#"
[tool.look]
description = "Looks"
effect = "read"
run = 'cat >/dev/null; [ -e held ] && echo seen && exit; touch held; echo > pipe; sleep 600'
"#;

/// An agent that plays these lines; `more` is the rest of its file.
fn agent(lines: &[Value], more: &str) -> Project {
    let project = Project::new("");
    project.pipe("pipe");
    write(&project, "a", lines, more);
    project
}

fn write(project: &Project, name: &str, lines: &[Value], more: &str) {
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    project.write(&format!("{name}.jsonl"), &text.join("\n"));
    let head = format!("name = \"{name}\"\nmodel = \"scripted/{name}.jsonl\"\n");
    project.write(&format!("{name}.toml"), &format!("{head}{more}"));
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"tool_calls": [{"name": name, "arguments": arguments}]})
}

fn the_run() -> String {
    run_id(1).to_string()
}

/// Starts it and kills it once the tool of [`HOLD`] is under way, or another that speaks into the pipe.
fn killed_in_tool(project: &Project, args: &[&str], meanwhile: impl FnOnce()) {
    let mut child = project.std_command();
    let mut child = child
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Opened once the tool opens it too.
    std::fs::read_to_string(project.path("pipe")).unwrap();
    meanwhile();
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Starts it and kills it once its log has this event.
fn killed_after(project: &Project, args: &[&str], kind: &str, call: &str) {
    let mut child = project.std_command();
    let mut child = child
        .args(args)
        .arg("--json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let came = events.any(|it| it["kind"] == kind && it["body"]["call"] == call);
    assert!(came, "{kind} of {call} never came");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Ends with this code, and says this.
fn ends(ran: &Ran, code: i32, out: &str) {
    assert_eq!((ran.code, ran.out.trim_end()), (code, out), "{}", ran.err);
}

fn log(project: &Project, run: &str) -> Vec<Value> {
    let ran = project.run(&["log", run, "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines = ran.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of_kind<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|event| event["kind"] == kind).collect()
}

/// Every model call in the log, with its attempts.
fn model_calls(log: &[Value]) -> Vec<(String, u64)> {
    let called = of_kind(log, "model.called").into_iter();
    let called = called.map(|event| {
        let body = &event["body"];
        let call = body["call"].as_str().unwrap().to_owned();
        (call, body["attempt"].as_u64().unwrap())
    });
    called.collect()
}

#[test]
fn a_sub_agent_exhausts_its_parents_budget() {
    let usage = json!({"input_tokens": 1200, "output_tokens": 50});
    let parent = [
        call("helper", json!({"input": "what?"})),
        json!({"text": "It is 42.", "expect": {"last": "42"}}),
    ];
    let project = agent(
        &parent,
        r#"
        tools = ["helper"]
        params = { max_output_tokens = 100 }
        budget = { tokens = 2000 }
        [agents.helper]
        spec = "helper.toml"
        description = "Helps"
        "#,
    );
    let mut first = call("look", json!({}));
    first["usage"] = usage;
    let helper = [first, json!({"text": "42", "expect": "seen"})];
    let tools = "tools = [\"look\"]\nparams = { max_output_tokens = 100 }\n";
    write(&project, "helper", &helper, &format!("{tools}{HOLD}"));

    let run = the_run();
    killed_in_tool(&project, &["run", "a.toml", "go", "--id", &run], || ());
    let ran = project.run(&["resume", &run]);
    ends(&ran, 3, "");
    let shown = project.json(&["show", &run]);
    assert_eq!(shown["status"], "waiting", "{shown}");
    assert_eq!(shown["waiting"][0]["kind"], "child", "{shown}");
    let child = of_kind(&log(&project, &run), "child.started")[0]["body"]["child"].clone();
    let child = child.as_str().unwrap();
    let shown = project.json(&["show", child]);
    assert_eq!(shown["waiting"][0]["kind"], "budget", "{shown}");

    let ran = project.run(&["resume", &run, "--add-budget", "tokens=50000"]);
    ends(&ran, 0, "It is 42.");
    let all = log(&project, child);
    let expected = [("m1.turn", 1), ("m2.turn", 1)].map(|(call, n)| (call.to_owned(), n));
    assert_eq!(model_calls(&all), expected, "what was answered stays so");
    let shown = project.json(&["show", &run]);
    assert_eq!(shown["budget"]["used"]["tokens"], 1250, "{shown}");
    assert_eq!(project.run(&["verify"]).code, 0);
}

#[test]
fn a_second_run_in_a_session_sees_what_the_first_said() {
    let first = [json!({"text": "Your name is Ada."})];
    let project = agent(&first, &format!("tools = [\"look\"]\n{HOLD}"));
    let ran = project.run(&["run", "a.toml", "I am Ada. Who am I?", "--session", "s"]);
    ends(&ran, 0, "Your name is Ada.");
    let second = [
        call("look", json!({})),
        json!({
            "text": "Still Ada.",
            "expect": {"any": ["I am Ada. Who am I?", "Your name is Ada.", "And now?"], "messages": 5},
        }),
    ];
    let text = second.map(|line| line.to_string()).join("\n");
    project.write("b.jsonl", &text);
    let run = the_run();
    let args = [
        "run",
        "a.toml",
        "And now?",
        "--session",
        "s",
        "--model",
        "scripted/b.jsonl",
        "--id",
        &run,
    ];
    killed_in_tool(&project, &args, || ());
    ends(&project.run(&["resume", &run]), 0, "Still Ada.");
    let added = log(&project, &run);
    // Its own four: the input, the call, its result, the answer.
    assert_eq!(of_kind(&added, "message.added").len(), 4);
}

#[test]
fn what_is_said_during_a_tool_call_is_heard_at_the_next_turn() {
    let lines = [
        call("look", json!({})),
        json!({"text": "Left alone.", "expect": {"last": "leave the tests alone", "messages": 4}}),
    ];
    let project = agent(&lines, &format!("tools = [\"look\"]\n{HOLD}"));
    let run = the_run();
    let say = || {
        let args = ["say", &run, "leave the tests alone", "--request-id", "r1"];
        let ran = project.run(&args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out.trim_end().parse::<u64>().unwrap()
    };
    let mut receipts = Vec::new();
    let meanwhile = || receipts.extend([say(), say()]);
    killed_in_tool(&project, &["run", "a.toml", "go", "--id", &run], meanwhile);
    receipts.push(say());
    ends(&project.run(&["resume", &run]), 0, "Left alone.");
    receipts.push(say());
    assert!(
        receipts.iter().all(|it| *it == receipts[0]),
        "the same request, the same receipt: {receipts:?}"
    );
    let log = log(&project, &run);
    let queued = of_kind(&log, "message.queued");
    assert_eq!(queued.len(), 1);
    assert_eq!(queued[0]["seq"], receipts[0]);
    let taken = |it: &&Value| it["kind"] == "message.added" && !it["body"]["queued"].is_null();
    let taken: Vec<&Value> = log.iter().filter(taken).collect();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0]["body"]["queued"], receipts[0]);
    let seq = |event: &Value| event["seq"].as_u64().unwrap();
    let asked = of_kind(&log, "model.called");
    assert!(seq(asked[0]) < seq(queued[0]) && seq(taken[0]) < seq(asked[1]));
}

#[test]
fn an_answer_that_misses_its_schema_is_repaired_once() {
    let schema = "output_schema = { type = \"object\", required = [\"n\"] }\n";
    let missed = json!({"text": "seven"});
    let expect = json!({"last": "does not fit the schema", "messages": 3});
    let slow = |text: &str| json!({"text": text, "delay_ms": 1500, "expect": expect});
    for (second, code, out) in [("{\"n\": 7}", 0, "{\"n\":7}"), ("eight", 1, "")] {
        let project = agent(&[missed.clone(), slow(second)], schema);
        let run = the_run();
        let args = ["run", "a.toml", "go", "--id", &run];
        killed_after(&project, &args, "model.called", "m2.repair");
        ends(&project.run(&["resume", &run]), code, out);
        let calls = model_calls(&log(&project, &run));
        let expected = [("m1.turn", 1), ("m2.repair", 1), ("m2.repair", 2)];
        assert_eq!(calls, expected.map(|(call, n)| (call.to_owned(), n)));
        if code == 1 {
            let shown = project.json(&["show", &run]);
            assert_eq!(shown["error"]["kind"], "schema", "{shown}");
        }
    }
}

#[test]
fn a_compaction_is_made_once_and_gone_on_from() {
    let mut first = call("look", json!({}));
    first["usage"] = json!({"input_tokens": 1000});
    let lines = [
        first,
        json!({"text": "I saw it.", "delay_ms": 1500, "expect": {"last": "Summarise", "messages": 4}}),
        json!({"text": "done", "expect": {"last": ["go", "I saw it."], "messages": 1}}),
    ];
    let project = agent(
        &lines,
        r#"
        tools = ["look"]
        context = { compact_at = 500 }
        [tool.look]
        description = "Looks"
        effect = "read"
        run = "cat > /dev/null; echo seen"
        "#,
    );
    let run = the_run();
    let args = ["run", "a.toml", "go", "--id", &run];
    killed_after(&project, &args, "model.called", "m2.compact");
    ends(&project.run(&["resume", &run]), 0, "done");
    let log = log(&project, &run);
    assert_eq!(of_kind(&log, "context.compacted").len(), 1);
    let expected = [
        ("m1.turn", 1),
        ("m2.compact", 1),
        ("m2.compact", 2),
        ("m3.turn", 1),
    ];
    let expected = expected.map(|(call, n)| (call.to_owned(), n));
    assert_eq!(model_calls(&log), expected);
}

#[test]
fn an_approved_call_is_made_once_with_strace() {
    let lines = [
        call("send", json!({"to": "ada"})),
        json!({"text": "It is sent.", "expect": "sent to ada"}),
    ];
    let project = agent(
        &lines,
        r#"
        tools = ["send"]
        [tool.send]
        description = "Sends"
        effect = "write"
        run = '''cat > /dev/null; echo $LOGREEL_KEY >> sent; echo > pipe; sleep 600'''
        reconcile = '''cat > /dev/null; grep -qx $LOGREEL_KEY sent || exit 10; echo sent to ada'''
        "#,
    );
    let run = the_run();
    let args = ["run", "a.toml", "go", "--id", &run];
    let wal = project.path(".logreel/runs.db-wal");
    // Killed at the very commit of the question.
    let asked = (1..20).any(|nth| {
        drop(std::fs::remove_dir_all(project.path(".logreel")));
        let mut command = project.std_command();
        let end = killed_at(command.args(args), &wal, At::Synced, nth);
        assert_eq!(end, End::Killed, "it never asked");
        let ran = project.run(&["log", &run, "--json"]);
        let last = ran.out.lines().last().unwrap_or("{}");
        let last: Value = serde_json::from_str(last).unwrap();
        last["kind"] == "wait.started"
    });
    assert!(asked);
    let shown = project.json(&["show", &run]);
    let wait = &shown["waiting"][0];
    assert_eq!(wait["tool"], "send", "{shown}");
    assert_eq!(wait["arguments"], json!({"to": "ada"}), "{shown}");
    // Nobody was asked by whoever goes on without an answer, and nothing was sent.
    ends(&project.run(&["resume", &run]), 3, "");
    let ran = project.run(&["answer", &run, "--approve"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        !project.path("sent").exists(),
        "not before someone drives it"
    );
    // Killed between the call and its record; the yes still holds, and the call is not made again.
    killed_in_tool(&project, &["resume", &run], || ());
    ends(&project.run(&["resume", &run]), 0, "It is sent.");
    assert_eq!(project.read("sent").lines().count(), 1);
    let log = log(&project, &run);
    assert_eq!(of_kind(&log, "wait.started").len(), 1);
    assert_eq!(of_kind(&log, "tool.called").len(), 1);
    // `reconcile` said what became of it.
    assert_eq!(of_kind(&log, "tool.resolved").len(), 1);
    assert_eq!(of_kind(&log, "tool.returned").len(), 0);
}

#[test]
fn an_answer_that_was_coming_in_is_asked_for_again_and_told_of() {
    let slow = Said::text(&"word ".repeat(40)).in_pieces(50, Duration::from_millis(200));
    let provider = Provider::by_turn(vec![
        vec![Said::call("toolu_0123456789", "look", "{}").into()],
        vec![slow.into(), Said::text("whole").into()],
    ]);
    let project = Project::new("");
    let spec = format!(
        r#"
        name = "a"
        model = "anthropic/claude-test"
        base_url = "{}"
        api_key_env = "LIFE_KEY"
        tools = ["look"]
        [tool.look]
        description = "Looks"
        effect = "read"
        run = "cat > /dev/null; echo seen"
        "#,
        provider.anthropic_url()
    );
    project.write("a.toml", &spec);
    let run = the_run();
    let mut command = project.std_command();
    command.args(["run", "a.toml", "go", "--id", &run, "--json"]);
    command.env("LIFE_KEY", "a-key-of-life-1");
    let begun = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut begun = begun.unwrap();
    until("the second turn is asked for", || {
        provider.counts() == [1, 1]
    });
    begun.kill().unwrap();
    begun.wait().unwrap();
    let mut resume = project.command();
    resume.env("LIFE_KEY", "a-key-of-life-1");
    ends(&common::ran(resume.args(["resume", &run])), 0, "whole");
    assert_eq!(provider.counts(), [1, 2]);
    provider.assert_no_faults();
    let log = log(&project, &run);
    let expected = [("m1.turn", 1), ("m2.turn", 1), ("m2.turn", 2)];
    let expected = expected.map(|(call, n)| (call.to_owned(), n));
    assert_eq!(model_calls(&log), expected);
    let said = log.iter().filter(|it| it.to_string().contains("word word"));
    assert_eq!(said.count(), 0, "what was not whole is not recorded");
}

#[test]
fn a_secret_that_a_tool_prints_is_nowhere() {
    let secrets = [
        "correct-horse-battery-staple-7431",
        "sk-proj-aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0iL",
        "another-key-55417",
    ];
    let leak = [secrets[0], secrets[1]].map(|it| format!("I found {it} there."));
    let provider = Provider::by_turn(vec![
        vec![Said::call("call_0123456789", "leak", "{\"deep\": false}").into()],
        vec![Said::call("call_0123456780", "leak", "{\"deep\": true}").into()],
        vec![Said::text(&leak.join(" ")).into()],
    ]);
    let project = Project::new("");
    project.pipe("pipe");
    let spec = r#"
        name = "a"
        model = "openai/gpt-test"
        base_url = "URL"
        api_key_env = "LIFE_KEY"
        tools = ["leak"]
        env_from = ["DATABASE_PASSWORD"]
        [tool.leak]
        description = "Leaks"
        effect = "read"
        run = '''
        cat > /dev/null
        for to in 1 2; do
          echo "password $DATABASE_PASSWORD" >&$to
          echo "token sk-proj-aB3dE6gH9jK2mN5pQ8sT1""vW4yZ7cF0iL" >&$to
        done
        [ -e once ] || { touch once; exit; }
        [ -e held ] && exit
        touch held; echo > pipe; sleep 600'''
    "#;
    // The file itself has the second one only in parts: what a spec says is recorded.
    let spec = spec.replace("URL", &provider.openai_url());
    project.write("a.toml", &spec);
    let run = the_run();
    let command = |args: &[&str]| {
        let mut command = project.std_command();
        command.args(args).stdin(Stdio::null());
        command.env("DATABASE_PASSWORD", secrets[0]);
        command.env("LIFE_KEY", secrets[2]);
        command
    };
    let begun = command(&["run", "a.toml", "go", "--id", &run])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut begun = begun.unwrap();
    std::fs::read_to_string(project.path("pipe")).unwrap();
    begun.kill().unwrap();
    let mut said = vec![begun.wait_with_output().unwrap()];
    let grep = || {
        for secret in secrets {
            let mut grep = std::process::Command::new("grep");
            let grep = grep.args(["-raF", secret, ".logreel"]);
            let found = grep.current_dir(project.0.path()).output().unwrap();
            assert_eq!(found.status.code(), Some(1), "{found:?}");
        }
        let files = ["runs.db", "runs.db-wal"].map(|it| project.path(".logreel").join(it));
        let all = files
            .map(|it| std::fs::read(it).unwrap_or_default())
            .concat();
        // The words beside them are there, so the look was at the right place.
        assert!(String::from_utf8_lossy(&all).contains("password [redacted]"));
    };
    assert!(project.path(".logreel/runs.db-wal").exists());
    grep();
    let resumed = command(&["resume", &run]).output().unwrap();
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    let out = String::from_utf8_lossy(&resumed.stdout).into_owned();
    assert!(out.starts_with("I found "), "{out}");
    said.push(resumed);
    for args in [["log", &run, "--json"], ["show", &run, "--json"]] {
        said.push(command(&args).output().unwrap());
    }
    said.push(command(&["show", &run]).output().unwrap());
    said.push(command(&["log", &run]).output().unwrap());
    provider.assert_no_faults();
    let requests = provider.seen().into_iter().map(|seen| seen.raw);
    let requests: String = requests.collect();
    assert!(
        requests.contains("password [redacted]"),
        "the result was told"
    );
    for secret in secrets {
        for said in &said {
            let text = [&said.stdout[..], &said.stderr[..]].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(!text.contains(secret), "{text}");
        }
        assert!(!requests.contains(secret), "{requests}");
    }
    grep();
    let log = String::from_utf8_lossy(&said[2].stdout).into_owned();
    let log: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let returned = of_kind(&log, "tool.returned");
    let redacted = returned.iter().map(|it| &it["body"]["redacted"]);
    assert_eq!(redacted.collect::<Vec<_>>(), [2, 2], "two in each result");
    let left_behind = format!("DATABASE_PASSWORD={}", secrets[0]);
    until("the tool that was left behind is gone", || {
        marked(&left_behind).is_empty()
    });
}
