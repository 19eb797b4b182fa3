//! Running commands: each has a task of its own that starts the process, reads what it prints, and
//! sees its whole group to the end. Whoever waits for a command holds only a handle; dropping it asks
//! the task to stop, and [`Commands`] tells when nothing is left.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use logreel_core::{RunId, StepId};
use logreel_store::Env;
use rustix::process::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use super::groups::Groups;
use super::process::{self, Stopped};

/// The shell waits for its go, so that its group is noted before it does anything, and ends when
/// whoever started it died before that. `read` takes no byte past the first line from a pipe: what
/// follows is the command's own input.
const WAIT_FOR_GO: &str = r#"IFS= read -r go || exit 125; exec "$0" -c "$1""#;
/// The same, with everything it says on one pipe: in the order in which it was said.
const WAIT_FOR_GO_MERGED: &str = r#"IFS= read -r go || exit 125; exec "$0" -c "$1" 2>&1"#;
const SHELL: &str = "/bin/sh";
/// How long others may keep the output open after the shell has exited.
const LINGER: Duration = Duration::from_secs(1);
/// How long a command waits on a full disk before it looks again.
const FULL_PAUSE: Duration = Duration::from_millis(250);
/// The end of stderr that is kept.
pub(crate) const TAIL_BYTES: usize = 4096;
/// A longer line is passed on in pieces.
const LINE_BYTES: usize = 8192;
const CHUNK_BYTES: usize = 64 * 1024;

pub(crate) use crate::live::Stream;

/// Is told every line while the command runs. For live views only: it must be quick.
pub(crate) type OnLine = Box<dyn Fn(Stream, &str) + Send + Sync>;

/// A command about to run.
pub(crate) struct Start {
    pub(crate) shell: String,
    pub(crate) input: Vec<u8>,
    pub(crate) env: Vec<(String, String)>,
    /// Whether `env` is added to this process's own environment, or is all there is.
    pub(crate) inherits: bool,
    pub(crate) dir: PathBuf,
    /// Read to its end, whatever it prints.
    pub(crate) write: bool,
    pub(crate) output_bytes_max: u64,
    /// Whether the beginning and the end are kept of what is too large.
    pub(crate) keeps_ends: bool,
    /// Whether stderr goes where stdout goes.
    pub(crate) merged: bool,
    /// Who talks to it through its pipes instead of giving it `input` and taking its output.
    pub(crate) pipes: Option<oneshot::Sender<Pipes>>,
    pub(crate) on_line: OnLine,
}

/// A command's stdin, once it has its go, and its stdout.
pub(crate) type Pipes = (ChildStdin, ChildStdout);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) how: How,
    pub(crate) stdout: Vec<u8>,
    /// More was printed than may be kept; `stdout` is empty, or the beginning.
    pub(crate) too_large: bool,
    /// The end of what was too large, when it was to be kept.
    pub(crate) end: Vec<u8>,
    /// How much was printed.
    pub(crate) printed: u64,
    /// The end of stderr.
    pub(crate) stderr: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Exited(i32),
    Signalled(i32),
    /// It was asked to.
    Stopped,
}

/// Why nothing can be said about a command's end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("the working folder {} does not exist", .0.display())]
    NoFolder(PathBuf),
    #[error(
        "the command with its environment is too long for this system; give it data as `input`"
    )]
    TooLong,
    #[error("the command could not be started: {0}")]
    Spawn(#[source] io::Error),
    #[error("the command's process group could not be noted beside the store: {0}")]
    Note(#[source] io::Error),
    #[error("how the command ended is not known: {0}")]
    Lost(#[source] io::Error),
    #[error("this process no longer drives the run")]
    Closed,
    #[error("the command's supervisor did not come to its end: {0}")]
    Broken(#[source] tokio::task::JoinError),
}

/// The commands of one drive of a run.
pub(crate) struct Commands {
    run: RunId,
    groups: Arc<Groups>,
    env: Arc<dyn Env>,
    next: AtomicU64,
    at_work: Arc<watch::Sender<AtWork>>,
}

#[derive(Default)]
struct AtWork {
    /// Every command whose group may still run, by its number.
    running: HashMap<u64, Running>,
    closed: bool,
}

struct Running {
    step: Option<StepId>,
    /// Nobody waits for it any more.
    dropped: bool,
}

impl Commands {
    pub(crate) fn new(run: RunId, groups: Arc<Groups>, env: Arc<dyn Env>) -> Self {
        Self {
            run,
            groups,
            env,
            next: AtomicU64::new(0),
            at_work: Arc::default(),
        }
    }

    /// Starts a command for a step. One of the same step that is still being stopped is waited for: an
    /// attempt must not meet the one before it.
    pub(crate) async fn start(
        &self,
        step: Option<StepId>,
        start: Start,
    ) -> Result<Handle, Trouble> {
        let same = |running: &Running| running.dropped && running.step == step;
        let mut at_work = self.at_work.subscribe();
        let waited = at_work.wait_for(|it| !it.running.values().any(same)).await;
        drop(waited);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let open = self.at_work.send_if_modified(|it| {
            let dropped = false;
            if !it.closed {
                it.running.insert(id, Running { step, dropped });
            }
            !it.closed
        });
        if !open {
            return Err(Trouble::Closed);
        }
        let entry = Entry {
            id,
            at_work: Arc::clone(&self.at_work),
        };
        let (stop, asked) = oneshot::channel();
        let (run, groups, env) = (self.run, Arc::clone(&self.groups), Arc::clone(&self.env));
        let closed = self.at_work.subscribe();
        let task = tokio::spawn(async move {
            let _until_the_end = entry;
            supervise(run, start, groups, &*env, until_stopped(asked, closed)).await
        });
        Ok(Handle {
            id,
            at_work: Arc::clone(&self.at_work),
            stop: Some(stop),
            task,
        })
    }

    /// Asks everything to stop and returns when no process of the run is left; nothing starts after.
    pub(crate) async fn all_stopped(&self) {
        let mut at_work = self.at_work.subscribe();
        self.at_work.send_modify(|it| it.closed = true);
        let waited = at_work.wait_for(|it| it.running.is_empty()).await;
        drop(waited);
    }
}

/// Resolves when the command is to stop: it was asked to, its handle was dropped, or its drive ends.
async fn until_stopped(asked: oneshot::Receiver<()>, mut at_work: watch::Receiver<AtWork>) {
    let closed = async {
        let waited = at_work.wait_for(|it| it.closed).await;
        drop(waited);
    };
    tokio::select! {
        _ = asked => {}
        () = closed => {}
    }
}

/// A command's place among those at work; the task's own takes it away at the end, also by a panic.
struct Entry {
    id: u64,
    at_work: Arc<watch::Sender<AtWork>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.at_work.send_modify(|it| {
            it.running.remove(&self.id);
        });
    }
}

/// A command at work. Dropped, it is stopped.
pub(crate) struct Handle {
    id: u64,
    at_work: Arc<watch::Sender<AtWork>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<Ended, Trouble>>,
}

impl Handle {
    /// How it ended. Dropping this future stops nothing; it may be asked for again until it resolved.
    pub(crate) async fn ended(&mut self) -> Result<Ended, Trouble> {
        (&mut self.task).await.map_err(Trouble::Broken)?
    }

    /// Asks it to stop.
    pub(crate) fn stop(&mut self) {
        // The other end takes the loss of this one for the word.
        drop(self.stop.take());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.at_work.send_if_modified(|it| {
            let running = it.running.get_mut(&self.id);
            running.is_some_and(|running| !std::mem::replace(&mut running.dropped, true))
        });
    }
}

/// The command from its start to the end of its whole group.
async fn supervise(
    run: RunId,
    mut start: Start,
    groups: Arc<Groups>,
    env: &dyn Env,
    stopped: impl Future<Output = ()>,
) -> Result<Ended, Trouble> {
    let mut stopped = pin!(stopped);
    let mut child = spawn(&start)?;
    let mut group = Group::of(&child, groups)?;
    // It waits for its go meanwhile.
    while let Err(error) = group.groups.note(run, group.pid) {
        if error.kind() != io::ErrorKind::StorageFull {
            return Err(Trouble::Note(error));
        }
        tracing::warn!(%run, "the disk is full: a command waits for space to be noted in");
        tokio::select! {
            () = &mut stopped => return Err(Trouble::Note(error)),
            () = env.sleep(FULL_PAUSE) => {}
        }
    }
    let (mut stdin, mut stdout) = (child.stdin.take(), child.stdout.take());
    let stderr = child.stderr.take();
    if let Some(pipes) = start.pipes.take() {
        hand_over(stdin.take(), stdout.take(), pipes).await;
    }
    let (mut kept, mut tail) = (Kept::new(&start), Tail::default());
    let status = {
        let on_line = &start.on_line;
        let mut feeding = pin!(feed(stdin, &start.input).fuse());
        let refused = Notify::new();
        let out = read(stdout, Stream::Stdout, on_line, &refused, |chunk| {
            kept.take(chunk)
        });
        let err = read(stderr, Stream::Stderr, on_line, &refused, |chunk| {
            tail.take(chunk)
        });
        let mut reading = pin!(async { tokio::join!(out, err) }.fuse());
        let mut status = loop {
            tokio::select! {
                biased;
                status = child.wait() => break Some(status.map_err(Trouble::Lost)?),
                () = &mut stopped => break None,
                () = refused.notified() => break None,
                () = &mut feeding => {}
                _ = &mut reading => {}
            }
        };
        // The shell has exited; others may still hold its output.
        if status.is_some() && !reading.is_terminated() {
            tokio::select! {
                _ = &mut reading => {}
                () = &mut stopped => {}
                () = env.sleep(LINGER) => {}
            }
        }
        let was_stopped = status.is_none();
        let mut stopping = pin!(process::stop(group.pid, env));
        let gone = loop {
            tokio::select! {
                biased;
                gone = &mut stopping => break gone,
                ended = child.wait(), if status.is_none() => {
                    status = Some(ended.map_err(Trouble::Lost)?);
                }
                // What it still says must not keep it from ending.
                _ = &mut reading => {}
            }
        };
        match gone {
            Stopped::Gone => {
                if status.is_none() {
                    child.wait().await.map_err(Trouble::Lost)?;
                }
                group.ended();
            }
            // It stays listed, for whoever comes next.
            Stopped::Stuck => group.has_ended = true,
        }
        status.filter(|_| !was_stopped)
    };
    Ok(Ended {
        how: status.map_or(How::Stopped, How::of),
        too_large: kept.too_large,
        printed: kept.printed,
        end: kept.end(),
        stdout: kept.bytes,
        stderr: tail.text(),
    })
}

impl How {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signalled(signal.unwrap_or_default()),
        }
    }
}

fn spawn(start: &Start) -> Result<Child, Trouble> {
    if !start.dir.is_dir() {
        return Err(Trouble::NoFolder(start.dir.clone()));
    }
    let wait_for_go = match start.merged {
        true => WAIT_FOR_GO_MERGED,
        false => WAIT_FOR_GO,
    };
    let mut command = tokio::process::Command::new(SHELL);
    if !start.inherits {
        command.env_clear();
    }
    let spawned = command
        .args(["-c", wait_for_go, SHELL, &start.shell])
        .envs(start.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&start.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    spawned.map_err(|error| match error.kind() {
        io::ErrorKind::ArgumentListTooLong => Trouble::TooLong,
        _ => Trouble::Spawn(error),
    })
}

/// A group that is listed as long as it runs, and killed when its supervisor is dropped half-way: the
/// runtime shuts down, or a callback panicked.
struct Group {
    pid: Pid,
    groups: Arc<Groups>,
    has_ended: bool,
}

impl Group {
    fn of(child: &Child, groups: Arc<Groups>) -> Result<Self, Trouble> {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw);
        let gone = || Trouble::Spawn(io::Error::other("it has no process id"));
        Ok(Self {
            pid: pid.ok_or_else(gone)?,
            groups,
            has_ended: false,
        })
    }

    fn ended(&mut self) {
        self.has_ended = true;
        self.groups.forget(self.pid);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.has_ended {
            process::kill(self.pid);
        }
    }
}

/// Gives the command its go, and its pipes to whoever talks to it.
async fn hand_over(
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    to: oneshot::Sender<Pipes>,
) {
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return;
    };
    if let Err(error) = stdin.write_all(b"\n").await {
        // It was killed meanwhile; its end says so.
        tracing::warn!(%error, "a command did not get its go");
    }
    // Nobody there any more: closed pipes tell the command.
    drop(to.send((stdin, stdout)));
}

/// Gives the command its go and its input.
async fn feed(stdin: Option<ChildStdin>, input: &[u8]) {
    let Some(mut stdin) = stdin else { return };
    let fed = async {
        stdin.write_all(b"\n").await?;
        stdin.write_all(input).await
    };
    match fed.await {
        Ok(()) => {}
        // A command may ignore its input, or stop half-way.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => tracing::warn!(%error, "a command's input was not written"),
    }
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Kept,
    /// Nobody will see it.
    Dropped,
    /// The command must not go on.
    Refused,
}

/// Reads to the end, line by line for whoever watches. After a refused chunk too: a pipe closed under
/// a program would end only that, and let its shell go on with the next.
async fn read(
    pipe: Option<impl AsyncRead + Unpin>,
    stream: Stream,
    on_line: &OnLine,
    refused: &Notify,
    mut take: impl FnMut(&[u8]) -> Taken,
) {
    let Some(mut pipe) = pipe else { return };
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = match pipe.read(&mut chunk).await {
            Ok(0) => break,
            Ok(bytes) => &chunk[..bytes],
            Err(error) => {
                tracing::warn!(%error, ?stream, "a command's output could not be read to its end");
                break;
            }
        };
        match take(bytes) {
            Taken::Kept => lines.take(bytes, |line| on_line(stream, line)),
            Taken::Dropped => {}
            Taken::Refused => refused.notify_one(),
        }
    }
    lines.end(|line| on_line(stream, line));
}

/// Cuts chunks into lines.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8], mut tell: impl FnMut(&str)) {
        while !bytes.is_empty() {
            let (piece, ends) = match bytes.iter().position(|byte| *byte == b'\n') {
                Some(at) => (&bytes[..at], true),
                None => (bytes, false),
            };
            let fits = piece.len().min(LINE_BYTES - self.begun.len());
            self.begun.extend_from_slice(&piece[..fits]);
            let whole = fits == piece.len();
            if (whole && ends) || self.begun.len() == LINE_BYTES {
                tell(&String::from_utf8_lossy(&self.begun));
                self.begun.clear();
            }
            bytes = &bytes[fits + usize::from(whole && ends)..];
        }
    }

    fn end(self, mut tell: impl FnMut(&str)) {
        if !self.begun.is_empty() {
            tell(&String::from_utf8_lossy(&self.begun));
        }
    }
}

/// What a command printed, up to a ceiling.
struct Kept {
    bytes: Vec<u8>,
    bytes_max: u64,
    /// A write is heard to its end: stopping it half-way would leave more doubt than a lost result.
    drain: bool,
    too_large: bool,
    /// What came last, when that is kept too.
    last: Option<Vec<u8>>,
    printed: u64,
}

impl Kept {
    fn new(start: &Start) -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max: start.output_bytes_max,
            drain: start.write,
            too_large: false,
            last: start.keeps_ends.then(Vec::new),
            printed: 0,
        }
    }

    fn take(&mut self, chunk: &[u8]) -> Taken {
        self.printed += chunk.len() as u64;
        if !self.too_large && (self.bytes.len() + chunk.len()) as u64 <= self.bytes_max {
            self.bytes.extend_from_slice(chunk);
            return Taken::Kept;
        }
        let was_too_large = std::mem::replace(&mut self.too_large, true);
        if let Some(last) = &mut self.last {
            let half = usize::try_from(self.bytes_max / 2).unwrap_or(usize::MAX);
            let mut chunk = chunk;
            if !was_too_large {
                let (head, rest) = chunk.split_at(half.saturating_sub(self.bytes.len()));
                last.extend_from_slice(self.bytes.get(half..).unwrap_or_default());
                self.bytes.truncate(half);
                self.bytes.extend_from_slice(head);
                chunk = rest;
            }
            last.extend_from_slice(chunk);
            // Not for every chunk: moving what is kept costs as much as the chunk.
            if last.len() > half * 2 + CHUNK_BYTES {
                last.drain(..last.len() - half);
            }
            return Taken::Kept;
        }
        self.bytes = Vec::new();
        if self.drain {
            Taken::Dropped
        } else {
            Taken::Refused
        }
    }
}

impl Kept {
    /// The end of what was too large.
    fn end(&mut self) -> Vec<u8> {
        let mut last = self.last.take().unwrap_or_default();
        let half = usize::try_from(self.bytes_max / 2).unwrap_or(usize::MAX);
        last.drain(..last.len().saturating_sub(half));
        last
    }
}

/// The end of what a command said.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    fn take(&mut self, chunk: &[u8]) -> Taken {
        let chunk = &chunk[chunk.len().saturating_sub(TAIL_BYTES)..];
        let over = (self.bytes.len() + chunk.len()).saturating_sub(TAIL_BYTES);
        self.bytes.drain(..over);
        self.bytes.extend_from_slice(chunk);
        Taken::Kept
    }

    /// From the first whole character on.
    fn text(&self) -> String {
        let cut = self.bytes.len() == TAIL_BYTES;
        let continues = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        let skip = match cut {
            true => self.bytes.iter().take(3).take_while(continues).count(),
            false => 0,
        };
        String::from_utf8_lossy(&self.bytes[skip..]).into_owned()
    }
}

#[cfg(test)]
mod tests;
