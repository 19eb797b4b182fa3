//! A folder with spec files, the binary run in it, and processes that are watched while they run.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{Ran, ran};

pub struct Project(pub TempDir);

impl Project {
    /// A folder with this as `w.toml`.
    pub fn new(spec: &str) -> Self {
        let project = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(project.path(".git")).unwrap();
        project.write("w.toml", spec);
        project
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// A pipe by which a step can tell the test something: reading it waits for that.
    pub fn pipe(&self, name: &str) {
        let mut mkfifo = Command::new("mkfifo");
        assert!(mkfifo.arg(self.path(name)).status().unwrap().success());
    }

    pub fn command(&self) -> assert_cmd::Command {
        let mut command = assert_cmd::Command::from_std(self.std_command());
        command.timeout(Duration::from_secs(120));
        command
    }

    /// `LOGREEL_BIN` names another binary, for instance one as it is released.
    pub fn std_command(&self) -> Command {
        let own = || env!("CARGO_BIN_EXE_logreel").into();
        let mut command = Command::new(std::env::var_os("LOGREEL_BIN").unwrap_or_else(own));
        command
            .current_dir(self.0.path())
            .env_remove("NO_COLOR")
            .env_remove("LOGREEL_STORE")
            .env_remove("XDG_CONFIG_HOME")
            .env("HOME", "/nowhere")
            .env("USER", "ada")
            .env("RUST_BACKTRACE", "1");
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(self.command().args(args))
    }

    /// What `--json` says, on one line.
    pub fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err))
    }

    /// Starts the binary and reads its stderr until a line has this in it.
    pub fn start(&self, args: &[&str], until: &str) -> Running {
        let mut running = self.start_with(self.std_command(), args);
        running.until(until);
        running
    }

    /// Starts the binary as this command of it.
    pub fn start_with(&self, mut command: Command, args: &[&str]) -> Running {
        command.args(args).stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running {
            child,
            stderr,
            said: String::new(),
            told: String::new(),
        }
    }
}

pub struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    said: String,
    /// What was read of its standard output by now.
    told: String,
}

impl Running {
    /// Reads until a line has this in it, and gives the line.
    pub fn until(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.stderr.read_line(&mut line).unwrap();
            assert!(count > 0, "{what:?} never came:\n{}", self.said);
            self.said.push_str(&line);
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Waits until it has printed a line.
    pub fn until_told(&mut self) {
        let stdout = self.child.stdout.as_mut().unwrap();
        let mut byte = [0];
        while byte != *b"\n" {
            stdout.read_exact(&mut byte).unwrap();
            self.told.push(char::from(byte[0]));
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Whether every thread of it is stopped: a signal is only on its way when it was sent.
    pub fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_some_and(|it| it.1.starts_with('T'))
        })
    }

    /// Ends it as a power cut would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn end(mut self) -> Ran {
        self.stderr.read_to_string(&mut self.said).unwrap();
        let mut out = self.told;
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut out).unwrap();
        let status = self.child.wait().unwrap();
        Ran {
            code: status.code().expect("no signal ended it"),
            out,
            err: self.said,
        }
    }
}
