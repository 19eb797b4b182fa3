//! What the program prints, on its way to whoever reads ours and to the log. A thread per stream: both
//! ends may block, and a log that falls behind slows the program down instead of filling memory.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use tokio::sync::mpsc;

/// The most that is read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How many chunks may wait for the log.
const AHEAD: usize = 32;

/// Where something was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
    /// Both, as a terminal shows them.
    Terminal,
}

impl Stream {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Terminal => "terminal",
        }
    }
}

pub struct Chunk {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

pub type Chunks = mpsc::Receiver<Chunk>;

pub fn channel() -> (mpsc::Sender<Chunk>, Chunks) {
    mpsc::channel(AHEAD)
}

/// Copies until the other end is closed. What cannot be passed on is recorded all the same, unless whoever
/// read it has had enough: then the program is told as it would have been without us.
pub fn spawn(stream: Stream, from: File, to: File, sender: mpsc::Sender<Chunk>) -> io::Result<()> {
    let named = std::thread::Builder::new().name(format!("logreel-{}", stream.name()));
    named.spawn(move || copy(stream, from, Some(to), &sender))?;
    Ok(())
}

fn copy(stream: Stream, mut from: File, mut to: Option<File>, sender: &mpsc::Sender<Chunk>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut buffer) {
            // A terminal that nobody writes to any more says EIO.
            Ok(0) => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
            Ok(count) => count,
        };
        let bytes = buffer[..count].to_vec();
        let passed = to.as_mut().map_or(Ok(()), |to| to.write_all(&bytes));
        let closed = match passed {
            Ok(()) => false,
            Err(error) => {
                to = None;
                error.kind() == io::ErrorKind::BrokenPipe && stream != Stream::Terminal
            }
        };
        // Nobody records any more; the program is about to be ended.
        if sender.blocking_send(Chunk { stream, bytes }).is_err() || closed {
            return;
        }
    }
}
