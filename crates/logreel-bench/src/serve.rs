//! The server: a thousand who watch one run, and the list of runs, beside a bare axum handler of the same
//! process.
//!
//! The server is a process of its own, so that its memory is its own. It is loaded by `wrk`, which is not
//! measured where it is not installed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::routing::get;
use logreel::{Ctx, Engine, Env as _, RunId, Timestamp};
use logreel_server::Server;
use logreel_store::SystemEnv;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinSet;

use crate::child;
use crate::measure::{Figure, Metric, Params, Row, Samples, rows};
use crate::place::Place;

/// Events of the watched run in a second.
const PACE: usize = 100;
/// Runs in the list.
const LISTED: usize = 1000;
/// Connections of `wrk`.
const CALLERS: usize = 32;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let watchers = place.size(1000, 20);
    let seconds = place.size(60, 1);
    let events = seconds * PACE;
    raise_open_files()?;
    let mut server = Process::start(&place.file("serve.db"), place.size(LISTED, 20), events)?;
    let seen = watch(&mut server, watchers, events).await?;

    let watched = Params {
        runs: 1,
        events: seen.len(),
        payload_bytes: 0,
    };
    let case = format!("{watchers} watch");
    let mut p50 = Figure::new("serve", &case, Metric::P50Us, watched);
    let mut p99 = Figure::new("serve", &case, Metric::P99Us, watched);
    let mut memory = Figure::new("serve", "memory at most", Metric::Mib, watched);
    p50.round(seen.p50(), None);
    p99.round(seen.p99(), None);
    memory.round(server.peak_mib()?, None);
    let mut figures = vec![p50, p99, memory];
    match has_wrk() {
        true => figures.extend(load(&server, place)?),
        false => eprintln!("serve: the list of runs is not measured: `wrk` is not installed"),
    }
    drop(server);
    rows(figures)
}

/// The server, in its process.
struct Process {
    child: Child,
    stdin: ChildStdin,
    address: SocketAddr,
    bare: SocketAddr,
    run: RunId,
}

impl Process {
    fn start(store: &Path, listed: usize, events: usize) -> Result<Self> {
        let store = store.to_str().context("the path is no text")?;
        let mut child = child::command(&["serve", store, &listed.to_string()])?
            .arg(events.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("a pipe")?;
        let mut stdout: BufReader<ChildStdout> =
            BufReader::new(child.stdout.take().context("a pipe")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let words: Vec<_> = line.split_whitespace().collect();
        let [address, bare, run] = words.as_slice() else {
            bail!("the server did not start: {line:?}");
        };
        Ok(Self {
            address: address.parse()?,
            bare: bare.parse()?,
            run: run.parse()?,
            child,
            stdin,
        })
    }

    /// The watched run begins.
    fn go(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"go\n")?)
    }

    fn peak_mib(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no VmHWM")?.parse::<f64>()? / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("serve: the server was not stopped: {error}");
        }
    }
}

/// What [`Process`] runs.
pub async fn server(store: &Path, listed: usize, events: usize) -> Result<()> {
    raise_open_files()?;
    let engine = Engine::open(store).await?;
    let nothing = engine.task("nothing", |_: Ctx, (): ()| async { Ok(()) });
    for _ in 0..listed {
        nothing.start(&()).await?.wait().await?;
    }
    let go = Arc::new(Notify::new());
    let started = Arc::clone(&go);
    let ticks = engine.task("ticks", move |ctx: Ctx, (): ()| {
        let started = Arc::clone(&started);
        async move {
            started.notified().await;
            let began = SystemEnv.monotonic();
            for n in 1..=events {
                ctx.emit("tick", &n).await?;
                let due = Duration::from_secs(1) / PACE as u32 * u32::try_from(n)?;
                let ahead = (began + due).saturating_sub(SystemEnv.monotonic());
                SystemEnv.sleep(ahead).await;
            }
            Ok(())
        }
    });
    let run = ticks.start(&()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let bare = TcpListener::bind("127.0.0.1:0").await?;
    println!(
        "{} {} {}",
        listener.local_addr()?,
        bare.local_addr()?,
        run.id()
    );
    let hello = Router::new().route("/", get(|| async { "hello" }));
    let server = Server::new(&engine);
    let told = async {
        let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
        while lines.next_line().await?.is_some() {
            go.notify_one();
        }
        anyhow::Ok(())
    };
    tokio::select! {
        () = logreel_server::listen(&server, &engine, listener, std::future::pending()) => {}
        served = axum::serve(bare, hello) => served?,
        told = told => told?,
    }
    Ok(engine.close().await?)
}

/// The delays from the events to those who watch, all of whom must see every event once, in order.
async fn watch(server: &mut Process, watchers: usize, events: usize) -> Result<Samples> {
    let ready = Arc::new(Barrier::new(watchers + 1));
    let mut tasks = JoinSet::new();
    for _ in 0..watchers {
        tasks.spawn(follow(server.address, server.run, Arc::clone(&ready)));
    }
    tokio::select! {
        _ = ready.wait() => server.go()?,
        Some(ended) = tasks.join_next() => bail!("a watcher ended early: {:?}", ended?.map(drop)),
    }
    let mut seen = Samples::default();
    while let Some(done) = tasks.join_next().await {
        let delays = done??;
        ensure!(
            delays.len() == events,
            "{} of {events} were seen",
            delays.len()
        );
        seen.append(delays);
    }
    Ok(seen)
}

/// Follows the run to its end: the delay of each tick.
async fn follow(address: SocketAddr, run: RunId, ready: Arc<Barrier>) -> Result<Samples> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET /v1/runs/{run}/events HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    // Lines are enough to read the chunks by: each holds whole ones.
    let mut lines = tokio::io::BufReader::new(stream).lines();
    let (mut last, mut delays, mut greeted) = (0, Samples::default(), false);
    while let Some(line) = lines.next_line().await? {
        if let Some(seq) = line.strip_prefix("id: ") {
            let seq: u64 = seq.parse()?;
            ensure!(seq == last + 1, "event {seq} came after {last}");
            last = seq;
        } else if let Some(json) = line.strip_prefix("data: ") {
            let now = SystemEnv.now();
            if json.contains(r#""kind":"custom""#) {
                delays.add(now.since(at(json)?));
            }
        }
        // The run has started, and does nothing before all are here.
        if last == 1 && !std::mem::replace(&mut greeted, true) {
            ready.wait().await;
        }
    }
    Ok(delays)
}

/// When an event was appended.
fn at(json: &str) -> Result<Timestamp> {
    let (_, at) = json
        .split_once(r#""at":""#)
        .context("an event has a time")?;
    let (at, _) = at.split_once('"').context("a time ends")?;
    at.parse().map_err(|error| anyhow::anyhow!("{at}: {error}"))
}

fn has_wrk() -> bool {
    Command::new("wrk").arg("-v").output().is_ok()
}

/// The list of runs beside the bare handler: requests in a second, and the slowest of a hundred.
fn load(server: &Process, place: &Place) -> Result<[Figure; 2]> {
    let params = Params {
        runs: LISTED,
        events: 0,
        payload_bytes: 0,
    };
    let mut rate = Figure::new("serve", "list of runs", Metric::PerS, params);
    let mut p99 = Figure::new("serve", "list of runs", Metric::P99Us, params);
    let seconds = place.size(5, 1);
    for _ in 0..place.rounds() {
        let ours = wrk(&format!("http://{}/v1/runs", server.address), seconds)?;
        let bare = wrk(&format!("http://{}/", server.bare), seconds)?;
        rate.round(ours.per_s, Some(bare.per_s));
        p99.round(ours.p99_us, Some(bare.p99_us));
    }
    Ok([rate, p99])
}

struct Loaded {
    per_s: f64,
    p99_us: f64,
}

fn wrk(url: &str, seconds: usize) -> Result<Loaded> {
    let output = Command::new("wrk")
        .args([
            "-t1",
            &format!("-c{CALLERS}"),
            &format!("-d{seconds}s"),
            "--latency",
            url,
        ])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(!said.contains("Non-2xx"), "{said}");
    let after = |mark: &str| {
        let found = said.lines().find_map(|line| line.trim().strip_prefix(mark));
        found
            .map(str::trim)
            .with_context(|| format!("no {mark} in {said}"))
    };
    Ok(Loaded {
        per_s: after("Requests/sec:")?.parse()?,
        p99_us: micros(after("99%")?)?,
    })
}

/// `1.23ms`, `456.00us` or `1.02s`.
fn micros(text: &str) -> Result<f64> {
    let unit = text
        .find(|c: char| c.is_ascii_alphabetic())
        .context("a unit")?;
    let (number, unit) = text.split_at(unit);
    let scale = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        other => bail!("{other} is no unit"),
    };
    Ok(number.parse::<f64>()? * scale)
}

/// A watcher is a file on both sides.
fn raise_open_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
