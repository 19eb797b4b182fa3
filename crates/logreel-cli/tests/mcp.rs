//! An MCP server of someone else, as npm has it, driven by an agent: it is killed while it is asked
//! something, it is killed while nobody asks it anything, and whoever drives it is killed. The run ends
//! as it would have, and leaves no server behind.
//!
//! It needs node and `npm ci` in crates/logreel-agent/tests/mcp, as `scripts/test` does it.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::kill::{marked, until};
use common::project::Project;
use common::run_id;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The server's program; without it the test says why it is skipped, which on CI is a failure.
fn server() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../logreel-agent/tests/mcp");
    let program = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
    let has_node = Command::new("node").arg("--version").output();
    let lacks = match has_node.is_ok_and(|it| it.status.success()) {
        false => "node is not installed",
        true if !folder.join(program).exists() => {
            "`npm ci` was not run in crates/logreel-agent/tests/mcp"
        }
        true => return Some(folder.join(program).canonicalize().unwrap()),
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{lacks}, and CI may not skip it"
    );
    eprintln!("skipped: {lacks}");
    None
}

struct Scene {
    project: Project,
    mark: String,
    /// What the server is asked to read: it does not answer before this end is written and closed.
    gate: Option<std::fs::File>,
}

impl Scene {
    fn new(server: &Path) -> Self {
        let project = Project::new("");
        project.pipe("gate");
        project.pipe("pipe");
        project.pipe("go");
        let call = |name: &str, arguments: Value| json!({"tool_calls": [{"name": name, "arguments": arguments}]});
        let path = |name: &str| project.path(name).canonicalize().unwrap();
        let folder = project.0.path().canonicalize().unwrap();
        let written = folder.join("written.txt");
        let expecting = |mut line: Value, expect: &str| {
            line["expect"] = json!(expect);
            line
        };
        let lines = [
            call(
                "files.write_file",
                json!({"path": written, "content": "kept"}),
            ),
            expecting(
                call("files.read_text_file", json!({"path": path("gate")})),
                "Successfully wrote",
            ),
            expecting(call("pause", json!({})), "after the kill"),
            expecting(
                call("files.read_text_file", json!({"path": written})),
                "paused",
            ),
            json!({"text": "done", "expect": "kept"}),
        ];
        project.write("a.jsonl", &lines.map(|it| it.to_string()).join("\n"));
        let mark = format!("MCP_TEST={}", folder.display());
        let spec = format!(
            r#"
            name = "a"
            model = "scripted/a.jsonl"
            tools = ["files.*", "pause"]
            policy = {{ default = "allow" }}
            [tool.pause]
            description = "Pauses"
            effect = "read"
            run = "cat > /dev/null; echo > pipe; cat go > /dev/null; echo paused"
            [mcp.files]
            command = ["node", {server:?}, {folder:?}]
            env = {{ MCP_TEST = {folder:?} }}
            trust_annotations = true
            "#
        );
        project.write("a.toml", &spec);
        // For reading too, so that it can be opened while no server does.
        let gate = std::fs::File::options()
            .read(true)
            .write(true)
            .open(project.path("gate"));
        Self {
            mark,
            gate: Some(gate.unwrap()),
            project,
        }
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = self.project.std_command();
        command.args(args).stdin(Stdio::null());
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        child.unwrap()
    }

    /// The server, once it reads what it was asked to.
    fn reading(&self) -> Pid {
        let gate = self.project.path("gate").canonicalize().unwrap();
        let mut found = None;
        until("the server is asked", || {
            found = self.servers().into_iter().find(|pid| {
                let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
                let mut open = open.into_iter().flatten().flatten();
                open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|it| it == gate))
            });
            found.is_some()
        });
        Pid::from_raw(found.unwrap()).unwrap()
    }

    fn servers(&self) -> Vec<i32> {
        let marked = marked(&self.mark);
        let pids = marked.iter().map(|it| it.split(':').next().unwrap());
        pids.map(|pid| pid.parse().unwrap()).collect()
    }

    fn kill_server(&self, pid: Pid) {
        kill_process(pid, Signal::KILL).unwrap();
        let pid = pid.as_raw_pid();
        until("the server is gone", || !self.servers().contains(&pid));
    }

    /// The rest of the run: what is asked is answered, and the server is killed while it has nothing
    /// to do.
    fn finish(mut self, child: Child) {
        let reading = self.reading();
        let mut gate = self.gate.take().unwrap();
        gate.write_all(b"after the kill\n").unwrap();
        drop(gate);
        std::fs::read_to_string(self.project.path("pipe")).unwrap();
        assert_eq!(self.servers(), [reading.as_raw_pid()], "it is kept");
        self.kill_server(reading);
        self.project.write("go", "on");
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout).trim_end(), "done");
        assert_eq!(self.project.read("written.txt"), "kept");
        until("no server is left", || self.servers().is_empty());
        let run = run_id(1).to_string();
        let log = self.project.run(&["log", &run, "--json"]).out;
        let events = log
            .lines()
            .map(|it| serde_json::from_str::<Value>(it).unwrap());
        let returned = events.filter(|it| it["kind"] == "tool.returned").count();
        assert_eq!(returned, 4, "{log}");
    }
}

#[test]
fn a_server_on_node_that_is_killed_is_started_again() {
    let Some(server) = server() else { return };
    let scene = Scene::new(&server);
    let run = run_id(1).to_string();
    let child = scene.start(&["run", "a.toml", "go", "--id", &run]);
    let first = scene.reading();
    scene.kill_server(first);
    assert_ne!(scene.reading(), first);
    scene.finish(child);
}

#[test]
fn a_server_on_node_does_not_outlive_whoever_started_it() {
    let Some(server) = server() else { return };
    let scene = Scene::new(&server);
    let run = run_id(1).to_string();
    let mut child = scene.start(&["run", "a.toml", "go", "--id", &run]);
    let first = scene.reading();
    child.kill().unwrap();
    child.wait().unwrap();
    let child = scene.start(&["resume", &run]);
    until("the first server is gone", || {
        !scene.servers().contains(&first.as_raw_pid())
    });
    scene.finish(child);
}
