//! The process between a recorder and its program. It starts the program in a session of its own, tells
//! the recorder what becomes of it, passes signals on, and outlives the recorder: when the socket to
//! that one closes, it gives the terminal back as it was and ends whatever the program left running.
//!
//! Both sides say lines. The recorder: `go`, `pause`, `continue`, `signal NAME`, `end`, `bye`. The keeper:
//! `group PID`, `stopped`, `exited CODE`, `signalled NUMBER`, `gone`.

use std::ffi::OsString;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, waitpid};
use rustix::termios::{OptionalActions, Termios};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use super::kin::Kin;
use super::signals::Ignored;

/// Nobody types these.
pub const VERB: &str = "record-keeper";
pub const EXEC_VERB: &str = "record-exec";

/// The streams of the program, then the terminal that it runs in and the one that its user sits at.
pub const FDS_MAX: usize = 5;

#[derive(clap::Args)]
pub struct Args {
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The signals that are passed on, by name.
const SIGNALS: [(&str, Signal); 6] = [
    ("INT", Signal::INT),
    ("TERM", Signal::TERM),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

/// What the recorder handed over.
struct Given {
    streams: [OwnedFd; 3],
    /// The program's terminal, and the user's with how it was.
    terminal: Option<(OwnedFd, Option<(OwnedFd, Termios)>)>,
}

pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut changes = signal(SignalKind::child())?;
    // The end of a terminal, or of a group that we happen to be in, is not ours.
    let mut deaf = vec![
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::quit(),
    ];
    // What is ignored stays so, and then the program ignores it too.
    let ignored = Ignored::look();
    deaf.retain(|kind| !ignored.has(kind.as_raw_value()));
    let _deaf: Vec<_> = deaf.into_iter().map(signal).collect();
    let socket = StdUnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let given = receive(&socket)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let session = rustix::process::setsid().context("no session of its own")?;
    let (pty, user) = match given.terminal {
        Some((pty, user)) => (Some(pty), user),
        None => (None, None),
    };
    if let Some(pty) = &pty {
        rustix::process::ioctl_tiocsctty(pty).context("no terminal of its own")?;
    }
    let program = start(&args.command, given.streams)?;
    let kin = Kin::of(session, program);
    let first = waitpid(Some(program), WaitOptions::UNTRACED)?;
    if let (Some(pty), Some((_, status))) = (&pty, first)
        && status.stopped()
    {
        rustix::termios::tcsetpgrp(pty, program).context("the terminal is not the program's")?;
    }
    // Who reads the other end must see when the program lets go of it.
    drop(pty);
    socket.set_nonblocking(true)?;
    let (reader, mut writer) = UnixStream::from_std(socket)?.into_split();
    let mut lines = BufReader::new(reader).lines();
    // A write that fails finds the socket closed, which the next read says.
    let mut say = async |line: String| writer.write_all(line.as_bytes()).await.unwrap_or_default();
    say(format!("group {}\n", program.as_raw_pid())).await;
    let mut running = true;
    if let Some((_, status)) = first
        && let Some(line) = words(status).filter(|_| !status.stopped())
    {
        running = false;
        say(line).await;
    }
    let (mut paused, mut said_bye) = (false, false);
    loop {
        let mut gone = false;
        tokio::select! {
            _ = changes.recv() => {}
            line = lines.next_line() => match line.ok().flatten().as_deref() {
                Some("go") => kin.signal(Signal::CONT),
                Some("pause") => {
                    paused = true;
                    kin.signal_all(Signal::STOP);
                }
                Some("continue") => {
                    paused = false;
                    kin.signal_all(Signal::CONT);
                }
                Some("end") => {
                    kin.end().await;
                    gone = true;
                }
                Some("bye") => said_bye = true,
                Some(line) => {
                    let name = line.strip_prefix("signal ");
                    let found = SIGNALS.iter().find(|(known, _)| Some(*known) == name);
                    // Its leader is gone: the number may be another's.
                    if let Some((_, signal)) = found.filter(|_| running) {
                        pass_on(program, *signal);
                    }
                }
                None => break,
            }
        }
        while running {
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
            let Ok(Some((_, status))) = waitpid(Some(program), options) else {
                break;
            };
            running = status.stopped();
            // A pause is known to whoever asked for it.
            if let Some(line) = words(status).filter(|_| !(status.stopped() && paused)) {
                say(line).await;
            }
        }
        // After how it ended.
        if gone {
            say("gone\n".to_owned()).await;
        }
    }
    if !said_bye && let Some((user, was)) = &user {
        // The recorder died with the terminal in its hands. A terminal that is gone needs nothing.
        rustix::termios::tcsetattr(user, OptionalActions::Now, was).unwrap_or_default();
    }
    kin.end().await;
    Ok(0)
}

/// Becomes the program, once it is told to go on: its group is listed and has the terminal by then. Who
/// was to tell it is its parent; when that one dies the system ends a stopped orphan.
pub fn exec(args: Args) -> anyhow::Result<u8> {
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
    let mut words = args.command.iter();
    let program = words.next().cloned().unwrap_or_default();
    let error = Command::new(&program).args(words).exec();
    eprintln!("logreel: {}: {error}", program.to_string_lossy());
    Ok(match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    })
}

fn receive(socket: &StdUnixStream) -> anyhow::Result<Given> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 1];
    let mut words = [IoSliceMut::new(&mut word)];
    rustix::net::recvmsg(socket, &mut words, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let mut fds: Vec<OwnedFd> = fds.collect();
    let more = fds.split_off(fds.len().min(3));
    let streams = <[OwnedFd; 3]>::try_from(fds);
    let streams = streams.map_err(|_| anyhow::anyhow!("only `logreel record` starts this"))?;
    let mut more = more.into_iter();
    let terminal = more.next().map(|pty| {
        let user = more.next().and_then(|user| {
            let was = rustix::termios::tcgetattr(&user).ok()?;
            Some((user, was))
        });
        (pty, user)
    });
    Ok(Given { streams, terminal })
}

fn start(command: &[OsString], streams: [OwnedFd; 3]) -> anyhow::Result<Pid> {
    let [stdin, stdout, stderr] = streams;
    let own = std::env::current_exe().context("this program cannot be started again")?;
    let child = Command::new(own)
        .args([EXEC_VERB, "--"])
        .args(command)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0)
        .spawn()
        .context("the program cannot be started")?;
    Ok(Pid::from_child(&child))
}

/// What became of the program, as a line.
fn words(status: WaitStatus) -> Option<String> {
    if status.stopped() {
        return Some("stopped\n".to_owned());
    }
    let exited = status.exit_status().map(|code| format!("exited {code}\n"));
    let signalled = status.terminating_signal();
    exited.or_else(|| signalled.map(|number| format!("signalled {number}\n")))
}

fn pass_on(group: Pid, signal: Signal) {
    match kill_process_group(group, signal) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => eprintln!("logreel: the program's group cannot be signalled: {error}"),
    }
}
