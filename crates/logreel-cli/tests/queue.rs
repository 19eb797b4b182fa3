//! What workers take of what is queued, and what they leave to others.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use common::kill::until;
use common::project::{Project, Running};
use common::runtime;
use logreel::store::SystemEnv;
use logreel::workflow::Workflow;
use logreel::{Engine, Env as _};
use rustix::process::Signal;
use serde_json::json;

const STORE: &str = ".logreel/runs.db";

fn project(spec: &str) -> Project {
    let project = Project::new(spec);
    std::fs::create_dir(project.path(".logreel")).unwrap();
    project
}

/// Queues runs of a spec in a folder; nobody is there to drive them.
fn queue(project: &Project, file: &str, dir: &str, many: usize) -> Vec<String> {
    let workflow = Workflow::read(project.path(file)).unwrap();
    runtime().block_on(async {
        let engine = Engine::open(project.path(STORE)).await.unwrap();
        let workflow = engine.workflow(&workflow);
        let mut runs = Vec::new();
        for n in 0..many {
            let start = workflow.start(&n).dir(dir).queue();
            runs.push(start.await.unwrap().id().to_string());
        }
        engine.close().await.unwrap();
        runs
    })
}

fn here(project: &Project) -> String {
    project.0.path().display().to_string()
}

fn leave(worker: Running) {
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.code, 143, "{}", ended.err);
}

#[test]
fn a_worker_leaves_a_run_alone_whose_folder_is_not_here_and_one_with_a_folder_takes_it() {
    let project = project("name = \"where\"\n[[step]]\nid = \"only\"\nrun = \"pwd\"\n");
    let gone = project.path("gone").display().to_string();
    let elsewhere = queue(&project, "w.toml", &gone, 1).remove(0);
    let ours = queue(&project, "w.toml", &here(&project), 1).remove(0);
    let mut worker = project.start(&["worker", "--concurrency", "1"], "driving up to 1 runs");
    worker.until("completed");
    assert_eq!(project.run(&["wait", &ours]).out.trim(), here(&project));
    leave(worker);
    let shown = project.json(&["show", &elsewhere]);
    assert_eq!(
        (&shown["status"], &shown["event_count"]),
        (&json!("created"), &json!(1))
    );
    let refused = project.run(&["resume", &elsewhere]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    let why = format!("the working folder {gone} does not exist here; `--dir`");
    assert!(refused.err.contains(&why), "{}", refused.err);

    std::fs::create_dir(project.path("other")).unwrap();
    let mut worker = project.start(&["worker", "--dir", "other"], "driving up to 8 runs");
    worker.until("completed");
    let other = project.path("other").display().to_string();
    assert_eq!(project.run(&["wait", &elsewhere]).out.trim(), other);
    leave(worker);
}

#[test]
fn a_detached_run_is_left_to_a_worker_for_its_label() {
    let project = project("name = \"quick\"\n[[step]]\nid = \"only\"\nrun = \"echo done\"\n");
    let mut worker = project.start(&["worker", "--label", "pool=gpu"], "with pool=gpu");
    until("it is listed", || {
        project.run(&["workers"]).out.contains("pool=gpu")
    });
    let detach = ["run", "w.toml", "--detach", "--label", "team=a", "--label"];
    let ran = project.run(&[&detach[..], &["pool=gpu"]].concat());
    assert!(ran.err.contains("is left to the worker"), "{}", ran.err);
    worker.until("completed");
    // Another's label is no reason to wait for it.
    let ran = project.run(&[&detach[..], &["pool=cpu"]].concat());
    assert!(!ran.err.contains("is left to the worker"), "{}", ran.err);
    assert_eq!(project.run(&["wait", "@last"]).out, "done\n");
    leave(worker);
}

#[test]
fn a_server_without_a_place_starts_runs_and_leaves_them_to_workers() {
    let project = project("name = \"quick\"\n[[step]]\nid = \"only\"\nrun = \"echo done\"\n");
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--specs",
        ".",
        "--concurrency",
        "0",
    ];
    let mut serving = project.start_with(project.std_command(), &args);
    let said = serving.until("serving ");
    let address = said
        .rsplit_once("http://")
        .unwrap()
        .1
        .trim()
        .trim_end_matches('/');
    let body = r#"{"spec": "w", "input": "x"}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST /v1/runs HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 201 "), "{answer}");
    let shown = project.json(&["show", "@last"]);
    assert_eq!(
        (&shown["status"], &shown["driver"]),
        (&json!("created"), &json!(null))
    );
    let worker = project.start(&["worker"], "completed");
    assert_eq!(project.run(&["wait", "@last"]).out, "done\n");
    leave(worker);
    leave(serving);
}

#[test]
fn a_command_that_is_a_run_of_its_own_takes_a_place_of_its_worker() {
    const RUNS: usize = 3;
    let spec = "name = \"agents\"\n[[step]]\nid = \"only\"\nstream = \"claude-code\"\n\
                run = \"echo x >> begun; echo here > began; cat gate; cat said.jsonl\"\n";
    let project = project(spec);
    let said = json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "fine",
        "session_id": "s", "num_turns": 1, "duration_ms": 1
    });
    project.write("said.jsonl", &format!("{said}\n"));
    project.pipe("began");
    project.pipe("gate");
    let worker = project.start(&["worker", "--concurrency", "1"], "driving up to 1 runs");
    until("it is listed", || {
        project.run(&["workers"]).out.contains("worker")
    });
    let runs = [(); RUNS].map(|()| {
        let ran = project.run(&["run", "w.toml", "--detach"]);
        assert!(ran.err.contains("is left to the worker"), "{}", ran.err);
        ran.out.trim().to_owned()
    });
    for n in 1..=RUNS {
        // A pipe: reading it waits for the next one to begin.
        assert_eq!(project.read("began"), "here\n");
        // Several looks of the worker: it would have taken another by then.
        runtime().block_on(async { SystemEnv.sleep(Duration::from_millis(1200)).await });
        assert_eq!(project.read("begun").lines().count(), n);
        project.write("gate", "");
    }
    for run in runs {
        let waited = project.run(&["wait", &run]);
        assert_eq!((waited.code, &*waited.out), (0, "fine\n"), "{}", waited.err);
    }
    leave(worker);
}

#[test]
fn runs_that_nobody_here_can_read_do_not_keep_a_worker_from_those_that_it_can() {
    let project = project("name = \"bad\"\n[[step]]\nid = \"only\"\nrun = \"echo bad\"\n");
    project.write(
        "good.toml",
        "name = \"good\"\n[[step]]\nid = \"only\"\nrun = \"echo good\"\n",
    );
    let bad = queue(&project, "w.toml", &here(&project), 9);
    let good = queue(&project, "good.toml", &here(&project), 1).remove(0);
    let damage = rusqlite::Connection::open(project.path(STORE)).unwrap();
    let changed = damage.execute(
        "UPDATE events SET body = replace(body, '\"run\":\"echo bad\"', '\"later\":\"echo bad\"')",
        [],
    );
    assert_eq!(changed.unwrap(), 10);
    drop(damage);
    let mut worker = project.start(&["worker", "--concurrency", "8"], "driving up to 8 runs");
    worker.until("completed");
    assert_eq!(project.run(&["wait", &good]).out, "good\n");
    worker.signal(Signal::TERM);
    let ended = worker.end();
    // Each is told of once.
    for run in bad {
        let told = ended
            .err
            .matches(&format!("is left alone run={run}"))
            .count();
        assert_eq!(told, 1, "{}", ended.err);
    }
}

#[test]
fn a_run_that_cannot_be_read_keeps_a_resume_of_all_from_no_other() {
    let project = project("name = \"w\"\n[[step]]\nid = \"only\"\nrun = \"echo fine\"\n");
    let runs = queue(&project, "w.toml", &here(&project), 2);
    let [bad, good] = runs.try_into().unwrap();
    let damage = rusqlite::Connection::open(project.path(STORE)).unwrap();
    let changed = damage.execute("UPDATE runs SET facts = '{' WHERE run = ?1", [&bad]);
    assert_eq!(changed.unwrap(), 1);
    drop(damage);
    let resumed = project.run(&["resume", "-q"]);
    assert_eq!(resumed.code, 4, "{}", resumed.err);
    assert!(resumed.err.contains(" is left alone: "), "{}", resumed.err);
    assert_eq!(project.run(&["wait", &good]).out, "fine\n");
}

#[test]
fn a_run_that_cannot_be_read_any_more_keeps_a_resume_of_all_from_the_end_of_no_other() {
    let project = project(
        "name = \"w\"\n[[step]]\nid = \"only\"\nrun = \"until [ -e gate ]; do sleep 0.02; done; echo fine\"\n",
    );
    let runs = queue(&project, "w.toml", &here(&project), 2);
    let [bad, good] = runs.try_into().unwrap();
    let mut resuming = project.start_with(project.std_command(), &["resume"]);
    let store = rusqlite::Connection::open(project.path(STORE)).unwrap();
    until("both are at it", || {
        let sql = "SELECT count(*) FROM events WHERE kind = 'step.started'";
        store
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
            == 2
    });
    let changed = store.execute("UPDATE runs SET facts = '{' WHERE run = ?1", [&bad]);
    assert_eq!(changed.unwrap(), 1);
    drop(store);
    resuming.until("is left alone");
    project.write("gate", "");
    let ended = resuming.end();
    assert_eq!(ended.code, 4, "{}", ended.err);
    assert!(
        ended.out.contains(&format!("{good} completed")),
        "{}",
        ended.out
    );
}
