//! Process groups of commands, as the system shows them: who is in one, since when, and how it is
//! brought to an end.

use std::fs;
use std::time::Duration;

use logreel_store::Env;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// What a command may take to end by itself once it was told to.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(1);
/// How long a killed group is watched. What is left then hangs inside the system or is another
/// user's; killed, it runs no instruction of its own any more.
const KILL_WATCH_MAX: Duration = Duration::from_secs(5);
/// How often an empty environment is looked at again.
const BECOMING_LOOKS: u32 = 20;

/// A line of `/proc/PID/stat`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: char,
    group: i32,
    threads: u32,
    /// In clock ticks since boot: tells a process from a later one of the same number.
    start: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The second field is the program's name in parentheses and may hold anything, spaces and
    /// parentheses too; only the last one closes it.
    fn parse(line: &str) -> Option<Self> {
        let (_, after_name) = line.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(14)?.parse().ok()?;
        let start = fields.nth(1)?.parse().ok()?;
        Some(Self {
            state,
            group,
            threads,
            start,
        })
    }

    /// A zombie runs nothing; its parent may never collect it. The state is that of the first thread:
    /// while others run, the process does too.
    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x') || self.threads > 1
    }
}

/// When the process started; `None` when there is none of that number, or on a system without `/proc`.
pub(crate) fn start_time(pid: Pid) -> Option<u64> {
    Stat::of(pid.as_raw_pid()).map(|stat| stat.start)
}

/// The processes of a group that still run.
fn members(group: Pid) -> Vec<(i32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?)))
        .filter(|(_, stat)| stat.group == group.as_raw_pid() && stat.runs())
        .collect()
}

/// Whether anything of the group still runs.
pub(crate) fn is_running(group: Pid) -> bool {
    match test_kill_process_group(group) {
        Err(Errno::SRCH) => false,
        // A zombie answers to signal 0 as well.
        Ok(()) | Err(_) => !members(group).is_empty() || fs::metadata("/proc/self").is_err(),
    }
}

/// Whether the process runs: it exists and is no zombie.
#[cfg(test)]
pub(crate) fn runs(pid: Pid) -> bool {
    Stat::of(pid.as_raw_pid()).is_some_and(|stat| stat.runs())
}

/// Whether this is still the group whose leader started then, and anything of it runs. The number of a
/// group is not given to a new process while one of its members exists, so a leader with another start
/// says that the group is gone. Without its leader the group is known by what its members inherited.
pub(crate) fn is_the_same(group: Pid, start: u64, inherited: &str) -> bool {
    match start_time(group) {
        Some(leader) => leader == start && is_running(group),
        None => members(group)
            .iter()
            .any(|(pid, stat)| stat.start >= start && has_in_environment(*pid, inherited)),
    }
}

fn has_in_environment(pid: i32, variable: &str) -> bool {
    environment(pid)
        .split(|byte| *byte == 0)
        .any(|entry| entry == variable.as_bytes())
}

/// A process's environment. It is empty for a moment while the process becomes another program, so that
/// one is looked at again.
fn environment(pid: i32) -> Vec<u8> {
    let read = || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut environment = read();
    for _ in 0..BECOMING_LOOKS {
        if !environment.is_empty() {
            break;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel's time, a millisecond of it"
        )]
        std::thread::sleep(Duration::from_millis(1));
        environment = read();
    }
    environment
}

/// How far a stop came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Nothing of the group runs.
    Gone,
    /// Something could not be killed, or hangs inside the system.
    Stuck,
}

/// Stops a group: TERM, KILL after a second if anything of it is left; returns when nothing is.
pub(crate) async fn stop(group: Pid, env: &dyn Env) -> Stopped {
    if !signal(group, Signal::TERM) {
        return Stopped::Gone;
    }
    // A stopped process takes its TERM only when it goes on.
    signal(group, Signal::CONT);
    if ends_within(group, TERM_GRACE, env).await {
        return Stopped::Gone;
    }
    signal(group, Signal::KILL);
    if ends_within(group, KILL_WATCH_MAX, env).await {
        return Stopped::Gone;
    }
    tracing::error!(group = group.as_raw_pid(), "killed, but not gone");
    Stopped::Stuck
}

/// The last resort of whoever cannot wait.
pub(crate) fn kill(group: Pid) {
    signal(group, Signal::KILL);
}

/// Whether there was anyone to signal.
fn signal(group: Pid, signal: Signal) -> bool {
    match kill_process_group(group, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(error) => {
            let group = group.as_raw_pid();
            tracing::error!(group, ?signal, %error, "a process group cannot be signalled");
            true
        }
    }
}

async fn ends_within(group: Pid, patience: Duration, env: &dyn Env) -> bool {
    let end = env.monotonic() + patience;
    let mut pause = Duration::from_millis(1);
    while is_running(group) {
        if env.monotonic() >= end {
            return false;
        }
        env.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_be_named_like_the_rest_of_the_line() {
        let tail = "S 1 77 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 123456 20 21";
        for name in ["sh", "a b", ") S 9 9 (", "x) Z 1 1 1", ""] {
            let stat = Stat::parse(&format!("42 ({name}) {tail}")).unwrap();
            assert_eq!((stat.state, stat.group, stat.start), ('S', 77, 123_456));
        }
        assert_eq!(Stat::parse("42 (sh"), None);
        assert_eq!(Stat::parse("42 (sh) S 1 77"), None);
    }

    #[test]
    fn a_process_runs_while_any_of_its_threads_does() {
        for (state, threads, runs) in [("S", 1, true), ("Z", 2, true), ("Z", 1, false)] {
            let line =
                format!("42 (x) {state} 1 77 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 18 9");
            assert_eq!(Stat::parse(&line).unwrap().runs(), runs, "{line}");
        }
    }

    #[test]
    fn this_process_has_a_start_and_a_group() {
        let own = rustix::process::getpid();
        let start = start_time(own).unwrap();
        assert!(start > 0);
        let group = rustix::process::getpgrp();
        assert!(is_running(group));
        assert!(!is_the_same(own, start + 1, "LOGREEL_RUN=none"));
    }
}
