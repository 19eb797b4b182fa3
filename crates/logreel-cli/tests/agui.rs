//! The client of AG-UI, as npm has it, with `logreel serve`: agents and workflows as it is told of them.
//!
//! It needs node and `npm ci` in crates/logreel-server/tests/agui, as `scripts/test` does it.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::project::Project;
use serde_json::{Value, json};

/// The client's program; without it the test says why it is skipped, which on CI is a failure.
fn client() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../logreel-server/tests/agui");
    let has_node = Command::new("node").arg("--version").output();
    let lacks = match has_node.is_ok_and(|it| it.status.success()) {
        false => "node is not installed",
        true if !folder.join("node_modules/@ag-ui/client").exists() => {
            "`npm ci` was not run in crates/logreel-server/tests/agui"
        }
        true => return Some(folder.join("client.mjs").canonicalize().unwrap()),
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{lacks}, and CI may not skip it"
    );
    eprintln!("skipped: {lacks}");
    None
}

/// A server, which ends with this.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    /// Dies at once, without a word.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start(project: &Project) -> Self {
        let mut command = project.std_command();
        command.args(["serve", "--listen", "127.0.0.1:0", "--specs", "specs"]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().expect("it serves").unwrap();
            if let Some((_, port)) = line.split_once("http://127.0.0.1:") {
                break format!("http://127.0.0.1:{}", port.trim_end_matches('/'));
            }
        };
        // It may say more, and must not wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Answers of a model, one a line.
fn lines(answers: &[Value]) -> String {
    let lines = answers.iter().map(ToString::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

fn agent(name: &str, more: &str) -> String {
    format!("name = '{name}'\nmodel = 'scripted/{name}.jsonl'\n{more}")
}

fn project() -> Project {
    let project = Project::new("");
    std::fs::create_dir(project.path("specs")).unwrap();
    project.pipe("go");
    let write = |name: &str, spec: &str, answers: &[Value]| {
        project.write(&format!("specs/{name}.toml"), &agent(name, spec));
        project.write(&format!("specs/{name}.jsonl"), &lines(answers));
    };
    let call = |name: &str, n: u8| json!({"name": name, "arguments": {"n": n}});
    let words = json!({"text": "one two three", "chunks": ["one ", "two ", "three"]});
    write("talk", "", &[words]);
    let tool = |name: &str, effect: &str, run: &str| {
        format!(
            "tools = ['{name}']\n[tool.{name}]\ndescription = 'It'\neffect = '{effect}'\nrun = '{run}'\n"
        )
    };
    let done = json!({"text": "done"});
    write(
        "tools",
        &tool("look", "read", "cat > /dev/null; echo found"),
        &[
            json!({"tool_calls": [call("look", 1), call("look", 2)]}),
            done.clone(),
        ],
    );
    write(
        "asks",
        &tool("publish", "write", "cat > /dev/null; echo published"),
        &[
            json!({"text": "I publish", "tool_calls": [call("publish", 1)]}),
            done.clone(),
        ],
    );
    write(
        "slow",
        &tool("gate", "read", "cat > /dev/null; cat go"),
        &[json!({"tool_calls": [call("gate", 1)]}), done.clone()],
    );
    for name in ["paused", "held"] {
        let gate = format!("cat > /dev/null; until test -e {name}.open; do sleep 0.05; done");
        let answers = [json!({"tool_calls": [call("gate", 1)]}), done.clone()];
        write(name, &tool("gate", "read", &gate), &answers);
    }
    write(
        "poor",
        &format!(
            "{}\n[budget]\ntool_calls = 1\n",
            tool("look", "read", "cat > /dev/null; echo found")
        ),
        &[
            json!({"tool_calls": [call("look", 1)]}),
            json!({"tool_calls": [call("look", 2)]}),
            done.clone(),
        ],
    );
    write(
        "stuck",
        &tool("wait", "read", "cat > /dev/null; exec sleep 600"),
        &[json!({"tool_calls": [call("wait", 1)]}), done],
    );
    project.write(
        "specs/flow.toml",
        "name = 'flow'\n\
         [[step]]\nid = 'first'\nagent = 'talk.toml'\ninput = 'x'\n\
         [[step]]\nid = 'ask'\nneeds = ['first']\nwait = 'approval'\nprompt = 'Go on?'\n\
         [[step]]\nid = 'last'\nneeds = ['ask']\nrun = 'echo 7'\n",
    );
    project.write(
        "specs/doubt.toml",
        "name = 'doubt'\n\
         [[step]]\nid = 'publish'\neffect = 'write'\ntimeout = '50ms'\nrun = 'exec sleep 600'\n",
    );
    project.write(
        "specs/fails.toml",
        "name = 'fails'\n[[step]]\nid = 'no'\nrun = 'echo no >&2; exit 3'\n",
    );
    project
}

fn node(client: &Path, project: &Project, serving: &Serving) -> Command {
    let mut node = Command::new("node");
    node.arg(client)
        .arg(&serving.url)
        .current_dir(project.0.path());
    node
}

#[test]
fn the_client_of_agui_drives_runs_of_a_server() {
    let Some(client) = client() else { return };
    let project = project();
    let serving = Serving::start(&project);
    let mut node = node(&client, &project, &serving);
    node.args(["plain", "tools", "interrupt", "denied", "cancel", "rejoin"]);
    node.args(["flow", "failed", "budget", "doubt", "paused"]);
    let ran = node.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{err}");
    assert_eq!(said.lines().count(), 11, "{said}");
}

#[test]
fn the_client_of_agui_rejoins_after_its_server_was_killed() {
    let Some(client) = client() else { return };
    let project = project();
    let serving = Serving::start(&project);
    let mut node = node(&client, &project, &serving);
    node.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = node.arg("restart").spawn().unwrap();
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    let mut until = |what: &str| loop {
        let line = lines.next().expect(what).unwrap();
        if let Some((_, rest)) = line.split_once(what) {
            break rest.to_owned();
        }
    };
    let earlier = until("begins: ");
    until("begun");
    serving.kill();
    // The conversation has a run that nobody can read: whoever joins is told the rest.
    let store = rusqlite::Connection::open(project.path(".logreel/runs.db")).unwrap();
    let damage = "UPDATE events SET format = 99
        WHERE seq = 2 AND run = (SELECT id FROM runs WHERE run = ?1)";
    assert_eq!(store.execute(damage, [&earlier]).unwrap(), 1);
    drop(store);
    let serving = Serving::start(&project);
    let mut stdin = node.stdin.take().unwrap();
    writeln!(stdin, "{}", serving.url).unwrap();
    until("restart: as it should be");
    assert!(node.wait().unwrap().success());
}
