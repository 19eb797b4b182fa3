//! Real `logreel` processes on a real PostgreSQL, disturbed on purpose. It knows the program by its command
//! line and the database by its tables, and nothing of the code of either.
//!
//! Reading order: [`yard`] (the folder of an experiment and the programs in it), [`fleet`] (hosts and
//! workers), [`door`], [`database`], [`proxy`], [`ledger`] (where effects are counted), [`witness`] (what was
//! acknowledged to whom), [`judge`] and [`evidence`] (what must be true in the end), [`errand`] (what runs do), then one file per experiment:
//! [`storm`], [`failover`], [`standby`], [`frozen`].

mod clock;
mod database;
mod dice;
mod door;
mod errand;
mod evidence;
mod failover;
mod fleet;
mod frozen;
mod judge;
mod ledger;
mod proxy;
mod report;
mod standby;
mod storm;
mod witness;
mod yard;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Disturbs a fleet of Logreel workers and looks whether anything was lost or done twice.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    what: What,
}

/// What every experiment takes.
#[derive(clap::Args, Clone)]
struct Common {
    /// The program under test; the one beside this program when nothing is said.
    #[arg(long, global = true)]
    logreel: Option<PathBuf>,
    /// Where chance begins; drawn and printed when nothing is said.
    #[arg(long, global = true)]
    seed: Option<u64>,
    /// Keep the folder also when all went well.
    #[arg(long, global = true)]
    keep: bool,
}

#[derive(Subcommand)]
enum What {
    /// Workers are killed and frozen, the database crashes, connections are cut, for minutes.
    Storm(storm::Args),
    /// How long it takes until another worker goes on with the runs of one that was killed.
    Failover(failover::Args),
    /// The primary is killed and its synchronous standby promoted in the middle of work.
    Standby(standby::Args),
    /// A worker is frozen past its lease and woken again.
    Frozen(frozen::Args),
    /// Counts effects by key, as a process of its own.
    #[command(hide = true)]
    Ledger(ledger::Args),
    /// The first process of a host: it collects what is orphaned there.
    #[command(hide = true)]
    Host,
}

fn main() -> ExitCode {
    // The client of the ledger is started thousands of times: nothing comes before it.
    if let Some(code) = ledger::client() {
        return code;
    }
    let args = Args::parse();
    let done: Result<bool> = match args.what {
        What::Storm(own) => storm::run(&args.common, &own),
        What::Failover(own) => failover::run(&args.common, &own),
        What::Standby(own) => standby::run(&args.common, &own),
        What::Frozen(own) => frozen::run(&args.common, &own),
        What::Ledger(own) => ledger::serve(&own).map(|()| true),
        What::Host => fleet::first_process().map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("logreel-chaos: {error:#}");
            ExitCode::from(2)
        }
    }
}
