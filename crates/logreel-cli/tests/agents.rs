//! Agent files on the command line: what `check` shows, what `run` records, and who may steer.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::Arc;

use common::Ran;
use common::project::Project;
use logreel::core::event::Budget;
use logreel::workflow::Problems;
use logreel::{Agents, Ctx, Driving, Engine, Json, RunId};
use logreel_agent::{AgentSpec, Beside, Overrides};
use serde_json::{Value, json};

const FIXER: &str = r#"
name = "fixer"
model = "openai/no-such-model"
api_key_env = "NO_SUCH_KEY"
tools = ["fs.read", "fs.edit", "shell", "github.get_*", "github.merge", "researcher", "lint", "publish"]
plan = true
verify_rounds = 1
env_from = ["HOME"]
[budget]
tokens = 200_000
wall = "20m"
[policy]
ask = ["shell:git push *"]
allow = ["shell"]
deny = ["fs.*:/etc/**"]
[[verify]]
name = "tests"
run = "cargo test"
timeout = "5m"
[[verify]]
name = "spelling"
run = "typos"
required = false
[agents.researcher]
spec = "researcher.toml"
description = "Looks things up"
[tool.lint]
run = "./lint.sh"
description = "Lint the tree"
effect = "read"
[tool.publish]
run = "./publish.sh"
description = "Publish it"
[mcp.github]
url = "https://example.invalid/mcp"
headers = { Authorization = "Bearer ${NO_SUCH_TOKEN}" }
effects = { "get_*" = "read" }
"#;

const RESEARCHER: &str = r#"
name = "researcher"
model = "scripted/answers.jsonl"
tools = ["http.get"]
budget = { usd = 0.5 }
"#;

const ANSWERS: &str = "{\"text\": \"Done.\"}\n";

fn project() -> Project {
    let project = Project::new("name = 'w'\n[[step]]\nid = 'a'\nagent = 'fixer.toml'\n");
    project.write("fixer.toml", FIXER);
    project.write("researcher.toml", RESEARCHER);
    project.write("answers.jsonl", ANSWERS);
    project
}

fn check(name: &str, ran: &Ran) {
    let filters = vec![("blake3:[0-9a-f]{64}", "[digest]")];
    let Ran { code, out, err } = ran;
    insta::with_settings!({filters => filters}, {
        insta::assert_snapshot!(name, format!("exit {code}\n--- stdout\n{out}--- stderr\n{err}"));
    });
}

fn refused(project: &Project, args: &[&str], kind: &str, code: i32) -> String {
    let ran = project.run(&[args, &["--json"]].concat());
    let last = ran.err.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{}", ran.err));
    assert_eq!(
        (ran.code, &error["error"]["kind"]),
        (code, &json!(kind)),
        "{args:?}: {error}"
    );
    error["error"].to_string()
}

/// Drives nothing: its runs stay in the queue.
struct Queues;

impl Agents for Queues {
    fn load(&self, _: &Path) -> Result<Value, Problems> {
        unreachable!("it is given what was read")
    }

    fn lacks(&self, _: &Value) -> Option<String> {
        None
    }

    fn budget(&self, _: &Value) -> Budget {
        Budget::default()
    }

    fn plans(&self, _: &Value) -> bool {
        false
    }

    fn drive(&self, _: Ctx, _: Arc<Value>, _: Json) -> Driving {
        unreachable!("it is queued")
    }
}

/// A run of the agent in a file that nobody has begun to drive.
fn queued(project: &Project, file: &str, overrides: &Overrides) -> RunId {
    let path = project.path(file).canonicalize().unwrap();
    let spec = AgentSpec::read_with_overrides(&path, overrides, Beside::prices(&|_| true)).unwrap();
    project.run(&["init"]);
    common::runtime().block_on(async {
        let builder = Engine::builder().sqlite(project.path(".logreel/runs.db"));
        let engine = builder.agents(Arc::new(Queues)).build().await.unwrap();
        let agent = engine.agent(&spec.to_json()).unwrap();
        let start = agent.start("fix it").spec_file(path.to_string_lossy());
        let run = start.queue().await.unwrap().id();
        engine.close().await.unwrap();
        run
    })
}

#[test]
fn check_shows_all_that_an_agent_may_do() {
    let project = project();
    check("agent", &project.run(&["check", "fixer.toml"]));
    check(
        "agent_json",
        &project.run(&["check", "fixer.toml", "--json"]),
    );
    check("agent_in_workflow", &project.run(&["check", "w.toml"]));
    project.write("researcher.toml", "name = 'researcher'\nmodel = 'x'\n");
    check("agent_broken", &project.run(&["check", "w.toml"]));
}

#[test]
fn a_file_is_a_workflow_or_an_agent_and_flags_of_agents_are_for_agents() {
    let project = project();
    project.write("none.toml", "name = 'x'\n");
    project.write(
        "both.toml",
        "name = 'x'\nmodel = 'ollama/x'\n[[step]]\nid = 'a'\n",
    );
    for verb in ["run", "check"] {
        assert!(refused(&project, &[verb, "none.toml"], "invalid", 2).contains("neither"));
        assert!(refused(&project, &[verb, "both.toml"], "invalid", 2).contains("both"));
    }
    for flags in [
        &["--model", "ollama/x"][..],
        &["--allow", "shell"],
        &["--no-ask"],
    ] {
        let said = refused(&project, &[&["run", "w.toml"], flags].concat(), "usage", 2);
        assert!(said.contains(flags[0]), "{said}");
    }
    let said = refused(&project, &["run", "fixer.toml", "x"], "invalid", 2);
    assert!(said.contains("NO_SUCH_KEY is not set"), "{said}");
    let wrong = ["run", "researcher.toml", "--model", "x", "--allow", "["];
    refused(&project, &wrong, "invalid", 2);
    project.write(
        "typed.toml",
        "name = 't'\nmodel = 'scripted/answers.jsonl'\ninput_schema = { type = 'object' }\n",
    );
    let said = refused(&project, &["run", "typed.toml", "text"], "invalid", 2);
    assert!(said.contains("does not fit"), "{said}");
}

#[test]
fn run_records_the_folder_and_what_was_said_beside_the_file() {
    let project = project();
    std::fs::create_dir(project.path("below")).unwrap();
    project.write("below/mine.jsonl", "{\"text\": \"Mine.\"}\n");
    let mut command = project.command();
    command.current_dir(project.path("below"));
    command.args(["run", "../researcher.toml", "look", "-q"]);
    command.args([
        "--model",
        "scripted/mine.jsonl",
        "--allow",
        "shell",
        "--no-ask",
    ]);
    common::ran(&mut command);
    let run = project.json(&["show", "@last"]);
    let folder = project.path("below").canonicalize().unwrap();
    assert_eq!(run["dir"], json!(folder));
    assert_eq!(
        (&run["kind"], &run["agent"]),
        (&json!("agent"), &json!("researcher"))
    );
    let log = project.run(&["log", "@last", "--json"]);
    let first: Value = serde_json::from_str(log.out.lines().next().unwrap()).unwrap();
    let spec = &first["body"]["spec"];
    assert_eq!(spec["script"], json!([{"text": "Mine."}]));
    assert_eq!(spec["policy"], json!({"allow": ["shell"], "no_ask": true}));
}

#[test]
fn say_gives_a_receipt_once_and_only_to_a_living_agent() {
    let project = project();
    let run = queued(&project, "researcher.toml", &Overrides::default()).to_string();
    let first = project.run(&["say", &run, "look there", "--request-id", "r1"]);
    assert_eq!(first.code, 0, "{}", first.err);
    assert_eq!(first.out, "2\n");
    let again = project.run(&["say", &run, "look there", "--request-id", "r1"]);
    assert_eq!(again.out, first.out);
    assert_eq!(project.json(&["say", &run, "and there"])["seq"], json!(3));
    let log = project.run(&["log", &run, "--json"]);
    let event: Value = serde_json::from_str(log.out.lines().nth(1).unwrap()).unwrap();
    assert_eq!(event["kind"], json!("message.queued"));
    assert_eq!(event["body"], json!({"by": "ada", "text": "look there"}));

    project.run(&["cancel", &run]);
    refused(&project, &["say", &run, "too late"], "terminal", 5);
    let receipt = project.run(&["say", &run, "look there", "--request-id", "r1"]);
    assert_eq!((receipt.code, receipt.out.as_str()), (0, "2\n"));
    refused(&project, &["say", &run, " "], "usage", 2);

    project.write(
        "plain.toml",
        "name = 'p'\n[[step]]\nid = 'a'\nwait = 'approval'\n",
    );
    project.run(&["run", "plain.toml"]);
    refused(&project, &["say", "@last", "hello"], "not_applicable", 5);
}

#[test]
fn a_changed_agent_file_is_refused_and_an_overridden_one_is_not_changed() {
    let project = project();
    let overrides = Overrides {
        model: None,
        allow: vec!["shell".to_owned()],
        no_ask: true,
    };
    let run = queued(&project, "researcher.toml", &overrides).to_string();
    project.write("answers.jsonl", "{\"text\": \"Otherwise.\"}\n");
    let said = refused(&project, &["resume", &run], "spec_changed", 5);
    assert!(
        said.contains("--accept-spec-change") && said.contains("--stored-spec"),
        "{said}"
    );
    project.write("answers.jsonl", ANSWERS);
    let resumed = project.run(&["resume", &run]);
    assert_ne!(resumed.code, 5, "{}", resumed.err);

    let run = queued(&project, "researcher.toml", &overrides).to_string();
    project.write("answers.jsonl", "{\"text\": \"Otherwise.\"}\n");
    project.run(&["resume", &run, "--accept-spec-change"]);
    let changed = project.run(&["log", &run, "--json", "--kind", "spec.changed"]);
    let changed: Value = serde_json::from_str(changed.out.trim()).unwrap();
    let spec = &changed["body"]["spec"];
    assert_eq!(spec["script"], json!([{"text": "Otherwise."}]));
    assert_eq!(spec["policy"]["no_ask"], json!(true));
}

#[test]
fn retry_goes_on_with_another_model() {
    let project = project();
    let run = queued(&project, "researcher.toml", &Overrides::default()).to_string();
    project.write("other.jsonl", "{\"text\": \"Other.\"}\n");
    let retry = ["retry", &run, "--model", "scripted/other.jsonl"];
    refused(&project, &retry, "not_applicable", 5);
    project.run(&["cancel", &run]);
    refused(&project, &["retry", &run, "--model", "x"], "invalid", 2);
    project.run(&retry);
    let changed = project.run(&["log", "@last", "--json", "--kind", "spec.changed"]);
    let changed: Value = serde_json::from_str(changed.out.trim()).unwrap();
    assert_eq!(
        changed["body"]["spec"]["script"],
        json!([{"text": "Other."}])
    );
}
