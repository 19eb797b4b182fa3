//! What can be said on the command line.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

use crate::{backup, cancel, completions, log, ls, pause, sessions, show, verify, wait};

const EXAMPLES: &str = "\
Naming a run:
  its id, a unique prefix, the last 8 digits that `ls` prints, @last, @last-1

Examples:
  logreel ls --status failed --since 2d   what failed in the last two days
  logreel show @last                      the newest run at a glance
  logreel log @last --follow              watch it, whoever drives it
  logreel wait @last && ./deploy          go on once it has completed
  logreel ls --json | jq '.items[].id'    every verb has --json

Exit codes:
  0 done   1 the run failed, or a check did not hold   2 usage, unknown run
  3 waits for someone   4 store   5 refused   124 out of time   130 cancelled";

/// Durable runs for AI agents: list, watch, check and stop them
#[derive(Parser)]
#[command(
    name = "logreel",
    version,
    after_help = EXAMPLES,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Global {
    /// Where the runs are: PATH or sqlite:PATH [default: the nearest .logreel/runs.db upward]
    #[arg(
        long,
        global = true,
        value_name = "STORE",
        env = "LOGREEL_STORE",
        hide_env_values = true
    )]
    pub store: Option<OsString>,

    /// Print JSON; errors too, on stderr
    #[arg(long, global = true)]
    pub json: bool,

    /// No notes on stderr, only errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

#[derive(Subcommand)]
pub enum Verb {
    /// List runs, newest first
    Ls(ls::Args),
    /// Show a run: status, waits, steps, timeline, cost
    Show(show::Args),
    /// Print a run's events, and follow them live
    Log(log::Args),
    /// Wait until runs have ended, or need a person
    Wait(wait::Args),
    /// End a run now, and its children
    Cancel(cancel::Args),
    /// Stop a run's work until someone resumes it
    Pause(pause::Args),
    /// Check that logs and rows are what they must be
    Verify(verify::Args),
    /// List sessions, or close one
    Sessions(sessions::Args),
    /// Count what is in the store
    Stats,
    /// Look the store over: file, disk, settings, damage, drivers
    Doctor,
    /// Copy the store to a new file while others write it
    Backup(backup::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}
