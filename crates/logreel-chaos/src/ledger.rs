//! Where effects are counted: a process of its own that nobody kills, and the client that steps run.
//!
//! It takes one connection after the other, in the order in which they were made: whoever asks whether a
//! key was paid asks after everything that a client sent before it was killed.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::clock::{millis, now, pause, wall_micros};

/// Where clients find it, in their environment.
pub const SOCKET: &str = "CHAOS_LEDGER";
/// Whose command it is, in the environment of a worker.
pub const WORKER: &str = "CHAOS_WORKER";
/// How `reconcile` says that a write was surely not done.
const NOT_DONE: u8 = 10;
/// Set where whoever asks is always told that nothing was paid.
pub const FORGETS: &str = "CHAOS_FORGETS";

#[derive(clap::Args)]
pub struct Args {
    socket: PathBuf,
    book: PathBuf,
}

/// An effect, as the ledger saw it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub at: Duration,
    /// The same as microseconds since 1970, as the database has them.
    pub wall: i64,
    /// What an interruption means for it: `write`, `idempotent`, `read`.
    pub effect: String,
    pub key: String,
    pub run: String,
    pub step: String,
    pub worker: String,
}

/// Everything in the book, in order; and how often it was asked about a key.
pub fn read(book: &Path) -> Result<(Vec<Entry>, usize)> {
    let text = std::fs::read_to_string(book)?;
    let (mut entries, mut asked) = (Vec::new(), 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            [_, _, "ask", ..] => asked += 1,
            [at, wall, effect, key, run, step, worker] => entries.push(Entry {
                at: Duration::from_micros(at.parse()?),
                wall: wall.parse()?,
                effect: (*effect).to_owned(),
                key: (*key).to_owned(),
                run: (*run).to_owned(),
                step: (*step).to_owned(),
                worker: (*worker).to_owned(),
            }),
            _ => anyhow::bail!("a line of the ledger is not understood: {line}"),
        }
    }
    Ok((entries, asked))
}

pub fn serve(args: &Args) -> Result<()> {
    let mut book = std::fs::File::create(&args.book)?;
    let listener = UnixListener::bind(&args.socket)?;
    let mut paid: HashMap<String, u32> = HashMap::new();
    for client in listener.incoming() {
        let mut client = client?;
        client.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut line = String::new();
        // One that was killed before it had said all has said nothing.
        if BufReader::new(&client).read_line(&mut line).is_err() || !line.ends_with('\n') {
            continue;
        }
        let mut words = line.split_whitespace();
        let (effect, key) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let answer = match effect {
            "ask" if paid.contains_key(key) => "done\n",
            "ask" => "none\n",
            _ => {
                *paid.entry(key.to_owned()).or_default() += 1;
                "done\n"
            }
        };
        let (at, wall) = (now().as_micros(), wall_micros());
        book.write_all(format!("{at} {wall} {}\n", line.trim_end()).as_bytes())?;
        // It may be gone by now, as clients are.
        drop(client.write_all(answer.as_bytes()));
    }
    Ok(())
}

/// What the commands of steps run: `pay EFFECT` has an effect, `ask` says whether it was had.
pub fn client() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    let verb = args.next()?;
    if verb != "pay" && verb != "ask" {
        return None;
    }
    let effect = match verb.as_str() {
        "ask" => verb,
        _ => args.next()?,
    };
    let forgets = effect == "ask" && std::env::var_os(FORGETS).is_some();
    Some(match say(&effect) {
        Ok(_) if forgets => ExitCode::from(NOT_DONE),
        Ok(answer) if answer.starts_with("done") => {
            // The same for every run and every attempt: a run's end does not tell how it was disturbed.
            println!("receipt");
            ExitCode::SUCCESS
        }
        Ok(answer) if answer.starts_with("none") => ExitCode::from(NOT_DONE),
        Ok(answer) => {
            eprintln!("the ledger said {answer:?}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn say(effect: &str) -> Result<String> {
    let get = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let key = get("LOGREEL_KEY")?;
    let run = get("LOGREEL_RUN")?;
    let line = format!(
        "{effect} {key} {run} {} {}\n",
        get("LOGREEL_STEP")?,
        get(WORKER)?
    );
    // A moment before and one after: that is when most of what may go wrong does.
    let chance = u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if effect != "ask" {
        pause(millis(chance % 13));
    }
    let mut stream = UnixStream::connect(get(SOCKET)?)?;
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if effect != "ask" {
        pause(millis(chance / 13 % 13));
        // Where it is to be seen that a write comes twice, many must be interrupted once they have happened.
        if std::env::var_os(FORGETS).is_some() {
            pause(millis(150));
        }
    }
    Ok(answer)
}
