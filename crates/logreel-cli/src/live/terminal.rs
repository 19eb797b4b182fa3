//! The one place that writes to stderr while a live view may be drawn there.
//!
//! A process has one stderr, so what is drawn on it is process-wide: notes and warnings from anywhere
//! first take the view away, and the next tick draws it again below them.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use unicode_width::UnicodeWidthStr as _;

use super::Size;

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// What is on the terminal now.
struct Drawn {
    /// The widths of the view's lines, from the top.
    widths: Vec<usize>,
    hidden: bool,
    /// How the terminal was before keys were no longer shown.
    before: Option<Termios>,
}

static DRAWN: Mutex<Drawn> = Mutex::new(Drawn {
    widths: Vec::new(),
    hidden: false,
    before: None,
});

fn drawn() -> MutexGuard<'static, Drawn> {
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the terminal on stderr; `None` when it is none.
pub fn size() -> Option<Size> {
    let size = termios::tcgetwinsize(io::stderr()).ok()?;
    // A terminal that does not know its size says 0.
    let or = |said: u16, otherwise| match said {
        0 => otherwise,
        said => usize::from(said),
    };
    Some(Size {
        width: or(size.ws_col, 80),
        height: or(size.ws_row, 24),
    })
}

/// Puts these lines where the view is: one write, no flicker.
pub fn draw(lines: &[String], size: Size) {
    let mut drawn = drawn();
    let mut bytes = String::new();
    if !drawn.hidden {
        bytes.push_str(HIDE_CURSOR);
        drawn.hidden = true;
        drawn.before = hide_keys();
    }
    up(&drawn.widths, size.width, &mut bytes);
    for line in lines {
        bytes.push_str(line);
        bytes.push_str(CLEAR_LINE);
        bytes.push('\n');
    }
    bytes.push_str(CLEAR_BELOW);
    drawn.widths = lines.iter().map(|line| visible_width(line)).collect();
    write(&bytes);
}

/// Takes the view away and gives the cursor back. On every way out, a panic too.
pub fn clear() {
    // Who panics while drawing holds the lock; the cursor matters more than order then.
    match DRAWN.try_lock() {
        Ok(mut drawn) => {
            let mut bytes = erased(&mut drawn);
            if std::mem::take(&mut drawn.hidden) {
                bytes.push_str(SHOW_CURSOR);
            }
            write(&bytes);
            if let Some(before) = drawn.before.take().filter(|_| is_ours()) {
                // What cannot be set back is left to the shell.
                termios::tcsetattr(io::stdin(), OptionalActions::Now, &before).unwrap_or_default();
            }
        }
        Err(std::sync::TryLockError::Poisoned(_)) => write(SHOW_CURSOR),
        Err(std::sync::TryLockError::WouldBlock) => write(SHOW_CURSOR),
    }
}

/// Writes something that stays; the view, if there is one, is drawn again below it.
pub fn print(text: &str) {
    let mut drawn = drawn();
    let mut bytes = erased(&mut drawn);
    bytes.push_str(text);
    write(&bytes);
}

/// Keys that are typed while a view is drawn would move it, a line for every Enter.
fn hide_keys() -> Option<Termios> {
    let before = termios::tcgetattr(io::stdin()).ok().filter(|_| is_ours())?;
    let mut hidden = before.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    let set = termios::tcsetattr(io::stdin(), OptionalActions::Now, &hidden);
    set.ok().map(|()| before)
}

/// Whether the terminal is ours to set: who does so in the background is stopped.
fn is_ours() -> bool {
    let foreground = termios::tcgetpgrp(io::stdin());
    foreground.is_ok_and(|it| it == rustix::process::getpgrp()) || foreground.is_err()
}

/// stderr for the library's warnings.
pub struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        print(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn erased(drawn: &mut Drawn) -> String {
    let mut bytes = String::new();
    if !drawn.widths.is_empty() {
        let width = size().map_or(80, |size| size.width);
        up(&std::mem::take(&mut drawn.widths), width, &mut bytes);
        bytes.push_str(CLEAR_BELOW);
    }
    bytes
}

/// To the view's first line. In a terminal that became narrower, its lines have wrapped.
fn up(widths: &[usize], width: usize, bytes: &mut String) {
    let rows: usize = widths
        .iter()
        .map(|it| it.div_ceil(width.max(1)).max(1))
        .sum();
    if rows > 0 {
        bytes.push_str(&format!("\r\x1b[{rows}A"));
    }
}

fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    // Nobody is left to tell when stderr is gone.
    stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush())
        .unwrap_or_default();
}

/// The columns of a line without its colours, which are the only escapes in it.
fn visible_width(line: &str) -> usize {
    let mut width = 0;
    for (index, part) in line.split('\x1b').enumerate() {
        let shown = match index {
            0 => part,
            _ => part.split_once('m').map_or("", |(_, shown)| shown),
        };
        width += shown.width();
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_are_gone_over() {
        let mut bytes = String::new();
        up(&[10, 0, 25], 10, &mut bytes);
        assert_eq!(bytes, "\r\x1b[5A");
        assert_eq!(visible_width("\x1b[2mab\x1b[0m 日\x1b[31m\x1b[0m"), 5);
    }
}
