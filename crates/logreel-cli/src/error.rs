//! What an error is called, what to do about it, and how the process ends.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind as ClapKind;
use logreel::{ErrorKind, RunId};
use serde_json::json;

use crate::output::{self, Output};

/// An error of the command line itself.
#[derive(Debug)]
pub struct Failure {
    pub kind: ErrorKind,
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Says what went wrong and gives the exit code for it.
pub fn exit(error: &anyhow::Error, json: bool) -> ExitCode {
    match failure_of(error) {
        // Whoever read our output has seen enough.
        None => ExitCode::SUCCESS,
        Some(failure) => say(&failure, json),
    }
}

/// Answers a command line that is none, or one that asked for help.
pub fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit(&error.into(), false),
        };
    }
    let json = std::env::args_os().any(|arg| arg == "--json");
    if json {
        let text = match error.kind() {
            ClapKind::DisplayHelpOnMissingArgumentOrSubcommand => "a verb is missing".to_owned(),
            _ => first_paragraph(&error.render().to_string()),
        };
        let hint = "`logreel --help` lists the verbs, `logreel VERB --help` what a verb takes";
        return say(&Failure::new(ErrorKind::Usage, text).hint(hint), json);
    }
    // Nobody is left to tell when stderr is gone.
    error.print().unwrap_or_default();
    ExitCode::from(ErrorKind::Usage.exit_code())
}

fn say(failure: &Failure, json: bool) -> ExitCode {
    tell(failure, json);
    ExitCode::from(failure.kind.exit_code())
}

/// Says what went wrong, also when nothing else is to be said.
pub fn tell(failure: &Failure, json: bool) {
    let Failure {
        kind,
        message,
        hint,
    } = failure;
    let text = if json {
        json!({"error": {"kind": kind.as_str(), "message": message, "hint": hint}}).to_string()
    } else {
        let (bold, plain) = if output::stderr_has_colour() {
            ("\x1b[1;31m", "\x1b[0m")
        } else {
            ("", "")
        };
        let hint = hint
            .as_ref()
            .map_or_else(String::new, |hint| format!("\nhint: {hint}"));
        format!("{bold}error{plain}: {message}{hint}")
    };
    // Nobody is left to tell when stderr is gone.
    writeln!(io::stderr(), "{text}").unwrap_or_default();
}

/// Says why a run is not gone on with; the exit code for it.
pub fn leave_alone(run: &RunId, error: &anyhow::Error, out: &Output) -> u8 {
    let failure = failure_of(error)
        .unwrap_or_else(|| Failure::new(ErrorKind::Unavailable, error.to_string()));
    let message = format!("{} is left alone: {}", run.short(), failure.message);
    let failure = Failure { message, ..failure };
    tell(&failure, out.json);
    failure.kind.exit_code()
}

/// What an error is called; `None` when the reader of our output went away, which is no error.
pub fn failure_of(error: &anyhow::Error) -> Option<Failure> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        let Failure {
            kind,
            message,
            hint,
        } = failure;
        return Some(Failure {
            kind: *kind,
            message: message.clone(),
            hint: hint.clone(),
        });
    }
    let kind = if let Some(error) = error.downcast_ref::<logreel::Error>() {
        error.kind()
    } else if let Some(error) = error.downcast_ref::<logreel::store::Error>() {
        logreel::Error::from(error.clone()).kind()
    } else if let Some(error) = error.downcast_ref::<logreel_server::TokenError>() {
        error.kind()
    } else if let Some(error) = error.downcast_ref::<io::Error>() {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return None;
        }
        ErrorKind::Unavailable
    } else {
        ErrorKind::Bug
    };
    Some(Failure {
        kind,
        message: with_sources(error),
        hint: hint_for(kind).map(str::to_owned),
    })
}

/// The words of an error and of what caused it, each once and on one line.
pub fn with_sources(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for source in error.chain().skip(1) {
        let text = source.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
    }
    message
}

fn hint_for(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::NotFound => Some("`logreel ls` lists the runs"),
        ErrorKind::Corrupt => {
            Some("`logreel verify` names the runs that do not hold; restore a backup")
        }
        ErrorKind::NewerFormat => Some("use a newer logreel"),
        ErrorKind::Bug => Some("please report this, with the command that led to it"),
        ErrorKind::Terminal => {
            Some("an ended run stays as it is; start a new one, or `logreel retry` it")
        }
        ErrorKind::Unavailable => Some("`logreel doctor` looks the store over"),
        _ => None,
    }
}

/// What clap says, without its usage lines.
fn first_paragraph(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}
