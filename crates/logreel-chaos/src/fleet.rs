//! Hosts and workers. A host is a process namespace with a folder of its own for the locks of owners, so that
//! nobody on another one can see whether a worker of this one lives.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use serde_json::Value;

use crate::clock::{self, millis, now};
use crate::yard::Yard;

/// Where Debian has the library that shows a process another date.
fn faketime() -> PathBuf {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    Path::new("/usr/lib")
        .join(triple)
        .join("faketime/libfaketimeMT.so.1")
}

pub struct Host {
    runtime: PathBuf,
    /// The first process of its namespace, and who started it.
    first: Option<(Child, Pid)>,
}

impl Host {
    /// This one.
    pub fn here(yard: &Yard, name: &str) -> Result<Self> {
        let runtime = yard.path(&format!("runtime-{name}"));
        std::fs::create_dir(&runtime)?;
        Ok(Self {
            runtime,
            first: None,
        })
    }

    /// Another one; this one when we may not make namespaces.
    pub fn apart(yard: &Yard, name: &str) -> Result<Self> {
        let mut host = Self::here(yard, name)?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]);
        unshare.arg(std::env::current_exe()?).arg("host");
        let mut child = unshare
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("unshare")?;
        match child_of(&mut child)? {
            Some(first) if is_entered(first)? => host.first = Some((child, first)),
            _ => {
                child.kill()?;
                child.wait()?;
                println!(
                    "host {name} is this one: no namespaces may be made here (root may, with CAP_SYS_ADMIN)"
                );
            }
        }
        Ok(host)
    }

    pub fn is_apart(&self) -> bool {
        self.first.is_some()
    }

    /// What is `$XDG_RUNTIME_DIR` there.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// Where the locks of its owners are, as the database has it.
    pub fn locks(&self) -> PathBuf {
        self.runtime.join("logreel")
    }

    fn command(&self, yard: &Yard) -> Command {
        match &self.first {
            None => Command::new(yard.program()),
            Some((_, first)) => {
                let mut command = Command::new("nsenter");
                let first = first.as_raw_pid().to_string();
                command.args(["--target", &first, "--pid", "--mount", "--"]);
                command.arg(yard.program());
                command
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some((unshare, first)) = &mut self.first {
            // With its first process the namespace ends, and all that is in it.
            let ended = signal(*first, Signal::KILL).and_then(|()| Ok(unshare.wait()?));
            if let Err(error) = ended {
                eprintln!("logreel-chaos: a host was not stopped: {error:#}");
            }
        }
    }
}

/// Whether a process can begin on the host: `unshare` may fail after its child was seen.
fn is_entered(first: Pid) -> Result<bool> {
    let mut enter = Command::new("nsenter");
    let first = first.as_raw_pid().to_string();
    enter.args(["--target", &first, "--pid", "--mount", "--", "true"]);
    Ok(enter.stderr(Stdio::null()).status()?.success())
}

/// What the first process of a host does: it collects those whose parents are gone.
pub fn first_process() -> Result<()> {
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        clock::pause(millis(50));
    }
}

/// The only child of a process we started, once it is there; `None` when that has ended before anyone looked.
fn child_of(child: &mut Child) -> Result<Option<Pid>> {
    let file = format!("/proc/{0}/task/{0}/children", child.id());
    let mut found = None;
    clock::until("a process has begun", Duration::from_secs(10), || {
        let children = std::fs::read_to_string(&file).unwrap_or_default();
        let first = children.split_whitespace().next();
        found = first.and_then(|it| it.parse().ok()).and_then(Pid::from_raw);
        Ok(found.is_some() || child.try_wait()?.is_some())
    })?;
    Ok(found)
}

/// To a process of ours; one that has ended meanwhile needs none.
pub fn signal(pid: Pid, signal: Signal) -> Result<()> {
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A time in which a worker stood still.
#[derive(Debug, Clone)]
pub struct Freeze {
    /// Which worker, and which of its lives.
    pub worker: String,
    pub from: Duration,
    pub until: Duration,
}

pub struct Worker {
    pub name: String,
    pub host: usize,
    store: String,
    /// What it is told to do.
    verb: Vec<String>,
    skew_seconds: i64,
    lives: u32,
    /// How much its log had when this life began.
    log_begins: u64,
    alive: Option<Alive>,
    pub freezes: Vec<Freeze>,
}

struct Alive {
    /// Whom we wait for: the worker, or who brought it to its host.
    child: Child,
    pid: Pid,
    frozen_since: Option<Duration>,
}

/// What a worker and a server say once they are there.
const READY: [&str; 2] = ["driving up to", "serving "];
/// How `logreel` ends when it did not reach the database, among others.
pub const UNAVAILABLE: i32 = 4;
/// How they begin to say that they leave because the database is away. Damage, mistakes of ours and a port that is
/// taken have the same exit code.
const NO_DATABASE: &str = "error: the store is unavailable: ";

impl Worker {
    pub fn new(name: &str, host: usize, store: String, at_once: usize) -> Self {
        let verb = ["worker", "--concurrency", &at_once.to_string()];
        Self::doing(name, host, store, &verb)
    }

    /// One that also answers on this port, and starts the specs of the yard.
    pub fn server(name: &str, host: usize, store: String, port: u16) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let verb = [
            "serve",
            "--listen",
            &listen,
            "--specs",
            ".",
            "--concurrency",
            "1",
        ];
        Self::doing(name, host, store, &verb)
    }

    fn doing(name: &str, host: usize, store: String, verb: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            host,
            store,
            verb: verb.iter().map(ToString::to_string).collect(),
            skew_seconds: 0,
            lives: 0,
            log_begins: 0,
            alive: None,
            freezes: Vec::new(),
        }
    }

    pub fn is_server(&self) -> bool {
        self.verb.first().is_some_and(|verb| verb == "serve")
    }

    /// From now on it thinks that it is so much later; false when nothing here can do that.
    pub fn skew(&mut self, seconds: i64) -> bool {
        let can = faketime().exists();
        if can {
            self.skew_seconds = seconds;
        }
        can
    }

    /// Which worker, and which of its lives.
    pub fn life(&self) -> String {
        format!("{}.{}", self.name, self.lives)
    }

    /// Its number, as this host counts.
    pub fn pid(&self) -> Option<String> {
        let alive = self.alive.as_ref()?;
        Some(alive.pid.as_raw_pid().to_string())
    }

    pub fn is_alive(&self) -> bool {
        self.alive.is_some()
    }

    pub fn is_frozen(&self) -> bool {
        let alive = self.alive.as_ref();
        alive.is_some_and(|alive| alive.frozen_since.is_some())
    }

    pub fn start(&mut self, yard: &Yard, hosts: &[Host]) -> Result<()> {
        let host = hosts.get(self.host).context("no such host")?;
        self.lives += 1;
        let mut command = host.command(yard);
        yard.prepare(&mut command, &self.store, &host.runtime, &self.life());
        if self.skew_seconds != 0 {
            command.env("LD_PRELOAD", faketime());
            command.env("FAKETIME", format!("{:+}", self.skew_seconds));
            // Only the date is wrong: a second lasts as long as everywhere.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command.env("DONT_FAKE_MONOTONIC", "1");
            command.env("NO_FAKE_STAT", "1");
        }
        let log = yard.log(&format!("{}.log", self.name))?;
        self.log_begins = log.metadata()?.len();
        let mut child = command
            .args(&self.verb)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let begun = match host.is_apart() {
            true => child_of(&mut child)?,
            false => None,
        };
        self.alive = Some(Alive {
            pid: begun.unwrap_or_else(|| Pid::from_child(&child)),
            child,
            frozen_since: None,
        });
        Ok(())
    }

    /// Waits until it says that it takes runs, and the store knows a worker: without one, whoever starts a run in the
    /// background drives it himself.
    pub fn wait_until_ready(&self, yard: &Yard) -> Result<()> {
        let is_ready = || Ok(self.was_ready(yard)? && self.is_someone_listed(yard)?);
        clock::until("a worker is ready", Duration::from_secs(30), is_ready)
    }

    fn is_someone_listed(&self, yard: &Yard) -> Result<bool> {
        let said = yard.call(&self.store, &["workers", "--json"])?;
        let listed: Value = serde_json::from_str(&said.out).unwrap_or_default();
        let mut owners = listed["items"].as_array().into_iter().flatten();
        Ok(owners.any(|owner| owner["kind"] == "worker"))
    }

    /// Whether it has found its database in this life, and said that it is there.
    pub fn was_ready(&self, yard: &Yard) -> Result<bool> {
        let said = self.said(yard)?;
        Ok(READY.iter().any(|ready| said.contains(ready)))
    }

    /// Whether it said in this life that it leaves because the database is away.
    pub fn found_no_database(&self, yard: &Yard) -> Result<bool> {
        let said = self.said(yard)?;
        Ok(said.lines().any(|line| line.starts_with(NO_DATABASE)))
    }

    /// All that it said in this life.
    fn said(&self, yard: &Yard) -> Result<String> {
        let said = std::fs::read(yard.path("logs").join(format!("{}.log", self.name)))?;
        let said = said.get(usize::try_from(self.log_begins)?..);
        Ok(String::from_utf8_lossy(said.unwrap_or_default()).into_owned())
    }

    /// SIGKILL; what it had started is left as it is. The time right before.
    pub fn kill(&mut self) -> Result<Duration> {
        let at = now();
        self.thaw_record(at);
        let mut alive = self.alive.take().context("it is not alive")?;
        signal(alive.pid, Signal::KILL)?;
        // Whoever brought it here stands still when it does.
        signal(Pid::from_child(&alive.child), Signal::CONT)?;
        alive.child.wait()?;
        Ok(at)
    }

    pub fn freeze(&mut self) -> Result<()> {
        let alive = self.alive.as_mut().context("it is not alive")?;
        alive.frozen_since = Some(now());
        signal(alive.pid, Signal::STOP)
    }

    pub fn thaw(&mut self) -> Result<()> {
        let Some(alive) = &self.alive else {
            return Ok(());
        };
        signal(alive.pid, Signal::CONT)?;
        signal(Pid::from_child(&alive.child), Signal::CONT)?;
        self.thaw_record(now());
        Ok(())
    }

    fn thaw_record(&mut self, until: Duration) {
        let worker = self.life();
        let since = self.alive.as_mut().and_then(|it| it.frozen_since.take());
        if let Some(from) = since {
            self.freezes.push(Freeze {
                worker,
                from,
                until,
            });
        }
    }

    /// Whether it ended though nobody killed it.
    pub fn has_died(&mut self) -> Result<Option<ExitStatus>> {
        let Some(alive) = &mut self.alive else {
            return Ok(None);
        };
        let ended = alive.child.try_wait()?;
        if ended.is_some() {
            self.alive = None;
        }
        Ok(ended)
    }

    /// SIGTERM: it hands back what it drives and leaves.
    pub fn drain(&mut self) -> Result<ExitStatus> {
        let mut alive = self.alive.take().context("it is not alive")?;
        signal(alive.pid, Signal::TERM)?;
        let mut ended = None;
        let gone = || {
            ended = alive.child.try_wait()?;
            Ok(ended.is_some())
        };
        clock::until("a worker leaves", Duration::from_secs(30), gone)?;
        ended.context("it has left")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.alive.is_some()
            && let Err(error) = self.kill()
        {
            eprintln!("logreel-chaos: {} was not stopped: {error:#}", self.name);
        }
    }
}
