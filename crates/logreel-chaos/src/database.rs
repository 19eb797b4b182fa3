//! A private PostgreSQL: made, started, crashed, copied, promoted. Reached by a socket in its own folder.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, geteuid};

use crate::clock;
use crate::fleet::signal;

/// The user that a server runs as when we are root: it refuses to be.
const USER: &str = "postgres";

/// Several threads look at it; it is stopped when the last lets go.
pub type Database = Arc<Server>;

pub struct Server {
    folder: PathBuf,
    bin: PathBuf,
}

impl Server {
    /// An empty one, not started.
    pub fn make(folder: &Path) -> Result<Database> {
        let made = Self::at(folder)?;
        made.run(
            "initdb",
            &["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "-D"],
        )?;
        Ok(Arc::new(made))
    }

    /// A standby of one that runs.
    pub fn standby_of(primary: &Self, folder: &Path) -> Result<Database> {
        let made = Self::at(folder)?;
        let host = primary.folder.display().to_string();
        let from = [
            "-h", &host, "-U", USER, "-R", "-X", "stream", "-c", "fast", "-D",
        ];
        made.run("pg_basebackup", &from)?;
        Ok(Arc::new(made))
    }

    fn at(folder: &Path) -> Result<Self> {
        std::fs::create_dir(folder)?;
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
        if geteuid().is_root() {
            let id = Command::new("id").args(["-u", USER]).output()?;
            let id = String::from_utf8_lossy(&id.stdout).trim().parse();
            chown(folder, Some(id.context("no user `postgres`")?), None)?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            bin: programs()?,
        })
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub fn start(&self) -> Result<()> {
        let settings = format!(
            "-c listen_addresses='' -c max_connections=200 -c unix_socket_directories={}",
            self.folder.display()
        );
        let log = self.folder.join("log").display().to_string();
        self.run(
            "pg_ctl",
            &["start", "-w", "-l", &log, "-o", &settings, "-D"],
        )
    }

    /// As if it had crashed: nothing is written out, and the next start, a while later, recovers.
    pub fn crash_and_start(&self, away: Duration) -> Result<()> {
        self.run("pg_ctl", &["stop", "-m", "immediate", "-w", "-D"])?;
        clock::pause(away);
        self.start()
    }

    /// It gets nothing more from its primary, and acknowledges nothing: what the primary writes from now on is there
    /// alone.
    pub fn stop_receiving(&self) -> Result<Receiver> {
        let pids = self.ask("SELECT pid FROM pg_stat_wal_receiver")?;
        let pid = pids.iter().flatten().next();
        let pid = pid.context("a standby that follows")?.parse()?;
        let receiver = Receiver(Pid::from_raw(pid).context("a process")?);
        signal(receiver.0, Signal::STOP)?;
        Ok(receiver)
    }

    pub fn promote(&self) -> Result<()> {
        self.run("pg_ctl", &["promote", "-w", "-D"])
    }

    /// As if its machine had lost power: all its processes at once.
    pub fn kill(&self) -> Result<()> {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid"))?;
        let first: i32 = file.lines().next().unwrap_or_default().parse()?;
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"))?;
        let children = children.split_whitespace().filter_map(|it| it.parse().ok());
        let all: Vec<i32> = std::iter::once(first).chain(children).collect();
        // None of them sees another die and says one thing more.
        for what in [Signal::STOP, Signal::KILL] {
            for pid in all.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                signal(pid, what)?;
            }
        }
        let gone = || Ok(!Path::new(&format!("/proc/{first}")).exists() || is_zombie(first));
        clock::until("the server is gone", Duration::from_secs(5), gone)?;
        // What it would have removed itself, and what says that there is something to stop.
        Ok(std::fs::remove_file(self.data().join("postmaster.pid"))?)
    }

    /// One of its programs, on its own folder, as its own user.
    fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        let path = self.bin.join(program);
        let mut command = match geteuid().is_root() {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", USER, "--"]).arg(path);
                command
            }
            false => Command::new(path),
        };
        command.args(args).arg(self.data()).stdin(Stdio::null());
        // A server keeps what it was given open: never a pipe of ours.
        let said = self.folder.join(format!("{program}.said"));
        let file = std::fs::File::create(&said)?;
        command.stdout(file.try_clone()?).stderr(file);
        let ended = command.current_dir("/").status()?;
        if !ended.success() {
            let said = std::fs::read_to_string(said)?;
            bail!("{program} {}: {ended}: {}", args.join(" "), said.trim());
        }
        Ok(())
    }

    /// Rows of a query, past every proxy.
    pub fn ask(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-X", "-At", "-F", "\t", "-U", USER, "-d", "postgres", "-h"]);
        let asked = psql.arg(&self.folder).args(["-c", sql]).output()?;
        if !asked.status.success() {
            bail!("{sql}: {}", String::from_utf8_lossy(&asked.stderr).trim());
        }
        let text = String::from_utf8(asked.stdout)?;
        let row = |line: &str| line.split('\t').map(str::to_owned).collect();
        Ok(text.lines().map(row).collect())
    }

    /// The only number of a query.
    pub fn count(&self, what: &str) -> Result<usize> {
        let rows = self.ask(&format!("SELECT count(*) FROM {what}"))?;
        let only = rows.first().and_then(|row| row.first());
        Ok(only.context("no row")?.parse()?)
    }
}

/// What a standby gets its primary's log by, standing still.
pub struct Receiver(Pid);

impl Receiver {
    /// It goes, without a look at what came meanwhile.
    pub fn give_up(self) -> Result<()> {
        signal(self.0, Signal::TERM)?;
        signal(self.0, Signal::CONT)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.data().join("postmaster.pid").exists() {
            return;
        }
        if let Err(error) = self.run("pg_ctl", &["stop", "-m", "immediate", "-w", "-D"]) {
            eprintln!("logreel-chaos: PostgreSQL was not stopped: {error:#}");
        }
    }
}

fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, state)| state.starts_with('Z'))
}

/// The newest server's programs, which are not on the PATH.
fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.context("PostgreSQL is not installed (package postgresql)")?;
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.parse::<u32>().ok()
    };
    let mut found: Vec<PathBuf> = versions.flatten().map(|it| it.path()).collect();
    found.retain(|path| path.join("bin/initdb").exists());
    found.sort_by_key(number);
    let newest = found.pop().context("no server below /usr/lib/postgresql")?;
    Ok(newest.join("bin"))
}
