//! The `logreel` command: starting, driving, watching, checking and stopping runs on a store file.
//!
//! stdout carries the result and nothing else; notes and errors go to stderr. One verb per file;
//! `error` decides what an error is called, `store` where runs are, `name` which run is meant,
//! `drive` how a run is driven and followed here, `view` and `live` what is seen of it meanwhile.

mod again;
mod agents;
mod answer;
mod args;
mod ask;
mod backup;
mod budget;
mod cancel;
mod carried;
mod changed;
mod check;
mod check_agent;
mod completions;
mod detach;
mod diff;
mod doctor;
mod drive;
mod erase;
mod error;
mod export;
mod follow_many;
mod fork;
mod git;
mod hook;
mod import;
mod import_session;
mod init;
mod input;
mod launch;
mod live;
mod log;
mod ls;
mod migrate;
mod name;
mod otlp;
mod outcome;
mod output;
mod patience;
mod pause;
mod plain;
mod prune;
mod reading;
mod record;
mod replay;
mod resolve;
mod resume;
mod retention;
mod retry;
mod run;
mod said;
mod say;
mod serve;
mod served;
mod sessions;
mod settings;
mod settle;
mod show;
mod show_agent;
mod signal;
mod signals;
mod spec;
mod stats;
mod store;
mod summary;
mod table;
mod text;
mod token;
mod verify;
mod view;
mod wait;
mod whose;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Verb};
use crate::live::terminal;
use crate::output::Output;
use crate::store::Place;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return error::usage(&error),
    };
    let json = cli.global.json;
    // A process in the background is quiet because nobody looks; what it warns of is read later.
    let is_detached = matches!(cli.verb, Verb::DriveDetached(_));
    start_tracing((json || cli.global.quiet) && !is_detached);
    restore_terminal_on_panic();
    let runtime = match runtime(&cli.verb) {
        Ok(runtime) => runtime,
        Err(error) => return error::exit(&error.into(), json),
    };
    let ended = runtime.block_on(act(cli));
    terminal::clear();
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => error::exit(&error, json),
    }
}

/// A verb that drives runs gets threads of its own for them; the others need none.
fn runtime(verb: &Verb) -> std::io::Result<tokio::runtime::Runtime> {
    if verb.drives() {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
    } else {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    }
}

fn restore_terminal_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        terminal::clear();
        say(panic);
    }));
}

async fn act(cli: Cli) -> anyhow::Result<u8> {
    let mut out = Output::new(&cli.global);
    let place = Place::new(cli.global.store);
    let code = match cli.verb {
        Verb::Run(args) => run::run(args, &place, &mut out).await,
        Verb::Resume(args) => resume::run(args, &place, &mut out).await,
        Verb::Retry(args) => retry::run(args, &place, &mut out).await,
        Verb::Fork(args) => fork::run(args, &place, &mut out).await,
        Verb::Export(args) => export::run(args, &place, &mut out).await,
        Verb::Import(args) => import::run(args, &place, &mut out).await,
        Verb::Record(args) => record::run(args, &place, &mut out).await,
        Verb::RecordKeeper(args) => record::keeper::run(args).await,
        Verb::RecordExec(args) => record::keeper::exec(args),
        Verb::Answer(args) => answer::run(args, &place, &mut out).await,
        Verb::Say(args) => say::run(args, &place, &mut out).await,
        Verb::Signal(args) => signal::run(args, &place, &mut out).await,
        Verb::Resolve(args) => resolve::run(args, &place, &mut out).await,
        Verb::Workers => workers::run(&place, &mut out).await,
        Verb::Worker(args) => worker::run(args, &place, &mut out).await,
        Verb::Serve(args) => serve::run(args, &place, &mut out).await,
        Verb::Token(args) => token::run(args, &place, &mut out).await,
        Verb::Check(args) => check::run(args, &place, &mut out),
        Verb::Init => init::run(&place, &mut out).await,
        Verb::DriveDetached(args) => detach::run(args, &place, &mut out).await,
        Verb::Ls(args) => ls::run(args, &place, &mut out).await,
        Verb::Show(args) => show::run(args, &place, &mut out).await,
        Verb::Diff(args) => diff::run(args, &place, &mut out).await,
        Verb::Log(args) => log::run(args, &place, &mut out).await,
        Verb::Wait(args) => wait::run(args, &place, &mut out).await,
        Verb::Cancel(args) => cancel::run(args, &place, &mut out).await,
        Verb::Pause(args) => pause::run(args, &place, &mut out).await,
        Verb::Verify(args) => verify::run(args, &place, &mut out).await,
        Verb::Replay(args) => replay::run(args, &place, &mut out).await,
        Verb::Sessions(args) => sessions::run(args, &place, &mut out).await,
        Verb::Stats => stats::run(&place, &mut out).await,
        Verb::Doctor => doctor::run(&place, &mut out).await,
        Verb::Migrate(args) => migrate::run(args, &place, &mut out).await,
        Verb::Prune(args) => prune::run(args, &place, &mut out).await,
        Verb::Erase(args) => erase::run(args, &place, &mut out).await,
        Verb::Backup(args) => backup::run(args, &place, &mut out).await,
        Verb::Completions(args) => completions::run(args, &mut out),
    };
    otlp::finish().await;
    let code = code?;
    out.flush()?;
    Ok(code)
}

/// What the library warns of goes to stderr; `LOGREEL_LOG` asks for more.
fn start_tracing(only_errors: bool) {
    let level = if only_errors { "error" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("LOGREEL_LOG").unwrap_or_else(|_| {
        // A connection that was lost while nobody used it is nobody's business.
        tracing_subscriber::EnvFilter::new(format!("{level},deadpool.postgres=error"))
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| terminal::Writer)
        .with_ansi(output::stderr_has_colour())
        .without_time()
        .with_target(false)
        .init();
}
