//! Workflow files: what is refused and how it is said, and that all ways to write one are the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use logreel::core::event::Budget;
use logreel::workflow::{
    BudgetSpec, Does, Effect, Format, Limit, OnDeny, OnError, OnTimeout, Problem, Problems,
    RetrySpec, RunSpec, Step, StepSpec, WaitSpec, Workflow, WorkflowSpec,
    template::{self, Scope},
};
use logreel::{Agents, Ctx, Driving, Json};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Reads agents, and drives none.
struct Loads(fn(&Path) -> Result<Value, Problems>);

impl Agents for Loads {
    fn load(&self, path: &Path) -> Result<Value, Problems> {
        self.0(path)
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
        unreachable!("nothing runs here")
    }
}

/// What is said about each of several files.
fn told(cases: &[(&str, &str)]) -> String {
    let mut all = String::new();
    for (about, text) in cases {
        let format = if text.starts_with('{') || text.starts_with('[') && !text.starts_with("[[") {
            Format::Json
        } else {
            Format::Toml
        };
        let said = match Workflow::parse(text, format, "audit.toml") {
            Ok(_) => "accepted".to_owned(),
            Err(problems) => problems.to_string(),
        };
        all.push_str(&format!("# {about}\n{said}\n"));
    }
    all
}

#[test]
fn types_and_keys() {
    insta::assert_snapshot!(told(&[
        ("unparseable", "name = \"a\"\nstep = ["),
        ("empty", ""),
        ("no table", "[1]x"),
        ("a list", "[1, 2]"),
        ("empty name, no steps", "name = ' '"),
        (
            "wrong types",
            "name = 1\nstep = 'x'\nconcurrency = 'many'\nbudget = 3\n"
        ),
        (
            "a step that is none",
            "name = 'a'\nstep = [1, { id = 'b', run = 'true' }]"
        ),
        (
            "unknown top-level key",
            "name = 'a'\nnmae = 'b'\n[[step]]\nid = 'b'\nrun = 'true'\n"
        ),
        (
            "unknown keys in tables",
            "name = 'a'\nlimit = { key = 'k', max = 0, min = 1 }\n[budget]\ntokens = -1\nusd = -2\nwall = '1.5h'\ndollars = 3\n[[step]]\nid = 'b'\nrun = 'true'\nretry = { attempts = 'x', backoff = '1s', jitter = true }\n",
        ),
        (
            "incomplete tables",
            "name = 'a'\nlimit = {}\n[[step]]\nid = 'b'\nrun = 'true'\nretry = {}\n"
        ),
        (
            "wrong types in a step",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = ['true']\nneeds = 'c'\nenv = { A = 1 }\nenv_from = [1]\ntimeout = 30\nwhen = true\n",
        ),
        (
            "id of the wrong type",
            "name = 'a'\n[[step]]\nid = 1\nrun = 'true'\n"
        ),
        (
            "no id",
            "name = 'a'\n[[step]]\nrun = 'true'\n[[step]]\nid = ''\nrun = 'true'\n"
        ),
        (
            "unknown values",
            "name = 'a'\n[[step]]\nid = 'b'\nwait = 'aproval'\n[[step]]\nid = 'c'\nrun = 'true'\neffect = 'wirte'\non_error = 'ignore'\n[[step]]\nid = 'd'\nwait = 'approval'\non_timeout = 'yes'\non_deny = 'no'\n",
        ),
        (
            "the same in JSON",
            "{\"name\": \"a\",\n \"step\": [\n  {\"id\": \"b\", \"run\": \"true\",\n   \"efect\": \"read\"}]}"
        ),
        (
            "a key twice in JSON",
            "{\"name\": \"a\",\n \"name\": \"b\"}"
        ),
    ]));
}

#[test]
fn kinds() {
    insta::assert_snapshot!(told(&[
        ("no kind", "name = 'a'\n[[step]]\nid = 'b'\nprompt = 'x'\n"),
        (
            "two kinds",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\ntask = 't'\n"
        ),
        (
            "keys of other kinds",
            "name = 'a'\n[[step]]\nid = 'b'\ntask = 't'\nreconcile = 'x'\nstream = 'y'\nprompt = 'p'\n[[step]]\nid = 'c'\nrun = 'true'\nname = 'n'\nfor = '1s'\n[[step]]\nid = 'd'\nwait = 'signal'\nname = 'n'\nuntil = 'x'\non_deny = 'fail'\n",
        ),
        (
            "map keys without map",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\nmap_key = 'x'\nconcurrency = 2\n"
        ),
        (
            "reconcile of no write",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\nreconcile = 'true'\n"
        ),
        (
            "timers",
            "name = 'a'\n[[step]]\nid = 'b'\nwait = 'timer'\n[[step]]\nid = 'c'\nwait = 'timer'\nfor = '1s'\nuntil = 2030-01-31T08:00:00Z\n[[step]]\nid = 'd'\nwait = 'timer'\nuntil = 'tomorrow'\n[[step]]\nid = 'e'\nwait = 'timer'\nuntil = 2030-01-31T08:00:00Z\n",
        ),
        (
            "nothing to do",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = ' '\n[[step]]\nid = 'c'\ntask = ''\n[[step]]\nid = 'd'\nwait = 'signal'\n"
        ),
        (
            "an agent without agents",
            "name = 'a'\n[[step]]\nid = 'b'\nagent = 'x.toml'\n[[step]]\nid = 'c'\nagent = 1\n"
        ),
        (
            "files of a text",
            "name = 'a'\ninput_schema_file = 's.json'\n[[step]]\nid = 'b'\nworkflow = 'x.toml'\n"
        ),
        (
            "spans",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\ntimeout = '0s'\nretry = { attempts = 2, backoff = '30s..1s' }\n[[step]]\nid = 'c'\nrun = 'true'\ntimeout = '40000d'\n",
        ),
        (
            "environment",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\nenv_from = ['A B', '']\n[step.env]\n'C-D' = 'x'\nE = '${F:-1}'\nG = '${'\n"
        ),
        (
            "schemas",
            "name = 'a'\ninput_schema = { type = 'strin' }\n[[step]]\nid = 'b'\nrun = 'true'\noutput_schema = 1\n"
        ),
    ]));
}

#[test]
fn graphs() {
    let long: String = (0..12)
        .map(|n| format!("[[step]]\nid = 's{n}'\nrun = 'true'\n"))
        .collect();
    insta::assert_snapshot!(told(&[
        (
            "twice the same id",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\n[[step]]\nid = 'b'\nrun = 'false'\n"
        ),
        (
            "ids",
            "name = 'a'\n[[step]]\nid = 'b/c'\nrun = 'true'\n[[step]]\nid = 'd[1]'\nrun = 'true'\n[[step]]\nid = \"e\\u0007\"\nrun = 'true'\n[[step]]\nid = 'f.g-h i'\nrun = 'true'\n"
        ),
        (
            "needs",
            "name = 'a'\n[[step]]\nid = 'b'\nrun = 'true'\nneeds = ['c', 'b', 'd',\n  'd']\n[[step]]\nid = 'd'\nrun = 'true'\n"
        ),
        (
            "an unknown one of many",
            &format!("name = 'a'\n{long}needs = ['s99']\n")
        ),
        (
            "a circle",
            "name = 'a'\n[[step]]\nid = 'start'\nrun = 'true'\nneeds = ['b']\n[[step]]\nid = 'b'\nrun = 'true'\nneeds = ['c']\n[[step]]\nid = 'c'\nrun = 'true'\nneeds = ['d']\n[[step]]\nid = 'd'\nrun = 'true'\nneeds = ['b']\n",
        ),
        (
            "one broken step does not break others",
            "name = 'a'\n[[step]]\nid = 'b'\nrn = 'true'\n[[step]]\nid = 'c'\nneeds = ['b']\nrun = 'true'\ninput = '{{ steps.b.output }}'\n[[step]]\nid = 'd'\nneeds = ['x']\nrun = 'true'\n",
        ),
    ]));
}

#[test]
fn templates() {
    let step = |keys: &str| {
        format!(
            "name = 'a'\n[[step]]\nid = 'x'\nrun = 'true'\n[[step]]\nid = 'y-z'\nneeds = ['x']\nrun = 'true'\n[[step]]\nid = 'b'\nneeds = ['y-z']\n{keys}\n[[step]]\nid = 'late'\nneeds = ['b']\nrun = 'true'\n"
        )
    };
    let cases = [
        (
            "what they may see",
            "run = 'true'\nwhen = '{{ steps.x.output and input.a }}'\ninput = ['{{ steps[\"y-z\"].status }}', '{{ run.id }}']\nenv = { A = '{{ steps.x.exit_code }} ${HOME}' }",
        ),
        (
            "commands",
            "run = 'echo {{ input }}'\neffect = 'write'\nreconcile = '{% if input %}true{% endif %}'",
        ),
        (
            "keys that take none",
            "task = '{{ input }}'\ndir = '{{ input }}'",
        ),
        (
            "syntax",
            "run = 'true'\ninput = '{{ 1 + }}'\nwhen = '{% if %}'\nenv = { A = '{{ x' }",
        ),
        (
            "unknown roots",
            "run = 'true'\ninput = { a = ['{{ env.HOME }}',\n  'x {{ step.x.output }}'] }",
        ),
        (
            "unknown parts",
            "run = 'true'\ninput = '{{ run.name }} {{ steps.x.stdout }}'",
        ),
        (
            "no such step",
            "run = 'true'\ninput = '{{ steps.nope.output }}'",
        ),
        (
            "which step",
            "run = 'true'\ninput = '{{ steps[input].output }}{% for s in steps %}{% endfor %}'",
        ),
        (
            "not needed, and its own",
            "run = 'true'\ninput = '{{ steps.late.output }} {{ steps.b.output }}'",
        ),
        (
            "items without map",
            "run = 'true'\ninput = '{{ item }}'\nenv = { A = '{{ index }}' }",
        ),
        (
            "items with map",
            "run = 'true'\nmap = '{{ steps.x.output }}'\ninput = '{{ item }}'\nmap_key = '{{ index }}'",
        ),
        (
            "items too early",
            "run = 'true'\nmap = '{{ item }}'\nwhen = '{{ item }}'",
        ),
        (
            "an item of its own",
            "run = 'true'\ninput = '{% for item in input %}{{ item }}{% endfor %}'",
        ),
        (
            "map of no list",
            "run = 'true'\nmap = 'x {{ steps.x.output }}'",
        ),
        (
            "map of a list",
            "run = 'true'\nmap = [1, '{{ steps.x.output }}']",
        ),
        (
            "when without braces",
            "run = 'true'\nwhen = 'steps.x.output'",
        ),
        (
            "prompt",
            "wait = 'approval'\nprompt = '{{ steps.late.output }}'",
        ),
        ("until", "wait = 'timer'\nuntil = '{{ inptu }}'"),
    ];
    let mut cases: Vec<(&str, String)> = cases.map(|(about, keys)| (about, step(keys))).into();
    cases.push(("output", "name = '{{ a }}'\noutput = { all = '{{ steps.b.output }}',\n  no = '{{ steps.c.output }} {{ item }}' }\n[[step]]\nid = 'b'\nrun = 'true'\n".to_owned()));
    let cases: Vec<(&str, &str)> = cases
        .iter()
        .map(|(about, text)| (*about, text.as_str()))
        .collect();
    insta::assert_snapshot!(told(&cases));
}

#[test]
fn files_in_files() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        (
            "parent.toml",
            "name = 'p'\ninput_schema_file = 'schemas/in.json'\n[[step]]\nid = 'c'\nworkflow = 'sub/child.json'\noutput_schema_file = 'schemas/none.json'\n[[step]]\nid = 'a'\nagent = 'agents/a.toml'\n[[step]]\nid = 'm'\nworkflow = 'missing.toml'\n[[step]]\nid = 's'\nworkflow = 'syntax.toml'\n[[step]]\nid = 'inside'\n[step.workflow]\nname = 'i'\n[[step.workflow.step]]\nid = 'deep'\nrun = 'true'\nneeds = ['c']\n",
        ),
        ("schemas/in.json", "{\"type\": \"object\",\n}"),
        (
            "sub/child.json",
            "{\"name\": \"c\", \"step\": [\n {\"id\": \"x\", \"run\": \"true\",\n  \"needs\": [\"y\"]}, {\"id\": \"z\",\n \"rn\": \"\"}]}",
        ),
        ("syntax.toml", "name = \n"),
        (
            "one.toml",
            "name = '1'\n[[step]]\nid = 'two'\nworkflow = 'two.toml'\n",
        ),
        (
            "two.toml",
            "name = '2'\n[[step]]\nid = 'three'\nworkflow = 'sub/../three.toml'\n",
        ),
        (
            "three.toml",
            "name = '3'\n[[step]]\nid = 'two'\nworkflow = 'two.toml'\n",
        ),
        (
            "agents.toml",
            "name = 'a'\n[[step]]\nid = 'a'\nagent = 'agents/bad.toml'\n",
        ),
    ] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let bad = Loads(|path| {
        let name = path.display().to_string();
        Err(Problem::of_file(name, "is no agent").into())
    });
    let at = |name: &str| folder.path().join(name);
    let said = [
        Workflow::read(at("parent.toml")),
        Workflow::read(at("one.toml")),
        Workflow::read(at("nowhere.toml")),
        Workflow::read_with(at("agents.toml"), &bad),
    ]
    .map(|read| read.unwrap_err().to_string())
    .join("\n\n");
    let here = format!("{}/", folder.path().display());
    insta::assert_snapshot!(said.replace(&here, ""));
}

#[test]
fn files_are_inside_the_spec() {
    let folder = tempfile::tempdir().unwrap();
    let child = "name = 'child'\n[[step]]\nid = 'call'\ntask = 'count'\nenv = { A = 'x ${TOKEN}' }\nenv_from = ['KEY']\n";
    let parent = "name = 'parent'\ninput_schema_file = 'in.json'\n[[step]]\nid = 'c'\nworkflow = 'child.toml'\n[[step]]\nid = 'a'\nagent = 'a.toml'\neffect = 'write'\n";
    std::fs::write(folder.path().join("child.toml"), child).unwrap();
    std::fs::write(folder.path().join("parent.toml"), parent).unwrap();
    std::fs::write(folder.path().join("in.json"), "{\"type\": \"object\"}").unwrap();
    let one = Loads(|path| {
        assert!(path.ends_with("a.toml"));
        Ok(json!({"name": "reviewer", "model": "scripted/x"}))
    });
    let workflow = Workflow::read_with(folder.path().join("parent.toml"), &one).unwrap();
    insta::with_settings!({sort_maps => true}, {
        insta::assert_json_snapshot!(workflow.json());
    });
    let stored = Workflow::from_json(workflow.json()).unwrap();
    assert_eq!((stored.digest(), &stored), (workflow.digest(), &workflow));
    assert_eq!(stored.tasks().into_iter().collect::<Vec<_>>(), ["count"]);
    assert_eq!(
        stored.variables().into_iter().collect::<Vec<_>>(),
        ["KEY", "TOKEN"]
    );
    assert_eq!(stored.child(0).unwrap().name(), "child");
    assert!(stored.input_schema().unwrap().check(&json!([])).is_err());
    let effects = [0, 1].map(|index| {
        (
            stored.effect(index).effect,
            stored.effect(index).is_declared,
        )
    });
    assert_eq!(
        effects,
        [(Effect::Idempotent, false), (Effect::Write, true)]
    );
}

const AUDIT: &str = r#"
name = "audit"
output = { found = "{{ steps.review.output }}", by = "{{ steps.approve.output.by }}" }
concurrency = 4
limit = { key = "audit", max = 1 }
input_schema = { type = "object" }
[budget]
tokens = 200_000
usd = 2
wall = "20m"
[[step]]
id = "files"
run = "git ls-files"
effect = "read"
env = { DEPTH = "{{ input.depth }}" }
[[step]]
id = "review"
needs = ["files"]
map = "{{ steps.files.output }}"
map_key = "{{ item }}"
concurrency = 8
task = "review"
input = { file = "{{ item }}", at = 1.5 }
on_error = "continue"
retry = { attempts = 3, backoff = "1s..30s" }
[[step]]
id = "approve"
needs = ["review"]
when = "{{ steps.review.output }}"
wait = "approval"
prompt = "Publish {{ steps.review.output | length }} findings?"
timeout = "24h"
on_timeout = "deny"
on_deny = "continue"
[[step]]
id = "pause"
needs = ["approve"]
wait = "timer"
for = "1m"
[[step]]
id = "publish"
needs = ["pause"]
effect = "write"
run = "./publish.sh"
reconcile = "./published.sh"
dir = "site"
env_from = ["TOKEN"]
timeout = "500ms"
output_schema = { type = "object" }
"#;

#[test]
fn toml_json_and_rust_are_one_workflow() {
    let from_toml = Workflow::parse(AUDIT, Format::Toml, "audit.toml").unwrap();
    let text = r#"{"step": [
        {"id": "files", "run": "git ls-files", "effect": "read", "env": {"DEPTH": "{{ input.depth }}"}},
        {"id": "review", "needs": ["files"], "map": "{{ steps.files.output }}", "map_key": "{{ item }}",
         "concurrency": 8, "task": "review", "input": {"at": 1.5, "file": "{{ item }}"},
         "on_error": "continue", "retry": {"attempts": 3, "backoff": "1000ms..30s"}},
        {"id": "approve", "needs": ["review"], "when": "{{ steps.review.output }}", "wait": "approval",
         "prompt": "Publish {{ steps.review.output | length }} findings?", "timeout": "1d",
         "on_timeout": "deny", "on_deny": "continue"},
        {"id": "pause", "needs": ["approve"], "wait": "timer", "for": "60s"},
        {"id": "publish", "needs": ["pause"], "effect": "write", "run": "./publish.sh",
         "reconcile": "./published.sh", "dir": "site", "env_from": ["TOKEN"], "timeout": "500ms",
         "output_schema": {"type": "object"}, "on_error": "fail"}],
      "budget": {"tokens": 200000, "usd": 2.0, "wall": "20m"}, "concurrency": 4,
      "limit": {"max": 1, "key": "audit"}, "input_schema": {"type": "object"}, "name": "audit",
      "output": {"by": "{{ steps.approve.output.by }}", "found": "{{ steps.review.output }}"}}"#;
    let from_json = Workflow::parse(text, Format::Json, "audit.json").unwrap();
    let from_rust = Workflow::builder("audit")
        .output(
            json!({"found": "{{ steps.review.output }}", "by": "{{ steps.approve.output.by }}"}),
        )
        .concurrency(4)
        .limit("audit", 1)
        .input_schema(json!({"type": "object"}))
        .budget(BudgetSpec {
            tokens: Some(200_000),
            usd: Some(2.0),
            wall: Some(Duration::from_secs(20 * 60)),
            ..BudgetSpec::default()
        })
        .step(
            Step::run("files", "git ls-files")
                .effect(Effect::Read)
                .env("DEPTH", "{{ input.depth }}"),
        )
        .step(
            Step::task("review", "review")
                .needs(["files"])
                .map("{{ steps.files.output }}")
                .map_key("{{ item }}")
                .concurrency(8)
                .input(json!({"file": "{{ item }}", "at": 1.5}))
                .on_error(OnError::Continue)
                .retry(3, Duration::from_secs(1)..Duration::from_secs(30)),
        )
        .step(
            Step::approval("approve")
                .needs(["review"])
                .when("{{ steps.review.output }}")
                .prompt("Publish {{ steps.review.output | length }} findings?")
                .timeout(Duration::from_secs(24 * 60 * 60))
                .on_timeout(OnTimeout::Deny)
                .on_deny(OnDeny::Continue),
        )
        .step(Step::timer("pause", Duration::from_secs(60)).needs(["approve"]))
        .step(
            Step::run("publish", "./publish.sh")
                .needs(["pause"])
                .effect(Effect::Write)
                .reconcile("./published.sh")
                .dir("site")
                .env_from(["TOKEN"])
                .timeout(Duration::from_millis(500))
                .output_schema(json!({"type": "object"})),
        )
        .build()
        .unwrap();
    assert_eq!(from_toml, from_json);
    assert_eq!(from_toml, from_rust);
    assert_eq!(from_toml.digest(), from_json.digest());
    assert_eq!(from_toml.digest(), from_rust.digest());
    let changed = AUDIT.replace("./publish.sh", "./other.sh");
    let changed = Workflow::parse(&changed, Format::Toml, "audit.toml").unwrap();
    assert_ne!(from_toml.digest(), changed.digest());

    let index = |id| from_toml.index_of(id).unwrap();
    assert_eq!(from_toml.order(), [0, 1, 2, 3, 4]);
    assert_eq!(from_toml.needs(index("review")), [0]);
    assert_eq!(from_toml.dependents(index("review")), [2]);
    assert_eq!(from_toml.references(index("approve")), [1]);
    assert_eq!(from_toml.output_references(), [1, 2]);
    assert_eq!(from_toml.index_of("nope"), None);
}

#[test]
fn a_builder_tells_its_problems_without_a_file() {
    let child = Workflow::builder("child")
        .step(Step::run("x", "true"))
        .build()
        .unwrap();
    let problems = Workflow::builder("")
        .step(Step::task("a", "t").reconcile("x").prompt("p"))
        .step(Step::signal("b", "go").needs(["c"]).on_deny(OnDeny::Fail))
        .step(
            Step::workflow("a", &child)
                .stream("x")
                .timeout(Duration::from_micros(1)),
        )
        .step(Step::timer("d", Duration::MAX))
        .step(
            Step::agent("e", json!({"name": "x"}))
                .attempts(2)
                .input("{{ item }}"),
        )
        .build()
        .unwrap_err();
    insta::assert_snapshot!(problems);
}

#[test]
fn ten_thousand_steps() {
    let numbers = 0..10_000_usize;
    let chain = numbers
        .clone()
        .fold(Workflow::builder("chain"), |chain, n| {
            let step = Step::run(format!("s{n}"), "true");
            // Each looks at its neighbour and far back, so that what is behind must be known.
            chain.step(match n.checked_sub(1) {
                None => step,
                Some(before) => step.needs([format!("s{before}")]).input(format!(
                    "{{{{ steps.s{before}.output }}}} {{{{ steps.s{}.output }}}}",
                    n / 2
                )),
            })
        });
    let chain = chain.build().unwrap();
    assert_eq!(chain.order().last(), Some(&9_999));
    assert_eq!(Workflow::from_json(chain.json()).unwrap(), chain);
    let text = chain.json().to_string();
    assert_eq!(
        Workflow::parse(&text, Format::Json, "chain.json").unwrap(),
        chain
    );

    let fan = numbers.clone().fold(Workflow::builder("fan"), |fan, n| {
        fan.step(Step::run(format!("s{n}"), "true"))
    });
    let all: Vec<String> = numbers.clone().map(|n| format!("s{n}")).collect();
    let looks: Vec<String> = all
        .iter()
        .map(|id| format!("{{{{ steps.{id}.output }}}}"))
        .collect();
    let fan = fan
        .step(Step::run("all", "true").needs(all).input(looks))
        .build()
        .unwrap();
    assert_eq!(fan.needs(10_000).len(), 10_000);
    assert_eq!(fan.references(10_000).len(), 10_000);

    let ring = numbers.fold(Workflow::builder("ring"), |ring, n| {
        ring.step(Step::run(format!("s{n}"), "true").needs([format!("s{}", (n + 1) % 10_000)]))
    });
    assert_eq!(ring.build().unwrap_err().0.len(), 1);
}

/// The steps of a workflow that makes sense: each needs some of those before it.
fn steps(depth: u32) -> impl Strategy<Value = Vec<StepSpec>> {
    proptest::collection::vec((step(depth), any::<u8>()), 1..5).prop_map(|steps| {
        let mut made: Vec<StepSpec> = Vec::new();
        for (at, (mut step, needs)) in steps.into_iter().enumerate() {
            step.id = format!("{}{at}", step.id);
            let before = made.iter().enumerate();
            let needed = before.filter(|(nth, _)| needs & (1 << nth) != 0);
            step.needs = needed.map(|(_, step)| step.id.clone()).collect();
            if let Some(need) = step.needs.first() {
                step.when = Some(format!("{{{{ steps[\"{need}\"].output }}}}"));
            }
            made.push(step);
        }
        made
    })
}

fn span() -> impl Strategy<Value = Duration> {
    (1..10_000_000_u64).prop_map(Duration::from_millis)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("JSON has no others", |f| f.is_finite())
            .prop_map(Value::from),
        "[ -z\n\u{e9}]{0,8}".prop_map(Value::from),
        Just(json!("{{ input.a }}")),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[a-z. ]{0,4}", inner, 0..3)
                .prop_map(|fields| fields.into_iter().collect::<Value>()),
        ]
    })
}

fn does(depth: u32) -> BoxedStrategy<Does> {
    let option = |text: &'static str| proptest::option::of(Just(text.to_owned()));
    let waits = prop_oneof![
        (
            option("{{ input }}?"),
            prop_oneof![
                Just(OnTimeout::Fail),
                Just(OnTimeout::Approve),
                Just(OnTimeout::Deny)
            ],
            prop_oneof![Just(OnDeny::Fail), Just(OnDeny::Continue)],
        )
            .prop_map(|(prompt, on_timeout, on_deny)| WaitSpec::Approval {
                prompt,
                on_timeout,
                on_deny
            }),
        Just(WaitSpec::Signal {
            name: "go".to_owned()
        }),
        span().prop_map(|span| WaitSpec::Timer {
            lasts: Some(span),
            until: None
        }),
        Just(WaitSpec::Timer {
            lasts: None,
            until: Some("{{ input.at }}".to_owned())
        }),
    ];
    let flat = prop_oneof![
        option("lines").prop_map(|stream| {
            let run = "echo '\"' $A\n".to_owned();
            Does::Run(RunSpec {
                run,
                reconcile: None,
                stream,
            })
        }),
        value().prop_map(|value| Does::Agent {
            agent: json!({"name": "x", "v": value})
        }),
        Just(Does::Task {
            task: "t".to_owned()
        }),
        waits.prop_map(Does::Wait),
    ];
    if depth == 0 {
        return flat.boxed();
    }
    let child = spec(depth - 1).prop_map(|spec| Does::Workflow {
        workflow: Box::new(spec),
    });
    prop_oneof![3 => flat, 1 => child].boxed()
}

fn step(depth: u32) -> impl Strategy<Value = StepSpec> {
    let retry = (0..5_u32, proptest::option::of(span()));
    let retry = retry.prop_map(|(attempts, first)| RetrySpec {
        attempts,
        backoff: first.map(|first| (first, first * 2)),
    });
    let effect = prop_oneof![
        Just(Effect::Read),
        Just(Effect::Idempotent),
        Just(Effect::Write)
    ];
    let map = (any::<bool>(), proptest::option::of(0..9_u32));
    (
        "[a-c.é -]{1,4}",
        proptest::option::of(value()),
        proptest::collection::btree_map("[A-C]{1,2}", "[a-z ]{0,3}(\\$\\{V\\})?", 0..2),
        proptest::option::of(Just("KEY".to_owned())),
        proptest::option::of(effect),
        proptest::option::of(retry),
        proptest::option::of(span()),
        any::<bool>(),
        proptest::option::of(Just(json!({"type": ["object", "null"]}))),
        proptest::option::of(map),
        does(depth),
    )
        .prop_map(
            |(
                id,
                input,
                env,
                env_from,
                effect,
                retry,
                timeout,
                goes_on,
                output_schema,
                map,
                does,
            )| {
                let mut step = StepSpec {
                    // A value that happens to look like a template may be none.
                    input: input.filter(|input| !input.to_string().contains("{%")),
                    env: BTreeMap::from_iter(env),
                    env_from: env_from.into_iter().collect(),
                    effect,
                    retry,
                    timeout,
                    output_schema,
                    ..StepSpec::new(id, does)
                };
                if goes_on {
                    step.on_error = OnError::Continue;
                    step.dir = Some("a b".to_owned());
                }
                if let (Does::Run(run), Some(Effect::Write)) = (&mut step.does, effect) {
                    run.reconcile = Some("true".to_owned());
                }
                if let Some((is_list, concurrency)) = map {
                    step.map = Some(if is_list {
                        json!([1, null])
                    } else {
                        json!("{{ input.b }}")
                    });
                    step.map_key = Some("{{ item }}-{{ index }}".to_owned());
                    step.concurrency = concurrency;
                }
                step
            },
        )
}

fn spec(depth: u32) -> BoxedStrategy<WorkflowSpec> {
    let budget = (
        proptest::option::of(any::<u64>()),
        proptest::option::of(0.0..1e9_f64),
        proptest::option::of(span()),
    );
    let budget = budget.prop_map(|(tokens, usd, wall)| BudgetSpec {
        tokens,
        usd,
        wall,
        tool_calls: tokens,
        children: None,
    });
    (steps(depth), budget, any::<(bool, bool)>())
        .prop_map(|(steps, budget, (has_output, has_limit))| WorkflowSpec {
            name: "generated".to_owned(),
            input_schema: has_limit.then_some(Value::Bool(true)),
            output: has_output
                .then(|| json!({"last": format!("{{{{ steps['{}'] }}}}", steps[0].id)})),
            budget,
            concurrency: has_output.then_some(0),
            limit: has_limit.then(|| Limit {
                key: "k".to_owned(),
                max: 1,
            }),
            steps,
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_stored_spec_is_the_spec(spec in spec(2)) {
        let workflow = Workflow::from_spec(spec.clone()).unwrap();
        let stored = Workflow::from_json(workflow.json()).unwrap();
        prop_assert_eq!(stored.spec(), &spec);
        prop_assert_eq!(stored.digest(), workflow.digest());
        let text = serde_json::to_string_pretty(workflow.json()).unwrap();
        let parsed = Workflow::parse(&text, Format::Json, "stored.json").unwrap();
        prop_assert_eq!(parsed.spec(), &spec);
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "[ -~\né]{0,60}", template in "[{}%#$a-c0é .'\"|=\\[\\]-]{0,30}") {
        for format in [Format::Toml, Format::Json] {
            drop(Workflow::parse(&text, format, "f"));
        }
        for template in [template.clone(), format!("{{{{{template}}}}}")] {
            let step = Step::run("a", "true").input(template.clone()).env("A", template.clone());
            let built = Workflow::builder("w").step(step).build();
            let scope = Scope::new("run", &json!({"a": 1}));
            let rendered = template::render("input", &json!(template), &scope);
            drop(template::render_env("env.A", &template, &scope, &BTreeMap::new()));
            // What is accepted can still miss a value, but it can be read.
            if let (Ok(_), Err(error)) = (built, rendered) {
                prop_assert!(!error.message.starts_with("syntax error"), "{template}: {error}");
            }
        }
    }
}

/// The files of the documentation, each in a fence that begins with its name.
#[test]
fn the_documentation_is_true() {
    let text = include_str!("../../../docs/workflows.md");
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for fence in text.split("```toml\n").skip(1) {
        let file = fence.split("```").next().unwrap();
        let name = file.lines().next().unwrap().trim_start_matches("# ");
        std::fs::write(folder.path().join(name), file).unwrap();
        names.push(name);
    }
    let any = Loads(|_| Ok(json!({"name": "reviewer"})));
    assert!(!names.is_empty());
    for name in names {
        let read = Workflow::read_with(folder.path().join(name), &any);
        assert_eq!(read.map(drop), Ok(()), "{name}");
    }
}
