//! `logreel serve` as a process: started, called, told to stop.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use common::project::Project;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const SPEC: &str = "name = 'echo'\n[[step]]\nid = 'say'\ninput = '{{ input }}'\nrun = 'cat'\n";
const SLOW: &str =
    "name = 'slow'\n[[step]]\nid = 'sleep'\nrun = 'echo x > began; exec sleep 1000'\n";

/// A server and what it says.
struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    port: u16,
}

impl Serving {
    fn start(project: &Project, args: &[&str]) -> Self {
        let mut command = project.std_command();
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(args);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let port = loop {
            let mut line = String::new();
            assert!(
                stderr.read_line(&mut line).unwrap() > 0,
                "it did not serve: {said}"
            );
            said.push_str(&line);
            if let Some((_, rest)) = line.split_once("http://127.0.0.1:") {
                break rest.trim_end_matches(['/', '\n']).parse().unwrap();
            }
        };
        Self {
            child,
            stderr,
            port,
        }
    }

    /// One request over a connection of its own; the status and the body.
    fn call(&self, method: &str, path: &str, headers: &str, body: Option<Value>) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let body = body.map_or_else(String::new, |body| body.to_string());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            self.port,
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text[9..12].parse().unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (status, plain(head, body))
    }

    /// A file, as it is.
    fn download(&self, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let port = self.port;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert!(bytes.starts_with(b"HTTP/1.1 200"), "{path}");
        let head = bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        bytes.split_off(head + 4)
    }

    fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.call("POST", path, "", Some(body));
        (status, serde_json::from_str(&text).unwrap())
    }

    /// The events of a run until its end, as they come.
    fn follow(&self, run: &str) -> Vec<Value> {
        let path = format!("/v1/runs/{run}/events");
        let (status, text) = self.call("GET", &path, "Accept: text/event-stream\r\n", None);
        assert_eq!(status, 200);
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// Follows a run until it has such an event.
    fn until(&self, path: &str, is: impl Fn(&Value) -> bool) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        let request = format!(
            "GET {path}/events HTTP/1.1\r\nHost: localhost:{}\r\nAccept: text/event-stream\r\n\r\n",
            self.port
        );
        stream.write_all(request.as_bytes()).unwrap();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let data = line.strip_prefix("data: ");
            if data.is_some_and(|data| is(&serde_json::from_str(data).unwrap())) {
                return;
            }
        }
        panic!("{path} ended without it");
    }

    fn stop(mut self, signal: Signal) -> (i32, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code().unwrap(), said)
    }
}

/// A body that came in chunks, without their lengths.
fn plain(head: &str, body: &str) -> String {
    if !head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return body.to_owned();
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&after[..length]);
        rest = after[length..].trim_start_matches("\r\n");
    }
    whole
}

#[test]
fn a_spec_of_the_folder_is_started_by_name_driven_and_followed() {
    let project = Project::new(SPEC);
    std::fs::create_dir(project.path("specs")).unwrap();
    project.write("specs/echo.toml", SPEC);
    project.write("specs/broken.toml", "name = 'x'\n");
    project.write("specs/other.schema.json", "{}");
    let serving = Serving::start(&project, &["--specs", "specs"]);
    let (_, specs) = serving.call("GET", "/v1/specs", "", None);
    let specs: Value = serde_json::from_str(&specs).unwrap();
    let named: Vec<_> = specs["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(named, ["broken", "echo"]);
    assert!(
        specs["items"][0]["error"]
            .as_str()
            .unwrap()
            .contains("neither")
    );

    let (status, run) = serving.post("/v1/runs", json!({"spec": "echo", "input": {"a": 1}}));
    assert_eq!(status, 201, "{run}");
    let id = run["id"].as_str().unwrap();
    let events = serving.follow(id);
    assert_eq!(events.last().unwrap()["kind"], "run.completed");
    // The command line sees the same.
    let mut shown = project.json(&["show", id]);
    // Its driver may take a moment to let go.
    while !shown["driver"].is_null() {
        shown = project.json(&["show", id]);
    }
    assert_eq!(shown["output"], json!({"a": 1}));
    let (_, text) = serving.call("GET", &format!("/v1/runs/{id}"), "", None);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), shown);

    for (body, status) in [
        (json!({"spec": "../w"}), 404),
        (json!({"spec": "broken"}), 422),
        (json!({"spec": {"name": "w", "step": []}}), 403),
    ] {
        assert_eq!(serving.post("/v1/runs", body.clone()).0, status, "{body}");
    }
    // A run that is left to the background is left to the server.
    let detached = project.run(&["run", "w.toml", "x", "--detach"]);
    assert!(
        detached.err.contains("is left to the worker"),
        "{}",
        detached.err
    );
    let events = serving.follow(detached.out.trim());
    assert_eq!(events.last().unwrap()["kind"], "run.completed");
    let (code, said) = serving.stop(Signal::INT);
    assert_eq!(code, 130, "{said}");
}

#[test]
fn what_the_command_line_checks_and_exports_the_server_does_too() {
    let project = Project::new(SPEC);
    std::fs::create_dir(project.path("specs")).unwrap();
    let agent = "name = 'a'\nmodel = 'scripted/answers.jsonl'\n\
        input_schema = { type = 'string', maxLength = 5 }\n";
    project.write("specs/a.toml", agent);
    let said = json!({"text": "done", "usage": {"input_tokens": 3, "output_tokens": 1}});
    project.write("specs/answers.jsonl", &format!("{said}\n"));
    let asks = "name = 'asks'\n[budget]\ntokens = 10\n[[step]]\nid = 'ask'\nwait = 'approval'\n";
    project.write("specs/asks.toml", asks);
    let serving = Serving::start(&project, &["--specs", "specs"]);
    let start = |body: Value| {
        let (status, run) = serving.post("/v1/runs", body);
        assert_eq!(status, 201, "{run}");
        run["id"].as_str().unwrap().to_owned()
    };
    let run = start(json!({"spec": "a", "input": "short"}));
    assert_eq!(
        serving.follow(&run).last().unwrap()["kind"],
        "run.completed"
    );
    // A trace is the same, byte for byte, with what was said and without.
    for (more, flags) in [("", &[][..]), ("&content=true", &["--content"][..])] {
        let path = format!("/v1/runs/{run}/export?format=otlp{more}");
        let mut args = vec!["export", &run, "--format", "otlp", "-o", "trace.pb", "-q"];
        args.extend(flags);
        assert_eq!(project.run(&args).code, 0);
        let written = std::fs::read(project.path("trace.pb")).unwrap();
        std::fs::remove_file(project.path("trace.pb")).unwrap();
        assert!(
            serving.download(&path) == written && written.len() > 100,
            "{path}"
        );
    }
    let wrong = format!("/v1/runs/{run}/export?content=true");
    assert_eq!(serving.call("GET", &wrong, "", None).0, 400);

    let fork = format!("/v1/runs/{run}/fork");
    for dry_run in [true, false] {
        let long = json!({"at": 1, "input": "too long", "dry_run": dry_run});
        let (status, problem) = serving.post(&fork, long);
        assert_eq!((status, &problem["kind"]), (422, &json!("invalid")));
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("does not fit `a`"), "{detail}");
    }
    let (status, outlook) = serving.post(&fork, json!({"at": 1, "dry_run": true}));
    assert_eq!(
        (status, &outlook["harmless"]),
        (200, &json!(true)),
        "{outlook}"
    );

    // A raise that is refused because the file has changed raises nothing.
    let run = start(json!({"spec": "asks"}));
    let path = format!("/v1/runs/{run}");
    serving.until(&path, |event| event["kind"] == "wait.started");
    project.write("specs/asks.toml", &format!("{asks}prompt = 'Really?'\n"));
    let raise = json!({"add_budget": {"tokens": 5}});
    let (status, problem) = serving.post(&format!("{path}/resume"), raise);
    assert_eq!((status, &problem["kind"]), (409, &json!("spec_changed")));
    assert_eq!(project.json(&["show", &run])["budget"]["tokens"], 10);
    serving.stop(Signal::TERM);
}

#[test]
fn inline_specs_are_run_when_that_is_allowed() {
    let project = Project::new(SPEC);
    let serving = Serving::start(&project, &["--allow-inline"]);
    let spec = json!({"name": "w", "step": [{"id": "a", "run": "echo 7"}]});
    let (status, run) = serving.post("/v1/runs", json!({"spec": spec}));
    assert_eq!(status, 201, "{run}");
    let events = serving.follow(run["id"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["body"]["output"], 7);
    let wrong = json!({"name": "w", "step": [{"id": "a", "rum": "echo 7"}]});
    let (status, problem) = serving.post("/v1/runs", json!({"spec": wrong}));
    assert_eq!((status, &problem["kind"]), (422, &json!("invalid")));
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("inline.json") && detail.contains("rum"),
        "{detail}"
    );
    serving.stop(Signal::TERM);
}

#[test]
fn sigterm_hands_the_runs_back() {
    let project = Project::new(SPEC);
    std::fs::create_dir(project.path("specs")).unwrap();
    project.write("specs/slow.toml", SLOW);
    project.pipe("specs/began");
    let serving = Serving::start(&project, &["--specs", "specs"]);
    let (status, run) = serving.post("/v1/runs", json!({"spec": "slow"}));
    assert_eq!(status, 201, "{run}");
    assert_eq!(project.read("specs/began"), "x\n");
    let (code, said) = serving.stop(Signal::TERM);
    assert_eq!(code, 143, "{said}");
    let shown = project.json(&["show", run["id"].as_str().unwrap()]);
    assert_eq!(
        (&shown["status"], &shown["driver"]),
        (&json!("executing"), &json!(null))
    );
    assert_eq!(shown["orphaned"], false);
    assert!(shown["ready_at"].is_string(), "{shown}");
}

#[test]
fn other_machines_need_a_token_and_its_role() {
    let project = Project::new(SPEC);
    project.run(&["init"]);
    // Behind a name there is a proxy, and behind that anyone.
    let elsewhere = ["serve", "--listen", "0.0.0.0:0", "--json"];
    let named = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--host",
        "runs.example.org",
        "--json",
    ];
    for args in [&elsewhere[..], &named[..]] {
        let refused = project.run(args);
        assert_eq!(refused.code, 5, "{}", refused.err);
        assert!(refused.err.contains("token create"), "{}", refused.err);
    }

    let make = |role: &str| {
        let made = project.run(&["token", "create", "--role", role, "--name", role, "-q"]);
        made.out.trim().to_owned()
    };
    let (read, operate) = (make("read"), make("operate"));
    let mut command = project.std_command();
    command.args(["serve", "--listen", "0.0.0.0:0", "--allow-inline"]);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let port = line.trim().rsplit(':').next().unwrap();
    let port = port.trim_end_matches('/').parse().unwrap();
    let serving = Serving {
        child,
        stderr,
        port,
    };
    let call = |method: &str, path: &str, token: &str, body: Option<Value>| {
        let token = match token.is_empty() {
            true => String::new(),
            false => format!("Authorization: Bearer {token}\r\n"),
        };
        serving.call(method, path, &token, body).0
    };
    assert_eq!(call("GET", "/health", "", None), 200);
    assert_eq!(call("GET", "/v1/runs", "", None), 401);
    assert_eq!(call("GET", "/metrics", "", None), 401);
    assert_eq!(call("GET", "/v1/runs", "logreel_wrong", None), 401);
    assert_eq!(call("GET", "/v1/runs", &read, None), 200);
    let nothing = || Some(json!({}));
    let cancel = "/v1/runs/run_0197b0a0-0001-7000-8000-000000000001/cancel";
    assert_eq!(call("POST", cancel, &read, nothing()), 403);
    assert_eq!(call("POST", cancel, &operate, nothing()), 404);
    let inline = || Some(json!({"spec": {"name": "w", "step": [{"id": "a", "run": "true"}]}}));
    assert_eq!(call("POST", "/v1/runs", &operate, inline()), 403);
    // Both are still listed; one that is revoked is worthless at once.
    let listed = project.json(&["token", "list"]);
    let id = listed["items"][0]["id"].as_str().unwrap().to_owned();
    assert!(!listed.to_string().contains(&read));
    assert_eq!(project.run(&["token", "revoke", &id]).code, 0);
    assert_eq!(call("GET", "/v1/runs", &read, None), 401);
    assert_eq!(project.run(&["token", "revoke", &id]).code, 2);
    serving.stop(Signal::TERM);
}

/// A client of `examples/external`: killed after its first essay, started again, and told something
/// while it works.
fn an_agent_elsewhere_records_its_run(program: &str, file: &str) {
    let project = Project::new(SPEC);
    std::fs::create_dir_all(project.path(".logreel")).unwrap();
    project.write(".logreel/config.toml", "lease = '1s'\n");
    let serving = Serving::start(&project, &[]);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/external/");
    let agent = |name: &str, value: &str| {
        let mut command = std::process::Command::new(program);
        command
            .arg(format!("{example}{file}"))
            .args(["job-1", &format!("http://127.0.0.1:{}", serving.port)]);
        command.env(name, value).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let get = |path: &str| -> Value {
        let (status, text) = serving.call("GET", path, "", None);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    let first = agent("DIE_AFTER", "tides").output().unwrap();
    let said = String::from_utf8_lossy(&first.stderr);
    assert_eq!(first.status.code(), Some(9), "{said}");
    let run = get("/v1/runs")["items"][0].clone();
    assert_eq!(
        (&run["kind"], &run["agent"]),
        (&json!("external"), &json!("essayist"))
    );
    let path = format!("/v1/runs/{}", run["id"].as_str().unwrap());

    let second = agent("THINK", "1").spawn().unwrap();
    // The second process is at work once it has begun a step of its own.
    let is_at_work = |event: &Value| event["epoch"] == 2 && event["kind"] == "step.started";
    serving.until(&path, is_at_work);
    let (status, said) = serving.post(&format!("{path}/signals/hurry"), json!({"value": 1}));
    assert_eq!(status, 200, "{said}");
    let second = second.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&second.stdout),
        String::from_utf8_lossy(&second.stderr),
    );
    assert!(second.status.success(), "{err}");
    assert!(out.contains("meanwhile: signal.received"), "{out}");
    assert!(
        !out.contains("wrote about tides") && out.contains("wrote about dunes"),
        "{out}"
    );

    let run = get(&path);
    assert_eq!(
        (&run["status"], &run["output"]),
        (&json!("completed"), &json!({"essays": 3}))
    );
    assert_eq!(
        (&run["state"], &run["driver"]),
        (&json!({"written": 3}), &Value::Null)
    );
    let usage = &run["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["model_calls"]),
        (&json!(30), &json!(3))
    );
    let steps = run["steps"].as_array().unwrap();
    assert!(
        steps.len() == 3 && steps.iter().all(|step| step["status"] == "finished"),
        "{steps:?}"
    );
    let items = get(&format!("{path}/events?limit=1000"))["items"].clone();
    let kinds: Vec<&str> = items
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    let count = |kind: &str| kinds.iter().filter(|it| **it == kind).count();
    assert_eq!(
        (count("step.finished"), count("message.added")),
        (3, 5),
        "{kinds:?}"
    );
    let verified = project.run(&["verify", run["id"].as_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}", verified.err);

    let third = agent("THINK", "0").output().unwrap();
    assert!(!third.status.success());
    assert!(
        String::from_utf8_lossy(&third.stderr).contains("completed"),
        "{third:?}"
    );
    serving.stop(Signal::TERM);
}

#[test]
fn an_agent_elsewhere_records_its_run_under_python3() {
    an_agent_elsewhere_records_its_run("python3", "agent.py");
}

#[test]
fn an_agent_elsewhere_records_its_run_under_node() {
    an_agent_elsewhere_records_its_run("node", "agent.mjs");
}
