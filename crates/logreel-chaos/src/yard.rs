//! The folder of an experiment, the ledger in it, and how `logreel` is called there.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::Common;
use crate::clock::{self, wall_micros};
use crate::dice::Dice;
use crate::ledger;
use crate::storm::Plant;

/// In the environment of everything that belongs to an experiment.
const MARK: &str = "CHAOS_YARD";

pub struct Yard {
    folder: TempDir,
    logreel: PathBuf,
    ledger: Child,
    pub seed: u64,
    pub lease: Duration,
    keep: bool,
    /// What its processes do wrong on purpose.
    pub plant: Option<Plant>,
}

/// What a command said.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Yard {
    pub fn new(common: &Common, lease: Duration) -> Result<Self> {
        let own = std::env::current_exe()?;
        let logreel = match &common.logreel {
            Some(path) => path.clone(),
            None => own.with_file_name("logreel"),
        };
        let logreel = logreel
            .canonicalize()
            .with_context(|| format!("{} is not built", logreel.display()))?;
        let folder = tempfile::Builder::new()
            .prefix("logreel-chaos.")
            // Kept, unless the end says otherwise: whoever fails on the way has something to look at.
            .disable_cleanup(true)
            .tempdir_in("/tmp")?;
        // The database has a user of its own, who must find its folder in here.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        let path = |name: &str| folder.path().join(name);
        for name in ["work", "work/.logreel", "config", "config/logreel", "logs"] {
            std::fs::create_dir(path(name))?;
        }
        let settings = format!("lease = \"{}ms\"\n", lease.as_millis());
        std::fs::write(path("config/logreel/config.toml"), settings)?;
        let (socket, book) = (path("ledger.sock"), path("ledger.book"));
        let mut ledger = Command::new(&own);
        ledger.arg("ledger").arg(&socket).arg(book);
        let ledger = ledger.stdin(Stdio::null()).spawn()?;
        let seed = common
            .seed
            .unwrap_or_else(|| Dice::new(wall_micros().unsigned_abs()).draw() >> 32);
        println!(
            "seed {seed}, lease {lease:?}, {}, files in {}",
            logreel.display(),
            folder.path().display()
        );
        let yard = Self {
            folder,
            logreel,
            ledger,
            seed,
            lease,
            keep: common.keep,
            plant: None,
        };
        let is_there = || Ok(socket.exists());
        clock::until("the ledger listens", Duration::from_secs(5), is_there)?;
        Ok(yard)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where specs are, and where commands run.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.work().join(name), text)?)
    }

    pub fn book(&self) -> PathBuf {
        self.path("ledger.book")
    }

    /// A file that what is said goes to.
    pub fn log(&self, name: &str) -> Result<File> {
        let mut options = File::options();
        options.create(true).append(true);
        Ok(options.open(self.path("logs").join(name))?)
    }

    pub fn program(&self) -> &Path {
        &self.logreel
    }

    /// Everything that a `logreel` of this experiment finds in its environment.
    pub fn prepare(&self, command: &mut Command, store: &str, runtime: &Path, who: &str) {
        let config = self.path("config");
        command
            .env("LOGREEL_STORE", store)
            .env("XDG_CONFIG_HOME", config)
            .env("XDG_RUNTIME_DIR", runtime)
            .env("HOME", self.path(""))
            .env("NO_COLOR", "1")
            .env(MARK, self.folder.path())
            .env(ledger::SOCKET, self.path("ledger.sock"))
            .env(ledger::WORKER, who)
            .env("PAY", std::env::current_exe().unwrap_or_default())
            .current_dir(self.work())
            .stdin(Stdio::null());
        match self.plant {
            Some(Plant::RepeatedWrite) => command.env(ledger::FORGETS, "1"),
            None => command.env_remove(ledger::FORGETS),
        };
    }

    /// `logreel` with these arguments.
    pub fn command(&self, store: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.logreel);
        self.prepare(&mut command, store, &self.path("config"), "cli");
        command.args(args);
        command
    }

    pub fn call(&self, store: &str, args: &[&str]) -> Result<Said> {
        let output = self.command(store, args).output()?;
        Ok(Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            err: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// The processes of this experiment that live, as their command lines.
    pub fn alive(&self) -> Result<Vec<String>> {
        let mark = format!("{MARK}={}", self.folder.path().display());
        let mut found = Vec::new();
        for process in std::fs::read_dir("/proc")?.flatten() {
            let environ = std::fs::read(process.path().join("environ")).unwrap_or_default();
            if environ
                .split(|byte| *byte == 0)
                .any(|it| it == mark.as_bytes())
            {
                let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                found.push(format!("{} {line}", process.file_name().display()));
            }
        }
        Ok(found)
    }

    /// Keeps the folder when something is to be found in it.
    pub fn finish(mut self, is_well: bool) {
        self.folder.disable_cleanup(!is_well || self.keep);
        if !is_well || self.keep {
            println!("files are kept in {}", self.folder.path().display());
        }
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if let Err(error) = self.ledger.kill().and_then(|()| self.ledger.wait()) {
            eprintln!("logreel-chaos: the ledger was not stopped: {error}");
        }
    }
}
