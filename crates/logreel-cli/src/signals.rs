//! Being told to stop: Ctrl-C, SIGTERM, a terminal that is gone.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a process that a person stopped.
pub const INTERRUPTED: u8 = 130;
/// The exit code of a process that was asked to leave.
pub const TERMINATED: u8 = 143;

/// Why to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C: someone wants the work to stop.
    Interrupt,
    /// SIGTERM or a lost terminal: this process must go, the work need not.
    Terminate,
}

impl Stop {
    pub fn code(self) -> u8 {
        match self {
            Self::Interrupt => INTERRUPTED,
            Self::Terminate => TERMINATED,
        }
    }
}

/// Hears signals from when it is made on; none is missed in between.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one. May be dropped and asked again.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.hang_up.recv() => Stop::Terminate,
        }
    }
}
