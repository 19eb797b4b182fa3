//! What the bench runs as a process of its own: this binary again.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;
use logreel::{Ctx, Engine, RunId, Seq};

use crate::cancel::cancel_all;
use crate::measure::now;
use crate::serve;
use crate::step::step;
use crate::tail::follow;

#[derive(Subcommand)]
pub enum What {
    /// Follows a run and prints when each event was seen.
    Follow {
        store: PathBuf,
        run: RunId,
        from: u64,
        events: usize,
    },
    /// Opens a store, starts a run and prints when its first event was durable.
    Open { store: PathBuf },
    /// Cancels runs and prints how long each took.
    Cancel { store: PathBuf, runs: Vec<RunId> },
    /// A run of this many steps, to be counted by strace.
    Steps { store: PathBuf, steps: u64 },
    /// Serves a store with this many runs, and one of this many events that waits for a word.
    Serve {
        store: PathBuf,
        listed: usize,
        events: usize,
    },
}

/// This binary, told to be a child.
pub fn command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").args(args);
    Ok(command)
}

pub async fn run(what: What) -> Result<()> {
    match what {
        What::Follow {
            store,
            run,
            from,
            events,
        } => {
            let engine = Engine::open(store).await?;
            for seen in follow(engine.run(run), Seq(from), events).await? {
                println!("{}", seen.as_nanos());
            }
            engine.close().await?;
        }
        What::Open { store } => {
            let engine = Engine::open(store).await?;
            let task = engine.task("open", |_: Ctx, (): ()| async { Ok(()) });
            let run = task.start(&()).await?;
            println!("{}", now().as_nanos());
            run.wait().await?;
            engine.close().await?;
        }
        What::Cancel { store, runs } => {
            let engine = Engine::open(store).await?;
            for took in cancel_all(&engine, &runs).await?.iter() {
                println!("{}", took.as_nanos());
            }
            engine.close().await?;
        }
        What::Steps { store, steps } => {
            let engine = Engine::open(store).await?;
            let task = engine.task("steps", move |ctx: Ctx, (): ()| async move {
                for n in 0..steps {
                    step(&ctx, n).await?;
                }
                Ok(())
            });
            task.start(&()).await?.wait().await?;
            engine.close().await?;
        }
        What::Serve {
            store,
            listed,
            events,
        } => serve::server(&store, listed, events).await?,
    }
    Ok(())
}

/// The times a child printed.
pub fn times(output: &[u8]) -> Result<Vec<Duration>> {
    std::str::from_utf8(output)?
        .lines()
        .map(|line| {
            let nanos = line.parse().with_context(|| format!("no time: {line}"))?;
            Ok(Duration::from_nanos(nanos))
        })
        .collect()
}
