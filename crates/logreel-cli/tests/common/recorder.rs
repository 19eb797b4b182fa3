//! `record` at work, and what the log has of it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::project::Project;

pub fn project() -> Project {
    let project = Project::new("");
    let made = project.run(&["init"]);
    assert_eq!(made.code, 0, "{}", made.err);
    project
}

pub fn events(project: &Project, run: &str) -> Vec<Value> {
    let log = project.run(&["log", run, "--json"]);
    assert_eq!(log.code, 0, "{}", log.err);
    let lines = log.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub fn of_kind<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    let found = events.iter().filter(|event| event["kind"] == kind);
    found.map(|event| &event["body"]).collect()
}

/// What the log has of a stream; bytes as they were.
pub fn recorded(events: &[Value], stream: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for body in of_kind(events, "output.written") {
        if body["stream"] != stream {
            continue;
        }
        match (&body["text"], &body["base64"]) {
            (Value::String(text), Value::Null) => bytes.extend(text.as_bytes()),
            (Value::Null, Value::String(base64)) => bytes.extend(decoded(base64)),
            other => panic!("{other:?}"),
        }
    }
    bytes
}

fn decoded(base64: &str) -> Vec<u8> {
    let mut decode = Command::new("base64")
        .arg("-d")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = decode.stdin.take().unwrap();
    let text = base64.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let mut bytes = Vec::new();
    decode
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    writer.join().unwrap();
    assert!(decode.wait().unwrap().success());
    bytes
}

/// `record` with its output in our hands.
pub struct Recorder {
    pub child: Child,
    out: Option<BufReader<std::process::ChildStdout>>,
}

impl Recorder {
    pub fn start(project: &Project, args: &[&str]) -> Self {
        let mut command = project.std_command();
        command.arg("record").args(args);
        Self::of(command)
    }

    /// A command that becomes `record`.
    pub fn of(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let out = Some(BufReader::new(child.stdout.take().unwrap()));
        Self { child, out }
    }

    pub fn out(&mut self) -> &mut BufReader<std::process::ChildStdout> {
        self.out.as_mut().unwrap()
    }

    /// Nobody reads any more.
    pub fn close(&mut self) {
        self.out = None;
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn code(&mut self) -> i32 {
        self.out().read_to_end(&mut Vec::new()).unwrap();
        self.child.wait().unwrap().code().unwrap()
    }
}

/// A test that fails leaves nothing running.
impl Drop for Recorder {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

pub fn last(project: &Project) -> Value {
    project.json(&["show", "@last"])
}

pub fn state_of(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
