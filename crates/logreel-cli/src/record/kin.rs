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
/// A process that forks while it is looked for is found at the next look.
const LOOKS: u32 = 3;

pub struct Kin {
    session: Pid,
    group: Pid,
}

impl Kin {
    /// Of the session that this process leads; the program leads the group.
    pub fn of(session: Pid, group: Pid) -> Self {
        Self { session, group }
    }

    /// The program's own group.
    pub fn signal(&self, signal: Signal) {
        said(kill_process_group(self.group, signal));
    }

    /// Everyone.
    pub fn signal_all(&self, signal: Signal) {
        let mut told: Vec<Pid> = Vec::new();
        for _ in 0..LOOKS {
            let Some(all) = self.running() else {
                return self.signal(signal);
            };
            let new: Vec<Pid> = all.into_iter().filter(|pid| !told.contains(pid)).collect();
            if new.is_empty() {
                return;
            }
            for pid in &new {
                said(kill_process(*pid, signal));
            }
            told.extend(new);
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
    fn running(&self) -> Option<Vec<Pid>> {
        let entries = std::fs::read_dir("/proc").ok()?;
        let mut any = false;
        let pids = entries.flatten().filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            any = true;
            let (_, after_name) = stat.rsplit_once(')')?;
            let mut fields = after_name.split_ascii_whitespace();
            let runs = !matches!(fields.next()?, "Z" | "X" | "x");
            let session: i32 = fields.nth(2)?.parse().ok()?;
            let is_kin = session == self.session.as_raw_pid() && pid != self.session;
            (runs && is_kin).then_some(pid)
        });
        let pids = pids.collect();
        any.then_some(pids)
    }
}

fn said(told: rustix::io::Result<()>) {
    match told {
        // It has ended meanwhile.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => eprintln!("logreel: the program cannot be signalled: {error}"),
    }
}
