//! Runs as OpenTelemetry traces, read by OpenTelemetry's own decoder for Python.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::project::Project;
use serde_json::Value;

const AGENT: &str = r#"
name = "helper"
model = "scripted/answers.jsonl"
system = "You are brief and SECRETIVE."
tools = ["note", "shell", "asker"]
params = { max_output_tokens = 99, temperature = 0.5 }
[policy]
allow = ["note", "asker"]
deny = ["shell"]
[tool.note]
description = "Takes a note"
run = "cat > note.json; echo SECRET-RESULT"
[agents.asker]
spec = "asker.toml"
description = "Asks around"
"#;

const ANSWERS: &str = r#"{"tool_calls": [{"id": "c1", "name": "note", "arguments": {"text": "SECRET-ARGUMENT"}}, {"id": "c2", "name": "asker", "arguments": {"input": "who?"}}, {"id": "c3", "name": "shell", "arguments": {"command": "ls"}}], "usage": {"input_tokens": 11, "output_tokens": 7}}
{"error": {"kind": "rate_limited", "retry_after_ms": 1}}
{"text": "SECRET-ANSWER", "usage": {"input_tokens": 20, "output_tokens": 3}}
"#;

const WORKFLOW: &str = r#"
name = "flow"
[[step]]
id = "broken"
run = "exit 3"
on_error = "continue"
[[step]]
id = "help"
needs = ["broken"]
agent = "agent.toml"
input = "SECRET-INPUT"
"#;

fn project() -> Project {
    let project = Project::new(WORKFLOW);
    project.write("agent.toml", AGENT);
    project.write("answers.jsonl", ANSWERS);
    project.write(
        "asker.toml",
        "name = \"asker\"\nmodel = \"scripted/asked.jsonl\"\n",
    );
    project.write("asked.jsonl", "{\"text\": \"Nobody.\"}\n");
    project
}

/// A Python that has OpenTelemetry's messages; made once, by whichever test comes first: each has a process of its own.
fn python() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("otlp-venv");
    let making = std::fs::File::create(folder.with_extension("lock")).unwrap();
    making.lock().unwrap();
    let python = folder.join("bin/python");
    let ready = folder.join("ready");
    if !ready.exists() {
        let run = |command: &mut Command| assert!(command.status().unwrap().success());
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&folder));
        run(Command::new(&python).args(["-m", "pip", "install", "-q", "opentelemetry-proto"]));
        std::fs::write(ready, "").unwrap();
    }
    python
}

fn decoded(file: &Path) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/otlp/decode.py");
    let output = Command::new(python())
        .arg(script)
        .arg(file)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn run_of(project: &Project, agent: &str) -> String {
    let listed = project.json(&["ls", "--agent", agent]);
    listed["items"][0]["id"].as_str().unwrap().to_owned()
}

struct Trace(Vec<Value>);

impl Trace {
    fn named(&self, name: &str) -> &Value {
        let mut found = self.0.iter().filter(|span| span["name"] == name);
        found
            .next()
            .unwrap_or_else(|| panic!("no span {name:?} in {:#?}", self.names()))
    }

    fn names(&self) -> Vec<&str> {
        self.0
            .iter()
            .map(|span| span["name"].as_str().unwrap())
            .collect()
    }

    /// The names from the root down to a span.
    fn path(&self, name: &str) -> Vec<String> {
        let by_id: HashMap<&str, &Value> = self
            .0
            .iter()
            .map(|span| (span["id"].as_str().unwrap(), span))
            .collect();
        let mut path = vec![name.to_owned()];
        let mut span = self.named(name);
        while span["parent"] != "" {
            span = by_id[span["parent"].as_str().unwrap()];
            path.push(span["name"].as_str().unwrap().to_owned());
        }
        path.reverse();
        path
    }
}

fn check(trace: &Trace) {
    assert_eq!(
        trace.path("chat asked.jsonl"),
        [
            "invoke_workflow flow",
            "step help",
            "invoke_agent helper",
            "execute_tool asker",
            "invoke_agent asker",
            "chat asked.jsonl",
        ]
    );
    let traces: std::collections::HashSet<&Value> = trace.0.iter().map(|it| &it["trace"]).collect();
    assert_eq!(traces.len(), 1);
    let ids: std::collections::HashSet<&Value> = trace.0.iter().map(|it| &it["id"]).collect();
    assert_eq!(ids.len(), trace.0.len(), "ids are their own");
    for span in &trace.0 {
        let (start, end) = (
            span["start"].as_u64().unwrap(),
            span["end"].as_u64().unwrap(),
        );
        assert!(
            start > 1_600_000_000_000_000_000 && start <= end,
            "{span:#}"
        );
        assert_eq!(span["resource"]["service.name"], "logreel");
    }
    let of = |name: &str, key: &str| trace.named(name)["attributes"][key].clone();
    let root = "invoke_agent helper";
    assert_eq!(trace.named(root)["kind"], "SPAN_KIND_INTERNAL");
    assert_eq!(of(root, "gen_ai.operation.name"), "invoke_agent");
    assert_eq!(of(root, "gen_ai.agent.name"), "helper");
    assert_eq!(of(root, "gen_ai.provider.name"), "scripted");
    assert_eq!(of(root, "gen_ai.request.model"), "answers.jsonl");
    assert_eq!(of(root, "gen_ai.usage.input_tokens"), 31);
    assert_eq!(of(root, "gen_ai.usage.output_tokens"), 10);
    assert_eq!(of("invoke_workflow flow", "gen_ai.workflow.name"), "flow");
    let chats: Vec<&Value> = trace
        .0
        .iter()
        .filter(|span| span["name"] == "chat answers.jsonl")
        .collect();
    assert_eq!(chats.len(), 3);
    for chat in &chats {
        assert_eq!(chat["kind"], "SPAN_KIND_CLIENT");
        assert_eq!(chat["attributes"]["gen_ai.operation.name"], "chat");
        assert_eq!(chat["attributes"]["gen_ai.request.max_tokens"], 99);
        assert_eq!(chat["attributes"]["gen_ai.request.temperature"], 0.5);
    }
    assert_eq!(chats[0]["attributes"]["gen_ai.usage.input_tokens"], 11);
    assert_eq!(
        chats[0]["attributes"]["gen_ai.response.finish_reasons"][0],
        "tool_calls"
    );
    assert_eq!(chats[1]["status"], "STATUS_CODE_ERROR");
    assert_eq!(chats[1]["attributes"]["error.type"], "rate_limited");
    let note = "execute_tool note";
    assert_eq!(trace.named(note)["kind"], "SPAN_KIND_INTERNAL");
    assert_eq!(of(note, "gen_ai.operation.name"), "execute_tool");
    assert_eq!(of(note, "gen_ai.tool.name"), "note");
    assert_eq!(of(note, "gen_ai.tool.call.id"), "c1");
    assert_eq!(of("execute_tool shell", "error.type"), "denied");
    assert_eq!(of("step broken", "error.type"), "exit");
    assert_eq!(of("step broken", "process.exit.code"), 3);
    assert_eq!(trace.named("step broken")["status"], "STATUS_CODE_ERROR");
}

#[test]
fn a_trace_is_what_the_genai_conventions_say_by_python3() {
    let project = project();
    let ran = project.run(&["run", "w.toml", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let run = run_of(&project, "flow");
    let export = |name: &str, more: &[&str]| {
        let mut args = vec!["export", &run, "--format", "otlp", "-o", name, "-q"];
        args.extend(more);
        let ran = project.run(&args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        std::fs::read(project.path(name)).unwrap()
    };
    let bytes = export("trace.pb", &[]);
    let trace = Trace(decoded(&project.path("trace.pb")));
    check(&trace);
    // Twice is the same, and a child alone is the same part of it.
    assert_eq!(export("again.pb", &[]), bytes);
    let helper = run_of(&project, "helper");
    let ran = project.run(&["export", &helper, "--format", "otlp", "-o", "part.pb", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for span in decoded(&project.path("part.pb")) {
        assert!(trace.0.contains(&span), "{span:#}");
    }
    // Nothing that was said is in it, unless it is asked for.
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains("SECRET"), "{text}");
    export("said.pb", &["--content"]);
    let said = Trace(decoded(&project.path("said.pb")));
    check(&said);
    let of = |name: &str, key: &str| -> Value {
        let text = said.named(name)["attributes"][key]
            .as_str()
            .unwrap()
            .to_owned();
        serde_json::from_str(&text).unwrap()
    };
    let input = of("invoke_agent helper", "gen_ai.input.messages");
    assert_eq!(input[0]["parts"][0]["content"], "SECRET-INPUT");
    let chat = "chat answers.jsonl";
    assert_eq!(
        of(chat, "gen_ai.system_instructions")[0]["content"],
        "You are brief and SECRETIVE."
    );
    assert_eq!(
        of(chat, "gen_ai.output.messages")[0]["parts"][0]["type"],
        "tool_call"
    );
    assert_eq!(
        of("execute_tool note", "gen_ai.tool.call.arguments")["text"],
        "SECRET-ARGUMENT"
    );
}

/// The root of a fork's trace is the fork's: its input, its spec, its model; and no attribute comes twice.
#[test]
fn the_trace_of_a_fork_is_its_own_by_python3() {
    let project = Project::new("name = \"talker\"\nmodel = \"scripted/old.jsonl\"\n");
    project.write("old.jsonl", "{\"text\":\"old\"}\n{\"text\":\"older\"}\n");
    project.write(
        "new.jsonl",
        "{\"text\":\"new\"}\n{\"text\":\"newer\"}\n{\"text\":\"newest\"}\n",
    );
    let ran = project.run(&["run", "w.toml", "hi", "--session", "talk", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let fork = [
        "fork",
        "@last",
        "--at",
        "last",
        "--model",
        "scripted/new.jsonl",
        "--input",
        "other",
        "-q",
    ];
    let again = ["fork", "@last", "--at", "last", "--message", "go on", "-q"];
    for (args, file) in [(&fork[..], "one.pb"), (&again, "two.pb")] {
        let parent = project.json(&["show", "@last"])["id"].clone();
        let ran = project.run(args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let otlp = [
            "export",
            "@last",
            "--format",
            "otlp",
            "--content",
            "-o",
            file,
            "-q",
        ];
        assert_eq!(project.run(&otlp).code, 0);
        let trace = Trace(decoded(&project.path(file)));
        let said = &trace.named("invoke_agent talker")["attributes"];
        assert_eq!(said["gen_ai.request.model"], "new.jsonl");
        assert_eq!(said["logreel.parent.run"], parent);
        assert_eq!(
            said["logreel.spec_digest"],
            project.json(&["show", "@last"])["spec_digest"]
        );
        assert!(said.get("gen_ai.conversation.id").is_none(), "{said:#}");
        let input = said["gen_ai.input.messages"].as_str().unwrap();
        assert!(
            input.contains("other") && !input.contains("\"hi\""),
            "{input}"
        );
    }
}

/// A collector that keeps what it is sent, and answers with this status.
struct Collector {
    url: String,
    got: Arc<Mutex<Vec<u8>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (got, requests) = (Arc::default(), Arc::default());
        let collector = Self { url, got, requests };
        let (got, requests) = (Arc::clone(&collector.got), Arc::clone(&collector.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = Vec::new();
                let mut chunk = [0; 4096];
                let body = loop {
                    let read = stream.read(&mut chunk).unwrap_or(0);
                    if read == 0 {
                        break None;
                    }
                    bytes.extend_from_slice(&chunk[..read]);
                    let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else {
                        continue;
                    };
                    let head = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
                    let length = head
                        .lines()
                        .find_map(|line| line.strip_prefix("content-length: "));
                    let length: usize = length.unwrap().trim().parse().unwrap();
                    if bytes.len() >= at + 4 + length {
                        break Some((head, bytes[at + 4..at + 4 + length].to_vec()));
                    }
                };
                if let Some((head, body)) = body {
                    got.lock().unwrap().extend(body);
                    requests.lock().unwrap().push(head);
                    let answer = format!(
                        "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        collector
    }
}

#[test]
fn a_live_run_sends_the_spans_that_an_export_has_by_python3() {
    let project = project();
    let collector = Collector::start("200 OK");
    let mut command = project.command();
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x");
    let ran = common::ran(command.args(["run", "w.toml", "-q"]));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    std::fs::write(project.path("live.pb"), &*collector.got.lock().unwrap()).unwrap();
    let live = Trace(decoded(&project.path("live.pb")));
    check(&live);
    for head in &*collector.requests.lock().unwrap() {
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        assert!(head.contains("authorization: bearer x"), "{head}");
    }
    // The same spans that an export sends, to a file or to a collector.
    let run = run_of(&project, "flow");
    let other = Collector::start("200 OK");
    let args = [
        "export",
        &run,
        "--format",
        "otlp",
        "--endpoint",
        &other.url,
        "-q",
    ];
    let ran = project.run(&args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    std::fs::write(project.path("sent.pb"), &*other.got.lock().unwrap()).unwrap();
    let sent = decoded(&project.path("sent.pb"));
    assert_eq!(sent.len(), live.0.len());
    for span in sent {
        assert!(
            live.0.contains(&span),
            "{span:#}\n{:#?}",
            live.named(span["name"].as_str().unwrap())
        );
    }
}

#[test]
fn a_collector_that_refuses_or_is_gone_disturbs_no_run_and_is_told_of_once() {
    let project = project();
    let refusing = Collector::start("503 Service Unavailable");
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for url in [refusing.url.as_str(), &gone, "no url"] {
        let mut command = project.command();
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url);
        let ran = common::ran(command.args(["run", "agent.toml", "Help!"]));
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (0, "SECRET-ANSWER\n"),
            "{}",
            ran.err
        );
        let told = ran
            .err
            .lines()
            .filter(|line| line.contains("spans"))
            .count();
        assert_eq!(told, 1, "{}", ran.err);
    }
    let ran = project.run(&["export", "@last", "--format", "otlp", "--endpoint", &gone]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains(&gone), "{}", ran.err);
}
