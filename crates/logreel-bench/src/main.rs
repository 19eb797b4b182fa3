//! Logreel's figures: each one measured beside its reference, in one process, on one file system.
//!
//! Reading order: [`measure`] (rounds, rows, table), [`bare`] (the reference), [`work`] (payload and
//! a driver on a bare store), then one file per bench. [`child`] is what the bench runs as a process
//! of its own.

mod append;
mod bare;
mod cancel;
mod child;
mod concurrent;
mod fold;
mod fork;
mod growth;
mod list;
mod measure;
mod open;
mod place;
mod postgres;
mod postgres_list;
mod record;
mod resume;
mod row;
mod serve;
mod server;
mod step;
mod tail;
mod transcript;
mod work;
mod workflow;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

use crate::measure::Row;
use crate::place::Place;

/// Measures Logreel beside a bare file. Give it a real-time priority when the machine is busy:
/// `chrt -r 1 logreel-bench`.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Which benches, in this order; all of them when none is named.
    #[arg(value_enum)]
    benches: Vec<Bench>,
    /// Prints a JSON line per figure instead of the table.
    #[arg(long)]
    json: bool,
    /// Few events and one round: shows that it works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Where the files go; a temporary folder under ./target when nothing is said.
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Subcommand)]
enum Child {
    /// What the bench runs as another process.
    #[command(hide = true)]
    Child {
        #[command(subcommand)]
        what: child::What,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// A durable append, one event at a time.
    Append,
    /// A durable step through the engine.
    Step,
    /// 64 runs at once.
    Concurrent,
    /// The same with and without the row of each run.
    Row,
    /// Time and bytes of a run that grows.
    Growth,
    /// Folding a log, decoded and from the store.
    Fold,
    /// Listing and searching 100,000 runs.
    List,
    /// From an append to whoever follows the run.
    Tail,
    /// From the start of a process to its first durable event.
    Open,
    /// From a resume to the next action.
    Resume,
    /// A fork of a long run near its end.
    Fork,
    /// A cancel from another process beside a busy writer.
    Cancel,
    /// Workflows whose steps do nothing.
    Workflow,
    /// Bytes and time of a conversation of 200 turns.
    Transcript,
    /// A thousand who watch a run over HTTP, and the list of runs under load.
    Serve,
    /// A recorded program that prints 100 MB.
    Record,
    /// Durable steps on PostgreSQL, beside a bare INSERT.
    Postgres,
    /// Listing and searching a million runs on PostgreSQL.
    PostgresList,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if let Some(Child::Child { what }) = args.child {
        return runtime.block_on(child::run(what));
    }
    let place = Place::find(args.dir, args.quick)?;
    if args.json {
        eprintln!("{place}");
    } else {
        println!("{place}");
    }
    let benches = match args.benches.as_slice() {
        [] => Bench::value_variants(),
        named => named,
    };
    let mut rows = Vec::new();
    for bench in benches {
        let found = runtime.block_on(run(*bench, place.clone()))?;
        if args.json {
            for row in &found {
                println!("{}", serde_json::to_string(row)?);
            }
        }
        rows.extend(found);
    }
    if !args.json {
        println!("{}", measure::table(&rows));
    }
    Ok(())
}

async fn run(bench: Bench, place: Place) -> Result<Vec<Row>> {
    // On a worker, not on the thread that blocks on the runtime: there every wake is a futex.
    let measured = tokio::spawn(async move {
        match bench {
            Bench::Append => append::bench(&place).await,
            Bench::Step => step::bench(&place).await,
            Bench::Concurrent => concurrent::bench(&place).await,
            Bench::Row => row::bench(&place).await,
            Bench::Growth => growth::bench(&place).await,
            Bench::Fold => fold::bench(&place).await,
            Bench::List => list::bench(&place).await,
            Bench::Tail => tail::bench(&place).await,
            Bench::Open => open::bench(&place).await,
            Bench::Resume => resume::bench(&place).await,
            Bench::Fork => fork::bench(&place).await,
            Bench::Cancel => cancel::bench(&place).await,
            Bench::Workflow => workflow::bench(&place).await,
            Bench::Transcript => transcript::bench(&place).await,
            Bench::Serve => serve::bench(&place).await,
            Bench::Record => record::bench(&place),
            Bench::Postgres => postgres::bench(&place).await,
            Bench::PostgresList => postgres_list::bench(&place).await,
        }
    });
    measured.await?
}
