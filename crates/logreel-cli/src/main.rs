//! The `logreel` command: reading, watching, checking and stopping runs on a store file.
//!
//! stdout carries the result and nothing else; notes and errors go to stderr. One verb per file;
//! `error` decides what an error is called, `store` where runs are, `name` which run is meant.

mod args;
mod backup;
mod cancel;
mod completions;
mod doctor;
mod error;
mod log;
mod ls;
mod name;
mod output;
mod pause;
mod reading;
mod sessions;
mod show;
mod stats;
mod store;
mod summary;
mod table;
mod text;
mod verify;
mod wait;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Verb};
use crate::output::Output;
use crate::store::Place;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return error::usage(&error),
    };
    let json = cli.global.json;
    start_tracing(json || cli.global.quiet);
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return error::exit(&error.into(), json),
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => error::exit(&error, json),
    }
}

async fn run(cli: Cli) -> anyhow::Result<u8> {
    let mut out = Output::new(&cli.global);
    let place = Place::new(cli.global.store);
    let code = match cli.verb {
        Verb::Ls(args) => ls::run(args, &place, &mut out).await,
        Verb::Show(args) => show::run(args, &place, &mut out).await,
        Verb::Log(args) => log::run(args, &place, &mut out).await,
        Verb::Wait(args) => wait::run(args, &place, &mut out).await,
        Verb::Cancel(args) => cancel::run(args, &place, &mut out).await,
        Verb::Pause(args) => pause::run(args, &place, &mut out).await,
        Verb::Verify(args) => verify::run(args, &place, &mut out).await,
        Verb::Sessions(args) => sessions::run(args, &place, &mut out).await,
        Verb::Stats => stats::run(&place, &mut out).await,
        Verb::Doctor => doctor::run(&place, &mut out).await,
        Verb::Backup(args) => backup::run(args, &place, &mut out).await,
        Verb::Completions(args) => completions::run(args, &mut out),
    }?;
    out.flush()?;
    Ok(code)
}

/// What the library warns of goes to stderr; `LOGREEL_LOG` asks for more.
fn start_tracing(only_errors: bool) {
    let level = if only_errors { "error" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("LOGREEL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output::stderr_has_colour())
        .without_time()
        .with_target(false)
        .init();
}
