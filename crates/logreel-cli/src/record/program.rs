//! A recorded program from its start to the end of everything it started: what it prints goes into the
//! log in bounded pieces, and what is asked of the run from elsewhere reaches it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use logreel::core::event::{Cause, Custom, Git, OutputWritten};
use logreel::core::{Blob, Payload};
use logreel::{Body, Ctx, Json, Log, RunStore, TaskError};
use logreel_agent::{Format, Prices, RecordedText, Redactor, Said, StreamLines};
use rustix::fs::FileType;
use rustix::process::{Pid, Signal};
use serde_json::json;

use super::checkout;
use super::copy::{self, Chunk, Chunks, Stream};
use super::kept::{Kept, Report, Streams};
use super::kin::Kin;
use super::signals::{Came, Signals};
use super::terminal::{Keys, Pty, Shown, Terminal};

/// The name of the fact that says how the program ended.
pub const ENDED: &str = "program.ended";
/// What is printed is on its way into the log after this at the latest.
const GATHER: Duration = Duration::from_millis(20);
/// As much as one append takes.
const APPEND_BYTES: usize = 1024 * 1024;
/// How long others may keep the output open after the program has ended.
const LINGER: Duration = Duration::from_secs(1);
/// How often someone in the background looks whether it is in the foreground.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A moment in which a stop that we asked for reaches us.
const STOP_TAKES: Duration = Duration::from_millis(20);

/// What to run.
#[derive(Clone)]
pub struct Setup {
    pub command: Vec<OsString>,
    pub folder: PathBuf,
    pub git: Option<Git>,
    pub redactor: Redactor,
    /// What its stdout is, when that is known.
    pub stream: Option<Format>,
    pub prices: Prices,
    /// Where it is recorded.
    pub store: Arc<dyn RunStore>,
    /// What came for it so far, and what comes.
    pub signals: Signals,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Signalled(i32),
}

impl Ended {
    /// As a shell tells it.
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Exited(code) => code,
            Self::Signalled(number) => 128 + number,
        };
        u8::try_from(code & 0xff).unwrap_or(1)
    }
}

/// What whoever started it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Before the log is.
    Ended(Ended),
    /// Some lines of its stream were not understood.
    Unknown { lines: u64, unknown: u64 },
}

/// Runs the program and records it.
pub async fn run(ctx: Ctx, setup: Setup, tell: impl Fn(Told)) -> Result<Json, TaskError> {
    let log = ctx.log();
    let _busy = log.busy();
    log.may_begin().await?;
    let signals = setup.signals.clone();
    if let Some(passed) = signals.came().await {
        // It was told to end before it began.
        let ended = Ended::Signalled(passed.number);
        tell(Told::Ended(ended));
        let mut nothing = Recording::new(&log, copy::channel().1, &setup);
        record_end(&mut nothing, setup, ended, Duration::ZERO, false).await?;
        let message = format!("signal {} came before the program began", passed.name);
        return Err(failed("signal", message, None));
    }
    let began = log.env().monotonic();
    let (mut at_work, chunks) = AtWork::start(&ctx, &setup)?;
    let group = match at_work.kept.next().await {
        Report::Group(group) => group,
        _ => {
            return Err(TaskError::of_kind(
                "not_started",
                "the program's keeper ended",
            ));
        }
    };
    let noted = ctx.note_group(group);
    let noted = noted.map_err(|error| {
        let message = format!("the program's process group could not be noted: {error}");
        TaskError::of_kind("not_started", message)
    })?;
    if let Some((terminal, _, _)) = &mut at_work.terminal {
        terminal.take_when_ours()?;
    }
    at_work.kept.say("go").await;
    let mut recording = Recording::new(&log, chunks, &setup);
    let ended = at_work.until_ended(&mut recording, &signals).await?;
    let duration = log.env().monotonic().saturating_sub(began);
    // The terminal is the user's again as soon as the program is gone.
    let on_terminal = at_work.terminal.take().is_some();
    let session = at_work.kept.session();
    at_work.kept.bye().await?;
    if let (None, Some(session), Some(group)) = (ended, session, Pid::from_raw(group)) {
        // Nobody else is left who would end it.
        Kin::of(session, group).end().await;
    }
    drop(noted);
    let ended = ended.ok_or_else(|| {
        let message = "how the program ended is not known: its keeper was killed";
        TaskError::of_kind("lost", message)
    })?;
    tell(Told::Ended(ended));
    recording.finish().await?;
    record_end(&mut recording, setup, ended, duration, on_terminal).await?;
    if let Some((lines, unknown)) = recording.lines.as_ref().map(StreamLines::counts)
        && unknown > 0
    {
        tell(Told::Unknown { lines, unknown });
    }
    let failure = recording.lines.as_ref().and_then(StreamLines::failure);
    let answer = recording.lines.as_ref().and_then(StreamLines::answer);
    let said = failure.map(|why| format!(": {why}")).unwrap_or_default();
    match (ended, failure) {
        (Ended::Exited(0), Some(why)) => Err(failed("agent", why.to_owned(), Some(0))),
        (Ended::Exited(0), None) => match answer {
            Some(answer) => Ok(answer.clone()),
            None => Ok(Json::of(&json!({"exit_code": 0}))?),
        },
        (Ended::Exited(code), _) => Err(failed(
            "exit",
            format!("exit status {code}{said}"),
            Some(code),
        )),
        (Ended::Signalled(number), _) => {
            let message = format!("the program was killed by signal {number}{said}");
            Err(failed("signal", message, None))
        }
    }
}

fn failed(kind: &str, message: String, exit_code: Option<i32>) -> TaskError {
    TaskError::from_cause(&Cause {
        exit_code,
        kind: kind.to_owned(),
        message,
        retryable: false,
        step: None,
    })
}

/// The program, its terminal and its keeper.
struct AtWork {
    kept: Kept,
    terminal: Option<(Terminal, Pty, Keys)>,
    store: Arc<dyn RunStore>,
}

impl AtWork {
    fn start(ctx: &Ctx, setup: &Setup) -> io::Result<(Self, Chunks)> {
        let (sender, chunks) = copy::channel();
        // Lines for a program are not for a terminal.
        let shows_stdout = io::stdout().is_terminal() && setup.stream.is_none();
        let shown = match shows_stdout || is_file(io::stdout().as_fd()) {
            true => Shown::Ours,
            false => Shown::Shared,
        };
        let terminal = match Terminal::find(shown) {
            Some(terminal) => {
                let pty = Pty::like(&terminal)?;
                Some((terminal, pty))
            }
            None => None,
        };
        let pty = terminal.as_ref().map(|(_, pty)| pty);
        // Each stream is to the program what ours is to us.
        let stdin = match pty.filter(|_| io::stdin().is_terminal()) {
            Some(pty) => pty.stream()?,
            None => io::stdin().as_fd().try_clone_to_owned()?,
        };
        let own = |fd: io::Result<OwnedFd>| fd.map(File::from);
        let stdout = match pty.filter(|_| shows_stdout) {
            Some(pty) => pty.stream()?,
            None => {
                let to = own(io::stdout().as_fd().try_clone_to_owned())?;
                piped(Stream::Stdout, to, &sender)?
            }
        };
        let stderr = match pty.filter(|_| io::stderr().is_terminal()) {
            Some(pty) => pty.stream()?,
            None => {
                let to = own(io::stderr().as_fd().try_clone_to_owned())?;
                piped(Stream::Stderr, to, &sender)?
            }
        };
        let shown = match &terminal {
            None => None,
            Some((_, pty)) if io::stdout().is_terminal() => {
                Some((pty, io::stdout().as_fd().try_clone_to_owned()?))
            }
            Some((_, pty)) if io::stderr().is_terminal() => {
                Some((pty, io::stderr().as_fd().try_clone_to_owned()?))
            }
            Some((terminal, pty)) => Some((pty, terminal.fd()?)),
        };
        if let Some((pty, to)) = shown {
            let from = pty.ours.try_clone()?;
            copy::spawn(Stream::Terminal, from, File::from(to), sender.clone())?;
        }
        let streams = Streams {
            stdin,
            stdout,
            stderr,
            terminal: match &terminal {
                Some((terminal, pty)) => Some((pty.stream()?, terminal.fd()?)),
                None => None,
            },
        };
        let kept = Kept::start(ctx.run_id(), &setup.command, &setup.folder, &streams)?;
        drop(streams);
        let terminal = match terminal {
            Some((terminal, mut pty)) => {
                pty.theirs = None;
                let keys = Keys::pass(&terminal, &pty)?;
                Some((terminal, pty, keys))
            }
            None => None,
        };
        let at_work = Self {
            kept,
            terminal,
            store: Arc::clone(&setup.store),
        };
        Ok((at_work, chunks))
    }

    /// Until nothing of the program runs; `None` when nobody knows how it ended.
    async fn until_ended(
        &mut self,
        recording: &mut Recording<'_>,
        signals: &Signals,
    ) -> Result<Option<Ended>, TaskError> {
        let log = recording.log;
        let (mut ended, mut is_paused, mut is_ending) = (None, false, false);
        let mut linger =
            Box::pin(std::future::pending()) as Pin<Box<dyn Future<Output = ()> + Send>>;
        loop {
            if let Some((terminal, _, _)) = &mut self.terminal {
                terminal.take_when_ours()?;
            }
            let terminal = self.terminal.as_ref();
            let in_background = terminal.is_some_and(|(terminal, _, _)| !terminal.is_taken());
            tokio::select! {
                report = self.kept.next() => match report {
                    Report::Exited(code) => ended = Some(Ended::Exited(code)),
                    Report::Signalled(number) => ended = Some(Ended::Signalled(number)),
                    Report::Stopped => self.stop_with_it().await?,
                    Report::Gone | Report::Lost => return Ok(ended),
                    Report::Group(_) => {}
                },
                printed = recording.printed() => {
                    let more = printed?;
                    if !more && ended.is_some() && !is_ending {
                        is_ending = true;
                        self.kept.say("end").await;
                    }
                    continue;
                }
                came = signals.next() => match came {
                    Came::For(passed) => self.kept.say(&format!("signal {}", passed.name)).await,
                    Came::Resized => if let Some((terminal, pty, _)) = &self.terminal {
                        terminal.size(pty);
                    },
                },
                // The terminal may be ours by now.
                () = log.env().sleep(LOOK_EVERY), if in_background => continue,
                () = log.until_paused(!is_paused) => {
                    is_paused = !is_paused;
                    let words = if is_paused { "pause" } else { "continue" };
                    self.kept.say(words).await;
                }
                () = log.until_stopped(), if !is_ending => {
                    is_ending = true;
                    self.kept.say("end").await;
                }
                () = &mut linger => {
                    is_ending = true;
                    linger = Box::pin(std::future::pending());
                    self.kept.say("end").await;
                }
            }
            // Its output may still be on its way, or be held open by what it left behind.
            if ended.is_some() && !is_ending {
                match recording.is_over() {
                    true => {
                        is_ending = true;
                        self.kept.say("end").await;
                    }
                    false => linger = log.env().sleep(LINGER),
                }
            }
        }
    }

    /// The user stopped the program (Ctrl-Z), and so means us: the shell gets its terminal. When the shell
    /// goes on with us, we go on with the program.
    async fn stop_with_it(&mut self) -> Result<(), TaskError> {
        if let Some((terminal, _, _)) = &mut self.terminal {
            let mut stopped = Ok(());
            self.store.between_writes(&mut || {
                // Not before: from here on a Ctrl-Z stops us wherever we are.
                terminal.give_back();
                stopped = stop_own_group();
            });
            stopped.map_err(|error| {
                TaskError::new(format!("this process cannot be stopped: {error}"))
            })?;
            terminal.take_when_ours()?;
            self.kept.say("continue").await;
        }
        Ok(())
    }
}

/// Stops this process and whoever its shell started with it (its own group, which may have no number here), and returns
/// when the shell goes on with them. Nobody can stop a group that no shell waits for; then it returns at once.
#[expect(
    clippy::disallowed_methods,
    reason = "the store must not write meanwhile, and what awaits may be overtaken"
)]
fn stop_own_group() -> rustix::io::Result<()> {
    rustix::process::kill_current_process_group(Signal::TSTP)?;
    std::thread::sleep(STOP_TAKES);
    Ok(())
}

/// What is written there is not seen on a terminal.
fn is_file(stream: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::RegularFile)
}

fn piped(
    stream: Stream,
    to: File,
    sender: &tokio::sync::mpsc::Sender<Chunk>,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = io::pipe()?;
    let from = File::from(OwnedFd::from(ours));
    copy::spawn(stream, from, to, sender.clone())?;
    Ok(OwnedFd::from(theirs))
}

type Appending<'c> = Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send + 'c>>;

/// What was printed, on its way into the log.
struct Recording<'c> {
    log: Log<'c>,
    chunks: Chunks,
    texts: [RecordedText; 3],
    /// Stdout, when its lines are known.
    lines: Option<StreamLines>,
    bytes: [u64; 3],
    gathered: Vec<Body>,
    gathered_blobs: Vec<Blob>,
    gathered_bytes: usize,
    due: Option<Duration>,
    /// An append that is under way. It is kept here: one that is dropped is not heard of again.
    appending: Option<Appending<'c>>,
    over: bool,
}

impl<'c> Recording<'c> {
    fn new(log: &Log<'c>, chunks: Chunks, setup: &Setup) -> Self {
        let Setup {
            redactor,
            stream,
            prices,
            ..
        } = setup;
        let streams = [Stream::Stdout, Stream::Stderr, Stream::Terminal];
        Self {
            log: *log,
            chunks,
            texts: streams.map(|stream| RecordedText::new(stream.name(), redactor.clone())),
            lines: stream.as_ref().map(|format| {
                let mut lines = StreamLines::new(format, redactor, prices);
                log.with_state(|state| lines.go_on(state));
                lines
            }),
            bytes: [0; 3],
            gathered: Vec::new(),
            gathered_blobs: Vec::new(),
            gathered_bytes: 0,
            due: None,
            appending: None,
            over: false,
        }
    }

    /// Whether nobody can print any more, and all of it was seen.
    fn is_over(&self) -> bool {
        self.over
    }

    /// Takes what was printed, and appends what is due; false when nothing more comes. May be dropped and
    /// asked again: what was taken is kept, and an append goes on.
    async fn printed(&mut self) -> Result<bool, TaskError> {
        if self.appending.is_none() {
            self.take_next().await;
            let now = self.log.env().monotonic();
            let is_due = self.due.is_some_and(|due| due <= now);
            if self.over || is_due || self.gathered_bytes >= APPEND_BYTES {
                self.append();
            }
        }
        self.appended().await?;
        Ok(!self.over)
    }

    /// Waits for something to be printed, or for what was to be due.
    async fn take_next(&mut self) {
        let env = self.log.env();
        let due = self.due;
        let until_due = async {
            match due {
                Some(due) => env.sleep(due.saturating_sub(env.monotonic())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = until_due => {}
            chunk = self.chunks.recv(), if !self.over => match chunk {
                Some(chunk) => self.take(&chunk),
                None => self.over = true,
            },
        }
    }

    fn take(&mut self, chunk: &Chunk) {
        let index = match chunk.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::Terminal => 2,
        };
        self.bytes[index] += chunk.bytes.len() as u64;
        let said = match (&mut self.lines, chunk.stream) {
            (Some(lines), Stream::Stdout) => lines.push(&chunk.bytes),
            (Some(_), Stream::Stderr | Stream::Terminal) | (None, _) => {
                of_text(self.texts[index].push(&chunk.bytes))
            }
        };
        self.gather(said);
        self.gathered_bytes += chunk.bytes.len();
    }

    fn gather(&mut self, said: Said) {
        self.gathered.extend(said.bodies);
        self.gathered_blobs.extend(said.blobs);
        if !self.gathered.is_empty() && self.due.is_none() {
            self.due = Some(self.log.env().monotonic() + GATHER);
        }
    }

    /// Sends off what was gathered.
    fn append(&mut self) {
        self.due = None;
        self.gathered_bytes = 0;
        if self.gathered.is_empty() {
            return;
        }
        let bodies = std::mem::take(&mut self.gathered);
        let blobs = std::mem::take(&mut self.gathered_blobs);
        let log = self.log;
        let appending = async move { log.record_happened(bodies, blobs).await };
        self.appending = Some(Box::pin(appending));
    }

    /// Waits until what was sent off is in the log.
    async fn appended(&mut self) -> Result<(), TaskError> {
        let Some(appending) = &mut self.appending else {
            return Ok(());
        };
        let appended = appending.await;
        self.appending = None;
        appended
    }

    /// Nothing more is read.
    async fn finish(&mut self) -> Result<(), TaskError> {
        self.appended().await?;
        while let Ok(chunk) = self.chunks.try_recv() {
            self.take(&chunk);
        }
        if let Some(lines) = &mut self.lines {
            let said = lines.finish();
            self.gather(said);
        }
        let rest = self.texts.iter_mut().flat_map(RecordedText::finish);
        let said = of_text(rest.collect());
        self.gather(said);
        self.append();
        self.appended().await
    }
}

fn of_text(written: Vec<OutputWritten>) -> Said {
    Said {
        bodies: written.into_iter().map(Body::from).collect(),
        blobs: Vec::new(),
    }
}

/// Records what is known of the program beside what it printed.
async fn record_end(
    recording: &mut Recording<'_>,
    setup: Setup,
    ended: Ended,
    duration: Duration,
    on_terminal: bool,
) -> Result<(), TaskError> {
    let (exit_code, signal) = match ended {
        Ended::Exited(code) => (Some(code), None),
        Ended::Signalled(number) => (None, Some(number)),
    };
    let compared = checkout::compare(&setup.folder, setup.git, &setup.redactor);
    let (git, blob) = compared.map_or((None, None), |(changed, blob)| (Some(changed), blob));
    let [stdout, stderr, terminal] = recording.bytes;
    let data = json!({
        "exit_code": exit_code,
        "signal": signal,
        "duration_ms": u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        "terminal": on_terminal,
        "bytes": {"stdout": stdout, "stderr": stderr, "terminal": terminal},
        "git": git,
    });
    let mut data = data;
    if let Some(stream) = &recording.lines {
        let (lines, unknown) = stream.counts();
        let session = stream.session();
        data["stream"] = json!({"lines": lines, "unknown": unknown, "session": session});
    }
    let (data, large) = Payload::of(Json::from(data));
    let name = ENDED.to_owned();
    let blobs: Vec<Blob> = blob.into_iter().chain(large).collect();
    let recorded = recording
        .log
        .record(vec![Custom { data, name }.into()], blobs);
    recorded.await?;
    Ok(())
}
