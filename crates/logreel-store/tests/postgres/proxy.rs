//! A proxy between a store and the server, which loses what it is told to lose.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use logreel_store::{Env, SystemEnv};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_postgres::config::Host;

use crate::world::server;

pub const OPEN: u8 = 0;
/// Every connection ends, and new ones do too.
pub const CUT: u8 = 1;
/// The next answer does not come through: its connection ends instead.
pub const LOSE: u8 = 2;
/// The same, for the next COMMIT: it reaches the server, and the answer does not come through.
pub const LOSE_COMMIT: u8 = 3;
/// The next COMMIT does not reach the server: its connection ends instead.
pub const STOP_COMMIT: u8 = 4;

/// Bytes of an answer that is long.
const LONG: usize = 32 * 1024;

/// Between a store and the server.
pub struct Proxy {
    pub url: String,
    mode: Arc<tokio::sync::watch::Sender<u8>>,
    lose: Arc<AtomicU8>,
    answers: Arc<AtomicU64>,
    slow: Arc<AtomicU64>,
}

impl Proxy {
    /// How often the server was ready for the next question: every round trip ends so.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// A long answer takes this much longer.
    pub fn slow_down(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap();
        self.slow.store(millis, Ordering::SeqCst);
    }

    pub async fn start() -> Self {
        let config: tokio_postgres::Config = server().parse().expect("a URL");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (user, database) = (config.get_user(), config.get_dbname());
        let url = format!(
            "postgres://{}@127.0.0.1:{port}/{}?sslmode=disable",
            user.unwrap_or("postgres"),
            database.unwrap_or("postgres"),
        );
        let mode = Arc::new(tokio::sync::watch::Sender::new(OPEN));
        let lose = Arc::new(AtomicU8::new(OPEN));
        let answers = Arc::new(AtomicU64::new(0));
        let slow = Arc::new(AtomicU64::new(0));
        let (modes, losing, answered) = (mode.clone(), lose.clone(), answers.clone());
        let slowed = slow.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *modes.borrow() == CUT {
                    continue;
                }
                let (modes, losing, config) = (modes.subscribe(), losing.clone(), config.clone());
                let back = (answered.clone(), slowed.clone());
                tokio::spawn(async move {
                    let port = config.get_ports().first().copied().unwrap_or(5432);
                    match &config.get_hosts()[0] {
                        Host::Tcp(host) => {
                            let server = TcpStream::connect((host.as_str(), port)).await.unwrap();
                            pass(client, server, modes, losing, back).await;
                        }
                        Host::Unix(folder) => {
                            let socket: PathBuf = folder.join(format!(".s.PGSQL.{port}"));
                            let server = UnixStream::connect(socket).await.unwrap();
                            pass(client, server, modes, losing, back).await;
                        }
                    }
                });
            }
        });
        Self {
            url,
            mode,
            lose,
            answers,
            slow,
        }
    }

    pub fn set(&self, mode: u8) {
        match mode {
            LOSE | LOSE_COMMIT | STOP_COMMIT => self.lose.store(mode, Ordering::SeqCst),
            mode => drop(self.mode.send_replace(mode)),
        }
    }
}

/// Takes whole messages out, and counts those that end an answer.
fn ready_for_query(messages: &mut Vec<u8>) -> u64 {
    let mut found = 0;
    // A letter, and the length of itself and what follows.
    while let [kind, a, b, c, d, ..] = messages[..] {
        let whole = 1 + u32::from_be_bytes([a, b, c, d]) as usize;
        if messages.len() < whole {
            break;
        }
        found += u64::from(kind == b'Z');
        messages.drain(..whole);
    }
    found
}

async fn pass(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite + Send,
    mut modes: tokio::sync::watch::Receiver<u8>,
    losing: Arc<AtomicU8>,
    (answered, slow): (Arc<AtomicU64>, Arc<AtomicU64>),
) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = tokio::io::split(server);
    let there = async {
        let mut buffer = [0; 8192];
        loop {
            let read = client_read.read(&mut buffer).await.unwrap_or(0);
            let sent = &buffer[..read];
            if sent.windows(7).any(|words| words == b"COMMIT\0") {
                let take = |mode, next| {
                    let order = Ordering::SeqCst;
                    losing.compare_exchange(mode, next, order, order).is_ok()
                };
                if take(STOP_COMMIT, OPEN) {
                    return;
                }
                // What comes back on any connection is lost: nobody else uses one meanwhile.
                take(LOSE_COMMIT, LOSE);
            }
            if read == 0 || server_write.write_all(sent).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut buffer = [0; 8192];
        let (mut messages, mut length) = (Vec::new(), 0);
        loop {
            let read = server_read.read(&mut buffer).await.unwrap_or(0);
            let order = Ordering::SeqCst;
            if read == 0 || losing.compare_exchange(LOSE, OPEN, order, order).is_ok() {
                return;
            }
            messages.extend_from_slice(&buffer[..read]);
            let ready = ready_for_query(&mut messages);
            answered.fetch_add(ready, Ordering::SeqCst);
            length += read;
            if ready > 0 {
                if length > LONG {
                    let millis = slow.load(Ordering::SeqCst);
                    SystemEnv.sleep(Duration::from_millis(millis)).await;
                }
                length = 0;
            }
            if client_write.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let cut = async { modes.wait_for(|mode| *mode == CUT).await.is_ok() };
    tokio::select! {
        () = there => {}
        () = back => {}
        _ = cut => {}
    }
}
