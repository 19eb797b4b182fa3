//! A way to the database that can be cut: at once, in the middle of a message, after an append or a COMMIT has been
//! sent and before its answer came; or held, or closed for a while.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::clock::{millis, now, pause};

/// What the next fitting message springs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// Half of what someone sends arrives.
    HalfSent,
    /// Half of an answer arrives.
    HalfAnswered,
    /// Events were sent and stored; the answer does not arrive.
    Append,
    /// COMMIT was sent and done; the answer does not arrive.
    Commit,
}

impl Trap {
    pub const ALL: [Self; 4] = [
        Self::HalfSent,
        Self::HalfAnswered,
        Self::Append,
        Self::Commit,
    ];

    /// What is cut by it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HalfSent => "in a request",
            Self::HalfAnswered => "in an answer",
            Self::Append => "after an append",
            Self::Commit => "after a COMMIT",
        }
    }
}

/// Which answer a connection waits for before it is cut.
const NONE: u8 = 0;
const ANY: u8 = 1;
const COMMITTED: u8 = 2;

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    lines: HashMap<u64, Line>,
    closed_until: Duration,
    held_until: Duration,
    trap: Option<Trap>,
    sprung: Vec<Trap>,
}

struct Line {
    client: TcpStream,
    server: UnixStream,
}

impl Line {
    fn cut(&self) {
        // The other side may have cut it first.
        drop(self.client.shutdown(Shutdown::Both));
        drop(self.server.shutdown(Shutdown::Both));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self, id: u64) {
        if let Some(line) = self.state().lines.remove(&id) {
            line.cut();
        }
    }

    /// Takes the trap if it is one of these and the message springs it.
    fn spring(&self, fits: impl Fn(Trap) -> bool) -> Option<Trap> {
        let mut state = self.state();
        let trap = state.trap.filter(|trap| fits(*trap))?;
        state.trap = None;
        state.sprung.push(trap);
        Some(trap)
    }

    fn wait_while_held(&self) {
        while self.state().held_until > now() {
            pause(millis(5));
        }
    }
}

impl Proxy {
    /// Listens on a port of its own and passes everything on to this socket.
    pub fn start(upstream: PathBuf) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            upstream,
            state: Mutex::default(),
        });
        let here = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accept(&here, client);
            }
        });
        Ok(Self { port, shared })
    }

    /// Cuts all connections.
    pub fn cut(&self) -> usize {
        let lines = std::mem::take(&mut self.shared.state().lines);
        lines.values().for_each(Line::cut);
        lines.len()
    }

    /// Whether anyone is connected.
    pub fn is_used(&self) -> bool {
        !self.shared.state().lines.is_empty()
    }

    /// Nobody comes through until then.
    pub fn close(&self, until: Duration) {
        self.shared.state().closed_until = until;
        self.cut();
    }

    /// Connections stay, and nothing arrives until then.
    pub fn hold(&self, until: Duration) {
        self.shared.state().held_until = until;
    }

    pub fn set_trap(&self, trap: Trap) {
        self.shared.state().trap = Some(trap);
    }

    /// How many traps of a sort sprang.
    pub fn sprung(&self, trap: Trap) -> usize {
        let state = self.shared.state();
        state.sprung.iter().filter(|it| **it == trap).count()
    }

    /// All is well again.
    pub fn calm(&self) {
        let mut state = self.shared.state();
        (state.closed_until, state.held_until, state.trap) = (Duration::ZERO, Duration::ZERO, None);
    }
}

fn accept(shared: &Arc<Shared>, client: TcpStream) {
    if shared.state().closed_until > now() {
        return;
    }
    // A database that is down is a connection that ends at once.
    let Ok(server) = UnixStream::connect(&shared.upstream) else {
        return;
    };
    drop(client.set_nodelay(true));
    let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let id = {
        let mut state = shared.state();
        state.next += 1;
        let id = state.next;
        state.lines.insert(id, Line { client, server });
        id
    };
    let awaited = Arc::new(AtomicU8::new(NONE));
    let (there, waits) = (shared.clone(), awaited.clone());
    std::thread::spawn(move || {
        send(&there, id, &waits, from_client, to_server);
        there.cut(id);
    });
    let there = shared.clone();
    std::thread::spawn(move || {
        answer(&there, id, &awaited, from_server, to_client);
        there.cut(id);
    });
}

/// From the client to the server.
fn send(shared: &Shared, id: u64, awaited: &AtomicU8, mut from: TcpStream, mut to: UnixStream) {
    let mut buffer = vec![0; 65536];
    while let Some(message) = next(shared, &mut from, &mut buffer) {
        let sprung = shared.spring(|trap| match trap {
            Trap::HalfSent => message.len() > 8,
            Trap::HalfAnswered => false,
            Trap::Append => contains(message, b"step."),
            Trap::Commit => contains(message, b"COMMIT\0"),
        });
        let message = match sprung {
            Some(Trap::HalfSent) => {
                drop(to.write_all(message.split_at(message.len() / 2).0));
                return shared.cut(id);
            }
            Some(Trap::Append) if contains(message, b"COMMIT\0") => {
                awaited.store(COMMITTED, Ordering::SeqCst);
                message
            }
            Some(Trap::Append) => {
                awaited.store(ANY, Ordering::SeqCst);
                message
            }
            Some(Trap::Commit) => {
                awaited.store(COMMITTED, Ordering::SeqCst);
                message
            }
            Some(Trap::HalfAnswered) | None => message,
        };
        if to.write_all(message).is_err() {
            return;
        }
    }
}

/// From the server to the client.
fn answer(shared: &Shared, id: u64, awaited: &AtomicU8, mut from: UnixStream, mut to: TcpStream) {
    let mut buffer = vec![0; 65536];
    while let Some(message) = next(shared, &mut from, &mut buffer) {
        match awaited.load(Ordering::SeqCst) {
            NONE => {}
            COMMITTED if !contains(message, b"COMMIT\0") => continue,
            _ => return shared.cut(id),
        }
        if shared
            .spring(|trap| trap == Trap::HalfAnswered && message.len() > 8)
            .is_some()
        {
            drop(to.write_all(message.split_at(message.len() / 2).0));
            return shared.cut(id);
        }
        if to.write_all(message).is_err() {
            return;
        }
    }
}

fn next<'b>(shared: &Shared, from: &mut impl Read, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let read = from.read(buffer).ok().filter(|read| *read > 0)?;
    shared.wait_while_held();
    buffer.get(..read)
}

fn contains(message: &[u8], part: &[u8]) -> bool {
    message.windows(part.len()).any(|window| window == part)
}
