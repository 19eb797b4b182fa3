//! `logreel replay`: drives recorded runs again, offline, and says which decision is the first that
//! differs.

mod suite;

use std::path::{Path, PathBuf};

use logreel::Env as _;
use logreel::core::event::{RunKind, RunStarted};
use logreel::store::SystemEnv;
use logreel::{
    Body, Difference, Digest, Engine, ErrorKind, Replayed, ReplayedSpec, RunId, RunStore, Seq,
};
use logreel_agent::{AgentSpec, Agents, Overrides};
use serde::Serialize;
use serde_json::Value;

use crate::carried;
use crate::error::Failure;
use crate::name;
use crate::output::{Output, Paint};
use crate::spec::{self, Spec};
use crate::store::{Missing, Place};
use crate::text;

use self::suite::Case;

const DIFFERS: u8 = 1;
/// What is shown of a value.
const SHOWN_CHARS_MAX: usize = 400;

#[derive(clap::Args)]
pub struct Args {
    /// Which run; or a folder of recorded runs (*.jsonl, *.reel), or one such file, - for stdin
    #[arg(value_name = "RUN|FOLDER")]
    what: String,
    /// Replay under this file as it is now [default: the file the run was started with, if it is there]
    #[arg(long, value_name = "FILE", conflicts_with = "stored_spec")]
    spec: Option<PathBuf>,
    /// Look for spec files in this folder, by the end of the paths they were recorded with
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["stored_spec", "spec"])]
    specs: Option<PathBuf>,
    /// Replay under the spec that the run's log has, whatever its file says now
    #[arg(long)]
    stored_spec: bool,
    /// Write what came of it here too, as JUnit does
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl Args {
    fn under(&self) -> Under<'_> {
        match (&self.spec, &self.specs, self.stored_spec) {
            (Some(file), _, _) => Under::File(file),
            (None, Some(folder), _) => Under::Folder(folder),
            (None, None, true) => Under::Stored,
            (None, None, false) => Under::Recorded,
        }
    }
}

/// Which spec a run is replayed under.
#[derive(Clone, Copy)]
pub enum Under<'a> {
    /// The one in its log.
    Stored,
    /// This file's.
    File(&'a Path),
    /// That of the file in this folder that has the end of the recorded path.
    Folder(&'a Path),
    /// That of the file that it was started with.
    Recorded,
}

/// A run that was replayed, for people and programs.
pub struct Result {
    pub run: RunId,
    /// The spec file that was read.
    pub spec_file: Option<PathBuf>,
    pub came_of_it: std::result::Result<Replayed, Failure>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let path = Path::new(&args.what);
    if path.is_dir() || carried::is_file(&args.what) {
        return suite::run(&args, path, out).await;
    }
    let acting = place.act(Missing::Refuse, None, out).await?;
    let run = name::resolve(&*acting.store, &args.what).await?;
    let began = SystemEnv.monotonic();
    let (spec_file, replayed) = replay(
        &acting.engine,
        &*acting.store,
        &acting.agents,
        run,
        args.under(),
    )
    .await?;
    let result = Result {
        run,
        spec_file,
        came_of_it: Ok(replayed),
    };
    print(&result, true, out)?;
    let code = match result.holds() {
        true => 0,
        false => DIFFERS,
    };
    if let Some(report) = &args.junit {
        let took = SystemEnv.monotonic().saturating_sub(began);
        suite::write_report(report, &[Case { result, took }], &[])?;
    }
    Ok(code)
}

impl Result {
    pub fn holds(&self) -> bool {
        self.came_of_it.as_ref().is_ok_and(Replayed::is_equal)
    }
}

/// Replays one run.
pub async fn replay(
    engine: &Engine,
    store: &dyn RunStore,
    agents: &Agents,
    run: RunId,
    under: Under<'_>,
) -> anyhow::Result<(Option<PathBuf>, Replayed)> {
    let started = started(store, run).await?;
    let file = match under {
        Under::Stored => None,
        Under::File(file) => Some(file.to_owned()),
        Under::Folder(folder) => started
            .spec_file
            .as_deref()
            .and_then(|file| find(folder, file)),
        Under::Recorded => started
            .spec_file
            .as_ref()
            .map(PathBuf::from)
            .filter(|file| file.exists()),
    };
    let replay = engine.replay(run);
    let replay = match &file {
        None => replay,
        Some(file) => match present(engine, agents, &started, run, file).await? {
            Spec::Workflow(workflow) => replay.under(&workflow),
            Spec::Agent(agent) => replay.under_agent(&agent.to_json()),
        },
    };
    Ok((file, replay.await?))
}

async fn started(store: &dyn RunStore, run: RunId) -> anyhow::Result<RunStarted> {
    use logreel::store::Error as Store;
    let page = store.events(&run, Seq::FIRST, 1).await;
    let page = page.map_err(|error| match error {
        Store::Erased(_) => Store::ErasedRun(run),
        other => other,
    })?;
    match page.items.into_iter().next().map(|event| event.body) {
        Some(Body::RunStarted(started)) => Ok(*started),
        _ => {
            let message = format!("the log of {run} does not begin with `run.started`");
            Err(Failure::new(ErrorKind::Corrupt, message).into())
        }
    }
}

/// The file in a folder whose path ends as the recorded one does, as far as that goes.
fn find(folder: &Path, recorded: &str) -> Option<PathBuf> {
    let mut rest = Path::new(recorded).components();
    while rest.next().is_some() {
        let file = folder.join(rest.as_path());
        if file.is_file() {
            return Some(file);
        }
    }
    None
}

/// What the file says now, read as it was when the run was started with it.
async fn present(
    engine: &Engine,
    agents: &Agents,
    started: &RunStarted,
    run: RunId,
    file: &Path,
) -> anyhow::Result<Spec> {
    if started.kind == RunKind::Agent {
        let stored = engine.stored_spec(&run).await?.to_value();
        if let Ok(stored) = AgentSpec::from_json(&stored) {
            return Ok(spec::read_again(file, &stored, agents)?);
        }
    }
    Ok(spec::read(file, &Overrides::default(), agents)?)
}

/// A result as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    run: RunId,
    result: &'static str,
    agent: Option<&'a str>,
    kind: Option<RunKind>,
    /// How many events were to be decided again, and from which on.
    events: Option<u64>,
    from: Option<Seq>,
    /// Whether the log has the run's end.
    ended: Option<bool>,
    spec: Option<&'static str>,
    spec_digest: Option<Digest>,
    spec_file: Option<&'a Path>,
    difference: Option<Shown<'a>>,
    error: Option<String>,
    children: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    run: RunId,
    seq: Seq,
    kind: &'a str,
    about: &'a str,
    why: &'a str,
    recorded: &'a Option<Value>,
    now: &'a Option<Value>,
}

impl<'a> Line<'a> {
    fn of(replayed: &'a Replayed, spec_file: Option<&'a Path>) -> Self {
        let difference = replayed.difference.as_ref().map(|it| Shown {
            run: it.run,
            seq: it.seq,
            kind: &it.kind,
            about: &it.about,
            why: &it.why,
            recorded: &it.recorded,
            now: &it.now,
        });
        Self {
            run: replayed.run,
            result: word(replayed),
            agent: Some(&replayed.agent),
            kind: Some(replayed.kind),
            events: Some(replayed.events),
            from: Some(replayed.from),
            ended: Some(replayed.ended),
            spec: Some(match replayed.spec {
                ReplayedSpec::Stored => "stored",
                ReplayedSpec::Same => "same",
                ReplayedSpec::Changed => "changed",
            }),
            spec_digest: Some(replayed.spec_digest),
            spec_file,
            difference,
            error: None,
            children: replayed
                .children
                .iter()
                .map(|it| Self::of(it, None))
                .collect(),
        }
    }

    fn of_failure(run: RunId, failure: &Failure) -> Self {
        Self {
            run,
            result: "error",
            agent: None,
            kind: None,
            events: None,
            from: None,
            ended: None,
            spec: None,
            spec_digest: None,
            spec_file: None,
            difference: None,
            error: Some(failure.to_string()),
            children: Vec::new(),
        }
    }
}

fn word(replayed: &Replayed) -> &'static str {
    match replayed.is_equal() {
        true => "equal",
        false => "differs",
    }
}

/// Prints a result: a line, and for one run alone what was and what is.
pub fn print(result: &Result, alone: bool, out: &mut Output) -> anyhow::Result<()> {
    if out.json {
        let spec_file = result.spec_file.as_deref();
        return match &result.came_of_it {
            Ok(replayed) => out.json_line(&Line::of(replayed, spec_file)),
            Err(failure) => out.json_line(&Line::of_failure(result.run, failure)),
        };
    }
    match &result.came_of_it {
        Ok(replayed) => tree(replayed, 0, alone, out),
        Err(failure) => {
            let word = out.paint(Paint::Bad, "error  ");
            let line = format!("{word}  {}  {}", result.run.short(), failure);
            Ok(out.line(line)?)
        }
    }
}

fn tree(replayed: &Replayed, depth: usize, alone: bool, out: &mut Output) -> anyhow::Result<()> {
    let indent = "  ".repeat(depth);
    let word = match replayed.is_equal() {
        true => out.paint(Paint::Good, "equal  "),
        false => out.paint(Paint::Bad, "differs"),
    };
    let (short, agent) = (replayed.run.short(), text::visible(&replayed.agent));
    let said = match &replayed.difference {
        None => equal(replayed),
        Some(difference) => {
            let Difference {
                seq,
                kind,
                about,
                why,
                ..
            } = difference;
            text::one_line(&format!("event {seq} {kind}, {about}: {why}"))
        }
    };
    out.line(format!("{indent}{word}  {short}  {agent}  {said}"))?;
    if alone
        && let Some(difference) = &replayed.difference
        && difference.run == replayed.run
    {
        for (name, value) in [("recorded", &difference.recorded), ("now", &difference.now)] {
            if let Some(value) = value {
                let label = out.paint(Paint::Dim, &format!("{name:>8}:"));
                out.line(format!("{indent}  {label} {}", shown(value)))?;
            }
        }
    }
    for child in &replayed.children {
        tree(child, depth + 1, alone, out)?;
    }
    Ok(())
}

fn equal(replayed: &Replayed) -> String {
    let events = text::count(replayed.events, "event");
    let from = match replayed.from {
        Seq::FIRST => String::new(),
        from => format!(" from {from} on"),
    };
    let end = match replayed.ended {
        true => "",
        false => ", as far as its log goes",
    };
    let spec = match replayed.spec {
        ReplayedSpec::Stored => ", under its stored spec",
        ReplayedSpec::Same => "",
        ReplayedSpec::Changed => ", though its spec changed",
    };
    format!("{events}{from}{end}{spec}")
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text::fit(&text::one_line(&text), SHOWN_CHARS_MAX)
}
