//! `logreel record`: runs any program as it is, and makes it a run.
//!
//! `program` is the program from its start to its end; `keeper` is the process that starts it, in a
//! session of its own, and ends what is left of it whatever becomes of us; `kept` is our side of that
//! one; `terminal` and `copy` are what passes between the program and its user.

mod checkout;
mod copy;
pub mod keeper;
mod kept;
mod kin;
mod program;
mod signals;
mod terminal;

use std::ffi::OsString;
use std::future::IntoFuture as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::{Body, Entry, Env as _, ErrorKind, Json, Recorder, RunHandle, Seq, Session};
use logreel_agent::{Format, Mapping, Prices, Redactor};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::program::{Ended, Setup, Told};
use self::signals::Signals;
use crate::error::Failure;
use crate::output::Output;
use crate::store::{Acting, Missing, Place};
use crate::{agents, error, git, ls, outcome, spec};

const EXAMPLES: &str = "\
Examples:
  logreel record -- claude                    an agent as it is, recorded as a run
  logreel record --label pr=42 -- make test   any program; its status is ours
  logreel record --stream claude-code -- claude -p --verbose --output-format stream-json 'fix it'
                                              with its messages, tools and cost
  logreel log @last --follow                  watch it from another terminal
  logreel cancel @last                        end it from there

The program has our terminal, keys and signals; what it started ends with it.";

/// How long a run whose program has ended may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long a start may go on after someone told us to end.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// The exit code of a program that is not there, as a shell has it.
const NOT_FOUND: u8 = 127;
/// Among how many of the last events the program's end is looked for.
const LAST_EVENTS: usize = 16;
/// The exit code when the record was lost, and with it the program.
const LOST: u8 = 4;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The conversation it belongs to; one run is active in it at a time
    #[arg(long, value_name = "S")]
    session: Option<Session>,
    /// A label to list it by; repeat for more
    #[arg(long, value_name = "K=V", value_parser = ls::parse_label)]
    label: Vec<(String, String)>,
    /// Your own name for the run: a program that was recorded under it is not run again
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// What its stdout is: claude-code, codex, or a file that maps lines of JSON
    #[arg(long, value_name = "NAME|FILE")]
    stream: Option<String>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true)]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if let Some(program) = args.command.first().filter(|program| !is_there(program)) {
        let program = program.to_string_lossy();
        let missing = Failure::new(ErrorKind::Usage, format!("{program}: not found"));
        error::tell(&missing, out.json);
        return Ok(NOT_FOUND);
    }
    let stream = args.stream.as_deref().map(format).transpose()?;
    // Before the run exists: a signal that comes now must find someone who hears it.
    let signals = Signals::new()?;
    let folder = spec::folder(Path::new("."))?;
    let acting = place.act(Missing::Make, None, out).await?;
    let redactor = redactor(&acting)?;
    let what = What::new(&args.command, stream.as_ref(), &redactor);
    let git = git::look(&folder);
    let setup = Setup {
        command: args.command,
        folder: folder.clone(),
        git: git.clone(),
        redactor,
        stream,
        prices: prices(&acting),
        store: Arc::clone(&acting.store),
        signals: signals.clone(),
    };
    let progress = watch::Sender::default();
    let recorder = what.register(&acting, setup, &progress);
    let id = SystemEnv.run_id();
    let mut start = recorder.start(&what.words).id(id);
    start = start.dir(folder.to_string_lossy());
    if let Some(git) = git {
        start = start.git(git);
    }
    if let Some(session) = &args.session {
        start = start.session(session.as_str());
    }
    if let Some(key) = args.key {
        start = start.key(key);
    }
    for (name, value) in args.label {
        start = start.label(name, value);
    }
    // Whoever starts the program hears what came meanwhile; only a start that hangs is given up.
    let given_up = async {
        let passed = signals.first().await;
        SystemEnv.sleep(START_PATIENCE).await;
        passed
    };
    let started = tokio::select! {
        biased;
        started = start.into_future() => started,
        passed = given_up => {
            acting.engine.close().await?;
            return Ok(Ended::Signalled(passed.number).code());
        }
    };
    let handle = match started {
        Ok(handle) => handle,
        Err(error) => {
            acting.engine.close().await?;
            return Err(error.into());
        }
    };
    if handle.id() == id {
        return to_the_end(acting, &handle, &progress, out).await;
    }
    let before = recorded_before(&acting, &handle.entry().await?, out).await;
    acting.engine.close().await?;
    before
}

/// Runs the program of a recorded run again, in a run that says so.
pub async fn retry(acting: Acting, entry: &Entry, out: &mut Output) -> anyhow::Result<u8> {
    let run = entry.row.run;
    let stored = acting.engine.stored_spec(&run).await?.to_value();
    let what = What::stored(&stored).ok_or_else(|| {
        let message = format!("what {run} ran is not recorded whole: a secret was taken out of it");
        Failure::new(ErrorKind::NotApplicable, message).hint("`logreel record` it anew")
    })?;
    let folder = entry.row.facts.dir.as_ref().map_or(".", String::as_str);
    let folder = spec::folder(Path::new(folder))?;
    let setup = Setup {
        command: what.command.iter().map(OsString::from).collect(),
        git: git::look(&folder),
        folder,
        redactor: redactor(&acting)?,
        stream: stored.get("stream").and_then(Format::from_json),
        prices: prices(&acting),
        store: Arc::clone(&acting.store),
        signals: Signals::new()?,
    };
    let progress = watch::Sender::default();
    what.register(&acting, setup, &progress);
    match acting.engine.retry(&run).await {
        Ok(handle) => to_the_end(acting, &handle, &progress, out).await,
        Err(error) => {
            acting.engine.close().await?;
            Err(error.into())
        }
    }
}

/// Whether the run is of a recorded program.
pub fn is_recorded(entry: &Entry) -> bool {
    logreel::is_with_recorder(&entry.row.facts)
}

/// Waits for the program and for its run, and exits with the program's status.
async fn to_the_end(
    acting: Acting,
    handle: &RunHandle<Json>,
    progress: &watch::Sender<Progress>,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let mut watched = progress.subscribe();
    let (ended, unknown) = {
        let progress = watched.wait_for(|progress| progress.over).await?;
        (progress.ended, progress.unknown)
    };
    let run_ended = tokio::select! {
        run_ended = handle.wait() => Some(run_ended?),
        () = SystemEnv.sleep(LAST_WORDS) => None,
    };
    acting.engine.close().await?;
    let short = handle.id().short();
    if let Some((lines, unknown)) = unknown {
        out.note(format!(
            "logreel: {unknown} of {lines} lines were not understood; {short} keeps them as they were \
             printed. Its format may have changed."
        ));
    }
    match ended {
        Some(ended) => Ok(ended.code()),
        None => {
            let why = match run_ended {
                Some(_) => outcome::ended(&handle.entry().await?),
                None => "can no longer be recorded; the program was stopped".to_owned(),
            };
            out.note(format!("logreel: {short} {why}"));
            Ok(LOST)
        }
    }
}

/// A program that was recorded under the same key is not run again, and we exit as it did.
async fn recorded_before(acting: &Acting, entry: &Entry, out: &Output) -> anyhow::Result<u8> {
    let (run, short) = (entry.row.run, entry.row.run.short());
    let Some(ended) = &entry.row.facts.ended else {
        let refused = if !entry.is_driven() {
            let message = format!("{run} has this key, and whoever recorded it is gone");
            Failure::new(ErrorKind::Busy, message).hint(format!(
                "`logreel resume {short}` ends it as failed; `logreel retry {short}` then runs it again"
            ))
        } else {
            let message = format!("{run} has this key and has not ended");
            Failure::new(ErrorKind::Busy, message)
                .hint(format!("`logreel log {short} --follow` watches it"))
        };
        return Err(refused.into());
    };
    out.note(format!(
        "logreel: recorded before as {short}, not run again"
    ));
    if let Some(ended) = how_it_ended(acting, entry).await? {
        return Ok(ended.code());
    }
    Ok(match &ended.end {
        logreel::core::row::End::Completed { .. } => 0,
        logreel::core::row::End::Cancelled { .. } => crate::settle::CANCELLED,
        logreel::core::row::End::Failed { .. } => crate::settle::FAILED,
    })
}

/// What the log has of the program's end; `None` when nobody saw it.
async fn how_it_ended(acting: &Acting, entry: &Entry) -> anyhow::Result<Option<Ended>> {
    let (run, head) = (entry.row.run, entry.row.head.seq);
    let from = Seq(head.0.saturating_sub(LAST_EVENTS as u64) + 1);
    let page = acting.store.events(&run, from, LAST_EVENTS).await?;
    let number = |data: &Value, name: &str| {
        let number = data[name].as_i64();
        number.and_then(|number| i32::try_from(number).ok())
    };
    for event in page.items.into_iter().rev() {
        if let Body::Custom(custom) = event.body
            && custom.name == program::ENDED
        {
            let data = custom.data.to_json().to_value();
            let exited = number(&data, "exit_code").map(Ended::Exited);
            return Ok(exited.or_else(|| number(&data, "signal").map(Ended::Signalled)));
        }
    }
    Ok(None)
}

fn redactor(acting: &Acting) -> anyhow::Result<Redactor> {
    let settings = &acting.settings;
    Redactor::new(&settings.redact, acting.store.secrets()).map_err(|error| {
        let message = format!("`redact` of the settings: {error}");
        Failure::new(ErrorKind::Invalid, message).into()
    })
}

fn prices(acting: &Acting) -> Prices {
    agents::prices(&acting.settings)
}

/// A format by its name, or by a file that maps it.
pub fn format(said: &str) -> Result<Format, Failure> {
    if let Some(format) = Format::named(said) {
        return Ok(format);
    }
    let text = std::fs::read_to_string(said).map_err(|error| {
        let message = format!("`{said}` is no format that is known here, and no file: {error}");
        let names = Format::NAMES.join(", ");
        let hint = format!("known are {names}; a file maps any lines of JSON, see docs/record.md");
        Failure::new(ErrorKind::Usage, message).hint(hint)
    })?;
    let mapping = Mapping::parse(&text)
        .map_err(|error| Failure::new(ErrorKind::Invalid, format!("{said}: {error}")))?;
    Ok(Format::Mapped(mapping))
}

/// What is run, as it is recorded.
struct What {
    name: String,
    command: Vec<String>,
    /// The command as someone would type it.
    words: String,
    spec: Value,
}

impl What {
    fn new(command: &[OsString], stream: Option<&Format>, redactor: &Redactor) -> Self {
        let mut missing = 0;
        let words = command.iter().map(|word| {
            let text = word.to_string_lossy();
            let (without, redacted) = redactor.text(&text);
            missing += redacted + u32::from(word.to_str().is_none());
            without.into_owned()
        });
        let command: Vec<String> = words.collect();
        let mut spec = json!({"command": command});
        if missing > 0 {
            // It cannot be run from the record.
            spec["redacted"] = missing.into();
        }
        if let Some(stream) = stream {
            spec["stream"] = stream.to_json();
        }
        Self::of(command, spec)
    }

    /// From a run's spec; `None` when it does not hold all of it.
    fn stored(spec: &Value) -> Option<Self> {
        if spec.get("redacted").is_some() {
            return None;
        }
        let words = spec.get("command")?.as_array()?.iter();
        let command: Option<Vec<String>> =
            words.map(|word| word.as_str().map(str::to_owned)).collect();
        Some(Self::of(command?, spec.clone()))
    }

    fn of(command: Vec<String>, spec: Value) -> Self {
        let program = command.first().map_or("", String::as_str);
        let name = Path::new(program).file_name();
        let words: Vec<String> = command.iter().map(|word| outcome::quoted(word)).collect();
        Self {
            name: name.map_or_else(
                || program.to_owned(),
                |it| it.to_string_lossy().into_owned(),
            ),
            command,
            words: words.join(" "),
            spec,
        }
    }

    fn register(
        &self,
        acting: &Acting,
        setup: Setup,
        progress: &watch::Sender<Progress>,
    ) -> Recorder {
        let progress = progress.clone();
        let recorder = move |ctx, _input| {
            let (setup, leaves) = (setup.clone(), Leaves(progress.clone()));
            async move {
                let tell = |told| leaves.0.send_modify(|progress| progress.hear(told));
                program::run(ctx, setup, tell).await
            }
        };
        acting.engine.recorder(&self.name, &self.spec, recorder)
    }
}

/// How far a program has come.
#[derive(Debug, Default)]
struct Progress {
    ended: Option<Ended>,
    /// How many lines came, and how many of them were not understood.
    unknown: Option<(u64, u64)>,
    /// Nobody records it any more.
    over: bool,
}

impl Progress {
    fn hear(&mut self, told: Told) {
        match told {
            Told::Ended(ended) => self.ended = Some(ended),
            Told::Unknown { lines, unknown } => self.unknown = Some((lines, unknown)),
        }
    }
}

/// Says so when the function has returned, or was dropped because the run is no longer ours.
struct Leaves(watch::Sender<Progress>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.send_modify(|progress| progress.over = true);
    }
}

/// Whether a shell would find the program.
fn is_there(program: &OsString) -> bool {
    let can_run = |path: &Path| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if Path::new(program).components().count() > 1 {
        // What is there and cannot be run is for the system to say.
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder: PathBuf| can_run(&folder.join(program)))
}
