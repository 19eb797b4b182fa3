//! A folder of recorded runs as a regression suite: each is decided again, and what differs fails.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use logreel::core::event::Relation;
use logreel::store::SystemEnv;
use logreel::{Engine, Env as _, ErrorKind, MemoryStore, Replayed, RunFile, RunId, RunStore};

use super::{Args, DIFFERS, Result, print, replay};
use crate::error::{Failure, failure_of};
use crate::output::Output;
use crate::settings::Settings;
use crate::{agents, carried, text};

/// Names of files that hold runs.
const ENDINGS: [&str; 2] = ["jsonl", "reel"];

/// A file of the suite that holds no run that could be replayed.
pub struct Unread {
    file: PathBuf,
    failure: Failure,
}

/// One case of the report.
pub struct Case {
    pub result: Result,
    pub took: Duration,
}

/// Replays every run in the folder, or in the file.
pub async fn run(args: &Args, path: &Path, out: &mut Output) -> anyhow::Result<u8> {
    let files = files(path, &args.what)?;
    let store = MemoryStore::new(Arc::new(SystemEnv));
    let settings = Settings::load(None)?;
    let agents = agents::agents(&settings);
    let engine = Engine::builder()
        .store(Arc::new(store.clone()))
        .any_workflow()
        .agents(Arc::new(agents.clone()))
        .build()
        .await?;
    let (runs, unread) = imported(&engine, files).await;
    let mut cases = Vec::new();
    for run in roots(&store, &runs).await? {
        let began = SystemEnv.monotonic();
        let replayed = replay(&engine, &store, &agents, run, args.under()).await;
        let result = match replayed {
            Ok((spec_file, replayed)) => Result {
                run,
                spec_file,
                came_of_it: Ok(replayed),
            },
            Err(error) => Result {
                run,
                spec_file: None,
                came_of_it: Err(failure_of(&error).unwrap_or_else(|| {
                    Failure::new(ErrorKind::Unavailable, "nobody reads what it says")
                })),
            },
        };
        print(&result, false, out)?;
        let took = SystemEnv.monotonic().saturating_sub(began);
        cases.push(Case { result, took });
    }
    out.flush()?;
    for Unread { file, failure } in &unread {
        out.note(format!("{}: {failure}", file.display()));
    }
    if let Some(report) = &args.junit {
        write_report(report, &cases, &unread)?;
    }
    let bad = cases.iter().filter(|case| !case.result.holds()).count() + unread.len();
    out.note(match bad {
        0 => format!("{} replayed equal", text::count(cases.len() as u64, "run")),
        _ => format!(
            "{bad} of {} did not replay equal",
            text::count((cases.len() + unread.len()) as u64, "run")
        ),
    });
    Ok(match bad {
        0 => 0,
        _ => DIFFERS,
    })
}

/// Writes what came of it, for whoever reads JUnit's reports.
pub fn write_report(path: &Path, cases: &[Case], unread: &[Unread]) -> anyhow::Result<()> {
    let written = std::fs::File::create(path)
        .and_then(|mut file| file.write_all(junit(cases, unread).as_bytes()));
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// A file of the suite, and what it holds.
type Opened = (PathBuf, std::result::Result<RunFile, Failure>);

/// The files of the suite, by name; or the one that was named, which must be one.
fn files(path: &Path, name: &str) -> std::result::Result<Vec<Opened>, Failure> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), Ok(carried::open(name)?))]);
    }
    let unreadable = |error: std::io::Error| {
        let message = format!("{} cannot be read: {error}", path.display());
        Failure::new(ErrorKind::Invalid, message)
    };
    let mut files = Vec::new();
    for file in std::fs::read_dir(path).map_err(unreadable)? {
        let file = file.map_err(unreadable)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
            files.push(file);
        }
    }
    if files.is_empty() {
        let message = format!("{} holds no recorded run (*.jsonl, *.reel)", path.display());
        let hint = "`logreel export RUN -o FOLDER/NAME.jsonl` records one";
        return Err(Failure::new(ErrorKind::Usage, message).hint(hint));
    }
    files.sort();
    let open = |file: PathBuf| {
        let name = file.display().to_string();
        let opened = RunFile::open(&file).map_err(|error| carried::refused(&name, &error));
        (file, opened)
    };
    Ok(files.into_iter().map(open).collect())
}

/// Takes every file in, checked: a chain that does not hold is no recording.
async fn imported(engine: &Engine, files: Vec<Opened>) -> (Vec<RunId>, Vec<Unread>) {
    let (mut runs, mut unread) = (Vec::new(), Vec::new());
    for (file, opened) in files {
        let taken = match opened {
            Ok(opened) => engine.import(&opened).await.map_err(anyhow::Error::from),
            Err(failure) => Err(failure.into()),
        };
        match taken {
            Ok(taken) => runs.extend(taken.iter().map(|it| it.entry.row.run)),
            Err(error) => unread.push(Unread {
                file,
                failure: failure_of(&error)
                    .unwrap_or_else(|| Failure::new(ErrorKind::Invalid, "it cannot be read")),
            }),
        }
    }
    runs.dedup();
    (runs, unread)
}

/// Those that are not replayed with the run that started them.
async fn roots(store: &MemoryStore, runs: &[RunId]) -> anyhow::Result<Vec<RunId>> {
    let mut roots: Vec<RunId> = Vec::new();
    for run in runs {
        let entry = store.entry(run).await?;
        let parent = entry.row.facts.parent.as_ref();
        let parent = parent.filter(|parent| parent.relation == Relation::Child);
        let with_parent = parent.is_some_and(|parent| runs.contains(&parent.run));
        if !with_parent && !roots.contains(run) {
            roots.push(*run);
        }
    }
    Ok(roots)
}

/// The report as JUnit writes it: a case for each run, its children among them.
fn junit(cases: &[Case], unread: &[Unread]) -> String {
    let mut body = String::new();
    let (mut tests, mut failures, mut errors) = (0, 0, 0);
    let mut case = |class: &str, name: &str, took: Duration, said: Option<(&str, &str)>| {
        tests += 1;
        let (class, name) = (escaped(class), escaped(name));
        let seconds = took.as_secs_f64();
        body += &format!("  <testcase classname=\"{class}\" name=\"{name}\" time=\"{seconds:.3}\"");
        match said {
            None => body += "/>\n",
            Some((element, message)) => {
                match element {
                    "failure" => failures += 1,
                    _ => errors += 1,
                }
                let message = escaped(message);
                body += &format!(
                    ">\n    <{element} message=\"{message}\">{message}</{element}>\n  </testcase>\n"
                );
            }
        }
    };
    fn each(
        replayed: &Replayed,
        took: Duration,
        case: &mut impl FnMut(&str, &str, Duration, Option<(&str, &str)>),
    ) {
        let difference = replayed
            .difference
            .as_ref()
            .map(|it| format!("event {} {}, {}: {}", it.seq, it.kind, it.about, it.why));
        let said = difference.as_deref().map(|said| ("failure", said));
        case(&replayed.agent, &replayed.run.to_string(), took, said);
        for child in &replayed.children {
            each(child, Duration::ZERO, case);
        }
    }
    for Case { result, took } in cases {
        match &result.came_of_it {
            Ok(replayed) => each(replayed, *took, &mut case),
            Err(failure) => {
                let said = Some(("error", failure.message.as_str()));
                case("replay", &result.run.to_string(), *took, said);
            }
        }
    }
    for Unread { file, failure } in unread {
        let said = Some(("error", failure.message.as_str()));
        case("replay", &file.display().to_string(), Duration::ZERO, said);
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"logreel replay\" tests=\"{tests}\" \
         failures=\"{failures}\" errors=\"{errors}\">\n{body}</testsuite>\n"
    )
}

/// For XML; what it does not know at all is left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push('\t'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
