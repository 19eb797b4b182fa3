//! What goes wrong at a provider or with what a model asks for, seen from the command line: each ends in
//! a retry, a message to the model or a failure with a name, in both wire formats.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;
#[path = "../../logreel-agent/tests/common/provider.rs"]
mod provider;

use std::time::Duration;

use common::project::Project;
use common::{ran, run_id};
use provider::{Format, How, Provider, Reply, Said};
use serde_json::Value;

const SPEC: &str = r#"
name = "unlucky"
model = "MODEL"
base_url = "URL"
api_key_env = "FAULTS_KEY"
max_turns = 8
tools = ["look", "flood", "shell"]
policy = { default = "allow" }
[tool.look]
description = "Looks"
effect = "read"
run = "cat"
[tool.flood]
description = "Floods, and is a write"
run = "head -c 20971520 /dev/zero | tr '\\0' x"
"#;

/// How a run ends.
enum Ends {
    With(&'static str),
    /// With a failure of this kind.
    Failed(&'static str),
}

struct Case {
    name: &'static str,
    /// What each request of each turn gets.
    turns: Vec<Vec<Reply>>,
    more: &'static str,
    ends: Ends,
    /// How often each turn was asked for.
    counts: Vec<usize>,
    /// The kinds of failures the log names, in order.
    failures: Vec<&'static str>,
    /// What the last request says.
    told: Option<&'static str>,
}

fn case(name: &'static str, turns: Vec<Vec<Reply>>) -> Case {
    let counts = turns.iter().map(Vec::len).collect();
    Case {
        name,
        turns,
        more: "",
        ends: Ends::With("fine"),
        counts,
        failures: Vec::new(),
        told: None,
    }
}

fn fine() -> Reply {
    Said::text("fine").into()
}

fn call(nth: usize, name: &str, arguments: &str) -> Reply {
    Said::call(&format!("call_{nth:010}"), name, arguments).into()
}

fn cases() -> Vec<Case> {
    let after_call =
        |name, tool, arguments| case(name, vec![vec![call(0, tool, arguments)], vec![fine()]]);
    let cut = |how| Reply::from(Said::text("a long answer that is cut").sent(how));
    let endless = |same: bool| {
        let turns = 0..8;
        let arguments = |nth| format!("{{\"n\": {}}}", if same { 0 } else { nth });
        let turns = turns.map(|nth| vec![call(nth, "look", &arguments(nth))]);
        turns.collect::<Vec<_>>()
    };
    let not_json = || Reply::from(Said::text("not JSON"));
    let schema = "output_schema = { type = \"object\", required = [\"n\"] }\n";
    let slow_down = || Reply::status(429, "slow down").header("retry-after", "1");
    let broken = || Reply::status(500, "oh no");
    let empty = || Reply::from(Said::of(vec![]));
    vec![
        Case {
            failures: vec!["rate_limited"],
            ..case("429 with Retry-After", vec![vec![slow_down(), fine()]])
        },
        Case {
            failures: vec!["model_unavailable"],
            ..case("500", vec![vec![broken(), fine()]])
        },
        Case {
            failures: vec!["model_unavailable"],
            ..case(
                "a stream that ends in the middle",
                vec![vec![cut(How::Cut), fine()]],
            )
        },
        Case {
            failures: vec!["model_unavailable"],
            ..case("a stream that breaks", vec![vec![cut(How::Broken), fine()]])
        },
        Case {
            failures: vec!["model_unavailable"],
            ..case("empty content", vec![vec![empty(), fine()]])
        },
        Case {
            failures: vec!["model_unavailable"],
            ..case(
                "a success that is no answer",
                vec![vec![Reply::ok("text/html", "<html>moved</html>"), fine()]],
            )
        },
        Case {
            ends: Ends::Failed("auth"),
            failures: vec!["auth"],
            ..case(
                "a key that is refused",
                vec![vec![Reply::status(401, "no")]],
            )
        },
        Case {
            more: schema,
            ends: Ends::With("{\"n\":7}"),
            told: Some("does not fit the schema"),
            ..case(
                "not JSON where JSON was asked",
                vec![vec![not_json()], vec![Said::text("{\"n\": 7}").into()]],
            )
        },
        Case {
            more: schema,
            ends: Ends::Failed("schema"),
            ..case("not JSON, twice", vec![vec![not_json()], vec![not_json()]])
        },
        Case {
            told: Some("there is no tool"),
            ..after_call("a tool that does not exist", "frobnicate", "{}")
        },
        Case {
            told: Some("arguments"),
            ..after_call("arguments that are no JSON", "shell", "{\"command\": ")
        },
        Case {
            // It ran: that it talks too much does not make it one that failed.
            told: Some("bytes left out"),
            ..after_call("20 MB of an own tool", "flood", "{}")
        },
        Case {
            told: Some("bytes left out"),
            ..after_call(
                "10 MB of the shell",
                "shell",
                "{\"command\": \"head -c 10485760 /dev/zero | tr '\\\\0' x\"}",
            )
        },
        Case {
            ends: Ends::Failed("max_turns"),
            ..case("a model that never stops", endless(false))
        },
        Case {
            ends: Ends::Failed("loop"),
            counts: vec![1; 5],
            ..case("a model that repeats itself", endless(true))
        },
    ]
}

fn check(format: Format, case: Case) {
    let name = format!("{format:?}: {}", case.name);
    let provider = Provider::by_turn(case.turns);
    let (model, url) = match format {
        Format::Anthropic => ("anthropic/claude-test", provider.anthropic_url()),
        Format::OpenAi | Format::Other => ("openai/gpt-test", provider.openai_url()),
    };
    let project = Project::new("");
    let spec = SPEC.replace("MODEL", model).replace("URL", &url);
    let spec = spec.replace("max_turns", &format!("{}max_turns", case.more));
    project.write("a.toml", &spec);
    let run = run_id(1).to_string();
    let mut command = project.command();
    command.env("FAULTS_KEY", "a-key-of-faults-1");
    // A hang is a failure, and says so here.
    command.timeout(Duration::from_secs(60));
    let ended = ran(command.args(["run", "a.toml", "go", "--id", &run]));
    let log = project.run(&["log", &run, "--json"]);
    let log: Vec<Value> = log
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shown = project.json(&["show", &run]);
    match case.ends {
        Ends::With(output) => {
            let is = (ended.code, ended.out.trim_end());
            assert_eq!(is, (0, output), "{name}: {}", ended.err);
        }
        Ends::Failed(kind) => {
            assert_eq!(ended.code, 1, "{name}: {}", ended.err);
            assert_eq!(shown["error"]["kind"], kind, "{name}: {shown}");
        }
    }
    if case.name.ends_with("of an own tool") {
        let output = project.run(&["log", &run, "--kind", "tool.returned", "--json"]);
        assert!(output.out.contains("\"blob\""), "{name}: {}", output.out);
    }
    let failed = log.iter().filter(|it| it["kind"] == "model.failed");
    let failed: Vec<&Value> = failed.map(|it| &it["body"]["error"]["kind"]).collect();
    assert_eq!(failed, case.failures, "{name}");
    assert_eq!(provider.counts(), case.counts, "{name}");
    provider.assert_no_faults();
    let seen = provider.seen();
    let last = &seen.last().unwrap().raw;
    assert!(
        last.len() < 100_000,
        "{name}: a request of {} bytes",
        last.len()
    );
    if let Some(told) = case.told {
        assert!(last.contains(told), "{name}: {last}");
    }
    let waited = log
        .iter()
        .find_map(|it| it["body"]["retry_after_ms"].as_u64());
    assert_eq!(waited.is_some(), case.name.starts_with("429"), "{name}");
    let verified = project.run(&["verify", &run]);
    assert_eq!(verified.code, 0, "{name}: {}", verified.err);
    println!(
        "{name}: exit {}, {} requests, failures {failed:?}",
        ended.code,
        seen.len()
    );
}

fn check_all(format: Format) {
    // They mostly wait, for a provider that asks them to.
    std::thread::scope(|scope| {
        let checks = cases().into_iter();
        let checks: Vec<_> = checks
            .map(|case| scope.spawn(move || check(format, case)))
            .collect();
        let failed = checks.into_iter().filter_map(|it| it.join().err()).count();
        assert_eq!(failed, 0, "cases that do not hold");
    });
}

#[test]
fn openai_faults_end_in_a_retry_a_message_or_a_name() {
    check_all(Format::OpenAi);
}

#[test]
fn anthropic_faults_end_in_a_retry_a_message_or_a_name() {
    check_all(Format::Anthropic);
}

/// A provider that nobody can reach is tried again, without a lease once that takes longer, and told of by
/// name; a person who does not want to wait for it is heard.
#[test]
fn a_provider_that_stays_away_is_told_of_by_name() {
    let project = Project::new("");
    // Nobody listens at a port that was just given back.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let spec = SPEC
        .replace("MODEL", "openai/gpt-test")
        .replace("URL", &url);
    project.write("a.toml", &spec);
    let run = run_id(1).to_string();
    let mut command = project.std_command();
    command.env("FAULTS_KEY", "a-key-of-faults-1");
    let running = project.start_with(command, &["run", "a.toml", "go", "--id", &run]);
    let mut shown = Value::Null;
    common::kill::until("it waits without a lease", || {
        // Before there is a store there is nothing to show.
        let ran = project.run(&["show", &run, "--json"]);
        shown = serde_json::from_str(&ran.out).unwrap_or_default();
        let waits = shown["waiting"].as_array();
        waits.is_some_and(|it| !it.is_empty()) && shown["driver"].is_null()
    });
    assert_eq!(shown["waiting"][0]["kind"], "retry", "{shown}");
    let failed = project.run(&["log", &run, "--kind", "model.failed", "--json"]);
    assert!(failed.out.contains("model_unavailable"), "{}", failed.out);
    assert_eq!(project.run(&["cancel", &run]).code, 0);
    assert_eq!(running.end().code, 130);
}
