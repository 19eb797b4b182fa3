//! Everything that runs in a session of ours: the program and all that it started and did not move to a
//! session of its own, in whatever process groups a shell put them.

use std::time::Duration;

use logreel::Env as _;
use logreel::store::SystemEnv;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// What a program may take to end by itself once it was told to.
const TERM_GRACE: Duration = Duration::from_secs(1);
/// What is left after this hangs inside the system or is another user's.
const KILL_WATCH_MAX: Duration = Duration::from_secs(5);
/// A group that is made while groups are looked for is found at the next look.
const LOOKS: u32 = 3;

pub struct Kin {
    session: Pid,
    group: Pid,
}

/// Who is signalled at once. Nobody escapes a group by forking while it is told; and what one of its members
/// starts because it was told, to clean up, is not told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    Group(Pid),
    /// It joined the group of the session's leader, who would be told as well.
    Process(Pid),
}

impl Whom {
    fn signal(self, signal: Signal) {
        said(match self {
            Self::Group(group) => kill_process_group(group, signal),
            Self::Process(process) => kill_process(process, signal),
        });
    }
}

impl Kin {
    /// Of the session that this process leads; the program leads the group.
    pub fn of(session: Pid, group: Pid) -> Self {
        Self { session, group }
    }

    /// The program's own group.
    pub fn signal(&self, signal: Signal) {
        Whom::Group(self.group).signal(signal);
    }

    /// Everyone.
    pub fn signal_all(&self, signal: Signal) {
        let mut told: Vec<Whom> = Vec::new();
        for _ in 0..LOOKS {
            let Some(all) = self.running() else {
                return self.signal(signal);
            };
            let told_before = told.len();
            for whom in all {
                if !told.contains(&whom) {
                    whom.signal(signal);
                    told.push(whom);
                }
            }
            if told.len() == told_before {
                return;
            }
        }
    }

    /// Ends everyone: TERM, KILL after a second; returns when nobody is left.
    pub async fn end(&self) {
        self.signal_all(Signal::TERM);
        // What is stopped takes its TERM only when it goes on.
        self.signal_all(Signal::CONT);
        if self.ends_within(TERM_GRACE, None).await {
            return;
        }
        if !self.ends_within(KILL_WATCH_MAX, Some(Signal::KILL)).await {
            eprintln!("logreel: some of what the program started cannot be killed");
        }
    }

    async fn ends_within(&self, patience: Duration, signal: Option<Signal>) -> bool {
        let end = SystemEnv.monotonic() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(signal) = signal {
                self.signal_all(signal);
            }
            let gone = match self.running() {
                Some(running) => running.is_empty(),
                None => kill_process_group(self.group, Signal::CONT) == Err(Errno::SRCH),
            };
            if gone || SystemEnv.monotonic() >= end {
                return gone;
            }
            SystemEnv.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Who runs in the session but its leader; `None` on a system without `/proc`.
    fn running(&self) -> Option<Vec<Whom>> {
        let entries = std::fs::read_dir("/proc").ok()?;
        let mut any = false;
        let running = entries.flatten().filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            any = true;
            let (group, session) = running_in(&stat)?;
            let is_kin = session == self.session && pid != self.session;
            let whom = match group == self.session {
                true => Whom::Process(pid),
                false => Whom::Group(group),
            };
            is_kin.then_some(whom)
        });
        let running = running.collect();
        any.then_some(running)
    }
}

/// The group and the session of a process that runs, from its line in `/proc`. The state there is that of its first
/// thread: while others run, it does too. One that the system is about to forget is in no group, which shows as -1.
fn running_in(stat: &str) -> Option<(Pid, Pid)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
    let mut pid = |skipped| {
        let number = fields.nth(skipped)?.parse().ok();
        Pid::from_raw(number.filter(|it| *it > 0)?)
    };
    let found = (pid(1)?, pid(0)?);
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    (!has_ended || threads > 1).then_some(found)
}

fn said(told: rustix::io::Result<()>) {
    match told {
        // It has ended meanwhile.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => eprintln!("logreel: the program cannot be signalled: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_while_a_thread_does_and_one_that_is_being_forgotten_has_no_group() {
        let found = |name: &str, begins: &str, threads: u32| {
            let line =
                format!("42 ({name}) {begins} 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0");
            let (group, session) = running_in(&line)?;
            Some((group.as_raw_pid(), session.as_raw_pid()))
        };
        assert_eq!(found("a) b", "S 1 77 76", 1), Some((77, 76)));
        assert_eq!(found("sh", "Z 1 77 76", 1), None);
        assert_eq!(found("sh", "Z 1 77 76", 2), Some((77, 76)));
        assert_eq!(found("sh", "X 0 -1 -1", 0), None);
        assert_eq!(found("sh", "S 0 -1 -1", 1), None);
    }
}
