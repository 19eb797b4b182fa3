//! Terminals: the one that the user sits at, which gives every key as it is while the program runs, and
//! the one that the program believes to be it.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, Termios};

/// How often someone in the background looks whether it is in the foreground.
const LOOK_EVERY: rustix::fs::Timespec = rustix::fs::Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The user's terminal as it was. Dropped, it is so again.
pub struct Terminal {
    tty: File,
    was: Termios,
    shown: Shown,
    taken: bool,
}

/// Who writes on the user's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// We alone, and what we write comes from the program's terminal.
    Ours,
    /// Also someone whose lines no other terminal has ended yet.
    Shared,
}

impl Terminal {
    /// The one that a stream of ours is.
    pub fn find(shown: Shown) -> Option<Self> {
        let streams = [
            (
                io::stdin().is_terminal(),
                io::stdin().as_fd().try_clone_to_owned(),
            ),
            (
                io::stdout().is_terminal(),
                io::stdout().as_fd().try_clone_to_owned(),
            ),
            (
                io::stderr().is_terminal(),
                io::stderr().as_fd().try_clone_to_owned(),
            ),
        ];
        let found = streams.into_iter().find(|(is_terminal, _)| *is_terminal);
        let tty = File::from(found?.1.ok()?);
        let was = rustix::termios::tcgetattr(&tty).ok()?;
        Some(Self {
            tty,
            was,
            shown,
            taken: false,
        })
    }

    pub fn fd(&self) -> io::Result<OwnedFd> {
        self.tty.as_fd().try_clone_to_owned()
    }

    /// Every key comes as it is, and what is written goes out as it is, once we are not in the background:
    /// there it is another's.
    pub fn take_when_ours(&mut self) -> io::Result<()> {
        if self.taken || !is_ours(&self.tty) {
            return Ok(());
        }
        let mut raw = self.was.clone();
        raw.make_raw();
        if self.shown == Shown::Shared {
            raw.output_modes = self.was.output_modes;
        }
        rustix::termios::tcsetattr(&self.tty, OptionalActions::Drain, &raw)?;
        self.taken = true;
        Ok(())
    }

    pub fn is_taken(&self) -> bool {
        self.taken
    }

    pub fn give_back(&mut self) {
        if std::mem::take(&mut self.taken) {
            // A terminal that is gone needs nothing.
            rustix::termios::tcsetattr(&self.tty, OptionalActions::Now, &self.was)
                .unwrap_or_default();
        }
    }

    /// Gives the program's terminal the size of this one.
    pub fn size(&self, pty: &Pty) {
        if let Ok(size) = rustix::termios::tcgetwinsize(&self.tty) {
            // Also wakes whoever draws on it.
            rustix::termios::tcsetwinsize(&pty.ours, size).unwrap_or_default();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Whether keys are for us. A terminal that is not our controlling one knows no background.
fn is_ours(tty: &File) -> bool {
    let foreground = rustix::termios::tcgetpgrp(tty);
    foreground.map_or(true, |group| group == rustix::process::getpgrp())
}

/// The program's terminal: what it writes is read from `ours`, what is written there are its keys.
pub struct Pty {
    pub ours: File,
    pub theirs: Option<File>,
}

impl Pty {
    /// One that is set up like the user's.
    pub fn like(terminal: &Terminal) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&ours)?;
        rustix::pty::unlockpt(&ours)?;
        let name = rustix::pty::ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?;
        rustix::termios::tcsetattr(&theirs, OptionalActions::Now, &terminal.was)?;
        let pty = Self {
            ours: File::from(ours),
            theirs: Some(File::from(theirs)),
        };
        terminal.size(&pty);
        Ok(pty)
    }

    pub fn stream(&self) -> io::Result<OwnedFd> {
        match &self.theirs {
            Some(theirs) => theirs.as_fd().try_clone_to_owned(),
            None => Err(io::Error::other("the terminal was handed over")),
        }
    }
}

/// Keys on their way from the user to the program, until this is dropped. A key that comes later is not
/// taken from whoever reads next, nor one that is typed while we are in the background.
pub struct Keys {
    _until: io::PipeWriter,
}

impl Keys {
    pub fn pass(terminal: &Terminal, pty: &Pty) -> io::Result<Self> {
        let (stop, until) = io::pipe()?;
        let (mut from, mut to) = (terminal.tty.try_clone()?, pty.ours.try_clone()?);
        let mut pass = move || -> io::Result<()> {
            let mut keys = [0; 4096];
            loop {
                let mut both = [
                    PollFd::new(&from, PollFlags::IN),
                    PollFd::new(&stop, PollFlags::IN),
                ];
                match poll(&mut both, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                if !both[1].revents().is_empty() {
                    return Ok(());
                }
                if both[0].revents().is_empty() {
                    continue;
                }
                if !is_ours(&from) {
                    // Nothing tells when that changes.
                    let mut end = [PollFd::new(&stop, PollFlags::IN)];
                    match poll(&mut end, Some(&LOOK_EVERY)) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => continue,
                        Err(error) => return Err(error.into()),
                    }
                }
                match from.read(&mut keys) {
                    Ok(0) => return Ok(()),
                    Ok(count) => to.write_all(&keys[..count])?,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let named = std::thread::Builder::new().name("logreel-keys".to_owned());
        named.spawn(move || {
            // Either terminal is gone, and nobody types any more.
            pass().unwrap_or_default();
        })?;
        Ok(Self { _until: until })
    }
}
