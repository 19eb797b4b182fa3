//! Signals that are meant for the program: whoever sends them to us does not know that there are two.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;

/// A signal that is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// As the keeper knows it.
    pub name: &'static str,
    pub number: i32,
}

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// For the program.
    For(Passed),
    /// The user's terminal has another size.
    Resized,
}

/// Hears signals from when it is made on. There is one for the whole recording: what came before the
/// program was there is heard by whoever starts it.
#[derive(Clone)]
pub struct Signals(Arc<Mutex<Heard>>);

struct Heard {
    passed: Vec<(Passed, Signal)>,
    resized: Signal,
    /// It came, and nobody has acted on it.
    kept: Option<Passed>,
}

impl Signals {
    /// A signal that we were started to ignore is ignored by the program too, as without us.
    pub fn new() -> io::Result<Self> {
        let ignored = Ignored::look();
        let kinds = [
            ("INT", SignalKind::interrupt()),
            ("TERM", SignalKind::terminate()),
            ("HUP", SignalKind::hangup()),
            ("QUIT", SignalKind::quit()),
            ("USR1", SignalKind::user_defined1()),
            ("USR2", SignalKind::user_defined2()),
        ];
        let mut passed = Vec::new();
        for (name, kind) in kinds {
            let number = kind.as_raw_value();
            if !ignored.has(number) {
                passed.push((Passed { name, number }, signal(kind)?));
            }
        }
        Ok(Self(Arc::new(Mutex::new(Heard {
            passed,
            resized: signal(SignalKind::window_change())?,
            kept: None,
        }))))
    }

    /// The next one. May be dropped and asked again.
    pub async fn next(&self) -> Came {
        let mut heard = self.0.lock().await;
        match heard.kept.take() {
            Some(kept) => Came::For(kept),
            None => heard.next().await,
        }
    }

    /// The next one for the program, which stays the next one.
    pub async fn first(&self) -> Passed {
        let mut heard = self.0.lock().await;
        loop {
            if let Some(kept) = heard.kept {
                return kept;
            }
            // The size of the terminal is looked at when the program starts.
            if let Came::For(passed) = heard.next().await {
                heard.kept = Some(passed);
            }
        }
    }

    /// What [`Signals::first`] would give at once.
    pub async fn came(&self) -> Option<Passed> {
        tokio::select! {
            biased;
            first = self.first() => Some(first),
            () = std::future::ready(()) => None,
        }
    }
}

impl Heard {
    async fn next(&mut self) -> Came {
        std::future::poll_fn(|context| {
            for (passed, signal) in &mut self.passed {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(Came::For(*passed));
                }
            }
            self.resized.poll_recv(context).map(|_| Came::Resized)
        })
        .await
    }
}

/// The signals that this process was started to ignore, as `nohup` has it and a script for what it runs
/// in the background.
#[derive(Debug, Clone, Copy)]
pub struct Ignored(u64);

impl Ignored {
    /// As it is now: once a signal has a handler it is not among them. A system without `/proc` has
    /// none.
    pub fn look() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self(mask.unwrap_or(0))
    }

    pub fn has(self, number: i32) -> bool {
        (1..=64).contains(&number) && self.0 >> (number - 1) & 1 == 1
    }
}
