//! A test's own binary, started again as another process: what only a real process can show.
//!
//! A test asks [`role`] first. In the test itself there is none; in a process that the test started
//! with [`again`] it says what to do.
#![allow(
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    reason = "shared by several test binaries, each uses a part"
)]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use logreel::Env;
use logreel::store::SystemEnv;
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};

const ROLE: &str = "LOGREEL_TEST_ROLE";
const FOLDER: &str = "LOGREEL_TEST_FOLDER";
/// What a child says to its test begins with this; libtest writes to the same stream.
const MARK: &str = "@ ";
/// A child that says nothing for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(240);

/// What this process was started for, and the folder it shares with its test.
pub fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    // A test that is stopped takes its children along.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    // libtest has begun a line.
    println!();
    Some((role, PathBuf::from(std::env::var_os(FOLDER).unwrap())))
}

/// The command that runs this test again, in a role. `wrapper` comes before it: `strace`, `unshare`.
pub fn again(wrapper: &[OsString], test: &str, role: &str, folder: &Path) -> Command {
    let exe = std::env::current_exe().unwrap().into_os_string();
    let mut words = wrapper.iter().cloned().chain([exe]);
    let mut command = Command::new(words.next().unwrap());
    command
        .args(words)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FOLDER, folder);
    command
}

/// Says a line to the test: one write, so that it is there whole or not at all.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// Dies of SIGKILL: no destructor, no handler, no flush.
pub fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("nobody survives SIGKILL")
}

/// A runtime as an embedder has it.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
}

/// A process of the test, and what it says.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// A process that was made by [`again`].
    pub fn spawn(command: &mut Command) -> Self {
        Self::listen(command, MARK)
    }

    /// Any process; only lines that begin with `mark` are heard.
    pub fn listen(command: &mut Command, mark: &'static str) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // Ends with the child's end of the pipe, or when nobody listens any more.
        std::thread::spawn(move || {
            for line in out.lines() {
                let line = line.unwrap();
                match line.strip_prefix(mark) {
                    // libtest's own words.
                    None => {}
                    Some(line) if sender.send(line.to_owned()).is_ok() => {}
                    Some(_) => return,
                }
            }
        });
        Self { process, lines }
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    /// The next thing it says; `None` when it has ended.
    pub fn next(&mut self) -> Option<String> {
        match self.lines.recv_timeout(SILENCE_MAX) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child said nothing for {SILENCE_MAX:?}"),
        }
    }

    /// What it says during this time.
    pub fn during(&mut self, time: Duration) -> Vec<String> {
        let end = SystemEnv.monotonic() + time;
        let mut said = Vec::new();
        loop {
            let left = end.saturating_sub(SystemEnv.monotonic());
            match self.lines.recv_timeout(left) {
                Ok(line) => said.push(line),
                Err(_) => return said,
            }
        }
    }

    /// Kills it with SIGKILL and gives what it had said by then.
    pub fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        let (said, status) = self.rest();
        assert!(is_killed(status), "it ended before the kill: {status}");
        said
    }

    /// Waits until it has ended; gives what it said and how it ended.
    pub fn rest(&mut self) -> (Vec<String>, ExitStatus) {
        let mut said = Vec::new();
        while let Some(line) = self.next() {
            said.push(line);
        }
        (said, self.process.wait().unwrap())
    }

    /// Waits until it has ended well, and gives what it said.
    pub fn finish(mut self) -> Vec<String> {
        let (said, status) = self.rest();
        assert!(status.success(), "the child failed: {status}");
        said
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A test that failed half-way leaves nobody behind.
        if self.process.try_wait().unwrap().is_none() {
            self.process.kill().unwrap();
            self.process.wait().unwrap();
        }
    }
}

pub fn is_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Numbers from a seed, which the test prints: `LOGREEL_SEED=..` plays them again.
pub struct Random(u64);

impl Random {
    pub fn seeded() -> Self {
        let seed = std::env::var("LOGREEL_SEED").ok();
        let seed = seed.map_or_else(|| SystemEnv.random_u64(), |seed| seed.parse().unwrap());
        println!("LOGREEL_SEED={seed}");
        Self(seed | 1)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}
