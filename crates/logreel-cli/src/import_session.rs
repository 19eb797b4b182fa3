//! `logreel import --from`: a session that another agent kept in a file of its own becomes a run.
//!
//! The run's id is computed from the session and what the file holds: the same file again is the same run.
//! A session that went on since is another one.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use logreel::core::event::{Cause, Git};
use logreel::view::RunView;
use logreel::{Digest, Entry, ErrorKind, Json, PastOutcome, PastRun, RunId, Timestamp};
use logreel_agent::{Format, Redactor, StreamReader};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::import::Line;
use crate::output::Output;
use crate::settings::Settings;
use crate::store::{Acting, Missing, Place};
use crate::{agents, text};

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum From {
    /// A session file of Claude Code, or what `--output-format stream-json` printed
    ClaudeCode,
    /// A session file of Codex, or what `codex exec --json` printed
    Codex,
}

impl From {
    fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
        }
    }

    fn format(self) -> Format {
        match self {
            Self::ClaudeCode => Format::ClaudeCode,
            Self::Codex => Format::Codex,
        }
    }
}

pub async fn run(from: From, file: &str, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    // What is no such file must not make a store.
    let found = place.file();
    let (past, unknown, lines) = read(from, file, found.as_deref())?;
    let acting = place.act(Missing::Make, None, out).await?;
    let kept = keep(&acting, past).await;
    acting.engine.close().await?;
    let (outcome, entry) = kept?;
    let (run, short) = (entry.row.run, entry.row.run.short());
    if out.json {
        let outcome = outcome.as_str();
        let run = &RunView::of(&entry);
        out.json_line(&Line { outcome, run })?;
    } else {
        out.line(run.to_string())?;
        let note = match outcome {
            Kept::New => "is here",
            Kept::NothingNew => "had been imported before",
        };
        out.note(format!("{short} {note}: `logreel show {short}`"));
    }
    if unknown > 0 {
        out.note(format!(
            "{unknown} of {lines} lines were not understood and are kept as they are; the format may \
             have changed"
        ));
    }
    Ok(0)
}

/// What became of it, in the words of `import`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    New,
    NothingNew,
}

impl Kept {
    fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::NothingNew => "nothing_new",
        }
    }
}

/// The id says what the file holds: a run of it that is here is the run, whatever was taken out of what is
/// recorded then and now.
async fn keep(acting: &Acting, past: PastRun) -> anyhow::Result<(Kept, Entry)> {
    let run = past.run;
    match acting.store.entry(&run).await {
        Ok(entry) => return Ok((Kept::NothingNew, entry)),
        Err(logreel::store::Error::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let kept = match acting.engine.keep_past(past).await? {
        PastOutcome::Kept(_) => Kept::New,
        PastOutcome::AlreadyHere(_) => Kept::NothingNew,
    };
    Ok((kept, acting.store.entry(&run).await?))
}

/// What is known of the session beside its messages.
#[derive(Default)]
struct About {
    first_at: Option<Timestamp>,
    dir: Option<String>,
    git: Option<Git>,
    asked: Option<String>,
}

impl About {
    fn look(&mut self, line: &str) {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let payload = &line["payload"];
        let cwd = line["cwd"].as_str().or(payload["cwd"].as_str());
        self.dir = self.dir.take().or(cwd.map(str::to_owned));
        let git = &payload["git"];
        if let (None, Some(commit)) = (&self.git, git["commit_hash"].as_str()) {
            self.git = Some(Git {
                branch: git["branch"].as_str().map(str::to_owned),
                commit: commit.to_owned(),
                dirty: false,
            });
        }
        let asked = match (line["type"].as_str(), payload["type"].as_str()) {
            (Some("user"), _) => line["message"]["content"].as_str(),
            (Some("event_msg"), Some("user_message")) => payload["message"].as_str(),
            _ => None,
        };
        self.asked = self.asked.take().or(asked.map(str::to_owned));
    }
}

fn read(from: From, file: &str, store: Option<&Path>) -> anyhow::Result<(PastRun, u64, u64)> {
    let settings = Settings::load(store)?;
    let redactor = Redactor::new(&settings.redact, Vec::<String>::new()).map_err(|error| {
        let message = format!("`redact` of the settings: {error}");
        Failure::new(ErrorKind::Invalid, message)
    })?;
    let prices = agents::prices(&settings);
    let mut reader = StreamReader::new(&from.format(), redactor.clone(), prices);
    let (mut about, mut facts, mut blobs) = (About::default(), Vec::new(), Vec::new());
    let mut content: Vec<u8> = Vec::new();
    for line in open(file)?.split(b'\n') {
        let line = line.map_err(|error| unreadable(file, &error))?;
        content.extend_from_slice(Digest::of(&line).as_bytes());
        let line = String::from_utf8_lossy(&line);
        about.look(&line);
        let said = reader.line(&line);
        about.first_at = about.first_at.or(said.at);
        facts.extend(said.bodies.into_iter().map(|body| (body, said.at)));
        blobs.extend(said.blobs);
    }
    let said = reader.finish();
    facts.extend(said.bodies.into_iter().map(|body| (body, None)));
    blobs.extend(said.blobs);
    let (lines, unknown) = reader.counts();
    if lines == unknown {
        let message = format!("{file}: no line of it is one of {}", from.name());
        let hint = "session files are in ~/.claude/projects and ~/.codex/sessions";
        return Err(Failure::new(ErrorKind::Invalid, message).hint(hint).into());
    }
    let asked = about.asked.as_deref().unwrap_or_default();
    let asked = redactor.text(asked).0.into_owned();
    let session = reader.session().map(str::to_owned);
    let past = PastRun {
        run: id(&about, &content),
        agent: from.name().to_owned(),
        spec: json!({"imported": from.name(), "session": session}),
        input: Json::of(&asked)?,
        labels: BTreeMap::from([("imported".to_owned(), from.name().to_owned())]),
        session,
        dir: about.dir,
        git: about.git,
        facts,
        blobs,
        end: match (reader.failure(), reader.answer()) {
            (Some(why), _) => Err(Cause {
                exit_code: None,
                kind: "agent".to_owned(),
                message: text::one_line(why),
                retryable: false,
                step: None,
            }),
            (None, Some(answer)) => Ok(answer.clone()),
            (None, None) => Ok(Json::null()),
        },
    };
    Ok((past, unknown, lines))
}

/// Computed, so that the same file is the same run.
fn id(about: &About, content: &[u8]) -> RunId {
    let digest = Digest::of(content);
    let mut random = [0; 10];
    random.copy_from_slice(&digest.as_bytes()[..10]);
    let at = about.first_at.unwrap_or(Timestamp::from_micros(0));
    RunId::new(at, random)
}

fn open(file: &str) -> Result<Box<dyn BufRead>, Failure> {
    if file == "-" {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let opened = std::fs::File::open(Path::new(file)).map_err(|error| unreadable(file, &error))?;
    Ok(Box::new(std::io::BufReader::new(opened)))
}

fn unreadable(file: &str, error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorKind::Invalid,
        format!("{file} cannot be read: {error}"),
    )
}
