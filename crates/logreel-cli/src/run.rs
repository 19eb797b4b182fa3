//! `logreel run`: starts a workflow or an agent here and follows it, or leaves it to the background.

use std::path::{Path, PathBuf};

use logreel::view::RunView;
use logreel::{ErrorKind, IfBusy, RunId, Seq, Session};
use logreel_agent::Overrides;

use crate::drive::{self, Followed};
use crate::error::Failure;
use crate::launch::{self, Asked, Launch};
use crate::outcome::Line;
use crate::output::Output;
use crate::signals::Signals;
use crate::spec::Spec;
use crate::store::{Missing, Place};
use crate::{agents, detach, input, ls, spec};

const EXAMPLES: &str = "\
Examples:
  logreel run audit.toml                     run it here, watch it, print its output
  logreel run audit.toml '{\"depth\": 2}'      with an input: text, JSON, @file or - for stdin
  out=$(logreel run audit.toml -q)           stdout is the output and nothing else
  logreel run audit.toml --key nightly-14    the same key again attaches to the same run
  logreel run fixer.toml 'fix the test'      an agent, in the current folder
  logreel run audit.toml --detach            in the background; prints the run's id

Ctrl-C pauses the run durably; `logreel resume` goes on.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A workflow's or an agent's file, .toml or .json
    #[arg(value_name = "SPEC")]
    spec: PathBuf,
    /// What it works on: text or JSON, @FILE, or - for stdin
    #[arg(value_name = "INPUT", allow_hyphen_values = true)]
    input: Option<String>,
    /// The conversation it belongs to; one run is active in it at a time
    #[arg(long, value_name = "S")]
    session: Option<Session>,
    /// A label to list it by; repeat for more
    #[arg(long, value_name = "K=V", value_parser = ls::parse_label)]
    label: Vec<(String, String)>,
    /// Your own name for the run: starting with the same key again attaches to it
    #[arg(long, value_name = "K", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// The run's id, run_ and a UUID; the same id again attaches
    #[arg(long, value_name = "RUN")]
    id: Option<RunId>,
    /// Run in the background and print the run's id
    #[arg(long)]
    detach: bool,
    /// When the session has an active run: refuse, wait for it, or cancel it
    #[arg(long, value_name = "HOW", default_value = "reject")]
    if_busy: Busy,
    /// Another model for the agent: PROVIDER/MODEL, or scripted/FILE
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Let the agent call this without asking, TOOL or TOOL:ARG; repeat for more
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// Deny the agent what it would ask for
    #[arg(long)]
    no_ask: bool,
    /// The folder to run in [default: a workflow's is its file's, an agent's the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Busy {
    Reject,
    Wait,
    Interrupt,
}

impl From<Busy> for IfBusy {
    fn from(busy: Busy) -> Self {
        match busy {
            Busy::Reject => Self::Reject,
            Busy::Wait => Self::Wait,
            Busy::Interrupt => Self::Interrupt,
        }
    }
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if args.detach && place.is_memory() {
        let message =
            "a store in memory ends with this process, so nothing can go on in the background";
        return Err(Failure::new(ErrorKind::Usage, message)
            .hint("leave out --detach, or name a file with --store PATH")
            .into());
    }
    let overrides = Overrides {
        model: args.model.clone(),
        allow: args.allow.clone(),
        no_ask: args.no_ask,
    };
    let agents = agents::agents(&place.settings()?);
    let spec = spec::read(&args.spec, &overrides, &agents)?;
    let (file, folder) = spec::place(&args.spec)?;
    let folder = match (&args.dir, &spec) {
        (Some(said), _) => spec::folder(said)?,
        (None, Spec::Workflow(_)) => folder,
        (None, Spec::Agent(_)) => spec::folder(Path::new("."))?,
    };
    let input = input::read(args.input.as_deref())?;
    launch::admit(&spec, &input)?;
    let what = Launch {
        input,
        spec,
        file: Some(file),
        folder,
    };
    // Before the run exists: a signal that comes now must find someone who hears it.
    let mut signals = Signals::new()?;
    let acting = place.act(Missing::Make, None, out).await?;
    let asked = Asked {
        id: args.id,
        session: args.session,
        key: args.key,
        labels: args.label,
        if_busy: args.if_busy.into(),
        queue: args.detach,
    };
    let started = tokio::select! {
        started = launch::start(&acting, &what, asked) => started,
        // Waiting for a busy session may take long.
        stop = signals.next() => {
            acting.engine.close().await?;
            return Ok(stop.code());
        }
    };
    let started = match started {
        Ok(started) => started,
        Err(error) => {
            acting.engine.close().await?;
            return Err(error);
        }
    };
    let run = started.run.id();
    if args.detach {
        acting.engine.close().await?;
        let entry = acting.store.entry(&run).await?;
        detach::leave(&acting, &entry, out).await?;
        match out.json {
            true => out.json_line(&Line::run(&RunView::of(&entry)))?,
            false => out.line(run.to_string())?,
        }
        return Ok(0);
    }
    let followed = match started.attached {
        true => Followed::attached(run, Seq::FIRST),
        false => Followed::ours(run, Seq::FIRST),
    };
    drive::to_the_end(acting, followed, signals, out).await
}
