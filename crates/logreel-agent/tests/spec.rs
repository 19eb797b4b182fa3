//! Agent files: what is read of them, and what is said about those that are wrong.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

use logreel_agent::{AgentSpec, Beside, Overrides, SpecKind};
use serde_json::json;
use tempfile::TempDir;

struct Folder(TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> Result<AgentSpec, String> {
        self.read_with(name, &Overrides::default())
    }

    /// Only one model has a price here.
    fn read_with(&self, name: &str, overrides: &Overrides) -> Result<AgentSpec, String> {
        let priced = |model: &str| model == "anthropic/claude-sonnet-4-5";
        let path = self.0.path().join(name);
        let read = AgentSpec::read_with_overrides(path, overrides, Beside::prices(&priced));
        read.map_err(|problems| self.without_folder(&problems.to_string()))
    }

    fn without_folder(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

const EVERYTHING: &str = r#"
name = "fixer"
description = "Fixes a failing test"
model = "anthropic/claude-sonnet-4-5"
base_url = "https://example.invalid/v1"
api_key_env = "FIXER_KEY"
params = { max_output_tokens = 8000, reasoning = { effort = "high" } }
system_file = "texts/fixer.md"
dir = "crates/a"
tools = ["fs.read", "fs.edit", "shell", "github.get_*", "researcher", "lint"]
input_schema = { type = "string" }
output_schema_file = "answer.schema.json"
plan = true
max_turns = 40
verify_rounds = 3
context = { compact_at = 100_000 }
env = { CI = "1", TOKEN = "x-${LINT_TOKEN}" }
env_from = ["CARGO_HOME"]
redact = ["tok_[a-z]+"]
[budget]
tokens = 200_000
usd = 2.5
wall = "20m"
tool_calls = 100
children = 5
[policy]
default = "ask"
ask = ["shell:git push *"]
allow = ["shell"]
deny = ["fs.write:/etc/**"]
[[verify]]
name = "tests"
run = "cargo test"
timeout = "5m"
[[verify]]
name = "spelling"
run = "typos"
required = false
[agents.researcher]
spec = "sub/researcher.toml"
[tool.lint]
run = "./lint.sh"
description = "Lint the tree"
effect = "read"
schema = { type = "object", properties = { path = { type = "string" } } }
timeout = "30s"
[tool.publish]
run = "./publish.sh"
description = "Publish it"
reconcile = "./published.sh"
[mcp.github]
url = "https://example.invalid/${ORG}/mcp"
headers = { Authorization = "Bearer ${GITHUB_TOKEN}" }
effects = { "get_*" = "read" }
tools = ["get_*", "list_*"]
timeout = "10s"
[mcp.files]
command = ["npx", "-y", "server", "."]
env = { ROOT = "${FILES_ROOT}" }
env_from = ["NODE_PATH"]
trust_annotations = true
"#;

fn everything() -> Folder {
    Folder::new(&[
        ("fixer.toml", EVERYTHING),
        ("texts/fixer.md", "You fix tests.\n"),
        ("answer.schema.json", r#"{"type": "object"}"#),
        (
            "sub/researcher.toml",
            "name = 'researcher'\nmodel = 'scripted/answers.jsonl'\ndescription = 'Looks things up'\n",
        ),
        (
            "sub/answers.jsonl",
            "{\"text\": \"one\"}\n\n{\"error\": {\"kind\": \"rate_limited\"}}\n",
        ),
    ])
}

#[test]
fn a_file_with_everything_is_read_whole_and_comes_back_from_the_log_as_it_was() {
    let folder = everything();
    let spec = folder.read("fixer.toml").unwrap();
    insta::with_settings!({sort_maps => true}, {
        insta::assert_json_snapshot!(spec.to_json());
    });
    assert_eq!(AgentSpec::from_json(&spec.to_json()).unwrap(), spec);
    let needed: Vec<String> = spec.variables().into_iter().collect();
    assert_eq!(
        needed.join(" "),
        "CARGO_HOME FILES_ROOT FIXER_KEY GITHUB_TOKEN LINT_TOKEN NODE_PATH ORG"
    );
    let listed = spec.listed_tools().into_iter().map(|tool| {
        let effect = tool.effect.map_or("-", |effect| effect.as_str());
        let declared = if tool.declared { "" } else { " (default)" };
        let verdict = tool.verdict.as_str();
        format!(
            "{} {effect}{declared} {verdict} {:?}",
            tool.name, tool.arguments
        )
    });
    insta::assert_snapshot!(listed.collect::<Vec<_>>().join("\n"));
    assert!(spec.admit(&json!("fix it")).is_ok());
    assert!(spec.admit(&json!({"fix": "it"})).is_err());
}

#[test]
fn every_named_file_is_in_the_digest() {
    let folder = everything();
    let mut seen = vec![folder.read("fixer.toml").unwrap().digest()];
    for (name, text) in [
        ("texts/fixer.md", "You fix tests well.\n"),
        ("answer.schema.json", r#"{"type": "array"}"#),
        ("sub/answers.jsonl", "{\"text\": \"two\"}\n"),
    ] {
        folder.write(name, text);
        let digest = folder.read("fixer.toml").unwrap().digest();
        assert!(!seen.contains(&digest), "{name}");
        seen.push(digest);
    }
}

#[test]
fn all_problems_are_told_at_once_each_with_its_line() {
    let folder = Folder::new(&[
        (
            "bad.toml",
            r#"
name = ""
model = "gpt-4"
base_url = "example.invalid"
api_key_env = "sk-12345"
params = 3
system = "a"
system_file = "missing.md"
dir = "../elsewhere"
tools = ["fs.read", "fs.reed", "github.*", "nobody.x", "fs.read"]
output_schema = { type = "strin" }
input_schema_file = "schema.json"
plan = "yes"
max_turns = 0
verify_rounds = -1
context = {}
colour = "red"
env = { "A-B" = "1", C = "${D" }
env_from = ["E F"]
redact = ["("]
[budget]
usd = -1
wall = "20 minutes"
money = 1
[policy]
default = "perhaps"
ask = ["shell:[", ":x"]
deny = ["shel:rm *", "github.merge", "f*"]
[[verify]]
name = "tests"
[[verify]]
name = "tests"
run = "true"
timeout = "0s"
[agents.helper]
spec = "helper.toml"
[agents.circle]
spec = "bad.toml"
description = "me"
[agents.shell]
description = "no file"
[tool.helper]
run = "true"
description = "has the name of an agent"
effect = "reads"
[tool."my tool"]
run = "true"
description = "reads"
effect = "read"
schema = { type = "array" }
reconcile = "false"
[mcp.github]
url = "ftp://example.invalid"
command = ["a"]
effects = { "get_[" = "read", x = "delete" }
[mcp.none]
tools = ["*"]
[mcp.http]
command = []
headers = { A = "b" }
"#,
        ),
        ("schema.json", "{\n  \"type\": }"),
        (
            "helper.toml",
            "model = 'scripted/answers.jsonl'\nname = 'helper'\nunknown = 1\n",
        ),
        ("answers.jsonl", "{\"text\": \"a\"}\n[1]\n{\n"),
    ]);
    insta::assert_snapshot!(folder.read("bad.toml").unwrap_err());
}

#[test]
fn a_limit_in_dollars_wants_prices_in_the_whole_tree() {
    let folder = Folder::new(&[
        (
            "a.toml",
            "name = 'a'\nmodel = 'openai/unknown'\nbudget = { usd = 1 }\n[agents.b]\nspec = 'b.toml'\ndescription = 'b'\n",
        ),
        (
            "b.toml",
            "name = 'b'\nmodel = 'anthropic/claude-sonnet-4-5'\n[agents.c]\nspec = 'c.toml'\ndescription = 'c'\n",
        ),
        ("c.toml", "name = 'c'\nmodel = 'ollama/llama'\n"),
    ]);
    insta::assert_snapshot!(folder.read("a.toml").unwrap_err());
    assert!(folder.read("b.toml").is_ok());
}

#[test]
fn what_was_said_beside_the_file_is_no_change_of_the_file() {
    let folder = everything();
    let answers = folder.0.path().join("sub/answers.jsonl");
    let overrides = Overrides {
        model: Some(format!("scripted/{}", answers.display())),
        allow: vec!["lint".to_owned()],
        no_ask: true,
    };
    let stored = folder.read_with("fixer.toml", &overrides).unwrap();
    assert_eq!(stored.script.as_ref().unwrap().len(), 2);
    assert_eq!((&stored.base_url, &stored.api_key_env), (&None, &None));
    assert_eq!(stored.policy.allow, ["shell", "lint"]);
    assert!(stored.policy.no_ask);

    let again = || {
        stored.read_again(
            folder.0.path().join("fixer.toml"),
            Beside::prices(&|_| true),
        )
    };
    // A sub-agent reads the same answers here; the model that was said has its own copy.
    folder.write("other.jsonl", "");
    assert_eq!(again().unwrap().digest(), stored.digest());
    folder.write("texts/fixer.md", "Other words.\n");
    assert_ne!(again().unwrap().digest(), stored.digest());

    let refused = Overrides {
        model: Some("scripted/no such file".to_owned()),
        allow: vec!["[".to_owned()],
        no_ask: false,
    };
    insta::assert_snapshot!(folder.read_with("fixer.toml", &refused).unwrap_err());
}

#[test]
fn an_agent_is_told_from_a_workflow() {
    let folder = Folder::new(&[
        ("agent.json", r#"{"name": "a", "model": "ollama/llama"}"#),
        (
            "workflow.toml",
            "name = 'w'\n[[step]]\nid = 'a'\nrun = 'true'\n",
        ),
        (
            "both.toml",
            "name = 'w'\nmodel = 'ollama/llama'\n[[step]]\nid = 'a'\n",
        ),
        ("neither.toml", "name = 'w'\n"),
        ("list.json", "[1]"),
        ("broken.toml", "name = \n"),
    ]);
    let kind = |name: &str| SpecKind::of_file(&folder.0.path().join(name));
    assert_eq!(kind("agent.json"), Ok(SpecKind::Agent));
    assert_eq!(kind("workflow.toml"), Ok(SpecKind::Workflow));
    let told = [
        "both.toml",
        "neither.toml",
        "list.json",
        "broken.toml",
        "missing.toml",
    ]
    .map(|name| folder.without_folder(&kind(name).unwrap_err().to_string()));
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn the_documentation_is_true() {
    let docs = include_str!("../../../docs/agents.md");
    let block = |language: &str| {
        let (_, rest) = docs.split_once(&format!("```{language}\n")).unwrap();
        rest.split("```").next().unwrap().to_owned()
    };
    let folder = Folder::new(&[
        ("fixer.toml", &block("toml")),
        ("fixer.md", "You fix tests.\n"),
        ("answer.schema.json", "{}"),
        ("researcher.toml", "name = 'r'\nmodel = 'ollama/llama'\n"),
    ]);
    let said = folder.read("fixer.toml").unwrap_err();
    assert!(said.contains("agents.researcher.spec: ollama/llama has no known price"));
    assert_eq!(said.lines().count(), 1, "{said}");
    let answers = docs.lines().filter(|line| line.starts_with("{\""));
    let answers: Vec<&str> = answers.collect();
    assert_eq!(answers.len(), 3);
    folder.write("answers.jsonl", &answers.join("\n"));
    folder.write(
        "researcher.toml",
        "name = 'r'\nmodel = 'scripted/answers.jsonl'\n",
    );
    folder.read("fixer.toml").unwrap();
}

/// What the program and its settings bring is named like anything else.
#[test]
fn what_is_known_beside_a_file_can_be_named_in_it() {
    let folder = Folder::new(&[(
        "a.toml",
        "name = 'a'\ntools = ['crm.find', 'fs.read']\npolicy = { ask = ['crm.*'] }\n",
    )]);
    let path = folder.0.path().join("a.toml");
    let said = folder.read("a.toml").unwrap_err();
    assert!(said.contains("model: is missing"), "{said}");
    assert!(said.contains("there is no tool crm.find"), "{said}");
    assert_eq!(SpecKind::of_file(&path), Ok(SpecKind::Agent));
    let (tools, models) = (["crm.find".to_owned()], ["mine".to_owned()]);
    let beside = Beside {
        model: Some("mine"),
        tools: &tools,
        models: &models,
        priced: &|_| false,
    };
    let spec = AgentSpec::read(&path, beside).unwrap();
    assert_eq!(spec.model, "mine");
    assert_eq!(spec.named_tools(), ["crm.find", "fs.read"]);
    folder.write("a.toml", "name = 'a'\ntools = []\n[budget]\nusd = 1.0\n");
    let said = AgentSpec::read(&path, beside).unwrap_err().to_string();
    assert!(said.contains("mine has no known price"), "{said}");
    // The settings may say something else by now; what was started goes on.
    folder.write("a.toml", "name = 'a'\ntools = []\n");
    let started = AgentSpec::read(&path, beside).unwrap();
    let now = Beside {
        model: Some("ollama/other"),
        ..beside
    };
    assert_eq!(started.read_again(&path, now).unwrap(), started);
}
