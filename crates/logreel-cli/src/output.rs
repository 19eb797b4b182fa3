//! stdout for results, stderr for notes, colour on a terminal only.

use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write};

use logreel::{Entry, Status};
use serde::Serialize;

use crate::args::Global;
use crate::live::terminal;

/// The width of a table that nobody looks at on a terminal.
const WIDTH: usize = 80;

/// A colour with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Good,
    Bad,
    Busy,
    Waits,
    Dim,
    Strong,
}

impl Paint {
    /// The colour of a run's status.
    pub fn of(entry: &Entry) -> Self {
        match entry.row.status() {
            _ if entry.is_orphaned() => Self::Bad,
            Status::Completed => Self::Good,
            Status::Failed => Self::Bad,
            Status::Cancelled => Self::Dim,
            Status::Waiting => Self::Waits,
            Status::Created | Status::Planning | Status::Executing | Status::Verifying => {
                Self::Busy
            }
        }
    }

    /// The text in this colour.
    pub fn on(self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        format!("{}{text}\x1b[0m", self.code())
    }

    fn code(self) -> &'static str {
        match self {
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
            Self::Busy => "\x1b[36m",
            Self::Waits => "\x1b[33m",
            Self::Dim => "\x1b[2m",
            Self::Strong => "\x1b[1m",
        }
    }
}

/// A page of a list as JSON. Not `json!`: a tree cannot hold every value that a run may have.
#[derive(Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
    pub has_more: bool,
}

/// Where a verb writes.
pub struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
    colour: bool,
    terminal_width: Option<usize>,
    pub quiet: bool,
    pub json: bool,
}

impl Output {
    pub fn new(global: &Global) -> Self {
        let stdout = io::stdout();
        let terminal_width = stdout.is_terminal().then(|| {
            let size = rustix::termios::tcgetwinsize(&stdout);
            // A terminal that does not know its size says 0.
            size.ok()
                .map(|size| usize::from(size.ws_col))
                .filter(|width| *width > 0)
        });
        Self {
            colour: has_colour(anstream::AutoStream::choice(&stdout)),
            stdout: BufWriter::with_capacity(1 << 16, stdout.lock()),
            terminal_width: terminal_width.map(|width| width.unwrap_or(WIDTH)),
            quiet: global.quiet,
            json: global.json,
        }
    }

    /// How wide a table may be.
    pub fn width(&self) -> usize {
        self.terminal_width.unwrap_or(WIDTH)
    }

    /// How long a line may be: as long as it is, unless it would wrap on a terminal.
    pub fn line_width(&self) -> usize {
        self.terminal_width.unwrap_or(usize::MAX)
    }

    pub fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        self.raw(text.as_ref().as_bytes())?;
        self.raw(b"\n")
    }

    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)
    }

    /// One line of JSON.
    pub fn json_line<T: Serialize + ?Sized>(&mut self, value: &T) -> anyhow::Result<()> {
        // Through a string: an error of the writer then stays an error of the writer.
        Ok(self.line(serde_json::to_string(value)?)?)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }

    /// Says something beside the result.
    pub fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            terminal::print(&format!("{}\n", text.as_ref()));
        }
    }

    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if self.colour {
            paint.on(text)
        } else {
            text.to_owned()
        }
    }
}

/// Whether stderr is a terminal that wants colour.
pub fn stderr_has_colour() -> bool {
    has_colour(anstream::AutoStream::choice(&io::stderr()))
}

fn has_colour(choice: anstream::ColorChoice) -> bool {
    !matches!(choice, anstream::ColorChoice::Never)
}
