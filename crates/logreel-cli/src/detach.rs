//! Runs in the background: a worker takes them, and when none is there a process of our own does.
//!
//! Whether a worker is there that takes any run is asked of the operating system: such a worker holds a shared lock on a file
//! beside the store for as long as it lives. Who asks takes no lock, so that two who ask at once do not
//! take each other for a worker. Those on other machines, and those that take only runs with some labels, are asked of the store.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use logreel::store::OwnerInfo;
use logreel::{Entry, Error, ErrorKind, RunId, Seq};
use rustix::fs::FlockOperation;
use rustix::process::{Flock, FlockType};

use crate::drive::{self, Followed};
use crate::error::Failure;
use crate::output::Output;
use crate::patience::Patience;
use crate::signals::Signals;
use crate::store::{Acting, Kept, Missing, Place};

/// What is kept of what processes in the background said, before it is begun anew.
const SAID_BYTES_MAX: u64 = 1 << 20;

/// The verb of the process in the background; nobody types it.
pub const VERB: &str = "drive-detached";

#[derive(clap::Args)]
pub struct Args {
    run: RunId,
    /// The store's URL comes on stdin: it may hold a password, arguments are for everyone to see, and what is in
    /// the environment is inherited by commands
    #[arg(long)]
    url: bool,
}

/// Held by a worker while it lives.
pub struct WorkerLock {
    _file: File,
}

impl WorkerLock {
    /// `None` where nobody asks for it.
    pub fn hold(kept: &Kept) -> anyhow::Result<Option<Self>> {
        let Kept::File(store) = kept else {
            return Ok(None);
        };
        let file = lock_file(store.path())?;
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(Self { _file: file }))
    }
}

/// Sees to it that someone drives the run, which is queued.
pub async fn leave(acting: &Acting, entry: &Entry, out: &Output) -> anyhow::Result<()> {
    let run = entry.row.run;
    if is_worker_there(acting, entry).await? {
        out.note(format!("{} is left to the worker", run.short()));
        return Ok(());
    }
    spawn(&acting.kept, run)
}

/// The process in the background: drives the run until it ends or waits for a person.
pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    // A session of its own: neither the terminal's Ctrl-C nor its end reaches us.
    rustix::process::setsid().context("no session of its own")?;
    let said = match args.url {
        true => Some(Place::new(Some(
            std::io::read_to_string(std::io::stdin())?.into(),
        ))),
        false => None,
    };
    let place = said.as_ref().unwrap_or(place);
    let acting = place.act(Missing::Refuse, None, out).await?;
    // Whoever started us reads until here, and knows by a byte that we got here.
    rustix::io::write(rustix::stdio::stdout(), b"\n")?;
    rustix::stdio::dup2_stdout(File::open("/dev/null")?)?;
    // Whoever started us counts on us: a store that is away now is no reason to leave.
    let resume = || async {
        match acting.engine.resume(&args.run).await {
            // Someone else took it meanwhile.
            Err(Error::Driven { .. }) => Ok(false),
            resumed => Ok(resumed.map(|_| true)?),
        }
    };
    if !Patience::default().ask(resume).await? {
        return Ok(0);
    }
    let followed = Followed::ours(args.run, Seq::FIRST);
    drive::to_the_end(acting, followed, signals, out).await
}

fn spawn(kept: &Kept, run: RunId) -> anyhow::Result<()> {
    let Some(beside) = kept.beside()? else {
        return Ok(());
    };
    let program = std::env::current_exe().context("this program cannot be started again")?;
    let (path, said) = said_file(&beside)?;
    let mut command = Command::new(program);
    command
        .args(["--quiet", VERB, &run.to_string()])
        .env_remove("LOGREEL_STORE")
        .stdin(Stdio::null());
    match kept {
        Kept::Database(..) => command.arg("--url").stdin(Stdio::piped()),
        Kept::File(_) | Kept::Memory => command.arg("--store").arg(beside.canonicalize()?),
    };
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(said)
        .spawn()
        .context("no process for the background")?;
    if let (Kept::Database(_, url), Some(mut stdin)) = (kept, child.stdin.take()) {
        stdin.write_all(url.secret().as_bytes())?;
    }
    // Its stdout closes once it is on its own.
    let mut told = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut told)?;
    }
    if told.is_empty() {
        let ended = child.wait()?;
        let message = format!(
            "{run} is queued and nobody drives it: the process in the background ended ({ended}) and said why in {}",
            path.display()
        );
        let hint = format!("`logreel resume {}` drives it here", run.short());
        return Err(Failure::new(ErrorKind::Unavailable, message)
            .hint(hint)
            .into());
    }
    Ok(())
}

/// Where processes in the background say what others say on stderr.
fn said_file(store: &Path) -> anyhow::Result<(PathBuf, File)> {
    let path = beside(store, ".detached.log");
    let mut options = File::options();
    let file = options.create(true).append(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("{} cannot be opened", path.display()))?;
    if file.metadata()?.len() > SAID_BYTES_MAX {
        file.set_len(0)?;
    }
    Ok((path, file))
}

/// Whether a worker lives that takes this run.
pub async fn is_worker_there(acting: &Acting, entry: &Entry) -> anyhow::Result<bool> {
    match &acting.kept {
        Kept::Memory => return Ok(false),
        Kept::File(store) => {
            let file = lock_file(store.path())?;
            let exclusive = Flock::from(FlockType::WriteLock);
            if rustix::process::fcntl_getlk(&file, &exclusive)?.is_some() {
                return Ok(true);
            }
        }
        Kept::Database(..) => {}
    }
    let owners = acting.store.owners().await?;
    let takes_it = |info: &OwnerInfo| {
        let duty = info.duty.as_ref();
        info.alive && duty.is_some_and(|duty| duty.takes(&entry.row.facts.labels))
    };
    Ok(owners.iter().any(takes_it))
}

fn lock_file(store: &Path) -> anyhow::Result<File> {
    let path = beside(store, ".worker");
    let file = File::options()
        .create(true)
        .read(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("{} cannot be opened", path.display()))?;
    Ok(file)
}

fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
