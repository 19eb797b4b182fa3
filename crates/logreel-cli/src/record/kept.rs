//! The recorder's side of the [keeper](super::keeper): its program's start, what becomes of it, and what
//! it is told.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;

use logreel::{RUN_VARIABLE, RunId};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::keeper::{FDS_MAX, VERB};

/// What becomes of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// It is there, in this group, and waits for its go.
    Group(i32),
    /// Its user stopped it, or it did itself.
    Stopped,
    Exited(i32),
    Signalled(i32),
    /// Nothing of it runs.
    Gone,
    /// The keeper is gone: someone killed it.
    Lost,
}

/// A keeper at work. Dropped, it ends its program.
pub struct Kept {
    keeper: Child,
    reports: Lines<BufReader<OwnedReadHalf>>,
    words: OwnedWriteHalf,
}

/// What a program is started with.
pub struct Streams {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Its terminal, and its user's.
    pub terminal: Option<(OwnedFd, OwnedFd)>,
}

impl Kept {
    pub fn start(
        run: RunId,
        command: &[OsString],
        folder: &Path,
        streams: &Streams,
    ) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let keeper = Command::new(std::env::current_exe()?)
            .args([VERB, "--"])
            .args(command)
            .env(RUN_VARIABLE, run.to_string())
            .current_dir(folder)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        send(&ours, streams)?;
        ours.set_nonblocking(true)?;
        let (reader, words) = UnixStream::from_std(ours)?.into_split();
        Ok(Self {
            keeper,
            reports: BufReader::new(reader).lines(),
            words,
        })
    }

    /// The session that the keeper makes, and that everything of the program is in.
    pub fn session(&self) -> Option<Pid> {
        let pid = self.keeper.id().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw)
    }

    /// The next report. May be dropped and asked again.
    pub async fn next(&mut self) -> Report {
        let line = self.reports.next_line().await.ok().flatten();
        let Some(line) = line else {
            return Report::Lost;
        };
        let (word, number) = line.split_once(' ').unwrap_or((&line, ""));
        match (word, number.parse()) {
            ("group", Ok(group)) => Report::Group(group),
            ("exited", Ok(code)) => Report::Exited(code),
            ("signalled", Ok(number)) => Report::Signalled(number),
            ("stopped", _) => Report::Stopped,
            ("gone", _) => Report::Gone,
            _ => Report::Lost,
        }
    }

    /// Tells it something. One that is gone says so by its reports.
    pub async fn say(&mut self, words: &str) {
        let line = format!("{words}\n");
        let said = self.words.write_all(line.as_bytes()).await;
        said.unwrap_or_default();
    }

    /// Nothing is left to keep.
    pub async fn bye(mut self) -> io::Result<()> {
        self.say("bye").await;
        let Self {
            mut keeper,
            reports,
            words,
        } = self;
        drop((reports, words));
        keeper.wait().await?;
        Ok(())
    }
}

fn send(socket: &StdUnixStream, streams: &Streams) -> io::Result<()> {
    let Streams {
        stdin,
        stdout,
        stderr,
        terminal,
    } = streams;
    let mut fds: Vec<BorrowedFd<'_>> = vec![stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    if let Some((pty, user)) = terminal {
        fds.extend([pty.as_fd(), user.as_fd()]);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for the program's streams"));
    }
    let word = [IoSlice::new(b"!")];
    rustix::net::sendmsg(socket, &word, &mut control, SendFlags::empty())?;
    Ok(())
}
