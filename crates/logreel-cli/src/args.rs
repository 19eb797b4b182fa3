//! What can be said on the command line.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

use crate::{
    answer, backup, cancel, check, completions, detach, diff, erase, export, fork, import, log, ls,
    migrate, pause, prune, record, replay, resolve, resume, retry, run, say, serve, sessions, show,
    signal, token, verify, wait, worker,
};

const EXAMPLES: &str = "\
Naming a run:
  its id, a unique prefix, the last 8 digits that `ls` prints, @last, @last-1

Examples:
  logreel init                            a store and a first workflow to run
  logreel run audit.toml                  run a workflow, watch it, print its output
  logreel resume @last                    go on after Ctrl-C, a crash or a reboot
  logreel answer @last --approve --resume say yes to a run that waits, and go on
  logreel ls --status failed --since 2d   what failed in the last two days
  logreel show @last                      the newest run at a glance
  logreel log @last --follow              watch it, whoever drives it
  logreel wait @last && ./deploy          go on once it has completed
  logreel ls --json | jq '.items[].id'    every verb has --json

Exit codes:
  0 done   1 the run failed, or a check did not hold   2 usage, unknown run
  3 waits for someone   4 store   5 refused   124 out of time
  130 cancelled, or paused by Ctrl-C   143 SIGTERM";

/// Durable runs for AI agents: start, watch, resume and check them
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
    /// Where the runs are: PATH, sqlite:PATH, postgres://USER@HOST/DATABASE, or memory: for `run` [default: the nearest .logreel/runs.db upward]
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
    /// Start a workflow or an agent and follow it
    Run(run::Args),
    /// Go on with a run, or with all that are ready or lost their driver
    Resume(resume::Args),
    /// Go on with a failed or cancelled run in a new one that shares what finished
    Retry(retry::Args),
    /// Run any program as it is, and record it as a run
    Record(record::Args),
    /// Go another way from an earlier event of a run, in a new one
    Fork(fork::Args),
    /// Say yes or no to a run that waits, or give it a value
    Answer(answer::Args),
    /// Send a run a signal; kept until it is awaited
    Signal(signal::Args),
    /// Steer an agent while it works; it hears it at its next turn
    Say(say::Args),
    /// Say what became of a write that was interrupted
    Resolve(resolve::Args),
    /// Read a workflow's or an agent's file and show what it would do
    Check(check::Args),
    /// Drive the runs of this store until told to stop
    Worker(worker::Args),
    /// List who drives the runs of this store, and who would
    Workers,
    /// Serve the API and the page, and drive what they start
    Serve(serve::Args),
    /// Make, list and revoke what callers of `serve` are known by
    Token(token::Args),
    /// Make a store and a first workflow here
    Init,
    /// List runs, newest first
    Ls(ls::Args),
    /// Show a run: status, waits, steps, timeline, cost
    Show(show::Args),
    /// Show what differs between two runs
    Diff(diff::Args),
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
    /// Drive a recorded run again, offline, and say which decision differs
    Replay(replay::Args),
    /// List sessions, or close one
    Sessions(sessions::Args),
    /// Count what is in the store
    Stats,
    /// Look the store over: file, disk, settings, damage, drivers
    Doctor,
    /// Write a run to a file: to check it, to keep it, to go on elsewhere
    Export(export::Args),
    /// Take in what `export` wrote
    Import(import::Args),
    /// Delete ended runs that nobody needs any more
    Prune(prune::Args),
    /// Take away what an ended run held; the proof that it ran stays
    Erase(erase::Args),
    /// Bring the store's tables up to date, or say what that would change
    Migrate(migrate::Args),
    /// Copy the store to a new file while others write it
    Backup(backup::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Drive a run in the background; `run --detach` starts it
    #[command(name = detach::VERB, hide = true)]
    DriveDetached(detach::Args),
    /// Start a recorded program and outlive its recorder; `record` starts it
    #[command(name = record::keeper::VERB, hide = true)]
    RecordKeeper(record::keeper::Args),
    /// Become a recorded program; its keeper starts it
    #[command(name = record::keeper::EXEC_VERB, hide = true)]
    RecordExec(record::keeper::Args),
}

impl Verb {
    /// Whether it may drive runs in this process.
    pub fn drives(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Resume(_)
                | Self::Retry(_)
                | Self::Record(_)
                | Self::Fork(_)
                | Self::Answer(_)
                | Self::Signal(_)
                | Self::Resolve(_)
                | Self::Worker(_)
                | Self::Serve(_)
                | Self::DriveDetached(_)
        )
    }
}
