//! Signals that are meant for the program: whoever sends them to us does not know that there are two.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// For the program, by the name that the keeper knows.
    For(&'static str),
    /// The user's terminal has another size.
    Resized,
}

/// Hears signals from when it is made on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
    user_1: Signal,
    user_2: Signal,
    resized: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    /// The next one. May be dropped and asked again.
    pub async fn next(&mut self) -> Came {
        tokio::select! {
            _ = self.interrupt.recv() => Came::For("INT"),
            _ = self.terminate.recv() => Came::For("TERM"),
            _ = self.hang_up.recv() => Came::For("HUP"),
            _ = self.quit.recv() => Came::For("QUIT"),
            _ = self.user_1.recv() => Came::For("USR1"),
            _ = self.user_2.recv() => Came::For("USR2"),
            _ = self.resized.recv() => Came::Resized,
        }
    }
}
