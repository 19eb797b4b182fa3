//! Killing a process at an exact point of what it writes. strace stops it at each write or sync of one
//! file, whichever thread does it, and this side counts: it lets it go on, or kills it there.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Where in a commit the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At its sync: it is in the file, and nobody was told.
    Synced,
    /// At its first write: what it tells of has happened, and nothing of it is in the file.
    Unwritten,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Killed,
    /// There were fewer commits: it ended by itself, with this code.
    Ended(i32),
}

/// Runs a command and kills it with SIGKILL at the nth commit that it makes to this log of a store.
/// What it had started is left as it is.
pub fn killed_at(command: &Command, wal: &Path, at: At, nth: usize) -> End {
    let (traces, stops) = match at {
        At::Synced => ("fsync,fdatasync", "fsync,fdatasync"),
        At::Unwritten => ("pwrite64,fsync,fdatasync", "pwrite64"),
    };
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", &format!("trace={traces}")]);
    strace.args(["-e", &format!("inject={stops}:signal=SIGSTOP")]);
    strace.arg("-P").arg(wal).arg(command.get_program());
    strace.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        strace.current_dir(folder);
    }
    let mut strace = strace
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace is installed");
    let said = BufReader::new(strace.stderr.take().unwrap());
    let (mut commits, mut has_begun) = (0, false);
    for line in said.lines() {
        let line = line.unwrap();
        if line.contains("sync(") {
            has_begun = false;
        }
        if !line.contains("--- SIGSTOP {") {
            continue;
        }
        let pid = child_of(strace.id());
        if at == At::Synced || !std::mem::replace(&mut has_begun, true) {
            commits += 1;
            if commits == nth {
                kill_process(pid, Signal::KILL).unwrap();
                // Whatever it left behind is on its own from here. Before its threads are waited for: their tracer
                // may wait for the first of them, which ends only after the others that wait for their tracer.
                strace.kill().unwrap();
                strace.wait().unwrap();
                until_gone(pid);
                return End::Killed;
            }
        }
        kill_process(pid, Signal::CONT).unwrap();
    }
    let status = strace.wait().unwrap();
    End::Ended(status.code().expect("nobody killed it"))
}

/// The only child of a process.
fn child_of(pid: u32) -> Pid {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child = children.split_whitespace().next();
    Pid::from_raw(child.expect("it lives").parse().unwrap()).unwrap()
}

/// Waits until a killed process has let go of everything; nothing rings when someone else's does.
///
/// Its first thread is a zombie as soon as *it* has ended. The others may still hold its files then, and with
/// them the lock that keeps the next reader of the store from recovering the commit it died in.
fn until_gone(pid: Pid) {
    let tasks = format!("/proc/{}/task", pid.as_raw_pid());
    until("a killed process is gone", || {
        let Ok(threads) = std::fs::read_dir(&tasks) else {
            return true;
        };
        let threads: Vec<_> = threads.flatten().collect();
        threads.iter().all(|thread| has_ended(&thread.path())) && threads.len() <= 1
    });
}

fn has_ended(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|it| it.1);
    state.is_none_or(|state| state.starts_with('Z'))
}

/// The processes, other than zombies, that have this in their environment.
pub fn marked(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let environ = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let mut variables = environ.split(|byte| *byte == 0);
        if variables.any(|variable| variable == mark.as_bytes()) {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push(format!("{}: {line}", process.file_name().display()));
        }
    }
    found
}

/// Looks until it holds: for what rings no bell, as the process table.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, holds);
}

/// The same with a time of its own.
#[expect(
    clippy::disallowed_methods,
    reason = "the process table is real, and so is the time it takes"
)]
pub fn within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    // What holds soon is seen soon; a look at all processes is not free, and tests share the machine.
    let mut pause = Duration::from_millis(2);
    while !holds() {
        assert!(
            begun.elapsed() < patience,
            "not within {patience:?}: {what}"
        );
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
