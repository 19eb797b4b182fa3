//! Settings, through the binary: what is wrong is told, what is right is done.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use common::project::Project;
use serde_json::Value;

const WORKFLOW: &str = r#"
name = "settings"
[[step]]
id = "work"
run = "echo done"
[[step]]
id = "ask"
wait = "approval"
"#;

fn project(settings: &str) -> Project {
    let project = Project::new(WORKFLOW);
    std::fs::create_dir(project.path(".logreel")).unwrap();
    project.write(".logreel/config.toml", settings);
    project
}

#[test]
fn wrong_settings_are_refused_before_anything_is_made() {
    let project = project("lease = \"2s\"\nmodle = \"x\"\n");
    let ran = project.run(&["run", "w.toml"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
    assert!(
        ran.err.contains("config.toml:2: modle: unknown key"),
        "{}",
        ran.err
    );
    assert!(!project.path(".logreel/runs.db").exists());
}

#[test]
fn the_users_settings_count_where_the_project_says_nothing() {
    let project = project("lease = \"2s\"\n");
    std::fs::create_dir_all(project.path("config/logreel")).unwrap();
    project.write("config/logreel/config.toml", "durability = \"relaxed\"\n");
    let mut run = project.command();
    run.env("XDG_CONFIG_HOME", project.path("config"));
    assert_eq!(common::ran(run.args(["run", "w.toml", "-q"])).code, 3);
    assert_eq!(project.json(&["show", "@last"])["durability"], "relaxed");
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    assert_eq!(project.json(&["show", "@last"])["durability"], "full");
}

#[test]
fn a_payload_over_the_ceiling_fails_by_name_and_a_higher_one_is_allowed() {
    let big = "name = \"big\"\n[[step]]\nid = \"big\"\nrun = \"head -c 3000000 /dev/zero | tr '\\\\0' x\"\n";
    let project = project("payload_max = \"1MiB\"\n");
    project.write("w.toml", big);
    let ran = project.run(&["run", "w.toml"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(
        project.json(&["show", "@last"])["error"]["kind"],
        "too_large"
    );
    project.write(".logreel/config.toml", "payload_max = \"4MiB\"\n");
    let ran = project.run(&["run", "w.toml", "-q"]);
    assert_eq!((ran.code, ran.out.len()), (0, 3_000_001), "{}", ran.err);
}

/// SEMANTICS 29: in the process that drives the run, and when nobody drives it in the one that appended
/// the event; each event once.
#[test]
fn a_hook_hears_each_event_once_whoever_appended_it() {
    let project = project(
        r#"
        [[hook]]
        name = "keep"
        on = ["run.started", "wait.started", "wait.ended", "run.completed"]
        run = "cat >> heard"
        [[hook]]
        name = "bad"
        on = ["run.started"]
        run = "echo no such door >&2; exit 3"
        "#,
    );
    let ran = project.run(&["run", "w.toml"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    // The run does not care, and whoever started it is told.
    assert!(ran.err.contains("no such door"), "{}", ran.err);
    // Nobody drives it now: whoever answers tells the hooks of the answer.
    assert_eq!(project.run(&["answer", "@last", "--approve", "-q"]).code, 0);
    assert_eq!(project.run(&["resume", "@last", "-q"]).code, 0);
    let heard: Vec<Value> = project
        .read("heard")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = heard
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["run.started", "wait.started", "wait.ended", "run.completed"]
    );
    assert_eq!(heard[2]["body"]["approved"], true);
    let log = project.run(&["log", "@last", "--json"]);
    for told in heard {
        let logged = log
            .out
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let logged = logged
            .into_iter()
            .find(|it| it["seq"] == told["seq"])
            .unwrap();
        for key in ["run", "kind", "digest", "at", "body"] {
            assert_eq!(told[key], logged[key], "{key}");
        }
    }
}

#[test]
fn the_model_and_the_prices_of_the_settings_are_those_of_agents() {
    let project = project("");
    project.write("a.jsonl", "{\"text\": \"done\"}\n");
    project.write("a.toml", "name = \"a\"\nsystem = \"Be brief.\"\n");
    let ran = project.run(&["run", "a.toml", "go"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("model: is missing"), "{}", ran.err);
    project.write(".logreel/config.toml", "model = \"scripted/a.jsonl\"\n");
    let ran = project.run(&["run", "a.toml", "go"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
    let shown = project.json(&["show", "@last"]);
    assert_eq!(shown["provenance"]["models"][0], "scripted/a.jsonl");

    let unpriced = "name = \"b\"\nmodel = \"openai/unheard-of\"\n";
    project.write("b.toml", unpriced);
    project.write("limited.toml", &format!("{unpriced}[budget]\nusd = 1.0\n"));
    let step = "name = \"w\"\n[budget]\nusd = 1.0\n[[step]]\nid = \"ask\"\nagent = \"b.toml\"\n";
    project.write("steps.toml", step);
    for (verb, file) in [
        ("check", "limited.toml"),
        ("check", "steps.toml"),
        ("run", "steps.toml"),
    ] {
        let ran = project.run(&[verb, file]);
        assert_eq!(ran.code, 2, "{verb} {file}: {}{}", ran.out, ran.err);
        assert!(
            ran.err.contains("openai/unheard-of has no known price"),
            "{}",
            ran.err
        );
    }
    let prices = "[prices]\n\"openai/unheard-of\" = { input = 1.0, output = 2.0 }\n";
    project.write(".logreel/config.toml", prices);
    for file in ["limited.toml", "steps.toml"] {
        let ran = project.run(&["check", file]);
        assert_eq!(ran.code, 0, "{file}: {}", ran.err);
    }
}

#[test]
fn a_worker_prunes_what_the_retention_lets_go_and_is_listed_while_it_is_there() {
    let project = project("retention = { keep_last = 1 }\n");
    project.write(
        "w.toml",
        "name = \"w\"\n[[step]]\nid = \"one\"\nrun = \"echo done\"\n",
    );
    for _ in 0..3 {
        assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 0);
    }
    let last = project.json(&["show", "@last"])["id"].clone();
    let worker = project.start(
        &["worker", "--concurrency", "3"],
        "pruned 2 runs by `retention`",
    );
    let left = project.json(&["ls"])["items"].clone();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["id"]), (1, &last));
    let listed = project.json(&["workers"])["items"].clone();
    let told = ["kind", "concurrency", "running", "state"].map(|key| listed[0][key].clone());
    let expected = [Value::from("worker"), 3.into(), 0.into(), "alive".into()];
    assert_eq!(told, expected, "{listed}");
    worker.signal(rustix::process::Signal::TERM);
    assert_eq!(worker.end().code, 143);
    assert_eq!(project.json(&["workers"])["items"], serde_json::json!([]));
}
