//! Where runs are asked for: over HTTP of a server of the fleet, or with the program beside a worker.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::clock::{millis, now, pause, wall_micros};
use crate::dice::Dice;
use crate::fleet::Host;
use crate::yard::Yard;

/// How long an answer may take: longer than any freeze of a server.
const PATIENCE: Duration = Duration::from_secs(20);

pub enum Door<'d> {
    /// `logreel serve` on this port.
    Server(u16),
    /// `logreel run --detach` on a host that has a worker.
    Program { store: String, host: &'d Host },
}

/// A port that is free for now, and for as long as its server is down: no connection is given one of these as its own.
pub fn free_port() -> Result<u16> {
    let mut dice = Dice::new(wall_micros().unsigned_abs() ^ u64::from(std::process::id()));
    for _ in 0..100 {
        let port = 20_000 + u16::try_from(dice.below(10_000))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from 20000 to 30000 is free")
}

impl Door<'_> {
    /// Asks once for a run of `SPEC.toml`; its id when the start is acknowledged.
    pub fn start(&self, yard: &Yard, key: &str, spec: &str) -> Result<String> {
        match self {
            Self::Server(port) => {
                let body = json!({ "spec": spec, "key": key, "input": "hello" });
                let answer = post(*port, "/v1/runs", &body)?;
                let id = answer["id"].as_str().context("an answer without an id")?;
                Ok(id.to_owned())
            }
            Self::Program { store, host } => {
                let file = format!("{spec}.toml");
                let args = ["-q", "run", "--detach", "--key", key, &file, "hello"];
                let mut command = yard.command(store, &args);
                command.env("XDG_RUNTIME_DIR", host.runtime());
                let child = command
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()?;
                let said = within(child, PATIENCE)?;
                let err = String::from_utf8_lossy(&said.stderr);
                ensure!(said.status.success(), "{}: {}", said.status, err.trim());
                Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
            }
        }
    }
}

/// Its output; killed when it takes longer, which shows as a failure of it.
fn within(mut child: std::process::Child, longest: Duration) -> Result<Output> {
    let begun = now();
    while child.try_wait()?.is_none() {
        if now() - begun > longest {
            child.kill()?;
        }
        pause(millis(5));
    }
    Ok(child.wait_with_output()?)
}

/// What became of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// It does not apply to the run as it is.
    Refused,
}

/// Tells a run something; sent again under the same key it is done once.
pub fn tell(port: u16, run: &str, what: &str, key: &str) -> Result<Answer> {
    let path = format!("/v1/runs/{run}/{what}");
    let (status, body) = send(port, &path, &format!("Idempotency-Key: {key}\r\n"), "{}")?;
    match status.as_str() {
        "200" => Ok(Answer::Done),
        "409" => Ok(Answer::Refused),
        _ => Err(denied(&status, &body)),
    }
}

/// What the server answers, if it says yes.
pub fn post(port: u16, path: &str, body: &Value) -> Result<Value> {
    let (status, body) = send(port, path, "", &body.to_string())?;
    if !status.starts_with('2') {
        return Err(denied(&status, &body));
    }
    Ok(serde_json::from_str(&body)?)
}

/// An answer that no weather explains: no server, half an answer and a store that is away are asked again.
#[derive(Debug)]
pub struct Unexpected(String);

impl std::fmt::Display for Unexpected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unexpected {}

fn denied(status: &str, body: &str) -> anyhow::Error {
    let what = format!("{status}: {body}");
    match status {
        "503" => anyhow::Error::msg(what),
        _ => Unexpected(what).into(),
    }
}

/// The status and the body of an answer.
fn send(port: u16, path: &str, header: &str, body: &str) -> Result<(String, String)> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Of the oldest sort, so that the answer ends with the connection.
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n{header}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    Ok((status.to_owned(), body.to_owned()))
}
