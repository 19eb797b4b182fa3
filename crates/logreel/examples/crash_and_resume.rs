//! Crash and resume: a process dies of `kill -9` after three of five steps, another one goes on.
//!
//!     cargo run -p logreel --example crash_and_resume

use std::path::Path;
use std::process::Command;

use logreel::{Ctx, Engine, Outcome, TaskError};
use rustix::process::{Signal, getpid, kill_process};

type Done = Result<(), Box<dyn std::error::Error>>;

/// An expensive step: you would not want to pay for it twice.
fn square(n: u64) -> u64 {
    println!("    step {n} computes {n} x {n}");
    n * n
}

/// Both processes run this very code; only the first dies in the middle of it.
async fn work(store: &Path, dies: bool) -> Done {
    let engine = Engine::open(store).await?;
    let squares = engine.task("squares", move |ctx: Ctx, last: u64| async move {
        let mut squares = Vec::new();
        for n in 1..=last {
            let compute = || async move { Ok::<_, TaskError>(square(n)) };
            squares.push(ctx.step(("square", n)).run(compute).await?);
            if dies && n == 3 {
                println!("    .. and this process kills itself, with kill -9");
                kill_process(getpid(), Signal::KILL)?;
            }
        }
        Ok(squares)
    });
    // The same key: the second process finds the run that the first one left behind.
    let run = squares.start(&5).key("squares-to-5").await?;
    match run.wait().await? {
        Outcome::Completed(squares) => println!("    done: {squares:?}"),
        other => println!("    it ended otherwise: {other:?}"),
    }
    Ok(engine.close().await?)
}

#[tokio::main]
async fn main() -> Done {
    if let Some(store) = std::env::args().nth(1) {
        return work(Path::new(&store), true).await;
    }
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("runs.db");

    println!("A first process starts the run:");
    let mut first = Command::new(std::env::current_exe()?);
    let status = first.arg(&store).status()?;
    println!("    how it ended, says the system: {status}\n");

    println!("This process resumes it. Steps 1 to 3 come from the log:");
    work(&store, false).await
}
